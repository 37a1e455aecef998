//! Statistics: memcached's names and formats, so that existing tools can parse them. A statistic of
//! machinery that does not exist here is 0, as in a memcached that does not use it. Everything
//! refused or dropped follows at the end of `stats`, under names of its own.

mod class;
mod describe;
pub(crate) mod families;
mod general;
pub(crate) mod registry;
mod settings;
mod workers;

use crate::{context::Stats, counters::TransportCount, lease::LEASES};

use class::{ITEMS, PAGE_ONLY, SLAB, SLABS};
pub use describe::{Description, statistics};
use general::GENERAL;
pub use general::GeneralNames;
pub(crate) use general::WorkerCounters;
pub(crate) use registry::{Family, Series, Statistic, Value, View, counted};
pub use registry::{Kind, Unit};
pub(crate) use settings::settings;
pub use workers::WorkerNames;
pub(crate) use workers::{
    PollCounters, by_worker, each_of_worker, hot_keys, transports as transports_of, workers,
};

/// Bytes of one slot of the store's index.
const SLOT_BYTES: u64 = 8;
/// The value of memcached's machinery that does not exist here.
const ZERO: u64 = 0;

/// Writes the statistics of a table, each name after `prefix`.
pub(crate) fn say(table: &[Statistic], prefix: &str, view: &View<'_>, out: &mut Stats<'_>) {
    for statistic in table {
        match (statistic.read)(view) {
            Value::Absent => {}
            value if prefix.is_empty() => out.say(statistic.name, value),
            value => out.say(&format!("{prefix}{}", statistic.name), value),
        }
    }
}

/// `stats`.
pub(crate) fn general(view: &View<'_>, out: &mut Stats<'_>) {
    say(GENERAL, "", view, out);
    for (what, count) in by_what(&view.sum.transports) {
        out.say(what, count);
    }
    say(LEASES, "", view, out);
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

/// `stats items`. The log is a single class, and memcached lists no class without items.
pub(crate) fn items(view: &View<'_>, out: &mut Stats<'_>) {
    if view.sum.store.items > 0 {
        say(ITEMS, ITEMS_PREFIX, view, out);
    }
}

/// `stats slabs`. The log is a single class of 8-byte chunks.
pub(crate) fn slabs(view: &View<'_>, out: &mut Stats<'_>) {
    say(SLAB, SLAB_PREFIX, view, out);
    say(SLABS, "", view, out);
}

/// What precedes the names of [`ITEMS`] and of [`SLAB`].
const ITEMS_PREFIX: &str = "items:1:";
const SLAB_PREFIX: &str = "1:";

/// Passes `take` the series of metrics that are summed over all workers, each with its value.
pub(crate) fn each_series(view: &View<'_>, mut take: impl FnMut(&'static Series, f64)) {
    let items: &[Statistic] = if view.sum.store.items > 0 { ITEMS } else { &[] };
    let tables = [GENERAL, PAGE_ONLY, items, SLAB, SLABS, LEASES];
    for statistic in tables.into_iter().flatten() {
        if let (Some(series), Some(value)) = (&statistic.series, (statistic.read)(view).number()) {
            take(series, value);
        }
    }
}
