//! One server, two transports: items stored over one are read over the other.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

use crate::common::{Clock, Folder, Server, TIMEOUT, value};
use herdwick::{Cas, Client, Error, Key, Op, Put};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A plain memcached client over TCP.
struct Plain(BufReader<TcpStream>);

/// An item as memcached's text shows it.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    flags: u32,
    value: Vec<u8>,
    unique: u64,
}

impl Plain {
    fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(BufReader::new(stream))
    }

    fn ask(&mut self, request: &[u8]) -> String {
        self.0.get_mut().write_all(request).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends `verb key flags exptime len [unique]` and the value; returns the answer.
    fn store(&mut self, verb: &str, (key, rest): (&str, &str), value: &[u8]) -> String {
        let (attributes, unique) = rest.split_once('/').unwrap_or((rest, ""));
        let head = format!("{verb} {key} {attributes} {} {unique}", value.len());
        self.ask(&[head.trim_end().as_bytes(), b"\r\n", value, b"\r\n"].concat())
    }

    fn gets(&mut self, key: &str) -> Option<Shown> {
        let line = self.ask(format!("gets {key}\r\n").as_bytes());
        if line == "END" {
            return None;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let ["VALUE", found, flags, len, unique] = words[..] else {
            panic!("{line}")
        };
        assert_eq!(found, key);
        let mut value = vec![0; len.parse::<usize>().unwrap() + b"\r\nEND\r\n".len()];
        self.0.read_exact(&mut value).unwrap();
        assert!(value.ends_with(b"\r\nEND\r\n"));
        value.truncate(value.len() - 7);
        Some(Shown {
            flags: flags.parse().unwrap(),
            value,
            unique: unique.parse().unwrap(),
        })
    }
}

/// Sizes of values: inside a request line, in the overflow area, around the largest reply, and too
/// large for the fabric.
const SIZES: [usize; 8] = [0, 9, 32, 600, 4096, 4100, 5000, 900_000];

fn bytes(key: &str, len: usize) -> Vec<u8> {
    let mut bytes = value(key, 1, len);
    bytes.truncate(len);
    bytes
}

/// Connects the client library, and asserts that it uses shared memory.
fn client(server: &Server) -> Client {
    assert_eq!(server.session(32).transport(), "shm");
    let mut client = server.client();
    // Only requests over the fabric count under this name.
    let before = server.stat(&mut client, "requests");
    client.get("nothing").unwrap();
    assert_eq!(server.stat(&mut client, "requests"), before + 1);
    client
}

#[test]
fn values_of_any_size_transfer_between_transports() {
    for workers in [1, 3] {
        let folder = Folder::new();
        let server = Server::start(&folder, workers);
        let (mut plain, mut client) = (Plain::new(&server), client(&server));
        for (len, flags) in SIZES.into_iter().zip(7..) {
            for n in 0..10 {
                let (there, here) = (format!("p:{len}:{n}"), format!("h:{len}:{n}"));
                let stored =
                    plain.store("set", (&there, &format!("{flags} 0")), &bytes(&there, len));
                assert_eq!(stored, "STORED");
                client
                    .set(&here, Put::new(&bytes(&here, len)).flags(flags))
                    .unwrap();
                for key in [there, here] {
                    let shown = plain.gets(&key).unwrap();
                    let item = client.gets(&key).unwrap().unwrap();
                    let whole = item.value == bytes(&key, len) && shown.value == item.value;
                    assert!(
                        whole,
                        "{key}: {} and {}",
                        item.value.len(),
                        shown.value.len()
                    );
                    assert_eq!((item.flags, shown.flags), (flags, flags));
                    assert_eq!(item.version, shown.unique);
                }
            }
        }
        server.stop();
    }
}

#[test]
fn multiget_returns_keys_of_all_workers() {
    for workers in [1, 3] {
        let folder = Folder::new();
        let server = Server::start(&folder, workers);
        let (mut plain, mut client) = (Plain::new(&server), client(&server));
        let keys: Vec<String> = (0..300).map(|n| format!("many:{n}")).collect();
        for (n, key) in keys.iter().enumerate().filter(|(n, _)| n % 3 > 0) {
            let stored = plain.store("set", (key, "0 0"), &bytes(key, SIZES[n % SIZES.len()]));
            assert_eq!(stored, "STORED");
        }
        let items = client.get_many(&keys).unwrap();
        assert_eq!(items.len(), keys.len());
        for (n, (key, item)) in keys.iter().zip(items).enumerate() {
            let expected = (n % 3 > 0).then(|| bytes(key, SIZES[n % SIZES.len()]));
            assert!(item.map(|item| item.value) == expected, "{key}");
        }
    }
}

#[test]
fn changes_over_one_transport_are_visible_over_the_other() {
    for workers in [1, 3] {
        let folder = Folder::new();
        let server = Server::start(&folder, workers);
        let (mut plain, mut client) = (Plain::new(&server), client(&server));
        for n in 0..20 {
            let key = format!("n:{n}");
            client.set(&key, "10").unwrap();
            assert_eq!(plain.ask(format!("incr {key} 5\r\n").as_bytes()), "15");
            assert_eq!(client.incr(&key, 4).unwrap(), Some(19));
            assert_eq!(client.decr(&key, 20).unwrap(), Some(0));
            assert_eq!(plain.store("append", (&key, "0 0"), b"b"), "STORED");
            assert!(client.append(&key, "c").unwrap() && client.prepend(&key, "a").unwrap());
            assert!(matches!(client.incr(&key, 1), Err(Error::NotNumeric)));
            let shown = plain.gets(&key).unwrap();
            assert_eq!(shown.value, b"a0 bc", "padded as memcached pads");
            assert!(!client.add(&key, "x").unwrap() && client.replace(&key, "y").unwrap());
            assert_eq!(plain.gets(&key).unwrap().value, b"y");
            assert_eq!(plain.ask(format!("delete {key}\r\n").as_bytes()), "DELETED");
            assert_eq!(client.get(&key).unwrap(), None);
            assert!(!client.delete(&key).unwrap() && !client.append(&key, "z").unwrap());
            client.set(&key, "back").unwrap();
            assert!(client.delete(&key).unwrap());
            assert_eq!(plain.gets(&key), None);
        }
    }
}

#[test]
fn version_from_one_transport_compares_on_the_other() {
    let folder = Folder::new();
    let server = Server::start(&folder, 3);
    let (mut plain, mut client) = (Plain::new(&server), client(&server));
    for n in 0..20 {
        let key = format!("cas:{n}");
        assert_eq!(client.cas(&key, "x", 1).unwrap(), Cas::Missing);
        client.set(&key, "one").unwrap();
        let unique = plain.gets(&key).unwrap().unique;
        assert_eq!(client.cas(&key, "two", unique).unwrap(), Cas::Stored);
        assert_eq!(client.cas(&key, "three", unique).unwrap(), Cas::Changed);
        let version = client.gets(&key).unwrap().unwrap().version;
        let mut cas = |version: u64| plain.store("cas", (&key, &format!("0 0/{version}")), b"four");
        assert_eq!(
            (cas(version), cas(version)),
            ("STORED".into(), "EXISTS".into())
        );
        assert_eq!(client.get(&key).unwrap().as_deref(), Some(&b"four"[..]));
    }
}

/// An item with a time to live of a second is gone after it, over either transport; one with more
/// stays.
#[test]
fn ttl_expires_over_either_transport() {
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    let (mut plain, mut client) = (Plain::new(&server), client(&server));
    let second = Duration::from_secs(1);
    for key in ["plain", "kept", "prolonged"] {
        let seconds = if key == "kept" { 1000 } else { 1 };
        let stored = plain.store("set", (key, &format!("0 {seconds}")), b"v");
        assert_eq!(stored, "STORED");
    }
    client.set("shm", Put::new("v").ttl(second)).unwrap();
    client
        .set("overflow", Put::new(&[b'v'; 600]).ttl(second))
        .unwrap();
    client
        .set("large", Put::new(&[b'v'; 5000]).ttl(second))
        .unwrap();
    client
        .set("month", Put::new("v").ttl(second * 86400 * 31))
        .unwrap();
    client.set("for-ever", "v").unwrap();
    client.set("by-plain", "v").unwrap();
    assert_eq!(plain.ask(b"touch by-plain 1\r\n"), "TOUCHED");
    assert!(client.touch("prolonged", second * 5000).unwrap());
    assert!(!client.touch("none", second).unwrap());
    // A negative time expires at once.
    assert_eq!(plain.store("set", ("past", "0 -1"), b"v"), "STORED");
    assert_eq!(client.get("past").unwrap(), None);
    let clock = Clock::start();
    for key in ["plain", "shm", "overflow", "large", "by-plain"] {
        while client.get(key).unwrap().is_some() {
            assert!(clock.now() < TIMEOUT, "{key}");
        }
        assert_eq!(plain.gets(key), None);
    }
    for key in ["kept", "prolonged", "month", "for-ever"] {
        assert_eq!(
            client.get(key).unwrap().as_deref(),
            Some(&b"v"[..]),
            "{key}"
        );
        assert_eq!(plain.gets(key).unwrap().value, b"v", "{key}");
    }
}

#[test]
fn stopped_server_is_unreachable_and_reached_after_restart() {
    let folder = Folder::new();
    let server = Server::start_at(&folder, 2);
    let mut client = server.client();
    client.set("k", "v").unwrap();
    server.stop();
    for _ in 0..100 {
        let set = client.set("k", "v");
        assert!(matches!(set, Err(Error::Unreachable { .. })), "{set:?}");
    }
    let server = Server::start_at(&folder, 1);
    let clock = Clock::start();
    let value = loop {
        match client.get("k") {
            Err(Error::Unreachable { .. }) if clock.now() < TIMEOUT => {}
            other => break other.unwrap(),
        }
    };
    assert_eq!(value, None, "another server");
    assert_eq!(
        server.stat(&mut client, "leases"),
        1,
        "by shared memory again"
    );
    client.set("k", "v").unwrap();
    assert_eq!(client.get("k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// Sessions attached to three workers cost nothing while idle, and a request wakes the worker that
/// it is sent to.
#[test]
fn idle_server_sleeps_and_is_woken_by_the_first_request() {
    let folder = Folder::new();
    let server = Server::start(&folder, 3);
    let mut sessions = [(); 4].map(|()| server.session(32));
    let clock = Clock::start();
    for round in 0..50 {
        asleep(&server);
        let session = &mut sessions[round % 4];
        let key = format!("k:{round}");
        session.submit(clock.now(), Key::new(key.as_bytes()).unwrap(), &Op::Get);
        session.flush(clock.now());
        let mut answered = false;
        while !answered {
            session.wait(clock.now());
            session.poll(clock.now(), &mut |_, answer| {
                assert_eq!(answer, herdwick::Answer::Miss, "in time");
                answered = true;
            });
        }
    }
    asleep(&server);
    let before = server.cpu_nanos();
    quiet(Duration::from_secs(1));
    let spent = Duration::from_nanos(server.cpu_nanos() - before);
    // A heartbeat of a session wakes the lease manager, not the workers.
    assert!(
        spent < Duration::from_millis(200),
        "{spent:?} of CPU in an idle second"
    );
}

/// Waits until all threads of the server sleep.
fn asleep(server: &Server) {
    let clock = Clock::start();
    while server.threads().iter().any(|state| *state != 'S') {
        assert!(clock.now() < TIMEOUT, "{:?}", server.threads());
    }
}

/// Waits for `span` without doing anything.
fn quiet(span: Duration) {
    let (read, _write) = rustix::pipe::pipe().unwrap();
    let mut fds = [PollFd::new(&read, PollFlags::IN)];
    let span = Timespec::try_from(span).unwrap();
    assert_eq!(poll(&mut fds, Some(&span)).unwrap(), 0);
}

/// No reply is lost between a correct server and client, even with the largest values.
#[test]
fn values_of_nearly_4_kib_lose_no_reply() {
    const KEYS: usize = 64;
    let folder = Folder::new();
    let server = Server::start(&folder, 2);
    let mut client = server.client();
    assert_eq!(
        client.session().map(herdwick::Session::transport),
        Some("shm")
    );
    let keys: Vec<String> = (0..KEYS).map(|n| format!("key:{n}")).collect();
    for len in [2_000, 3_900, 4_060] {
        for key in &keys {
            client.set(key, &value(key, 1, len)).unwrap();
        }
        for _ in 0..50 {
            let found = client.get_many(&keys).unwrap();
            assert_eq!(found.len(), KEYS);
        }
    }
    for lost in ["drop_ring_full", "drop_no_recv"] {
        assert_eq!(server.stat(&mut client, lost), 0, "{lost}");
    }
}
