//! Every request path over every fabric, and the server's counters of it.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use herdwick::{Client, Fabric, Fallback, Options, Put, RequestPath, Session};
use herdwick_server::{Config, ListenOptions, Server, spawn};

fn server(path: Option<RequestPath>) -> Server {
    let config = Config {
        fabrics: ListenOptions {
            roce: Some(([127, 0, 0, 1], 0).into()),
            ..ListenOptions::default()
        },
        request_path: path,
        workers: Some(2),
        ..Config::local()
    };
    spawn(config).unwrap()
}

fn by(fabric: Fabric, path: RequestPath) -> Options {
    Options {
        only: Some(fabric),
        request_path: Some(path),
        // A loaded machine may keep a worker off its CPU for long.
        deadline: Duration::from_secs(60),
        ..Options::default()
    }
}

fn client(server: &Server, options: &Options) -> Client {
    Client::connect_with(&server.address().to_string(), options.clone()).unwrap()
}

fn counted(server: &Server) -> HashMap<String, u64> {
    let options = Options {
        fabric: false,
        ..Options::default()
    };
    let stats = client(server, &options).stats("").unwrap();
    let number = |(name, value): (String, String)| Some((name, value.parse().ok()?));
    stats.into_iter().filter_map(number).collect()
}

/// Makes every kind of call over `fabric` by `path`.
fn goes(server: &Server, fabric: Fabric, path: RequestPath) {
    let mut client = client(server, &by(fabric, path));
    let transport = client.session().map(Session::transport);
    assert_eq!(
        transport,
        Some(fabric.name()),
        "{path}: {:?}",
        client.session()
    );
    let name = format!("{}-{path}", fabric.name());
    for len in [0, 20, 24, 100, 900, 960, 1000, 4000, 100_000] {
        let (key, value) = (format!("{name}-{len}"), vec![7; len]);
        let put = Put::new(&value);
        client.set(&key, put).unwrap();
        assert_eq!(client.get(&key).unwrap(), Some(value), "{key}");
    }
    client.set(&name, "1").unwrap();
    for number in 2..200 {
        assert_eq!(client.incr(&name, 1).unwrap(), Some(number));
    }
    let keys: Vec<String> = (0..300).map(|n| format!("{name}-many-{n}")).collect();
    for key in &keys {
        client.set(key, key.as_str()).unwrap();
    }
    let found = client.get_many(&keys).unwrap();
    for (key, item) in keys.iter().zip(found) {
        assert_eq!(item.unwrap().value, key.as_bytes());
    }
    assert!(client.delete(&name).unwrap());
    assert_eq!(client.get(&name).unwrap(), None);
    let transport = client.session().map(Session::transport);
    assert_eq!(transport, Some(fabric.name()), "the transport is unchanged");
}

#[test]
fn every_path_over_shared_memory() {
    let server = server(None);
    for path in RequestPath::ALL {
        goes(&server, Fabric::Shm, path);
    }
    let counted = counted(&server);
    for name in ["leases_uc_write", "leases_rc_write", "leases_ud_send"] {
        assert_eq!(counted[name], 1, "{name}");
    }
    assert!(counted["datagrams"] > 700);
    assert_eq!(
        counted["foreign_datagrams"] + counted["malformed_datagrams"],
        0
    );
}

#[test]
fn every_path_over_roce() {
    let server = server(None);
    for path in RequestPath::ALL {
        goes(&server, Fabric::Roce, path);
    }
    let counted = counted(&server);
    for name in ["leases_uc_write", "leases_rc_write", "leases_ud_send"] {
        assert_eq!(counted[name], 1, "{name}");
    }
    assert!(counted["datagrams"] > 700);
}

