//! What the model predicts of systems: `docs/sim.md` puts each beside the paper's number.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use herdwick_fabric::Transport::Rc;
use herdwick_herd::RequestPath;
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
    report_on(&apt(), run)
}

fn report_on(profile: &Profile, run: &Run) -> Report {
    let report = run.on(profile).unwrap();
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
    let long = Duration::from_millis(1);
    reads_on(&apt(), bytes, (51, 16), [long, long])
}

/// The rate of READs of so many clients, each with so many under way.
fn reads_on(
    profile: &Profile,
    bytes: usize,
    (clients, window): (usize, usize),
    [warm_up, measured]: [Duration; 2],
) -> f64 {
    let flood = Flood {
        direction: Direction::Inbound,
        verb: FloodVerb::Read,
        transport: Rc,
        payload: bytes,
        inline: false,
        servers: 3,
        clients,
        machines: 17,
        window,
        postlist: 1,
        all_to_all: false,
    };
    let span = Span { warm_up, measured };
    flood.run(profile, 1, span).unwrap().mops
}

#[test]
#[ignore = "eight seconds of simulations; CI runs it"]
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
        (
            "HERD as in the paper, 600 clients",
            None,
            rate(&paper_clients(600, 4)),
        ),
        (
            "HERD as in the paper, 800 clients",
            None,
            rate(&paper_clients(800, 4)),
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

fn on(name: &str, run: Run) -> f64 {
    report_on(&Profile::named(name).unwrap(), &run).outcome.mops
}

fn micros(warm_up: u64, measured: u64) -> Span {
    Span {
        warm_up: Duration::from_micros(warm_up),
        measured: Duration::from_micros(measured),
    }
}

fn hold_rows(rows: impl IntoIterator<Item = (String, Option<f64>, f64)>) {
    let rows = rows.into_iter();
    let wrong = rows.filter_map(|(name, paper, value)| unlike_the_docs(&name, paper, value));
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "docs/sim.md lacks\n{}", wrong.join("\n"));
}

/// HERD on Connect-IB, whose profile is fitted to its verbs.
#[test]
fn predictions_of_connect_ib_are_those_of_the_docs() {
    let all = Run {
        workers: 14,
        clients: 128,
        machines: 8,
        window: 16,
        span: micros(150, 100),
        ..Run::default()
    };
    let one = Run { workers: 1, ..all };
    let together = |run| Run {
        postlist: 32,
        ..run
    };
    let rows = [
        ("all cores", 72.8, all),
        ("all cores, 32 replies of a post", 98.3, together(all)),
        ("one core", 6.7, one),
        ("one core, 32 replies of a post", 12.3, together(one)),
    ];
    hold_rows(rows.map(|(name, paper, run)| {
        let value = on("connect-ib", run);
        (format!("Connect-IB: HERD, {name}"), Some(paper), value)
    }));
}

/// The standalone HERD of the hKVS paper on an EPYC with a ConnectX-6, and on a BlueField-2.
#[test]
fn predictions_of_connect_x_6_are_those_of_the_docs() {
    let epyc = Run {
        workers: 32,
        clients: 72,
        machines: 3,
        window: 64,
        postlist: 32,
        keys: 1 << 14,
        span: micros(120, 50),
        ..Run::default()
    };
    let arm = Run {
        workers: 8,
        clients: 48,
        span: micros(1000, 500),
        ..epyc
    };
    let rows = [
        ("ConnectX-6", "cx6-100g", 32, 0, 72.5, epyc),
        ("ConnectX-6", "cx6-100g", 32, 5, 74.6, epyc),
        ("ConnectX-6", "cx6-100g", 32, 100, 85.6, epyc),
        ("ConnectX-6", "cx6-100g", 1000, 0, 11.7, epyc),
        ("ConnectX-6", "cx6-100g", 1000, 5, 12.3, epyc),
        ("BlueField-2", "bluefield2", 32, 0, 15.5, arm),
        ("BlueField-2", "bluefield2", 32, 5, 14.7, arm),
        ("BlueField-2", "bluefield2", 32, 50, 14.4, arm),
        ("BlueField-2", "bluefield2", 1000, 0, 9.6, arm),
        ("BlueField-2", "bluefield2", 1000, 5, 8.2, arm),
        ("BlueField-2", "bluefield2", 1000, 50, 4.5, arm),
    ];
    let herd = rows.map(|(host, profile, value_bytes, put_percent, paper, run)| {
        let run = Run {
            value_bytes,
            put_percent,
            ..run
        };
        let name = format!("{host}: HERD, {value_bytes} B, {} % GET", 100 - put_percent);
        (name, Some(paper), on(profile, run))
    });
    // A GET of Clover whose client knows the place of the item is a READ of it: head, key and value.
    let card = Profile::named("bluefield2").unwrap();
    let spans = [300, 200].map(Duration::from_micros);
    let clover = [(32, 31.6), (1000, 10.1)].map(|(bytes, paper)| {
        let name = format!("BlueField-2: Clover, {bytes} B, 100 % GET, READs alone");
        (
            name,
            Some(paper),
            reads_on(&card, bytes + 24, (51, 16), spans),
        )
    });
    hold_rows(herd.into_iter().chain(clover));
}

