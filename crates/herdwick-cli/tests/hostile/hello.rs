//! What a client may send on its way to a lease. Whatever it sends, and wherever it stops, the
//! server works afterwards and holds nothing of it. The tests are named by the row of the list of
//! attacks on the handshake that they belong to.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
};

use herdwick_herd::hello::{Accept, Claim, HELLO_BYTES_MAX, Kind, Refusal, Token};

use crate::{
    Siege,
    common::{Holdings, TIMEOUT, settle},
    raw::{Raw, Step, hello_line},
};

/// Leases that exist all along: the honest client's and the siege's.
const LEASES: u64 = 2;

/// What the server holds before the hostile connections.
struct Before {
    holdings: Holdings,
    connections: u64,
}

impl Before {
    fn of(siege: &mut Siege) -> Self {
        siege.survives();
        Self {
            holdings: siege.server.holdings(),
            connections: siege.stat("curr_connections"),
        }
    }

    /// Waits until the server holds as much as before, and no more.
    fn again(self, siege: &mut Siege) {
        settle(
            &siege.server,
            &mut siege.steady.client,
            LEASES,
            self.holdings,
        );
        siege.until("they are hung up on", |siege| {
            siege.stat("curr_connections") == self.connections
        });
        siege.survives();
    }
}

fn dial(siege: &Siege) -> TcpStream {
    let stream = TcpStream::connect(&siege.server.address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends `bytes` and no more. Returns all that the server sends.
fn say(siege: &Siege, bytes: &[u8]) -> String {
    let mut stream = dial(siege);
    // A server that closes early has sent all that it will; these errors do not matter.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    String::from_utf8(said).unwrap()
}

fn line(stream: &TcpStream) -> String {
    let mut line = String::new();
    BufReader::with_capacity(1, stream)
        .read_line(&mut line)
        .unwrap();
    line
}

#[test]
fn h10_hello_cut_at_any_byte_leaves_no_state() {
    let mut siege = Siege::new();
    let before = Before::of(&mut siege);
    let hello = hello_line();
    // A line feed alone ends a line as well.
    for cut in 0..hello.len() {
        let said = say(&siege, &hello.as_bytes()[..cut]);
        assert_eq!(said, "", "cut at {cut}");
        // A client that does not even wait until the server closes.
        dial(&siege).write_all(&hello.as_bytes()[..cut]).unwrap();
    }
    assert!(say(&siege, hello.as_bytes()).starts_with("HERDWICK 0 "));
    before.again(&mut siege);
}

#[test]
fn h10_hello_in_two_pieces_is_answered_once() {
    let mut siege = Siege::new();
    let before = Before::of(&mut siege);
    let hello = hello_line();
    for cut in 1..hello.len() {
        let mut stream = dial(&siege);
        stream.write_all(&hello.as_bytes()[..cut]).unwrap();
        // The server has polled its sockets between the pieces.
        siege.steady.check();
        siege.stat("curr_connections");
        stream.write_all(&hello.as_bytes()[cut..]).unwrap();
        assert!(line(&stream).starts_with("HERDWICK 0 "), "cut at {cut}");
    }
    before.again(&mut siege);
}

#[test]
fn h09_commands_around_a_hello_are_answered_in_order() {
    let mut siege = Siege::new();
    let before = Before::of(&mut siege);
    let hello = hello_line();
    let said = say(
        &siege,
        format!("{hello}set k 0 0 1\r\nv\r\nget k\r\n{hello}delete k\r\n{hello}").as_bytes(),
    );
    let words: Vec<&str> = said
        .lines()
        .map(|line| &line[..line.len().min(8)])
        .collect();
    let expected = [
        "HERDWICK", "STORED", "VALUE k ", "v", "END", "HERDWICK", "DELETED", "HERDWICK",
    ];
    assert_eq!(words, expected);
    let tokens: Vec<&str> = said.split("token=").skip(1).collect();
    assert!(
        tokens[0] != tokens[1] && tokens[1] != tokens[2],
        "each its own"
    );
    before.again(&mut siege);
}

#[test]
fn h02_h03_malformed_hellos_are_errors() {
    let mut siege = Siege::new();
    let before = Before::of(&mut siege);
    let refused = siege.stat("refused_lines");
    let hello = hello_line();
    let hello = hello.trim_end();
    let none = [
        "hello".to_owned(),
        "hello world".to_owned(),
        "hello herdwick".to_owned(),
        "hello herdwick/".to_owned(),
        "hello herdwick/x".to_owned(),
        "hello herdwick/-1".to_owned(),
        "hello herdwick/256".to_owned(),
        "HELLO herdwick/0".to_owned(),
        "hello herdwick/0 boot=zz".to_owned(),
        format!("hello herdwick/0 boot={}", "0".repeat(33)),
        format!("{hello} x={}", "y".repeat(HELLO_BYTES_MAX)),
    ];
    for line in &none {
        assert_eq!(
            say(&siege, format!("{line}\r\n").as_bytes()),
            "ERROR\r\n",
            "{line}"
        );
    }
    assert_eq!(siege.stat("refused_lines"), refused + none.len() as u64);
    // Another version, another host, or no common fabric: an offer without shared memory.
    for line in [
        "hello herdwick/7",
        "hello herdwick/0",
        "hello herdwick/0 fabrics=roce,verbs",
    ] {
        let said = say(&siege, format!("{line}\r\n").as_bytes());
        assert!(
            said.starts_with("HERDWICK 0 ") && !said.contains("shm="),
            "{said}"
        );
    }
    let elsewhere = format!("hello herdwick/0 fabrics=shm boot={}", "0".repeat(32));
    assert!(!say(&siege, format!("{elsewhere}\r\n").as_bytes()).contains("shm="));
    // Unknown fields are skipped; a line without end closes the connection.
    let longest = format!(
        "{hello} x={}\r\n",
        "y".repeat(HELLO_BYTES_MAX - hello.len() - 5)
    );
    assert!(say(&siege, longest.as_bytes()).contains("shm="));
    assert_eq!(
        say(
            &siege,
            format!("{hello} {}", "z".repeat(1 << 16)).as_bytes()
        ),
        ""
    );
    before.again(&mut siege);
}

/// Sends more hellos than there may be tokens outstanding, without waiting for any answer.
#[test]
fn h06_endless_hellos_hold_a_bounded_number_of_tokens() {
    let mut siege = Siege::new();
    let before = Before::of(&mut siege);
    let hellos = hello_line().repeat(5000);
    let said = say(&siege, hellos.as_bytes());
    assert_eq!(said.matches("HERDWICK 0 ").count(), 5000);
    drop(Raw::take(&siege.server.address, 8));
    before.again(&mut siege);
}

#[test]
fn h07_h08_wrong_or_replayed_tokens_are_refused() {
    let mut siege = Siege::new();
    let before = Before::of(&mut siege);
    let refused = siege.stat("lease_refused_token");
    let mut claims = 0;
    let mut refuse = |siege: &Siege, token: Token| {
        let mut step = Step::hello(&siege.server.address);
        let claim = Claim {
            token,
            window: 8,
            reply_bytes_max: 4096,
            reads: false,
        };
        step.say(&claim.to_frame());
        let (kind, body, fds) = step.hear();
        assert_eq!(
            (kind, Refusal::parse(&body)),
            (Kind::Refusal, Refusal::Token)
        );
        assert!(fds.is_empty());
        assert_eq!(step.socket.read(&mut [0]).unwrap(), 0, "hung up on");
        claims += 1;
    };
    let mut step = Step::hello(&siege.server.address);
    let token = step.token;
    for bit in 0..128 {
        let mut wrong = token;
        wrong.0[bit / 8] ^= 1 << (bit % 8);
        refuse(&siege, wrong);
    }
    refuse(&siege, Token([0; 16]));
    let (_, fds) = step.claim(8);
    assert!(!fds.is_empty(), "the server opened a lease");
    refuse(&siege, token);
    drop((step, fds));
    refuse(&siege, token);
    assert_eq!(siege.stat("lease_refused_token"), refused + claims);
    before.again(&mut siege);
}

#[test]
fn h09_h10_cut_or_misplaced_lease_frames_leave_no_state() {
    let mut siege = Siege::new();
    let before = Before::of(&mut siege);
    let address = siege.server.address.clone();
    let claim = Step::hello(&address).claim_frame(8).len();
    for cut in 0..claim {
        let mut step = Step::hello(&address);
        let frame = step.claim_frame(8);
        step.say(&frame[..cut]);
    }
    let accept = Raw::take(&address, 8).accept();
    for cut in (0..accept.len()).step_by(3) {
        let mut step = Step::hello(&address);
        step.claim(8);
        step.say(&accept[..cut]);
    }
    let malformed = siege.stat("lease_malformed");
    let huge = [b"HWL\x00\x01\x00\xff\xff".as_slice(), &[0; 100]].concat();
    let nobody = Accept {
        workers: Vec::new(),
    };
    let nonsense: [&[u8]; 5] = [
        b"GET / HTTP/1.0\r\n\r\n",
        &[0xff; 3000],
        &huge,
        &accept,
        &nobody.to_frame(),
    ];
    for frame in nonsense {
        let mut step = Step::hello(&address);
        step.say(frame);
        assert_eq!(step.hear().0, Kind::Refusal);
    }
    assert_eq!(
        siege.stat("lease_malformed"),
        malformed + nonsense.len() as u64
    );
    before.again(&mut siege);
}

/// Endless hellos, each of which gets tokens, do not invalidate other clients' tokens.
#[test]
fn flood_of_hellos_does_not_prevent_leases() {
    const HELLOS: usize = 5_000;
    let mut siege = Siege::new();
    let mut step = Step::hello(&siege.server.address);
    let mut flood = TcpStream::connect(&siege.server.address).unwrap();
    flood.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut replies = BufReader::new(flood.try_clone().unwrap()).lines();
    for _ in 0..HELLOS / 100 {
        flood
            .write_all(hello_line().repeat(100).as_bytes())
            .unwrap();
        for _ in 0..100 {
            assert!(replies.next().unwrap().unwrap().contains(" token="));
        }
    }
    step.claim(8);
    siege.survives();
}
