//! The metrics page: memcached_exporter's metrics first, then Herdwick's own.

use std::{collections::HashMap, fmt::Display, sync::atomic::Ordering::Relaxed};

use herdwick_mica::Clock;
use prometheus::{
    TextEncoder,
    proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType},
};

use super::exporter::{CLASS_SETS, Family, GENERAL, Kind, Labels, OF_THE_CLASS, SETS};
use crate::{
    context::{Context, Stats, VERSION},
    counters::Snapshot,
    dump::Uri,
    stats, unix,
};

/// Returns the page for the workers' snapshots.
pub(super) fn page(context: &Context, clock: Clock, parts: &[Snapshot]) -> String {
    let sum = Snapshot::sum(parts);
    let mut page = Page::default();
    page.add(
        "memcached_up",
        Kind::Gauge,
        "Whether the server answers.",
        [(vec![], 1.0)],
    );
    let version = [(vec![("version", VERSION.to_owned())], 1.0)];
    page.add("memcached_version", Kind::Gauge, "The version.", version);
    let said = said(context, clock, &sum);
    for family in GENERAL.iter().chain(OF_THE_CLASS) {
        page.add_exported(family, &said);
    }
    workers(parts, &mut page);
    drops(context, &sum, &mut page);
    leases(context, &mut page);
    closers(&mut page);
    if context.settings.metrics_hot_keys {
        hot_keys(context, &sum, &mut page);
    }
    let held = [(vec![], sum.counters.held_bytes as f64)];
    let help = "Bytes of the connections' buffers.";
    page.add("herdwick_buffer_bytes", Kind::Gauge, help, held);
    page.text()
}

/// Returns the numeric statistics, by name.
fn said(context: &Context, clock: Clock, sum: &Snapshot) -> HashMap<String, f64> {
    let mut said = HashMap::new();
    let mut say = |name: &str, value: &dyn Display| {
        if let Ok(value) = value.to_string().parse() {
            said.insert(name.to_owned(), value);
        }
    };
    context.say_all(clock, sum, &mut Stats(&mut say));
    let counters = &sum.counters;
    let compared = counters.cas_hits + counters.cas_badval;
    // memcached counts compare-and-swap among the sets.
    let sets = |compared: u64| counters.cmd_set.saturating_sub(compared) as f64;
    said.insert(SETS.into(), sets(compared + counters.cas_misses));
    said.insert(CLASS_SETS.into(), sets(compared));
    said
}

/// Adds the metrics of each worker.
fn workers(parts: &[Snapshot], page: &mut Page) {
    let mut parts: Vec<&Snapshot> = parts.iter().collect();
    parts.sort_by_key(|part| part.worker);
    let label = |part: &Snapshot| ("worker", part.worker.to_string());
    let names = stats::of_worker(&Snapshot::default());
    for (at, (stat, _)) in names.into_iter().enumerate() {
        let (name, kind, help) = of_worker(stat);
        let each = parts.iter().map(|part| {
            let (_, count) = stats::of_worker(part)[at];
            (vec![label(part)], count as f64)
        });
        page.add(name, kind, help, each);
    }
    let (mut requests, mut batches) = (Vec::new(), Vec::new());
    for part in &parts {
        for (transport, request, batch) in stats::transports(part) {
            let labels = vec![label(part), ("fabric", transport.to_owned())];
            requests.push((labels.clone(), request as f64));
            batches.push((labels, batch as f64));
        }
    }
    let name = "herdwick_fabric_requests_total";
    let help = "Requests executed, by the way they came in and the worker that executed them.";
    page.add(name, Kind::Counter, help, requests);
    let name = "herdwick_fabric_batches_total";
    let help = "Batches that these requests were executed in.";
    page.add(name, Kind::Counter, help, batches);
}

