//! Round trips of every operation, on several workers, over every path and with values of every
//! size.

use herdwick_herd::{Outcome, RECV_BYTES_MIN, RequestPath, wire::ReplyStatus};
use herdwick_request::{Arith, Delete, Get, Mode, Op, Put};

use crate::{fixture::Fixture, model::Model};

fn fixture(path: RequestPath) -> Fixture<Model> {
    let mut fixture = Fixture::over(path, 1, 8, vec![Model::default(); 3]);
    fixture.join(1);
    fixture
}

/// Status, number, flags and value of an answer.
type Seen = (ReplyStatus, Option<u64>, u32, Vec<u8>);

fn seen(outcome: Outcome<'_>) -> Seen {
    let Outcome::Answered(answer) = outcome else {
        panic!("{outcome:?}");
    };
    let flags = answer.flags();
    (answer.status, answer.number, flags, answer.value.to_vec())
}

fn put<'a>(mode: Mode, value: &'a [u8]) -> Op<'a> {
    Op::Put(Put {
        mode,
        value,
        flags: 5,
        ..Put::default()
    })
}

fn get() -> Op<'static> {
    Op::Get(Get::default())
}

#[test]
fn every_operation_matches_the_model() {
    for path in RequestPath::ALL {
        every_operation(&mut fixture(path));
    }
}

fn every_operation(fixture: &mut Fixture<Model>) {
    use ReplyStatus::{Done, Exists, NonNumeric, NotFound, NotStored};
    let mut call = |op| fixture.call(0, b"a key of 16 bytes", op, seen);
    let incr = |delta, vivify| {
        Op::Arith(Arith {
            delta,
            vivify,
            initial: 40,
            ..Arith::default()
        })
    };
    let touch = Op::Get(Get {
        touch: Some(60),
        ..Get::default()
    });
    let cas = Op::Put(Put {
        value: b"v",
        compare: Some(77),
        ..Put::default()
    });
    let delete = |compare| {
        Op::Delete(Delete {
            compare,
            ..Delete::default()
        })
    };
    let none = Vec::new;
    assert_eq!(call(get()), (NotFound, None, 0, none()));
    assert_eq!(call(put(Mode::Replace, b"x")), (NotStored, None, 0, none()));
    assert_eq!(call(put(Mode::Set, b"value")), (Done, Some(1), 5, none()));
    assert_eq!(call(put(Mode::Add, b"x")), (NotStored, None, 0, none()));
    assert_eq!(call(get()), (Done, Some(1), 5, b"value".to_vec()));
    assert_eq!(call(put(Mode::Append, b"+")), (Done, Some(2), 5, none()));
    assert_eq!(call(put(Mode::Prepend, b"-")), (Done, Some(3), 5, none()));
    assert_eq!(call(touch), (Done, Some(3), 5, b"-value+".to_vec()));
    assert_eq!(call(cas), (Exists, Some(3), 5, none()));
    assert_eq!(call(incr(2, None)), (NonNumeric, None, 0, none()));
    assert_eq!(call(delete(Some(9))), (Exists, Some(3), 5, none()));
    assert_eq!(call(delete(Some(3))), (Done, None, 0, none()));
    assert_eq!(call(delete(None)), (NotFound, None, 0, none()));
    assert_eq!(call(incr(2, None)), (NotFound, None, 0, none()));
    assert_eq!(call(incr(2, Some(0))), (Done, Some(40), 0, none()));
    assert_eq!(call(incr(2, Some(0))), (Done, Some(42), 0, none()));
}

#[test]
fn values_of_every_size_are_returned_whole() {
    for path in RequestPath::ALL {
        every_size(&mut fixture(path));
    }
}

fn every_size(fixture: &mut Fixture<Model>) {
    for len in (0..770).chain([1000, 1007, 1008]) {
        let key = format!("key {len}");
        let value: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        let stored = fixture.call(0, key.as_bytes(), put(Mode::Set, &value), seen);
        assert_eq!(stored.0, ReplyStatus::Done, "{len}");
        let found = fixture.call(0, key.as_bytes(), get(), seen);
        assert_eq!((found.0, found.3), (ReplyStatus::Done, value), "{len}");
    }
}

#[test]
fn reply_larger_than_the_recv_is_replaced_by_reply_too_large() {
    let mut fixture = fixture(RequestPath::UcWrite);
    let half = [b'h'; 700];
    fixture.call(0, b"k", put(Mode::Set, &half), seen);
    fixture.call(0, b"k", put(Mode::Append, &half), seen);
    let (status, version, flags, len) = fixture.call(0, b"k", get(), |outcome| match outcome {
        Outcome::Answered(answer) => {
            assert_eq!(answer.value, b"");
            (
                answer.status,
                answer.number,
                answer.flags(),
                answer.value_len,
            )
        }
        _ => panic!("{outcome:?}"),
    });
    assert_eq!(status, ReplyStatus::ReplyTooLarge);
    assert_eq!((version, flags, len), (Some(2), 5, 1400));
}

/// What `docs/wire.md` says of a claim for less than 56 bytes.
#[test]
fn reply_bytes_max_below_56_is_treated_as_56() {
    assert_eq!(RECV_BYTES_MIN, 56);
    let mut fixture = Fixture::new(1, 8, vec![Model::default()]);
    fixture.join(1);
    let worker = &mut fixture.workers[0];
    let mut chunk = worker.side.detach(fixture.clients[0].leases[0].id).unwrap();
    chunk.reply_bytes_max = 0;
    worker.side.attach(&mut worker.port, chunk).unwrap();
    for (len, status) in [(40, ReplyStatus::Done), (41, ReplyStatus::ReplyTooLarge)] {
        let value = vec![b'v'; len];
        let stored = fixture.call(0, b"key", put(Mode::Set, &value), seen);
        assert_eq!(stored.0, ReplyStatus::Done);
        assert_eq!(
            fixture.call(0, b"key", get(), seen).0,
            status,
            "{len} bytes"
        );
    }
}
