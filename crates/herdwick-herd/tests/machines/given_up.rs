//! Requests after their deadline: reported as unknown, never executed late, and their slots are
//! reclaimed.

use herdwick_herd::{
    Outcome, Refused, RequestPath,
    wire::{LINE_WORDS, ReplyStatus},
};
use herdwick_mem::Words;
use herdwick_request::{Arith, Get, Op};

use crate::{
    fixture::{Client, Fixture, request},
    model::Model,
};

const WINDOW: usize = 8;
/// One for each request, so that none waits for another.
const KEYS: [&[u8]; WINDOW] = [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7"];
const KEY: &[u8] = b"a counter";

fn fixture() -> Fixture<Model> {
    let mut fixture = Fixture::new(1, WINDOW, vec![Model::default()]);
    fixture.join(1);
    fixture
}

fn add_one() -> Op<'static> {
    Op::Arith(Arith {
        delta: 1,
        vivify: Some(0),
        initial: 1,
        ..Arith::default()
    })
}

/// Submits a window of requests, one read among them.
fn submit_window(fixture: &mut Fixture<Model>) {
    let client = &mut fixture.clients[0];
    for token in 0..WINDOW as u64 {
        let op = match token {
            3 => Op::Get(Get::default()),
            _ => add_one(),
        };
        let key = KEYS[token as usize];
        client.side.submit(&request(key, op), token).unwrap();
    }
    client.side.flush(&mut client.port, fixture.now);
}

fn cut(fixture: &Fixture<Model>) {
    let (client, worker) = (fixture.clients[0].party(), fixture.workers[0].port.party());
    fixture.network.partition(client, worker);
}

fn heal(fixture: &Fixture<Model>) {
    let (client, worker) = (fixture.clients[0].party(), fixture.workers[0].port.party());
    fixture.network.heal(client, worker);
}

/// Runs until every request has its outcome: unknown for mutations, a timeout for the read.
fn wait_for_deadlines(fixture: &mut Fixture<Model>) {
    let mut outcomes = [0; WINDOW];
    while outcomes != [1; WINDOW] {
        fixture.step(&mut |_, token, outcome| {
            outcomes[token as usize] += 1;
            match outcome {
                Outcome::Timeout => assert_eq!(token, 3),
                Outcome::Unknown => assert_ne!(token, 3),
                Outcome::Answered(_) => panic!("{outcome:?}"),
            }
        });
    }
    assert_eq!(fixture.clients[0].side.in_flight(), WINDOW);
}

fn wait_for_slots(fixture: &mut Fixture<Model>) {
    while fixture.clients[0].side.in_flight() > 0 {
        fixture.step(&mut |_, _, outcome| panic!("{outcome:?}"));
    }
    let counters = fixture.clients[0].side.counters();
    assert_eq!(counters.abandoned, WINDOW as u64);
    assert_eq!(counters.reclaimed, WINDOW as u64);
}

/// Checks that every slot accepts another request and is answered.
fn every_slot_serves(fixture: &mut Fixture<Model>) {
    for n in 1..=2 * WINDOW as u64 {
        fixture.call(0, KEY, add_one(), |outcome| match outcome {
            Outcome::Answered(answer) => {
                assert_eq!(answer.status, ReplyStatus::Done);
                assert_eq!(answer.number, Some(n));
            }
            _ => panic!("{outcome:?}"),
        });
    }
}

#[test]
fn timed_out_requests_that_never_arrived_are_not_executed() {
    let mut fixture = fixture();
    cut(&fixture);
    submit_window(&mut fixture);
    wait_for_deadlines(&mut fixture);
    heal(&fixture);
    wait_for_slots(&mut fixture);
    assert_eq!(fixture.workers[0].exec.executed, 0);
    assert_eq!(fixture.workers[0].side.counters().canceled, WINDOW as u64);
    every_slot_serves(&mut fixture);
}

#[test]
fn timed_out_requests_that_were_executed_execute_once() {
    let mut fixture = fixture();
    submit_window(&mut fixture);
    fixture.advance();
    cut(&fixture);
    fixture.serve();
    wait_for_deadlines(&mut fixture);
    heal(&fixture);
    wait_for_slots(&mut fixture);
    for (token, key) in KEYS.into_iter().enumerate() {
        let stored = (token != 3).then_some(1);
        assert_eq!(fixture.workers[0].exec.number(key), stored);
    }
    every_slot_serves(&mut fixture);
}

