//! Arriving packets: finds the queue pair, checks source, ICRC and trailer, and dispatches.

use core::{net::IpAddr, time::Duration};

use herdwick_fabric::{QpState, Transport};
use zerocopy::FromBytes;

use super::Engine;
use crate::{
    Arrival, Drop, Memory, Wire,
    icrc::{INTERLEAVED, IpId, Route},
    packet::{
        BTH_BYTES, Bth, CONGESTION, Class, Deth, ICRC_BYTES, Malformed, Operation, Packet,
        PacketOp, Place,
    },
    qp::{Qp, class},
    shared::Shared,
};

/// The ECN bits of the type of service: a router on the path is congested (CE).
const CONGESTION_EXPERIENCED: u8 = 3;

/// The bits of an opcode that select the transport, and their value for RC.
const TRANSPORT_BITS: u8 = 0xe0;
const RC_OPCODES: u8 = 0;

impl Engine {
    /// Processes a packet that arrived at `now`. Drops are counted in [`Engine::counters`].
    pub fn handle_packet<M: Memory, W: Wire>(
        &mut self,
        now: Duration,
        arrival: &Arrival<'_>,
        memory: &mut M,
        wire: &mut W,
    ) {
        // The greater: the engine's time never goes back, whatever its caller's clock does.
        self.shared.now = self.shared.now.max(now);
        self.sums.follow(&route(arrival));
        self.take(arrival, None, memory, wire);
    }

    /// Processes packets that arrived as a GRO batch: of `segment` bytes each, back to back, the
    /// last perhaps shorter. Their IPv4 identifications are assumed to count from 0.
    pub fn handle_batch<M: Memory, W: Wire>(
        &mut self,
        now: Duration,
        batch: &Arrival<'_>,
        segment: usize,
        memory: &mut M,
        wire: &mut W,
    ) {
        self.shared.now = self.shared.now.max(now);
        self.sums.follow(&route(batch));
        let (mut arrival, mut id, segment) = (*batch, 0_u16, segment.max(1));
        for group in batch.bytes.chunks(segment.saturating_mul(INTERLEAVED)) {
            arrival.bytes = group;
            // A packet that will be dropped is not worth a checksum.
            // `addressee` reads the first packet of the group alone. The others may be for other
            // queue pairs; `take` checks each of them.
            let sums = match self.addressee(&arrival) {
                Ok(_) if self.shared.config.check_icrc => self.sums.interleaved(group, segment, id),
                _ => None,
            };
            for (nth, packet) in group.chunks(segment).enumerate() {
                (arrival.bytes, arrival.ip_id) = (packet, IpId::Hint(id));
                self.take(&arrival, sums.map(|sums| sums[nth]), memory, wire);
                id = id.wrapping_add(1);
            }
        }
    }

    /// Processes a packet on the route that `sums` follows. `sum` is its ICRC, if that was computed
    /// with the identification that the packet hints at.
    #[inline]
    fn take<M: Memory, W: Wire>(
        &mut self,
        arrival: &Arrival<'_>,
        sum: Option<u32>,
        memory: &mut M,
        wire: &mut W,
    ) {
        self.shared.counters.packets_in += 1;
        match self.accept(arrival, sum, memory, wire) {
            Err(reason) => self.note_dropped(arrival, reason),
            // Only for accepted packets: a forged one must not make this end send CNPs.
            Ok(()) if arrival.tos & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED => {
                self.tell_of_congestion(arrival);
            }
            Ok(()) => {}
        }
    }

    /// Counts a dropped packet, and charges it to its sender if the packet was wrong.
    #[cold]
    fn note_dropped(&mut self, arrival: &Arrival<'_>, reason: Drop) {
        self.shared.counters.drop(reason);
        // `addressee` fails for a source that a connection does not accept, so a forger with
        // another address brings no blame on the peer.
        let turn = self.shared.turn;
        if reason.is_wrong()
            && let Ok((id, _, source)) = self.addressee(arrival)
            && let Some(qp) = self.qps.get_mut(id)
        {
            qp.blame.add(turn, source);
        }
    }

