//! Connection limits, ordering between connections over several workers, and the ends of
//! connections.

mod common;

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream, UdpSocket},
    os::unix::{fs::PermissionsExt, net::UnixStream},
};

use common::{Peer, connect, line, ours, shown, stat, tcp, with};
use herdwick_server::{Config, Listen, StartError, spawn};

#[test]
fn m43_connection_beyond_the_limit_gets_an_error_and_is_closed() {
    let server = with(Config {
        connections_max: 3,
        workers: Some(2),
        ..Config::local()
    });
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(&server);
        stream.write_all(b"version\r\n").unwrap();
        assert!(line(&stream).starts_with("VERSION"));
        held.push(stream);
    }
    let mut refused = String::new();
    connect(&server).read_to_string(&mut refused).unwrap();
    assert_eq!(refused, "ERROR Too many open connections\r\n");
    held.truncate(1);
    // Room returns as soon as the server has noticed the disconnects.
    loop {
        let mut stream = connect(&server);
        if stream.write_all(b"version\r\n").is_ok() && line_or_end(&stream).starts_with("VERSION") {
            break;
        }
    }
    held[0].write_all(b"stats\r\n").unwrap();
    let mut said = String::new();
    let mut reader = BufReader::new(&held[0]);
    while !said.ends_with("END\r\n") {
        reader.read_line(&mut said).unwrap();
    }
    assert!(!said.contains("STAT rejected_connections 0\r"));
}

/// A server can start on the port while the previous one still drains.
#[test]
fn draining_server_does_not_remove_the_next_servers_socket() {
    let path = std::env::temp_dir().join(format!("herdwick-next-{}", std::process::id()));
    let at = || {
        with(Config {
            listen: Listen::Unix {
                path: path.clone(),
                mode: 0o700,
            },
            ..Config::local()
        })
    };
    let first = at();
    std::fs::remove_file(&path).unwrap();
    let second = at();
    first.shutdown();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"mn\r\nquit\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "MN\r\n");
    second.shutdown();
    assert!(!path.exists());
}

/// As `ss -o` shows it: the kernel probes a silent peer, whatever `idle_timeout` is.
#[test]
fn idle_connection_has_a_tcp_keepalive_timer() {
    let server = ours(1);
    let stream = connect(&server);
    (&stream).write_all(b"version\r\n").unwrap();
    assert!(line(&stream).starts_with("VERSION"));
    let port = |address: SocketAddr| format!("0100007F:{:04X}", address.port());
    let ends = (port(tcp(&server)), port(stream.local_addr().unwrap()));
    // While a reply is unacknowledged, `ss` shows the retransmission timer instead.
    loop {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut rows = table.lines().map(|line| line.split_whitespace().collect());
        let row: Vec<&str> = rows
            .find(|row: &Vec<&str>| (row[1], row[2]) == (&*ends.0, &*ends.1))
            .expect("the server's end");
        match &row[5][..2] {
            "02" => break,
            "01" => std::thread::yield_now(),
            timer => panic!("timer {timer}: {row:?}"),
        }
    }
}

/// M43, second half: connections that open and close leak nothing.
#[test]
fn m43_closed_connections_leak_no_descriptors() {
    let server = with(Config {
        connections_max: 64,
        workers: Some(2),
        ..Config::local()
    });
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert_eq!(stat(&server, "curr_connections"), 1);
    let before = descriptors();
    for _ in 0..100 {
        // More at a time than the limit: some are refused.
        let burst: Vec<TcpStream> = (0..150).map(|_| connect(&server)).collect();
        drop(burst);
    }
    let said = loop {
        let mut said = String::new();
        let mut stream = connect(&server);
        if stream.write_all(b"stats\r\nquit\r\n").is_ok()
            && stream.read_to_string(&mut said).is_ok()
            && said.contains("STAT curr_connections 1\r\n")
        {
            break said;
        }
    };
    let number = |name: &str| -> u64 {
        let prefix = format!("STAT {name} ");
        let line = said.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap().parse().unwrap()
    };
    assert!(number("total_connections") + number("rejected_connections") >= 15_000);
    // Other tests of this process have a few short connections of their own.
    while descriptors() > before + 40 {
        std::thread::yield_now();
    }
}

