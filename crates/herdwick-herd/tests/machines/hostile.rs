//! A client that writes its lines by hand, against the protocol. The tests are named by the row of
//! the list of attacks on request memory that they belong to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use herdwick_check::Rng;
use herdwick_conformance::seeded::Faults;
use herdwick_fabric::{Completion, Device, Payload, Port, SendOp, SendWr};
use herdwick_herd::{
    Chunk, Destination, Outcome, ServerCounters,
    wire::{
        CONTROL_WORD, Control, Epoch, HAS_ATTR, HAS_COMPARE, LINE_WORDS, Line, OVERFLOW,
        OVERFLOW_BYTES, OpCode, RESERVED, ReplyHead, ReplyStatus, Sequence, Stamp, encode,
        encode_locate, encode_report, split_imm,
    },
};
use herdwick_mem::{Span, Words};
use herdwick_request::{
    Arith, Clock, Execute, Get, KeyHash, Op, Put, Reply, Request, Sink, Status,
};

use crate::{
    fixture::{Fixture, HASH_KEY, Worker, request},
    model::{Model, STAGS, Stored},
};

const WINDOW: usize = 8;
const HONEST: usize = 0;
const HOSTILE: usize = 1;
const EPOCH: u16 = 666;

/// One worker, an honest client with a value that must survive, and a hostile client.
struct Siege<E> {
    fixture: Fixture<E>,
}

impl<E: Execute> Siege<E> {
    fn new(execs: Vec<E>) -> Self {
        let mut fixture = Fixture::new(1, WINDOW, execs);
        assert_eq!(fixture.join(1), HONEST);
        assert_eq!(fixture.join(EPOCH), HOSTILE);
        let mut siege = Self { fixture };
        siege.honest(put(b"untouched"), ReplyStatus::Done, b"");
        siege
    }

    fn honest(&mut self, op: Op<'_>, status: ReplyStatus, value: &[u8]) {
        self.fixture
            .call(HONEST, b"honest key", op, |outcome| match outcome {
                Outcome::Answered(answer) => {
                    assert_eq!((answer.status, answer.value), (status, value))
                }
                _ => panic!("{outcome:?}"),
            });
    }

    /// Checks that the honest client is served and finds its value.
    fn survives(&mut self) {
        self.honest(get(), ReplyStatus::Done, b"untouched");
    }

    fn lines(&self) -> &Span {
        &self.fixture.clients[HOSTILE].leases[0].lines
    }

    fn overflow(&self) -> &Span {
        &self.fixture.clients[HOSTILE].leases[0].overflow
    }

    fn counters(&self) -> ServerCounters {
        *self.fixture.workers[0].side.counters()
    }

    /// Writes a line as a client would: the control word last.
    fn write(&self, slot: usize, words: &[u64; LINE_WORDS]) {
        self.lines().write_words(slot * LINE_WORDS, words);
    }

    /// Writes `request` well-formed, with number `sequence`.
    fn submit(&self, request: &Request<'_>, sequence: u32) -> Line {
        let mut line = Line::default();
        let mut overflow = [0; OVERFLOW_BYTES];
        let stamp = stamp(EPOCH, sequence);
        let len = encode(request, stamp, &mut line, &mut overflow).unwrap();
        let slot = sequence as usize % WINDOW;
        self.overflow()
            .write_bytes(slot * OVERFLOW_BYTES, &overflow[..len]);
        self.write(slot, line.words());
        line
    }

    /// Runs the worker until it has found nothing for a while. Returns its replies to the hostile
    /// client, by sequence.
    fn replies(&mut self) -> Vec<(u32, ReplyStatus)> {
        for _ in 0..4 * WINDOW {
            self.fixture.serve();
        }
        self.fixture.advance();
        let client = &mut self.fixture.clients[HOSTILE];
        let mut out = [Completion::BLANK; 64];
        let found = client.port.poll(client.reply_cq, &mut out);
        out[..found].iter().map(reply).collect()
    }
}

fn reply(completion: &Completion) -> (u32, ReplyStatus) {
    let (_, sequence) = split_imm(completion.imm.unwrap());
    let head = ReplyHead(completion.inline.unwrap().words()[0]);
    assert_eq!(head.epoch(), EPOCH);
    (sequence.get(), head.status().unwrap())
}

