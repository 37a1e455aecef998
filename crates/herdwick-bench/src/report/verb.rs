//! The table of the benchmark of verbs: what all points have in common in one line, and a column for
//! every parameter that varies.

use std::fmt;

use super::{
    Outcome, Report,
    numbers::{cut, name, nothing, short, spread},
    point::VerbPoint,
};

/// A parameter: its heading in the table, its name before a value in the common line, and its value.
type Parameter = (&'static str, &'static str, fn(&Outcome) -> String);

const PARAMETERS: [Parameter; 17] = [
    ("fabric", "over", |r| r.subject.fabric.clone()),
    ("verb", "", |r| of(r, |verb| verb.verb.clone())),
    ("level", "", |r| of(r, |verb| verb.level.clone())),
    ("tr", "", |r| of(r, |verb| verb.transport.clone())),
    ("way", "", |r| of(r, |verb| verb.direction.clone())),
    ("to", "", |r| {
        of(r, |verb| {
            if verb.all_to_all { "all" } else { "one" }.to_owned()
        })
    }),
    ("B", "bytes:", |r| of(r, |verb| verb.payload.to_string())),
    ("inl", "inlined:", |r| {
        of(r, |verb| if verb.inline { "yes" } else { "no" }.to_owned())
    }),
    ("sig", "signaled every", |r| {
        of(r, |verb| verb.signaled.to_string())
    }),
    ("post", "postlist", |r| {
        of(r, |verb| verb.postlist.to_string())
    }),
    ("win", "window", |r| of(r, |verb| verb.window.to_string())),
    ("qps", "queue pairs", |r| {
        of(r, |verb| verb.queue_pairs.to_string())
    }),
    ("srvs", "server threads", |r| {
        of(r, |verb| verb.servers.to_string())
    }),
    ("clis", "client threads", |r| r.subject.clients.to_string()),
    ("acc", "accesses:", |r| {
        of(r, |verb| match verb.accesses {
            0 => String::new(),
            accesses => accesses.to_string(),
        })
    }),
    ("pre", "prefetched:", |r| {
        of(r, |verb| match (verb.accesses, verb.prefetch) {
            (0, _) => String::new(),
            (_, true) => "yes".to_owned(),
            (_, false) => "no".to_owned(),
        })
    }),
    ("memory", "memory", |r| {
        of(r, |verb| verb.memory.to_string())
    }),
];

fn of(result: &Outcome, value: fn(&VerbPoint) -> String) -> String {
    result.subject.verb.as_ref().map_or_else(nothing, value)
}

/// Headings and widths of the figures.
const FIGURES: [(&str, usize); 9] = [
    ("M/s", 6),
    ("+-%", 4),
    ("p50", 5),
    ("p99", 5),
    ("p99.9", 5),
    ("srv", 5),
    ("cli", 5),
    ("gen", 4),
    ("%", 3),
];

const LEGEND: &str = "\
M/s: millions of operations a second, of SENDs those received; p50, p99, p99.9: latency in us from the post \
of a signaled verb to its completion; srv, cli: CPU time of server and client threads, ns for each; \
gen, %: ns that the benchmark itself takes for one, and their share of an issuer's time for it";

/// Writes what all points have in common.
pub(super) fn terms(f: &mut impl fmt::Write, report: &Report) -> fmt::Result {
    let common = PARAMETERS.iter().filter(|it| !varies(report, it));
    let common = common.filter_map(|(_, name, value)| {
        let value = report.results.first().map_or_else(nothing, value);
        // A parameter of other benchmarks than this.
        (!value.is_empty()).then(|| format!("{name} {value}").trim_start().to_owned())
    });
    let common: Vec<_> = common.collect();
    let knobs = &report.manifest.knobs;
    write!(
        f,
        "{}; {} x {} s",
        common.join(", "),
        knobs.runs,
        knobs.seconds
    )?;
    match knobs.rate {
        Some(rate) => writeln!(f, ", open loop at {rate}/s\n"),
        None => writeln!(f, ", closed loop\n"),
    }
}

/// Whether not all points have the same value.
fn varies(report: &Report, (_, _, value): &Parameter) -> bool {
    let mut values = report.results.iter().map(value);
    let first = values.next();
    values.any(|value| Some(value) != first)
}

/// Writes a line for each point.
pub(super) fn points(f: &mut impl fmt::Write, report: &Report) -> fmt::Result {
    let varying: Vec<_> = PARAMETERS.iter().filter(|it| varies(report, it)).collect();
    let width = |(heading, _, value): &Parameter| {
        let widths = report.results.iter().map(|result| value(result).len());
        widths.fold(heading.len(), usize::max)
    };
    for parameter in &varying {
        write!(f, "{:>width$} ", parameter.0, width = width(parameter))?;
    }
    row(f, FIGURES.map(|(heading, _)| heading.to_owned()))?;
    for result in &report.results {
        for parameter in &varying {
            write!(
                f,
                "{:>width$} ",
                parameter.2(result),
                width = width(parameter)
            )?;
        }
        row(f, figures(result))?;
    }
    writeln!(f, "{LEGEND}\n")?;
    for result in &report.results {
        let lost = result.subject.verb.as_ref().and_then(|verb| verb.lost);
        if let Some(lost) = lost.filter(|lost| *lost > 0.0) {
            let name = name(&result.subject);
            writeln!(
                f,
                "lost: {name}: {:.3} % of the messages did not arrive",
                lost * 100.0
            )?;
        }
    }
    Ok(())
}

fn figures(result: &Outcome) -> [String; 9] {
    let latency = |value: fn(&super::Latency) -> f64| {
        let latency = result.latency_us.as_ref();
        latency.map_or_else(nothing, |latency| short(value(latency)))
    };
    let known = |value: Option<f64>| value.map_or_else(nothing, short);
    let share = result.generator_share;
    [
        cut(result.ops_per_s / 1e6, 6),
        spread(result),
        latency(|l| l.p50),
        latency(|l| l.p99),
        latency(|l| l.p999),
        known(result.cpu_ns_per_op.server),
        known(result.cpu_ns_per_op.client),
        result
            .generator_ns_per_op
            .map_or_else(nothing, |ns| cut(ns, 4)),
        share.map_or_else(nothing, |share| format!("{:.0}", share * 100.0)),
    ]
}

fn row(f: &mut impl fmt::Write, cells: [String; 9]) -> fmt::Result {
    for (cell, (_, width)) in cells.iter().zip(FIGURES) {
        write!(f, " {cell:>width$}")?;
    }
    f.write_char('\n')
}
