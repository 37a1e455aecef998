//! What the model predicts of systems: `docs/sim.md` puts each beside the paper's number.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use herdwick_fabric::Transport::Rc;
use herdwick_sim::{
    Profile,
    verbs::{Direction, Flood, FloodVerb, Span},
};
use herdwick_sim_bench::{Report, Run, System};

/// How far a value may be from that in the docs.
const CHANGE_MAX: f64 = 0.03;

fn apt() -> Profile {
    Profile::named("apt").unwrap()
}

fn report(run: &Run) -> Report {
    let report = run.on(&apt()).unwrap();
    assert_eq!(report.failed, 0, "{run:?}");
    assert!(report.answered > 0, "{run:?}");
    report
}

/// Mean latency in microseconds.
fn mean(report: &Report) -> f64 {
    f64::from(u32::try_from(report.outcome.mean_ns()).unwrap()) / 1000.0
}

fn rate(run: &Run) -> f64 {
    report(run).outcome.mops
}

/// FaRM-em and Pilaf-em-OPT have no store, so their GETs are READs of certain lengths alone.
fn reads(bytes: usize) -> f64 {
    let flood = Flood {
        direction: Direction::Inbound,
        verb: FloodVerb::Read,
        transport: Rc,
        payload: bytes,
        inline: false,
        servers: 3,
        clients: 51,
        machines: 17,
        window: 16,
        all_to_all: false,
    };
    let long = Duration::from_millis(1);
    let span = Span {
        warm_up: long,
        measured: long,
    };
    flood.run(&apt(), 1, span).unwrap().mops
}

#[test]
fn predictions_are_those_of_the_docs() {
    let herd = Run::default();
    let puts = |put_percent| Run {
        put_percent,
        ..herd
    };
    let workers = |workers| Run { workers, ..herd };
    let long = Span {
        warm_up: Duration::from_micros(400),
        measured: Duration::from_micros(300),
    };
    let clients = |clients, window| Run {
        clients,
        window,
        machines: 186,
        keys: 1 << 12,
        span: long,
        ..herd
    };
    // The fewest clients that reach the peak in the paper: more wait longer.
    let few = report(&Run {
        clients: 36,
        ..herd
    });
    let paper = Run {
        system: System::HerdPaper,
        ..herd
    };
    let paper_clients = |count, window| Run {
        system: System::HerdPaper,
        ..clients(count, window)
    };
    let two_reads = |first, second| 1.0 / (1.0 / first + 1.0 / second);
    let rows = [
        ("HERD, 5 % PUT", Some(26.0), rate(&herd)),
        ("HERD, 50 % PUT", Some(26.0), rate(&puts(50))),
        ("HERD, 100 % PUT", Some(26.0), rate(&puts(100))),
        ("HERD, 36 clients: mean latency, us", Some(5.0), mean(&few)),
        ("HERD, one core", Some(6.3), rate(&workers(1))),
        ("HERD, five cores", Some(24.7), rate(&workers(5))),
        ("HERD, 260 clients", Some(26.0), rate(&clients(260, 4))),
        ("HERD, 400 clients", None, rate(&clients(400, 4))),
        (
            "HERD, 400 clients, window 16",
            None,
            rate(&clients(400, 16)),
        ),
        ("HERD as in the paper, 5 % PUT", Some(26.0), rate(&paper)),
        (
            "HERD as in the paper, 50 % PUT",
            Some(26.0),
            rate(&Run {
                put_percent: 50,
                ..paper
            }),
        ),
        (
            "HERD as in the paper, 100 % PUT",
            Some(26.0),
            rate(&Run {
                put_percent: 100,
                ..paper
            }),
        ),
        (
            "HERD as in the paper, 36 clients: mean latency, us",
            Some(5.0),
            mean(&report(&Run {
                clients: 36,
                ..paper
            })),
        ),
        (
            "HERD as in the paper, one core",
            Some(6.3),
            rate(&Run {
                workers: 1,
                ..paper
            }),
        ),
        (
            "HERD as in the paper, five cores",
            Some(24.7),
            rate(&Run {
                workers: 5,
                ..paper
            }),
        ),
        (
            "HERD as in the paper, 260 clients",
            Some(26.0),
            rate(&paper_clients(260, 4)),
        ),
        (
            "HERD as in the paper, 400 clients",
            None,
            rate(&paper_clients(400, 4)),
        ),
        (
            "HERD as in the paper, 400 clients, window 16",
            None,
            rate(&paper_clients(400, 16)),
        ),
        ("FaRM-em, READs of 288 B", Some(17.2), reads(288)),
        (
            "FaRM-em-VAR, READs of 144 and 32 B",
            Some(11.4),
            two_reads(reads(144), reads(32)),
        ),
        (
            "Pilaf-em-OPT, 2.6 READs of 32 B",
            Some(9.9),
            reads(32) / 2.6,
        ),
    ];
    let wrong: Vec<_> = rows
        .into_iter()
        .filter_map(|(name, paper, value)| unlike_the_docs(name, paper, value))
        .collect();
    assert!(wrong.is_empty(), "docs/sim.md lacks\n{}", wrong.join("\n"));
}

