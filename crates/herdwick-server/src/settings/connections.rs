//! The number of connections: the limit, how many are open, and how long accepting was paused. All are
//! atomics with relaxed ordering, as each is read by itself and none orders other data.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

/// The number of connections: limit, current and total.
pub(crate) struct Limits {
    pub(crate) connections_max: AtomicUsize,
    live: AtomicUsize,
    pub(crate) total: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// How often accepting paused for lack of descriptors or room ...
    pub(crate) paused: AtomicU64,
    /// ... and for how many microseconds, without the current pause.
    pub(crate) paused_us: AtomicU64,
    /// When the current pause began, in microseconds since the start; 0: accepting is not paused.
    resting_since: AtomicU64,
}

impl Limits {
    pub(crate) fn new(connections_max: usize) -> Self {
        Self {
            connections_max: AtomicUsize::new(connections_max),
            live: AtomicUsize::new(0),
            total: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            paused: AtomicU64::new(0),
            paused_us: AtomicU64::new(0),
            resting_since: AtomicU64::new(0),
        }
    }

    /// Zeroes what is counted since the start.
    pub(crate) fn reset(&self) {
        for counter in [&self.total, &self.rejected, &self.paused, &self.paused_us] {
            counter.store(0, Relaxed);
        }
    }

    /// Returns whether the limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.live.load(Relaxed) >= self.connections_max.load(Relaxed)
    }

    /// Returns whether accepting is paused.
    pub(crate) fn is_resting(&self) -> bool {
        self.resting_since.load(Relaxed) > 0
    }

    /// Records at `now` whether accepting is paused. Only the acceptor calls this, so no update is
    /// lost between load and store.
    pub(crate) fn rest(&self, resting: bool, now: Duration) {
        // 2^64 microseconds are more than half a million years.
        let now = (now.as_micros() as u64).max(1);
        let since = self.resting_since.load(Relaxed);
        if resting && since == 0 {
            self.paused.fetch_add(1, Relaxed);
            self.resting_since.store(now, Relaxed);
        } else if !resting && since > 0 {
            self.paused_us.fetch_add(now - since, Relaxed);
            self.resting_since.store(0, Relaxed);
        }
    }

    /// Counts one more connection, if the limit allows. Only the acceptor calls this, so the limit
    /// is not exceeded between check and increment.
    pub(crate) fn enter(&self) -> bool {
        if self.is_full() {
            self.rejected.fetch_add(1, Relaxed);
            return false;
        }
        self.live.fetch_add(1, Relaxed);
        self.total.fetch_add(1, Relaxed);
        true
    }

    /// Counts a UDP request as a connection for its duration, if the limit allows.
    pub(crate) fn enter_briefly(&self) -> bool {
        let has_room = !self.is_full();
        // `total` and `rejected` count connections alone.
        self.live.fetch_add(usize::from(has_room), Relaxed);
        has_room
    }

    /// Counts one connection less.
    pub(crate) fn leave(&self) {
        self.live.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_pauses_are_counted_and_timed() {
        let limits = Limits::new(1);
        let at = Duration::from_micros;
        for (resting, now) in [(false, 0), (true, 5), (true, 9), (false, 15), (false, 20)] {
            limits.rest(resting, at(now));
        }
        limits.rest(true, at(30));
        assert!(limits.is_resting());
        let paused = (limits.paused.load(Relaxed), limits.paused_us.load(Relaxed));
        assert_eq!(paused, (2, 10));
    }
}
