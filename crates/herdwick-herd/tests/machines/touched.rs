//! GAT changes what it reads: like any mutation it is executed once or not at all, and the client
//! learns which, or that the outcome is unknown.

use herdwick_herd::{
    Outcome,
    RequestPath::{self, UcWrite, UdSend},
    wire::ReplyStatus,
};
use herdwick_mica::{EXPTIME_PAST, Get, Op, Put};

use crate::{
    model::Model,
    rig::{Rig, request},
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

fn rig(path: RequestPath) -> Rig<Model> {
    let mut rig = Rig::over(path, 1, 8, vec![Model::default()]);
    rig.join(1);
    rig.join(2);
    rig
}

/// Makes client 0 touch `key`, and the worker execute that while no reply arrives.
fn touched_without_reply(rig: &mut Rig<Model>, key: &[u8], exptime: u32) {
    let client = &mut rig.clients[0];
    let touch = touch(exptime);
    client.side.submit(&request(key, touch), 7).unwrap();
    client.side.flush(&mut client.port, rig.now);
    (0..10).for_each(|_| rig.advance());
    let (client, worker) = (rig.clients[0].party(), rig.workers[0].port.party());
    rig.network.partition(client, worker);
    let executed = rig.workers[0].exec.executed;
    rig.serve();
    assert_eq!(rig.workers[0].exec.executed, executed + 1);
    (0..10).for_each(|_| rig.advance());
    rig.network.heal(client, worker);
}

/// Status, number and value of the answer to client 0.
fn answer(rig: &mut Rig<Model>) -> (ReplyStatus, Option<u64>, Vec<u8>) {
    let mut got = None;
    while got.is_none() {
        rig.step(&mut |client, token, outcome| {
            let Outcome::Answered(answer) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!((client, token), (0, 7));
            got = Some((answer.status, answer.number, answer.value.to_vec()));
        });
    }
    assert!(rig.clients[0].side.counters().retries > 0);
    got.unwrap()
}

/// A key whose request fits the line, and one whose request overflows.
fn keys() -> [Vec<u8>; 2] {
    [KEY.to_vec(), vec![b'k'; 200]]
}

#[test]
fn a_touch_that_removed_the_item_does_not_say_that_it_was_missing() {
    for (path, key) in [UcWrite, UdSend]
        .map(|path| keys().map(|key| (path, key)))
        .concat()
    {
        let mut rig = rig(path);
        let version = rig.call(1, &key, set(b"value"), |outcome| match outcome {
            Outcome::Answered(answer) => answer.number,
            _ => panic!("{outcome:?}"),
        });
        touched_without_reply(&mut rig, &key, EXPTIME_PAST);
        assert!(rig.workers[0].exec.items.is_empty());
        let told = answer(&mut rig);
        assert_eq!(
            told,
            (ReplyStatus::ReplyTooLarge, version, vec![]),
            "{path}"
        );
    }
}

#[test]
fn a_retried_touch_reads_again_what_is_still_there() {
    for (path, key) in [UcWrite, UdSend]
        .map(|path| keys().map(|key| (path, key)))
        .concat()
    {
        for value in [&b"value"[..], &[7; 600]] {
            let mut rig = rig(path);
            rig.call(1, &key, set(value), |_| ());
            touched_without_reply(&mut rig, &key, 100);
            assert_eq!(
                answer(&mut rig),
                (ReplyStatus::Done, Some(1), value.to_vec())
            );
        }
    }
}

#[test]
fn a_retried_touch_shows_nobody_elses_value() {
    for path in [UcWrite, UdSend] {
        let mut rig = rig(path);
        rig.call(1, KEY, set(b"value"), |_| ());
        touched_without_reply(&mut rig, KEY, 100);
        rig.workers[0].exec.overwrite(KEY);
        assert_eq!(
            answer(&mut rig),
            (ReplyStatus::ReplyTooLarge, Some(1), vec![])
        );
    }
}

#[test]
fn a_touch_that_missed_missed_for_good() {
    for path in [UcWrite, UdSend] {
        let mut rig = rig(path);
        touched_without_reply(&mut rig, KEY, EXPTIME_PAST);
        rig.workers[0].exec.overwrite(KEY);
        assert_eq!(answer(&mut rig), (ReplyStatus::NotFound, None, vec![]));
        assert!(
            rig.workers[0].exec.items.contains_key(KEY),
            "not touched again"
        );
    }
}

#[test]
fn a_touch_without_answer_may_have_been_carried_out() {
    let mut rig = rig(UcWrite);
    rig.call(1, KEY, set(b"value"), |_| ());
    touched_without_reply(&mut rig, KEY, EXPTIME_PAST);
    let (client, worker) = (rig.clients[0].party(), rig.workers[0].port.party());
    rig.network.partition(client, worker);
    let mut unknown = None;
    while unknown.is_none() {
        rig.step(&mut |_, _, outcome| unknown = Some(matches!(outcome, Outcome::Unknown)));
    }
    assert_eq!(unknown, Some(true));
    // Its cancellation is answered from memory, and frees the slot.
    rig.network.heal(client, worker);
    while rig.clients[0].side.in_flight() > 0 {
        rig.step(&mut |_, _, outcome| panic!("{outcome:?}"));
    }
    assert_eq!(rig.workers[0].side.counters().canceled, 0);
}
