//! Packets that are no requests to the store: `flush`, `noop`, `version`, `stat`, `quit` and SASL's.

use super::reply::Echo;

/// A packet that is no request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The fields that the response repeats.
    pub echo: Echo,
    /// The key, or empty for a verb without one.
    pub key: &'a [u8],
    /// The operation.
    pub verb: Verb<'a>,
}

/// The operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb<'a> {
    /// `flush` of everything older than this exptime; 0 is now.
    Flush {
        /// The exptime.
        delay: u32,
    },
    /// `noop`
    Noop,
    /// `version`
    Version,
    /// `stat`, on the topic that is the key.
    Stat,
    /// `quit`
    Quit,
    /// `list mechanisms` of SASL.
    SaslList,
    /// The start or a step of a SASL exchange, which the opcode distinguishes; the key is the
    /// mechanism.
    Sasl {
        /// The client's message; `None` if it is longer than [`SASL_BYTES_MAX`](super::SASL_BYTES_MAX), and dropped from
        /// the stream.
        message: Option<&'a [u8]>,
    },
}
