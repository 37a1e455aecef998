//! memcached over UDP: replies as a stock memcached's, and a bound on their size relative to the
//! request.

use std::{
    fs,
    io::Write,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use crate::common::{Peer, TIMEOUT, normalised, oracle, oracle_is_old, shown, stat, with};
use herdwick_server::{Config, Listen, Server, StartError, Udp, spawn};

fn udp() -> Udp {
    Udp {
        port: 0,
        trusted: Vec::new(),
    }
}

fn ours(workers: usize) -> Server {
    with(Config {
        workers: Some(workers),
        udp: Some(udp()),
        ..Config::local()
    })
}

/// A stock memcached with UDP, or `None` where none is installed.
struct Oracle {
    child: Child,
    address: SocketAddr,
}

impl Oracle {
    fn start() -> Option<Self> {
        let name = format!("herdwick-udp-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let child = Command::new(oracle())
            .args([
                "-u",
                "root",
                "-t",
                "1",
                "-l",
                "127.0.0.1",
                "-p",
                "-1",
                "-U",
                "-1",
            ])
            .env("MEMCACHED_PORT_FILENAME", &path)
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            println!("skipped: no memcached on the PATH (apt-get install memcached)");
            return None;
        };
        let port = loop {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let port = text
                .lines()
                .find_map(|line| line.strip_prefix("UDP INET: "));
            if let Some(port) = port {
                break port.parse().unwrap();
            }
            assert!(child.try_wait().unwrap().is_none(), "memcached has ended");
            std::thread::yield_now();
        };
        let _ = fs::remove_file(&path);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Some(Self { child, address })
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that sends datagrams.
struct Asker {
    socket: UdpSocket,
    to: SocketAddr,
}

/// A datagram of a reply.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    header: [u16; 4],
    payload: Vec<u8>,
}

const LAST: u16 = 0xffff;

impl Asker {
    fn new(to: SocketAddr) -> Self {
        Self::from(to, [127, 0, 0, 1].into())
    }

    fn from(to: SocketAddr, address: IpAddr) -> Self {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, to }
    }

    fn send(&self, header: [u16; 4], payload: &[u8]) {
        let header = header.map(u16::to_be_bytes).concat();
        let datagram = [&header, payload].concat();
        self.socket.send_to(&datagram, self.to).unwrap();
    }

    fn receive(&self) -> Frame {
        let mut buffer = [0; 2000];
        let count = self.socket.recv(&mut buffer).expect("a datagram arrives");
        let word = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
        Frame {
            header: [word(0), word(2), word(4), word(6)],
            payload: buffer[8..count].to_vec(),
        }
    }

    /// Returns all replies to a datagram, assuming one worker that answers in order: up to the
    /// reply to a final marker request.
    fn ask(&self, header: [u16; 4], payload: &[u8]) -> Vec<Frame> {
        self.send(header, payload);
        self.send([LAST, 0, 1, 0], b"mn\r\n");
        let mut frames = Vec::new();
        loop {
            let frame = self.receive();
            if frame.header[0] == LAST {
                assert_eq!(frame.payload, b"MN\r\n");
                return frames;
            }
            frames.push(frame);
        }
    }
}

fn payload(frames: &[Frame]) -> Vec<u8> {
    let parts = frames.iter().map(|frame| &frame.payload[..]);
    parts.collect::<Vec<_>>().concat()
}

/// Encodes a packet of the binary protocol.
fn packet(opcode: u8, key: &[u8]) -> Vec<u8> {
    let length = key.len() as u8;
    let mut packet = vec![0x80, opcode, 0, length];
    packet.extend_from_slice(&[0; 7]);
    packet.push(length);
    packet.extend_from_slice(&[0; 12]);
    packet.extend_from_slice(key);
    packet
}

/// Datagrams of one command each, whose replies are identical to the bit. (A truncated block is not
/// among them: the oracle takes the rest from the next datagram.)
fn single() -> Vec<([u16; 4], Vec<u8>)> {
    let mut rows: Vec<([u16; 4], Vec<u8>)> = Vec::new();
    let mut row = |text: &[u8]| rows.push(([7, 0, 1, 0], text.to_vec()));
    // Read at once, so that the marker does not overtake it.
    let large = "l".repeat(10_000);
    row(format!("set large 5 0 {}\r\n{large}\r\n", large.len()).as_bytes());
    row(b"get large\r\n");
    row(b"mg large v f\r\n");
    row(&packet(0x00, b"large"));
    for text in [
        "set a 1 0 1\r\nx\r\n",
        "get a\r\n",
        "get b\r\n",
        "set a 1 0 1 noreply\r\ny\r\n",
        "add a 0 0 1\r\nz\r\n",
        "append a 0 0 1\r\nz\r\n",
        "set n 0 0 1\r\n5\r\n",
        "incr n 10\r\n",
        "decr n 100\r\n",
        "incr a 1\r\n",
        "touch a 100\r\n",
        "gat 100 a\r\n",
        "delete b\r\n",
        "mg a v s t\r\n",
        "mg b v\r\n",
        "mg b v q\r\n",
        "ms c 2\r\nhi\r\n",
        "ma n\r\n",
        "md c\r\n",
        "mn\r\n",
        "verbosity 1\r\n",
        "bogus\r\n",
        "set a 0 0 x\r\n",
        "get a",
        "get a\r\n",
    ] {
        row(text.as_bytes());
    }
    if !oracle_is_old() {
        row(b"\r\n");
        row(b"get\r\n");
    }
    let long = "x".repeat(3000);
    row(long.as_bytes());
    for opcode in [0x0a, 0x50] {
        row(&packet(opcode, b""));
    }
    for opcode in [0x00, 0x0c, 0x04] {
        row(&packet(opcode, b"a"));
        row(&packet(opcode, b"none"));
    }
    row(b"");
    let get = b"get n\r\n".to_vec();
    for header in [
        [9, 1, 1, 0],
        [9, 0, 1, 77],
        [9, 0, 0, 0],
        [9, 0, 2, 0],
        [9, 0, 0x101, 0],
    ] {
        rows.push((header, get.clone()));
    }
    rows
}

/// Datagrams of several commands. This is the ninth allowed difference
/// (`differential/differences.rs`): a reply is one message, as the protocol's description requires;
/// the oracle begins a new one with each command, and with each key of a `get`.
const SEVERAL: [&str; 8] = [
    "set a 0 0 1\r\nxyzmore\r\n",
    "set a 0 0 1\r\n1\r\nget a\r\nget b\r\nmn\r\n",
    "set a 0 0 1 noreply\r\n2\r\nget a\r\n",
    "get a b a a\r\n",
    "mg a v q\r\nmg b v q\r\nmn\r\n",
    "bogus\r\nget a\r\n",
    "get a\r\nget a",
    "delete a\r\nget a\r\n",
];

/// Replies, or what looks like one. This is the eleventh allowed difference: the oracle answers
/// them, so two oracles answer each other for ever.
const ANSWERS: [&[u8]; 8] = [
    b"ERROR\r\n",
    b"CLIENT_ERROR bad data chunk\r\n",
    b"VALUE a 0 7\r\nget a\r\n\r\nEND\r\n",
    b"HD\r\n",
    b"15\r\n",
    b"VERSION 1.6.45\r\n",
    b"\x81\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    b"GET / HTTP/1.0\r\n\r\n",
];

/// A datagram forged with the address of another server causes exactly one reply to that server,
/// and no further traffic.
#[test]
fn two_servers_do_not_answer_each_other() {
    let servers = [ours(1), ours(1)];
    let askers = servers
        .each_ref()
        .map(|server| Asker::new(server.udp_addresses()[0]));
    let header = [7, 0, 1, 0];
    // The reply would be longer than the request.
    let value = "get a\r\n".repeat(10);
    let set = format!("set a 0 0 {}\r\n{value}\r\n", value.len());
    for server in &servers {
        server.say(&[set.as_bytes()]);
    }
    let mut answered = 0;
    for request in [
        &b"bogus\r\n"[..],
        b"get a\r\n",
        b"mn\r\n",
        b"set\r\n",
        &packet(0x50, b""),
    ] {
        let answer = payload(&askers[0].ask(header, request));
        assert!(!answer.is_empty(), "{}", shown(request));
        assert_eq!(askers[1].ask(header, &answer), [], "{}", shown(&answer));
        answered += 1;
    }
    for answer in ANSWERS {
        assert_eq!(askers[1].ask(header, answer), [], "{}", shown(answer));
        answered += 1;
    }
    assert_eq!(stat(&servers[1], "udp_malformed"), answered);
    let Some(oracle) = Oracle::start() else {
        return;
    };
    let oracle = Asker::new(oracle.address);
    assert!(
        !oracle.ask(header, ANSWERS[0]).is_empty(),
        "the other server answers, too"
    );
}

/// Blanks the CAS uniques of binary packets, which differ between servers.
fn without_uniques(frames: &mut [Frame]) {
    for frame in frames {
        if frame.payload.first() == Some(&0x81) {
            frame.payload[16..24].fill(0);
        } else {
            frame.payload = normalised(&frame.payload);
        }
    }
}

#[test]
fn datagram_replies_match_memcacheds() {
    let Some(oracle) = Oracle::start() else {
        return;
    };
    let server = ours(1);
    let (own, other) = (
        Asker::new(server.udp_addresses()[0]),
        Asker::new(oracle.address),
    );
    for (header, request) in single() {
        let (mut said, mut expected) = (own.ask(header, &request), other.ask(header, &request));
        without_uniques(&mut said);
        without_uniques(&mut expected);
        assert!(
            said == expected,
            "{}: {said:?} {expected:?}",
            shown(&request)
        );
    }
    for request in SEVERAL {
        let header = [7, 0, 1, 0];
        let said = own.ask(header, request.as_bytes());
        let expected = payload(&other.ask(header, request.as_bytes()));
        assert_eq!(shown(&payload(&said)), shown(&expected), "{request}");
        for (number, frame) in said.iter().enumerate() {
            assert_eq!(frame.header, [7, number as u16, said.len() as u16, 0]);
        }
    }
    let header = [7, 0, 1, 0];
    other.ask(header, b"set a 0 0 1\r\n1\r\n");
    let split = other.ask(header, b"get a a\r\n");
    assert_eq!(split.len(), 2, "the oracle answers in one message, too");
}

/// Keys of other workers, and a value of many datagrams.
#[test]
fn udp_reply_combines_keys_of_all_workers() {
    let server = ours(3);
    let value = "v".repeat(500_000);
    server.say(&[format!("set large 0 0 {}\r\n{value}\r\n", value.len()).as_bytes()]);
    for key in 0..50 {
        server.say(&[format!("set key{key} 0 0 2\r\n{key:02}\r\n").as_bytes()]);
    }
    let asker = Asker::new(server.udp_addresses()[0]);
    let keys: Vec<String> = (0..50).map(|key| format!("key{key}")).collect();
    asker.send(
        [1, 0, 1, 0],
        format!("get {}\r\n", keys.join(" ")).as_bytes(),
    );
    let frame = asker.receive();
    assert_eq!(frame.header, [1, 0, 1, 0]);
    assert!(
        frame
            .payload
            .starts_with(b"VALUE key0 0 2\r\n00\r\nVALUE key1")
    );
    assert!(frame.payload.ends_with(b"VALUE key49 0 2\r\n49\r\nEND\r\n"));
    // What exceeds the receiver's buffer is lost, as usual with UDP: request a part again.
    asker.send([2, 0, 1, 0], b"mg large s\r\n");
    assert_eq!(asker.receive().payload, b"HD s500000\r\n");
}

/// M44: a client whose address may be forged receives at most three times what it sent; the rest is
/// withheld silently, and counted.
#[test]
fn m44_udp_replies_are_limited_to_three_times_the_request() {
    let Some(outside) = outside() else {
        println!("skipped: this host has the loopback interface only");
        return;
    };
    let here = SocketAddr::new(outside, 0);
    let config = |trusted: &[String]| Config {
        listen: Listen::Tcp(vec![here.into()]),
        workers: Some(1),
        udp: Some(Udp {
            port: 0,
            trusted: trusted.iter().map(|net| net.parse().unwrap()).collect(),
        }),
        ..Config::local()
    };
    let server = with(config(&[]));
    let asker = Asker::from(server.udp_addresses()[0], outside);
    let set = format!("set a 0 0 1000\r\n{}\r\n", "v".repeat(1000));
    assert_eq!(
        payload(&asker.ask([1, 0, 1, 0], set.as_bytes())),
        b"STORED\r\n"
    );
    for request in ["get a\r\n", "stats\r\n", "get a\r\nget a\r\n", "mg a v\r\n"] {
        assert_eq!(asker.ask([2, 0, 1, 0], request.as_bytes()), []);
    }
    assert_eq!(stat(&server, "udp_amplification_refused"), 4);
    // The bound is three times the request: one byte less is too little.
    let reply = "VALUE a 0 1000\r\n".len() + 1000 + "\r\nEND\r\n".len() + 8;
    let room = reply.div_ceil(3) - 8;
    for (length, answered) in [(room, true), (room - 1, false)] {
        let request = format!("get a{}\r\n", " ".repeat(length - "get a\r\n".len()));
        let frames = asker.ask([3, 0, 1, 0], request.as_bytes());
        assert_eq!(!frames.is_empty(), answered, "{length}");
    }
    let server = with(config(&[format!("{outside}")]));
    server.say(&[set.as_bytes()]);
    let asker = Asker::from(server.udp_addresses()[0], outside);
    let reply = asker.ask([4, 0, 1, 0], b"get a\r\n");
    assert!(payload(&reply).ends_with(b"\r\nEND\r\n"));
}

/// Returns an address of this host other than loopback: the source address it would use.
fn outside() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Connecting sends nothing; the address is for documentation (RFC 5737).
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then_some(address)
}

