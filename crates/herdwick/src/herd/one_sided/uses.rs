//! Recency of items that are read without the server: hashes of some of the keys, and how many reads there
//! were, reported to the workers in batches.

use std::time::Duration;

use herdwick_herd::{ClientSide, wire::REPORT_HASHES_MAX};
use herdwick_request::KeyHash;

/// Least time between two reports to a worker: a report costs it as much as some requests, and may wake it.
const REPORT_EVERY: Duration = Duration::from_millis(10);
/// Longest time between a read and its report, as long as the session is polled.
const REPORT_WITHIN: Duration = Duration::from_millis(250);
/// Hashes that are worth a report before that.
const WORTH: usize = REPORT_HASHES_MAX / 2;
/// Most hits for each hash that is kept.
const EVERY_MAX: u32 = 1 << 20;
/// The token of reports, which no request has.
pub(crate) const REPORT: u64 = u64::MAX;

/// The reads since the last report, of each worker's keys.
#[derive(Debug)]
pub(super) struct Uses {
    workers: Vec<WorkerUses>,
    reported: Duration,
    /// The last of a sequence that is random enough to sample reads of keys in turn.
    drawn: u32,
}

#[derive(Clone, Debug)]
struct WorkerUses {
    hits: u32,
    /// Hits until the next one whose hash is kept.
    until: u32,
    /// One hash in about so many is kept: what the last report had room for.
    every: u32,
    hashes: Vec<KeyHash>,
}

impl Uses {
    pub(super) fn new(workers: usize) -> Self {
        let none = WorkerUses {
            hits: 0,
            until: 1,
            every: 1,
            hashes: Vec::with_capacity(REPORT_HASHES_MAX),
        };
        Self {
            workers: vec![none; workers],
            reported: Duration::ZERO,
            drawn: 1,
        }
    }

    /// Notes a read.
    #[inline]
    pub(super) fn note(&mut self, hash: KeyHash) {
        let worker = hash.partition(self.workers.len());
        let uses = &mut self.workers[worker];
        uses.hits = uses.hits.saturating_add(1);
        uses.until -= 1;
        if uses.until == 0 {
            // Numerical Recipes' generator; of its bits the upper ones are the better ones.
            self.drawn = (self.drawn.wrapping_mul(1_664_525)).wrapping_add(1_013_904_223);
            // On average `every` reads, at random between 1 and twice as many less 1.
            let spread = u64::from(2 * uses.every - 1);
            uses.until = 1 + ((u64::from(self.drawn) * spread) >> 32) as u32;
            if uses.hashes.len() < REPORT_HASHES_MAX {
                uses.hashes.push(hash);
            }
        }
    }

    /// Submits the reports that are due; the next flush sends them.
    #[inline]
    pub(super) fn report(&mut self, now: Duration, side: &mut ClientSide) {
        let age = now.saturating_sub(self.reported);
        if age < REPORT_EVERY {
            return;
        }
        let is_worth = |uses: &WorkerUses| uses.hashes.len() >= WORTH;
        if age < REPORT_WITHIN && !self.workers.iter().any(is_worth) {
            return;
        }
        self.reported = now;
        for (worker, uses) in self.workers.iter_mut().enumerate() {
            // A worker without room gets its report the next time.
            if side.report(worker, uses.hits, &uses.hashes, REPORT) {
                let every = uses.hits / REPORT_HASHES_MAX as u32;
                uses.every = every.clamp(1, EVERY_MAX);
                // Of so few reads as will be, one has to be kept: a report has a hash.
                uses.until = 1;
                uses.hits = 0;
                uses.hashes.clear();
            }
        }
    }
}
