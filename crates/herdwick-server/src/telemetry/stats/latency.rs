//! `stats latency`: how long requests took, by transport and command.

use std::time::Duration;

use super::{
    composed_names::{LatencyStatistic, of_latency},
    output::Stats,
};
use crate::{
    context::Settings,
    telemetry::{latency::Histogram, snapshot::Snapshot},
};

/// `stats latency`: a block for each transport and each command that came over it.
pub(crate) fn latency(settings: &Settings, sum: &Snapshot, out: &mut Stats<'_>) {
    if !settings.latency.histograms {
        // As `stats sizes` reports that it is off.
        out.add("latency_status", "disabled");
    }
    for part in &sum.latencies {
        for (command, histogram) in part.histograms.requested() {
            for statistic in LatencyStatistic::ALL {
                let name = of_latency(part.transport, command.name(), statistic);
                out.add(&name, value(statistic, histogram));
            }
        }
    }
}

fn value(statistic: LatencyStatistic, of: &Histogram) -> String {
    let micros = |time: Duration| {
        let nanos = time.as_nanos();
        format!("{}.{:03}", nanos / 1000, nanos % 1000)
    };
    match statistic {
        LatencyStatistic::Count => of.count().to_string(),
        LatencyStatistic::Mean => micros(of.mean()),
        LatencyStatistic::P50 => micros(of.quantile(500)),
        LatencyStatistic::P99 => micros(of.quantile(990)),
        LatencyStatistic::P999 => micros(of.quantile(999)),
        LatencyStatistic::Max => micros(of.max()),
    }
}
