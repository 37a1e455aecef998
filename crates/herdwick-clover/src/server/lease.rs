//! When a client is taken for dead: it has not called for a lease, or memory has waited for it for that
//! long.

use std::{collections::VecDeque, time::Duration};

use super::peer::Peer;

/// Epochs whose beginnings are noted within a lease.
const NOTES: u32 = 16;

/// The lease, and which epochs began before it.
#[derive(Debug)]
pub(super) struct Lease {
    time: Duration,
    /// Some epochs that began within the lease, and when at the latest.
    begun: VecDeque<(u64, Duration)>,
    /// The newest one noted that began before that: who has published less holds memory for too long.
    overdue: u64,
}

impl Lease {
    pub(super) fn new(time: Duration) -> Self {
        Self {
            time,
            begun: VecDeque::with_capacity(NOTES as usize + 2),
            overdue: 0,
        }
    }

    /// Notes the server's epoch.
    pub(super) fn note(&mut self, epoch: u64, now: Duration) {
        while let Some((begun, since)) = self.begun.front().copied()
            && now.saturating_sub(since) > self.time
        {
            self.overdue = begun;
            self.begun.pop_front();
        }
        let (last, since) = self
            .begun
            .back()
            .copied()
            .unwrap_or((self.overdue, Duration::ZERO));
        // One note in each part of the lease, so that they are few: a client has up to a part
        // longer.
        let due = self.begun.is_empty() || now.saturating_sub(since) >= self.time / NOTES;
        if epoch > last && due && self.begun.len() < self.begun.capacity() {
            self.begun.push_back((epoch, now));
        }
    }

    /// Returns whether a client's connection failed, or its lease is over.
    pub(super) fn is_over(&self, peer: &Peer, now: Duration) -> bool {
        peer.failed || now.saturating_sub(peer.heard) > self.time || peer.published < self.overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_overdue_when_a_later_one_began_a_lease_ago() {
        let mut lease = Lease::new(Duration::from_millis(16));
        let at = Duration::from_millis;
        for now in 1..=100 {
            lease.note(now, at(now));
            assert!(lease.begun.len() <= NOTES as usize + 2);
            assert_eq!(lease.overdue, now.saturating_sub(17));
        }
        // No other epoch begins, and the last one is overdue after a lease.
        lease.note(100, at(116));
        assert_eq!(lease.overdue, 99);
        lease.note(100, at(117));
        assert_eq!(lease.overdue, 100);
        // One that begins just after another was noted is noted a little later.
        lease.note(101, at(200));
        lease.note(102, at(200));
        lease.note(102, at(201));
        lease.note(102, at(218));
        assert_eq!(lease.overdue, 102);
    }
}
