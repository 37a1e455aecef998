//! The metrics page: memcached_exporter's metrics first, under its names of version 0.16, so that
//! dashboards and alerts made for it keep working; then Herdwick's own.

use herdwick_request::Clock;
use prometheus::{
    TextEncoder,
    proto::{self, Bucket, Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType},
};

use crate::{
    context::{Context, VERSION},
    telemetry::{
        latency::Histogram,
        snapshot::{Snapshot, StatsView},
        stats::{self, Family, StatisticKind, families},
        uri::Uri,
    },
};

/// Returns the page for the workers' snapshots.
pub(super) fn page(context: &Context, clock: Clock, parts: &[Snapshot]) -> String {
    let sum = Snapshot::sum(parts);
    let view = StatsView::new(context, clock, &sum);
    let mut page = Page::default();
    page.add(&families::UP, vec![], 1.0);
    let version = vec![("version", VERSION.to_owned())];
    page.add(&families::VERSION, version, 1.0);
    stats::each_series(&view, |series, value| {
        let own = |(name, value): &(&'static str, &str)| (*name, (*value).to_owned());
        let labels = series.labels.iter().map(own).collect();
        page.add(series.family, labels, value);
    });
    workers(&view, parts, &mut page);
    drops_and_events(&sum, &mut page);
    latencies(&sum, &mut page);
    if context.settings.metrics_hot_keys {
        hot_keys(context, &sum, &mut page);
    }
    page.text()
}

/// Adds the metrics of each worker.
fn workers(view: &StatsView<'_>, parts: &[Snapshot], page: &mut Page) {
    let mut parts: Vec<&Snapshot> = parts.iter().collect();
    // Snapshots come in the order in which the workers answered.
    parts.sort_by_key(|part| part.worker);
    for part in parts {
        let worker = ("worker", part.worker.to_string());
        stats::each_of_worker(&view.of(part), |family, value| {
            page.add(family, vec![worker.clone()], value);
        });
        for (transport, requests, batches) in stats::transports_of(part) {
            let labels = vec![worker.clone(), ("fabric", transport.to_owned())];
            page.add(&families::FABRIC_REQUESTS, labels.clone(), requests as f64);
            page.add(&families::FABRIC_BATCHES, labels, batches as f64);
        }
    }
}

/// Adds what fabrics refused, dropped or did again, by fabric and reason or event; and what Clover has done.
fn drops_and_events(sum: &Snapshot, page: &mut Page) {
    for part in &sum.transports {
        // Those have been added for each worker above.
        if stats::by_worker(part.what).is_none() {
            let (family, label) = stats::by_reason(part.what);
            let (fabric, reason) = (part.transport.to_owned(), part.what.to_owned());
            let labels = vec![("fabric", fabric), (label, reason)];
            page.add(family, labels, part.count as f64);
        }
    }
}

/// Adds how long requests took, by fabric and command, in buckets that end at powers of two.
fn latencies(sum: &Snapshot, page: &mut Page) {
    for part in &sum.latencies {
        for (command, histogram) in part.histograms.requested() {
            let command = ("command", command.name().to_owned());
            let labels = vec![command, ("fabric", part.transport.to_owned())];
            let mut metric = labeled(labels);
            metric.set_histogram(of_prometheus(histogram));
            page.push(&families::REQUEST_DURATION, metric);
        }
    }
}

fn of_prometheus(histogram: &Histogram) -> proto::Histogram {
    let buckets = histogram.octaves().map(|(end, count)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(end.as_secs_f64());
        bucket.set_cumulative_count(count);
        bucket
    });
    let mut made = proto::Histogram::default();
    made.set_bucket(buckets.collect());
    made.set_sample_count(histogram.count());
    made.set_sample_sum(histogram.sum().as_secs_f64());
    made
}

/// Largest number of hot keys on the page, because each is a series of its own.
const HOT_KEYS_MAX: usize = 10;

fn hot_keys(context: &Context, sum: &Snapshot, page: &mut Page) {
    let keys = stats::hottest(&context.settings, sum, HOT_KEYS_MAX);
    for hot in &keys {
        let labels = vec![("key", Uri(&hot.key).to_string())];
        page.add(&families::HOT_KEYS, labels, hot.rate() as f64);
    }
}

/// Families in the order of their addition.
#[derive(Default)]
struct Page(Vec<MetricFamily>);

impl Page {
    /// Adds a series to its family, and the family if it is new.
    fn add(&mut self, family: &Family, labels: Vec<(&'static str, String)>, value: f64) {
        self.push(family, metric(family.kind, labels, value));
    }

    fn push(&mut self, family: &Family, metric: Metric) {
        match self.0.iter_mut().find(|known| known.name() == family.name) {
            Some(known) => known.mut_metric().push(metric),
            None => self.0.push(with(family, metric)),
        }
    }

    fn text(mut self) -> String {
        // The sort is stable: it keeps the order within each part.
        self.0
            .sort_by_key(|family| !family.name().starts_with("memcached_"));
        // It fails only for families without metrics or names.
        TextEncoder::new()
            .encode_to_string(&self.0)
            .unwrap_or_default()
    }
}

fn with(family: &Family, metric: Metric) -> MetricFamily {
    let mut made = MetricFamily::default();
    made.set_name(family.name.to_owned());
    made.set_help(family.help.to_owned());
    made.set_field_type(match family.kind {
        StatisticKind::Counter => MetricType::COUNTER,
        StatisticKind::Gauge | StatisticKind::Text => MetricType::GAUGE,
        StatisticKind::Histogram => MetricType::HISTOGRAM,
    });
    made.set_metric(vec![metric]);
    made
}

fn labeled(labels: Vec<(&'static str, String)>) -> Metric {
    let pair = |(name, value): (&str, String)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    };
    Metric::from_label(labels.into_iter().map(pair).collect())
}

fn metric(kind: StatisticKind, labels: Vec<(&'static str, String)>, value: f64) -> Metric {
    let mut metric = labeled(labels);
    match kind {
        StatisticKind::Counter => {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        // A histogram has no single value: `of_prometheus` makes it.
        StatisticKind::Gauge | StatisticKind::Text | StatisticKind::Histogram => {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
    }
    metric
}
