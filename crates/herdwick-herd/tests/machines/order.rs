//! Ordering of requests for one key: they take effect in the order of submission, whatever is lost;
//! requests for other keys wait for none of them.

use std::{collections::VecDeque, time::Duration};

use herdwick_check::Rng;
use herdwick_conformance::seeded::Faults;
use herdwick_herd::{Outcome, Refused, RequestPath, wire::ReplyStatus};
use herdwick_request::{Arith, Delete, Get, Op, Put};

use crate::{
    fixture::{Client, Fixture, HASH_KEY, request},
    model::Model,
};

const WINDOW: usize = 16;
const KEY: &[u8] = b"key";
/// The token of reports.
const REPORT: u64 = u64::MAX;

fn get() -> Op<'static> {
    Op::Get(Get::default())
}

fn set(value: &[u8]) -> Op<'_> {
    Op::Put(Put {
        value,
        ..Put::default()
    })
}

fn incr() -> Op<'static> {
    Op::Arith(Arith {
        delta: 1,
        ..Arith::default()
    })
}

fn lossy() -> Faults {
    Faults {
        drop_per_mille: 60,
        duplicate_per_mille: 50,
        reorder_per_mille: 100,
        reorder_window: Duration::from_micros(100),
        delay_max: Duration::from_micros(3),
        ..Faults::default()
    }
}

fn fixture(path: RequestPath, seed: u64) -> Fixture<Model> {
    let mut fixture = Fixture::over(path, seed, WINDOW, vec![Model::default()]);
    fixture.join(1);
    fixture
}

/// The answer that a request for [`KEY`] must get when all requests before it have taken effect.
#[derive(Debug, PartialEq)]
enum Told {
    Value(Vec<u8>),
    Number(u64),
    Done,
}

fn told(outcome: &Outcome<'_>, is_arith: bool) -> Told {
    let Outcome::Answered(answer) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(answer.status, ReplyStatus::Done);
    match answer.number {
        Some(number) if is_arith => Told::Number(number),
        Some(_) if !answer.value.is_empty() => Told::Value(answer.value.to_vec()),
        _ => Told::Done,
    }
}

/// Keeps as many requests for one key outstanding as there are slots: SET, GET and INCR in an order
/// that `seed` chooses. Each is answered as if it were alone.
fn pipelined(path: RequestPath, seed: u64, reports: bool) {
    let mut fixture = fixture(path, seed);
    fixture.faults(lossy());
    let mut number = 1000_u64;
    let first = number.to_string();
    fixture.call(0, KEY, set(first.as_bytes()), |outcome| {
        told(&outcome, false)
    });
    let mut due: VecDeque<(u64, bool, Told)> = VecDeque::new();
    let (mut token, mut picks) = (0, Rng::new(seed));
    while token < 300 || !due.is_empty() {
        while token < 300 {
            let (value, op) = ((number + 17).to_string(), picks.bits());
            let (op, told) = match op % 3 {
                0 => (set(value.as_bytes()), Told::Done),
                1 => (get(), Told::Value(number.to_string().into_bytes())),
                _ => (incr(), Told::Number(number + 1)),
            };
            match fixture.clients[0].side.submit(&request(KEY, op), token) {
                Ok(()) => {}
                Err(Refused::Full) => break,
                Err(refused) => panic!("{refused}"),
            }
            match &told {
                Told::Done => number += 17,
                Told::Number(next) => number = *next,
                Told::Value(_) => {}
            }
            due.push_back((token, matches!(told, Told::Number(_)), told));
            token += 1;
        }
        if reports {
            let side = &mut fixture.clients[0].side;
            side.report(0, 1, &[HASH_KEY.hash(KEY)], REPORT);
        }
        fixture.step(&mut |_, token, outcome| {
            if token == REPORT {
                return;
            }
            let place = due.iter().position(|due| due.0 == token).unwrap();
            let (_, is_arith, expected) = due.remove(place).unwrap();
            assert_eq!(told(&outcome, is_arith), expected, "{path}, seed {seed}");
            // A request that is overtaken is a read, and so is the one that overtakes it.
            let are_reads = |due: &(u64, bool, Told)| matches!(due.2, Told::Value(_));
            assert!(due.iter().take(place).all(are_reads));
            assert!(place == 0 || matches!(expected, Told::Value(_)));
        });
    }
    while fixture.clients[0].side.in_flight() > 0 {
        fixture.step(&mut |_, token, _| assert_eq!(token, REPORT));
    }
    assert_eq!(fixture.workers[0].exec.number(KEY), Some(number));
    assert_eq!(fixture.workers[0].exec.reported.0 > 0, reports);
}

#[test]
fn pipelined_requests_on_one_key_execute_in_order() {
    for path in [RequestPath::UcWrite, RequestPath::UdSend] {
        for seed in 0..60 {
            pipelined(path, seed, false);
        }
    }
}

