//! Statistics: memcached's names and formats, so that existing tools can parse them. A statistic of
//! machinery that does not exist here is 0, as in a memcached that does not use it. Everything
//! refused or dropped follows at the end of `stats`, under names of its own.

pub mod composed_names;
mod describe;
pub(crate) mod families;
mod general;
mod items_and_slabs;
mod latency;
mod output;
mod settings;
pub(crate) mod statistic;
mod workers;

use crate::telemetry::{
    leases::LEASES,
    offload::OFFLOAD,
    snapshot::{StatsView, TransportCount},
};

pub use describe::{StatisticDescription, statistics};
use general::GENERAL;
pub use general::GeneralNames;
pub(crate) use general::WorkerCounters;
use items_and_slabs::{ITEMS, PAGE_ONLY, SLAB, SLABS};
pub(crate) use latency::latency;
pub(crate) use output::Stats;
pub(crate) use settings::settings;
pub(crate) use statistic::{Family, Series, Statistic, Value, counted};
pub use statistic::{StatisticKind, Unit};
pub use workers::WorkerNames;
pub(crate) use workers::{
    PollCounters, by_reason, by_worker, each_of_worker, hot_keys, hottest,
    transports as transports_of, workers,
};

/// A row that is read from the workers' snapshots.
pub(crate) type Row = Statistic<fn(&StatsView<'_>) -> Value>;

/// `stats`.
pub(crate) fn general(view: &StatsView<'_>, out: &mut Stats<'_>) {
    out.table(GENERAL, "", |read| read(view));
    for (what, count) in by_what(&view.sum.transports) {
        out.add(what, count);
    }
    if let Some(leases) = view.leases() {
        out.table(LEASES, "", |read| read(leases));
    }
    if let Some(offload) = view.offload() {
        out.table(OFFLOAD, "", |read| read(&offload));
    }
}

/// Returns the sums of the transports' counters of the same name, in the order of their first.
fn by_what(transports: &[TransportCount]) -> Vec<(&'static str, u64)> {
    let mut sums: Vec<(&str, u64)> = Vec::new();
    for part in transports {
        match sums.iter_mut().find(|(what, _)| *what == part.what) {
            Some((_, count)) => *count += part.count,
            None => sums.push((part.what, part.count)),
        }
    }
    sums
}

/// `stats items`. The store is a single class, and memcached lists no class without items.
pub(crate) fn items(view: &StatsView<'_>, out: &mut Stats<'_>) {
    if view.sum.store.items > 0 {
        out.table(ITEMS, ITEMS_PREFIX, |read| read(view));
    }
}

/// `stats slabs`. The store is a single class of 8-byte chunks.
pub(crate) fn slabs(view: &StatsView<'_>, out: &mut Stats<'_>) {
    out.table(SLAB, SLAB_PREFIX, |read| read(view));
    out.table(SLABS, "", |read| read(view));
}

/// What precedes the names of [`ITEMS`] and of [`SLAB`].
const ITEMS_PREFIX: &str = "items:1:";
const SLAB_PREFIX: &str = "1:";

/// Passes `take` the series of metrics that are summed over all workers, each with its value.
pub(crate) fn each_series(view: &StatsView<'_>, mut take: impl FnMut(&'static Series, f64)) {
    let items: &[Row] = if view.sum.store.items > 0 { ITEMS } else { &[] };
    let tables = [GENERAL, PAGE_ONLY, items, SLAB, SLABS];
    for row in tables.into_iter().flatten() {
        series_of(row, (row.read)(view), &mut take);
    }
    if let Some(leases) = view.leases() {
        for row in LEASES {
            series_of(row, (row.read)(leases), &mut take);
        }
    }
    if let Some(offload) = view.offload() {
        for row in OFFLOAD {
            series_of(row, (row.read)(&offload), &mut take);
        }
    }
}

/// Passes `take` the series of `row`, if it has one and `value` is a number.
fn series_of<R>(
    row: &'static Statistic<R>,
    value: Value,
    mut take: impl FnMut(&'static Series, f64),
) {
    if let (Some(series), Some(value)) = (&row.series, value.number()) {
        take(series, value);
    }
}
