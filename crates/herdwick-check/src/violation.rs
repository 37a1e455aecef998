//! A short part of a history that is not linearizable.

use std::fmt;

use crate::{
    operation::Operation,
    register::{Action, Register},
    search::{is_linearizable, search},
};

/// Operations whose answers no order explains: a part of the history that was checked, as short as
/// it becomes without reads and later operations.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The operations, by the time of their call. An answer that is not needed for the violation is
    /// left out, as if it were unknown.
    pub operations: Vec<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no order of these operations explains their answers:")?;
        let mut unread = 0;
        for operation in &self.operations {
            if self.is_unread(operation.action) {
                unread += 1;
            } else {
                write_operation(f, operation)?;
            }
        }
        if unread > 0 {
            writeln!(
                f,
                "and {unread} of unknown outcome whose values were never read"
            )?;
        }
        Ok(())
    }
}

impl Violation {
    /// Returns whether an action is a PUT of unknown outcome whose value no operation read.
    fn is_unread(&self, action: Action) -> bool {
        let Action::Put { value, done: None } = action else {
            return false;
        };
        let reads = |one: &Operation| one.action == Action::Get { value: Some(value) };
        !self.operations.iter().any(reads)
    }
}

fn write_operation(f: &mut fmt::Formatter<'_>, operation: &Operation) -> fmt::Result {
    let Operation {
        client,
        called,
        answered,
        action,
    } = operation;
    match answered {
        Some(answered) => writeln!(f, "{called}..{answered} client {client}: {action:?}"),
        None => writeln!(f, "{called}.. client {client}: {action:?}"),
    }
}

impl std::error::Error for Violation {}

/// States that the search of one weaker history may reach. Of many unknown increments each subset is one.
const EFFORT: u64 = 2000;

/// Shortens a history that is not linearizable. Each step leaves a weaker one: what was answered
/// after some time becomes unknown, a read is left out, an answer becomes unknown. A write whose
/// answer is unknown stays, since it may explain a read. A weaker history that takes long to search is not
/// looked at.
pub(crate) fn shortest(register: Register, history: &[Operation]) -> Violation {
    let mut operations = first_wrong(register, history);
    operations.sort_by_key(|operation| operation.called);
    for index in (0..operations.len()).rev() {
        let mut weaker = operations.clone();
        weaken(&mut weaker, index);
        if search(register, &weaker, EFFORT) == Some(false) {
            operations = weaker;
        }
    }
    Violation { operations }
}

/// Returns the history up to the first answer that cannot be explained.
fn first_wrong(register: Register, history: &[Operation]) -> Vec<Operation> {
    let mut answers: Vec<u64> = history.iter().filter_map(|one| one.answered).collect();
    answers.sort_unstable();
    answers.dedup();
    let wrong = |end: u64| !is_linearizable(register, &until(history, end));
    // What is wrong stays wrong with later operations, so the first wrong end is found by halving.
    let first = answers.partition_point(|end| !wrong(*end));
    answers
        .get(first)
        .map_or_else(|| history.to_vec(), |end| until(history, *end))
}

/// Returns what was known of a history at a time.
fn until(history: &[Operation], end: u64) -> Vec<Operation> {
    let called = history.iter().filter(|operation| operation.called <= end);
    let known = called.filter_map(|operation| match operation.answered {
        Some(answered) if answered > end => Some(Operation {
            answered: None,
            action: operation.action.unknown()?,
            ..*operation
        }),
        _ => Some(*operation),
    });
    known.collect()
}

fn weaken(operations: &mut Vec<Operation>, index: usize) {
    let operation = operations[index];
    match operation.action.unknown() {
        None => {
            operations.remove(index);
        }
        Some(action) => {
            operations[index] = Operation {
                answered: None,
                action,
                ..operation
            };
        }
    }
}
