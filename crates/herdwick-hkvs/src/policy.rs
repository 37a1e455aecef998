//! The policies by their names.

use std::{fmt, str::FromStr};

use crate::{
    combined::Combined,
    popularity::{Limits, Popularity},
    sampled::Sampled,
    window::Window,
};

/// The policies of this crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The paper's: a key is admitted that was read often enough within the window, and the one that was not
    /// read for longest is evicted.
    #[default]
    Combined,
    /// Every key is admitted that is read, and the one that was not read for longest is evicted.
    Lru,
    /// A key that was read often enough within the window is admitted in the place of one that was read less.
    Frequency,
    /// A key that was read often enough within the window is admitted in the place of a larger item.
    Small,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Combined, Self::Lru, Self::Frequency, Self::Small];

    /// Returns the name, as in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Lru => "lru",
            Self::Frequency => "frequency",
            Self::Small => "small",
        }
    }

    /// Makes a policy of these sizes.
    #[must_use]
    pub fn build(self, limits: Limits) -> Box<dyn Popularity> {
        match self {
            Self::Combined => Box::new(Combined::new(limits)),
            Self::Lru => Box::new(Combined::lru(limits)),
            Self::Frequency => Box::new(Sampled::by_frequency(limits)),
            Self::Small => Box::new(Sampled::by_size(limits)),
        }
    }

    /// Returns the bytes of memory that a policy of these sizes has.
    #[must_use]
    pub fn bytes(self, limits: Limits) -> usize {
        let window = Window::bytes(limits.window);
        match self {
            Self::Combined => window + Combined::set_bytes(limits),
            Self::Lru => Combined::set_bytes(limits),
            Self::Frequency | Self::Small => window + Sampled::set_bytes(limits),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is none of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy `{0}`; there are combined, lru, frequency and small")]
pub struct NoPolicy(String);

impl FromStr for Policy {
    type Err = NoPolicy;

    fn from_str(name: &str) -> Result<Self, NoPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| NoPolicy(name.to_owned()))
    }
}