/// A report is no request for the keys it names: what was held back before it came does not go when it ends.
#[test]
fn reports_of_reads_release_no_request_on_their_keys() {
    for path in [RequestPath::UcWrite, RequestPath::UdSend] {
        for seed in 0..60 {
            pipelined(path, seed, true);
        }
    }
}

/// The first SET is lost, and is written again long after the second one was submitted.
#[test]
fn lost_set_does_not_overwrite_a_later_one() {
    for op in [set(b"2"), get(), Op::Delete(Delete::default())] {
        let mut fixture = fixture(RequestPath::UcWrite, 1);
        let (client, worker) = (fixture.clients[0].party(), fixture.workers[0].port.party());
        fixture.network.partition(client, worker);
        let side = &mut fixture.clients[0].side;
        side.submit(&request(KEY, set(b"1")), 1).unwrap();
        let client = &mut fixture.clients[0];
        client.side.flush(&mut client.port, fixture.now);
        fixture.advance();
        fixture.network.heal(fixture.clients[0].party(), worker);
        fixture.clients[0]
            .side
            .submit(&request(KEY, op), 2)
            .unwrap();
        let mut answers = Vec::new();
        while answers.len() < 2 {
            fixture.step(&mut |_, token, outcome| {
                let Outcome::Answered(answer) = outcome else {
                    panic!("{outcome:?}");
                };
                answers.push((token, answer.status, answer.value.to_vec()));
            });
        }
        let read = if matches!(op, Op::Get(_)) {
            b"1".to_vec()
        } else {
            vec![]
        };
        let done = ReplyStatus::Done;
        assert_eq!(answers, [(1, done, vec![]), (2, done, read)]);
    }
}