fn stamp(epoch: u16, sequence: u32) -> Stamp {
    Stamp::new(Epoch::new(epoch).unwrap(), Sequence::new(sequence))
}

fn get() -> Op<'static> {
    Op::Get(Get::default())
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

fn siege() -> Siege<Model> {
    Siege::new(vec![Model::default()])
}

#[test]
fn r01_random_lines_at_full_speed_are_counted_and_affect_no_other_client() {
    let mut siege = siege();
    let mut random = Rng::new(1);
    let mut next = [0; WINDOW];
    for round in 0..200_000 {
        let mut words = [(); LINE_WORDS].map(|()| random.bits());
        let slot = random.bits() as usize % WINDOW;
        if round % 2 == 0 {
            // Half of them are accepted up to the body: right epoch, right sequence.
            let sequence = slot as u32 + next[slot] * WINDOW as u32;
            let stamp = Control::new(OpCode::Get, 0, 0, 0, stamp(EPOCH, sequence)).0;
            words[CONTROL_WORD] = words[CONTROL_WORD] & 0xff_ffff | stamp & !0xff_ffff;
        }
        siege.write(slot, &words);
        let before = siege.counters().requests;
        siege.fixture.serve();
        next[slot] += u32::from(siege.counters().requests > before && round % 2 == 0);
        if round % 1000 == 0 {
            siege.replies();
            siege.survives();
        }
    }
    siege.survives();
    let counted = siege.counters();
    for (name, count) in [
        ("stale_epoch", counted.stale_epoch),
        ("bad_opcode", counted.bad_opcode),
        ("bad_reserved", counted.bad_reserved),
        ("bad_body_length", counted.bad_body_length),
        ("bad_truncated", counted.bad_truncated),
    ] {
        assert!(count > 0, "{name}");
    }
}

#[test]
fn r02_length_beyond_the_line_is_refused() {
    let mut siege = siege();
    let executed = siege.fixture.workers[0].exec.executed;
    let mut sequence = 0;
    let mut refused = |siege: &mut Siege<Model>, bits, body_len, word1: u64| {
        let control = Control::new(OpCode::Set, bits, 4, body_len, stamp(EPOCH, sequence));
        let words = [HASH_KEY.hash(b"four").0, word1, 0, 0, 0, 0, 0, control.0];
        siege.write(sequence as usize % WINDOW, &words);
        assert_eq!(siege.replies(), [(sequence, ReplyStatus::BadRequest)]);
        sequence += 1;
    };
    for body_len in 49..64 {
        refused(&mut siege, 0, body_len, 0);
    }
    for len in [0, 1025, 65_535, u64::from(u32::MAX)] {
        refused(&mut siege, OVERFLOW, 8, len);
    }
    refused(&mut siege, OVERFLOW, 12, 100);
    refused(&mut siege, 0, 3, 0);
    assert_eq!(siege.counters().bad_body_length, 20);
    assert_eq!(siege.counters().bad_truncated, 1);
    assert_eq!(siege.fixture.workers[0].exec.executed, executed);
    siege.survives();
}

#[test]
fn r02_body_longer_than_the_written_bytes_fails_its_checksum() {
    let mut siege = siege();
    let value = [b'v'; 300];
    let line = siege.submit(&request(b"key", put(&value)), 0);
    siege.overflow().write_bytes(200, &[0; 100]);
    assert_eq!(siege.replies(), []);
    assert_eq!(siege.counters().torn_overflow, 1);
    assert_eq!(siege.fixture.workers[0].exec.number(b"key"), None);
    // The slot is unchanged: a retry with the whole body is executed.
    siege.submit(&request(b"key", put(&value)), 0);
    let mut line = line;
    line.retry();
    siege.write(0, line.words());
    assert_eq!(siege.replies(), [(0, ReplyStatus::Done)]);
    siege.survives();
}

/// Fails when a request is not what one control word described as a whole.
#[derive(Default)]
struct Wary {
    executed: Arc<AtomicU32>,
}

impl Execute for Wary {
    fn execute(&mut self, _: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        for (index, request) in batch.iter().enumerate() {
            let shape = match &request.op {
                Op::Put(put) => (request.key.len(), put.value.len()),
                _ => panic!("{request:?}"),
            };
            assert!([(4, 16), (40, 8)].contains(&shape), "{shape:?}");
            self.executed.fetch_add(1, Ordering::Relaxed);
            sink.reply(index, &Reply::bare(Status::Done));
        }
    }
}

