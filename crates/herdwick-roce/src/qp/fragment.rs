//! Encoding of one packet of a SEND or WRITE.

use herdwick_fabric::{Payload, Remote, Transport};

use super::Target;
use crate::{
    Memory, Wire,
    packet::{
        Bth, BthFlags, Class, Deth, Head, ICRC_BYTES, Immediate, Operation, PacketOp, Place, Psn24,
        Reth, pad_of,
    },
    shared::{Kind, Shared},
};

/// One packet of a SEND or WRITE, to be encoded.
pub(super) struct Fragment<'a> {
    pub(super) class: Class,
    pub(super) target: Target,
    /// The number of the sending queue pair; in the DETH of a datagram and the tag of a keyed
    /// packet.
    pub(super) source: u32,
    pub(super) psn: Psn24,
    pub(super) place: Place,
    /// Of a WRITE: the whole message, whose address and length the first packet carries.
    pub(super) write: Option<Whole>,
    pub(super) imm: Option<u32>,
    pub(super) solicited: bool,
    pub(super) ack_request: bool,
    pub(super) migration: bool,
    pub(super) payload: Payload<'a>,
}

/// The WRITE that a packet belongs to.
#[derive(Clone, Copy)]
pub(super) struct Whole {
    pub(super) to: Remote,
    pub(super) len: usize,
}

impl Fragment<'_> {
    /// Writes the packet to the wire; returns `false` if the wire has no room.
    #[inline(always)]
    pub(super) fn emit<M: Memory, W: Wire>(
        &self,
        shared: &mut Shared,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        let (op, len) = (self.op(), self.payload.len());
        let pad = pad_of(len);
        // The exact length: the wire hands out no more, and the head writers rely on it.
        let total = op.head_bytes() + len + usize::from(pad) + ICRC_BYTES;
        let kind = match self.class {
            Class::Ud => Kind::Datagram,
            Class::Rc | Class::Uc => Kind::Data,
        };
        // Before anything is written: a packet without room leaves no trace, and is offered again.
        let Some(room) = shared.room(wire, &self.target, total, kind) else {
            return false;
        };
        let flags = BthFlags {
            solicited: self.solicited,
            migration: self.migration,
            pad,
            ack_request: self.ack_request,
        };
        let bth = Bth::new(op.encode(), self.target.qpn, self.psn, flags);
        let body = self.extend(Head::new(&mut *room, &bth)).payload(len);
        fill(body, &self.payload, memory);
        // Last, for its tag covers all of the packet. The ICRC behind it is the driver's, which
        // knows the addresses.
        shared.seal(&self.target, self.source, room);
        true
    }

    #[inline]
    fn op(&self) -> PacketOp {
        let (place, imm) = (self.place, self.imm.is_some());
        let operation = match self.write {
            Some(_) => Operation::Write { place, imm },
            None => Operation::Send { place, imm },
        };
        PacketOp {
            class: self.class,
            operation,
        }
    }

    #[inline]
    fn extend<'r>(&self, mut head: Head<'r>) -> Head<'r> {
        if self.class == Class::Ud {
            head = head.and(&Deth {
                qkey: self.target.qkey.into(),
                source: self.source.into(),
            });
        }
        // Address and length of a WRITE are in its first packet alone.
        if let (Some(whole), true) = (self.write, self.place.starts()) {
            head = head.and(&reth(whole.to, whole.len));
        }
        if let Some(imm) = self.imm {
            head = head.and(&Immediate { value: imm.into() });
        }
        head
    }
}

/// Returns the RETH of a WRITE or READ of `len` bytes.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "messages have at most MESSAGE_BYTES_MAX bytes"
)]
pub(super) fn reth(at: Remote, len: usize) -> Reth {
    Reth {
        addr: at.addr.into(),
        rkey: at.rkey.0.into(),
        len: (len as u32).into(),
    }
}

#[inline]
fn fill<M: Memory>(body: &mut [u8], payload: &Payload<'_>, memory: &M) {
    match payload {
        Payload::Inline(bytes) => body.copy_from_slice(bytes),
        Payload::Words(words) => put_words(body, words),
        Payload::Region(local) => memory.read(local.region, local.offset, body),
    }
}

/// Writes `words` little-endian.
#[inline]
pub(super) fn put_words(out: &mut [u8], words: &[u64]) {
    for (to, word) in out.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

/// Returns the opcode class of a transport.
pub(crate) const fn class(transport: Transport) -> Class {
    match transport {
        Transport::Rc => Class::Rc,
        Transport::Uc => Class::Uc,
        Transport::Ud => Class::Ud,
    }
}
