//! The report as a table for a terminal of 80 columns, with ratios and warnings.

use std::{collections::BTreeSet, fmt};

use super::{
    Outcome, Report, Subject, cache,
    numbers::{cut, name, nothing, short, spread},
    traces, verb,
    wrap::wrapped,
};
use crate::cost::SHARE_MAX;

/// Displays a report: the machine and the options, a line per result, ratios between fabrics, and a
/// warning for everything that makes a figure doubtful.
#[derive(Debug)]
pub struct Table<'a>(pub &'a Report);

/// Headings and widths of the columns; separated by spaces, they fill 80 columns.
const COLUMNS: [(&str, usize); 12] = [
    ("what", 13),
    ("work", 8),
    ("kops/s", 6),
    ("+-%", 4),
    ("hit %", 6),
    ("p50", 5),
    ("p99", 5),
    ("p99.9", 5),
    ("srv", 5),
    ("cli", 5),
    ("gen", 4),
    ("%", 3),
];

const LEGEND: &str = "\
+-%: how far runs lie from the median; hit %: of reads; p50, p99, p99.9: latency in us; srv, cli: CPU \
time of server and clients, ns for each operation; gen, %: ns that generator and check take for an \
operation, and their share of a client's time for it";

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text)?;
        wrapped(f, &text)
    }
}

impl Table<'_> {
    fn write(&self, f: &mut impl fmt::Write) -> fmt::Result {
        let report = self.0;
        manifest(f, report)?;
        if report.results.iter().any(|r| r.subject.verb.is_some()) {
            verb::points(f, report)?;
            lines(f, report)?;
            left_out(f, report)?;
            return warnings(f, &report.results);
        }
        if report.results.iter().any(|r| r.byte_hit_ratio.is_some()) {
            traces::cells(f, &report.results)?;
            return warnings(f, &report.results);
        }
        if report
            .results
            .iter()
            .any(|r| r.subject.room_percent.is_some())
        {
            cache::cells(f, &report.results)?;
            return warnings(f, &report.results);
        }
        grid(f, &report.results)?;
        match report.results.iter().find_map(|result| result.idle_cpu_ms) {
            Some(ms) => rest(f, &report.results, ms)?,
            None => ratios(f, &report.results)?,
        }
        lines(f, report)?;
        fairness(f, &report.results)?;
        crowds(f, report)?;
        reads(f, &report.results)?;
        left_out(f, report)?;
        warnings(f, &report.results)
    }
}

fn left_out(f: &mut impl fmt::Write, report: &Report) -> fmt::Result {
    match &report.manifest.left_out {
        Some(reason) => writeln!(f, "left out: {reason}"),
        None => Ok(()),
    }
}

fn manifest(f: &mut impl fmt::Write, report: &Report) -> fmt::Result {
    let (manifest, knobs) = (&report.manifest, &report.manifest.knobs);
    let machine = &manifest.machine;
    writeln!(
        f,
        "herdwick {} ({}), {}; {}: {}, {} CPUs, Linux {}, libc's memcpy with {}{}",
        manifest.version,
        manifest.commit,
        manifest.word,
        machine.host,
        machine.cpu_model,
        machine.cpus,
        machine.kernel,
        machine.libc_vectors,
        machine
            .glibc_tunables
            .as_ref()
            .map_or_else(String::new, |tunables| format!(
                " (GLIBC_TUNABLES={tunables})"
            )),
    )?;
    if report.results.iter().any(|r| r.byte_hit_ratio.is_some()) {
        return writeln!(f, "one half of each trace to warm up, the other measured\n");
    }
    if report.results.iter().any(|r| r.subject.verb.is_some()) {
        return verb::terms(f, report);
    }
    write!(
        f,
        "{} keys of {} B, values of {} B, {}, {} x {} s",
        knobs.keys, knobs.key_size, knobs.value_size, knobs.dist, knobs.runs, knobs.seconds
    )?;
    if let Some(replicas) = knobs.replicas {
        write!(f, ", replicas of Clover: {replicas}")?;
    }
    if let Some(rate) = knobs.rate {
        write!(f, ", open loop at {rate}/s")?;
    }
    let server = report
        .results
        .iter()
        .find_map(|r| r.subject.server.as_ref());
    if let Some(server) = server {
        write!(f, ", server {server}")?;
    }
    f.write_char('\n')?;
    let asked: BTreeSet<String> = report.results.iter().filter_map(clients).collect();
    for fabric in asked {
        writeln!(f, "{fabric}")?;
    }
    f.write_char('\n')
}

