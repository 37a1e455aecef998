//! Reassembly of RC and UC messages: packets in, WRITE or SEND completions out.

use herdwick_fabric::{
    INLINE_RECEIVE, InlineData, Opcode, Received, RegionId, Remote, Rkey, Status,
};

use super::{
    Qp,
    message::{Message, Refusal},
};
use crate::{
    Drop, Memory,
    packet::{Operation, Packet, Place},
    regions::Right,
    shared::Shared,
};

impl Packet<'_> {
    /// Returns whether the packet starts a message.
    pub(crate) fn starts(&self) -> bool {
        match self.op.operation {
            Operation::Send { place, .. } | Operation::Write { place, .. } => place.starts(),
            _ => true,
        }
    }

    /// Returns whether the packet ends a message.
    pub(crate) fn ends(&self) -> bool {
        match self.op.operation {
            Operation::Send { place, .. } | Operation::Write { place, .. } => place.ends(),
            _ => true,
        }
    }
}

impl Qp {
    /// Executes a packet of a SEND or WRITE that has the expected PSN.
    #[inline(always)]
    pub(super) fn execute<M: Memory>(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        memory: &mut M,
    ) -> Result<(), Refusal> {
        let (place, len) = match packet.op.operation {
            Operation::Send { place, .. } | Operation::Write { place, .. } => {
                (place, packet.payload.len())
            }
            _ => return Err(Refusal::Invalid(Drop::Opcode)),
        };
        let mtu = self.mtu(shared);
        // IBTA: first and middle packets are full, and a last one has at least a byte.
        let sized = match place {
            Place::First | Place::Middle => len == mtu,
            Place::Last => 0 < len && len <= mtu,
            Place::Only => len <= mtu,
        };
        // A first packet amid a message, or a middle one between messages. UC has dealt with the
        // first case before.
        if !sized || place.starts() != self.inbound.is_idle() {
            return Err(Refusal::Invalid(Drop::Length));
        }
        if matches!(packet.op.operation, Operation::Send { .. }) {
            self.execute_send(shared, packet, place, memory)
        } else {
            self.execute_write(shared, packet, place, memory)
        }
    }

    fn execute_send<M: Memory>(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        place: Place,
        memory: &mut M,
    ) -> Result<(), Refusal> {
        let taken = match self.inbound.message {
            Message::Idle => 0,
            Message::Send { taken } => taken,
            Message::Write { .. } => return Err(Refusal::Invalid(Drop::Length)),
        };
        // Not taken yet: a message that is cut short leaves its RECV to the next one.
        let recv = *self.recvs.ring.front().ok_or(Refusal::NoRecv)?;
        let len = taken + packet.payload.len();
        // Only a message of one packet: parts of a longer one have to be collected in the buffer.
        let inline =
            (place == Place::Only && len <= INLINE_RECEIVE).then(|| inline_data(packet.payload));
        if inline.is_none() {
            // Also for a part: a message that will not fit is refused at the first packet too many.
            if len > recv.into.len {
                return Err(Refusal::TooLong);
            }
            if shared.regions.get(recv.into.region).is_none() {
                self.inbound.abandon();
                self.end_recv(shared, Status::LocalError);
                return Err(Refusal::Local);
            }
            memory.write(recv.into.region, recv.into.offset + taken, packet.payload);
        }
        if !place.ends() {
            self.inbound.message = Message::Send { taken: len };
            return Ok(());
        }
        self.inbound.message = Message::Idle;
        self.recvs.ring.pop_front();
        let received = Received {
            status: Status::Success,
            opcode: Opcode::Recv,
            len,
            imm: packet.imm(),
            source: None,
            inline,
        };
        self.finish_recv(&mut shared.cqs, &recv, received);
        Ok(())
    }

    /// Completes the first RECV with an error.
    pub(super) fn end_recv(&mut self, shared: &mut Shared, status: Status) {
        if let Some(recv) = self.recvs.ring.pop_front() {
            self.finish_recv(&mut shared.cqs, &recv, Received::failed(status));
        }
    }