#[test]
fn r03_header_changed_between_reads_is_read_once() {
    const REQUESTS: u32 = 3_000;
    let mut fixture = Fixture::new(1, 1, vec![Wary::default()]);
    fixture.join(EPOCH);
    let lines = fixture.clients[0].leases[0].lines.clone();
    let executed = Arc::clone(&fixture.workers[0].exec.executed);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sequence = 0;
            while sequence < REQUESTS {
                let stamp = stamp(EPOCH, sequence);
                let short = Control::new(OpCode::Set, 0, 4, 20, stamp);
                let long = Control::new(OpCode::Add, 0, 40, 48, stamp);
                for control in [short, long, short.retried(), long.retried()] {
                    lines.store_release(CONTROL_WORD, control.0);
                }
                sequence = executed.load(Ordering::Relaxed);
            }
        });
        let worker = &mut fixture.workers[0];
        while worker.exec.executed.load(Ordering::Relaxed) < REQUESTS {
            worker.pass();
        }
    });
    assert_eq!(fixture.workers[0].side.counters().out_of_window, 0);
}

#[test]
fn r04_value_changed_after_publication_is_not_stored() {
    let mut siege = siege();
    let value = [b'v'; 500];
    siege.submit(&request(b"key", put(&value)), 0);
    siege.overflow().write_bytes(400, b"V");
    assert_eq!(siege.replies(), []);
    assert_eq!(siege.counters().torn_overflow, 1);
    assert!(
        !siege.fixture.workers[0]
            .exec
            .items
            .contains_key(&b"key"[..])
    );
    siege.survives();
}

#[test]
fn r05_zero_hash_is_refused_like_any_wrong_hash() {
    let mut siege = siege();
    let with_zero = |op| Request {
        hash: KeyHash(0),
        ..request(b"key", op)
    };
    siege.submit(&with_zero(put(b"v")), 0);
    siege.submit(&with_zero(get()), 1);
    let replies = siege.replies();
    assert_eq!(
        replies,
        [(0, ReplyStatus::BadKey), (1, ReplyStatus::NotFound)]
    );
    siege.survives();
}

#[test]
fn r06_line_without_control_word_delays_no_other_request() {
    let mut siege = siege();
    let mut line = *siege.submit(&request(b"elsewhere", put(b"v")), 0).words();
    siege.replies();
    line[CONTROL_WORD] = 0;
    siege.lines().write_words(LINE_WORDS, &line);
    let executed = siege.fixture.workers[0].exec.executed;
    assert_eq!(siege.replies(), []);
    assert_eq!(siege.fixture.workers[0].exec.executed, executed);
    assert!(!siege.fixture.workers[0].side.has_news());
    siege.survives();
}

#[test]
fn r07_invalid_operations_are_refused_with_their_sequence() {
    let mut siege = siege();
    let executed = siege.fixture.workers[0].exec.executed;
    let cases: &[(u8, u8, u8, u8)] = &[
        // Operation, bits, key length, body length.
        (0, 0, 4, 4),
        (12, 0, 4, 4),
        (15, 0, 4, 4),
        (1, RESERVED, 4, 4),
        (1, 0, 4, 20),
        (1, HAS_ATTR, 4, 12),
        (1, HAS_COMPARE, 4, 12),
        (2, 0, 4, 4),
        (3, 0, 0, 4),
        (3, 0, 251, 48),
        (8, 0, 4, 8),
        (8, HAS_ATTR, 4, 12),
        (9, 0, 4, 4),
        (9, 0, 4, 20),
        (10, HAS_ATTR, 4, 20),
    ];
    for (sequence, (op, bits, key_len, body_len)) in (0..).zip(cases) {
        let control = Control::new(
            OpCode::Get,
            *bits,
            *key_len,
            *body_len,
            stamp(EPOCH, sequence),
        );
        let control = control.0 & !0xf | u64::from(*op);
        let hash = HASH_KEY.hash(b"four").0;
        siege.write(
            sequence as usize % WINDOW,
            &[hash, 0, 0, 0, 0, 0, 0, control],
        );
        let expected = [(sequence, ReplyStatus::BadRequest)];
        assert_eq!(
            siege.replies(),
            expected,
            "{op} {bits:#x} {key_len} {body_len}"
        );
    }
    assert_eq!(siege.fixture.workers[0].exec.executed, executed);
    let counted: u64 = siege
        .counters()
        .iter()
        .filter(|(name, _)| name.starts_with("bad_"))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(counted, cases.len() as u64);
    siege.survives();
}

