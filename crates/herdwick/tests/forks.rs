//! A process that forks while it has clients: the child's calls use sessions of its own, and the
//! parent's continue. There is one test, because a fork copies only the thread that calls it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use herdwick::{Answer, Cause, Client, Fabric, Key, Lost, Op, Options, Session, Ticket};
use herdwick_server::{Config, ListenOptions, Server, spawn};

/// Runs `child` in a forked process. Returns whether it succeeded there.
fn forked(child: impl FnOnce()) -> bool {
    // SAFETY: the child runs on the one thread that it has, and ends by _exit. The C library makes
    // its allocator usable there; no lock of ours is held by another thread.
    match unsafe { libc::fork() } {
        0 => {
            let failed = catch_unwind(AssertUnwindSafe(child)).is_err();
            // SAFETY: ends the process, whatever state it is in.
            unsafe { libc::_exit(failed.into()) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` is a place for an int.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            status == 0
        }
    }
}

fn options(fabric: Option<Fabric>) -> Options {
    Options {
        // A loaded machine may keep a worker off its CPU for long.
        deadline: Duration::from_secs(60),
        fabric: fabric.is_some(),
        only: fabric,
        ..Options::default()
    }
}

fn leases(server: &Server) -> u64 {
    let address = server.address().to_string();
    let mut client = Client::connect_with(&address, options(None)).unwrap();
    let stats = client.stats("").unwrap();
    let found = stats.into_iter().find(|(name, _)| name == "leases");
    found.unwrap().1.parse().unwrap()
}

/// The child's client opens a session of its own with its first call.
fn clients(server: &Server, fabric: Option<Fabric>) {
    let address = server.address().to_string();
    let mut client = Client::connect_with(&address, options(fabric)).unwrap();
    let transport = client.session().unwrap().transport();
    assert_eq!(transport, fabric.map_or("tcp", Fabric::name));
    client.set("number", "0").unwrap();
    assert_eq!(client.incr("number", 1).unwrap(), Some(1));
    let held = leases(server);
    let copy = &mut client;
    assert!(forked(move || {
        assert_eq!(copy.session().unwrap().broken(), Some(Cause::Forked));
        assert_eq!(copy.incr("number", 1).unwrap(), Some(2));
        assert_eq!(copy.session().unwrap().transport(), transport);
        assert_eq!(copy.incr("number", 1).unwrap(), Some(3));
    }));
    // Another child only drops its copy of the client.
    let mut client = Some(client);
    let copy = &mut client;
    assert!(forked(move || drop(copy.take())));
    let mut client = client.unwrap();
    assert_eq!(client.incr("number", 1).unwrap(), Some(4));
    assert_eq!(client.get("number").unwrap().unwrap(), b"4");
    while leases(server) != held {
        std::thread::yield_now();
    }
    assert_eq!(client.session().unwrap().broken(), None);
    assert_eq!(
        client.incr("number", 1).unwrap(),
        Some(5),
        "by the same lease"
    );
    assert_eq!(leases(server), held);
}

/// A request in flight at the fork is the parent's.
fn sessions(server: &Server, fabric: Option<Fabric>) {
    let address = server.address().to_string().parse().unwrap();
    let mut session = Session::dial(&address, &options(fabric)).unwrap();
    let (key, now) = (Key::new(b"number").unwrap(), Duration::ZERO);
    let ticket = session.submit(now, key, &Op::Incr(1)).unwrap();
    session.flush(now);
    let copy = &mut session;
    assert!(forked(move || {
        let told = answers(copy, now);
        let (cause, perhaps_done) = (Cause::Forked, true);
        let lost = Answer::Lost(Lost {
            cause,
            perhaps_done,
        });
        assert_eq!(told, [(ticket, format!("{lost:?}"))]);
        assert_eq!(copy.submit(now, key, &Op::Incr(1)), None);
        assert!(copy.direct().is_none());
    }));
    let mut told = Vec::new();
    while told.is_empty() {
        session.wait(now);
        told = answers(&mut session, now);
    }
    assert_eq!(told, [(ticket, format!("{:?}", Answer::Number(6)))]);
}

fn answers(session: &mut Session, now: Duration) -> Vec<(Ticket, String)> {
    let mut told = Vec::new();
    session.poll(now, &mut |ticket, answer| {
        told.push((ticket, format!("{answer:?}")));
    });
    told
}

#[test]
fn forked_child_shares_no_session_with_its_parent() {
    let server = spawn(Config {
        fabrics: ListenOptions {
            roce: Some(([127, 0, 0, 1], 0).into()),
            ..ListenOptions::default()
        },
        workers: Some(2),
        ..Config::local()
    });
    let server = server.unwrap();
    for fabric in [Some(Fabric::Shm), Some(Fabric::Roce), None] {
        clients(&server, fabric);
        sessions(&server, fabric);
    }
}
