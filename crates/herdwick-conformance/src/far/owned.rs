//! A work request with a payload of its own.

use herdwick_fabric::{AddressHandle, Local, Payload, Remote, SendOp, SendWr};

/// The parts of a work request, as they are sent to another process.
pub(super) struct Owned {
    pub(super) wr_id: u64,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) fence: bool,
    pub(super) verb: u8,
    pub(super) imm: Option<u32>,
    pub(super) to: Option<AddressHandle>,
    pub(super) remote: Option<Remote>,
    pub(super) operands: [u64; 2],
    pub(super) bytes: Option<Vec<u8>>,
    pub(super) words: Option<Vec<u64>>,
    pub(super) local: Option<Local>,
}

impl Owned {
    pub(super) fn new(wr: &SendWr<'_>) -> Self {
        let mut owned = Self {
            wr_id: wr.wr_id,
            signaled: wr.signaled,
            solicited: wr.solicited,
            fence: wr.fence,
            verb: 0,
            imm: None,
            to: None,
            remote: None,
            operands: [0; 2],
            bytes: None,
            words: None,
            local: None,
        };
        match wr.op {
            SendOp::Send { payload, imm, to } => {
                (owned.imm, owned.to) = (imm, to);
                owned.keep(payload);
            }
            SendOp::Write { payload, to, imm } => {
                (owned.verb, owned.imm, owned.remote) = (1, imm, Some(to));
                owned.keep(payload);
            }
            SendOp::Read { into, from } => {
                (owned.verb, owned.remote, owned.local) = (2, Some(from), Some(into));
            }
            SendOp::FetchAdd { into, at, add } => {
                (owned.verb, owned.remote, owned.local) = (3, Some(at), Some(into));
                owned.operands[0] = add;
            }
            SendOp::CompareSwap {
                into,
                at,
                expected,
                new,
            } => {
                (owned.verb, owned.remote, owned.local) = (4, Some(at), Some(into));
                owned.operands = [expected, new];
            }
        }
        owned
    }

    fn keep(&mut self, payload: Payload<'_>) {
        match payload {
            Payload::Inline(bytes) => self.bytes = Some(bytes.to_vec()),
            Payload::Words(words) => self.words = Some(words.to_vec()),
            Payload::Region(local) => self.local = Some(local),
        }
    }

    fn payload(&self) -> Payload<'_> {
        match (&self.bytes, &self.words, self.local) {
            (Some(bytes), ..) => Payload::Inline(bytes),
            (_, Some(words), _) => Payload::Words(words),
            (.., local) => Payload::Region(local.expect("one of three")),
        }
    }

    pub(super) fn lend(&self) -> SendWr<'_> {
        let remote = || self.remote.expect("one-sided");
        let into = || self.local.expect("brings something");
        let [first, second] = self.operands;
        let op = match self.verb {
            0 => SendOp::Send {
                payload: self.payload(),
                imm: self.imm,
                to: self.to,
            },
            1 => SendOp::Write {
                payload: self.payload(),
                to: remote(),
                imm: self.imm,
            },
            2 => SendOp::Read {
                into: into(),
                from: remote(),
            },
            3 => SendOp::FetchAdd {
                into: into(),
                at: remote(),
                add: first,
            },
            // It is 4: `new` makes no other.
            _ => SendOp::CompareSwap {
                into: into(),
                at: remote(),
                expected: first,
                new: second,
            },
        };
        SendWr {
            wr_id: self.wr_id,
            op,
            signaled: self.signaled,
            solicited: self.solicited,
            fence: self.fence,
        }
    }
}
