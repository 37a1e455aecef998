//! A send work request of the seeded fabric under way.

use herdwick_fabric::{Opcode, Qpn, Status};
use herdwick_mem::Span;

use super::event::Verb;

/// A send work request under way.
pub(super) struct SendEntry {
    pub(super) wr_id: u64,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    pub(super) psn: u64,
    pub(super) verb: Verb,
    pub(super) imm: Option<u32>,
    pub(super) body: Body,
    pub(super) to: Qpn,
    /// The memory for the result of a READ or atomic.
    pub(super) into: Option<(Span, usize)>,
    pub(super) outcome: Option<Result<Vec<u8>, Status>>,
}

pub(super) enum Body {
    Copied(Vec<u8>),
    Region(Span, usize, usize),
}

impl Body {
    pub(super) fn fetch(&self) -> Vec<u8> {
        match self {
            Self::Copied(bytes) => bytes.clone(),
            Self::Region(span, offset, len) => {
                let mut bytes = vec![0; *len];
                span.read_bytes(*offset, &mut bytes);
                bytes
            }
        }
    }
}

impl SendEntry {
    pub(super) fn opcode(&self) -> Opcode {
        match self.verb {
            Verb::Send => Opcode::Send,
            Verb::Write(_) => Opcode::Write,
            Verb::Read(..) => Opcode::Read,
            Verb::FetchAdd(..) => Opcode::FetchAdd,
            Verb::CompareSwap(..) => Opcode::CompareSwap,
        }
    }

    /// Whether the answer to a later request implies that this one was executed.
    pub(super) fn implied(&self) -> bool {
        matches!(self.verb, Verb::Send | Verb::Write(_))
    }
}
