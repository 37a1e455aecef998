//! Histories that are known to be right or wrong, and the search compared with one that tries every
//! order.

use herdwick_check::{Action, Operation, Register, check};
use proptest::prelude::*;

fn at(client: usize, called: u64, answered: u64, action: Action) -> Operation {
    Operation {
        client,
        called,
        answered: Some(answered),
        action,
    }
}

fn unanswered(client: usize, called: u64, action: Action) -> Operation {
    Operation {
        client,
        called,
        answered: None,
        action,
    }
}

fn get(value: impl Into<Option<u64>>) -> Action {
    Action::Get {
        value: value.into(),
    }
}

fn put(value: u64) -> Action {
    Action::Put {
        value,
        done: Some(true),
    }
}

fn increment(by: u64, sum: impl Into<Option<u64>>) -> Action {
    Action::Increment {
        by,
        sum: Some(sum.into()),
    }
}

const DELETED: Action = Action::Delete { done: Some(true) };

fn keeps(history: &[Operation]) -> bool {
    check(Register::KEEPS, history).is_ok()
}

fn evicts(history: &[Operation]) -> bool {
    check(Register::EVICTS, history).is_ok()
}

#[test]
fn stale_read_after_an_acknowledged_put_is_wrong() {
    let stale = [
        at(0, 0, 1, put(1)),
        at(0, 2, 3, put(2)),
        at(1, 4, 5, get(1)),
    ];
    assert!(!keeps(&stale) && !evicts(&stale));
    let overlapping = [stale[0], at(0, 2, 4, put(2)), stale[2]];
    assert!(keeps(&overlapping));
}

#[test]
fn value_that_two_readers_see_in_different_orders_is_wrong() {
    let puts = [at(0, 0, 9, put(1)), at(1, 0, 9, put(2))];
    let read = |client, first, second| {
        [
            at(client, 10, 11, get(first)),
            at(client, 12, 13, get(second)),
        ]
    };
    assert!(keeps(&[&puts[..], &read(2, 1, 1), &read(3, 1, 1)].concat()));
    assert!(!keeps(
        &[&puts[..], &read(2, 1, 1), &read(3, 2, 2)].concat()
    ));
    assert!(!keeps(&[&puts[..], &read(2, 1, 2)].concat()));
}

#[test]
fn increment_that_counts_twice_is_wrong() {
    let once = [
        at(0, 0, 1, put(10)),
        at(1, 2, 3, increment(1, 11)),
        at(2, 4, 5, get(11)),
    ];
    assert!(keeps(&once));
    let twice = [once[0], once[1], at(2, 4, 5, get(12))];
    assert!(!keeps(&twice));
    // One whose answer was lost may count, once.
    let lost = unanswered(3, 0, Action::Increment { by: 1, sum: None });
    assert!(keeps(&[twice[0], twice[1], lost, twice[2]]));
    assert!(!keeps(&[once[0], once[1], lost, at(2, 4, 5, get(13))]));
}

#[test]
fn unknown_outcome_takes_effect_once_and_not_before_its_call() {
    let lost = unanswered(
        0,
        5,
        Action::Put {
            value: 2,
            done: None,
        },
    );
    let first = at(1, 0, 1, put(1));
    assert!(keeps(&[first, lost, at(1, 6, 7, get(1))]));
    assert!(keeps(&[
        first,
        lost,
        at(1, 6, 7, get(1)),
        at(1, 8, 9, get(2))
    ]));
    assert!(!keeps(&[first, lost, at(1, 2, 3, get(2))]));
    let back = [
        first,
        lost,
        at(1, 6, 7, get(2)),
        at(1, 8, 9, put(3)),
        at(1, 10, 11, get(2)),
    ];
    assert!(!keeps(&back), "the value was overwritten, and came back");
}

#[test]
fn evicted_value_never_comes_back() {
    let history = [
        at(0, 0, 1, put(1)),
        at(1, 2, 3, get(None)),
        at(1, 4, 5, get(1)),
    ];
    assert!(evicts(&history[..2]) && !keeps(&history[..2]));
    assert!(!evicts(&history));
}

