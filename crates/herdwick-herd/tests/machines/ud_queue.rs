//! Clients that send their requests as datagrams: whatever is not a request of the receive queue's
//! own client is dropped and counted, and affects no other client.

use herdwick_check::Rng;
use herdwick_conformance::seeded::Faults;
use herdwick_fabric::{AddressHandle, Completion, Device, Local, Payload, Port, SendOp, SendWr};
use herdwick_herd::{
    Outcome, Refused, RequestPath, ServerCounters, WorkerChannel,
    wire::{
        Control, Epoch, LINE_WORDS, Line, OpCode, REQUEST_BYTES_MAX, ReplyStatus, Sequence, Stamp,
        Unencodable, encode,
    },
};
use herdwick_request::{Arith, Get, Op, Put};

use crate::{
    fixture::{Client, Fixture, request},
    model::Model,
};

const WINDOW: usize = 8;
const HONEST: usize = 0;
const HOSTILE: usize = 1;

/// A worker with an honest client, whose value must survive, and a hostile one.
struct Post {
    fixture: Fixture<Model>,
    /// The hostile client's destinations: its own receive queue, and the honest client's.
    to: [AddressHandle; 2],
}

impl Post {
    fn new() -> Self {
        let mut fixture = Fixture::over(RequestPath::UdSend, 1, WINDOW, vec![Model::default()]);
        assert_eq!((fixture.join(1), fixture.join(666)), (HONEST, HOSTILE));
        let ends = [HOSTILE, HONEST].map(|client| fixture.clients[client].leases[0].requests);
        let hostile = &mut fixture.clients[HOSTILE];
        let (qp, device) = (hostile.channels[0].requests, fixture.network.device());
        let to = ends.map(|end| device.create_address(&mut hostile.port, qp, &end).unwrap());
        let mut post = Self { fixture, to };
        post.honest(put(b"untouched"), b"");
        post
    }

    fn honest(&mut self, op: Op<'_>, value: &[u8]) {
        let key = b"honest key";
        self.fixture.call(HONEST, key, op, |outcome| match outcome {
            Outcome::Answered(answer) => {
                assert_eq!((answer.status, answer.value), (ReplyStatus::Done, value));
            }
            _ => panic!("{outcome:?}"),
        });
    }

    /// Checks that the honest client is served without a retry and finds its value.
    fn survives(&mut self) {
        let retries = self.fixture.clients[HONEST].side.counters().retries;
        self.honest(Op::Get(Get::default()), b"untouched");
        assert_eq!(
            self.fixture.clients[HONEST].side.counters().retries,
            retries
        );
    }

    fn counters(&self) -> ServerCounters {
        *self.fixture.workers[0].side.counters()
    }

    /// Makes the hostile client send `bytes` `times` times.
    fn post(&mut self, to: AddressHandle, bytes: &[u8], times: usize) {
        let hostile = &mut self.fixture.clients[HOSTILE];
        let WorkerChannel {
            requests, stage, ..
        } = hostile.channels[0];
        hostile.port.region(stage).unwrap().write_bytes(0, bytes);
        let from = Local {
            region: stage,
            offset: 0,
            len: bytes.len(),
        };
        let send = SendWr {
            wr_id: 0,
            op: SendOp::Send {
                payload: Payload::Region(from),
                imm: None,
                to: Some(to),
            },
            signaled: true,
            solicited: false,
            fence: false,
        };
        hostile
            .port
            .post_send(requests, &vec![send; times])
            .unwrap();
    }

    /// Makes the worker poll, and the hostile client take its completions.
    fn step(&mut self) {
        self.fixture.step(&mut |_, _, _| {});
        let Client {
            port, request_cq, ..
        } = &mut self.fixture.clients[HOSTILE];
        while port.poll(*request_cq, &mut [Completion::BLANK; 8]) > 0 {}
    }

    fn send(&mut self, to: AddressHandle, bytes: &[u8]) {
        self.post(to, bytes, 1);
        self.step();
    }
}

fn put(value: &[u8]) -> Op<'_> {
    Op::Put(Put {
        value,
        ..Put::default()
    })
}

fn add_one() -> Op<'static> {
    Op::Arith(Arith {
        delta: 1,
        vivify: Some(0),
        initial: 1,
        ..Arith::default()
    })
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The honest client's next request, forged by another client.
fn forged(sequence: u32) -> Vec<u8> {
    let stamp = Stamp::new(Epoch::new(1).unwrap(), Sequence::new(sequence));
    let mut line = Line::default();
    let request = request(b"honest key", put(b"forged"));
    assert_eq!(encode(&request, stamp, &mut line, &mut []), Ok(0));
    bytes(line.words())
}

#[test]
fn datagram_with_another_clients_identity_is_dropped_and_counted() {
    let mut post = Post::new();
    let honest = post.to[1];
    for sequence in 0..2 * WINDOW as u32 {
        post.send(honest, &forged(sequence));
    }
    assert_eq!(post.counters().foreign_datagrams, 2 * WINDOW as u64);
    post.survives();
}

