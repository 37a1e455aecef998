use crate::{AddressHandle, RegionId, Rkey};

/// A run of bytes in a region of the posting port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The region.
    pub region: RegionId,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Where in the peer's memory a one-sided verb works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The key that opens the region.
    pub rkey: Rkey,
    /// The address, as the peer's [`crate::Device::remote`] counts it.
    pub addr: u64,
}

impl Remote {
    /// The place `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(bytes),
            ..self
        }
    }
}

/// What a SEND or WRITE carries.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Copied at posting; the buffer is the caller's again at return.
    Inline(&'a [u8]),
    /// Whole words, little-endian, copied at posting: the fast path of request and reply lines.
    Words(&'a [u64]),
    /// Fetched from a region until the completion; the bytes must stay until then.
    Region(Local),
}

impl Payload<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Words(words) => words.len() * 8,
            Self::Region(local) => local.len,
        }
    }

    /// Whether it carries nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The verb of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum SendOp<'a> {
    /// Into a RECV of the peer.
    Send {
        /// What it carries.
        payload: Payload<'a>,
        /// 32 bits that arrive in the completion.
        imm: Option<u32>,
        /// UD: where to. RC and UC: `None`.
        to: Option<AddressHandle>,
    },
    /// Into the peer's memory; its CPU notices only if it looks, or if there is an immediate. Of an
    /// aligned 8-byte word that is written in part, a provider in software may read the whole and
    /// write it back: what the peer's CPU stores in its rest meanwhile may be lost.
    Write {
        /// What it carries.
        payload: Payload<'a>,
        /// Where to.
        to: Remote,
        /// With it, the WRITE consumes a RECV and completes there.
        imm: Option<u32>,
    },
    /// Out of the peer's memory. RC only.
    Read {
        /// Where the bytes go.
        into: Local,
        /// Where they come from.
        from: Remote,
    },
    /// Adds to an aligned 8-byte word of the peer. RC only.
    FetchAdd {
        /// Where the old value goes: 8 aligned bytes.
        into: Local,
        /// The word.
        at: Remote,
        /// What to add.
        add: u64,
    },
    /// Swaps an aligned 8-byte word of the peer if it holds `expected`. RC only.
    CompareSwap {
        /// Where the old value goes: 8 aligned bytes.
        into: Local,
        /// The word.
        at: Remote,
        /// What it must hold.
        expected: u64,
        /// What it gets.
        new: u64,
    },
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The verb.
    pub op: SendOp<'a>,
    /// Whether success makes a completion; failure always does.
    pub signaled: bool,
    /// Whether a receiver that is armed for solicited messages alone wakes for it. A [`crate::Port`] is
    /// never armed so; a peer of another make may be.
    pub solicited: bool,
}

/// A receive work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where a message too large to travel in the completion goes.
    pub into: Local,
}