/// Returns how many requests the worker finds at once when the client submits `ops`.
fn found_at_once(ops: &[(&[u8], Op<'_>)]) -> usize {
    let mut fixture = fixture(RequestPath::UcWrite, 1);
    let client = &mut fixture.clients[0];
    for (token, (key, op)) in (0..).zip(ops) {
        client.side.submit(&request(key, *op), token).unwrap();
    }
    client.side.flush(&mut client.port, fixture.now);
    (0..10).for_each(|_| fixture.advance());
    fixture.serve()
}

#[test]
fn requests_wait_only_for_mutations_of_their_key() {
    let keys: Vec<_> = (0..WINDOW).map(|n| format!("key {n}")).collect();
    let sets: Vec<_> = keys.iter().map(|key| (key.as_bytes(), set(b"v"))).collect();
    assert_eq!(found_at_once(&sets), WINDOW);
    assert_eq!(found_at_once(&[(KEY, get()); WINDOW]), WINDOW);
    let same = [(KEY, get()), (KEY, get()), (KEY, set(b"v")), (KEY, get())];
    assert_eq!(found_at_once(&same), 2);
}

/// A request that is held back leaves no gap before later requests, which would delay them.
#[test]
fn held_back_request_does_not_delay_others() {
    let mut ops = vec![(KEY, set(b"1")), (KEY, set(b"2"))];
    let keys: Vec<_> = (2..WINDOW).map(|n| format!("key {n}")).collect();
    ops.extend(keys.iter().map(|key| (key.as_bytes(), set(b"v"))));
    assert_eq!(found_at_once(&ops), WINDOW - 1);
}

/// Requests that stay held back while the slots are used again take none of them: the worker finds
/// the next request in the slot that it looks at.
#[test]
fn requests_held_back_for_long_leave_no_slot_unwritten() {
    let mut fixture = fixture(RequestPath::UcWrite, 1);
    let keys: Vec<_> = (3..WINDOW).map(|n| format!("key {n}")).collect();
    let held = [(KEY, set(b"1")), (KEY, set(b"2")), (KEY, set(b"3"))];
    let others = keys.iter().map(|key| (key.as_bytes(), set(b"v")));
    for (token, (key, op)) in (0..).zip(held.into_iter().chain(others)) {
        let side = &mut fixture.clients[0].side;
        side.submit(&request(key, op), token).unwrap();
    }
    for (found, answers) in [(WINDOW - 2, WINDOW - 2), (1, 1), (1, 1)] {
        let client = &mut fixture.clients[0];
        client.side.flush(&mut client.port, fixture.now);
        (0..10).for_each(|_| fixture.advance());
        assert_eq!(fixture.serve(), found);
        (0..10).for_each(|_| fixture.advance());
        let client = &mut fixture.clients[0];
        let polled = client
            .side
            .poll(&mut client.port, fixture.now, &mut |_, outcome| {
                assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
            });
        assert_eq!(polled, answers);
    }
    assert_eq!(fixture.workers[0].side.counters().out_of_order_requests, 0);
}

/// A request that was held back is sent by the poll that takes the answer it waited for.
#[test]
fn held_back_request_is_sent_by_the_poll_that_releases_it() {
    let mut fixture = fixture(RequestPath::UcWrite, 1);
    let long = [7; 300];
    for (token, value) in (0..).zip([&b"1"[..], &long, b"3"]) {
        let side = &mut fixture.clients[0].side;
        side.submit(&request(KEY, set(value)), token).unwrap();
    }
    let client = &mut fixture.clients[0];
    client.side.flush(&mut client.port, fixture.now);
    let mut answered = Vec::new();
    for _ in 0..3 {
        (0..10).for_each(|_| fixture.advance());
        assert_eq!(fixture.serve(), 1);
        (0..10).for_each(|_| fixture.advance());
        let client = &mut fixture.clients[0];
        client
            .side
            .poll(&mut client.port, fixture.now, &mut |token, outcome| {
                assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
                answered.push(token);
            });
    }
    assert_eq!(answered, [0, 1, 2]);
    assert_eq!(fixture.clients[0].side.counters().retries, 0);
}

/// A request that was never sent has changed nothing, and its slot is free at once.
#[test]
fn held_back_request_that_times_out_has_changed_nothing() {
    let mut fixture = fixture(RequestPath::UcWrite, 1);
    let (client, worker) = (fixture.clients[0].party(), fixture.workers[0].port.party());
    fixture.network.partition(client, worker);
    for token in 0..WINDOW as u64 {
        let side = &mut fixture.clients[0].side;
        side.submit(&request(KEY, set(b"v")), token).unwrap();
    }
    let mut outcomes = Vec::new();
    while outcomes.len() < WINDOW {
        fixture.step(&mut |_, token, outcome| {
            outcomes.push((token, matches!(outcome, Outcome::Timeout)));
        });
    }
    outcomes.sort_unstable();
    let expected = (0..WINDOW as u64).map(|token| (token, token > 0));
    assert!(outcomes.iter().copied().eq(expected), "{outcomes:?}");
    assert_eq!(fixture.clients[0].side.in_flight(), 1);
    // A request submitted now waits for the cancellation of the first, and for nothing else.
    fixture.clients[0]
        .side
        .submit(&request(KEY, set(b"last")), 99)
        .unwrap();
    fixture.network.heal(client, worker);
    let mut last = None;
    while last.is_none() {
        fixture.step(&mut |_, token, outcome| last = Some((token, told(&outcome, false))));
    }
    assert_eq!(last, Some((99, Told::Done)));
    assert_eq!(fixture.workers[0].side.counters().canceled, 1);
    assert_eq!(fixture.workers[0].exec.executed, 1);
}

#[test]
fn close_reports_held_back_requests_as_not_executed() {
    let mut fixture = fixture(RequestPath::UcWrite, 1);
    for token in 0..4 {
        let side = &mut fixture.clients[0].side;
        side.submit(&request(KEY, set(b"v")), token).unwrap();
    }
    let client = &mut fixture.clients[0];
    client.side.flush(&mut client.port, fixture.now);
    let mut outcomes = Vec::new();
    let Client { side, port, .. } = client;
    side.close(port, fixture.now, &mut |token, outcome| {
        outcomes.push((token, matches!(outcome, Outcome::Timeout)));
    });
    outcomes.sort_unstable();
    assert_eq!(outcomes, [(0, false), (1, true), (2, true), (3, true)]);
}

/// A SET times out behind a GET whose line is lost. The GET behind it goes at once; the SET behind that waits for
/// both GETs, of which either may be answered first.
#[test]
fn mutation_waits_for_all_reads_before_one_that_timed_out() {
    for healed in 0..60 {
        let mut fixture = fixture(RequestPath::UcWrite, healed);
        let (client, worker) = (fixture.clients[0].party(), fixture.workers[0].port.party());
        fixture.network.partition(client, worker);
        let (start, half) = (fixture.now, fixture.deadline / 2);
        let mut told = Vec::new();
        for (at, token, op) in [
            (Duration::ZERO, 0, get()),
            (Duration::ZERO, 1, set(b"1")),
            (half, 2, get()),
            (half, 3, set(b"3")),
        ] {
            while fixture.now - start < at {
                fixture.step(&mut |_, token, outcome| panic!("{token}: {outcome:?}"));
            }
            let side = &mut fixture.clients[0].side;
            side.submit(&request(KEY, op), token).unwrap();
        }
        while told.len() < 2 {
            fixture.step(&mut |_, token, outcome| {
                assert!(matches!(outcome, Outcome::Timeout), "{token}: {outcome:?}");
                told.push((token, None));
            });
        }
        for _ in 0..healed * 7 {
            fixture.step(&mut |_, token, outcome| panic!("{token}: {outcome:?}"));
        }
        fixture.network.heal(client, worker);
        while told.len() < 4 {
            fixture.step(&mut |_, token, outcome| match outcome {
                Outcome::Answered(answer) => told.push((token, Some(answer.status))),
                _ => panic!("{token}: {outcome:?}"),
            });
        }
        told.sort_unstable_by_key(|(token, _)| *token);
        let answers = [
            None,
            None,
            Some(ReplyStatus::NotFound),
            Some(ReplyStatus::Done),
        ];
        assert!((0..).zip(answers).eq(told), "healed after {}", healed * 7);
    }
}