    /// Schedules a CNP to the sender of an accepted packet that was marked CE.
    #[cold]
    fn tell_of_congestion(&mut self, arrival: &Arrival<'_>) {
        if let Ok((id, bth, _)) = self.addressee(arrival)
            // A CNP that is marked itself is not answered: two ends would exchange CNPs for as long
            // as the network is congested.
            && bth.opcode() != CONGESTION
            && let Some(qp) = self.qps.get_mut(id)
            && qp.tell_of_congestion(&mut self.shared)
        {
            self.ready.add(qp);
        }
    }

    /// Returns the queue pair that a packet is addressed to, if it accepts packets from the source;
    /// with the packet's BTH and source address.
    #[inline]
    fn addressee(&self, arrival: &Arrival<'_>) -> Result<(u32, Bth, IpAddr), Drop> {
        if arrival.bytes.len() < BTH_BYTES + ICRC_BYTES {
            return Err(Drop::Short);
        }
        let (bth, _) = Bth::read_from_prefix(arrival.bytes).map_err(|_| Drop::Short)?;
        let id = self.by_qpn.get(bth.dest()).ok_or(Drop::UnknownQp)?;
        let qp = self.qps.get(id).ok_or(Drop::UnknownQp)?;
        if qp.state != QpState::ReadyToSend {
            return Err(Drop::NotReady);
        }
        // A socket bound to `::` reports IPv4 peers as mapped addresses.
        let source = arrival.from.ip().to_canonical();
        // The UDP source port is not compared: RoCE senders choose it freely, for ECMP.
        if qp.link.as_ref().is_some_and(|link| link.ip != source) {
            return Err(Drop::Source);
        }
        // Before the ICRC: a packet that is dropped unseen costs no checksum.
        if qp.blame.turn == self.shared.turn && qp.blame.is_full(source) {
            return Err(Drop::TooManyRefused);
        }
        Ok((id, bth, source))
    }

    #[inline]
    fn accept<M: Memory, W: Wire>(
        &mut self,
        arrival: &Arrival<'_>,
        sum: Option<u32>,
        memory: &mut M,
        wire: &mut W,
    ) -> Result<(), Drop> {
        let (bytes, (id, bth, source)) = (arrival.bytes, self.addressee(arrival)?);
        // Before `open`: a packet that was damaged on the way must not count as a forged one
        // (`Drop::Tag`).
        if self.shared.config.check_icrc {
            let right = match sum {
                Some(sum) => self.sums.confirms(bytes, sum, arrival.ip_id),
                None => self.sums.check(bytes, arrival.ip_id).is_some(),
            };
            right.then_some(()).ok_or(Drop::Icrc)?;
        }
        // Looked up again: `sums` and `qps` could not be borrowed at once above.
        let qp = self.qps.get_mut(id).ok_or(Drop::UnknownQp)?;
        let packet = self
            .shared
            .open(qp, source, &bytes[..bytes.len() - ICRC_BYTES])?;
        if bth.opcode() == CONGESTION {
            if !self.shared.config.ecn {
                return Err(Drop::UnexpectedCnp);
            }
            // After `open`: on a keyed connection a forged CNP must not slow the sender down.
            self.shared.counters.connections.cnps += 1;
            qp.slow_down(&mut self.shared);
            return Ok(());
        }
        // The commonest short messages, a WRITE of one packet and a datagram with an immediate, have
        // arms of their own, in which the compiler knows the opcode.
        // After the congestion packets, whose opcode is of no transport.
        match (qp.transport, bth.opcode()) {
            (Transport::Uc, UC_WRITE_ONLY_OPCODE) => {
                let packet = Packet::parse_as(UC_WRITE_ONLY, packet)?;
                qp.receive_unreliable(&mut self.shared, &packet, memory)
            }
            (Transport::Ud, UD_SEND_IMM_OPCODE) => {
                let packet = Packet::parse_as(UD_SEND_IMM, packet)?;
                qp.receive_datagram(&mut self.shared, arrival, &packet, memory)
            }
            _ => self.accept_any(id, arrival, packet, memory, wire),
        }
    }