/// The systems of this repository, whose layouts are not those of the paper's emulations.
#[test]
fn rates_of_the_stores_are_those_of_the_docs() {
    let gets = Run {
        put_percent: 0,
        workers: 1,
        window: 16,
        ..Run::default()
    };
    for system in [System::Farm, System::FarmVar, System::Pilaf] {
        let name = format!("{}, GETs alone", system.name());
        hold(&name, &row(&name)[0], rate(&Run { system, ..gets }));
    }
}

/// The same run gives the same events; another seed, or a client more, others.
#[test]
fn run_repeats_event_by_event() {
    let run = Run {
        clients: 12,
        machines: 4,
        workers: 2,
        keys: 1000,
        put_percent: 50,
        ..Run::default()
    };
    // Clover runs under faults alone.
    let measured = System::ALL.into_iter().filter(|it| *it != System::Clover);
    for system in measured {
        let run = Run { system, ..run };
        let trace = |run: &Run| report(run).outcome.trace;
        assert_eq!(trace(&run), trace(&run), "{system:?}");
        let others = [Run { seed: 2, ..run }, Run { clients: 13, ..run }];
        let traces: BTreeMap<u64, usize> = others
            .iter()
            .chain([&run])
            .map(|run| (trace(run), 0))
            .collect();
        assert_eq!(traces.len(), 3, "{system:?}");
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let none = Run {
        clients: 0,
        ..Run::default()
    };
    assert!(none.on(&apt()).is_err());
    let odd = Run {
        window: 3,
        ..Run::default()
    };
    assert!(odd.on(&apt()).is_err());
}

/// Returns the row that docs/sim.md should have, if it has another. A change of a system may move it a little.
fn unlike_the_docs(name: &str, paper: Option<f64>, value: f64) -> Option<String> {
    // Rounded, and without a sign of zero.
    let error = |model: f64, paper: f64| (1000.0 * (model / paper - 1.0)).round() / 10.0 + 0.0;
    let cells = |model: f64| {
        let paper_cell = paper.map_or_else(|| "-".to_owned(), |paper| format!("{paper:.2}"));
        let error = paper.map(|paper| format!("{:+.1} %", error(model, paper)));
        [paper_cell, format!("{model:.2}"), error.unwrap_or_default()]
    };
    let docs = row(name);
    let model: f64 = docs
        .get(1)
        .and_then(|cell| cell.parse().ok())
        .unwrap_or(0.0);
    let is_near = (value - model).abs() / value < CHANGE_MAX;
    (!is_near || docs[..3] != cells(model)).then(|| {
        let [paper, value, error] = cells(value);
        format!("| {name} | {paper} | {value} | {error} |")
    })
}

/// Returns the cells after the first of the row in the docs that begins with `name`.
fn row(name: &str) -> Vec<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sim.md");
    let docs = fs::read_to_string(docs).unwrap();
    let begins = format!("| {name} | ");
    let rest = docs.lines().find_map(|line| line.strip_prefix(&begins));
    let rest = rest.unwrap_or("- | - | - |");
    rest.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// Holds that the docs have this value. A change of a system may move it a little.
fn hold(name: &str, docs: &str, value: f64) {
    let told: f64 = docs.parse().unwrap();
    let change = (value - told).abs() / told;
    assert!(
        change < CHANGE_MAX,
        "{name}: {value:.2}, docs/sim.md has {told}"
    );
}