#[test]
fn malformed_request_is_dropped_and_counted() {
    let mut post = Post::new();
    let own = post.to[0];
    let whole = vec![0xff; REQUEST_BYTES_MAX + 1];
    // Up to 56 bytes arrive inside the completion; a datagram longer than a request finds no room.
    let lens = [0, 1, 56, 57, 63];
    for len in lens {
        post.send(own, &whole[..len]);
    }
    assert_eq!(post.counters().malformed_datagrams, lens.len() as u64);
    post.send(own, &whole);
    assert_eq!(post.counters().datagrams, 1, "the value that was stored");
    post.survives();
}

#[test]
fn truncated_body_is_dropped_and_counted() {
    let mut post = Post::new();
    let stamp = Stamp::new(Epoch::new(666).unwrap(), Sequence::default());
    let (mut line, mut body) = (Line::default(), [0; 1024]);
    let value = [7; 500];
    let len = encode(&request(b"key", put(&value)), stamp, &mut line, &mut body).unwrap();
    let whole = [&bytes(line.words())[..], &body[..len]].concat();
    post.send(post.to[0], &whole[..whole.len() - 100]);
    assert_eq!(post.counters().torn_overflow, 1);
    assert_eq!(
        post.fixture.workers[0].exec.items.len(),
        1,
        "nothing was stored"
    );
    line.retry();
    let again = [&bytes(line.words())[..], &body[..len]].concat();
    post.send(post.to[0], &again);
    assert_eq!(post.fixture.workers[0].exec.items[&b"key"[..]].value, value);
    post.survives();
}

#[test]
fn random_datagrams_are_counted_and_affect_no_other_client() {
    let mut post = Post::new();
    let (own, mut chance) = (post.to[0], Rng::new(1));
    let mut random = move || chance.bits();
    for round in 0..20_000_u32 {
        let mut words = [(); LINE_WORDS].map(|()| random());
        if round % 2 == 0 {
            // Half of them are accepted up to the body: right epoch, and often the right sequence.
            let stamp = Stamp::new(Epoch::new(666).unwrap(), Sequence::new(round % 64));
            words[7] =
                words[7] & 0xff_ffff | Control::new(OpCode::Get, 0, 0, 0, stamp).0 & !0xff_ffff;
        }
        let mut datagram = bytes(&words);
        datagram.resize(64 + random() as usize % (REQUEST_BYTES_MAX - 63), 7);
        post.send(own, &datagram);
        if round % 100 == 0 {
            post.survives();
        }
    }
    let counted = post.counters();
    assert!(counted.datagrams > 20_000, "{counted:?}");
    assert!(counted.stale_epoch > 9_000, "{counted:?}");
    assert!(counted.bad_opcode > 0 && counted.bad_body_length > 0);
    assert_eq!(counted.recvs_short, 0);
}

#[test]
fn flood_does_not_consume_recvs_of_other_clients() {
    let mut post = Post::new();
    let own = post.to[0];
    for _ in 0..100 {
        post.post(own, &[0xff; 64], 100);
        post.survives();
        post.step();
    }
    let (now, port) = (post.fixture.now, &mut post.fixture.workers[0].port);
    port.progress(now);
    let drops = port.drops();
    let lost: u64 = drops.iter().map(|(_, count)| count).sum();
    assert!(
        lost > 1_000,
        "the flood was larger than the UD queue: {drops:?}"
    );
}

#[test]
fn duplicated_datagram_executes_once() {
    let mut post = Post::new();
    post.fixture.faults(Faults {
        duplicate_per_mille: 1000,
        ..Faults::default()
    });
    for _ in 0..4 * WINDOW {
        post.fixture
            .call(HOSTILE, b"counter", add_one(), |outcome| {
                assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
            });
    }
    assert_eq!(
        post.fixture.workers[0].exec.number(b"counter"),
        Some(4 * WINDOW as u64)
    );
    assert!(post.counters().datagrams > 6 * WINDOW as u64);
}

#[test]
fn requests_of_a_detached_client_are_dropped() {
    let mut post = Post::new();
    let id = post.fixture.clients[HOSTILE].leases[0].id;
    post.fixture.workers[0].side.detach(id).unwrap();
    assert_eq!(post.fixture.workers[0].side.clients(), 1);
    let before = post.counters();
    post.send(post.to[0], &[0; 64]);
    assert_eq!(post.counters(), before);
    post.survives();
}

#[test]
fn request_larger_than_a_datagram_is_refused() {
    let mut fixture = Fixture::over(RequestPath::UdSend, 1, WINDOW, vec![Model::default()]);
    fixture.request_bytes_max = 512;
    fixture.join(1);
    let key = b"key";
    // The key and 445 bytes of value follow the line.
    for (len, fits) in [(445, true), (446, false)] {
        let value = vec![1; len];
        let submitted = fixture.clients[0]
            .side
            .submit(&request(key, put(&value)), 0);
        let refused = Err(Refused::Unencodable(Unencodable::TooLarge));
        assert_eq!(submitted.is_ok(), fits, "{len}");
        assert!(fits || submitted == refused);
    }
}
