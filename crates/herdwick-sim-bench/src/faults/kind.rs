//! The kinds of faults, and the schedule of them that a seed draws.

use std::time::Duration;

use crate::keys::Draws;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// Packets are lost.
    Loss,
    /// Packets arrive twice.
    Duplicate,
    /// Packets overtake others.
    Reorder,
    /// Packets travel longer.
    Delay,
    /// Bits flip on the link.
    Corrupt,
    /// WRITEs and READs are executed word by word.
    Tear,
    /// Messages find no RECV.
    NotReady,
    /// Packets are lost one way between a client and the server.
    Cut,
    /// A client or the server loses its device.
    Device,
    /// A completion queue is overrun.
    Overrun,
    /// A process runs at a fraction of its speed.
    Slow,
    /// A process is stopped, and goes on.
    Pause,
    /// A client is killed, and another takes its place.
    Kill,
    /// The server is killed, and starts again, without its items unless they outlive it.
    Restart,
    /// A client's clock, or the server's, steps forward.
    Clock,
    /// The server ends a client's lease.
    Revoke,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Loss,
        Self::Duplicate,
        Self::Reorder,
        Self::Delay,
        Self::Corrupt,
        Self::Tear,
        Self::NotReady,
        Self::Cut,
        Self::Device,
        Self::Overrun,
        Self::Slow,
        Self::Pause,
        Self::Kill,
        Self::Restart,
        Self::Clock,
        Self::Revoke,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Delay => "delay",
            Self::Corrupt => "corrupt",
            Self::Tear => "tear",
            Self::NotReady => "not-ready",
            Self::Cut => "cut",
            Self::Device => "device",
            Self::Overrun => "overrun",
            Self::Slow => "slow",
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::Restart => "restart",
            Self::Clock => "clock",
            Self::Revoke => "revoke",
        }
    }

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// Pause between two faults, at most.
const GAP_MAX: u32 = 150_000;
/// How long a fault lasts, from and to, in nanoseconds.
const LASTS: (u32, u32) = (10_000, 400_000);

/// A fault of the schedule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// Its place in the schedule.
    pub(super) number: u64,
    pub(super) kind: FaultKind,
    /// Since the start of the run.
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    /// The party that it hits, and its strength: to be taken modulo what there is, so that the schedule
    /// does not depend on the number of clients.
    pub(super) who: u64,
    pub(super) amount: u64,
}

/// The faults of a seed, one after the other, without end.
pub(super) struct Schedule {
    draws: Draws,
    kinds: Vec<FaultKind>,
    number: u64,
    at: Duration,
}

impl Schedule {
    /// Makes the schedule of a seed; `kinds` is not empty.
    pub(super) fn new(seed: u64, kinds: &[FaultKind]) -> Self {
        Self {
            // `nemesis` in ASCII: a sequence of its own beside the others of the seed.
            draws: Draws::new(seed ^ 0x6e65_6d65_7369_7300),
            kinds: kinds.to_vec(),
            number: 0,
            at: Duration::ZERO,
        }
    }

    pub(super) fn draw(&mut self) -> Fault {
        let gap = self.draws.below(GAP_MAX) + 1;
        self.at += Duration::from_nanos(gap.into());
        let kind = self.draws.below(self.kinds.len() as u32) as usize;
        let lasts = LASTS.0 + self.draws.below(LASTS.1 - LASTS.0);
        self.number += 1;
        Fault {
            number: self.number,
            kind: self.kinds[kind],
            at: self.at,
            lasts: Duration::from_nanos(lasts.into()),
            who: self.draws.next(),
            amount: self.draws.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_repeat_and_differ_by_seed() {
        let drawn = |seed: u64| -> Vec<String> {
            let mut schedule = Schedule::new(seed, &FaultKind::ALL);
            (0..200).map(|_| format!("{:?}", schedule.draw())).collect()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let mut schedule = Schedule::new(3, &FaultKind::ALL);
        let mut seen = [0; FaultKind::ALL.len()];
        (0..1000).for_each(|_| seen[schedule.draw().kind.index()] += 1);
        assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
    }
}