#[test]
fn r08_value_of_another_length_replaces_the_old_value() {
    let mut siege = siege();
    for (sequence, len) in (0..).zip([32, 1, 700, 0, 40]) {
        siege.submit(&request(b"key", put(&[b'x'; 700][..len])), sequence);
        assert_eq!(siege.replies(), [(sequence, ReplyStatus::Done)]);
        assert_eq!(
            siege.fixture.workers[0].exec.items[&b"key"[..]].value.len(),
            len
        );
    }
    siege.survives();
}

#[test]
fn r09_repeated_request_has_no_second_effect() {
    let mut siege = siege();
    let mut line = siege.submit(&request(b"key", add_one()), 0);
    assert_eq!(siege.replies(), [(0, ReplyStatus::Done)]);
    // The same bytes are not a new request.
    siege.write(0, line.words());
    assert_eq!(siege.replies(), []);
    // The next attempts get the same answer.
    for _ in 0..10 {
        line.retry();
        siege.write(0, line.words());
        assert_eq!(siege.replies(), [(0, ReplyStatus::Done)]);
    }
    assert_eq!(siege.fixture.workers[0].exec.number(b"key"), Some(1));
    assert_eq!(siege.counters().retries_remembered, 10);
    siege.survives();
}

#[test]
fn r09_retry_with_another_operation_gets_the_old_reply_or_none() {
    let mut siege = siege();
    siege.submit(&request(b"key", add_one()), 0);
    siege.submit(&request(b"key", get()), 1);
    siege.replies();
    let mut line = siege.submit(&request(b"key", get()), 0);
    line.retry();
    siege.write(0, line.words());
    let mut line = siege.submit(&request(b"key", add_one()), 1);
    line.retry();
    siege.write(1, line.words());
    let replies = siege.replies();
    assert!(
        replies.iter().all(|reply| *reply == (0, ReplyStatus::Done)),
        "{replies:?}"
    );
    assert!(siege.counters().retries_changed > 0);
    assert_eq!(siege.fixture.workers[0].exec.number(b"key"), Some(1));
    siege.survives();
}

#[test]
fn r10_sequences_outside_the_window_are_dropped() {
    let mut siege = siege();
    siege.submit(&request(b"key", add_one()), 0);
    siege.replies();
    let window = WINDOW as u32;
    let outside = [
        2 * window,
        16 * window,
        (1 << 24) - window,
        (1 << 23) + window,
    ];
    for (count, sequence) in (1..).zip(outside) {
        siege.submit(&request(b"key", add_one()), sequence);
        assert_eq!(siege.replies(), [], "{sequence}");
        assert_eq!(siege.counters().out_of_window, count);
    }
    // A slot that has had no request has no last request either.
    siege.submit(&request(b"key", add_one()), (1 << 24) - window + 3);
    assert_eq!(siege.replies(), []);
    assert_eq!(siege.fixture.workers[0].exec.number(b"key"), Some(1));
    siege.submit(&request(b"key", add_one()), window);
    assert_eq!(siege.replies(), [(window, ReplyStatus::Done)]);
    siege.survives();
}

#[test]
fn r11_requests_in_all_slots_in_any_order_execute_once_each() {
    let mut siege = siege();
    for lap in 0..50 {
        let mut order: Vec<u32> = (0..WINDOW as u32).collect();
        order.rotate_left(lap as usize % WINDOW);
        if lap % 2 == 0 {
            order.reverse();
        }
        let mut answered = Vec::new();
        for slot in order {
            siege.submit(&request(b"key", add_one()), lap * WINDOW as u32 + slot);
            if lap % 3 == 0 {
                answered.extend(siege.replies());
            }
        }
        while answered.len() < WINDOW {
            answered.extend(siege.replies());
        }
        answered.sort_by_key(|(sequence, _)| *sequence);
        let expected =
            (0..WINDOW as u32).map(|slot| (lap * WINDOW as u32 + slot, ReplyStatus::Done));
        assert!(answered.into_iter().eq(expected), "lap {lap}");
        siege.fixture.clients[HOSTILE].post_recvs(WINDOW);
        let count = u64::from(lap + 1) * WINDOW as u64;
        assert_eq!(siege.fixture.workers[0].exec.number(b"key"), Some(count));
    }
    siege.survives();
}

