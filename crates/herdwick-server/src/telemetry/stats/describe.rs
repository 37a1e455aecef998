//! Every statistic described: for documentation, and for monitors that need more than names.

use std::fmt;

use super::{
    GENERAL, ITEMS, ITEMS_PREFIX, SLAB, SLAB_PREFIX, SLABS, Series, Statistic, StatisticKind, Unit,
    by_reason, by_worker,
    composed_names::{LatencyStatistic, of_latency},
    families::REQUEST_DURATION,
    workers::WORKER,
};
use crate::{
    clover::CloverCounters,
    herd,
    telemetry::{leases::LEASES, offload::OFFLOAD},
};

/// A statistic, as documentation describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticDescription {
    /// The command that shows it.
    pub command: &'static str,
    /// Its name there, where `N` stands for a worker's index.
    pub name: String,
    /// How it changes.
    pub kind: StatisticKind,
    /// Its unit.
    pub unit: Unit,
    /// Its family on the metrics page, and the labels that distinguish it, if it is there.
    pub series: Option<String>,
    /// What it means.
    pub help: &'static str,
}

/// Describes every statistic, in the order of `stats`, `stats items`, `stats slabs`, `stats workers`
/// and `stats latency`, but for those of memcached's machinery that does not exist here and that metrics do not
/// have either: those are always 0.
#[must_use]
pub fn statistics() -> Vec<StatisticDescription> {
    let mut all: Vec<_> = table("stats", "", GENERAL).collect();
    all.extend(of_transports());
    all.extend(table("stats", "", LEASES));
    all.extend(table("stats", "", OFFLOAD));
    all.extend(table("stats items", ITEMS_PREFIX, ITEMS));
    all.extend(table("stats slabs", SLAB_PREFIX, SLAB));
    all.extend(table("stats slabs", "", SLABS));
    all.extend(table("stats workers", "worker:N:", WORKER));
    all.extend(of_latencies());
    all
}

/// Describes the rows of a table that mean something here.
fn table<R>(
    command: &'static str,
    prefix: &'static str,
    rows: &'static [Statistic<R>],
) -> impl Iterator<Item = StatisticDescription> {
    let meant = rows.iter().filter(|statistic| !statistic.help.is_empty());
    meant.map(move |statistic| StatisticDescription {
        command,
        name: format!("{prefix}{}", statistic.name),
        kind: statistic.kind,
        unit: statistic.unit,
        series: statistic.series.as_ref().map(Series::to_string),
        help: statistic.help,
    })
}

/// Describes the counters of the transports.
fn of_transports() -> impl Iterator<Item = StatisticDescription> {
    let engines = CloverCounters::COUNTERS.iter();
    herd::counters().into_iter().chain(engines).map(|counter| {
        let series = by_worker(counter.name).map_or_else(
            || {
                let (family, label) = by_reason(counter.name);
                format!("{}{{{label}=\"{}\"}}", family.name, counter.name)
            },
            |family| family.name.to_owned(),
        );
        StatisticDescription {
            command: "stats",
            name: counter.name.to_owned(),
            kind: StatisticKind::Counter,
            unit: Unit::One,
            series: Some(series),
            help: counter.help,
        }
    })
}

/// Describes the statistics of `stats latency`. On the metrics page a histogram has their place.
fn of_latencies() -> impl Iterator<Item = StatisticDescription> {
    LatencyStatistic::ALL.into_iter().map(|statistic| {
        let (kind, unit, help) = match statistic {
            LatencyStatistic::Count => (
                StatisticKind::Counter,
                Unit::One,
                "Requests whose time was measured.",
            ),
            LatencyStatistic::Mean => (StatisticKind::Gauge, Unit::Microseconds, "The mean."),
            LatencyStatistic::P50 => (
                StatisticKind::Gauge,
                Unit::Microseconds,
                "What half of the requests did not exceed.",
            ),
            LatencyStatistic::P99 => (
                StatisticKind::Gauge,
                Unit::Microseconds,
                "What 99 % of the requests did not exceed.",
            ),
            LatencyStatistic::P999 => (
                StatisticKind::Gauge,
                Unit::Microseconds,
                "What 99.9 % of the requests did not exceed.",
            ),
            LatencyStatistic::Max => (
                StatisticKind::Gauge,
                Unit::Microseconds,
                "The longest time.",
            ),
        };
        StatisticDescription {
            command: "stats latency",
            name: of_latency("FABRIC", "COMMAND", statistic),
            kind,
            unit,
            series: Some(REQUEST_DURATION.name.to_owned()),
            help,
        }
    })
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.family.name)?;
        for (at, (name, value)) in self.labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            write!(f, "{before}{name}=\"{value}\"")?;
        }
        if self.labels.is_empty() {
            Ok(())
        } else {
            f.write_str("}")
        }
    }
}

impl fmt::Display for StatisticKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Text => "text",
        })
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::Microseconds => "microseconds",
        })
    }
}
