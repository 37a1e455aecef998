//! One entry of a history.

use crate::register::Action;

/// One operation on the key of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who called; for messages only.
    pub client: usize,
    /// When the call began.
    pub called: u64,
    /// When the answer came. `None`: never, or the answer was that the outcome is unknown. The operation
    /// may then have taken effect at any time after the call, or not at all. A read without an
    /// answer is no operation: leave it out.
    pub answered: Option<u64>,
    /// What was asked and answered.
    pub action: Action,
}