fn row(result: &Outcome) -> [String; 12] {
    let subject = &result.subject;
    let latency = |value: fn(&super::Latency) -> f64| {
        let latency = result.latency_us.as_ref();
        latency.map_or_else(nothing, |latency| short(value(latency)))
    };
    let known = |value: Option<f64>| value.map_or_else(nothing, short);
    [
        name(subject),
        format!("{} {:.0}%", subject.workload, subject.get_share * 100.0),
        short(result.ops_per_s / 1000.0),
        spread(result),
        result
            .hit_ratio
            .map_or_else(nothing, |ratio| format!("{:.2}", ratio * 100.0)),
        latency(|l| l.p50),
        latency(|l| l.p99),
        latency(|l| l.p999),
        known(result.cpu_ns_per_op.server),
        known(result.cpu_ns_per_op.client),
        result
            .generator_ns_per_op
            .map_or_else(nothing, |ns| cut(ns, 4)),
        result
            .generator_share
            .map_or_else(nothing, |share| format!("{:.0}", share * 100.0)),
    ]
}

/// Returns the long name of a line: `herd over shm beside a spinner`.
fn title(subject: &Subject) -> String {
    let beside = subject.beside.as_ref();
    let beside = beside.map_or_else(String::new, |beside| format!(" beside a {beside}"));
    format!("{} over {}{beside}", subject.system, subject.fabric)
}

