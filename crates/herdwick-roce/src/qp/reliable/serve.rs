//! RC requests that arrive: each is executed once and answered as often as it arrives.

use herdwick_fabric::{RegionId, Remote, Rkey, Status};

use super::{
    super::{Qp, message::Refusal, sends::WORD},
    responder::{Kept, Response},
};
use crate::{
    Drop, Memory, Wire,
    packet::{Nak, Operation, Packet, Psn24, Reth, Syndrome},
    regions::Right,
    shared::Shared,
};

/// Maximum packets of a READ response, a quarter of the PSN space.
const READ_PACKETS_MAX: usize = 1 << 22;

impl Qp {
    pub(super) fn receive_request<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        memory: &mut M,
        wire: &mut W,
    ) -> Result<(), Drop> {
        let psn = packet.bth.psn();
        let ahead = psn.ahead_of(self.inbound.expected);
        if ahead < 0 {
            shared.counters.connections.duplicates += 1;
            return self.repeat(shared, packet);
        }
        // Go-back-N: what comes behind a gap is dropped, and sent again by the requester.
        if ahead > 0 {
            self.nak_gap();
            return Err(Drop::Sequence);
        }
        let done = match packet.op.operation {
            Operation::ReadRequest => self.serve_read(shared, packet),
            Operation::CompareSwap | Operation::FetchAdd => {
                self.serve_atomic(shared, packet, memory)
            }
            _ => self.execute(shared, packet, memory).map(|()| 1),
        };
        match done {
            Ok(packets) => self.accept(packet, packets),
            Err(refusal) => return Err(self.refuse(shared, refusal)),
        }
        // A READ is answered before a later WRITE changes the data, if the wire has room.
        if !packet.op.operation.is_message() {
            self.respond(shared, memory, wire);
        }
        Ok(())
    }

    /// Advances the expected PSN, and queues an ACK if the packet requests one.
    fn accept(&mut self, packet: &Packet<'_>, packets: u32) {
        let psn = packet.bth.psn();
        self.inbound.expected = psn.plus(packets);
        // The gap is closed, so the next one is reported again.
        self.responder.quiet = false;
        self.responder.forget_old(self.inbound.expected);
        // A READ or atomic is acknowledged by its response, and was counted when that was queued.
        if !packet.op.operation.is_message() {
            return;
        }
        if packet.ends() {
            self.responder.completed = self.responder.completed.wrapping_add(1);
        }
        if packet.bth.flags().ack_request {
            self.acknowledge(psn, Syndrome::ACK);
        }
    }

    /// Queues a NAK for a missing packet, once for each gap.
    fn nak_gap(&mut self) {
        if !self.responder.quiet {
            self.responder.quiet = true;
            self.acknowledge(self.inbound.expected, Syndrome::Nak(Nak::Sequence));
        }
    }

    fn serve_read(&mut self, shared: &Shared, packet: &Packet<'_>) -> Result<u32, Refusal> {
        let reth = packet.reth().ok_or(Refusal::Invalid(Drop::Length))?;
        let packets = self.read_packets(shared, &reth)?;
        // The packets of a message follow each other without others between: a READ amid one is malformed.
        if !packet.payload.is_empty() || !self.inbound.is_idle() {
            return Err(Refusal::Invalid(Drop::Length));
        }
        let (region, offset) = self.open_read(shared, &reth).map_err(Refusal::Access)?;
        // After the checks of rkey and range, so that a wrong request is refused as such.
        self.has_room_for_answer()?;
        let psn = packet.bth.psn();
        // The MSN counts a READ when its execution begins (IBTA C9-148).
        self.responder.completed = self.responder.completed.wrapping_add(1);
        // The request is kept, not the data: a duplicate reads the memory again, as the standard has it.
        self.responder.keep(Kept::Read { psn, packets, reth });
        self.answer_read(psn, packets, (region, offset), reth, false);
        // A READ consumes a PSN for each packet of its response.
        Ok(packets)
    }

    /// Checks that a response can be queued. A peer that exceeds its outstanding READs and atomics
    /// is refused; if repeated responses take up the room, it has to retry.
    fn has_room_for_answer(&self) -> Result<(), Refusal> {
        if self.responder.is_deep() {
            return Err(Refusal::Invalid(Drop::TooManyReads));
        }
        let room = self.responder.has_room();
        room.then_some(()).ok_or(Refusal::Busy)
    }

    /// Refuses an unsupported request, if it has the expected PSN.
    pub(crate) fn refuse_opcode(&mut self, shared: &mut Shared, psn: Psn24) -> Drop {
        match psn.ahead_of(self.inbound.expected) {
            0 => self.refuse(shared, Refusal::Invalid(Drop::Opcode)),
            ahead => {
                if ahead > 0 {
                    self.nak_gap();
                }
                Drop::Opcode
            }
        }
    }

    /// Returns the number of packets of the response.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "compared with READ_PACKETS_MAX"
    )]
    fn read_packets(&self, shared: &Shared, reth: &Reth) -> Result<u32, Refusal> {
        // A READ of no bytes has a response of one packet.
        let packets = (reth.len.get() as usize).div_ceil(self.mtu(shared)).max(1);
        if packets > READ_PACKETS_MAX {
            return Err(Refusal::Invalid(Drop::Length));
        }
        Ok(packets as u32)
    }

    fn open_read(&self, shared: &Shared, reth: &Reth) -> Result<(RegionId, usize), Drop> {
        let len = reth.len.get() as usize;
        if len == 0 {
            // A READ of length zero accesses no memory, so its rkey is not checked (IBTA C9-88).
            return Ok((RegionId(0), 0));
        }
        let (asker, at) = (self.asker(), remote(reth));
        shared.regions.open(asker, at, len, Right::Read)
    }

    fn answer_read(
        &mut self,
        psn: Psn24,
        packets: u32,
        (region, offset): (RegionId, usize),
        reth: Reth,
        again: bool,
    ) {
        self.responder.push(Response::Read {
            again,
            psn,
            end: psn.plus(packets),
            completed: self.responder.completed,
            region,
            offset,
            rest: reth.len.get() as usize,
            starts: true,
        });
    }

    fn serve_atomic<M: Memory>(
        &mut self,
        shared: &Shared,
        packet: &Packet<'_>,
        memory: &mut M,
    ) -> Result<u32, Refusal> {
        let header = packet.atomic().ok_or(Refusal::Invalid(Drop::Length))?;
        if !packet.payload.is_empty() || !self.inbound.is_idle() {
            return Err(Refusal::Invalid(Drop::Length));
        }
        let at = Remote {
            rkey: Rkey(header.rkey.get()),
            addr: header.addr.get(),
        };
        let opened = shared.regions.open(self.asker(), at, WORD, Right::Atomic);
        let (region, offset) = opened.map_err(Refusal::Access)?;
        if !offset.is_multiple_of(WORD) {
            return Err(Refusal::Invalid(Drop::Misaligned));
        }
        // Before the word changes: an atomic that is executed has to be answered.
        self.has_room_for_answer()?;
        let (operand, compare) = (header.swap_or_add.get(), header.compare.get());
        let original = if packet.op.operation == Operation::FetchAdd {
            memory.fetch_add(region, offset, operand)
        } else {
            memory.compare_swap(region, offset, compare, operand)
        };
        let psn = packet.bth.psn();
        self.responder.completed = self.responder.completed.wrapping_add(1);
        // Here the result is kept: to execute a duplicate would change the word twice.
        self.responder.keep(Kept::Atomic { psn, original });
        self.answer_atomic(psn, original, false);
        Ok(1)
    }

    fn answer_atomic(&mut self, psn: Psn24, original: u64, again: bool) {
        self.responder.push(Response::Atomic {
            again,
            psn,
            completed: self.responder.completed,
            original,
        });
    }

    /// Queues the NAK for a request that is not executed, and fails the queue pair if the reason
    /// demands it.
    fn refuse(&mut self, shared: &mut Shared, refusal: Refusal) -> Drop {
        let (syndrome, reason) = match refusal {
            // No NAK: the requester times out and sends the request again.
            Refusal::Busy => return Drop::TooManyReads,
            Refusal::NoRecv => {
                let timer = shared.config.retry.rnr_timer;
                (Syndrome::NotReady(timer), Drop::NoRecv)
            }
            Refusal::TooLong => (Syndrome::Nak(Nak::Invalid), Drop::ShortBuffer),
            Refusal::Local => (Syndrome::Nak(Nak::Operational), Drop::Gone),
            Refusal::Invalid(reason) => (Syndrome::Nak(Nak::Invalid), reason),
            Refusal::Access(reason) => (Syndrome::Nak(Nak::Access), reason),
        };
        // No other NAK until this packet comes again.
        self.responder.quiet = true;
        // Of the refused packet, which has the expected PSN.
        self.acknowledge(self.inbound.expected, syndrome);
        match refusal {
            Refusal::NoRecv | Refusal::Busy => {}
            Refusal::TooLong => {
                // The RECV completes with the length error, as the verbs report it; the peer gets
                // the NAK.
                self.end_recv(shared, Status::LengthError);
                self.fail(shared, Status::Flushed);
            }
            Refusal::Local => self.fail(shared, Status::Flushed),
            Refusal::Invalid(_) | Refusal::Access(_) => {
                self.inbound.abandon();
                if self.link.is_some_and(|link| link.refusals_are_fatal) {
                    self.fail(shared, Status::Flushed);
                }
            }
        }
        reason
    }

    /// Answers a duplicate request without executing it again.
    fn repeat(&mut self, shared: &Shared, packet: &Packet<'_>) -> Result<(), Drop> {
        let psn = packet.bth.psn();
        match packet.op.operation {
            Operation::ReadRequest => self.repeat_read(shared, psn, packet),
            Operation::CompareSwap | Operation::FetchAdd => {
                let original = self.responder.kept_original(psn);
                // What is no longer kept cannot be executed again, so it stays unanswered until the
                // requester gives up.
                let original = original.ok_or(Drop::TooManyReads)?;
                // If not, the requester asks once more; a queued response need not be doubled.
                if self.responder.has_room() && !self.responder.is_answering(psn) {
                    self.answer_atomic(psn, original, true);
                }
                Ok(())
            }
            _ => {
                // The ACK of the last executed packet covers the duplicate too. It is the one before the
                // expected one: PSNs wrap at 2^24, and so does the sum.
                let last = self.inbound.expected.plus(u32::MAX);
                self.acknowledge(last, Syndrome::ACK);
                Ok(())
            }
        }
    }

    /// Answers a duplicate READ, which may start at any packet of the original response.
    fn repeat_read(
        &mut self,
        shared: &Shared,
        psn: Psn24,
        packet: &Packet<'_>,
    ) -> Result<(), Drop> {
        let reth = packet.reth().ok_or(Drop::Length)?;
        if !self.responder.kept_read(psn, &reth) {
            return Err(Drop::TooManyReads);
        }
        // Checked anew: the region may have been deregistered since, or its memory be another's.
        let (region, offset) = self.open_read(shared, &reth)?;
        let packets = self.read_packets(shared, &reth).map_err(|_| Drop::Length)?;
        if self.responder.has_room() && !self.responder.is_answering(psn) {
            self.answer_read(psn, packets, (region, offset), reth, true);
        }
        Ok(())
    }
}

impl Operation {
    /// Returns whether it is a SEND or WRITE, which is answered with an ACK.
    fn is_message(self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { .. })
    }
}

fn remote(reth: &Reth) -> Remote {
    Remote {
        rkey: Rkey(reth.rkey.get()),
        addr: reth.addr.get(),
    }
}
