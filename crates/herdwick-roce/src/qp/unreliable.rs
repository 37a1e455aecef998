//! UC and UD: a packet is done once it is sent; wrong or missing packets are dropped with their
//! message.

use herdwick_fabric::{Payload, SendWr, Status};

use super::{
    Ended, Qp,
    fragment::{Fragment, Whole, class},
    message::Refusal,
    sends::{Body, Parts, Verb, Wqe},
};
use crate::{
    Drop, Memory, Wire,
    packet::{Class, Packet, Place},
    shared::Shared,
};

impl Qp {
    /// Sends a work request directly, without queueing it. Returns `false` if it needs more than
    /// one packet or the wire has no room.
    #[inline(always)]
    pub(super) fn send_now<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        (class, wr, (payload, verb, imm, to)): (Class, &SendWr<'_>, Parts<'_>),
        memory: &M,
        wire: &mut W,
    ) -> bool {
        // `check` has accepted the target; were it gone, `post` would decide.
        let (Ok(target), len) = (self.target(shared, to), payload.len()) else {
            return false;
        };
        // Several packets may find room for some of them only, so such a request is queued.
        if len > self.mtu(shared) {
            return false;
        }
        let psn = self.sends.assign;
        let fragment = Fragment {
            class,
            target,
            source: self.qpn,
            psn,
            place: Place::Only,
            write: match verb {
                Verb::Write(to) => Some(Whole { to, len }),
                _ => None,
            },
            imm,
            solicited: wr.solicited,
            ack_request: false,
            migration: shared.config.migration,
            payload,
        };
        if !fragment.emit(shared, memory, wire) {
            return false;
        }
        self.sends.assign = psn.plus(1);
        // The queue is empty, so both stay equal.
        self.sends.next = self.sends.assign;
        let ended = Ended {
            wr_id: wr.wr_id,
            opcode: verb.opcode(),
            signaled: wr.signaled,
            status: Status::Success,
        };
        self.finish_send(&mut shared.cqs, &ended);
        true
    }

    /// Sends queued requests in order; returns whether all of them found room.
    pub(super) fn transmit_unreliable<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        while let Some(entry) = self.sends.ring.front().copied() {
            let index = self.index_of_next(&entry);
            let mut status = Status::Success;
            // Nothing more is sent of it; the receiver drops what it has of the message.
            if self.gone(shared, &entry) {
                status = Status::LocalError;
            } else {
                let (offset, len) = self.run(shared, &entry, index);
                let payload = self.sends.payload(&entry, offset, len);
                let fragment = self.fragment(shared, &entry, index, payload);
                if !fragment.emit(shared, memory, wire) {
                    return false;
                }
            }
            self.sends.next = self.sends.next.plus(1);
            if status != Status::Success || index + 1 == entry.packets {
                // Also of a request that failed at an earlier packet: the PSNs of the others are
                // passed over.
                self.sends.next = entry.psn.plus(entry.packets);
                self.sends.ring.pop_front();
                self.finish_send(&mut shared.cqs, &entry.ended(status));
            }
        }
        true
    }

    /// Processes a packet of a UC queue pair.
    #[inline(always)]
    pub(crate) fn receive_unreliable<M: Memory>(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        memory: &mut M,
    ) -> Result<(), Drop> {
        let psn = packet.bth.psn();
        let starts = packet.starts();
        // A middle packet out of order, or whose beginning was lost, means a lost message: UC has
        // no way to get it again.
        if !starts && (psn != self.inbound.expected || self.inbound.is_idle()) {
            self.inbound.abandon();
            return Err(Drop::Sequence);
        }
        if starts && !self.inbound.is_idle() {
            self.inbound.abandon();
            shared.counters.drop(Drop::Partial);
        }
        // A gap before the first packet of a message is no fault on UC: what was lost is gone, and
        // this message is received.
        self.inbound.expected = psn.plus(1);
        self.execute(shared, packet, memory).map_err(|refusal| {
            self.inbound.abandon();
            match refusal {
                Refusal::NoRecv => Drop::NoRecv,
                Refusal::TooLong => Drop::ShortBuffer,
                Refusal::Busy => Drop::TooManyReads,
                Refusal::Local => Drop::Gone,
                Refusal::Invalid(reason) | Refusal::Access(reason) => reason,
            }
        })
    }

    /// Returns the index of the entry's next packet to send.
    pub(super) fn index_of_next(&self, entry: &Wqe) -> u32 {
        // Never negative: `next` is at the entry's first packet or behind it.
        self.sends.next.ahead_of(entry.psn).cast_unsigned()
    }

    /// Returns whether the region of an entry's payload was deregistered after posting.
    pub(super) fn gone(&self, shared: &Shared, entry: &Wqe) -> bool {
        match entry.body {
            Body::Slot(_) => false,
            Body::Region(local) => shared.regions.get(local.region).is_none(),
        }
    }

    /// Returns the offset in the message at which packet `index` starts, and its length.
    pub(super) fn run(&self, shared: &Shared, entry: &Wqe, index: u32) -> (usize, usize) {
        let mtu = self.mtu(shared);
        let offset = index as usize * mtu;
        (offset, (entry.len - offset).min(mtu))
    }

    /// Returns packet `index` of a SEND or WRITE.
    #[inline]
    pub(super) fn fragment<'a>(
        &self,
        shared: &Shared,
        entry: &Wqe,
        index: u32,
        payload: Payload<'a>,
    ) -> Fragment<'a> {
        let place = Place::of(index, entry.packets);
        let len = entry.len;
        Fragment {
            class: class(self.transport),
            target: entry.target,
            source: self.qpn,
            psn: entry.psn.plus(index),
            place,
            write: match entry.verb {
                Verb::Write(to) => Some(Whole { to, len }),
                _ => None,
            },
            imm: entry.imm.filter(|_| place.ends()),
            solicited: entry.solicited && place.ends(),
            ack_request: false,
            migration: shared.config.migration,
            payload,
        }
    }
}
