//! The commands of classic text and the types that the protocols share; all borrow from the input.

use memchr::memchr;

use crate::{binary::Packet, meta::Meta};

/// One command, borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get(Get),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, with their data.
    Put(Put<'a>),
    /// A storage command with data beyond the maximum item size. The data is not here: the decoder
    /// returns how many bytes of the stream to drop.
    Oversized(Oversized<'a>),
    /// `incr`, `decr`.
    Arith(Arith<'a>),
    /// `touch`.
    Touch(Touch<'a>),
    /// `delete`.
    Delete(Delete<'a>),
    /// `mg`, `ms`, `md`, `ma`, `me`.
    Meta(Meta<'a>),
    /// `mn`: the end of a pipeline.
    MetaNoop,
    /// A packet of the binary protocol.
    Packet(Packet<'a>),
    /// `flush_all`.
    FlushAll(FlushAll),
    /// `stats`, with the rest of its line.
    Stats(Keys<'a>),
    /// `version`.
    Version,
    /// `verbosity`.
    Verbosity {
        /// The requested level.
        level: u32,
        /// Suppress the reply.
        noreply: bool,
    },
    /// `shutdown`, or `shutdown graceful`; not `known` with any other word.
    Shutdown {
        /// The argument is valid.
        known: bool,
        /// Suppress the reply, if it is refused.
        noreply: bool,
    },
    /// `cache_memlimit`.
    MemoryLimit {
        /// The requested limit.
        megabytes: u32,
        /// Suppress the reply.
        noreply: bool,
    },
    /// `quit`.
    Quit,
    /// Any other line, in full. The reply is `ERROR`, unless the line [ends with
    /// `noreply`](crate::is_noreply).
    Unknown(&'a [u8]),
    /// A line that is answered with an error.
    Refused(Refused),
}

/// `get KEY+`, `gets KEY+`, `gat EXPTIME KEY+`, `gats EXPTIME KEY+`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// Where the keys are: at least one, each of 1 to 250 bytes.
    pub keys: Extent,
    /// Return the CAS unique.
    pub with_cas: bool,
    /// New exptime.
    pub touch: Option<u32>,
}

/// A run of bytes of the input that a command was decoded from, counted from the command's first
/// byte. It borrows nothing, so it can be kept while the input moves. A line is shorter than 2^32
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    at: u32,
    end: u32,
}

impl Extent {
    /// Returns the bytes of `line` from `at` on.
    pub(crate) fn behind(line: &[u8], at: usize) -> Self {
        Self {
            at: at as u32,
            end: line.len() as u32,
        }
    }

    /// Returns the bytes, of the input from the command's first byte on; none if it ends before
    /// them.
    #[inline]
    #[must_use]
    pub fn of(self, input: &[u8]) -> &[u8] {
        input
            .get(self.at as usize..self.end as usize)
            .unwrap_or_default()
    }

    /// Returns the last `count` bytes of it, or all if it has fewer.
    #[inline]
    #[must_use]
    pub fn last(self, count: usize) -> Self {
        let count = (count as u32).min(self.end - self.at);
        Self {
            at: self.end - count,
            end: self.end,
        }
    }
}

/// An iterator over the words of a line, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'a> {
    rest: &'a [u8],
}

impl<'a> Keys<'a> {
    /// Returns an iterator over the words of `line`.
    #[must_use]
    pub fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    /// Returns the unread rest. Its length is enough to resume later.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns whether no word is left. It reads spaces only, no word.
    #[inline]
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rest.iter().all(|&byte| byte == b' ')
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let end = memchr(b' ', self.rest).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest.get(1..).unwrap_or_default();
            if !word.is_empty() {
                return Some(word);
            }
            if self.rest.is_empty() {
                return None;
            }
        }
    }
}

/// How a [`Put`] treats the present item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `set`
    Set,
    /// `add`
    Add,
    /// `replace`
    Replace,
    /// `append`
    Append,
    /// `prepend`
    Prepend,
    /// `cas`, with the CAS unique to compare.
    Cas(u64),
}

/// How storage commands of the meta and binary protocols treat the present item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Store unconditionally.
    Set,
    /// Only if absent.
    Add,
    /// Only if present.
    Replace,
    /// Append to the present value.
    Append,
    /// Prepend to the present value.
    Prepend,
}

/// `VERB KEY FLAGS EXPTIME BYTES [CAS] [noreply]` and a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// How to store.
    pub verb: Verb,
    /// The key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// memcached exptime.
    pub exptime: u32,
    /// The data block, without its line end.
    pub value: &'a [u8],
    /// Suppress the reply.
    pub noreply: bool,
}

