//! Statistics of the replication of popular keys: what the thread counts that keeps the secondary store up to
//! date, and the workers' trackers.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdwick_hkvs::{STALENESS_MAX, TrackerCounters};

use crate::telemetry::stats::statistic::table;

/// Everything that they are read from.
pub(crate) struct OffloadView {
    state: OffloadState,
    sum: TrackerCounters,
}

table! {
    view v: OffloadView;
    fields ();
    /// The end of `stats`, if there is a secondary store.
    static OFFLOAD;

    /// Whether the secondary store is connected.
    Gauge offload_connected = { v.state.connected } => "herdwick_offload_connected";
    /// Connections made to the secondary store.
    Counter offload_connections = { v.state.connections } => "herdwick_offload_connections_total";
    /// Attempts to connect that failed: it cannot be reached, has no room, or is ending earlier sessions.
    Counter offload_unreachable = { v.state.unreachable } => "herdwick_offload_unreachable_total";
    /// Attempts to connect at which the secondary store had another secret, or is none.
    Counter offload_secret_refused = { v.state.secret_refused }
        => "herdwick_offload_secret_refused_total";
    /// The longest time for which a client reads what a write has replaced.
    Gauge(Microseconds) offload_staleness_max = { micros(STALENESS_MAX) }
        => "herdwick_offload_staleness_max_microseconds";
    /// Time from a request to the change of the secondary store that it made, median of the last 1,024.
    Gauge(Microseconds) offload_delay_p50 = { micros(v.state.delay_p50) }
        => "herdwick_offload_delay_p50_microseconds";
    /// The same, 99th percentile.
    Gauge(Microseconds) offload_delay_p99 = { micros(v.state.delay_p99) }
        => "herdwick_offload_delay_p99_microseconds";
    /// Popular keys.
    Gauge offload_keys = { v.sum.keys } => "herdwick_offload_keys";
    /// Changes under way to the secondary store.
    Gauge offload_under_way = { v.sum.under_way } => "herdwick_offload_under_way";
    /// Hits of plain reads that this server executed while the secondary store was connected.
    Counter offload_reads = { v.sum.reads } => "herdwick_offload_reads_total";
    /// Those of keys that the secondary store had, so that clients could have read them there.
    Counter offload_replicated_reads = { v.sum.replicated_reads }
        => "herdwick_offload_replicated_reads_total";
    /// Keys that became popular.
    Counter offload_admissions = { v.sum.admissions } => "herdwick_offload_admissions_total";
    /// Popular keys that gave way to others.
    Counter offload_evictions = { v.sum.evictions } => "herdwick_offload_evictions_total";
    /// Popular keys given up: deleted, written while 128 changes of the worker were under way, or with an item
    /// that is not replicated.
    Counter offload_dropped = { v.sum.dropped } => "herdwick_offload_dropped_total";
    /// Changes that the secondary store has executed.
    Counter offload_changes = { v.sum.changes } => "herdwick_offload_changes_total";
    /// Changes for which the secondary store had no room.
    Counter offload_refused = { v.sum.refused } => "herdwick_offload_refused_total";
}

/// The names of some of them in `stats`, by which programs ask for them.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "docs/statistics.md describes each")]
pub struct OffloadNames {
    pub connected: &'static str,
    pub staleness_max: &'static str,
    pub delay_p50: &'static str,
    pub delay_p99: &'static str,
    pub keys: &'static str,
    pub under_way: &'static str,
    pub reads: &'static str,
    pub replicated_reads: &'static str,
}

impl OffloadNames {
    /// The names.
    pub const NAMES: Self = Self {
        connected: "offload_connected",
        staleness_max: "offload_staleness_max",
        delay_p50: "offload_delay_p50",
        delay_p99: "offload_delay_p99",
        keys: "offload_keys",
        under_way: "offload_under_way",
        reads: "offload_reads",
        replicated_reads: "offload_replicated_reads",
    };
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Delays that are remembered, for their percentiles.
const DELAYS: usize = 1024;

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct OffloadCounters {
    connected: AtomicBool,
    connections: AtomicU64,
    unreachable: AtomicU64,
    secret_refused: AtomicU64,
    delays: Mutex<Delays>,
}

/// The last delays in microseconds, as a ring.
#[derive(Debug, Default)]
struct Delays {
    last: Vec<u32>,
    at: usize,
}

/// What they show at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OffloadState {
    connected: bool,
    connections: u64,
    unreachable: u64,
    secret_refused: u64,
    delay_p50: Duration,
    delay_p99: Duration,
}

impl OffloadCounters {
    /// There is a connection, or there is none any more.
    pub(crate) fn connected(&self, is: bool) {
        self.connected.store(is, Relaxed);
        // A connection that has gone adds 0.
        self.connections.fetch_add(is.into(), Relaxed);
    }

    pub(crate) fn unreachable(&self) {
        self.unreachable.fetch_add(1, Relaxed);
    }

    pub(crate) fn secret_refused(&self) {
        self.secret_refused.fetch_add(1, Relaxed);
    }

    /// A change has ended, so long after the request that made it.
    pub(crate) fn delayed(&self, by: Duration) {
        let micros = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        let at = delays.at;
        match delays.last.get_mut(at) {
            Some(old) => *old = micros,
            None => delays.last.push(micros),
        }
        delays.at = (at + 1) % DELAYS;
    }

    /// Returns what statistics are read from, with the sum over all workers.
    pub(crate) fn view(&self, sum: TrackerCounters) -> OffloadView {
        let state = self.read();
        OffloadView { state, sum }
    }

    fn read(&self) -> OffloadState {
        let delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        // Copied under the lock and sorted without it: the thread that counts does not wait for the
        // sort.
        let mut sorted = delays.last.clone();
        drop(delays);
        sorted.sort_unstable();
        let percentile = |part: usize| {
            let at = sorted.len().saturating_sub(1) * part / 100;
            Duration::from_micros(sorted.get(at).copied().unwrap_or(0).into())
        };
        OffloadState {
            connected: self.connected.load(Relaxed),
            connections: self.connections.load(Relaxed),
            unreachable: self.unreachable.load(Relaxed),
            secret_refused: self.secret_refused.load(Relaxed),
            delay_p50: percentile(50),
            delay_p99: percentile(99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_table() {
        let OffloadNames {
            connected,
            staleness_max,
            delay_p50,
            delay_p99,
            keys,
            under_way,
            reads,
            replicated_reads,
        } = OffloadNames::NAMES;
        let times = [staleness_max, delay_p50, delay_p99];
        let counts = [connected, keys, under_way, reads, replicated_reads];
        for name in times.into_iter().chain(counts) {
            assert!(OFFLOAD.iter().any(|row| row.name == name), "{name}");
        }
    }

    #[test]
    fn percentiles_are_of_the_last_delays() {
        let counters = OffloadCounters::default();
        assert_eq!(counters.read(), OffloadState::default());
        (0..5000).for_each(|n| counters.delayed(Duration::from_micros(n)));
        let OffloadState {
            delay_p50,
            delay_p99,
            ..
        } = counters.read();
        assert_eq!(delay_p50, Duration::from_micros(5000 - 1024 + 511));
        assert_eq!(delay_p99, Duration::from_micros(5000 - 1024 + 1012));
    }
}
