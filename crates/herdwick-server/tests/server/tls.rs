//! TLS, with rustls as the client: protocols over TLS, client certificates, and the cost of
//! unfinished or hostile handshakes.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
};

use crate::authority::{Authority, Client, Session};
use crate::common::{Peer, TIMEOUT, connect, crowd::Since, shown, stat, tcp, with};
use herdwick_server::{
    Address, ClientCertificates, Config, Interface, KeyFormat, Listen, Server, StartError, Tls,
    TlsError, Tuning, spawn,
};
use rustls::{ClientConfig, RootCertStore};

fn serving(tls: Tls) -> Server {
    with(Config {
        workers: Some(2),
        tls: Some(tls),
        ..Config::local()
    })
}

/// Returns a server that also listens without TLS, for the tests' own `stats`. The TLS port is
/// first.
fn both(tls: Tls) -> (Server, SocketAddr) {
    both_of(tls, 2)
}

fn both_of(tls: Tls, workers: usize) -> (Server, SocketAddr) {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let plain = Interface {
        addresses: vec![loopback],
        plain: true,
    };
    let server = with(Config {
        workers: Some(workers),
        listen: Listen::Tcp(vec![plain, loopback.into()]),
        tls: Some(tls),
        ..Config::local()
    });
    let Address::Tcp(address) = server.addresses()[1] else {
        panic!("listens on TCP");
    };
    (server, address)
}

/// Replies are byte-identical to those without TLS, in each protocol, with values of many records.
#[test]
fn all_protocols_work_over_tls() {
    let authority = Authority::new();
    let (server, address) = both(authority.tls());
    let client = authority.client(None);
    let value = "v".repeat(700_000);
    let mut input = format!(
        "set a 0 0 {0}\r\n{value}\r\nget a\r\nget a a a a a a a a\r\nmg a v s\r\nmn\r\ngets b\r\n",
        value.len()
    )
    .into_bytes();
    input.extend_from_slice(&b"get a\r\n".repeat(30));
    let said = client.say(address, &input).unwrap();
    assert_eq!(said.len(), server.say(&[&input]).len());
    assert!(said == server.say(&[&input]), "different bytes");
    let noop = [&[0x80, 10][..], &[0; 22]].concat();
    let binary = client.say(address, &noop).unwrap();
    assert_eq!(binary, server.say(&[&noop]));
    assert_eq!(stat(&server, "ssl_handshake_errors"), 0);
}

/// Memory of idle sessions cannot be freed by waiting, so large replies do not wait for it.
#[test]
fn idle_tls_sessions_do_not_delay_large_replies() {
    const WORKERS: usize = 16;
    let ca = Authority::new();
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let plain = Interface {
        addresses: vec![loopback],
        plain: true,
    };
    // This leaves 1 MiB of buffers at each worker.
    let server = with(Config {
        workers: Some(WORKERS),
        memory_bytes: 64 << 20,
        item_bytes_max: 64 << 10,
        connections_max: 8000,
        listen: Listen::Tcp(vec![plain, loopback.into()]),
        tls: Some(ca.tls()),
        ..Config::local()
    });
    let Address::Tcp(address) = server.addresses()[1] else {
        panic!("listens on TCP");
    };
    let set = format!("set x 0 0 20000\r\n{}\r\n", "x".repeat(20_000));
    assert_eq!(server.say(&[set.as_bytes()]), b"STORED\r\n");
    let client = ca.client(None);
    // Connections are assigned in turn, so all of these are at one worker.
    let sessions: Vec<Session> = (0..140)
        .map(|_| {
            for _ in 1..WORKERS {
                assert!(server.say(&[b"version\r\n"]).starts_with(b"VERSION"));
            }
            let mut session = client.connect(address);
            session.write_all(b"version\r\n").unwrap();
            session.read_exact(&mut [0; 8]).unwrap();
            session
        })
        .collect();
    for _ in 0..WORKERS {
        assert!(server.say(&[b"get x\r\n"]).ends_with(b"\r\nEND\r\n"));
    }
    assert_eq!(stat(&server, "replies_queued"), 0);
    assert!(stat(&server, "read_buf_bytes") > 1 << 20);
    drop(sessions);
}

