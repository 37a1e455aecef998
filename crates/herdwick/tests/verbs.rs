//! A whole server and its clients over the tests' own libibverbs: every request path, and every
//! failure that a device can cause.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdwick::{Client, DialOptions, Fabric, Fallback, Options, RequestPath, Session};
use herdwick_providers::{Verbs, VerbsOptions};
use herdwick_server::{Config, FabricStatus, Leases, ListenOptions, Server, StartError, spawn};
use herdwick_verbs::sys;
use herdwick_verbs_fake::handle as fake;

/// Serialises the tests: faults that are planted in the library affect every test of this process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(verbs: Verbs) -> ListenOptions {
    ListenOptions {
        verbs,
        ..ListenOptions::default()
    }
}

fn library() -> VerbsOptions {
    VerbsOptions {
        library: Some(fake::path()),
        ..VerbsOptions::default()
    }
}

fn config() -> Config {
    Config {
        leases: None,
        fabrics: listen(Verbs::IfThere(library())),
        workers: Some(2),
        ..Config::local()
    }
}

/// Starts a server on another thread: faults planted for all other threads affect it, and not this
/// one.
fn start(config: Config) -> Result<Server, StartError> {
    std::thread::spawn(|| spawn(config)).join().unwrap()
}

fn options() -> Options {
    Options {
        dial: DialOptions {
            verbs: Some(library()),
        },
        // A loaded machine may keep a worker off its CPU for long.
        deadline: Duration::from_secs(60),
        ..Options::default()
    }
}

fn client(server: &Server, options: &Options) -> Client {
    Client::connect_with(&server.address().to_string(), options.clone()).unwrap()
}

fn transport(client: &Client) -> &'static str {
    client.session().map_or("none", Session::transport)
}

fn counted(server: &Server) -> HashMap<String, u64> {
    let text = Options {
        fabric: false,
        ..options()
    };
    let stats = client(server, &text).stats("").unwrap();
    let number = |(name, value): (String, String)| Some((name, value.parse().ok()?));
    stats.into_iter().filter_map(number).collect()
}

/// Reads the counters until `name` is at least `least`.
fn counts(server: &Server, name: &str, least: u64) -> HashMap<String, u64> {
    loop {
        let counted = counted(server);
        assert!(counted.contains_key(name), "{name} in {counted:?}");
        if counted[name] >= least {
            return counted;
        }
    }
}

/// Stores and reads values of every size, and increments a counter.
fn goes(client: &mut Client, name: &str) {
    for len in [0, 20, 100, 900, 1000, 4000, 100_000] {
        let (key, value) = (format!("{name}-{len}"), vec![7; len]);
        client.set(&key, &value[..]).unwrap();
        assert_eq!(client.get(&key).unwrap(), Some(value), "{key}");
    }
    client.set(name, "1").unwrap();
    for number in 2..100 {
        assert_eq!(client.incr(name, 1).unwrap(), Some(number));
    }
}

