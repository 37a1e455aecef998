//! What an examination of a host finds: checks, each with its reason and with what helps.

use std::collections::BTreeMap;

/// The outcome of a check. A worse one compares greater.
// The order of the variants is that of their severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It works.
    Works,
    /// It does not work, but the user can change that.
    WouldWorkIf,
    /// It cannot work on this host.
    Cannot,
}

/// A value that a check found, for scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The host does not report it, or there is no limit.
    Absent,
    /// Whether something holds.
    Flag(bool),
    /// A number, of bytes if its name contains `bytes`.
    Number(u64),
    /// A name.
    Text(String),
    /// Names.
    List(Vec<String>),
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The outcome.
    pub status: Status,
    /// What was found; if it does not work, why.
    pub reason: String,
    /// The command or the change that helps.
    pub advice: Option<String>,
    /// Further values found, by name.
    pub values: BTreeMap<&'static str, Fact>,
}

/// Checks by name.
// A map, so that reports list the checks in one order.
pub type Checks = BTreeMap<&'static str, Check>;

impl Check {
    /// It works, as `reason` describes.
    pub fn works(reason: impl Into<String>) -> Self {
        Self::new(Status::Works, reason.into(), None)
    }

    /// It does not work for `reason`, and would after `advice`, a command.
    pub fn would_work_if(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Status::WouldWorkIf, reason.into(), Some(advice.into()))
    }

    /// It cannot work, for `reason`.
    pub fn cannot(reason: impl Into<String>) -> Self {
        Self::new(Status::Cannot, reason.into(), None)
    }

    /// Makes a check without values.
    #[must_use]
    pub const fn new(status: Status, reason: String, advice: Option<String>) -> Self {
        Self {
            status,
            reason,
            advice,
            values: BTreeMap::new(),
        }
    }

    /// Adds a value.
    #[must_use]
    pub fn fact(mut self, name: &'static str, value: impl Into<Fact>) -> Self {
        self.values.insert(name, value.into());
        self
    }
}

impl From<bool> for Fact {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u64> for Fact {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Fact {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<&str> for Fact {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Fact {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<String>> for Fact {
    fn from(list: Vec<String>) -> Self {
        Self::List(list)
    }
}

impl<T: Into<Self>> From<Option<T>> for Fact {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Into::into)
    }
}