/// Large values over TLS, read into the store of this worker and of another one.
#[test]
fn large_values_are_stored_over_tls() {
    const LEN: usize = 500_000;
    let ca = Authority::new();
    let (_server, address) = both(ca.tls());
    let (mut said, mut expected) = (Vec::new(), Vec::new());
    for n in 0..8 {
        let value = crate::common::crowd::value(n, LEN);
        said.extend(format!("set key-{n} 0 0 {LEN}\r\n").bytes());
        said.extend(&value);
        said.extend(format!("\r\nget key-{n}\r\n").bytes());
        expected.extend(format!("STORED\r\nVALUE key-{n} 0 {LEN}\r\n").bytes());
        expected.extend(&value);
        expected.extend(b"\r\nEND\r\n");
    }
    let heard = ca.client(None).say(address, &said);
    assert!(
        heard == Some(expected),
        "{:?}",
        heard.map(|heard| heard.len())
    );
}

#[test]
fn tls_1_2_and_1_3_work_with_pem_and_der_keys() {
    let authority = Authority::new();
    let mut tls = authority.tls();
    tls.key = authority.path("server.der");
    tls.key_format = KeyFormat::Der;
    let old = {
        let mut roots = RootCertStore::empty();
        roots.add(authority.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap();
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        Client(Arc::new(config))
    };
    let server = serving(tls.clone());
    assert_eq!(old.say(tcp(&server), b"mn\r\n").unwrap(), b"MN\r\n");
    tls.only_1_3 = true;
    let server = serving(tls);
    assert_eq!(old.say(tcp(&server), b"mn\r\n"), None);
    let new = authority.client(None);
    assert_eq!(new.say(tcp(&server), b"mn\r\n").unwrap(), b"MN\r\n");
}

/// With required client certificates, a client without a valid one is not served.
#[test]
fn client_certificates_are_verified() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let none = authority.client(None);
    let right = authority.client(Some(&authority));
    let wrong = authority.client(Some(&stranger));
    for (clients, served) in [
        (ClientCertificates::Ignored, [true, true, true]),
        (ClientCertificates::Requested, [true, true, false]),
        (ClientCertificates::Required, [false, true, false]),
    ] {
        let tls = Tls {
            clients,
            ..authority.tls()
        };
        let (server, address) = both(tls);
        let outcomes = [&none, &right, &wrong].map(|client| client.say(address, b"mn\r\n"));
        let failures = served.iter().filter(|served| !**served).count() as u64;
        assert_eq!(outcomes.map(|said| said.is_some()), served, "{clients:?}");
        // A client can learn of its refusal before the server has counted it.
        let begun = Since::now();
        while stat(&server, "ssl_handshake_errors") < failures {
            assert!(begun.elapsed() < TIMEOUT, "{clients:?}: not counted");
        }
        assert_eq!(stat(&server, "ssl_handshake_errors"), failures);
    }
}

#[test]
fn client_that_rejects_the_server_certificate_is_counted() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (server, address) = both(authority.tls());
    assert_eq!(stranger.client(None).say(address, b"mn\r\n"), None);
    until(|| stat(&server, "ssl_handshake_errors") == 1);
}

/// Plain text at a TLS port gets no text in reply, and affects no other connection.
#[test]
fn plain_text_on_a_tls_port_ends_the_connection() {
    let authority = Authority::new();
    let (server, address) = both(authority.tls());
    for input in [&b"stats\r\n"[..], b"\x80\0\0\0\0\0\0\0", &[0x16; 70_000]] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let _ = stream.write_all(input);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() < 16, "{}", shown(&said));
    }
    until(|| stat(&server, "ssl_handshake_errors") == 3);
    let client = authority.client(None);
    assert_eq!(client.say(address, b"mn\r\n").unwrap(), b"MN\r\n");
}

