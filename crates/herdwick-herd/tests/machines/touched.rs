//! GAT changes what it reads: like any mutation it is executed once or not at all, and the client
//! learns which, or that the outcome is unknown.

use herdwick_herd::{
    Outcome,
    RequestPath::{self, UcWrite, UdSend},
    wire::ReplyStatus,
};
use herdwick_request::{EXPTIME_PAST, Get, Op, Put};

use crate::{
    fixture::{Fixture, request},
    model::Model,
};

const KEY: &[u8] = b"key";

fn set(value: &[u8]) -> Op<'_> {
    Op::Put(Put {
        value,
        ..Put::default()
    })
}

fn touch(exptime: u32) -> Op<'static> {
    Op::Get(Get {
        touch: Some(exptime),
        ..Get::default()
    })
}

fn fixture(path: RequestPath) -> Fixture<Model> {
    let mut fixture = Fixture::over(path, 1, 8, vec![Model::default()]);
    fixture.join(1);
    fixture.join(2);
    fixture
}

/// Makes client 0 touch `key`, and the worker execute that while no reply arrives.
fn touched_without_reply(fixture: &mut Fixture<Model>, key: &[u8], exptime: u32) {
    let client = &mut fixture.clients[0];
    let touch = touch(exptime);
    client.side.submit(&request(key, touch), 7).unwrap();
    client.side.flush(&mut client.port, fixture.now);
    (0..10).for_each(|_| fixture.advance());
    let (client, worker) = (fixture.clients[0].party(), fixture.workers[0].port.party());
    fixture.network.partition(client, worker);
    let executed = fixture.workers[0].exec.executed;
    fixture.serve();
    assert_eq!(fixture.workers[0].exec.executed, executed + 1);
    (0..10).for_each(|_| fixture.advance());
    fixture.network.heal(client, worker);
}

/// Status, number and value of the answer to client 0.
fn answer(fixture: &mut Fixture<Model>) -> (ReplyStatus, Option<u64>, Vec<u8>) {
    let mut got = None;
    while got.is_none() {
        fixture.step(&mut |client, token, outcome| {
            let Outcome::Answered(answer) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!((client, token), (0, 7));
            got = Some((answer.status, answer.number, answer.value.to_vec()));
        });
    }
    assert!(fixture.clients[0].side.counters().retries > 0);
    got.unwrap()
}

/// A key whose request fits the line, and one whose request overflows.
fn keys() -> [Vec<u8>; 2] {
    [KEY.to_vec(), vec![b'k'; 200]]
}

#[test]
fn touch_that_removes_the_item_is_not_reported_as_a_miss() {
    for (path, key) in [UcWrite, UdSend]
        .map(|path| keys().map(|key| (path, key)))
        .concat()
    {
        let mut fixture = fixture(path);
        let version = fixture.call(1, &key, set(b"value"), |outcome| match outcome {
            Outcome::Answered(answer) => answer.number,
            _ => panic!("{outcome:?}"),
        });
        touched_without_reply(&mut fixture, &key, EXPTIME_PAST);
        assert!(fixture.workers[0].exec.items.is_empty());
        let told = answer(&mut fixture);
        assert_eq!(
            told,
            (ReplyStatus::ReplyTooLarge, version, vec![]),
            "{path}"
        );
    }
}

#[test]
fn retried_touch_reads_the_unchanged_item_again() {
    for (path, key) in [UcWrite, UdSend]
        .map(|path| keys().map(|key| (path, key)))
        .concat()
    {
        for value in [&b"value"[..], &[7; 600]] {
            let mut fixture = fixture(path);
            fixture.call(1, &key, set(value), |_| ());
            touched_without_reply(&mut fixture, &key, 100);
            assert_eq!(
                answer(&mut fixture),
                (ReplyStatus::Done, Some(1), value.to_vec())
            );
        }
    }
}

#[test]
fn retried_touch_does_not_return_another_value() {
    for path in [UcWrite, UdSend] {
        let mut fixture = fixture(path);
        fixture.call(1, KEY, set(b"value"), |_| ());
        touched_without_reply(&mut fixture, KEY, 100);
        fixture.workers[0].exec.overwrite(KEY);
        assert_eq!(
            answer(&mut fixture),
            (ReplyStatus::ReplyTooLarge, Some(1), vec![])
        );
    }
}

#[test]
fn retried_touch_that_missed_still_misses() {
    for path in [UcWrite, UdSend] {
        let mut fixture = fixture(path);
        touched_without_reply(&mut fixture, KEY, EXPTIME_PAST);
        fixture.workers[0].exec.overwrite(KEY);
        assert_eq!(answer(&mut fixture), (ReplyStatus::NotFound, None, vec![]));
        assert!(
            fixture.workers[0].exec.items.contains_key(KEY),
            "not touched again"
        );
    }
}

#[test]
fn touch_without_answer_has_unknown_outcome() {
    let mut fixture = fixture(UcWrite);
    fixture.call(1, KEY, set(b"value"), |_| ());
    touched_without_reply(&mut fixture, KEY, EXPTIME_PAST);
    let (client, worker) = (fixture.clients[0].party(), fixture.workers[0].port.party());
    fixture.network.partition(client, worker);
    let mut unknown = None;
    while unknown.is_none() {
        fixture.step(&mut |_, _, outcome| unknown = Some(matches!(outcome, Outcome::Unknown)));
    }
    assert_eq!(unknown, Some(true));
    // Its cancellation is answered from memory, and frees the slot.
    fixture.network.heal(client, worker);
    while fixture.clients[0].side.in_flight() > 0 {
        fixture.step(&mut |_, _, outcome| panic!("{outcome:?}"));
    }
    assert_eq!(fixture.workers[0].side.counters().canceled, 0);
}
