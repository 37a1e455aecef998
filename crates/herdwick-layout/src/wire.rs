//! The layouts of version 0: request line, control word, body, overflow area, reply.
//!
//! Each is defined once, as a table of [`Field`]s. The code takes its offsets from the tables,
//! `docs/wire.md` draws them, and a test compares the two. All numbers are little-endian.

mod control;
mod encode;
mod fields;
mod locate;
mod reply;
mod report;
mod request;

pub use control::{ATTEMPTS, Control, Epoch, OpCode, SEQUENCES, Sequence, Stamp};
pub use encode::{Unencodable, encode};
pub use fields::*;
pub use locate::{decode_locate, encode_locate};
pub use reply::{ReplyHead, ReplyStatus, imm, split_imm};
pub use report::{REPORT_HASHES_MAX, decode_report, encode_report};
pub use request::{BadRequest, Body, Line, decode};

/// Slots that a client has at one worker: a power of two, at most [`Window::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(u16);

impl Window {
    /// The largest window.
    pub const MAX: usize = 256;

    /// A window of `slots`; `None` unless a power of two from 1 to [`Window::MAX`].
    #[must_use]
    pub const fn new(slots: usize) -> Option<Self> {
        // A power of two, so that a slot follows from a sequence by a mask, across the wrap at 2^24
        // too.
        if slots.is_power_of_two() && slots <= Self::MAX {
            Some(Self(slots as u16))
        } else {
            None
        }
    }

    /// Number of slots.
    #[inline]
    #[must_use]
    pub const fn slots(self) -> usize {
        self.0 as usize
    }

    /// Slot of a request.
    #[inline]
    #[must_use]
    pub const fn slot(self, sequence: Sequence) -> usize {
        sequence.get() as usize & (self.slots() - 1)
    }

    /// Bytes of the request lines.
    #[must_use]
    pub const fn line_bytes(self) -> usize {
        self.slots() * LINE_BYTES
    }

    /// Bytes of the overflow areas.
    #[must_use]
    pub const fn overflow_bytes(self) -> usize {
        self.slots() * OVERFLOW_BYTES
    }

    /// Bytes of a client's registered memory from which overflowing requests are sent.
    #[must_use]
    pub const fn stage_bytes(self) -> usize {
        self.slots() * REQUEST_BYTES_MAX
    }
}
