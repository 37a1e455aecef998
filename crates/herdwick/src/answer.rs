use crate::Cause;

/// Names a submitted request until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// How a request ended. What is borrowed lives until the sink returns.
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
    /// The version is another by now.
    Exists,
    /// The new number of `Incr` and `Decr`.
    Number(u64),
    /// One name and value of a command that lists; more answers to the same ticket follow.
    Line {
        /// The name.
        name: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// The server said no.
    Refused(Refusal<'a>),
    /// The session ended before an answer.
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

/// Why the server said no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<'a> {
    /// The item would exceed the largest it stores.
    TooLarge,
    /// The value is no decimal number.
    NotNumeric,
    /// Something else, in its words.
    Other(&'a [u8]),
}

/// A request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Why the session ended.
    pub cause: Cause,
    /// The request changes something and was handed over whole: it may have been carried out.
    /// Otherwise nothing has changed, and it may be submitted again.
    pub perhaps_done: bool,
}
