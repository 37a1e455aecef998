use memchr::memchr;

use crate::{binary::Packet, meta::Meta};

/// One command, borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get(Get<'a>),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, with their data.
    Put(Put<'a>),
    /// One of those whose data exceeds the largest item. The data is not here: the decoder says
    /// how much of the stream to drop.
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
        /// The level asked for.
        level: u32,
        /// Say nothing.
        noreply: bool,
    },
    /// `shutdown`, or `shutdown graceful`; not `known` with any other word.
    Shutdown {
        /// The word behind it is.
        known: bool,
        /// Say nothing, if it is refused.
        noreply: bool,
    },
    /// `cache_memlimit`.
    MemoryLimit {
        /// The limit asked for.
        megabytes: u32,
        /// Say nothing.
        noreply: bool,
    },
    /// `quit`.
    Quit,
    /// None of these: the whole line. Its answer is `ERROR`, unless the line [wants
    /// none](crate::is_noreply).
    Unknown(&'a [u8]),
    /// A line that asks for an error message.
    Refused(Refused),
}

/// `get KEY+`, `gets KEY+`, `gat EXPTIME KEY+`, `gats EXPTIME KEY+`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// The keys, at least one, each of 1 to 250 bytes.
    pub keys: Keys<'a>,
    /// Show the CAS unique.
    pub with_cas: bool,
    /// New exptime.
    pub touch: Option<u32>,
}

/// Words divided by spaces, read lazily: an iterator over them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'a> {
    rest: &'a [u8],
}

impl<'a> Keys<'a> {
    /// The words of `line`.
    #[must_use]
    pub fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    /// What has not been read yet. To go on later, keep how long it is.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
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

/// How a [`Put`] treats what is there.
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
    /// `cas`, with the unique it compares.
    Cas(u64),
}

/// How meta and binary commands that store treat what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Store whatever is there.
    Set,
    /// Only if absent.
    Add,
    /// Only if present.
    Replace,
    /// Behind the present value.
    Append,
    /// Before the present value.
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
    /// Say nothing.
    pub noreply: bool,
}

/// A [`Put`] of more than the server takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversized<'a> {
    /// Only a failed `set` takes the old value away.
    pub verb: Verb,
    /// The key.
    pub key: &'a [u8],
    /// Say nothing.
    pub noreply: bool,
}

/// `incr KEY DELTA [noreply]`, `decr KEY DELTA [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arith<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Subtract.
    pub decrement: bool,
    /// By how much.
    pub delta: u64,
    /// Say nothing.
    pub noreply: bool,
}

/// `touch KEY EXPTIME [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch<'a> {
    /// The key.
    pub key: &'a [u8],
    /// memcached exptime.
    pub exptime: u32,
    /// Say nothing.
    pub noreply: bool,
}

/// `delete KEY [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Say nothing.
    pub noreply: bool,
}

/// `flush_all [DELAY] [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushAll {
    /// memcached exptime from which everything older is gone; 0 is now.
    pub delay: u32,
    /// Say nothing.
    pub noreply: bool,
}

/// A refusal, and whether the client wants to hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// Say nothing.
    pub noreply: bool,
}

/// Why a line was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A limit of memory that is no number.
    Limit,
    /// Too few arguments, a key that is too long, or a number that is none.
    Format,
    /// A data block that does not end where it should.
    DataChunk,
    /// An exptime that is no number.
    Exptime,
    /// A delta that is no number.
    Delta,
    /// More words than a meta command may have.
    FlagsTooLong,
    /// A flag given twice.
    FlagDuplicate,
    /// No such flag.
    FlagInvalid,
    /// Whatever is wrong with the key or the flags of `ma`.
    FlagInvalidOrDuplicate,
    /// A number in a flag that is none.
    Token,
    /// A key that is no base64.
    KeyEncoding,
    /// No mode of `ms`.
    SetMode,
    /// No mode of `ma`.
    ArithMode,
    /// A delta in a flag that is no number.
    DeltaValue,
    /// An initial value that is no number.
    InitialValue,
    /// An opaque that is too long.
    Opaque,
}

impl Refusal {
    /// memcached's words for it, line end included.
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