/// Returns the name, type and help text of a statistic of `stats workers`.
fn of_worker(stat: &str) -> (&'static str, Kind, &'static str) {
    use Kind::{Counter, Gauge};
    match stat {
        "items" => ("herdwick_worker_items", Gauge, "Items stored now."),
        "bytes" => ("herdwick_worker_bytes", Gauge, "Bytes of these items."),
        "connections" => ("herdwick_worker_connections", Gauge, "Open connections."),
        "get_hits" => (
            "herdwick_worker_get_hits_total",
            Counter,
            "Reads that found an item.",
        ),
        "get_misses" => (
            "herdwick_worker_get_misses_total",
            Counter,
            "Reads that found none.",
        ),
        "cmd_set" => ("herdwick_worker_sets_total", Counter, "Items stored."),
        "evictions" => (
            "herdwick_worker_evictions_total",
            Counter,
            "Valid items that made room for others.",
        ),
        "forwarded" => (
            "herdwick_worker_forwarded_total",
            Counter,
            "Requests executed for the connections of other workers.",
        ),
        "forward_batches_exhausted" => (
            "herdwick_worker_forward_batches_exhausted_total",
            Counter,
            "Rounds put off because all forwarded batches to another worker were under way.",
        ),
        _ => (
            "herdwick_worker_sleeps_total",
            Counter,
            "Times that the worker went to sleep for want of work.",
        ),
    }
}

/// Adds everything refused or dropped, by transport and reason.
fn drops(context: &Context, sum: &Snapshot, page: &mut Page) {
    let (counters, store, unix) = (&sum.counters, &sum.store, unix::counts());
    let labels = |transport: &str, reason: &str| {
        let transport = ("fabric", transport.to_owned());
        vec![transport, ("reason", reason.to_owned())]
    };
    let of_tcp = [
        ("refused_lines", counters.refused_lines),
        ("refused_blocks", counters.refused_blocks),
        ("closed_not_memcached", counters.closed_not_memcached),
        ("closed_binary", counters.closed_binary),
        ("closed_errors", counters.closed_errors),
        ("closed_half_sent", counters.closed_half_sent),
        ("closed_stalled", counters.closed_stalled),
        ("idle_kicks", counters.idle_kicks),
        ("log_worker_dropped", counters.log_worker_dropped),
    ]
    .map(|(reason, count)| (labels("tcp", reason), count as f64));
    let of_udp = [
        ("malformed", context.udp.malformed.load(Relaxed)),
        ("crowded", context.udp.crowded.load(Relaxed)),
        ("withheld", counters.udp_withheld),
        ("unsent", counters.udp_unsent),
    ]
    .map(|(reason, count)| (labels("udp", reason), count as f64));
    let of_unix = [
        ("descriptors_refused", unix.descriptors_refused),
        ("users_refused", unix.users_refused),
    ]
    .map(|(reason, count)| (labels("unix", reason), count as f64));
    let of_fabrics = sum
        .transports
        .iter()
        .filter(|part| !matches!(part.what, "requests" | "batches"))
        .map(|part| (labels(part.transport, part.what), part.count as f64));
    page.add(
        "herdwick_drops_total",
        Kind::Counter,
        "What was refused, dropped, or done again, by the way it came in and the reason.",
        of_tcp
            .into_iter()
            .chain(of_udp)
            .chain(of_unix)
            .chain(of_fabrics),
    );
    for (name, count, help) in [
        (
            "herdwick_index_evictions_total",
            store.index_evictions,
            "Items evicted because both their buckets of the index were full.",
        ),
        (
            "herdwick_items_kept_total",
            store.kept,
            "Items that the log came round to and that were kept.",
        ),
        (
            "herdwick_fabric_read_bytes_total",
            sum.counters.fabric_bytes_read,
            "Bytes of keys and values in requests over shared memory and RDMA.",
        ),
        (
            "herdwick_fabric_written_bytes_total",
            sum.counters.fabric_bytes_written,
            "Bytes of values in replies over shared memory and RDMA.",
        ),
    ] {
        page.add(name, Kind::Counter, help, [(vec![], count as f64)]);
    }
}

/// Largest number of hot keys on the page, because each is a series of its own.
const HOT_KEYS_MAX: usize = 10;

