//! Statistics that memcached does not have: `stats workers` and `stats hotkeys`.
//!
//! Circular import with `snapshot` and `general`: a row declares a counter, and reads it from a snapshot
//! of all counters.

use herdwick_herd::ServerCounters;
use herdwick_providers::Fabric;

use super::{
    composed_names::{BATCHES, HotKeyStatistic, REQUESTS, of_hot_key, of_transport, of_worker},
    families,
    output::Stats,
    statistic::{Family, counted},
};
use crate::{
    context::Settings,
    telemetry::{
        hot::{self, HotKey},
        snapshot::{Snapshot, StatsView},
        uri::Uri,
    },
};

counted! {
    view v: StatsView<'_>;
    fields v.sum.polling;
    /// Counters of one worker's loop.
    #[derive(Clone, Copy, Debug, Default)]
    struct PollCounters of u64;
    /// The names in `stats workers`, of one worker.
    names WorkerNames;
    /// `stats workers`, of one worker, each name after `worker:N:`. Each family has a series for
    /// each worker.
    static WORKER;

    Stored items = store.items => "herdwick_worker_items";
    Stored(Bytes) bytes = store.bytes => "herdwick_worker_bytes";
    /// Open connections.
    Gauge connections = { v.sum.counters.connections } => "herdwick_worker_connections";
    /// Reads that found an item.
    Counter get_hits = { v.sum.counters.get_hits } => "herdwick_worker_get_hits_total";
    /// Reads that found none.
    Counter get_misses = { v.sum.counters.get_misses } => "herdwick_worker_get_misses_total";
    /// Items stored.
    Counter cmd_set = { v.sum.counters.cmd_set } => "herdwick_worker_sets_total";
    Stored evictions = store.evictions => "herdwick_worker_evictions_total";
    /// Requests executed for the connections of other workers.
    Counter forwarded = { v.sum.counters.forwarded } => "herdwick_worker_forwarded_total";
    /// Requests that this worker executed in the partitions of others.
    Counter executed_in_place = { v.sum.counters.executed_in_place }
        => "herdwick_worker_executed_in_place_total";
    /// Rounds put off because all forwarded batches to another worker were under way.
    Counter forward_batches_exhausted = { v.sum.counters.forward_batches_exhausted }
        => "herdwick_worker_forward_batches_exhausted_total";
    /// Times that the worker went to sleep for want of work.
    Counter sleeps = fields.sleeps => "herdwick_worker_sleeps_total";
}

/// `stats workers`: the counters of each worker, and of each of its transports.
pub(crate) fn workers(view: &StatsView<'_>, parts: &[Snapshot], out: &mut Stats<'_>) {
    let mut parts: Vec<&Snapshot> = parts.iter().collect();
    // Snapshots come in the order in which the workers answered.
    parts.sort_by_key(|part| part.worker);
    for part in parts {
        let worker = part.worker;
        let prefix = of_worker(worker, "");
        let view = view.of(part);
        out.table(WORKER, &prefix, |read| read(&view));
        for (transport, requests, batches) in transports(part) {
            for (name, count) in [(REQUESTS, requests), (BATCHES, batches)] {
                out.add(&of_worker(worker, &of_transport(transport, name)), count);
            }
        }
    }
}

/// Passes `take` each family that has a series for each worker, with the value of one worker.
pub(crate) fn each_of_worker(view: &StatsView<'_>, mut take: impl FnMut(&'static Family, f64)) {
    for statistic in WORKER {
        if let (Some(series), Some(value)) = (&statistic.series, (statistic.read)(view).number()) {
            take(series.family, value);
        }
    }
}

/// Returns the hottest keys, at most `most`; an empty list if clients may not see keys.
pub(crate) fn hottest(settings: &Settings, sum: &Snapshot, most: usize) -> Vec<HotKey> {
    let mut keys = sum.hot.clone();
    let shown = if settings.offers.dump {
        most.min(settings.hot_keys)
    } else {
        0
    };
    hot::shorten(&mut keys, shown);
    keys
}

/// `stats hotkeys`: the most requested keys of the last 10 to 20 seconds, hottest first.
pub(crate) fn hot_keys(keys: &[HotKey], out: &mut Stats<'_>) {
    for (hot, rank) in keys.iter().zip(1..) {
        out.add(&of_hot_key(rank, HotKeyStatistic::Key), Uri(&hot.key));
        for (statistic, value) in [
            (HotKeyStatistic::Requests, hot.count),
            (HotKeyStatistic::Excess, hot.excess),
            (HotKeyStatistic::Seconds, hot.seconds.into()),
            (HotKeyStatistic::Rate, hot.rate()),
        ] {
            out.add(&of_hot_key(rank, statistic), value);
        }
    }
}

/// Returns the family that counts this of a transport by worker; `None`: see [`by_reason`].
pub(crate) fn by_worker(what: &str) -> Option<&'static Family> {
    match what {
        REQUESTS => Some(&families::FABRIC_REQUESTS),
        BATCHES => Some(&families::FABRIC_BATCHES),
        _ => None,
    }
}

/// Returns the family of what a transport counts that is not counted by worker, and the label that
/// names it there.
pub(crate) fn by_reason(what: &str) -> (&'static Family, &'static str) {
    if what.starts_with("clover_") {
        (&families::CLOVER, "what")
    } else if is_event(what) {
        (&families::EVENTS, "event")
    } else {
        (&families::DROPS, "reason")
    }
}

/// Returns whether HERD or a fabric has declared this counter as one of events.
fn is_event(what: &str) -> bool {
    let of_fabrics = Fabric::ALL.into_iter().flat_map(Fabric::counters);
    let mut all = ServerCounters::COUNTERS.iter().chain(of_fabrics);
    all.any(|counter| counter.name == what && counter.is_event)
}

/// Returns the transports: name, requests executed, and the batches they arrived in.
pub(crate) fn transports(part: &Snapshot) -> Vec<(&'static str, u64, u64)> {
    let mut transports = vec![("tcp", part.counters.tcp_requests, part.counters.tcp_batches)];
    for counted in &part.transports {
        let (requests, batches) = match counted.what {
            REQUESTS => (counted.count, 0),
            BATCHES => (0, counted.count),
            _ => continue,
        };
        match transports
            .iter_mut()
            .find(|(transport, ..)| *transport == counted.transport)
        {
            Some(known) => {
                known.1 += requests;
                known.2 += batches;
            }
            None => transports.push((counted.transport, requests, batches)),
        }
    }
    transports
}
