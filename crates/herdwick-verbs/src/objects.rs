//! What a port owns, by id.

use std::{collections::VecDeque, sync::Arc};

use herdwick_fabric::{Completion, CqId, Local, Opcode, Psn, QpId, QpState, Slab, Transport};
use herdwick_mem::Span;

use crate::{raw, sys};

pub(crate) struct Cq {
    pub(crate) raw: Arc<raw::Cq>,
    pub(crate) depth: usize,
    /// Entries that queue pairs may need at worst.
    pub(crate) claimed: usize,
    pub(crate) armed: bool,
    /// Taken from the device and not yet by the caller; `depth` at most.
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

pub(crate) struct Qp {
    pub(crate) raw: raw::Qp,
    pub(crate) id: QpId,
    pub(crate) pd: u32,
    pub(crate) transport: Transport,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) state: QpState,
    pub(crate) psn: Psn,
    pub(crate) qkey: u32,
    pub(crate) sends: Outstanding<(u64, Opcode)>,
    pub(crate) recvs: Outstanding<u64>,
}

/// Work requests that are not known to be done, in the order of posting. The device is given a
/// position instead of the caller's `wr_id`: so a completion says which came before it.
#[derive(Debug)]
pub(crate) struct Outstanding<T> {
    ring: Box<[T]>,
    depth: u32,
    /// Positions ever taken, and ever given back; both count modulo 2^31.
    taken: u32,
    freed: u32,
}

/// Positions are numbered modulo this.
const POSITIONS: u32 = 1 << 31;

impl<T: Copy> Outstanding<T> {
    pub(crate) fn new(depth: usize, blank: T) -> Self {
        Self {
            ring: vec![blank; depth.max(1).next_power_of_two()].into(),
            depth: u32::try_from(depth).unwrap_or(0),
            taken: 0,
            freed: 0,
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth as usize
    }

    #[inline]
    pub(crate) fn room(&self) -> usize {
        (self.depth - self.count()) as usize
    }

    #[inline]
    fn count(&self) -> u32 {
        self.taken.wrapping_sub(self.freed) % POSITIONS
    }

    fn slot(&mut self, position: u32) -> &mut T {
        let mask = self.ring.len() - 1;
        &mut self.ring[position as usize & mask]
    }

    /// Where the `n`th of a batch will stand.
    #[inline]
    pub(crate) fn position(&self, n: u32) -> u32 {
        self.taken.wrapping_add(n) % POSITIONS
    }

    /// Notes what stands at `position`, of a batch that is being made.
    #[inline]
    pub(crate) fn put(&mut self, position: u32, item: T) {
        *self.slot(position) = item;
    }

    /// The batch of `count` was posted.
    #[inline]
    pub(crate) fn took(&mut self, count: u32) {
        self.taken = self.position(count);
    }

    /// What stood at `position`, which is free now with all before it; `None` when nothing did.
    #[inline]
    pub(crate) fn complete(&mut self, position: u32) -> Option<T> {
        if position.wrapping_sub(self.freed) % POSITIONS >= self.count() {
            return None;
        }
        self.freed = position.wrapping_add(1) % POSITIONS;
        Some(*self.slot(position))
    }
}

/// What comes back in a completion: the queue pair's id, whether it was a RECV, and its position.
#[derive(Clone, Copy)]
pub(crate) struct Token {
    pub(crate) qp: u32,
    pub(crate) recv: bool,
    pub(crate) position: u32,
}

impl Token {
    #[inline]
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.qp) << 32 | u64::from(self.recv) << 31 | u64::from(self.position)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "halves of a word")]
    pub(crate) fn decode(word: u64) -> Self {
        Self {
            qp: (word >> 32) as u32,
            recv: word & 1 << 31 != 0,
            position: word as u32 % POSITIONS,
        }
    }
}

/// The device's words for a run of bytes, if it lies in a region of `pd`.
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
    fn a_completion_frees_everything_before_it() {
        let mut sends = Outstanding::new(3, 0);
        sends.taken = POSITIONS - 2;
        sends.freed = POSITIONS - 2;
        let positions: Vec<u32> = (0..3).map(|n| sends.position(n)).collect();
        assert_eq!(positions, [POSITIONS - 2, POSITIONS - 1, 0]);
        for (n, position) in positions.iter().enumerate() {
            sends.put(*position, n + 10);
        }
        sends.took(3);
        assert_eq!(sends.room(), 0);
        assert_eq!(sends.complete(POSITIONS - 1), Some(11));
        assert_eq!(sends.room(), 2);
        assert_eq!(sends.complete(POSITIONS - 1), None, "once");
        assert_eq!(sends.complete(1), None, "not posted");
        assert_eq!(sends.complete(0), Some(12));
    }

    #[test]
    fn tokens_come_back_as_they_went() {
        for recv in [false, true] {
            let token = Token {
                qp: 0xdead_beef,
                recv,
                position: POSITIONS - 1,
            };
            let back = Token::decode(token.encode());
            assert_eq!(
                (back.qp, back.recv, back.position),
                (0xdead_beef, recv, POSITIONS - 1)
            );
        }
    }
}