    /// Processes any packet that its queue pair supports.
    fn accept_any<M: Memory, W: Wire>(
        &mut self,
        id: u32,
        arrival: &Arrival<'_>,
        packet: &[u8],
        memory: &mut M,
        wire: &mut W,
    ) -> Result<(), Drop> {
        let qp = self.qps.get_mut(id).ok_or(Drop::UnknownQp)?;
        let packet = match Packet::parse(packet) {
            // IBTA 9.7.4.1.2: an unsupported opcode of the queue pair's own transport is answered
            // with a NAK.
            Err(Malformed::Opcode) if qp.transport == Transport::Rc => {
                let (bth, _) = Bth::read_from_prefix(packet).map_err(|_| Drop::Short)?;
                if bth.opcode() & TRANSPORT_BITS != RC_OPCODES {
                    return Err(Drop::Opcode);
                }
                let reason = qp.refuse_opcode(&mut self.shared, bth.psn());
                self.ready.add(qp);
                return Err(reason);
            }
            parsed => parsed?,
        };
        // A UC packet to an RC queue pair is no unsupported request: it is dropped, not answered.
        if packet.op.class != class(qp.transport) {
            return Err(Drop::Transport);
        }
        match qp.transport {
            Transport::Ud => qp.receive_datagram(&mut self.shared, arrival, &packet, memory),
            Transport::Uc => qp.receive_unreliable(&mut self.shared, &packet, memory),
            Transport::Rc => {
                let done = qp.receive_reliable(&mut self.shared, &packet, memory, wire);
                // Also after a drop: a NAK may be queued.
                if qp.has_work() {
                    self.ready.add(qp);
                }
                done
            }
        }
    }
}

/// A UC WRITE of one packet, without an immediate.
const UC_WRITE_ONLY: PacketOp = PacketOp {
    class: Class::Uc,
    operation: Operation::Write {
        place: Place::Only,
        imm: false,
    },
};
const UC_WRITE_ONLY_OPCODE: u8 = UC_WRITE_ONLY.encode();
/// A datagram with an immediate.
const UD_SEND_IMM: PacketOp = PacketOp {
    class: Class::Ud,
    operation: Operation::Send {
        place: Place::Only,
        imm: true,
    },
};
const UD_SEND_IMM_OPCODE: u8 = UD_SEND_IMM.encode();

impl Shared {
    /// Checks and removes the trailer of a packet whose peering is keyed; returns others unchanged.
    #[inline]
    fn open<'p>(&mut self, qp: &Qp, source: IpAddr, bytes: &'p [u8]) -> Result<&'p [u8], Drop> {
        let (keyed, sender) = match qp.link {
            Some(link) => (link.target.keyed, link.target.qpn),
            // An unkeyed UD queue pair accepts datagrams of any sender with its Q_Key, as the verbs
            // have it.
            None if !qp.keyed => (None, 0),
            None => {
                // The sender's number selects the key, so it is read before the tag is checked; a
                // false number selects a key under which the tag is wrong.
                let sender = Deth::peek(bytes).ok_or(Drop::Short)?;
                let known = self.by_source.get(&(qp.id, source, sender));
                (Some(*known.ok_or(Drop::Unkeyed)?), sender)
            }
        };
        match keyed.and_then(|keyed| self.keyed.get_mut(keyed)) {
            Some(keyed) => keyed.open(sender, bytes),
            None => Ok(bytes),
        }
    }
}

/// Returns the fields of the IP and UDP headers that the ICRC covers.
#[inline]
fn route(arrival: &Arrival<'_>) -> Route {
    Route {
        source: arrival.from,
        destination: arrival.to,
        // A socket does not show the bit, and RoCE senders set it: a fragment has no BTH of its own.
        dont_fragment: true,
    }
}

impl From<Malformed> for Drop {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Short => Self::Short,
            Malformed::Version => Self::Version,
            Malformed::Partition => Self::Partition,
            Malformed::Opcode => Self::Opcode,
            Malformed::Pad => Self::Pad,
        }
    }
}
