//! The points of the verbs that profiles are fitted to: each is reproduced, and `docs/sim.md` says
//! how well.

use std::{fs, path::Path, time::Duration};

use herdwick_fabric::Transport::{self, Rc, Uc, Ud};
use herdwick_sim::{
    Profile,
    verbs::{Direction, Echo, Flood, FloodVerb, Span, Way},
};

/// Largest error of a point that a profile is fitted to.
const TOLERANCE: f64 = 0.05;
/// Largest change of a rate from one window to a later one.
const STEADY: f64 = 0.02;
const SEED: u64 = 1;

/// A point of a paper: its row in `docs/sim.md`, and the rate or latency in that row.
struct Point {
    row: &'static str,
    paper: f64,
    run: Run,
}

enum Run {
    Rate(Flood),
    EchoRate(Echo),
    /// Half of an ECHO, in microseconds.
    HalfEcho(Echo),
}

fn flood(direction: Direction, verb: FloodVerb, transport: Transport, payload: usize) -> Flood {
    Flood {
        direction,
        verb,
        transport,
        payload,
        inline: true,
        servers: 16,
        clients: 16,
        machines: 16,
        window: 16,
        postlist: 1,
        all_to_all: false,
    }
}

fn all_to_all(flood: Flood) -> Run {
    Run::Rate(Flood {
        all_to_all: true,
        ..flood
    })
}

fn echo(request: Way, reply: Way, payload: usize) -> Echo {
    Echo {
        request,
        reply,
        payload,
        servers: 8,
        clients: 48,
        machines: 16,
        window: 4,
    }
}

fn floods() -> Vec<Point> {
    use Direction::{Inbound, Outbound};
    use FloodVerb::{FetchAdd, Read, Send, Write};
    let point = |row, paper, flood| Point {
        row,
        paper,
        run: Run::Rate(flood),
    };
    vec![
        point(
            "inbound WRITE, UC, 32 B",
            35.0,
            flood(Inbound, Write, Uc, 32),
        ),
        point(
            "inbound WRITE, RC, 32 B",
            35.0,
            flood(Inbound, Write, Rc, 32),
        ),
        point(
            "inbound WRITE, UC, 128 B",
            35.0,
            flood(Inbound, Write, Uc, 128),
        ),
        point("inbound READ, 32 B", 26.0, flood(Inbound, Read, Rc, 32)),
        point(
            "outbound WRITE, UC, 28 B",
            35.0,
            flood(Outbound, Write, Uc, 28),
        ),
        point(
            "outbound WRITE, UC, 32 B",
            26.0,
            flood(Outbound, Write, Uc, 32),
        ),
        point(
            "outbound SEND, UD, 32 B",
            26.0,
            flood(Outbound, Send, Ud, 32),
        ),
        point("outbound READ, 32 B", 22.0, flood(Outbound, Read, Rc, 32)),
        point("inbound FETCH_ADD", 2.7, flood(Inbound, FetchAdd, Rc, 8)),
    ]
}

fn fan_out() -> Vec<Point> {
    use Direction::{Inbound, Outbound};
    let write = |direction| flood(direction, FloodVerb::Write, Uc, 32);
    let many = Flood {
        servers: 1,
        clients: 1600,
        window: 1,
        ..write(Inbound)
    };
    vec![
        Point {
            row: "outbound WRITE, 16 x 16 queue pairs",
            paper: 7.35,
            run: all_to_all(write(Outbound)),
        },
        Point {
            row: "inbound WRITE, 16 x 16 queue pairs",
            paper: 35.0,
            run: all_to_all(write(Inbound)),
        },
        Point {
            row: "inbound WRITE, 1,600 queue pairs",
            paper: 30.0,
            run: Run::Rate(many),
        },
    ]
}

fn echos() -> Vec<Point> {
    let rate = |row, paper, echo| Point {
        row,
        paper,
        run: Run::EchoRate(echo),
    };
    let alone = Echo {
        servers: 1,
        clients: 1,
        machines: 1,
        window: 1,
        ..echo(Way::Write, Way::Write, 32)
    };
    vec![
        rate(
            "ECHO, WRITE and WRITE, 32 B",
            26.0,
            echo(Way::Write, Way::Write, 32),
        ),
        rate(
            "ECHO, WRITE and WRITE, 16 B",
            30.0,
            echo(Way::Write, Way::Write, 16),
        ),
        rate(
            "ECHO, WRITE and UD SEND, 32 B",
            26.0,
            echo(Way::Write, Way::Datagram, 32),
        ),
        rate(
            "ECHO, SEND and SEND, 32 B",
            21.0,
            echo(Way::Send, Way::Send, 32),
        ),
        Point {
            row: "half of an ECHO, one at a time, us",
            paper: 1.0,
            run: Run::HalfEcho(alone),
        },
    ]
}

impl Run {
    fn value(&self, profile: &Profile, span: Span) -> f64 {
        match self {
            Self::Rate(flood) => flood.run(profile, SEED, span).unwrap().mops,
            Self::EchoRate(echo) => echo.run(profile, SEED, span).unwrap().mops,
            Self::HalfEcho(echo) => {
                let outcome = echo.run(profile, SEED, span).unwrap();
                f64::from(u32::try_from(outcome.mean_ns()).unwrap()) / 2000.0
            }
        }
    }
}