#[test]
fn r11_missing_request_stalls_only_its_slot() {
    let mut siege = siege();
    for sequence in 1..WINDOW as u32 {
        siege.submit(&request(b"key", add_one()), sequence);
    }
    assert_eq!(siege.replies().len(), WINDOW - 1);
    // The sweep found one of them; the cursor followed it and found the others.
    assert_eq!(siege.counters().out_of_order_requests, 1);
    siege.submit(&request(b"key", add_one()), 0);
    assert_eq!(siege.replies(), [(0, ReplyStatus::Done)]);
    siege.survives();
}

#[test]
fn r12_write_into_another_clients_lines_is_refused() {
    let mut siege = siege();
    let victim = siege.fixture.clients[HONEST].leases[0].lines.clone();
    let before: Vec<u64> = (0..victim.count()).map(|word| victim.load(word)).collect();
    let Destination::Slots { lines: to, .. } = siege.fixture.clients[HONEST].channels[0].to else {
        panic!("this siege's clients write");
    };
    let attacker = &mut siege.fixture.clients[HOSTILE];
    let write = SendWr {
        wr_id: 0,
        op: SendOp::Write {
            payload: Payload::Words(&[u64::MAX; LINE_WORDS]),
            to,
            imm: None,
        },
        signaled: false,
        solicited: false,
        fence: false,
    };
    let requests = attacker.channels[0].requests;
    attacker.port.post_send(requests, &[write]).unwrap();
    siege.fixture.advance();
    let (now, port) = (siege.fixture.now, &mut siege.fixture.workers[0].port);
    port.progress(now);
    assert!(port.drops().iter().any(|(_, count)| *count > 0));
    let after: Vec<u64> = (0..victim.count()).map(|word| victim.load(word)).collect();
    assert_eq!(after, before);
    siege.survives();
}

#[test]
fn r14_keys_of_another_partition_are_refused() {
    let mut siege = Siege::new(vec![Model::default(), Model::default()]);
    let key = (0..).map(|n| format!("key {n}"));
    let foreign = key
        .into_iter()
        .find(|key| HASH_KEY.hash(key.as_bytes()).partition(2) == 1);
    let foreign = foreign.unwrap();
    let mut line = siege.submit(&request(foreign.as_bytes(), put(b"v")), 0);
    siege.submit(&request(foreign.as_bytes(), get()), 1);
    let refused = ReplyStatus::WrongPartition;
    assert_eq!(siege.replies(), [(0, refused), (1, refused)]);
    line.retry();
    siege.write(0, line.words());
    assert_eq!(siege.replies(), [(0, refused)]);
    assert_eq!(siege.counters().wrong_partition, 2);
    let stored = siege
        .fixture
        .workers
        .iter()
        .any(|worker| worker.exec.items.contains_key(foreign.as_bytes()));
    assert!(!stored);
    siege.survives();
}

#[test]
fn r15_hash_of_another_key_finds_and_changes_nothing() {
    let mut siege = siege();
    let lie = |op| Request {
        hash: HASH_KEY.hash(b"honest key"),
        ..request(b"key", op)
    };
    siege.submit(&lie(put(b"v")), 0);
    siege.submit(&lie(get()), 1);
    siege.submit(&lie(add_one()), 2);
    let expected = [
        (0, ReplyStatus::BadKey),
        (1, ReplyStatus::NotFound),
        (2, ReplyStatus::BadKey),
    ];
    assert_eq!(siege.replies(), expected);
    siege.survives();
}