/// M44: without `-U` the server has no UDP socket.
#[test]
fn m44_udp_port_is_closed_without_u() {
    let server = ours(2);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(tcp(&server)).unwrap();
    for datagram in [
        &b"\0\x01\0\0\0\x01\0\0\n"[..],
        b"\0\x01\0\0\0\x01\0\0stats\r\n",
    ] {
        socket.send(datagram).unwrap();
        // The kernel reports the closed port.
        let mut answer = [0; 64];
        let refused = socket.recv(&mut answer).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}

/// The connection limit can change while the server runs; existing connections stay.
#[test]
fn connection_limit_can_change_at_run_time() {
    let config = Config {
        workers: Some(2),
        connections_max: 1,
        ..Config::local()
    };
    let mut tuning = config.tuning();
    let server = with(config);
    let serves =
        |stream: &TcpStream| (&*stream).write_all(b"mn\r\n").is_ok() && line(stream) == "MN\r\n";
    let first = connect(&server);
    assert!(serves(&first));
    assert_eq!(
        line(&connect(&server)),
        "ERROR Too many open connections\r\n"
    );
    tuning.connections_max = 3;
    server.tune(&tuning);
    let more = [(); 2].map(|()| connect(&server));
    assert!(more.iter().all(serves));
    assert_eq!(
        line(&connect(&server)),
        "ERROR Too many open connections\r\n"
    );
    tuning.connections_max = 1;
    server.tune(&tuning);
    drop(first);
    assert!(more.iter().all(serves));
    assert_eq!(
        line(&connect(&server)),
        "ERROR Too many open connections\r\n"
    );
}

/// M45: a store full of the largest items accepts small ones, and the reverse.
#[test]
fn m45_store_full_of_one_size_accepts_another() {
    let server = ours(2);
    let large = vec![b'x'; (1 << 20) - 100];
    let set = |key: &str, value: &[u8]| {
        let head = format!("set {key} 0 0 {}\r\n", value.len());
        [head.as_bytes(), value, b"\r\n"].concat()
    };
    let all_stored = |kind: &str, count: usize, value: &[u8]| {
        for n in 0..count {
            let said = server.say(&[&set(&format!("{kind}{n}"), value)]);
            assert_eq!(shown(&said), "STORED\\r\\n", "{kind}{n}");
        }
        let last = format!("get {kind}{}\r\n", count - 1);
        assert!(server.say(&[last.as_bytes()]).starts_with(b"VALUE"));
    };
    for _ in 0..2 {
        all_stored("large", 100, &large);
        all_stored("small", 2000, &[b's'; 100]);
    }
    assert_eq!(stat(&server, "store_no_memory"), 0);
    assert!(stat(&server, "evictions") > 0);
    assert!(stat(&server, "bytes") <= 64 << 20);
}

fn line_or_end(stream: &TcpStream) -> String {
    let mut line = String::new();
    // A refused connection may be reset before its line is read.
    let _ = BufReader::new(stream).read_line(&mut line);
    line
}

/// Values of a megabyte are stored and read, whichever worker owns the key.
#[test]
fn large_values_are_stored_and_read() {
    for server in [1, 3].map(ours) {
        for n in 0..8u8 {
            let len = (1 << 20) - 1000 - usize::from(n);
            let value: Vec<u8> = (0..len).map(|i| (i * 31 + usize::from(n)) as u8).collect();
            let set = [
                format!("set large{n} {n} 0 {len}\r\n").as_bytes(),
                &value,
                b"\r\n",
            ]
            .concat();
            assert_eq!(shown(&server.say(&[&set])), "STORED\\r\\n");
            let said = server.say(&[format!("get large{n} nothing large{n}\r\n").as_bytes()]);
            let one = [
                format!("VALUE large{n} {n} {len}\r\n").as_bytes(),
                &value,
                b"\r\n",
            ]
            .concat();
            assert!(
                said == [&one[..], &one, b"END\r\n"].concat(),
                "{n}: {} bytes",
                said.len()
            );
        }
    }
}

/// A thousand pipelined commands on keys of all partitions are answered in order.
#[test]
fn pipelined_replies_keep_their_order() {
    for server in [1, 2, 3].map(ours) {
        let (mut ask, mut expected) = (String::new(), String::new());
        for n in 0..1000 {
            let (key, other) = (n % 50, (n * 7) % 50);
            ask += &format!("set k{key} 0 0 4\r\n{n:04}\r\nget k{key} k{other} none\r\n");
            let last = (0..=n)
                .rev()
                .find(|m| m % 50 == other)
                .map(|m| format!("VALUE k{other} 0 4\r\n{m:04}\r\n"));
            expected += &format!(
                "STORED\r\nVALUE k{key} 0 4\r\n{n:04}\r\n{}END\r\n",
                last.unwrap_or_default()
            );
        }
        assert_eq!(
            String::from_utf8(server.say(&[ask.as_bytes()])).unwrap(),
            expected
        );
    }
}

/// An acknowledged change is visible to every connection: a flush reaches all partitions before its
/// `OK`.
#[test]
fn a_flush_reaches_every_partition() {
    let server = ours(3);
    for round in 0..50 {
        let sets: String = (0..30)
            .map(|n| format!("set k{n} 0 0 1 noreply\r\n1\r\n"))
            .collect();
        let said = server.say(&[sets.as_bytes(), b"get k0\r\nflush_all\r\n"]);
        assert!(said.ends_with(b"END\r\nOK\r\n"), "{}", shown(&said));
        let keys: String = (0..30).map(|n| format!(" k{n}")).collect();
        let said = server.say(&[format!("get{keys}\r\n").as_bytes()]);
        assert_eq!(shown(&said), "END\\r\\n", "round {round}");
    }
}

#[test]
fn statistics_add_up_over_the_workers() {
    let server = ours(3);
    for n in 0..20 {
        server.say(&[format!("set k{n} 0 0 1\r\n1\r\nget k{n} none{n}\r\n").as_bytes()]);
    }
    server.say(&[b"bogus\r\ndelete k0\r\ndelete k0\r\nincr k1 1\r\ntouch k2 0\r\ngat 0 k3\r\n"]);
    for (name, value) in [
        ("cmd_get", 40),
        ("get_hits", 20),
        ("get_misses", 20),
        ("cmd_set", 20),
        ("curr_items", 19),
        ("delete_hits", 1),
        ("delete_misses", 1),
        ("incr_hits", 1),
        ("cmd_touch", 2),
        ("touch_hits", 2),
        ("refused_lines", 1),
        ("threads", 3),
        ("limit_maxbytes", 64 << 20),
        ("total_connections", 35),
    ] {
        assert_eq!(stat(&server, name), value, "{name}");
    }
    assert_eq!(shown(&server.say(&[b"stats reset\r\n"])), "RESET\\r\\n");
    assert_eq!(stat(&server, "cmd_get"), 0);
}

/// A half-closed client still receives its replies; a client that sends and closes at once does no
/// harm.
#[test]
fn half_closed_client_receives_its_replies() {
    let server = ours(2);
    let mut stream = connect(&server);
    stream
        .write_all(b"set a 0 0 1\r\n1\r\nget a\r\nget")
        .unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    for _ in 0..200 {
        connect(&server)
            .write_all(b"get a b c d\r\nstats\r\nflush_all\r\n")
            .unwrap();
    }
    // All of them are removed: only this connection is left.
    while stat(&server, "curr_connections") > 1 {
        std::thread::yield_now();
    }
}

/// A shutdown answers what has arrived, then closes the connections.
#[test]
fn shutdown_answers_pending_requests() {
    let server = ours(3);
    let address = tcp(&server);
    let mut streams: Vec<TcpStream> = (0..20).map(|_| connect(&server)).collect();
    for stream in &mut streams {
        stream.write_all(b"version\r\n").unwrap();
        assert!(line(stream).starts_with("VERSION"));
    }
    server.shutdown();
    for mut stream in streams {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(shown(&rest), "");
    }
    assert!(TcpStream::connect(address).is_err());
}

/// A hello is one more command of the connection; a malformed one is an unknown command.
#[test]
fn hellos_are_answered_in_order() {
    let server = with(Config {
        leases: None,
        ..Config::local()
    });
    let said = server.say(&[b"get a\r\nhello herdwick/0 x\r\nhello there\r\nget a\r\n"]);
    let said = String::from_utf8(said).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        matches!(lines[..], ["END", hello, "ERROR", "END"] if hello.starts_with("HERDWICK 0 ")),
        "{said}"
    );
}