#[test]
fn every_path_over_keyed_roce() {
    let server = spawn(Config {
        fabrics: ListenOptions {
            roce: Some(([127, 0, 0, 1], 0).into()),
            roce_keyed: true,
            ..ListenOptions::default()
        },
        workers: Some(2),
        ..Config::local()
    });
    let server = server.unwrap();
    for path in RequestPath::ALL {
        goes(&server, Fabric::Roce, path);
    }
    let counted = counted(&server);
    for name in ["leases_uc_write", "leases_rc_write", "leases_ud_send"] {
        assert_eq!(counted[name], 1, "{name}");
    }
    for name in ["roce_bad_tag", "roce_replayed", "roce_unkeyed"] {
        assert_eq!(counted[name], 0, "{name}");
    }
}

/// The capture has whole packets from the IP header on, in both directions.
#[test]
fn roce_capture_has_packets_of_both_directions() {
    let name = format!("herdwick-capture-{}.pcap", std::process::id());
    let path = std::env::temp_dir().join(name);
    let server = spawn(Config {
        fabrics: ListenOptions {
            roce: Some(([127, 0, 0, 1], 0).into()),
            roce_capture: Some(path.clone()),
            ..ListenOptions::default()
        },
        workers: Some(1),
        ..Config::local()
    });
    let server = server.unwrap();
    goes(&server, Fabric::Roce, RequestPath::UcWrite);
    drop(server);
    let file = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file[..4], 0xa1b2_c3d4_u32.to_le_bytes());
    let (mut rest, mut ports) = (&file[24..], HashMap::new());
    while let Some((head, behind)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize;
        let (frame, behind) = behind.split_at(len);
        assert_eq!((frame[0], frame[9]), (0x45, 17), "UDP in IPv4");
        assert_eq!(usize::from(u16::from_be_bytes([frame[2], frame[3]])), len);
        *ports.entry([frame[22], frame[23]]).or_insert(0) += 1;
        rest = behind;
    }
    assert!(rest.is_empty());
    // To the server's port, and to the client's.
    assert!(
        ports.len() == 2 && ports.values().all(|packets| *packets > 500),
        "{ports:?}"
    );
}

#[test]
fn server_decides_the_request_path() {
    let server = server(Some(RequestPath::UdSend));
    goes(&server, Fabric::Roce, RequestPath::UcWrite);
    goes(&server, Fabric::Shm, RequestPath::UcWrite);
    assert_eq!(counted(&server)["leases_ud_send"], 2);
}

#[test]
fn fabric_not_offered_is_reported() {
    let server = spawn(Config::local()).unwrap();
    let options = by(Fabric::Roce, RequestPath::UcWrite);
    let address = server.address().to_string().parse().unwrap();
    let session = Session::dial(&address, &options).unwrap();
    assert_eq!(session.fallback(), Some(&Fallback::NotOffered));
}

#[test]
fn lease_over_tcp_ends_with_its_connection() {
    let server = server(None);
    let held = client(&server, &by(Fabric::Roce, RequestPath::UcWrite));
    let during = counted(&server);
    assert_eq!(during["leases"], 1);
    assert!(during["lease_bytes"] > 0);
    drop(held);
    while counted(&server)["lease_bytes"] > 0 {
        std::thread::yield_now();
    }
    assert_eq!(counted(&server)["leases"], 0);
}

#[test]
fn lease_over_tcp_counts_as_a_connection() {
    let server = spawn(Config {
        connections_max: 2,
        fabrics: ListenOptions {
            roce: Some(([127, 0, 0, 1], 0).into()),
            ..ListenOptions::default()
        },
        ..Config::local()
    });
    let server = server.unwrap();
    // One connection for text, one for the lease.
    let held = client(&server, &by(Fabric::Roce, RequestPath::UcWrite));
    assert_eq!(held.session().map(Session::transport), Some("roce"));
    let says = || {
        let mut stream = TcpStream::connect(server.address().to_string()).unwrap();
        let _ = stream.write_all(b"version\r\n");
        let mut line = String::new();
        // A refused connection may be reset before its error is read.
        let _ = BufReader::new(stream).read_line(&mut line);
        line
    };
    assert!(!says().starts_with("VERSION"));
    drop(held);
    while !says().starts_with("VERSION") {}
}