/// Describes the clients: `tcp: 1 client, 50 connections, pipeline 4, multiget 100`.
fn clients(result: &Outcome) -> Option<String> {
    let subject = &result.subject;
    let parts = [
        subject.window.map(|window| format!("window {window}")),
        subject
            .connections
            .map(|count| format!("{count} connections")),
        subject.pipeline.map(|depth| format!("pipeline {depth}")),
        subject.multiget.map(|keys| format!("multiget {keys}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let plural = if subject.clients == 1 { "" } else { "s" };
    let (fabric, clients) = (&subject.fabric, subject.clients);
    let asked = format!("{fabric}: {clients} client{plural}, {}", parts.join(", "));
    (!parts.is_empty()).then_some(asked)
}

fn grid(f: &mut impl fmt::Write, results: &[Outcome]) -> fmt::Result {
    line(f, COLUMNS.map(|(heading, _)| heading.to_owned()))?;
    for result in results {
        line(f, row(result))?;
    }
    writeln!(f, "{LEGEND}\n")
}

/// Writes one row: names left-aligned, figures right-aligned.
fn line(f: &mut impl fmt::Write, cells: [String; 12]) -> fmt::Result {
    for (i, (cell, (_, width))) in cells.iter().zip(COLUMNS).enumerate() {
        match i {
            0 => write!(f, "{cell:<width$}")?,
            1 => write!(f, " {cell:<width$}")?,
            _ => write!(f, " {cell:>width$}")?,
        }
    }
    f.write_char('\n')
}

/// Writes the cache-line round trip before and after the runs of each line.
fn lines(f: &mut impl fmt::Write, report: &Report) -> fmt::Result {
    let around = report.results.iter().filter_map(|result| {
        let line = &result.line_rtt_ns;
        let (before, after) = (line.before?, line.after?);
        Some(format!("{} {before:.0}>{after:.0}", name(&result.subject)))
    });
    let around: Vec<String> = around.collect();
    match around.is_empty() {
        true => Ok(()),
        false => writeln!(f, "line RTT before>after, ns: {}", around.join(", ")),
    }
}

/// Writes ratios of the rates under the same workload: each other line against the last one.
fn ratios(f: &mut impl fmt::Write, results: &[Outcome]) -> fmt::Result {
    let Some((last, others)) = results.split_last() else {
        return Ok(());
    };
    let differs = |other: &&Outcome| {
        let (a, b) = (&other.subject, &last.subject);
        a.workload == b.workload && title(a) != title(b)
    };
    for other in others.iter().filter(differs) {
        writeln!(
            f,
            "{} : {} = {:.2}",
            title(&other.subject),
            title(&last.subject),
            other.ops_per_s / last.ops_per_s
        )?;
    }
    Ok(())
}

/// Writes how evenly several clients were served.
fn fairness(f: &mut impl fmt::Write, results: &[Outcome]) -> fmt::Result {
    for result in results {
        if let Some(share) = result.slowest_client {
            writeln!(
                f,
                "fairness: {}: the slowest of {} clients had {share:.2} of the mean",
                title(&result.subject),
                result.subject.clients
            )?;
        }
    }
    Ok(())
}

/// Writes how many READs a GET took, and of how many bytes.
fn reads(f: &mut impl fmt::Write, results: &[Outcome]) -> fmt::Result {
    for result in results {
        if let (Some(reads), Some(bytes)) = (result.reads_per_get, result.read_bytes_per_get) {
            let title = title(&result.subject);
            write!(f, "{title}: {reads:.2} READs and {bytes:.0} bytes a GET")?;
            match result.checksum_ns_per_get {
                Some(ns) => writeln!(f, "; their checksums take {ns:.0} ns")?,
                None => writeln!(f)?,
            }
        }
    }
    Ok(())
}

/// Writes the effect of idle connections on p99 of the busy ones, and on memory.
fn crowds(f: &mut impl fmt::Write, report: &Report) -> fmt::Result {
    let Some(count) = report.manifest.knobs.idle_connections else {
        return Ok(());
    };
    let p99 = |result: &Outcome| result.latency_us.map_or(f64::NAN, |latency| latency.p99);
    let (crowded, alone): (Vec<_>, Vec<_>) = report
        .results
        .iter()
        .partition(|result| result.subject.beside.is_some());
    for with in crowded {
        let fabric = &with.subject.fabric;
        let without = alone.iter().find(|other| other.subject.fabric == *fabric);
        let ratio = without.map_or(f64::NAN, |without| p99(with) / p99(without));
        let memory = with
            .server_rss_mb
            .map_or_else(nothing, |mb| format!("{mb:.0} MiB"));
        let limit = report.manifest.knobs.memory_mb;
        let limit = limit.map_or_else(nothing, |mb| format!("{mb} MiB"));
        writeln!(
            f,
            "crowd: with {count} idle connections, p99 over {fabric} is {ratio:.2} x; the server holds {memory}, its limit is {limit}"
        )?;
    }
    Ok(())
}

/// Writes the CPU time of a server at rest.
fn rest(f: &mut impl fmt::Write, results: &[Outcome], ms: f64) -> fmt::Result {
    let clients = results.iter().map(|result| {
        let subject = &result.subject;
        format!("{} over {}", subject.clients, subject.fabric)
    });
    let clients = clients.collect::<Vec<_>>().join(" and ");
    writeln!(
        f,
        "rest: {ms:.2} ms of CPU in 10 s, with {clients} attached"
    )
}

fn warnings(f: &mut impl fmt::Write, results: &[Outcome]) -> fmt::Result {
    for result in results {
        let name = format!("{} over {}", result.subject.system, result.subject.fabric);
        if result.wrong_values > 0 {
            writeln!(
                f,
                "WRONG: {name}: {} values were not their key's",
                result.wrong_values
            )?;
        }
        if result.errors > 0 {
            writeln!(f, "errors: {name}: {} requests were refused", result.errors)?;
        }
        if let Some(share) = result.generator_share.filter(|share| *share > SHARE_MAX) {
            writeln!(
                f,
                "generator: {name}: the benchmark itself takes {:.0} % of an operation's time; \
                 take more --clients, or read the figure as a lower bound",
                share * 100.0
            )?;
        }
        if result.drifted_runs > 0 {
            writeln!(
                f,
                "drift: {name}: the line RTT moved by more than 20 % around {} of {} runs; do not compare them",
                result.drifted_runs, result.runs
            )?;
        }
    }
    Ok(())
}
