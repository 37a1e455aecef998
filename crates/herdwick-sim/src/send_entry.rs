//! A send work request of the seeded fabric under way.

use herdwick_fabric::{Opcode, Qpn, Status, Transport};
use herdwick_mem::Span;

use super::{event::Verb, host::Wqe};

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
    /// Whether the RNIC fetches the WQE, since it was posted with others.
    pub(super) fetched: bool,
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
    /// The WQE, as far as its cost is concerned.
    pub(super) fn wqe(&self, transport: Transport) -> Wqe {
        let (payload, inlined) = match (&self.body, self.verb) {
            (_, Verb::Read(_, len)) => (len, false),
            (Body::Copied(bytes), _) => (bytes.len(), true),
            (Body::Region(_, _, len), _) => (*len, false),
        };
        Wqe {
            class: self.verb.class(),
            transport,
            payload: payload as u64,
            inlined,
            fetched: self.fetched,
        }
    }

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