#[test]
fn line_delayed_past_its_cancel_is_not_executed() {
    let mut fixture = fixture();
    cut(&fixture);
    submit_window(&mut fixture);
    wait_for_deadlines(&mut fixture);
    heal(&fixture);
    wait_for_slots(&mut fixture);
    let lines = fixture.clients[0].leases[0].lines.clone();
    // The slot holds the cancellation: all words but the control word are those of the request.
    let mut late = lines.read_words::<LINE_WORDS>(0);
    let opcode = 0x19;
    late[LINE_WORDS - 1] = late[LINE_WORDS - 1] & !0xff | opcode;
    lines.write_words(0, &late);
    for _ in 0..100 {
        fixture.step(&mut |_, _, outcome| panic!("{outcome:?}"));
    }
    assert_eq!(fixture.workers[0].exec.executed, 0);
    assert_eq!(lines.load(LINE_WORDS - 1), late[LINE_WORDS - 1]);
    assert_eq!(fixture.clients[0].side.counters().stale_replies, 1);
    every_slot_serves(&mut fixture);
}

#[test]
fn silent_worker_ends_the_session_and_all_requests() {
    let mut fixture = fixture();
    cut(&fixture);
    submit_window(&mut fixture);
    wait_for_deadlines(&mut fixture);
    while !fixture.clients[0].side.is_broken() {
        fixture.step(&mut |_, _, outcome| panic!("{outcome:?}"));
    }
    let mut client = fixture.clients.remove(0);
    let Client { side, port, .. } = &mut client;
    side.close(port, fixture.now, &mut |_, outcome| panic!("{outcome:?}"));
}

#[test]
fn close_reports_the_outcome_of_every_request() {
    let mut fixture = fixture();
    submit_window(&mut fixture);
    let mut client = fixture.clients.remove(0);
    let mut outcomes = Vec::new();
    let Client { side, port, .. } = &mut client;
    side.close(port, fixture.now, &mut |token, outcome| {
        outcomes.push((token, matches!(outcome, Outcome::Unknown)));
    });
    let expected = (0..WINDOW as u64).map(|token| (token, token != 3));
    assert!(outcomes.into_iter().eq(expected));
    // Late replies free nothing.
    fixture.clients.push(client);
    for _ in 0..100 {
        fixture.step(&mut |_, _, outcome| panic!("{outcome:?}"));
    }
    let side = &mut fixture.clients[0].side;
    assert!(side.counters().stale_replies > 0);
    let refused = side.submit(&request(KEY, add_one()), 99);
    assert!(matches!(refused, Err(Refused::Full)), "{refused:?}");
}

/// The worker polls its memory only after the client has closed.
#[test]
fn unseen_request_is_not_executed_after_close() {
    for path in [RequestPath::UcWrite, RequestPath::RcWrite] {
        let mut fixture = Fixture::over(path, 1, WINDOW, vec![Model::default()]);
        fixture.join(1);
        submit_window(&mut fixture);
        (0..10).for_each(|_| fixture.advance());
        let Client { side, port, .. } = &mut fixture.clients[0];
        side.close(port, fixture.now, &mut |_, _| ());
        (0..10).for_each(|_| fixture.advance());
        assert_eq!(fixture.serve(), WINDOW);
        assert_eq!(fixture.workers[0].exec.executed, 0, "{path}");
        let counters = fixture.workers[0].side.counters();
        assert_eq!(counters.canceled, WINDOW as u64, "{path}");
    }
}

/// There are more requests than a client has spare RECVs for cancellations, so some cancellations
/// are not written before it closes.
#[test]
fn timed_out_request_is_not_executed_after_close() {
    const WINDOW: usize = 32;
    let mut fixture = Fixture::new(1, WINDOW, vec![Model::default()]);
    fixture.join(1);
    let client = &mut fixture.clients[0];
    for token in 0..WINDOW as u64 {
        let key = [b'a' + token as u8];
        client
            .side
            .submit(&request(&key, add_one()), token)
            .unwrap();
    }
    client.side.flush(&mut client.port, fixture.now);
    let mut given_up = 0;
    while given_up < WINDOW {
        fixture.advance();
        fixture.poll_clients(&mut |_, _, _| given_up += 1);
    }
    let Client { side, port, .. } = &mut fixture.clients[0];
    side.close(port, fixture.now, &mut |_, _| ());
    (0..10).for_each(|_| fixture.advance());
    assert_eq!(fixture.serve(), WINDOW);
    assert_eq!(fixture.workers[0].exec.executed, 0);
}