/// Calls until the client uses the transport `wanted`; everything that it reads meanwhile is right.
fn comes_to(client: &mut Client, wanted: &str) {
    while transport(client) != wanted {
        if let Ok(value) = client.get("kept") {
            assert_eq!(value.as_deref(), Some(&b"value"[..]));
        }
    }
    assert_eq!(client.get("kept").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn every_request_path_works_with_and_without_ordered_writes() {
    let _alone = alone();
    for ordered in [true, false] {
        if !ordered {
            fake::fail_elsewhere("ibv_query_qp_data_in_order", 0, 1);
        }
        let server = start(config()).unwrap();
        for path in RequestPath::ALL {
            let mut client = client(
                &server,
                &Options {
                    only: Some(Fabric::Verbs),
                    request_path: Some(path),
                    ..options()
                },
            );
            assert_eq!(transport(&client), "verbs", "{:?}", client.session());
            goes(&mut client, path.name());
            assert_eq!(transport(&client), "verbs", "the transport is unchanged");
        }
        let counted = counted(&server);
        for name in ["leases_uc_write", "leases_rc_write", "leases_ud_send"] {
            assert_eq!(counted[name], 1, "{name}");
        }
        assert!(counted["datagrams"] > 100, "{counted:?}");
        let least = if ordered { 1 } else { 200 };
        assert!(counted["announcements"] > least, "{counted:?}");
        assert_eq!(counted["malformed_datagrams"], 0);
    }
}

#[test]
fn request_path_follows_the_device_capabilities() {
    let _alone = alone();
    for (ordered, path) in [(true, "leases_uc_write"), (false, "leases_ud_send")] {
        if !ordered {
            fake::fail_elsewhere("ibv_query_qp_data_in_order", 0, 1);
        }
        let server = start(config()).unwrap();
        let FabricStatus::On(place) = server.fabric(Fabric::Verbs) else {
            panic!("{:?}", server.fabric(Fabric::Verbs));
        };
        let known = "fake0 port 1, GID 3 (RoCEv2, 127.0.0.1), MTU 1024, memory to ";
        let inline = place.strip_prefix(known).expect(place);
        assert!(inline.ends_with(" bytes inline"), "{place}");
        goes(&mut client(&server, &options()), "key");
        assert_eq!(counted(&server)[path], 1);
    }
}

#[test]
fn server_without_libibverbs_starts_and_reports_why() {
    let _alone = alone();
    let nowhere = VerbsOptions {
        library: Some("libibverbs-of-nowhere.so.1".into()),
        ..VerbsOptions::default()
    };
    let server = start(Config {
        fabrics: listen(Verbs::IfThere(nowhere.clone())),
        ..config()
    });
    let server = server.unwrap();
    let FabricStatus::Absent(reason) = server.fabric(Fabric::Verbs) else {
        panic!("{:?}", server.fabric(Fabric::Verbs));
    };
    assert!(reason.contains("apt-get install libibverbs1"), "{reason}");
    let mut client = client(&server, &options());
    assert_eq!(
        client.session().unwrap().fallback(),
        Some(&Fallback::NotOffered)
    );
    goes(&mut client, "key");
    let refused = start(Config {
        fabrics: listen(Verbs::Needed(nowhere)),
        ..config()
    });
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("--verbs off"), "{refused}");
}

#[test]
fn client_without_a_device_uses_text_and_reports_why() {
    let _alone = alone();
    let server = start(config()).unwrap();
    fake::fail("devices", 0, 1);
    let mut client = client(&server, &options());
    let session = client.session().unwrap();
    let Some(Fallback::NoDevice(Fabric::Verbs, why)) = session.fallback() else {
        panic!("{:?}", session.fallback());
    };
    assert!(why.contains("rdma link add"), "{why}");
    goes(&mut client, "key");
}

#[test]
#[ignore = "twelve seconds: the client waits before it dials again; CI runs it"]
fn failed_registration_is_reported_and_costs_one_lease() {
    let _alone = alone();
    fake::fail_elsewhere("ibv_reg_mr_iova", 0, libc::ENOMEM);
    let server = start(config()).unwrap();
    let FabricStatus::Absent(reason) = server.fabric(Fabric::Verbs) else {
        panic!("{:?}", server.fabric(Fabric::Verbs));
    };
    assert!(reason.contains("ulimit -l"), "{reason}");
    drop(server);

    let server = start(config()).unwrap();
    let mut held = client(&server, &options());
    held.set("kept", "value").unwrap();
    fake::fail_elsewhere("ibv_reg_mr_iova", 0, libc::ENOMEM);
    let mut refused = client(&server, &options());
    let why = refused.session().unwrap().fallback().unwrap().to_string();
    assert!(why.contains("memory for a lease"), "{why}");
    goes(&mut refused, "text");
    goes(&mut held, "verbs");
    assert_eq!((transport(&refused), transport(&held)), ("tcp", "verbs"));
    // The fault is over, and the client that was refused notices.
    comes_to(&mut refused, "verbs");
}

#[test]
fn failed_address_handle_is_counted_as_lease_refused_full() {
    let _alone = alone();
    let server = start(config()).unwrap();
    fake::fail_elsewhere("ibv_create_ah", 0, libc::ENOMEM);
    let client = client(&server, &options());
    let why = client.session().unwrap().fallback().unwrap().to_string();
    assert!(why.contains("memory for a lease"), "{why}");
    let counted = counted(&server);
    let refused = (counted["lease_refused_full"], counted["lease_malformed"]);
    assert_eq!(refused, (1, 0));
}

#[test]
fn full_fabric_is_retried_when_another_has_no_device() {
    let _alone = alone();
    let server = start(Config {
        leases: Some(Leases {
            clients_max: 1,
            ..Leases::default()
        }),
        ..config()
    });
    let server = server.unwrap();
    let mut first = client(&server, &options());
    first.set("kept", "value").unwrap();
    fake::fail("devices", 0, 1);
    let mut second = client(&server, &options());
    assert_eq!((transport(&first), transport(&second)), ("shm", "tcp"));
    drop(first);
    comes_to(&mut second, "shm");
}

#[test]
fn lost_device_or_failed_queue_pair_ends_a_lease_and_loses_no_reply() {
    let _alone = alone();
    let server = start(config()).unwrap();
    let mut held = client(&server, &options());
    held.set("kept", "value").unwrap();
    let mut lost = 0;
    for event in [sys::IBV_EVENT_DEVICE_FATAL, sys::IBV_EVENT_CQ_ERR] {
        assert_eq!(transport(&held), "verbs");
        fake::event_elsewhere(event);
        // Each worker has lost its device or queue, and the lease with it.
        lost += 1;
        let counted = counts(&server, "lease_fabric_lost", lost);
        assert_eq!(counted["leases"], 0, "{counted:?}");
        comes_to(&mut held, "verbs");
        goes(&mut held, "again");
    }
    let counted = counted(&server);
    assert!(counted["verbs_device_lost"] > 0, "{counted:?}");
    assert!(counted["verbs_cq_failures"] > 0, "{counted:?}");
    assert!(counted["devices_lost"] >= 2, "{counted:?}");
}

#[test]
fn changed_gid_ends_a_lease_and_loses_no_reply() {
    let _alone = alone();
    let server = start(config()).unwrap();
    let mut held = client(&server, &options());
    held.set("kept", "value").unwrap();
    // One worker finds another address in the place of its own; when it opens the port again, the
    // old address is back.
    fake::fail_elsewhere("address", 0, 2);
    fake::event_elsewhere(sys::IBV_EVENT_GID_CHANGE);
    let counted = counts(&server, "lease_fabric_lost", 1);
    assert_eq!(counted["verbs_address_lost"], 1, "{counted:?}");
    comes_to(&mut held, "verbs");
    goes(&mut held, "again");
}

#[test]
fn client_that_loses_its_device_gets_another_lease() {
    let _alone = alone();
    let server = start(config()).unwrap();
    let mut held = client(&server, &options());
    held.set("kept", "value").unwrap();
    for event in [
        sys::IBV_EVENT_DEVICE_FATAL,
        sys::IBV_EVENT_CQ_ERR,
        sys::IBV_EVENT_QP_FATAL,
    ] {
        fake::event(event);
        for _ in 0..100 {
            let value = held.get("kept").unwrap();
            assert_eq!(value.as_deref(), Some(&b"value"[..]), "event {event}");
        }
        assert_eq!(transport(&held), "verbs", "event {event}");
    }
}

#[test]
fn clients_use_text_while_the_link_is_down_and_return() {
    let _alone = alone();
    let server = start(config()).unwrap();
    let mut held = client(&server, &options());
    held.set("kept", "value").unwrap();
    fake::link(false);
    counts(&server, "verbs_port_down", 1);
    comes_to(&mut held, "tcp");
    goes(&mut held, "down");
    assert_eq!(transport(&client(&server, &options())), "tcp");
    fake::link(true);
    comes_to(&mut held, "verbs");
    goes(&mut held, "up");
}

#[test]
fn short_link_failure_only_ends_leases() {
    let _alone = alone();
    let server = start(config()).unwrap();
    let mut held = client(&server, &options());
    held.set("kept", "value").unwrap();
    for _ in 0..20 {
        fake::link(false);
        fake::link(true);
        // Leases end, or the link is back before the worker checks: reads are not affected.
        comes_to(&mut held, "verbs");
        comes_to(&mut client(&server, &options()), "verbs");
    }
}

#[test]
fn device_missing_at_the_next_start_loses_no_item() {
    let _alone = alone();
    let name = format!("herdwick-verbs-items-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    let nowhere = Verbs::IfThere(VerbsOptions {
        library: Some("libnowhere.so.1".into()),
        ..VerbsOptions::default()
    });
    for (n, verbs) in [nowhere, config().fabrics.verbs]
        .into_iter()
        .cycle()
        .take(4)
        .enumerate()
    {
        let server = start(Config {
            memory_file: Some(file.clone()),
            fabrics: listen(verbs),
            ..config()
        });
        let server = server.unwrap();
        let mut client = client(&server, &options());
        let found = client.get("kept").unwrap();
        assert_eq!(
            found.as_deref(),
            (n > 0).then_some(&b"value"[..]),
            "start {n}"
        );
        client.set("kept", "value").unwrap();
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn worker_without_spin_is_woken_for_every_request() {
    let _alone = alone();
    let server = start(Config {
        spin: Duration::ZERO,
        workers: Some(1),
        ..config()
    });
    let server = server.unwrap();
    let options = Options {
        request_path: Some(RequestPath::UcWrite),
        ..options()
    };
    let mut client = client(&server, &options);
    for _ in 0..200 {
        client.set("kept", "value").unwrap();
    }
    let counted = counted(&server);
    assert!(counted["announcements"] >= 200, "{counted:?}");
}

#[test]
fn more_than_32_workers_disable_verbs() {
    let _alone = alone();
    let server = start(Config {
        workers: Some(33),
        memory_bytes: 256 << 20,
        ..config()
    });
    let server = server.unwrap();
    assert!(matches!(
        server.fabric(Fabric::Verbs),
        FabricStatus::Absent(_)
    ));
    goes(&mut client(&server, &options()), "key");
}

#[test]
#[ignore = "twelve seconds: the client waits before it dials again; CI runs it"]
fn failed_completions_are_counted_and_recovered() {
    let _alone = alone();
    for (path, status) in [
        (RequestPath::UdSend, sys::IBV_WC_LOC_PROT_ERR),
        (RequestPath::RcWrite, sys::IBV_WC_RNR_RETRY_EXC_ERR),
        (RequestPath::UcWrite, sys::IBV_WC_LOC_QP_OP_ERR),
    ] {
        let server = start(config()).unwrap();
        let options = Options {
            request_path: Some(path),
            ..options()
        };
        let mut held = client(&server, &options);
        held.set("kept", "value").unwrap();
        // A completion is made by the thread that posts: requests on this one, replies on the
        // server's.
        for after in 0..2 {
            fake::fail("status", after, status);
            fake::fail_elsewhere("status", after, status);
        }
        for _ in 0..300 {
            let value = held.get("kept").unwrap();
            assert_eq!(value.as_deref(), Some(&b"value"[..]), "{path}");
        }
        // A failure in the first exchange of a lease leaves text, until the next attempt.
        comes_to(&mut held, "verbs");
        if path == RequestPath::UdSend {
            counts(&server, "verbs_completion_errors", 1);
        } else {
            counts(&server, "lease_fabric_lost", 1);
        }
    }
}