/// READs of soft-RDMA beside what four cores of stock memcached do, by the cycles of its GETs.
#[test]
fn predictions_of_wimpy_nodes_are_those_of_the_docs() {
    let spans = [10, 60].map(Duration::from_millis);
    let mut rows = Vec::new();
    for (name, ghz) in [("wimpy-10g", 1.1_f64), ("wimpy-10g-2.3ghz", 2.3)] {
        let profile = Profile::named(name).unwrap();
        for (kbytes, cycles) in [(1_u32, 46e3), (10, 84e3), (100, 289e3)] {
            let bytes = 1024 * kbytes;
            // TCP's payload of a frame, and its bytes on the link.
            let link = profile.link.gbits / 8e-6 / f64::from(bytes) * 1448.0 / 1538.0;
            let stock = (4e6 * ghz / cycles).min(link);
            let reads = 1e3 * reads_on(&profile, bytes as usize, (6, 2), spans);
            let name = format!("{ghz} GHz, {kbytes} KB, k/s");
            assert!(reads > 0.9 * stock, "{name}: {reads} of {stock}");
            rows.push((name, Some(stock), reads));
        }
    }
    hold_rows(rows);
}

/// A process may have 1,024 descriptors. Each client has a port of its own, and each request takes a RECV of
/// its worker.
#[test]
fn more_clients_than_descriptors_reach_a_steady_state() {
    let run = Run {
        path: RequestPath::UdSend,
        clients: 1200,
        window: 1,
        machines: 186,
        keys: 1 << 12,
        span: micros(600, 600),
        ..Run::default()
    };
    let report = report(&run);
    let (drift, rate_of_many) = (report.drift_percent(), report.outcome.mops);
    assert!(drift.abs() < 2.0, "{drift} %");
    // The RNIC executes messages that take a RECV at 22 M/s, however many clients send them.
    let few = rate(&Run {
        clients: 51,
        window: 4,
        machines: 17,
        span: Span::default(),
        ..run
    });
    assert!(rate_of_many > 0.8 * few, "{rate_of_many}, {few}");
}

/// No rate of Susitna is in the text of the HERD paper.
#[test]
fn predictions_of_susitna_are_those_of_the_docs() {
    let herd = [8, 32].map(|value_bytes| {
        let run = Run {
            value_bytes,
            ..Run::default()
        };
        let name = format!("Susitna: HERD, {value_bytes} B");
        (name, None, on("susitna", run))
    });
    let susitna = Profile::named("susitna").unwrap();
    let spans = [300, 300].map(Duration::from_micros);
    let farm = [4, 32].map(|value| {
        let name = format!("Susitna: FaRM-em, {value} B");
        (
            name,
            None,
            reads_on(&susitna, 6 * (16 + value), (51, 16), spans),
        )
    });
    hold_rows(herd.into_iter().chain(farm));
}

/// The systems of this repository, whose layouts are not those of the paper's emulations.
#[test]
fn rates_of_the_stores_are_those_of_the_docs() {
    let [gets, puts] = [0, 100].map(|put_percent| Run {
        put_percent,
        workers: 1,
        window: 16,
        ..Run::default()
    });
    for system in [System::Farm, System::FarmVar, System::Pilaf] {
        for (run, what) in [(gets, "GETs"), (puts, "PUTs")] {
            let name = format!("{}, {what} alone", system.name());
            hold(&name, &row(&name)[0], rate(&Run { system, ..run }));
        }
    }
}

/// The one core of a store waits for memory at each PUT: as long as memory takes for each of its accesses.
#[test]
fn puts_to_stores_are_charged_for_memory() {
    let apt = Profile::named("apt").unwrap();
    let mut at_once = apt.clone();
    at_once.cpu.memory_ns = 0.0;
    let puts = Run {
        put_percent: 100,
        workers: 1,
        window: 16,
        ..Run::default()
    };
    for (system, accesses) in [
        (System::Farm, 1.0),
        (System::FarmVar, 1.0),
        (System::Pilaf, 2.6),
    ] {
        let run = Run { system, ..puts };
        // The core is busy all the time, and takes so long for each.
        let ns = [&apt, &at_once].map(|profile| 1e3 / report_on(profile, &run).outcome.mops);
        let waits = (ns[0] - ns[1]) / apt.cpu.memory_ns;
        assert!((waits / accesses - 1.0).abs() < 0.1, "{system:?}: {ns:?}");
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
