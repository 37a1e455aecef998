//! A session's requests over a fabric that loses packets, under virtual time.

use std::{collections::HashMap, os::unix::net::UnixStream, sync::Arc};

use herdwick_conformance::seeded::{Faults, PartyId, SeededNetwork, SeededPort};
use herdwick_fabric::Device;
use herdwick_herd::{ClientSetup, ClientTerms, RequestPath, ServerEnd, ServerTerms, wire::Epoch};
use herdwick_herd::{hello::Grant, wire::Window};
use herdwick_layout::published::Geometry;
use herdwick_mem::Span;
use herdwick_request::{Clock, Second};

use super::{one_sided::Stores, *};
use crate::{Address, Lost, Mode, OneSidedReads, Options, Put, Ttl, map::Map, stream::Stream};
use herdwick_herd::hello::OneSidedOffer;

const HASH_KEY: HashKey = HashKey([7, 9]);
const CLOCK: Clock = Clock {
    epoch_unix: 1_700_000_000,
    second: Second(100),
};
const REPLY_BYTES_MAX: usize = 1040;
const WINDOW: usize = 16;

/// A session's end, a worker, and what is between them.
struct Fixture {
    network: SeededNetwork,
    herd: Herd<SeededPort>,
    server: ServerEnd<SeededPort>,
    map: Map,
    ends: [PartyId; 2],
    now: Duration,
    /// The other ends of the session's sockets.
    _peers: [UnixStream; 2],
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let network = SeededNetwork::new(seed);
        let (ours, theirs) = (network.device(), network.device());
        let (window, path) = (Window::new(WINDOW).unwrap(), RequestPath::UcWrite);
        let epoch = Epoch::new(9).unwrap();
        let terms = ServerTerms {
            worker: 0,
            workers: 1,
            clients_max: 1,
            spin: Duration::MAX,
            reply_bytes_max: REPLY_BYTES_MAX,
        };
        let mut server = ServerEnd::open(&ours, &terms).unwrap();
        let terms = ClientTerms {
            path,
            window,
            epoch,
            reply_bytes_max: REPLY_BYTES_MAX,
            retry_after: Duration::from_micros(50),
            retry_after_max: Duration::from_millis(1),
            deadline: Duration::from_secs(1000),
        };
        let mut fixture = ClientSetup::open(&theirs, 1, &terms).unwrap();
        let pd = ours.create_pd(&mut server.port).unwrap();
        let resources = server.allocate(&ours, pd, path, window).unwrap();
        let grant = server.grant(&ours, &resources, Vec::new(), 0).unwrap();
        let their_pd = theirs.create_pd(&mut fixture.port).unwrap();
        let peer = fixture.join(&theirs, their_pd, &grant).unwrap();
        server
            .admit(&ours, &resources, &peer, epoch, REPLY_BYTES_MAX)
            .unwrap();
        let (lease, their_lease) = UnixStream::pair().unwrap();
        let (text, their_text) = UnixStream::pair().unwrap();
        text.set_nonblocking(true).unwrap();
        let taken = Taken {
            end: fixture.finish().unwrap(),
            lease: Lease::keep(LeaseSocket::of(lease)).unwrap(),
            stores: None,
            capacity: WINDOW as u32,
            elapsed: Duration::ZERO,
        };
        let ends = [taken.end.port.party(), server.port.party()];
        let memcached_port =
            MemcachedPort::new(&Address::Tcp("127.0.0.1:0".to_owned()), &Options::default());
        let memcached = Memcached::new(Stream::Unix(text), 1 << 20);
        Self {
            herd: Herd::new(
                taken,
                HASH_KEY,
                memcached,
                memcached_port,
                OneSidedReads::Auto,
            ),
            network,
            server,
            map: Map::default(),
            ends,
            now: Duration::ZERO,
            _peers: [their_lease, their_text],
        }
    }

    fn submit(&mut self, timeout: Duration, op: &Op<'_>) -> Option<Ticket> {
        self.submit_for("key", timeout, op)
    }

    fn submit_for(&mut self, key: &str, timeout: Duration, op: &Op<'_>) -> Option<Ticket> {
        let when = When {
            unix: 1_700_000_000,
            now: self.now,
            due: self.now + timeout,
        };
        self.herd
            .submit(when, Key::new(key.as_bytes()).unwrap(), op)
    }

    /// Has the session read in a store of nothing, and have more requests in flight than the worker has slots.
    fn publish_nothing(&mut self) {
        let geometry = Geometry {
            buckets: 1,
            segments: 1,
            segment_bytes: 4096,
        };
        let memory = Span::anonymous(geometry.bytes()).unwrap();
        geometry.describe(&memory);
        let grant = Grant {
            epoch: 9,
            window: WINDOW as u16,
            reply_bytes_max: REPLY_BYTES_MAX as u32,
            workers: Vec::new(),
        };
        let memories = (OneSidedOffer::Reads, vec![memory]);
        let stores = Stores::open(memories, &grant, Default::default(), 1 << 20).unwrap();
        self.herd.one_sided = Some(OneSided::new(stores, OneSidedReads::Always));
        self.herd.pending = Pending::new(2 * WINDOW as u32);
    }

    fn step(&mut self, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        self.now += Duration::from_micros(1);
        self.network.run(self.now);
        let Self { server, map, .. } = self;
        server.side.pass(&mut server.port, CLOCK, map);
        self.herd.flush(self.now);
        self.herd.poll(self.now, sink);
    }
}