/// Certificates are reloaded while connections are open; invalid files change nothing.
#[test]
fn certificates_are_reloaded() {
    let authority = Authority::new();
    let server = serving(authority.tls());
    let client = authority.client(None);
    let shown_by = |session: &mut Session| {
        session.write_all(b"mn\r\n").unwrap();
        let mut said = [0; 4];
        session.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"MN\r\n");
        session.conn.peer_certificates().unwrap()[0].clone()
    };
    let mut early = client.connect(tcp(&server));
    let before = shown_by(&mut early);
    let renewed = authority.sign("server");
    server.reload_certificates().unwrap();
    assert_eq!(shown_by(&mut client.connect(tcp(&server))), renewed);
    assert_eq!(shown_by(&mut early), before);

    let again = authority.sign("server");
    let said = client.say(tcp(&server), b"refresh_certs\r\n").unwrap();
    assert_eq!(said, b"OK\r\n");
    assert_eq!(shown_by(&mut client.connect(tcp(&server))), again);

    authority.sign("other");
    fs::copy(authority.path("other.key"), authority.path("server.key")).unwrap();
    let Err(TlsError::Mismatch { .. }) = server.reload_certificates() else {
        panic!("another's key");
    };
    let said = client.say(tcp(&server), b"refresh_certs\r\n").unwrap();
    assert!(said.starts_with(b"Error "), "{}", shown(&said));
    assert_eq!(shown_by(&mut client.connect(tcp(&server))), again);
}

/// A client that sends byte by byte and reads late receives everything, and a close_notify at the
/// end.
#[test]
fn slow_tls_client_receives_every_byte() {
    let authority = Authority::new();
    let server = serving(authority.tls());
    let address = tcp(&server);
    let mut session = authority.client(None).connect(address);
    let value = "w".repeat(900_000);
    write!(session, "set a 0 0 {}\r\n{value}\r\n", value.len()).unwrap();
    for _ in 0..20 {
        session.write_all(b"get a\r\n").unwrap();
    }
    let mut trickle = Vec::new();
    session
        .conn
        .writer()
        .write_all(b"get a\r\nquit\r\n")
        .unwrap();
    while session.conn.wants_write() {
        session.conn.write_tls(&mut trickle).unwrap();
    }
    for byte in trickle {
        session.sock.write_all(&[byte]).unwrap();
    }
    let mut said = Vec::new();
    // Without close_notify this would be an error.
    session.read_to_end(&mut said).unwrap();
    let reply = format!("VALUE a 0 {}\r\n{value}\r\nEND\r\n", value.len());
    assert_eq!(said.len(), "STORED\r\n".len() + 21 * reply.len());
}

#[test]
fn sessions_are_resumed_only_with_a_cache() {
    for (session_cache, new_sessions) in [(true, 1), (false, 3)] {
        let authority = Authority::new();
        let tls = Tls {
            session_cache,
            ..authority.tls()
        };
        let (server, address) = both(tls);
        let client = authority.client(None);
        for _ in 0..3 {
            client.say(address, b"mn\r\n").unwrap();
        }
        let said = String::from_utf8(server.say(&[b"stats\r\n"])).unwrap();
        let told = said.contains(&format!("STAT ssl_new_sessions {new_sessions}\r"));
        assert_eq!(told, session_cache, "{said}");
    }
}

/// More handshakes at a time than the limit of the start has queues for: all are served, and none
/// waits for another.
#[test]
fn handshakes_beyond_the_first_limit_are_served_once_it_is_raised() {
    const BURST: usize = 60;
    let authority = Authority::new();
    let config = Config {
        workers: Some(2),
        connections_max: 2,
        tls: Some(authority.tls()),
        ..Config::local()
    };
    let tuning = config.tuning();
    let server = with(config);
    server.tune(&Tuning {
        connections_max: BURST,
        ..tuning
    });
    let client = authority.client(None);
    let mut sessions: Vec<Session> = (0..BURST).map(|_| client.connect(tcp(&server))).collect();
    // Every handshake begins before any is complete, the last ones first.
    for session in &mut sessions {
        session.conn.write_tls(&mut session.sock).unwrap();
    }
    for (n, session) in sessions.iter_mut().enumerate().rev() {
        session.write_all(b"mn\r\n").unwrap();
        let mut said = [0; 4];
        session.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"MN\r\n", "{n}");
    }
    assert_eq!(client.say(tcp(&server), b"mn\r\n"), None, "one too many");
}

