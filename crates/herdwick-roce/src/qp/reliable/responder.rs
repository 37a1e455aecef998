//! The state of RC responses: those to send, and those kept to answer duplicate requests.

use alloc::collections::VecDeque;

use herdwick_fabric::RegionId;

use crate::{
    RD_ATOMIC_MAX,
    packet::{Psn24, Reth, Syndrome},
};

/// Responses to READs and atomics kept for repetition.
const KEPT_MAX: usize = RD_ATOMIC_MAX as usize;
/// Maximum queued responses: the kept ones, an ACK between any two, and an ACK or NAK at the end.
pub(super) const WAITING_MAX: usize = 2 * KEPT_MAX + 2;

/// The responder. The next expected PSN is in the queue pair's `inbound`.
pub(crate) struct Responder {
    /// Messages completed (the MSN, modulo 2^24 on the wire).
    pub(super) completed: u32,
    /// A gap or refusal was reported; no other NAK is sent until the expected packet arrives.
    pub(super) quiet: bool,
    kept: VecDeque<Kept>,
    /// Queued responses to READs and atomics, without repeated ones.
    deep: usize,
    pub(super) waiting: VecDeque<Response>,
}

/// A request that may be repeated.
#[derive(Clone, Copy)]
pub(super) enum Kept {
    Read {
        psn: Psn24,
        packets: u32,
        reth: Reth,
    },
    Atomic {
        psn: Psn24,
        original: u64,
    },
}

impl Kept {
    const fn psn(&self) -> Psn24 {
        match self {
            Self::Read { psn, .. } | Self::Atomic { psn, .. } => *psn,
        }
    }
}

/// A response to send, queued in PSN order.
#[derive(Clone, Copy)]
pub(super) enum Response {
    Acknowledge {
        psn: Psn24,
        completed: u32,
        syndrome: Syndrome,
    },
    Atomic {
        psn: Psn24,
        completed: u32,
        original: u64,
        again: bool,
    },
    /// The unsent part of a READ response.
    Read {
        again: bool,
        psn: Psn24,
        end: Psn24,
        completed: u32,
        region: RegionId,
        offset: usize,
        rest: usize,
        starts: bool,
    },
}

impl Response {
    /// Returns whether it answers a READ or atomic for the first time.
    fn is_first(&self) -> bool {
        matches!(
            self,
            Self::Atomic { again: false, .. } | Self::Read { again: false, .. }
        )
    }
}

impl Responder {
    /// Makes a responder, with memory for responses if the queue pair `answers` requests at all.
    pub(crate) fn new(answers: bool) -> Self {
        let room = |most| if answers { most } else { 0 };
        Self {
            completed: 0,
            quiet: false,
            kept: VecDeque::with_capacity(room(KEPT_MAX)),
            deep: 0,
            waiting: VecDeque::with_capacity(room(WAITING_MAX)),
        }
    }

    /// Returns whether a response and an ACK after it can be queued.
    pub(super) fn has_room(&self) -> bool {
        // Two places: the response, and the ACK or NAK that may follow it.
        self.waiting.len() + 2 <= WAITING_MAX
    }

    /// Returns whether the peer has as many READs and atomics outstanding as it may.
    pub(super) fn is_deep(&self) -> bool {
        self.deep >= KEPT_MAX
    }

    pub(super) fn push(&mut self, response: Response) {
        debug_assert!(self.waiting.len() < WAITING_MAX, "room was asked for");
        // Repeated ones do not count: their request was counted when it came first.
        self.deep += usize::from(response.is_first());
        self.waiting.push_back(response);
    }

    /// Removes the oldest response, which was sent.
    pub(super) fn pop(&mut self) {
        if let Some(said) = self.waiting.pop_front() {
            self.deep -= usize::from(said.is_first());
        }
    }

    /// Keeps a response for repetition; drops the oldest kept one if full.
    pub(super) fn keep(&mut self, kept: Kept) {
        // A correct peer never repeats an older one: it has at most that many outstanding.
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(kept);
    }

    /// Drops kept responses so far behind `now` that their PSN would compare as ahead of it.
    pub(super) fn forget_old(&mut self, now: Psn24) {
        while self
            .kept
            .front()
            .is_some_and(|kept| now.ahead_of(kept.psn()) < 0)
        {
            self.kept.pop_front();
        }
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Returns the original value of an atomic that was executed.
    pub(super) fn kept_original(&self, again: Psn24) -> Option<u64> {
        self.kept.iter().rev().find_map(|kept| match kept {
            Kept::Atomic { psn, original } if *psn == again => Some(*original),
            _ => None,
        })
    }

    /// Returns whether a duplicate READ requests a part of what it requested at first.
    pub(super) fn kept_read(&self, again: Psn24, asked: &Reth) -> bool {
        self.kept.iter().any(|kept| match kept {
            Kept::Read { psn, packets, reth } => {
                let index = again.ahead_of(*psn);
                let inside = (0..(*packets).cast_signed()).contains(&index);
                inside && reth.rkey.get() == asked.rkey.get() && reth.covers(asked)
            }
            Kept::Atomic { .. } => false,
        })
    }

    /// Returns whether a response for this PSN is queued already.
    pub(super) fn is_answering(&self, asked: Psn24) -> bool {
        self.waiting.iter().any(|waiting| match waiting {
            Response::Atomic { psn, .. } => *psn == asked,
            Response::Read { psn, end, .. } => asked.ahead_of(*psn) >= 0 && end.ahead_of(asked) > 0,
            Response::Acknowledge { .. } => false,
        })
    }
}

impl Reth {
    fn covers(&self, part: &Self) -> bool {
        // The peer chooses both numbers.
        let end = |reth: &Self| reth.addr.get().checked_add(reth.len.get().into());
        let (Some(whole), Some(asked)) = (end(self), end(part)) else {
            return false;
        };
        part.addr.get() >= self.addr.get() && asked <= whole
    }
}