/// A [`Put`] with more data than the server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversized<'a> {
    /// The command; only `set` removes the old value on failure.
    pub verb: Verb,
    /// The key.
    pub key: &'a [u8],
    /// Suppress the reply.
    pub noreply: bool,
}

/// `incr KEY DELTA [noreply]`, `decr KEY DELTA [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arith<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Subtract.
    pub decrement: bool,
    /// The number to add or subtract.
    pub delta: u64,
    /// Suppress the reply.
    pub noreply: bool,
}

/// `touch KEY EXPTIME [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch<'a> {
    /// The key.
    pub key: &'a [u8],
    /// memcached exptime.
    pub exptime: u32,
    /// Suppress the reply.
    pub noreply: bool,
}

/// `delete KEY [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Suppress the reply.
    pub noreply: bool,
}

/// `flush_all [DELAY] [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushAll {
    /// Delay of the flush as an exptime; 0 is now.
    pub delay: u32,
    /// Suppress the reply.
    pub noreply: bool,
}

/// A refusal, and whether it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// Suppress the reply.
    pub noreply: bool,
}

/// Why a line was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A memory limit that is not a number.
    Limit,
    /// Too few arguments, a key that is too long, or an invalid number.
    Format,
    /// A data block without a line end at its length.
    DataChunk,
    /// An exptime that is not a number.
    Exptime,
    /// A delta that is not a number.
    Delta,
    /// More words than a meta command may have.
    FlagsTooLong,
    /// A flag given twice.
    FlagDuplicate,
    /// No such flag.
    FlagInvalid,
    /// Any error in the key or the flags of `ma`.
    FlagInvalidOrDuplicate,
    /// An invalid number in a flag.
    Token,
    /// A key that is not valid base64.
    KeyEncoding,
    /// An invalid mode of `ms`.
    SetMode,
    /// An invalid mode of `ma`.
    ArithMode,
    /// A delta in a flag that is not a number.
    DeltaValue,
    /// An initial value that is not a number.
    InitialValue,
    /// An opaque that is too long.
    Opaque,
}

impl Refusal {
    /// Returns memcached's line for the refusal, line end included.
    #[must_use]
    pub fn line(self) -> &'static [u8] {
        match self {
            Self::Limit => b"ERROR\r\n",
            Self::Format => b"CLIENT_ERROR bad command line format\r\n",
            Self::DataChunk => b"CLIENT_ERROR bad data chunk\r\n",
            Self::Exptime => b"CLIENT_ERROR invalid exptime argument\r\n",
            Self::Delta => b"CLIENT_ERROR invalid numeric delta argument\r\n",
            Self::FlagsTooLong => b"CLIENT_ERROR options flags are too long\r\n",
            Self::FlagDuplicate => b"CLIENT_ERROR duplicate flag\r\n",
            Self::FlagInvalid => b"CLIENT_ERROR invalid flag\r\n",
            Self::FlagInvalidOrDuplicate => b"CLIENT_ERROR invalid or duplicate flag\r\n",
            Self::Token => b"CLIENT_ERROR bad token in command line format\r\n",
            Self::KeyEncoding => b"CLIENT_ERROR error decoding key\r\n",
            Self::SetMode => b"CLIENT_ERROR invalid mode for ms M token\r\n",
            Self::ArithMode => b"CLIENT_ERROR invalid mode for ma M token\r\n",
            Self::DeltaValue => b"CLIENT_ERROR invalid numeric delta value\r\n",
            Self::InitialValue => b"CLIENT_ERROR invalid numeric initial value\r\n",
            Self::Opaque => b"CLIENT_ERROR opaque token too long\r\n",
        }
    }
}
