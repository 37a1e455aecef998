//! Fallbacks: a session over text reports the reason.

use std::{
    io::{BufRead, BufReader, Error, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    time::Duration,
};

use herdwick::{Client, DialError, Fabric, Fallback, LeaseRefusal, Options, Session};
use herdwick_herd::hello::{BootId, Hello, Offer};
use herdwick_server::{Config, Leases, ListenOptions, Server, spawn};

use crate::servers::Script;

/// Options of a client that waits for a server on a busy host.
fn patient() -> Options {
    Options {
        deadline: Duration::from_secs(60),
        ..Options::default()
    }
}

fn dial(address: &str) -> Session {
    Session::dial(&address.parse().unwrap(), &patient()).unwrap()
}

fn reason(session: &Session) -> Fallback {
    assert_eq!(session.transport(), "tcp");
    session.fallback().expect("text has a reason").clone()
}

/// Returns what `server` offers to a client on this host.
fn offer(server: &Server) -> Offer {
    let mut stream = TcpStream::connect(server.address().to_string()).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot = BootId::parse(&boot);
    let hello = Hello {
        fabrics: vec!["shm".to_owned()],
        boot,
        ..Hello::default()
    };
    stream.write_all(hello.to_line().as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    Offer::parse(line.trim_end().as_bytes(), &Fabric::all_words()).unwrap()
}

/// Returns the path of the lease socket of `server`.
fn lease_socket(server: &Server) -> PathBuf {
    let offer = offer(server);
    offer
        .fabrics
        .into_iter()
        .find_map(|fabric| fabric.socket)
        .unwrap()
}

/// Opens a session at a server that answers the hello with `offer`.
pub(crate) fn offered(offer: &Offer) -> Session {
    let line: &'static str = offer.to_line().leak();
    let server = Script::start(&*vec![&*vec![line.as_bytes()].leak()].leak());
    dial(&server.address)
}

#[test]
fn session_on_the_best_fabric_reports_no_fallback() {
    let server = spawn(Config::local()).unwrap();
    let session = dial(&server.address().to_string());
    assert_eq!((session.transport(), session.fallback()), ("shm", None));
}

#[test]
fn text_transport_can_be_requested() {
    let server = spawn(Config::local()).unwrap();
    let options = Options {
        fabric: false,
        ..patient()
    };
    let address = server.address().to_string().parse().unwrap();
    let session = Session::dial(&address, &options).unwrap();
    assert_eq!(reason(&session), Fallback::Unasked);
}

#[test]
fn fallback_to_text_if_the_server_knows_no_hello() {
    let memcached = Script::start(&[&[b"ERROR\r\n"]]);
    assert_eq!(reason(&dial(&memcached.address)), Fallback::Memcached);
    let newer = Script::start(&[&[b"HERDWICK 9 in=another;form\r\n"]]);
    assert_eq!(reason(&dial(&newer.address)), Fallback::Version(9));
    let proxy = Script::start(&[&[b"421 what?\r\n"], &[]]);
    assert_eq!(reason(&dial(&proxy.address)), Fallback::NoAnswer);
}

/// By text a server could not refuse a client that knows a former registration. Seen to fail where it fell back.
#[test]
fn member_of_a_cluster_does_not_fall_back_without_an_answer() {
    let late = Script::start(&[&[b"421 what?\r\n"], &[]]);
    let options = Options {
        member: Some(7),
        ..patient()
    };
    let dialled = Session::dial(&late.address.parse().unwrap(), &options);
    assert!(matches!(dialled, Err(DialError::Io(_))), "{dialled:?}");
}

#[test]
fn fallback_to_text_if_the_server_has_no_leases() {
    // Thirty-three are more than a lease can be of.
    for workers in [1, 33] {
        let server = spawn(Config {
            leases: None,
            workers: Some(workers),
            memory_bytes: 256 << 20,
            ..Config::local()
        });
        let server = server.unwrap();
        let session = dial(&server.address().to_string());
        assert_eq!(reason(&session), Fallback::NotOffered);
    }
}

#[test]
fn fallback_to_text_if_all_leases_are_taken() {
    let server = spawn(Config {
        leases: Some(Leases {
            clients_max: 1,
            ..Leases::default()
        }),
        ..Config::local()
    });
    let server = server.unwrap();
    let address = server.address().to_string();
    let first = dial(&address);
    assert_eq!(first.transport(), "shm");
    let refused = Fallback::Refused(LeaseRefusal::Full);
    assert_eq!(reason(&dial(&address)), refused);
}

/// README.md: what 12 MiB are enough for.
#[test]
fn three_workers_have_leases_for_nine_clients_and_two_smaller_ones() {
    let server = spawn(Config {
        workers: Some(3),
        ..Config::local()
    });
    let server = server.unwrap();
    let address = server.address().to_string();
    let mut windows = Vec::new();
    let mut held = Vec::new();
    let last = loop {
        let mut session = dial(&address);
        let Some(window) = session.direct().map(|direct| direct.window()) else {
            break session;
        };
        windows.push(window);
        held.push(session);
    };
    assert_eq!(reason(&last), Fallback::Refused(LeaseRefusal::Full));
    let full = Options::default().window;
    assert_eq!(windows[..9], [full; 9]);
    assert_eq!(windows.len(), 11, "{windows:?}");
    assert!(windows[9..].iter().all(|window| *window < full));
}

#[test]
fn fallback_to_text_if_the_lease_socket_is_unreachable() {
    let server = spawn(Config::local()).unwrap();
    let mut offer = offer(&server);
    let path = Path::new("/no/such/socket");
    offer.fabrics[0].socket = Some(path.into());
    let reason = reason(&offered(&offer));
    let error = Error::from_raw_os_error(libc::ENOENT).into();
    let path = path.into();
    assert_eq!(reason, Fallback::Socket { path, error });
    assert!(reason.to_string().contains("/no/such/socket"), "{reason}");
}

#[test]
fn second_best_fabric_is_used_if_the_best_is_unreachable() {
    let server = spawn(Config {
        leases: Some(Leases {
            clients_max: 1,
            ..Leases::default()
        }),
        fabrics: ListenOptions {
            roce: Some(([127, 0, 0, 1], 0).into()),
            ..ListenOptions::default()
        },
        ..Config::local()
    });
    let server = server.unwrap();
    std::fs::remove_file(lease_socket(&server)).unwrap();
    let dial = || Client::connect_with(&server.address().to_string(), patient()).unwrap();
    let transport = |client: &Client| client.session().map_or("none", Session::transport);
    let (first, mut second) = (dial(), dial());
    assert_eq!((transport(&first), transport(&second)), ("roce", "tcp"));
    // The session has the reason: the socket is missing.
    let session = first.session().unwrap();
    assert!(matches!(session.missed(), Some(Fallback::Socket { .. })));
    assert_eq!(session.fallback(), None);
    drop(first);
    while transport(&second) != "roce" {
        second.get("key").unwrap();
    }
}

#[test]
fn fallback_to_text_if_the_grant_does_not_match_the_offer() {
    let server = spawn(Config::local()).unwrap();
    let mut offer = offer(&server);
    offer.workers += 1;
    let reason = reason(&offered(&offer));
    assert!(matches!(reason, Fallback::Setup(_)), "{reason}");
}
