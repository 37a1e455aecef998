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
            // A packet's opaque has four bytes, which its echo has copied.
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
        // Only `noreply` suppresses errors: `q` and the quiet opcodes suppress nominal replies
        // alone.
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

#[cfg(test)]
mod tests {
    use herdwick_request::{Clock, HashKey, Reply, Request, Second, Status};

    use crate::{Admits, Decoded, Decoder, meta::KeyRoom};

    /// Returns the reply to a command whose item is there, but for which there is no room.
    fn without_room(input: &[u8]) -> Vec<u8> {
        let room = KeyRoom::default();
        let Decoded::Request { asked, .. } = Decoder::new(100).decode(input, &room, Admits::All)
        else {
            panic!("{}", input.escape_ascii());
        };
        let clock = Clock {
            epoch_unix: 0,
            second: Second(1),
        };
        let request = Request {
            hash: HashKey([1, 2]).hash(asked.key),
            key: asked.key,
            op: asked.op,
        };
        let mut out = Vec::new();
        let reply = Reply::bare(Status::OutOfMemory);
        asked.answer.encode(clock, &request, &reply, &mut out);
        out
    }

    /// Such an item is no miss: a client would take it for gone.
    #[test]
    fn a_touch_without_room_is_no_miss() {
        for command in ["touch k 9", "mg k v T9", "mg k T9", "set k 0 0 1\r\nx"] {
            let said = without_room(format!("{command}\r\n").as_bytes());
            assert!(
                said.starts_with(b"SERVER_ERROR out of memory"),
                "{command}: {}",
                said.escape_ascii()
            );
        }
        // Opcodes touch, GAT and GATQ, with four bytes of an exptime.
        for opcode in [0x1c, 0x1d, 0x1e] {
            let mut packet = vec![0x80, opcode, 0, 1, 4, 0, 0, 0, 0, 0, 0, 5];
            packet.resize(24, 0);
            packet.extend(b"\0\0\0\x09k");
            assert_eq!(without_room(&packet)[6..8], [0, 0x82], "opcode {opcode:#x}");
        }
    }
}