const PATIENT: Duration = Duration::from_secs(100);

/// SET, GET and INCR on one key, as many at once as the session accepts.
#[test]
fn requests_on_one_key_execute_in_order_at_any_loss() {
    for seed in 0..30 {
        let mut fixture = Fixture::new(seed);
        fixture.network.set_faults(Faults {
            drop_per_mille: 100,
            duplicate_per_mille: 50,
            reorder_per_mille: 100,
            reorder_window: Duration::from_micros(100),
            ..Faults::default()
        });
        let (mut number, mut submitted, mut answered) = (0, 0, 0);
        let mut due = HashMap::new();
        while answered < 300 {
            while submitted < 300 {
                let value = (submitted * 1000).to_string();
                let set = Op::Store(Mode::Set, Put::new(&value));
                let op = [set, Op::Get, Op::Incr(1), Op::Get][submitted % 4];
                let Some(ticket) = fixture.submit(PATIENT, &op) else {
                    break;
                };
                match op {
                    Op::Store(..) => number = submitted as u64 * 1000,
                    Op::Incr(_) => number += 1,
                    _ => {}
                }
                due.insert(ticket, number);
                submitted += 1;
            }
            fixture.step(&mut |ticket, answer| {
                let number = due.remove(&ticket).expect("one answer each");
                answered += 1;
                match answer {
                    Answer::Hit(hit) => assert_eq!(hit.value, number.to_string().as_bytes()),
                    Answer::Number(told) => assert_eq!(told, number),
                    other => assert_eq!(other, Answer::Done),
                }
            });
        }
        assert_eq!(
            fixture.map.items[&b"key"[..]].0,
            number.to_string().as_bytes()
        );
    }
}