/// Malformed datagrams are dropped and counted, and leave no state.
#[test]
fn malformed_datagrams_leave_no_state() {
    let server = ours(1);
    let asker = Asker::new(server.udp_addresses()[0]);
    for length in 0..8 {
        let datagram = [0, 1, 0, 0, 0, 1, 0, 0];
        asker.socket.send_to(&datagram[..length], asker.to).unwrap();
    }
    for text in [
        "watch fetchers\r\n",
        "quit\r\n",
        "get a",
        "set a 0 0 60000\r\nx",
    ] {
        assert_eq!(asker.ask([1, 0, 1, 0], text.as_bytes()), [], "{text}");
    }
    assert_eq!(asker.ask([1, 0, 2, 0], b"mn\r\n"), []);
    assert_eq!(stat(&server, "udp_malformed"), 9);
    assert_eq!(stat(&server, "curr_connections"), 1, "only this connection");
    let said = server.say(&[b"stats settings\r\n"]);
    let port = format!("STAT udpport {}\r\n", asker.to.port());
    assert!(shown(&said).contains(port.trim_end()), "{}", shown(&said));
}

/// A reply of many values is truncated at the size of the largest value.
#[test]
fn udp_replies_to_trusted_networks_are_bounded() {
    let server = ours(1);
    let value = "v".repeat(900_000);
    server.say(&[format!("set a 0 0 {}\r\n{value}\r\n", value.len()).as_bytes()]);
    let asker = Asker::new(server.udp_addresses()[0]);
    let request = format!("get{}\r\n", " a".repeat(20_000));
    asker.send([1, 0, 1, 0], request.as_bytes());
    asker.send([LAST, 0, 1, 0], b"mn\r\n");
    assert_eq!(asker.receive().header[0], LAST);
    while stat(&server, "udp_amplification_refused") == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn udp_with_authentication_is_refused() {
    let path: PathBuf = format!("/tmp/herdwick-udp-users-{}", std::process::id()).into();
    fs::File::create(&path).unwrap().write_all(b"a:b").unwrap();
    let config = Config {
        auth: Some(path.clone()),
        udp: Some(udp()),
        ..Config::local()
    };
    assert!(matches!(spawn(config), Err(StartError::UdpWithUsers)));
    fs::remove_file(&path).unwrap();
}
