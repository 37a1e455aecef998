//! HERD between two hosts on a network that loses packets: Linux network namespaces joined by a
//! veth, created by `tests/roce/lossy.sh`. Acknowledged writes can be read, nothing is counted
//! twice, and the rate recovers soon after the loss ends.

mod common;

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use common::Clock;
use herdwick::{Answer, Key, Mode, Op, Options, Put, Session, Ticket};

/// Address of the server's end of the veth.
const SERVER: &str = "10.8.0.1";
/// Channels: each has one request in flight, on its own keys.
const CHANNELS: usize = 64;
/// Time that each loss rate is tested.
const STRETCH: Duration = Duration::from_secs(3);
/// Time within which the rate must recover after a loss.
const BACK: Duration = Duration::from_secs(1);
/// Attempts to recover: other load on the machine also changes rates, while a real failure to
/// recover repeats every time.
const TRIES: usize = 5;

/// A server in its own namespace, reachable only over the veth.
struct Far {
    namespace: String,
    child: Child,
    address: String,
}

impl Far {
    #[expect(clippy::disallowed_methods, reason = "tests/roce/lossy.sh says where")]
    fn start() -> Self {
        let namespace = std::env::var("HERDWICK_SERVER_NETNS").expect("run by tests/roce/lossy.sh");
        let mut child = Command::new("ip")
            .args(["netns", "exec", &namespace])
            .arg(env!("CARGO_BIN_EXE_herdwick"))
            .args(["serve", "-t", "1", "-m", "256", "-l", SERVER, "-p", "0"])
            // Shared memory is off, since namespaces of one host share memory and hosts do not.
            .args(["--roce", SERVER, "--shm", "off"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("ip runs");
        let address = common::ready(&mut child);
        println!("a server at {address}");
        Self {
            namespace,
            child,
            address,
        }
    }

    /// Drops this many of a thousand UDP datagrams, in both directions, from now on.
    fn lose(&self, per_mille: u32) {
        let rule = format!(
            "flush ruleset; table inet loss {{ chain in {{ type filter hook input priority 0; \
             meta l4proto udp numgen random mod 1000 < {per_mille} drop; }}; }}"
        );
        let here = Command::new("nft").arg(&rule).status();
        let there = Command::new("ip")
            .args(["netns", "exec", &self.namespace, "nft", &rule])
            .status();
        for status in [here, there] {
            assert!(status.expect("nft runs").success(), "{rule}");
        }
    }

    fn session(&self) -> Session {
        let options = Options {
            window: CHANNELS,
            deadline: Duration::from_secs(20),
            ..Options::default()
        };
        let address = self.address.parse().expect("an address");
        let session = Session::dial(&address, &options).expect("a server");
        assert_eq!(session.transport(), "roce", "{:?}", session.fallback());
        session
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request after the other, on a value and a counter that no other channel uses.
#[derive(Default)]
struct Channel {
    name: String,
    turn: u64,
    stored: u64,
    counted: u64,
    waits: Option<Ticket>,
}

impl Channel {
    fn value(&self) -> Vec<u8> {
        common::value(&self.name, self.stored, 8 + self.stored as usize % 100)
    }

    /// Submits, in turn, a store, a read of what it stored, and an increment.
    fn submit(&mut self, session: &mut Session, now: Duration) {
        let value;
        let counter = format!("{}:count", self.name);
        let (key, op) = match self.turn % 3 {
            0 => {
                self.stored += 1;
                value = self.value();
                (&self.name, Op::Store(Mode::Set, Put::new(&value)))
            }
            1 => (&self.name, Op::Get),
            _ => (&counter, Op::Incr(1)),
        };
        let key = Key::new(key.as_bytes()).expect("a key");
        self.waits = session.submit(now, key, &op);
        self.turn += u64::from(self.waits.is_some());
    }

    fn hear(&mut self, answer: Answer<'_>) {
        self.waits = None;
        match (self.turn % 3, answer) {
            (1, Answer::Done) => {}
            (2, Answer::Hit(hit)) => assert!(hit.value == self.value(), "{}", self.name),
            (0, Answer::Number(number)) => {
                self.counted += 1;
                assert_eq!(number, self.counted, "counted once: {}", self.name);
            }
            (_, answer) => panic!("{}: {answer:?}", self.name),
        }
    }
}

/// A client that keeps all its channels busy.
struct Load {
    session: Session,
    channels: Vec<Channel>,
    clock: Clock,
}

impl Load {
    fn new(far: &Far) -> Self {
        let mut load = Self {
            session: far.session(),
            channels: Vec::new(),
            clock: Clock::start(),
        };
        for n in 0..CHANNELS {
            let mut channel = Channel {
                name: format!("channel:{n}"),
                ..Channel::default()
            };
            let counter = format!("{}:count", channel.name);
            let key = Key::new(counter.as_bytes()).expect("a key");
            let op = Op::Store(Mode::Set, Put::new("0"));
            channel.waits = load.session.submit(load.clock.now(), key, &op);
            assert!(channel.waits.is_some());
            channel.turn = 1;
            load.channels.push(channel);
        }
        while load.channels.iter().any(|channel| channel.waits.is_some()) {
            load.pass(false);
        }
        load.channels
            .iter_mut()
            .for_each(|channel| channel.turn = 0);
        load
    }

    /// Submits, if `busy`, on every channel without an outstanding request, and takes the answers;
    /// returns their number.
    fn pass(&mut self, busy: bool) -> u64 {
        let now = self.clock.now();
        for channel in &mut self.channels {
            if busy && channel.waits.is_none() {
                channel.submit(&mut self.session, now);
            }
        }
        self.session.flush(now);
        let mut answers = 0;
        let channels = &mut self.channels;
        self.session.poll(now, &mut |ticket, answer| {
            let waits = channels
                .iter_mut()
                .find(|channel| channel.waits == Some(ticket));
            waits.expect("the wait was requested").hear(answer);
            answers += 1;
        });
        if answers == 0 {
            self.session.wait(now);
        }
        assert!(
            self.session.broken().is_none(),
            "{:?}",
            self.session.broken()
        );
        answers
    }

    /// Returns answers per second over a stretch of time.
    fn rate(&mut self, stretch: Duration) -> f64 {
        let begin = self.clock.now();
        let mut answers = 0;
        while self.clock.now() - begin < stretch {
            answers += self.pass(true);
        }
        answers as f64 / stretch.as_secs_f64()
    }

    /// Returns whether the rate, `calm` without loss, recovers soon after a stretch of loss.
    fn recovers(&mut self, far: &Far, per_mille: u32, calm: f64) -> bool {
        far.lose(per_mille);
        let rate = self.rate(STRETCH);
        println!("{per_mille} of a thousand lost: {rate:.0} operations/s");
        assert!(rate > 0.0);
        far.lose(0);
        self.rate(BACK);
        let (back, later) = (self.rate(BACK), self.rate(STRETCH));
        println!("afterwards: {back:.0} operations/s in the second second, then {later:.0}");
        back > later / 2.0 && later > calm / 4.0
    }
}

#[test]
#[ignore = "needs network namespaces: tests/roce/lossy.sh"]
fn requests_execute_exactly_once_at_any_packet_loss() {
    let far = Far::start();
    let mut load = Load::new(&far);
    let calm = load.rate(STRETCH);
    println!("no loss: {calm:.0} operations/s");
    for per_mille in [10, 100] {
        let recovers = (0..TRIES).any(|_| load.recovers(&far, per_mille, calm));
        assert!(recovers, "the rate does not recover");
    }
    let counted: u64 = load.channels.iter().map(|channel| channel.counted).sum();
    println!("{counted} increments, each counted once");
    assert!(counted > 1000);
}
