use core::fmt;

use crate::{QpId, Qpn};

/// Most bytes of payload that travel inside a completion: with the rest of a HERD reply cell they
/// make one cache line.
pub const INLINE_RECEIVE: usize = 56;

/// One entry of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The `wr_id` of the work request that completed.
    pub wr_id: u64,
    /// How it ended; anything but [`Status::Success`] leaves the fields below `qp` unspecified.
    pub status: Status,
    /// Which verb it was.
    pub opcode: Opcode,
    /// The queue pair, of this port.
    pub qp: QpId,
    /// Bytes received; for sends, unspecified.
    pub byte_len: u32,
    /// The immediate of a received message, if it carried one.
    pub imm: Option<u32>,
    /// The sender of a datagram; `None` on RC and UC.
    pub source: Option<Source>,
    /// The payload of a small receive; the posted buffer was not touched. `None`: it lies there.
    pub inline: Option<InlineData>,
}

impl Completion {
    /// What an array to poll into holds before the first poll; no provider completes like this.
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

/// Who sent a datagram.
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
    /// The first `len` bytes of `words`, little-endian.
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

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Whether the message had no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The payload as little-endian words; bytes past [`InlineData::len`] are unspecified.
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

/// Which verb completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A SEND of ours.
    Send,
    /// A WRITE of ours.
    Write,
    /// A READ of ours: the data is in the local region.
    Read,
    /// A FETCH_ADD of ours: the old value is in the local region.
    FetchAdd,
    /// A COMPARE_SWAP of ours: the old value is in the local region.
    CompareSwap,
    /// A message arrived.
    Recv,
    /// A WRITE with an immediate arrived and consumed a RECV.
    RecvWithImm,
}

/// How a work request ended: data, not an `Err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was done.
    Success,
    /// A local range or right was wrong (IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR).
    LocalError,
    /// The message was longer than the posted buffer.
    LengthError,
    /// The peer refused: rkey, range or right (IBV_WC_REM_ACCESS_ERR).
    RemoteAccess,
    /// The peer could not make sense of the request (IBV_WC_REM_INV_REQ_ERR).
    RemoteInvalid,
    /// The peer posted no RECV for too long (IBV_WC_RNR_RETRY_EXC_ERR).
    ReceiverNotReady,
    /// The peer does not answer (IBV_WC_RETRY_EXC_ERR).
    RetryExceeded,
    /// The queue pair went to the error state first (IBV_WC_WR_FLUSH_ERR).
    Flushed,
}