/// Reads whose replies find no room are executed again, here with half a line behind them in the
/// buffer.
#[test]
fn incomplete_line_does_not_affect_earlier_waiting_reads() {
    let keys = ["a", "b", "c", "d"];
    let value = "x".repeat(60_000);
    for workers in 1..=3 {
        let server = ours(workers);
        let mut stream = connect(&server);
        let (mut gets, mut expected) = (String::new(), String::new());
        for key in keys {
            write!(stream, "set {key} 0 0 60000\r\n{value}\r\n").unwrap();
            assert_eq!(line(&stream), "STORED\r\n");
            gets += &format!("get {key}\r\n");
            expected += &format!("VALUE {key} 0 60000\r\n{value}\r\nEND\r\n");
        }
        stream
            .write_all((gets + "get a-longer-").as_bytes())
            .unwrap();
        let mut said = vec![0; expected.len() / keys.len()];
        stream.read_exact(&mut said).unwrap();
        stream.write_all(b"key\r\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.read_to_end(&mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        assert!(
            said == expected + "END\r\n",
            "{workers} workers: {} bytes",
            said.len()
        );
    }
}

#[test]
fn port_in_use_is_named_in_the_error() {
    let server = ours(1);
    let again = spawn(Config {
        listen: Listen::Tcp(vec![tcp(&server).into()]),
        ..Config::local()
    });
    let Err(error @ StartError::InUse { .. }) = again else {
        panic!("two servers on one port");
    };
    let said = error.to_string();
    assert!(
        said.contains(&tcp(&server).to_string()) && said.contains("-p"),
        "{said}"
    );
}