#[test]
fn r16_r17_client_that_polls_no_replies_loses_them_and_delays_no_other() {
    let mut siege = siege();
    for sequence in 0..500 {
        siege.submit(&request(b"key", add_one()), sequence);
        siege.fixture.serve();
        siege.fixture.advance();
    }
    assert_eq!(siege.fixture.workers[0].exec.number(b"key"), Some(500));
    assert_eq!(siege.counters().replies_refused, 0);
    let (now, port) = (siege.fixture.now, &mut siege.fixture.clients[HOSTILE].port);
    port.progress(now);
    let drops = port.drops();
    assert!(drops.iter().any(|(_, count)| *count > 400), "{drops:?}");
    siege.survives();
}

/// A postlist that the port refuses for one reply is posted one by one.
#[test]
fn reply_that_cannot_be_posted_affects_only_its_client() {
    let mut siege = siege();
    // A third lease, whose replies are sent from the same queue pair as the honest client's.
    let third = siege.fixture.join(3);
    let leases = |fixture: &Fixture<Model>, n: usize| fixture.clients[n].leases[0].replies;
    assert_eq!(
        leases(&siege.fixture, HONEST),
        leases(&siege.fixture, third)
    );
    let gone = siege.fixture.clients[third].leases[0].address;
    let worker = &mut siege.fixture.workers[0];
    worker
        .device
        .destroy_address(&mut worker.port, gone)
        .unwrap();
    // One pass, so one postlist: the reply that cannot be posted, and the honest client's, which
    // does not fit a completion.
    let large = [7; 1000];
    siege.honest(put(&large), ReplyStatus::Done, b"");
    for round in 1..=WINDOW as u64 {
        for client in [third, HONEST] {
            let client = &mut siege.fixture.clients[client];
            let read = request(b"honest key", get());
            client.side.submit(&read, round).unwrap();
            client.side.flush(&mut client.port, siege.fixture.now);
        }
        siege.fixture.advance();
        assert_eq!(siege.fixture.workers[0].pass(), 2);
        assert_eq!(siege.counters().replies_refused, round);
        siege.fixture.advance();
        let mut answered = 0;
        let client = &mut siege.fixture.clients[HONEST];
        let mut sink = |_, outcome: Outcome<'_>| match outcome {
            Outcome::Answered(answer) => answered += usize::from(answer.value == large),
            _ => panic!("{outcome:?}"),
        };
        client
            .side
            .poll(&mut client.port, siege.fixture.now, &mut sink);
        assert_eq!(answered, 1, "{round}");
    }
}

/// Rewrites the attacker's slot while its request is being executed.
struct Meddler {
    inner: Model,
    lines: Option<Span>,
    rewrite: [u64; LINE_WORDS],
}

impl Execute for Meddler {
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        if let Some(lines) = &self.lines {
            lines.write_words(0, &self.rewrite);
        }
        self.inner.execute(clock, batch, sink);
    }
}

#[test]
fn r19_slot_changed_during_execution_executes_once() {
    let meddler = Meddler {
        inner: Model::default(),
        lines: None,
        rewrite: [0; LINE_WORDS],
    };
    let mut siege = Siege::new(vec![meddler]);
    let add = request(b"key", add_one());
    for lap in 0..30 {
        let sequence = lap * WINDOW as u32;
        let mut line = siege.submit(&add, sequence);
        let rewrite = match lap % 3 {
            0 => [0; LINE_WORDS],
            1 => *line.words(),
            _ => {
                line.retry();
                *line.words()
            }
        };
        let exec = &mut siege.fixture.workers[0].exec;
        (exec.lines, exec.rewrite) = (None, rewrite);
        exec.lines = Some(siege.fixture.clients[HOSTILE].leases[0].lines.clone());
        let replies = siege.replies();
        assert!(
            replies
                .iter()
                .all(|reply| *reply == (sequence, ReplyStatus::Done))
        );
        assert!(!replies.is_empty(), "lap {lap}");
        siege.fixture.clients[HOSTILE].post_recvs(replies.len());
        let exec = &mut siege.fixture.workers[0].exec;
        exec.lines = None;
        assert_eq!(
            exec.inner.number(b"key"),
            Some(u64::from(lap) + 1),
            "lap {lap}"
        );
    }
    siege.survives();
}

