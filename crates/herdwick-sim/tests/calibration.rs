//! The points of the verbs that profiles are fitted to: each is reproduced, and `docs/sim.md` says
//! how well.

use std::{fs, path::Path, time::Duration};

use herdwick_fabric::Transport::{self, Rc, Uc, Ud};
use herdwick_sim::{
    Profile,
    verbs::{
        CALIBRATED, CalibrationPoint, Direction, Echo, Fitted, Flood, FloodVerb, Search, Span, Way,
        calibration_points, fit_profile,
    },
};

/// Largest error of a point that a profile is fitted to.
const TOLERANCE: f64 = 0.05;
/// Largest change of a rate from one window to a later one.
const STEADY: f64 = 0.02;
const SEED: u64 = 1;

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

/// The profiles that are fitted to rates of verbs, with their points.
fn fitted() -> [(Profile, Vec<CalibrationPoint>); CALIBRATED.len()] {
    CALIBRATED.map(|name| (Profile::named(name).unwrap(), calibration_points(name)))
}

#[test]
fn profiles_reproduce_the_points_they_are_fitted_to() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sim.md");
    let docs = fs::read_to_string(docs).unwrap();
    let (mut wrong, mut missing) = (Vec::new(), Vec::new());
    for (profile, points) in fitted() {
        for point in points {
            let CalibrationPoint { row, paper, .. } = point;
            let value = point.value(&profile, SEED, Span::default()).unwrap();
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

/// A profile whose parameters are wrong is fitted: it has the points' values again. What does not bound its
/// point is left alone.
#[test]
fn fit_finds_the_parameters_again() {
    let apt = Profile::named("apt").unwrap();
    let named = |row: &str| {
        calibration_points("apt")
            .into_iter()
            .find(|point| point.row == row)
    };
    let rows = [
        "inbound WRITE, UC, 32 B",
        "inbound READ, 32 B",
        "inbound FETCH_ADD",
    ];
    let points = rows.map(|row| named(row).unwrap());
    let mut wrong = apt.clone();
    wrong.rnic.write_in_ns = 50.0;
    wrong.rnic.read_in_ns = 15.0;
    wrong.rnic.atomic_ns = 0.0;
    let mut found = Vec::new();
    let run = (SEED, Span::default());
    let fitted = fit_profile(&wrong, &points, run, &mut |parameter| {
        found.push(*parameter)
    })
    .unwrap();
    assert!(found[..2].iter().all(|found| found.found.value().is_some()));
    assert_eq!(found[2].found, Search::Off);
    assert!((fitted.rnic.write_in_ns / apt.rnic.write_in_ns - 1.0).abs() < 0.005);
    assert!((fitted.rnic.read_in_ns / apt.rnic.read_in_ns - 1.0).abs() < 0.005);
    assert!(fitted.rnic.atomic_ns == 0.0, "a part that is off stays off");
    for point in &points[..2] {
        let value = point.value(&fitted, SEED, Span::default()).unwrap();
        assert!((value / point.paper - 1.0).abs() < 0.005, "{value}");
    }
    assert_eq!(fitted.rnic.send_ns, apt.rnic.send_ns);
}

/// A parameter that cannot give the point its value is left alone, and the search says why.
#[test]
fn fit_tells_parameters_out_of_reach_from_those_that_do_not_bind() {
    let points = calibration_points("apt");
    let row = "inbound WRITE, UC, 32 B";
    let point = points.iter().find(|point| point.row == row).unwrap();
    let apt = Profile::named("apt").unwrap();
    let searched = |change: &dyn Fn(&mut Profile)| {
        let (mut profile, mut found) = (apt.clone(), None);
        change(&mut profile);
        let run = (SEED, Span::default());
        let watch = &mut |fitted: &Fitted| found = Some(fitted.found);
        let after = fit_profile(&profile, std::slice::from_ref(point), run, watch).unwrap();
        assert_eq!(after, profile, "it is left alone");
        found.unwrap()
    };
    let write_in_ns = apt.rnic.write_in_ns;
    let slow = searched(&|profile| profile.rnic.write_in_ns = 10.0 * write_in_ns);
    assert_eq!(slow, Search::TooSlow);
    let fast = searched(&|profile| profile.rnic.write_in_ns = write_in_ns / 5.0);
    assert_eq!(fast, Search::TooFast);
    // A link so slow that nothing else counts.
    assert_eq!(
        searched(&|profile| profile.link.gbits = 1.0),
        Search::NotBound
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
            let value = |span| point.value(&profile, SEED, span).unwrap();
            let values = [Span::default(), later].map(value);
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