#[test]
fn unix_socket_has_its_mode_and_is_removed_with_the_server() {
    let path = std::env::temp_dir().join(format!("herdwick-{}.sock", std::process::id()));
    let listen = Listen::Unix {
        path: path.clone(),
        mode: 0o700,
    };
    let server = with(Config {
        listen: listen.clone(),
        ..Config::local()
    });
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o700
    );
    let mut stream = UnixStream::connect(&path).unwrap();
    stream
        .write_all(b"set a 0 0 1\r\n1\r\nget a\r\nquit\r\n")
        .unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    assert!(matches!(
        spawn(Config {
            listen,
            ..Config::local()
        }),
        Err(StartError::InUse { .. })
    ));
    server.shutdown();
    assert!(!path.exists());
}

/// Stores 1,000 bytes under a key; returns whether they were stored.
fn store(stream: &mut TcpStream, n: usize) -> bool {
    let value = format!("{n:>1000}");
    write!(stream, "set key-{n} 0 0 {}\r\n{value}\r\n", value.len()).unwrap();
    match line(stream).trim_end() {
        "STORED" => true,
        "SERVER_ERROR out of memory storing object" => false,
        other => panic!("{other}"),
    }
}

#[test]
fn lossless_server_refuses_items_without_room_and_serves_on() {
    const MEMORY: usize = 16 << 20;
    const KEYS: usize = MEMORY / 1000;
    let server = with(Config {
        lossless: true,
        workers: Some(2),
        memory_bytes: MEMORY,
        item_bytes_max: 64 << 10,
        leases: None,
        ..Config::local()
    });
    let mut stream = connect(&server);
    let taken: Vec<bool> = (0..KEYS).map(|n| store(&mut stream, n)).collect();
    let count = taken.iter().filter(|taken| **taken).count();
    assert!(count < KEYS && count * 1000 > MEMORY * 6 / 10, "{count}");
    for (n, taken) in taken.iter().enumerate() {
        write!(stream, "mg key-{n} s\r\n").unwrap();
        let expected = if *taken { "HD s1000" } else { "EN" };
        assert_eq!(line(&stream).trim_end(), expected, "{n}");
    }
    assert_eq!(stat(&server, "evictions"), 0);
    for n in (0..KEYS).filter(|n| taken[*n]).take(count / 2) {
        write!(stream, "md key-{n}\r\n").unwrap();
        assert_eq!(line(&stream).trim_end(), "HD");
    }
    let again = (0..count / 3)
        .filter(|n| store(&mut stream, KEYS + n))
        .count();
    assert_eq!(again, count / 3, "what was freed can be used");
}