#[test]
fn r20_lines_of_an_old_lease_are_refused() {
    let mut siege = siege();
    let old = siege.submit(&request(b"key", add_one()), 0);
    siege.replies();
    let lease = &siege.fixture.clients[HOSTILE].leases[0];
    let (id, address) = (lease.id, lease.address);
    let Worker { side, port, .. } = &mut siege.fixture.workers[0];
    let chunk = side.detach(id).unwrap();
    assert!(side.detach(id).is_none());
    let chunk = Chunk {
        epoch: Epoch::new(EPOCH + 1).unwrap(),
        address,
        ..chunk
    };
    side.attach(port, chunk).unwrap();
    assert!(
        side.detach(id).is_none(),
        "the id of a detached client is invalid"
    );
    // The line in the slot, and a line that a delayed WRITE delivers.
    assert_eq!(siege.replies(), []);
    let mut late = old;
    late.retry();
    siege.write(0, late.words());
    assert_eq!(siege.replies(), []);
    assert_eq!(siege.counters().stale_epoch, 2);
    assert_eq!(siege.fixture.workers[0].exec.number(b"key"), Some(1));
    siege.survives();
}

/// Writes a report of `hits` reads of keys with these hashes; the first is the line's.
fn report(siege: &Siege<Model>, sequence: u32, hits: u32, hashes: &[KeyHash]) {
    let (mut line, mut overflow) = (Line::default(), [0; OVERFLOW_BYTES]);
    let stamp = stamp(EPOCH, sequence);
    let len = encode_report(hits, hashes, stamp, &mut line, &mut overflow);
    let slot = sequence as usize % WINDOW;
    siege
        .overflow()
        .write_bytes(slot * OVERFLOW_BYTES, &overflow[..len]);
    siege.write(slot, line.words());
}

/// Writes a question for the stag of `key`, which fits the line.
fn locate(siege: &Siege<Model>, sequence: u32, key: &[u8]) {
    let mut line = Line::default();
    let (hash, stamp) = (HASH_KEY.hash(key), stamp(EPOCH, sequence));
    encode_locate(hash, key, stamp, &mut line, &mut []).unwrap();
    siege.write(sequence as usize % WINDOW, line.words());
}

/// Keys in the line and in the overflow area, over a network that loses lines and replies.
#[test]
fn stags_of_keys_are_told_to_clients_that_read_the_store() {
    let mut fixture = Fixture::new(1, WINDOW, vec![Model::default(); 2]);
    fixture.faults(Faults {
        drop_per_mille: 200,
        ..Faults::default()
    });
    fixture.join(1);
    let keys = [1, 20, 48, 49, 250].map(|len| vec![b'k'; len]);
    for (key, version) in keys.iter().zip(1..) {
        let stored = Stored {
            value: Vec::new(),
            flags: 0,
            version,
        };
        let worker = HASH_KEY.hash(key).partition(2);
        let items = &mut fixture.workers[worker].exec.items;
        items.insert(key.clone(), stored);
    }
    for (n, key) in keys
        .iter()
        .map(Vec::as_slice)
        .chain([&b"none"[..]])
        .enumerate()
    {
        let side = &mut fixture.clients[0].side;
        assert!(side.locate(HASH_KEY.hash(key), key, n as u64));
        let mut told = None;
        while told.is_none() {
            fixture.step(&mut |_, token, outcome| {
                assert_eq!(token, n as u64);
                match outcome {
                    Outcome::Answered(answer) => told = Some((answer.status, answer.number)),
                    other => panic!("{other:?}"),
                }
            });
        }
        let expected = match n < keys.len() {
            true => (ReplyStatus::Done, Some(u64::from(STAGS) + n as u64 + 1)),
            false => (ReplyStatus::NotFound, None),
        };
        assert_eq!(told, Some(expected));
    }
    let executed = fixture.workers.iter().map(|worker| worker.exec.executed);
    assert_eq!(executed.sum::<u64>(), 0, "it is no read of the item");
}

#[test]
fn malformed_questions_for_stags_are_refused() {
    let mut siege = siege();
    for (sequence, bits, key_len) in [(0, 0x10, 3), (1, 0, 0), (2, 0, 4), (3, 0, 2)] {
        let mut line = Line::default();
        let stamp = stamp(EPOCH, sequence);
        encode_locate(HASH_KEY.hash(b"key"), b"key", stamp, &mut line, &mut []).unwrap();
        let mut words = *line.words();
        words[7] = Control::new(OpCode::Locate, bits, key_len, 3, stamp).0;
        siege.write(sequence as usize % WINDOW, &words);
        assert_eq!(siege.replies(), [(sequence, ReplyStatus::BadRequest)]);
    }
    siege.survives();
}