fn hot_keys(context: &Context, sum: &Snapshot, page: &mut Page) {
    let keys = context.hot_keys(sum, HOT_KEYS_MAX);
    let samples = keys.iter().map(|hot| {
        let key = Uri(&hot.key).to_string();
        (vec![("key", key)], hot.rate() as f64)
    });
    let name = "herdwick_hot_key_requests_per_second";
    let help = "Requests for each of the keys asked for most, estimated over 10 to 20 seconds.";
    page.add(name, Kind::Gauge, help, samples);
}

/// Adds the lease manager's counters, if there is one.
fn leases(context: &Context, page: &mut Page) {
    let (mut paths, mut ended) = (Vec::new(), Vec::new());
    for (stat, count) in context.leases() {
        let (name, kind, help) = match stat {
            "leases" => ("herdwick_leases", Kind::Gauge, "Leases that stand now."),
            "lease_bytes" => (
                "herdwick_lease_bytes",
                Kind::Gauge,
                "Bytes of memory that leases hold now.",
            ),
            "leases_being_released" => (
                "herdwick_leases_being_released",
                Kind::Gauge,
                "Leases that ended and whose memory is not the system's again.",
            ),
            "leases_granted" => (
                "herdwick_leases_granted_total",
                Kind::Counter,
                "Leases that ever stood.",
            ),
            "leases_uc_write" | "leases_rc_write" | "leases_ud_send" => {
                let path = stat.trim_start_matches("leases_").replace('_', "-");
                paths.push((vec![("path", path)], count as f64));
                continue;
            }
            stat => {
                let reason = stat.strip_prefix("lease_").unwrap_or(stat);
                ended.push((vec![("reason", reason.to_owned())], count as f64));
                continue;
            }
        };
        page.add(name, kind, help, [(vec![], count as f64)]);
    }
    let name = "herdwick_leases_by_path_total";
    let help = "Leases that ever stood, by how their requests travel.";
    page.add(name, Kind::Counter, help, paths);
    let name = "herdwick_lease_failures_total";
    let help = "Claims refused and leases ended by force, by reason.";
    page.add(name, Kind::Counter, help, ended);
}

/// Adds the counters of refused descriptors and of the threads that close their sockets.
fn closers(page: &mut Page) {
    let unix = unix::counts();
    for (name, count, help) in [
        (
            "herdwick_unix_sockets_closing",
            unix.sockets_closing,
            "Unix sockets with descriptors in them that wait to be closed, or are being closed.",
        ),
        (
            "herdwick_unix_closers_stuck",
            unix.closers_stuck,
            "Threads that have been closing the same unix socket for more than 100 ms.",
        ),
    ] {
        page.add(name, Kind::Gauge, help, [(vec![], count as f64)]);
    }
}

/// Families in the order of their addition.
#[derive(Default)]
struct Page(Vec<MetricFamily>);

type Sample = (Vec<(&'static str, String)>, f64);

impl Page {
    fn add_exported(&mut self, family: &Family, said: &HashMap<String, f64>) {
        let own = |labels: Labels| labels.iter().map(|(name, value)| (*name, (*value).into()));
        let samples = family
            .metrics
            .iter()
            .filter_map(|(labels, stat)| Some((own(labels).collect(), *said.get(*stat)?)));
        let name = format!("memcached_{}", family.name);
        self.add(&name, family.kind, family.help, samples);
    }

    /// Adds a family, unless it is empty.
    fn add(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        samples: impl IntoIterator<Item = Sample>,
    ) {
        let metrics: Vec<Metric> = samples
            .into_iter()
            .map(|(labels, value)| metric(kind, labels, value))
            .collect();
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(match kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
        });
        family.set_metric(metrics);
        self.0.push(family);
    }

    fn text(&self) -> String {
        // It fails only for families without metrics or names.
        TextEncoder::new()
            .encode_to_string(&self.0)
            .unwrap_or_default()
    }
}

fn metric(kind: Kind, labels: Vec<(&'static str, String)>, value: f64) -> Metric {
    let pair = |(name, value): (&str, String)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    };
    let mut metric = Metric::from_label(labels.into_iter().map(pair).collect());
    match kind {
        Kind::Counter => {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        Kind::Gauge => {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
    }
    metric
}
