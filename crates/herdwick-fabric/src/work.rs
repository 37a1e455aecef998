//! Work requests: the verbs with their payloads and addresses, as a caller posts them.

use crate::{AddressHandle, Opcode, RegionId, Rkey};

/// A byte range in a region of the posting port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The region.
    pub region: RegionId,
    /// Offset of the first byte.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// The address in the peer's memory that a one-sided verb accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The key of the region.
    pub rkey: Rkey,
    /// The address within the region, as returned by the peer's [`crate::Device::remote`], or an
    /// offset from it.
    pub addr: u64,
}

impl Remote {
    /// Returns the address `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self {
            // The provider checks the range; a sum that wraps is refused there.
            addr: self.addr.wrapping_add(bytes),
            ..self
        }
    }
}

/// The payload of a SEND or WRITE.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Copied while posting; the caller may reuse the buffer at return.
    Inline(&'a [u8]),
    /// Whole little-endian words, copied while posting: the fast path of request and reply lines.
    Words(&'a [u64]),
    /// Read from a region; the bytes must not change until the completion.
    Region(Local),
}

impl Payload<'_> {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Words(words) => words.len() * 8,
            Self::Region(local) => local.len,
        }
    }

    /// Returns whether the payload is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The verb of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum SendOp<'a> {
    /// Sends a message into a RECV of the peer.
    Send {
        /// The payload.
        payload: Payload<'a>,
        /// 32 bits that appear in the receiver's completion.
        imm: Option<u32>,
        /// UD: the destination. RC and UC: `None`.
        to: Option<AddressHandle>,
    },
    /// Writes into the peer's memory. The peer's CPU notices it only by polling the memory, unless
    /// the WRITE carries an immediate. A provider in software writes part of an aligned 8-byte
    /// word by a compare-and-swap of the word: a store of the peer's CPU to the rest of it is lost
    /// only if the word changes many times in a row meanwhile.
    Write {
        /// The payload.
        payload: Payload<'a>,
        /// The destination.
        to: Remote,
        /// If set, the WRITE consumes a RECV and completes there.
        imm: Option<u32>,
    },
    /// Reads from the peer's memory. RC only.
    Read {
        /// The local destination.
        into: Local,
        /// The remote source.
        from: Remote,
    },
    /// Adds to an aligned 8-byte word of the peer. RC only.
    FetchAdd {
        /// Receives the old value: 8 aligned bytes.
        into: Local,
        /// The word.
        at: Remote,
        /// The addend.
        add: u64,
    },
    /// Replaces an aligned 8-byte word of the peer if it holds `expected`. RC only.
    CompareSwap {
        /// Receives the old value: 8 aligned bytes.
        into: Local,
        /// The word.
        at: Remote,
        /// The value to compare with.
        expected: u64,
        /// The value to store.
        new: u64,
    },
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The verb.
    pub op: SendOp<'a>,
    /// Whether success makes a completion; a failure always does.
    pub signaled: bool,
    /// Whether a receiver that is armed for solicited messages alone wakes for it. A [`crate::Port`] is
    /// never armed so; a peer of another make may be.
    pub solicited: bool,
    /// RC: whether the request starts only after all earlier READs and atomics of its queue pair have
    /// completed. Without it, a SEND or WRITE may overtake them: it may change what a READ returns,
    /// and its payload may be read before their results are in local memory. An atomic may overtake
    /// a READ, too.
    pub fence: bool,
}

impl SendOp<'_> {
    /// Returns the opcode of its completion.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Send { .. } => Opcode::Send,
            Self::Write { .. } => Opcode::Write,
            Self::Read { .. } => Opcode::Read,
            Self::FetchAdd { .. } => Opcode::FetchAdd,
            Self::CompareSwap { .. } => Opcode::CompareSwap,
        }
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The buffer for a message that is too large for the completion.
    pub into: Local,
}
