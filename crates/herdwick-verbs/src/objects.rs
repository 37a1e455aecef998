//! The objects of a port: queues, regions and addresses, and the outstanding work requests.

use std::{collections::VecDeque, sync::Arc};

use herdwick_fabric::{Completion, CqId, Local, Opcode, Psn, QpId, QpState, Slab, Transport};
use herdwick_mem::Span;

use crate::{raw, sys};

pub(crate) struct PortCq {
    pub(crate) raw: Arc<raw::Cq>,
    pub(crate) depth: usize,
    /// Maximum entries that its queue pairs can need.
    pub(crate) claimed: usize,
    pub(crate) armed: bool,
    /// Completions polled from the device but not yet by the caller; at most `depth`.
    pub(crate) stash: VecDeque<Completion>,
}

pub(crate) struct Region {
    pub(crate) mr: raw::Mr,
    pub(crate) span: Span,
    pub(crate) pd: u32,
}

pub(crate) struct Address {
    pub(crate) ah: raw::Ah,
    pub(crate) qp: QpId,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

pub(crate) struct PortQp {
    pub(crate) raw: raw::Qp,
    pub(crate) id: QpId,
    pub(crate) pd: u32,
    pub(crate) transport: Transport,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) state: QpState,
    pub(crate) psn: Psn,
    pub(crate) qkey: u32,
    pub(crate) sends: Outstanding,
    pub(crate) recvs: Outstanding,
}

/// The `wr_id`s of outstanding work requests, in the order of posting. The device gets a [`WorkId`]
/// in place of each, so that a completion shows which requests precede it.
#[derive(Debug)]
pub(crate) struct Outstanding {
    ring: Box<[u64]>,
    depth: u32,
    /// Number of positions ever taken, and ever freed; both wrap.
    taken: u32,
    freed: u32,
}

/// A token holds a position modulo this.
const POSITIONS: u32 = 1 << POSITION_BITS;
const POSITION_BITS: u32 = 24;

impl Outstanding {
    pub(crate) fn new(depth: usize) -> Self {
        // At most half of the positions, so that `complete` can tell outstanding ones from freed
        // ones.
        let depth = depth.min(POSITIONS as usize / 2);
        Self {
            ring: vec![0; depth.max(1).next_power_of_two()].into(),
            depth: depth as u32,
            taken: 0,
            freed: 0,
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth as usize
    }

    #[inline]
    pub(crate) fn room(&self) -> usize {
        // Both count modulo 2^32, so the difference is right across the wrap.
        (self.depth - self.taken.wrapping_sub(self.freed)) as usize
    }

    /// Starts a batch for `qp`. The caller has checked that there is room.
    #[inline]
    pub(crate) fn batch(&mut self, qp: QpId) -> Batch<'_> {
        Batch {
            ring: &mut self.ring,
            next: self.taken,
            qp: u64::from(qp.0) << 32,
        }
    }

    /// Marks the first `count` requests of the batch as posted.
    #[inline]
    pub(crate) fn took(&mut self, count: u32) {
        self.taken = self.taken.wrapping_add(count);
    }

    /// Returns the `wr_id` at `position` and frees it with all before it; `None` when it is not
    /// outstanding.
    #[inline]
    pub(crate) fn complete(&mut self, position: u32) -> Option<u64> {
        // A token has 24 bits of the position. The depth is at most half of that range, so the
        // distance is unambiguous.
        let before = position.wrapping_sub(self.freed) % POSITIONS;
        // A completion that the device reports twice, or of another life of the queue pair's slot.
        if before >= self.taken.wrapping_sub(self.freed) {
            return None;
        }
        // Unsignaled requests before it have no completion: a send queue completes in order, so they
        // are done.
        self.freed = self.freed.wrapping_add(before + 1);
        let mask = self.ring.len() - 1;
        Some(self.ring[position as usize & mask])
    }
}

/// A batch that is being filled.
pub(crate) struct Batch<'a> {
    ring: &'a mut [u64],
    next: u32,
    qp: u64,
}

impl Batch<'_> {
    /// Records the next request; returns its token.
    #[inline]
    pub(crate) fn put(&mut self, wr_id: u64, opcode: Opcode) -> u64 {
        let (at, mask) = (self.next, self.ring.len() - 1);
        self.ring[at as usize & mask] = wr_id;
        self.next = at.wrapping_add(1);
        self.qp | u64::from(opcode as u8) << POSITION_BITS | u64::from(at % POSITIONS)
    }
}

/// The decoded `wr_id` of a completion: the queue pair's id, the verb, and the request's position.
#[derive(Clone, Copy)]
pub(crate) struct WorkId {
    pub(crate) qp: u32,
    pub(crate) opcode: Opcode,
    pub(crate) position: u32,
}

/// The verbs by number, padded to a power of two.
const OPCODES: [Opcode; 8] = [
    Opcode::Send,
    Opcode::Write,
    Opcode::Read,
    Opcode::FetchAdd,
    Opcode::CompareSwap,
    Opcode::Recv,
    Opcode::RecvWithImm,
    // Number 7 does not occur; the padding makes the remainder a mask.
    Opcode::Send,
];

const _: () = {
    let mut number = 0;
    while number < 7 {
        assert!(OPCODES[number] as usize == number);
        number += 1;
    }
};

impl WorkId {
    #[inline]
    pub(crate) fn decode(word: u64) -> Self {
        Self {
            qp: (word >> 32) as u32,
            // The word may be of a driver that changed it: no index is outside.
            opcode: OPCODES[(word >> POSITION_BITS) as usize % OPCODES.len()],
            position: word as u32 % POSITIONS,
        }
    }
}

/// Returns the scatter/gather element of a byte range, if it lies in a region of `pd`.
#[inline]
pub(crate) fn local(regions: &Slab<Region>, pd: u32, at: Local) -> Option<sys::Sge> {
    let region = regions.get(at.region.0)?;
    let end = at.offset.checked_add(at.len)?;
    if region.pd != pd || end > region.span.len() {
        return None;
    }
    Some(sys::Sge {
        addr: at.offset as u64,
        length: u32::try_from(at.len).ok()?,
        lkey: region.mr.keys().0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_frees_all_earlier_requests() {
        let mut sends = Outstanding::new(3);
        sends.taken = u32::MAX - 1;
        sends.freed = u32::MAX - 1;
        let mut batch = sends.batch(QpId(7));
        let token = |n| WorkId::decode(batch.put(n, Opcode::Send)).position;
        let positions: Vec<u32> = (10..13).map(token).collect();
        assert_eq!(positions, [POSITIONS - 2, POSITIONS - 1, 0]);
        sends.took(3);
        assert_eq!(sends.room(), 0);
        assert_eq!(sends.complete(POSITIONS - 1), Some(11));
        assert_eq!(sends.room(), 2);
        assert_eq!(sends.complete(POSITIONS - 1), None, "once");
        assert_eq!(sends.complete(1), None, "not posted");
        assert_eq!(sends.complete(0), Some(12));
    }

    #[test]
    fn tokens_round_trip() {
        for opcode in &OPCODES[..7] {
            let mut queue = Outstanding::new(4);
            queue.taken = POSITIONS - 1;
            let back = WorkId::decode(queue.batch(QpId(0xdead_beef)).put(1, *opcode));
            assert_eq!(
                (back.qp, back.opcode, back.position),
                (0xdead_beef, *opcode, POSITIONS - 1)
            );
        }
    }
}
