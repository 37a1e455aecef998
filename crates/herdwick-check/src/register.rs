//! The sequential model: one key of a store, as a single thread sees it.

/// The value of a key; `None` if it has none.
pub(crate) type Value = Option<u64>;

/// What an operation asked, and what was answered. An outcome of `None` in a mutation is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads the value.
    Get {
        /// The value; `None` for a miss.
        value: Option<u64>,
    },
    /// Stores a value. Values of different operations should differ, else a stale one passes for a
    /// later one.
    Put {
        /// The value.
        value: u64,
        /// Whether it was stored.
        done: Option<bool>,
    },
    /// Stores a value if there is none.
    Add {
        /// The value.
        value: u64,
        /// Whether it was stored.
        done: Option<bool>,
    },
    /// Removes the value.
    Delete {
        /// Whether there was one.
        done: Option<bool>,
    },
    /// Adds to the value, if there is one.
    Increment {
        /// What to add, wrapping at 2^64.
        by: u64,
        /// The sum; `Some(None)` for a miss.
        sum: Option<Option<u64>>,
    },
}

impl Action {
    /// Returns whether the outcome is unknown.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Get { .. } => false,
            Self::Put { done, .. } | Self::Add { done, .. } | Self::Delete { done } => {
                done.is_none()
            }
            Self::Increment { sum, .. } => sum.is_none(),
        }
    }

    /// Returns the same action with an unknown outcome; `None` for a read, which then proves nothing.
    pub(crate) fn unknown(self) -> Option<Self> {
        match self {
            Self::Get { .. } => None,
            Self::Put { value, .. } => Some(Self::Put { value, done: None }),
            Self::Add { value, .. } => Some(Self::Add { value, done: None }),
            Self::Delete { .. } => Some(Self::Delete { done: None }),
            Self::Increment { by, .. } => Some(Self::Increment { by, sum: None }),
        }
    }
}

/// Returns what an action makes of `value`, `None` if its answer contradicts it. An unknown outcome
/// contradicts nothing.
pub(crate) fn effect(action: Action, value: Value) -> Option<Value> {
    let agrees = |done: Option<bool>, is: bool| done.is_none_or(|done| done == is);
    match action {
        Action::Get { value: read } => (read == value).then_some(value),
        // A refused PUT has no effect whatever the value is.
        Action::Put { value: new, done } => match done {
            Some(false) => Some(value),
            Some(true) | None => Some(Some(new)),
        },
        Action::Add { value: new, done } => {
            agrees(done, value.is_none()).then_some(value.or(Some(new)))
        }
        Action::Delete { done } => agrees(done, value.is_some()).then_some(None),
        Action::Increment { by, sum } => {
            // A 64-bit counter wraps, as memcached's.
            let new = value.map(|value| value.wrapping_add(by));
            sum.is_none_or(|sum| sum == new).then_some(new)
        }
    }
}

/// The store that a history is compared with: one key, without a value at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    evicts: bool,
}

impl Register {
    /// A store that loses nothing.
    pub const KEEPS: Self = Self { evicts: false };
    /// A cache: a value may disappear at any time. It never comes back.
    pub const EVICTS: Self = Self { evicts: true };

    pub(crate) fn evicts(self) -> bool {
        self.evicts
    }
}
