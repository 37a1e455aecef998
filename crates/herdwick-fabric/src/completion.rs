//! Completion queue entries: what completed, with which status, and the payload of a small receive.

use core::fmt;

use crate::{QpId, Qpn};

/// Maximum payload bytes carried inside a completion. With the rest of a HERD reply cell they make
/// one cache line of 64 bytes.
pub const INLINE_RECEIVE: usize = 56;

/// One entry of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The `wr_id` of the work request that completed.
    pub wr_id: u64,
    /// Status of the work request. Unless it is [`Status::Success`], the fields below `qp` are
    /// unspecified.
    pub status: Status,
    /// The verb that completed.
    pub opcode: Opcode,
    /// The queue pair, of this port.
    pub qp: QpId,
    /// Bytes received; for sends, unspecified.
    pub byte_len: u32,
    /// The immediate of a received message, if it carried one.
    pub imm: Option<u32>,
    /// The sender of a datagram; `None` on RC and UC.
    pub source: Option<Source>,
    /// The payload of a small receive, in which case the posted buffer is untouched. `None`: the
    /// payload is in the posted buffer.
    pub inline: Option<InlineData>,
}

impl Completion {
    /// Placeholder to fill an array with before the first poll; no provider completes with it.
    // `Flushed`, so that an entry that is read by mistake is no success.
    pub const BLANK: Self = Self {
        wr_id: 0,
        status: Status::Flushed,
        opcode: Opcode::Send,
        qp: QpId(0),
        byte_len: 0,
        imm: None,
        source: None,
        inline: None,
    };
}

/// The WRITEs into the watched range of a queue pair that have arrived since its last report
/// ([`crate::Port::watch_writes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteReport {
    /// What the queue pair is watched under.
    pub token: u64,
    /// Number of WRITEs, at least 1.
    pub writes: u32,
}

impl WriteReport {
    /// Placeholder to fill an array with before the first call.
    pub const BLANK: Self = Self {
        token: 0,
        writes: 0,
    };
}

/// The result of one RECV, which a provider in software makes a [`Completion`] of.
#[derive(Debug)]
pub struct Received {
    /// Status of the RECV.
    pub status: Status,
    /// [`Opcode::Recv`] or [`Opcode::RecvWithImm`].
    pub opcode: Opcode,
    /// Bytes received.
    pub len: usize,
    /// As in [`Completion::imm`].
    pub imm: Option<u32>,
    /// As in [`Completion::source`].
    pub source: Option<Source>,
    /// As in [`Completion::inline`].
    pub inline: Option<InlineData>,
}

impl Received {
    /// Returns the result of a RECV that failed.
    #[must_use]
    pub fn failed(status: Status) -> Self {
        Self {
            status,
            opcode: Opcode::Recv,
            len: 0,
            imm: None,
            source: None,
            inline: None,
        }
    }

    /// Returns the completion of the RECV `wr_id` of `qp`.
    #[inline]
    #[must_use]
    pub fn completion(self, wr_id: u64, qp: QpId) -> Completion {
        Completion {
            wr_id,
            status: self.status,
            opcode: self.opcode,
            qp,
            // No message has so many bytes; a provider's mistake must not look like a short
            // message.
            byte_len: u32::try_from(self.len).unwrap_or(u32::MAX),
            imm: self.imm,
            source: self.source,
            inline: self.inline,
        }
    }
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The sending queue pair, as the sender's endpoint names it.
    pub qpn: Qpn,
}

/// The payload of a small receive, carried by value.
#[derive(Clone, Copy)]
pub struct InlineData {
    words: [u64; INLINE_RECEIVE / 8],
    len: u8,
}

impl InlineData {
    /// Wraps the first `len` bytes of `words`, little-endian.
    ///
    /// # Panics
    /// When `len` exceeds [`INLINE_RECEIVE`].
    #[inline]
    #[must_use]
    pub fn new(words: [u64; INLINE_RECEIVE / 8], len: usize) -> Self {
        assert!(len <= INLINE_RECEIVE);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most 56, asserted above"
        )]
        let len = len as u8;
        Self { words, len }
    }

    /// A message without payload.
    pub const EMPTY: Self = Self {
        words: [0; INLINE_RECEIVE / 8],
        len: 0,
    };

    /// Makes it a payload of `len` bytes, and returns the words to be written: in place, where a
    /// [`InlineData::new`] would be copied.
    ///
    /// # Panics
    /// When `len` exceeds [`INLINE_RECEIVE`].
    #[inline]
    pub fn refill(&mut self, len: usize) -> &mut [u64; INLINE_RECEIVE / 8] {
        assert!(len <= INLINE_RECEIVE);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most 56, asserted above"
        )]
        let len = len as u8;
        self.len = len;
        &mut self.words
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Returns whether the message had no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the payload as little-endian words; bytes past [`InlineData::len`] are unspecified.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[u64; INLINE_RECEIVE / 8] {
        &self.words
    }

    /// Copies the payload to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`InlineData::len`].
    pub fn copy_to(&self, out: &mut [u8]) {
        // The last chunk may be shorter than a word.
        for (to, word) in out[..self.len()].chunks_mut(8).zip(self.words) {
            to.copy_from_slice(&word.to_le_bytes()[..to.len()]);
        }
    }
}

impl fmt::Debug for InlineData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; INLINE_RECEIVE];
        self.copy_to(&mut bytes);
        f.debug_list().entries(&bytes[..self.len()]).finish()
    }
}

/// The verb that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A SEND posted here.
    Send,
    /// A WRITE posted here.
    Write,
    /// A READ posted here: the data is in the local region.
    Read,
    /// A FETCH_ADD posted here: the old value is in the local region.
    FetchAdd,
    /// A COMPARE_SWAP posted here: the old value is in the local region.
    CompareSwap,
    /// A message arrived.
    Recv,
    /// A WRITE with an immediate arrived and consumed a RECV.
    RecvWithImm,
}

/// How a work request ended. It is data: a failed work request is no `Err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Success,
    /// A local range or access right was wrong (IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR).
    LocalError,
    /// The message was longer than the posted buffer.
    LengthError,
    /// The peer refused the rkey, the range or the access right (IBV_WC_REM_ACCESS_ERR).
    RemoteAccess,
    /// The peer found the request invalid (IBV_WC_REM_INV_REQ_ERR).
    RemoteInvalid,
    /// The peer had no RECV posted until the RNR retries ran out (IBV_WC_RNR_RETRY_EXC_ERR).
    ReceiverNotReady,
    /// The peer did not answer until the retries ran out (IBV_WC_RETRY_EXC_ERR).
    RetryExceeded,
    /// The queue pair entered the error state first (IBV_WC_WR_FLUSH_ERR).
    Flushed,
}