/// Of the points in the text of "Design Guidelines for High Performance RDMA Systems"; the rate of inbound
/// READs is that of which HERD's is 1.63 times the half.
fn connect_ib() -> Vec<Point> {
    use Direction::{Inbound, Outbound};
    use FloodVerb::{FetchAdd, Read, Send, Write};
    let point = |row, paper, flood| Point {
        row,
        paper,
        run: Run::Rate(flood),
    };
    let sends = flood(Outbound, Send, Ud, 32);
    let batches = Flood {
        postlist: 16,
        window: 64,
        ..sends
    };
    let reads = Flood {
        clients: 48,
        ..flood(Inbound, Read, Rc, 32)
    };
    let one = |flood| Flood {
        servers: 1,
        clients: 1,
        ..flood
    };
    let sequencer = Echo {
        servers: 1,
        clients: 16,
        ..echo(Way::Datagram, Way::Datagram, 8)
    };
    vec![
        point(
            "Connect-IB: inbound WRITE, UC, 32 B",
            122.0,
            flood(Inbound, Write, Uc, 32),
        ),
        point("Connect-IB: inbound READ, 32 B", 120.6, reads),
        point(
            "Connect-IB: inbound SEND, UD, 32 B",
            82.0,
            flood(Inbound, Send, Ud, 32),
        ),
        point(
            "Connect-IB: inbound FETCH_ADD, one address",
            2.24,
            flood(Inbound, FetchAdd, Rc, 8),
        ),
        point(
            "Connect-IB: outbound WRITE, UC, 32 B",
            80.0,
            flood(Outbound, Write, Uc, 32),
        ),
        point("Connect-IB: outbound SEND, UD, 32 B", 80.0, sends),
        point(
            "Connect-IB: outbound SEND, UD, 16 of a post",
            101.6,
            batches,
        ),
        point(
            "Connect-IB: the same over one queue pair",
            16.6,
            one(batches),
        ),
        point(
            "Connect-IB: outbound READ, 32 B",
            88.0,
            flood(Outbound, Read, Rc, 32),
        ),
        Point {
            row: "Connect-IB: ECHO, SEND and SEND over UD, one core",
            paper: 7.0,
            run: Run::EchoRate(sequencer),
        },
    ]
}

/// The profiles that are fitted to rates of verbs, with their points.
fn fitted() -> Vec<(Profile, Vec<Point>)> {
    let apt = floods().into_iter().chain(fan_out()).chain(echos());
    vec![
        (Profile::named("apt").unwrap(), apt.collect()),
        (Profile::named("connect-ib").unwrap(), connect_ib()),
    ]
}

#[test]
fn profiles_reproduce_the_points_they_are_fitted_to() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sim.md");
    let docs = fs::read_to_string(docs).unwrap();
    let (mut wrong, mut missing) = (Vec::new(), Vec::new());
    for (profile, points) in fitted() {
        for Point { row, paper, run } in points {
            let value = run.value(&profile, Span::default());
            let error = value / paper - 1.0;
            if error.abs() > TOLERANCE {
                wrong.push(row);
            }
            // Rounded, and without a sign of zero.
            let percent = (1000.0 * error).round() / 10.0 + 0.0;
            let row = format!("| {row} | {paper:.2} | {value:.2} | {percent:+.1} % |");
            if !docs.contains(&row) {
                missing.push(row);
            }
        }
    }
    assert!(wrong.is_empty(), "more than 5 % off: {wrong:?}");
    assert!(
        missing.is_empty(),
        "docs/sim.md lacks\n{}",
        missing.join("\n")
    );
}

/// No row is a transient: a window that begins later has the same rate.
#[test]
fn each_row_is_a_steady_state() {
    let later = Span {
        warm_up: Duration::from_micros(800),
        ..Span::default()
    };
    for (profile, points) in fitted() {
        for point in points {
            let values = [Span::default(), later].map(|span| point.run.value(&profile, span));
            let change = values[1] / values[0] - 1.0;
            assert!(change.abs() < STEADY, "{}: {values:?}", point.row);
        }
    }
}

/// What the HERD paper says of its cluster with PCIe 2.0, without a rate (5.3): the bus bounds FaRM-em's
/// READs of 4-byte values already, and inlining pays below 192 bytes.
#[test]
fn the_bus_of_susitna_is_its_bottleneck() {
    let susitna = Profile::named("susitna").unwrap();
    let rate = |profile: &Profile, flood: Flood| {
        let outcome = flood.run(profile, SEED, Span::default());
        outcome.unwrap().mops
    };
    let reads = |value: usize| Flood {
        clients: 48,
        ..flood(Direction::Inbound, FloodVerb::Read, Rc, 6 * (16 + value))
    };
    let mut off = susitna.clone();
    off.pcie.out_gbytes = 0.0;
    assert!(rate(&off, reads(4)) > 1.03 * rate(&susitna, reads(4)));
    let apt = Profile::named("apt").unwrap();
    let mut off = apt.clone();
    off.pcie.out_gbytes = 0.0;
    assert!(rate(&off, reads(4)) < 1.01 * rate(&apt, reads(4)));
    let sends = |payload, inline| Flood {
        inline,
        ..flood(Direction::Outbound, FloodVerb::Send, Ud, payload)
    };
    assert!(rate(&susitna, sends(180, true)) > rate(&susitna, sends(180, false)));
    assert!(rate(&susitna, sends(192, true)) < rate(&susitna, sends(192, false)));
}

