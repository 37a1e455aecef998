//! The results of decoding that the protocols share: requests to the store, other commands, refusals.

use herdwick_request::Op;

use crate::{
    Answer, InputRange, Refusal,
    binary::{Echo, Packet, Status},
};

/// One request to the store, and how its reply is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The key, 1 to 250 bytes; if the command has it in base64, decoded.
    pub key: &'a [u8],
    /// The operation.
    pub op: Op<'a>,
    /// The encoding of the reply.
    pub answer: Answer<'a>,
}

/// A command that is no request to the store, borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `mn`: the end of a pipeline.
    MetaNoop,
    /// A packet of the binary protocol.
    Packet(Packet<'a>),
    /// `flush_all`.
    FlushAll(FlushAll),
    /// `stats`, with the rest of its line.
    Stats(&'a [u8]),
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
}

/// `get KEY+`, `gets KEY+`, `gat EXPTIME KEY+`, `gats EXPTIME KEY+`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// Where the keys are: at least one, each of 1 to 250 bytes.
    pub keys: InputRange,
    /// Return the CAS unique.
    pub with_cas: bool,
    /// New exptime.
    pub touch: Option<u32>,
}

/// `flush_all [DELAY] [noreply]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushAll {
    /// Delay of the flush as an exptime; 0 is now.
    pub delay: u32,
    /// Suppress the reply.
    pub noreply: bool,
}

/// A command that is answered by an error. It borrows nothing, so it can be kept until the commands
/// before it are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A line.
    Line {
        /// Why.
        refusal: Refusal,
        /// Suppress the reply.
        noreply: bool,
    },
    /// A packet.
    Packet {
        /// The fields that the response repeats.
        echo: Echo,
        /// Why.
        status: Status,
        /// The connection is closed after the response.
        closes: bool,
    },
}

/// The commands that a caller takes next. Of others no more than the name is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admits {
    /// All.
    All,
    /// Requests to the store.
    Requests,
    /// Requests that only read.
    Reads,
}

/// The result of decoding the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A request to the store.
    Request {
        /// The request.
        asked: Asked<'a>,
        /// Bytes of the input that it takes, its data included.
        used: usize,
        /// Bytes of the stream after those that are to be dropped.
        discard: u64,
    },
    /// A read of any number of keys: `get`, `gets`, `gat`, `gats`.
    Get {
        /// The command.
        get: Get,
        /// Bytes of the input that it takes.
        used: usize,
    },
    /// A storage command with a large value that has arrived in part; the value is empty in the
    /// request. Returned only by a decoder made [`announcing`](crate::Decoder::announcing).
    Announced {
        /// The request.
        asked: Asked<'a>,
        /// Bytes of the input that it takes; the value begins behind them.
        used: usize,
        /// Bytes of the value.
        value_len: usize,
        /// Whether a line end follows the value.
        has_line_end: bool,
    },
    /// A command that is no request to the store.
    Command {
        /// The command.
        command: Command<'a>,
        /// Bytes of the input that it takes.
        used: usize,
        /// Bytes of the stream after those that are to be dropped.
        discard: u64,
    },
    /// A command that is answered by an error.
    Refused {
        /// The refusal.
        refused: Refused,
        /// Bytes of the input that it takes.
        used: usize,
        /// Bytes of the stream after those that are to be dropped, so that they are never executed
        /// as commands.
        discard: u64,
    },
    /// A command that was not [admitted](Admits), or that is too large for the input and was not
    /// announced because others are.
    Held,
    /// Part of a command.
    NeedMore {
        /// Decode again when the input has at least this many bytes.
        at: usize,
    },
    /// Not a memcached client, or a line that is too long: close the connection without a reply.
    Close,
}