/// Returns how a request for a stored key ends if it was executed and its replies are lost.
fn unanswered(op: &Op<'_>) -> Lost {
    let mut fixture = Fixture::new(1);
    fixture.submit(PATIENT, &Op::Store(Mode::Set, Put::new("1")));
    while fixture.map.executed == 0 || fixture.herd.side.in_flight() > 0 {
        fixture.step(&mut |_, answer| assert_eq!(answer, Answer::Done));
    }
    fixture.submit(Duration::from_micros(500), op);
    fixture.herd.flush(fixture.now);
    while !fixture.network.run(fixture.now) {
        fixture.now += Duration::from_micros(1);
    }
    fixture.network.partition(fixture.ends[0], fixture.ends[1]);
    let mut end = None;
    while end.is_none() {
        fixture.step(&mut |_, answer| match answer {
            Answer::Lost(lost) => end = Some(lost),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(fixture.map.executed, 2);
    end.unwrap()
}

#[test]
fn unanswered_touch_is_not_treated_as_a_read() {
    for op in [
        Op::Touch(Ttl::Seconds(0)),
        Op::Touch(Ttl::Seconds(9)),
        Op::Incr(1),
    ] {
        let lost = unanswered(&op);
        assert!(lost.perhaps_done, "{op:?}");
        assert_eq!(lost.cause, Cause::Timeout);
    }
    assert!(!unanswered(&Op::Get).perhaps_done);
}

/// The first reply is lost and the touch is sent again: the answer is that of its execution.
#[test]
fn repeated_touch_returns_the_result_of_its_execution() {
    let mut fixture = Fixture::new(1);
    fixture.submit(PATIENT, &Op::Store(Mode::Set, Put::new("1")));
    while fixture.map.executed == 0 || fixture.herd.side.in_flight() > 0 {
        fixture.step(&mut |_, answer| assert_eq!(answer, Answer::Done));
    }
    fixture.submit(PATIENT, &Op::Touch(Ttl::Seconds(0)));
    fixture.herd.flush(fixture.now);
    while !fixture.network.run(fixture.now) {
        fixture.now += Duration::from_micros(1);
    }
    fixture.network.partition(fixture.ends[0], fixture.ends[1]);
    while fixture.map.executed < 2 {
        fixture.step(&mut |_, answer| panic!("{answer:?}"));
    }
    fixture.network.heal(fixture.ends[0], fixture.ends[1]);
    let mut done = None;
    while done.is_none() {
        fixture.step(&mut |_, answer| done = Some(answer == Answer::Done));
    }
    assert_eq!(done, Some(true));
    assert!(fixture.map.items.is_empty());
}

/// A request that times out before a worker has seen it is canceled: it is never executed.
#[test]
fn request_that_timed_out_unseen_is_not_executed_later() {
    let mut fixture = Fixture::new(1);
    fixture.submit(
        Duration::from_micros(100),
        &Op::Store(Mode::Set, Put::new("1")),
    );
    fixture.herd.flush(fixture.now);
    let mut lost = None;
    while lost.is_none() {
        fixture.now += Duration::from_micros(1);
        fixture.network.run(fixture.now);
        fixture
            .herd
            .poll(fixture.now, &mut |_, answer| match answer {
                Answer::Lost(end) => lost = Some(end.perhaps_done),
                other => panic!("{other:?}"),
            });
    }
    assert_eq!(lost, Some(true));
    for _ in 0..100 {
        fixture.step(&mut |_, answer| panic!("{answer:?}"));
    }
    assert_eq!(fixture.map.executed, 0);
    assert_eq!(fixture.server.side.counters().canceled, 1);
}

/// A reply may wait here, as in a process that was stopped, while its server ends and another takes its place.
#[test]
fn reply_of_a_server_that_has_ended_since_is_no_proof_that_it_lives() {
    let mut fixture = Fixture::new(1);
    // The lease has no thread: the system alone knows of the end.
    let (lease, theirs) = UnixStream::pair().unwrap();
    fixture.herd.lease = Lease::held(lease, Arc::default());
    fixture.now = Duration::from_secs(1);
    fixture.herd.check(fixture.now);
    fixture.submit(PATIENT, &Op::Store(Mode::Set, Put::new("1")));
    fixture.herd.flush(fixture.now);
    while fixture.map.executed == 0 || !fixture.network.run(fixture.now) {
        fixture.now += Duration::from_micros(1);
        fixture.network.run(fixture.now);
        let Fixture { server, map, .. } = &mut fixture;
        server.side.pass(&mut server.port, CLOCK, map);
    }
    drop(theirs);
    fixture.now += Duration::from_secs(1);
    let mut answers = 0;
    fixture.herd.poll(fixture.now, &mut |_, answer| {
        assert_eq!(answer, Answer::Done);
        answers += 1;
    });
    assert_eq!((answers, fixture.herd.broken()), (1, None));
    fixture.herd.check(fixture.now);
    assert_eq!(fixture.herd.broken(), Some(Cause::Closed));
}

/// The session keeps one worker of two busy, and asks for more than that has room for.
#[test]
fn read_that_the_memory_did_not_answer_gets_the_next_room() {
    let mut fixture = Fixture::new(1);
    fixture.publish_nothing();
    let set = Op::Store(Mode::Set, Put::new("1"));
    let mut keys = 0..;
    let mut fill = |fixture: &mut Fixture| {
        while let Some(n) = keys.next()
            && fixture.submit_for(&format!("{n}"), PATIENT, &set).is_some()
        {}
    };
    fill(&mut fixture);
    let read = fixture.submit_for("read", PATIENT, &Op::Get).unwrap();
    let (mut is_read, mut steps) = (false, 0);
    while !is_read {
        fill(&mut fixture);
        fixture.step(&mut |ticket, answer| match answer {
            Answer::Miss => is_read = ticket == read,
            other => assert_eq!(other, Answer::Done),
        });
        steps += 1;
        assert!(steps < 10_000);
    }
}
