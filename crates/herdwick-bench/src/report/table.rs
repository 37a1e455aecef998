use std::fmt;

use super::{BeforeAfter, Outcome, Report, Subject, cache};

/// A report as a person reads it: what was measured on what, a line per result, ratios between
/// fabrics, and a warning for whatever makes a figure doubtful.
#[derive(Debug)]
pub struct Table<'a>(pub &'a Report);

const HEADER: [&str; 12] = [
    "system",
    "fabric",
    "work",
    "clients",
    "kops/s",
    "min..max",
    "hit %",
    "p50 us",
    "p99",
    "p99.9",
    "cpu ns/op s+c",
    "line RTT ns",
];

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        manifest(f, report)?;
        if report
            .results
            .iter()
            .any(|r| r.subject.room_percent.is_some())
        {
            cache::cells(f, &report.results)?;
            return warnings(f, &report.results);
        }
        let rows: Vec<_> = report.results.iter().map(row).collect();
        grid(f, &rows)?;
        match report.results.iter().find_map(|result| result.idle_cpu_ms) {
            Some(ms) => rest(f, &report.results, ms)?,
            None => ratios(f, &report.results)?,
        }
        fairness(f, &report.results)?;
        crowds(f, report)?;
        if let Some(reason) = &report.manifest.left_out {
            writeln!(f, "left out: {reason}")?;
        }
        warnings(f, &report.results)
    }
}

fn manifest(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let (manifest, knobs) = (&report.manifest, &report.manifest.knobs);
    let machine = &manifest.machine;
    writeln!(
        f,
        "herdwick {} ({}), {}; {}: {}, {} CPUs, Linux {}",
        manifest.version,
        manifest.commit,
        manifest.word,
        machine.host,
        machine.cpu_model,
        machine.cpus,
        machine.kernel
    )?;
    write!(
        f,
        "{} keys of {} B, values of {} B, {}, {} x {} s",
        knobs.keys, knobs.key_size, knobs.value_size, knobs.dist, knobs.runs, knobs.seconds
    )?;
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
    f.write_str("\n\n")
}

fn row(result: &Outcome) -> [String; 12] {
    let subject = &result.subject;
    let latency = |value: fn(&super::Latency) -> f64| {
        result
            .latency_us
            .as_ref()
            .map_or_else(nothing, |latency| format!("{:.1}", value(latency)))
    };
    let cpu = [result.cpu_ns_per_op.server, result.cpu_ns_per_op.client];
    [
        system(subject),
        subject.fabric.clone(),
        format!("{} {:.0}%", subject.workload, subject.get_share * 100.0),
        clients(result),
        kilo(result.ops_per_s),
        format!(
            "{}..{}",
            kilo(result.ops_per_s_min),
            kilo(result.ops_per_s_max)
        ),
        result
            .hit_ratio
            .map_or_else(nothing, |ratio| format!("{:.2}", ratio * 100.0)),
        latency(|l| l.p50),
        latency(|l| l.p99),
        latency(|l| l.p999),
        cpu.map(whole).join("+"),
        line_rtt(&result.line_rtt_ns),
    ]
}

fn system(subject: &Subject) -> String {
    match &subject.beside {
        Some(beside) => format!("{}, {beside}", subject.system),
        None => subject.system.clone(),
    }
}

/// Which line of the table is meant.
fn title(subject: &Subject) -> String {
    let beside = subject.beside.as_ref();
    let beside = beside.map_or_else(String::new, |beside| format!(" beside a {beside}"));
    format!("{} over {}{beside}", subject.system, subject.fabric)
}

/// How many clients ask how: `2 w32`, or `1 c50 p4 m100`.
fn clients(result: &Outcome) -> String {
    let subject = &result.subject;
    let knobs = [
        ("w", subject.window),
        ("c", subject.connections),
        ("p", subject.pipeline),
        ("m", subject.multiget),
    ];
    let mut text = subject.clients.to_string();
    for (letter, value) in knobs {
        if let Some(value) = value {
            text.push_str(&format!(" {letter}{value}"));
        }
    }
    text
}

fn line_rtt(line: &BeforeAfter) -> String {
    match (line.before, line.after) {
        (Some(before), Some(after)) => format!("{before:.0}>{after:.0}"),
        _ => nothing(),
    }
}

fn nothing() -> String {
    "-".to_owned()
}

fn whole(value: Option<f64>) -> String {
    value.map_or_else(nothing, |value| format!("{value:.0}"))
}

fn kilo(per_second: f64) -> String {
    let kilo = per_second / 1000.0;
    if kilo < 100.0 {
        format!("{kilo:.1}")
    } else {
        format!("{kilo:.0}")
    }
}

fn grid(f: &mut fmt::Formatter<'_>, rows: &[[String; 12]]) -> fmt::Result {
    let mut widths = HEADER.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    line(f, &widths, HEADER.into_iter())?;
    for row in rows {
        line(f, &widths, row.iter().map(String::as_str))?;
    }
    Ok(())
}

/// Names to the left, figures to the right.
fn line<'a>(
    f: &mut fmt::Formatter<'_>,
    widths: &[usize],
    cells: impl Iterator<Item = &'a str>,
) -> fmt::Result {
    for (i, (cell, width)) in cells.zip(widths).enumerate() {
        match i {
            0 => write!(f, "{cell:<width$}")?,
            1..=3 => write!(f, "  {cell:<width$}")?,
            _ => write!(f, "  {cell:>width$}")?,
        }
    }
    writeln!(f)
}

/// The same system and workload over several fabrics: each against the last.
fn ratios(f: &mut fmt::Formatter<'_>, results: &[Outcome]) -> fmt::Result {
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

/// How evenly several clients were served.
fn fairness(f: &mut fmt::Formatter<'_>, results: &[Outcome]) -> fmt::Result {
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

/// What idle connections cost those that are busy, and in memory.
fn crowds(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
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

/// What a server cost that nobody asked.
fn rest(f: &mut fmt::Formatter<'_>, results: &[Outcome], ms: f64) -> fmt::Result {
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

fn warnings(f: &mut fmt::Formatter<'_>, results: &[Outcome]) -> fmt::Result {
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