    #[inline(always)]
    fn execute_write<M: Memory>(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        place: Place,
        memory: &mut M,
    ) -> Result<(), Refusal> {
        let (region, offset, rest, total) = self.continue_write(shared, packet, place)?;
        let len = packet.payload.len();
        // The length of the whole is in the first packet alone: the others have to add up to it.
        if place.ends() != (rest == len) || len > rest {
            return Err(Refusal::Invalid(Drop::Length));
        }
        // Before the bytes are stored: a packet that is refused for lack of a RECV has no effect, and
        // is sent again.
        // Of a message of several packets the earlier ones are stored by then. That is harmless:
        // they are stored again.
        if place.ends() && packet.imm().is_some() && self.recvs.ring.is_empty() {
            return Err(Refusal::NoRecv);
        }
        if len > 0 {
            memory.write(region, offset, packet.payload);
        }
        if !place.ends() {
            self.inbound.message = Message::Write {
                region,
                offset: offset + len,
                rest: rest - len,
                total,
            };
            return Ok(());
        }
        self.inbound.message = Message::Idle;
        if total > 0 {
            let start = offset + len - total;
            let watch = (self.id, &mut self.watch);
            shared.written.note(watch, (region, start, total));
        }
        if packet.imm().is_some() {
            self.finish_write_with_imm(shared, packet, total);
        }
        Ok(())
    }

    /// Returns the destination of a WRITE's packet (region and offset), the bytes still to arrive,
    /// and the length of the message.
    #[inline(always)]
    fn continue_write(
        &self,
        shared: &Shared,
        packet: &Packet<'_>,
        place: Place,
    ) -> Result<(RegionId, usize, usize, usize), Refusal> {
        if let Message::Write {
            region,
            offset,
            rest,
            total,
        } = self.inbound.message
        {
            // The rkey was checked by the first packet; only the region's end is left to notice.
            // A region's id has a generation: another region at its index is not taken for it.
            let there = shared.regions.get(region).is_some();
            let gone = Refusal::Access(Drop::Gone);
            return there.then_some((region, offset, rest, total)).ok_or(gone);
        }
        let reth = packet.reth().filter(|_| place.starts());
        let reth = reth.ok_or(Refusal::Invalid(Drop::Length))?;
        let total = reth.len.get() as usize;
        if total == 0 {
            // A WRITE of length zero accesses no memory, so its rkey is not checked (IBTA C9-88).
            // Never looked at: `execute_write` stores nothing of length zero.
            return Ok((RegionId(0), 0, 0, 0));
        }
        let at = Remote {
            rkey: Rkey(reth.rkey.get()),
            addr: reth.addr.get(),
        };
        let opened = shared.regions.open(self.asker(), at, total, Right::Write);
        let (region, offset) = opened.map_err(Refusal::Access)?;
        Ok((region, offset, total, total))
    }

    fn finish_write_with_imm(&mut self, shared: &mut Shared, packet: &Packet<'_>, total: usize) {
        let Some(recv) = self.recvs.ring.pop_front() else {
            // `execute_write` has refused the packet if there was none.
            return;
        };
        let received = Received {
            status: Status::Success,
            opcode: Opcode::RecvWithImm,
            len: total,
            imm: packet.imm(),
            source: None,
            inline: None,
        };
        self.finish_recv(&mut shared.cqs, &recv, received);
    }
}

/// Returns a payload of at most [`INLINE_RECEIVE`] bytes by value.
#[inline]
pub(super) fn inline_data(payload: &[u8]) -> InlineData {
    let mut bytes = [0; INLINE_RECEIVE];
    bytes[..payload.len()].copy_from_slice(payload);
    let mut words = [0; INLINE_RECEIVE / 8];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut whole = [0; 8];
        whole.copy_from_slice(chunk);
        *word = u64::from_le_bytes(whole);
    }
    InlineData::new(words, payload.len())
}