/// The client machines of a SmartNIC have another profile: what they post takes their time.
#[test]
fn clients_have_the_profile_that_is_named() {
    let card = Profile::named("bluefield2").unwrap();
    let clients = card.of_clients().unwrap();
    assert_eq!(clients.name, "cx6-100g");
    let mut same = card.clone();
    same.cpu.post_ns = 20.0 * clients.cpu.post_ns;
    let writes = Flood {
        clients: 2,
        ..flood(Direction::Inbound, FloodVerb::Write, Uc, 32)
    };
    let rate = |profile: &Profile| writes.run(profile, SEED, Span::default()).unwrap().mops;
    let (other, before) = (rate(&same), rate(&card));
    assert!((other / before - 1.0).abs() < 0.001, "{other}, {before}");
    same.clients = None;
    assert!(rate(&same) < 0.5 * before, "{} of {before}", rate(&same));
}

#[test]
fn profiles_that_come_with_the_program_are_read_and_named_as_their_files() {
    for name in Profile::NAMES {
        let profile = Profile::named(name).unwrap();
        assert_eq!(profile.name, name);
        assert!(profile.of_clients().is_ok());
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles/apt.toml");
    let text = fs::read_to_string(file).unwrap();
    let odd = text.replace("[cpu]", "clients = \"none\"\n[cpu]");
    assert!(Profile::parse(&odd).is_err());
}

/// The same events on every machine. A change of the simulator, or of apt's profile, may change the hashes.
#[test]
fn runs_have_the_hashes_that_they_have_on_every_machine() {
    let apt = Profile::named("apt").unwrap();
    let floods = [
        (
            0x95a6_d952_f1b5_a951,
            flood(Direction::Inbound, FloodVerb::Write, Uc, 32),
        ),
        (
            0xc167_d81b_0f02_7283,
            flood(Direction::Outbound, FloodVerb::Read, Rc, 32),
        ),
    ];
    for (hash, flood) in floods {
        let outcome = flood.run(&apt, SEED, Span::default()).unwrap();
        assert_eq!(outcome.trace, hash, "{flood:?} has {:#x}", outcome.trace);
    }
    let echo = echo(Way::Write, Way::Datagram, 32);
    let outcome = echo.run(&apt, SEED, Span::default()).unwrap();
    let hash = 0xc5ea_2465_d6ae_1ee1;
    assert_eq!(outcome.trace, hash, "{echo:?} has {:#x}", outcome.trace);
}

/// From 144 bytes on, a payload in memory is sent no slower than an inlined one (HERD paper, 5.3).
#[test]
fn inlining_pays_below_144_bytes() {
    let apt = Profile::named("apt").unwrap();
    let rate = |payload, inline| {
        let flood = Flood {
            inline,
            ..flood(Direction::Outbound, FloodVerb::Send, Ud, payload)
        };
        flood.run(&apt, SEED, Span::default()).unwrap().mops
    };
    assert!(rate(120, true) > rate(120, false));
    assert!(rate(144, true) < rate(144, false));
}

/// The part of the model that bounds a rate is the part that lifts the bound when it is off.
#[test]
fn each_part_can_be_switched_off() {
    let apt = Profile::named("apt").unwrap();
    let rate =
        |profile: &Profile, flood: Flood| flood.run(profile, SEED, Span::default()).unwrap().mops;
    let mut off = apt.clone();
    off.rnic.line_ns = 0.0;
    let two_lines = flood(Direction::Outbound, FloodVerb::Write, Uc, 32);
    assert!(rate(&off, two_lines) > 1.2 * rate(&apt, two_lines), "lines");
    let mut off = apt.clone();
    off.rnic.requester_contexts = 0;
    let spread = Flood {
        all_to_all: true,
        ..two_lines
    };
    assert!(rate(&off, spread) > 2.0 * rate(&apt, spread), "contexts");
    let mut off = apt.clone();
    off.link.gbits = 0.0;
    let long = flood(Direction::Inbound, FloodVerb::Write, Uc, 256);
    assert!(rate(&off, long) > 1.1 * rate(&apt, long), "link");
    let mut off = apt.clone();
    off.rnic.rd_atomic_max = 1;
    let reads = Flood {
        servers: 1,
        clients: 1,
        ..flood(Direction::Inbound, FloodVerb::Read, Rc, 32)
    };
    assert!(
        2.0 * rate(&off, reads) < rate(&apt, reads),
        "READs under way"
    );
}
