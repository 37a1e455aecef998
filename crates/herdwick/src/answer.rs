//! Answers to requests, as a session passes them to its sink.

use crate::Cause;

/// Identifies a submitted request until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// Its number: a session numbers what it accepts in the order of submission, without gaps, and begins
    /// anywhere.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// How a request ended. Borrowed data is valid until the sink returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A `Get` found the item.
    Hit(Hit<'a>),
    /// No such item.
    Miss,
    /// Stored, deleted, touched.
    Done,
    /// The mode's condition failed.
    NotStored,
    /// The item's version has changed.
    Exists,
    /// The new number of `Incr` and `Decr`.
    Number(u64),
    /// One name and value of a command that lists; further answers to the same ticket follow.
    Line {
        /// The name.
        name: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// The server refused the request.
    Refused(Refusal<'a>),
    /// The session ended before an answer arrived.
    Lost(Lost),
}

/// A found item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// Changes with every change of the item: memcached's CAS unique.
    pub version: u64,
}

/// Why the server refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<'a> {
    /// The item exceeds the largest size that the server stores.
    TooLarge,
    /// The value is not a decimal number.
    NotNumeric,
    /// Another reason, in the server's words.
    Other(&'a [u8]),
}

/// A request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Why the session ended.
    pub cause: Cause,
    /// The request is a mutation and was sent whole: it may have been executed. Otherwise nothing
    /// was changed, and it may be submitted again.
    pub perhaps_done: bool,
}
