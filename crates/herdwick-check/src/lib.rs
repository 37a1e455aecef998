//! Histories of a key-value store, and whether they are linearizable (Herlihy and Wing, 1990); and what
//! tests and loads need besides: random numbers from a seed ([`Rng`]), random operations compared with a map
//! ([`MapLoad`]), another process ([`start_ignored`]), real time ([`Stopwatch`]), and how long a test runs
//! ([`length()`]).
//!
//! A test records each call on one key as an [`Operation`]: who called, when, when the answer came,
//! and what it was. [`check`] searches an order of these operations in which each takes effect at
//! one instant between its call and its answer, and each answer is that of a single [`Register`].
//! If there is none, [`Violation`] contains a short part of the history that has none.
//!
//! ```
//! use herdwick_check::{Action, Operation, Register, check};
//!
//! let at = |client, called, answered, action| Operation { client, called, answered, action };
//! let mut history = vec![
//!     at(0, 0, Some(2), Action::Put { value: 7, done: Some(true) }),
//!     at(1, 1, Some(3), Action::Get { value: None }),
//! ];
//! assert!(check(Register::KEEPS, &history).is_ok(), "they overlap: the GET may come first");
//!
//! history.push(at(1, 4, Some(5), Action::Get { value: None }));
//! assert!(check(Register::KEEPS, &history).is_err(), "the PUT was acknowledged before");
//! assert!(check(Register::EVICTS, &history).is_ok(), "a cache may evict it");
//! ```
//!
//! Times are any numbers that grow: the ticks of a virtual clock, or nanoseconds. An operation that
//! ends at the tick at which another begins overlaps it.
#![forbid(unsafe_code)]

mod length;
mod model;
mod operation;
mod process;
mod register;
mod rng;
mod search;
mod stopwatch;
mod violation;

pub use length::{count, length};
pub use model::{Map, MapAnswer, MapCall, MapClients, MapLoad};
pub use operation::Operation;
pub use process::{other_end, start_ignored};
pub use register::{Action, Register};
pub use rng::{Rng, mix};
pub use stopwatch::Stopwatch;
pub use violation::Violation;

/// Checks that the operations of one key are linearizable.
///
/// # Errors
/// [`Violation`] if there is no order of the operations that explains their answers.
///
/// # Panics
/// If an operation was answered before it was called, or has an outcome but no answer: both are
/// mistakes of the recorder.
pub fn check(register: Register, history: &[Operation]) -> Result<(), Violation> {
    for operation in history {
        if let Some(answered) = operation.answered {
            assert!(operation.called <= answered, "{operation:?}");
        } else {
            assert!(operation.action.is_unknown(), "{operation:?}");
        }
    }
    if search::is_linearizable(register, history) {
        Ok(())
    } else {
        Err(violation::shortest(register, history))
    }
}