/// Unfinished handshakes count as connections, and a connection beyond `-c` is closed.
#[test]
fn unfinished_handshakes_count_as_connections() {
    let authority = Authority::new();
    let server = with(Config {
        workers: Some(1),
        connections_max: 2,
        tls: Some(authority.tls()),
        ..Config::local()
    });
    let silent = [(); 2].map(|()| TcpStream::connect(tcp(&server)).unwrap());
    let client = authority.client(None);
    assert_eq!(client.say(tcp(&server), b"mn\r\n"), None);
    drop(silent);
    until(|| client.say(tcp(&server), b"mn\r\n").is_some());
}

#[test]
fn watchers_work_over_tls() {
    let authority = Authority::new();
    let (server, address) = both(authority.tls());
    let mut session = authority.client(None).connect(address);
    session.write_all(b"watch deletions\r\n").unwrap();
    let mut ok = [0; 4];
    session.read_exact(&mut ok).unwrap();
    assert_eq!(&ok, b"OK\r\n");
    server.say(&[b"set a 0 0 1\r\nx\r\ndelete a\r\n"]);
    let mut told = [0; 3];
    session.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"ts=");
}

#[test]
fn server_with_unreadable_certificates_does_not_start() {
    let authority = Authority::new();
    let good = authority.tls();
    authority.sign("other");
    for tls in [
        Tls {
            chain: "/nowhere".into(),
            ..good.clone()
        },
        Tls {
            key: authority.path("server.pem"),
            ..good.clone()
        },
        Tls {
            key: authority.path("other.key"),
            ..good.clone()
        },
        Tls {
            clients: ClientCertificates::Required,
            authorities: None,
            ..good.clone()
        },
        Tls {
            clients: ClientCertificates::Ignored,
            authorities: Some("/nowhere".into()),
            ..good.clone()
        },
    ] {
        let config = Config {
            tls: Some(tls),
            ..Config::local()
        };
        let Err(StartError::Tls(error)) = spawn(config) else {
            panic!("no certificates");
        };
        assert!(error.to_string().contains("-o ssl_"));
    }
}

/// Waits for a condition that another thread makes true.
fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

/// A client that ends its session before a large value is complete does not wait for room, though
/// the clients that hold the room keep progressing.
#[test]
fn client_that_ends_tls_during_a_value_does_not_wait_for_room() {
    let authority = Authority::new();
    let (server, address) = both_of(authority.tls(), 1);
    let half = format!("set x 0 0 1000000\r\n{}", "x".repeat(20_000));
    let mut holders = Vec::new();
    while stat(&server, "uploads_queued") == 0 {
        let mut stream = connect(&server);
        stream.write_all(half.as_bytes()).unwrap();
        holders.push(stream);
        let begun = holders.len() as u64;
        while stat(&server, "uploads") + stat(&server, "uploads_queued") < begun {}
    }
    let mut ended = authority.client(None).connect(address);
    ended.write_all(half.as_bytes()).unwrap();
    while stat(&server, "uploads_queued") < 2 {}
    let before = stat(&server, "curr_connections");
    ended.conn.send_close_notify();
    ended.flush().unwrap();
    ended.sock.shutdown(Shutdown::Write).unwrap();
    let mut asked = 0;
    while stat(&server, "curr_connections") >= before {
        // Far from the end of their values.
        for holder in &mut holders {
            let _ = holder.write_all(&[b'x'; 200]);
        }
        asked += 1;
        assert!(asked < 2_000, "the connection still waits");
    }
}