#[test]
fn deleted_and_refused_operations_are_explained() {
    let add = |value, done| Action::Add {
        value,
        done: Some(done),
    };
    let history = [
        at(0, 0, 1, add(1, true)),
        at(0, 2, 3, add(2, false)),
        at(0, 4, 5, DELETED),
        at(0, 6, 7, Action::Delete { done: Some(false) }),
        at(0, 8, 9, increment(1, None)),
    ];
    assert!(keeps(&history));
    assert!(!keeps(&[history[0], at(0, 2, 3, add(2, true))]));
    assert!(!evicts(&[history[0], history[2], history[2]]));
}

#[test]
fn violation_is_short() {
    let mut history: Vec<_> = (0..100)
        .flat_map(|round| {
            let start = round * 10;
            [
                at(0, start, start + 1, put(round)),
                at(1, start + 2, start + 3, get(round)),
            ]
        })
        .collect();
    history[101] = at(1, 502, 503, get(49));
    let violation = check(Register::KEEPS, &history).unwrap_err();
    let answered = violation
        .operations
        .iter()
        .filter(|one| one.answered.is_some());
    let answered: Vec<_> = answered.copied().collect();
    // The read, the PUT that it shows, and the one that came between.
    assert_eq!(answered, [history[98], history[100], history[101]]);
    let text = violation.to_string();
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.contains("502..503 client 1: Get { value: Some(49) }"));
    assert!(text.contains("and 49 of unknown outcome whose values were never read"));
}

/// Whether some order of all operations explains their answers: tries each, and in a cache an
/// eviction before each operation.
fn some_order(evicts: bool, left: &[Operation], value: Option<u64>) -> bool {
    if left.iter().all(|one| one.answered.is_none()) {
        return true;
    }
    if evicts && value.is_some() && some_order(evicts, left, None) {
        return true;
    }
    (0..left.len()).any(|index| {
        let one = left[index];
        let late = |other: &Operation| other.answered.is_some_and(|end| end < one.called);
        if left.iter().any(late) {
            return false;
        }
        let mut rest = left.to_vec();
        rest.remove(index);
        let after = apply(one.action, value);
        after.is_some_and(|after| some_order(evicts, &rest, after))
    })
}

/// The value after an action, `None` if its answer is another. One that is never answered has its
/// effect when its turn comes; that it has none is to leave it to the end.
fn apply(action: Action, value: Option<u64>) -> Option<Option<u64>> {
    let (after, agrees) = match action {
        Action::Get { value: read } => (value, read == value),
        Action::Put { value: new, done } => match done {
            Some(false) => (value, true),
            _ => (Some(new), true),
        },
        Action::Add { value: new, done } => match value {
            Some(_) => (value, done != Some(true)),
            None => (Some(new), done != Some(false)),
        },
        Action::Delete { done } => (None, done.is_none_or(|done| done == value.is_some())),
        Action::Increment { by, sum } => {
            let new = value.map(|value| value + by);
            (new, sum.is_none_or(|sum| sum == new))
        }
    };
    agrees.then_some(after)
}

fn action() -> impl Strategy<Value = Action> {
    let value = 1..4_u64;
    let done = any::<bool>();
    prop_oneof![
        4 => proptest::option::of(1..6_u64).prop_map(|value| Action::Get { value }),
        3 => value.clone().prop_map(put),
        1 => (value, done).prop_map(|(value, done)| Action::Add { value, done: Some(done) }),
        1 => done.prop_map(|done| Action::Delete { done: Some(done) }),
        1 => proptest::option::of(2..6_u64).prop_map(|sum| increment(1, sum)),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    (0..3_usize, 0..12_u64, 0..6_u64, action(), 0..5_u8).prop_map(
        |(client, called, took, action, lost)| match (lost, action) {
            (0, Action::Put { value, .. }) => {
                unanswered(client, called, Action::Put { value, done: None })
            }
            (0, Action::Delete { .. }) => unanswered(client, called, Action::Delete { done: None }),
            (0, Action::Increment { by, .. }) => {
                unanswered(client, called, Action::Increment { by, sum: None })
            }
            _ => at(client, called, called + took, action),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn search_agrees_with_all_orders(history in proptest::collection::vec(operation(), 1..7)) {
        prop_assert_eq!(keeps(&history), some_order(false, &history, None));
        prop_assert_eq!(evicts(&history), some_order(true, &history, None));
    }

    #[test]
    fn violations_are_wrong_in_themselves(history in proptest::collection::vec(operation(), 1..9)) {
        if let Err(violation) = check(Register::KEEPS, &history) {
            prop_assert!(!some_order(false, &violation.operations, None), "{}", violation);
        }
    }
}
