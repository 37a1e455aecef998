//! The encoding of a reply in the protocol of its request.

use herdwick_request::{Clock, Reply, Request};

use crate::{binary::PacketAnswer, classic::ClassicAnswer, meta::MetaAnswer};

/// How to encode the reply to one request in its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Classic text.
    Classic(ClassicAnswer),
    /// A meta command.
    Meta(MetaAnswer<'a>),
    /// A packet.
    Binary(PacketAnswer),
}

impl<'a> Answer<'a> {
    /// Returns the answer to one key of a `get`, the `last` one or not.
    #[inline]
    #[must_use]
    pub fn value(with_cas: bool, last: bool) -> Self {
        Self::Classic(ClassicAnswer::value(with_cas, last))
    }

    /// Returns whether the request may be executed later if there is no room for its reply.
    #[inline]
    #[must_use]
    pub fn is_read(&self) -> bool {
        match self {
            Self::Classic(answer) => answer.is_read(),
            Self::Meta(answer) => answer.is_read(),
            Self::Binary(answer) => answer.is_read(),
        }
    }

    /// Returns the bytes of the command that the reply repeats.
    #[must_use]
    pub fn opaque(&self) -> &'a [u8] {
        match self {
            Self::Classic(_) | Self::Binary(_) => &[],
            Self::Meta(answer) => answer.opaque(),
        }
    }

    /// Returns the same answer with another [`opaque`](Self::opaque).
    #[must_use]
    pub fn with_opaque<'b>(&self, opaque: &'b [u8]) -> Answer<'b> {
        match *self {
            Self::Classic(answer) => Answer::Classic(answer),
            Self::Meta(answer) => Answer::Meta(answer.with_opaque(opaque)),
            Self::Binary(answer) => Answer::Binary(answer),
        }
    }

    /// Returns whether every reply is suppressed, errors included.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Classic(answer) if answer.noreply)
    }

    /// Returns whether it is a refusal, with a request that only removes the item that would have
    /// been replaced.
    #[inline]
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Classic(answer) => answer.is_refusal(),
            Self::Meta(answer) => answer.is_refusal(),
            Self::Binary(answer) => answer.is_refusal(),
        }
    }

    /// Returns whether it is the reply to `me`, which memcached does not count as a read.
    #[inline]
    #[must_use]
    pub fn is_debug(&self) -> bool {
        matches!(self, Self::Meta(answer) if answer.is_debug())
    }

    /// Appends the reply to `request`.
    #[inline]
    pub fn encode(
        &self,
        clock: Clock,
        request: &Request<'_>,
        reply: &Reply<'_>,
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Classic(answer) => answer.encode(request.key, reply, out),
            Self::Meta(answer) => answer.encode(clock, request, reply, out),
            Self::Binary(answer) => answer.encode(request, reply, out),
        }
    }
}