#[test]
fn report_of_a_client_that_reads_no_store_is_refused() {
    let mut siege = siege();
    let lease = &siege.fixture.clients[HOSTILE].leases[0];
    let (id, address) = (lease.id, lease.address);
    let Worker { side, port, .. } = &mut siege.fixture.workers[0];
    let chunk = side.detach(id).unwrap();
    let chunk = Chunk {
        reads: false,
        address,
        ..chunk
    };
    side.attach(port, chunk).unwrap();
    report(&siege, 0, 9, &[KeyHash(1); 127]);
    assert_eq!(siege.replies(), [(0, ReplyStatus::BadRequest)]);
    assert_eq!(siege.fixture.workers[0].exec.reported, (0, Vec::new()));
    locate(&siege, 1, b"key");
    assert_eq!(siege.replies(), [(1, ReplyStatus::BadRequest)]);
    let counters = siege.counters();
    assert_eq!((counters.read_reports, counters.bad_opcode), (0, 2));
    siege.survives();
}

#[test]
fn report_counts_no_more_reads_than_can_have_been() {
    let mut siege = siege();
    report(&siege, 0, u32::MAX, &[KeyHash(1), KeyHash(2)]);
    assert_eq!(siege.replies(), [(0, ReplyStatus::Done)]);
    let reported = &siege.fixture.workers[0].exec.reported;
    assert_eq!(*reported, (1 << 24, vec![1, 2]));
    siege.survives();
}

#[test]
fn hashes_of_keys_of_other_workers_are_left_out_of_reports() {
    let mut fixture = Fixture::new(1, WINDOW, vec![Model::default(); 2]);
    fixture.join(1);
    let hashes = (0..64_u64).map(|n| HASH_KEY.hash(&n.to_le_bytes()));
    let (here, there): (Vec<_>, Vec<_>) = hashes.partition(|hash| hash.partition(2) == 0);
    let all = [&here[..], &there].concat();
    let side = &mut fixture.clients[0].side;
    assert!(side.report(0, 64, &all, 7));
    let mut done = false;
    while !done {
        fixture.step(&mut |_, token, _| done = token == 7);
    }
    let expected = here.iter().map(|hash| hash.0).collect();
    assert_eq!(fixture.workers[0].exec.reported, (64, expected));
    assert_eq!(fixture.workers[1].exec.reported, (0, Vec::new()));
}

/// A client that sends nothing but reports gets few of them into a batch.
#[test]
fn report_takes_the_turns_of_many_requests() {
    let mut siege = siege();
    for sequence in 0..WINDOW as u32 {
        report(&siege, sequence, 1, &[KeyHash(1); 127]);
    }
    let before = siege.counters().read_reports;
    siege.fixture.serve();
    // One in its turn as a cold client, and two as the only hot one, which may fill the batch.
    assert_eq!(siege.counters().read_reports, before + 3);
    siege.survives();
}

#[test]
fn lines_of_a_detached_client_are_not_polled() {
    let mut siege = siege();
    let id = siege.fixture.clients[HOSTILE].leases[0].id;
    siege.fixture.workers[0].side.detach(id).unwrap();
    siege.submit(&request(b"key", add_one()), 0);
    assert_eq!(siege.replies(), []);
    assert!(!siege.fixture.workers[0].side.has_news());
    assert_eq!(siege.fixture.workers[0].exec.number(b"key"), None);
    siege.survives();
}

#[test]
fn stopped_client_delays_no_other_client() {
    let mut siege = siege();
    siege.fixture.faults(Faults {
        delay_max: Duration::from_micros(2),
        ..Faults::default()
    });
    let client = &mut siege.fixture.clients[HOSTILE];
    for token in 0..WINDOW as u64 {
        client
            .side
            .submit(&request(b"key", add_one()), token)
            .unwrap();
    }
    client.side.flush(&mut client.port, siege.fixture.now);
    let party = client.party();
    siege.fixture.network.stop_after(party, 3);
    for _ in 0..100 {
        siege.survives();
    }
    let executed = siege.fixture.workers[0].exec.number(b"key").unwrap_or(0);
    assert!(executed <= WINDOW as u64);
}
