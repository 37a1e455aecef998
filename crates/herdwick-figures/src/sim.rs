//! Figures on simulated RNICs, in virtual time: the rates of a server and many client machines, which one
//! host cannot have.

use std::time::Duration;

use herdwick_bench::{
    COMMIT, Design, Direction, EmulatedSystem, FarmValues, FigureClass, Level, System, Verb,
    VerbTransport,
};
use herdwick_fabric::Transport;
use herdwick_sim::{
    Profile,
    verbs::{Direction as Issuer, Echo, Flood, FloodVerb, Outcome, Span, Way},
};
use herdwick_sim_bench::Run;

use crate::{
    drawing::{Drawing, Line, PlotPoint, Simulated},
    failures::Reasons,
    figure::{Figure, Load, Measure, Sweep},
    run::{blank, here},
};

const SEED: u64 = 1;
const SPAN: Span = Span {
    warm_up: Duration::from_millis(1),
    measured: Duration::from_micros(300),
};
/// How much longer the stores of FaRM-KV and Pilaf are measured. Their one core answers in a pass what all clients have
/// sent meanwhile, so that PUTs are answered in waves, which take 0.2 ms or more.
const STORES_LONGER: u32 = 10;
/// The client machines of section 5.1, and as many as section 5.6 has.
const MACHINES: usize = 17;
const MACHINES_MAX: usize = 186;
/// Requests under way of a client of HERD, and of one that READs.
const WINDOW: usize = 4;
const READS: usize = 16;
/// Payloads up to this are inlined where a series leaves it open.
const INLINE_MAX: usize = 256;
/// READs of a GET of Pilaf-em-OPT: so many buckets of so many bytes, and the value.
const PILAF_BUCKETS: f64 = 1.6;
const PILAF_BUCKET: usize = 32;
/// Items of a neighbourhood, the bytes of a key, and those of a pointer in the value's place.
const NEIGHBOURHOOD: usize = 6;
const KEY: usize = 16;
const POINTER: usize = 8;

const WHY: &str = "The model charges what its profile says; docs/sim.md lists what it does not model, and how \
far its predictions are from the paper's numbers.";
const GETS_ALONE: &str = "Pilaf-em-OPT, FaRM-em and FaRM-em-VAR: their GETs alone, as READs; the 5 % of PUTs \
are not simulated.";

/// What a point yields.
struct Point {
    mops: f64,
    /// In nanoseconds, sorted; empty where there are none.
    latencies: Vec<u64>,
}

impl From<Outcome> for Point {
    fn from(outcome: Outcome) -> Self {
        Self {
            mops: outcome.mops,
            latencies: outcome.latencies,
        }
    }
}

/// Runs `figure` on the hosts of a profile. Points that cannot be simulated are named in the drawing, with
/// the reason.
#[must_use]
pub fn simulate(figure: &'static Figure, (name, profile): (&str, &Profile)) -> Drawing {
    let figure = &Figure {
        sweep: sweep(figure),
        ..*figure
    };
    let mut drawing = blank(figure, (&format!("sim:{name}"), FigureClass::Sim));
    drawing.why = WHY;
    // It names what a host cannot measure; what the simulator cannot is named below.
    drawing.missing.clear();
    drawing.simulated = Some(Simulated {
        commit: COMMIT,
        profile: name.to_owned(),
        seed: SEED,
        measured_ns: SPAN.measured.as_nanos() as u64,
        stores_measured_ns: (SPAN.measured * STORES_LONGER).as_nanos() as u64,
    });
    let mut reasons = Reasons::default();
    for series in figure.series {
        let mut line = Line {
            name: series.name.to_owned(),
            points: Vec::new(),
        };
        for (index, label) in figure.sweep.labels().iter().enumerate() {
            let place = drawing.labels.iter().position(|other| other == label);
            let point = point(figure.sweep, series.load, index, profile);
            match point.and_then(|point| plotted(&point, place.unwrap_or(0), figure.measure)) {
                Ok(point) => line.points.push(point),
                Err(why) => reasons.add(series.name, label, why),
            }
        }
        drawing.series.push(line);
    }
    if figure.name == "10" {
        drawing.missing.push(GETS_ALONE.to_owned());
    }
    drawing.missing.extend(reasons.lines());
    drawing.here = here(&drawing, figure.measure) + &errors(&drawing);
    drawing
}

/// Returns the values of the x axis: more than one host can have.
fn sweep(figure: &Figure) -> Sweep {
    match figure.name {
        "10" => Sweep::Bytes(&[8, 16, 32, 64, 128, 256, 512, 1000]),
        "11" => Sweep::Clients(&[6, 12, 24, 36, 51, 102]),
        "12" => Sweep::Clients(&[17, 51, 102, 150, 204, 260, 400]),
        "13" => Sweep::Workers(&[1, 2, 3, 4, 5, 6]),
        _ => figure.sweep,
    }
}

/// Returns by how much each value is above or below the paper's point at the same place.
fn errors(drawing: &Drawing) -> String {
    let mut said = Vec::new();
    for paper in &drawing.paper {
        let here = drawing.series.iter().find(|line| line.name == paper.name);
        let here = here.map_or(&[][..], |line| &line.points);
        for theirs in &paper.points {
            let ours = here.iter().find(|point| point.x == theirs.x);
            let (Some(ours), Some(label)) = (ours, drawing.labels.get(theirs.x as usize)) else {
                continue;
            };
            let error = 100.0 * (ours.y / theirs.y - 1.0);
            let name = &paper.name;
            said.push(format!("{name} at {label} {:.2}, {error:+.1} %", theirs.y));
        }
    }
    match said.is_empty() {
        true => String::new(),
        false => format!(" The paper has, and the error is: {}.", said.join("; ")),
    }
}

fn plotted(point: &Point, place: usize, measure: Measure) -> Result<PlotPoint, String> {
    let Point { mops, latencies } = point;
    let of = |x, y, low, high, median| PlotPoint {
        x,
        y,
        low,
        high,
        median,
    };
    if matches!(measure, Measure::Mops | Measure::Relative) {
        return Ok(of(place as f64, *mops, *mops, *mops, None));
    }
    let last = latencies.len().checked_sub(1);
    let last = last.ok_or("the simulator has no latency of it")?;
    let us = |ns: u64| ns as f64 / 1e3;
    let [p5, p50, p95] = [5, 50, 95].map(|percent| us(latencies[last * percent / 100]));
    let mean = us(latencies.iter().sum::<u64>() / latencies.len() as u64);
    Ok(match measure {
        Measure::LatencyOverMops => of(*mops, mean, p5, p95, Some(p50)),
        _ => of(place as f64, p50, p5, p95, None),
    })
}

/// Runs a series at one value of the x axis.
fn point(sweep: Sweep, load: Load, index: usize, profile: &Profile) -> Result<Point, String> {
    let at = sweep.at(index);
    let (bytes, threads, puts) = (at.bytes, at.threads.unwrap_or(16), at.put_percent);
    let mut run = Run {
        seed: SEED,
        span: SPAN,
        machines: MACHINES,
        ..Run::default()
    };
    run.clients = at.clients.unwrap_or(run.clients);
    run.workers = at.workers.unwrap_or(run.workers);
    run.value_bytes = bytes;
    match load {
        Load::Verb { .. } => flood(load, (bytes, threads), profile),
        Load::Echo { .. } => echo(sweep, load, (index, bytes), profile),
        Load::Herd {
            window,
            put_percent,
        }
        | Load::Other {
            system: System::HerdPaper,
            window,
            put_percent,
        } => {
            if matches!(load, Load::Other { .. }) {
                run.system = herdwick_sim_bench::System::HerdPaper;
            }
            run.put_percent = puts.unwrap_or(put_percent);
            run.window = WINDOW;
            // Figure 12 has windows of its own. Figure 11 is swept by clients as well, and has not.
            if matches!(sweep, Sweep::Clients(_)) && window < 64 {
                // Section 5.6: as many machines as there are, and room for every client's keys.
                (run.window, run.machines) = (window, MACHINES_MAX.min(run.clients));
            }
            system(&run, profile)
        }
        Load::Other {
            system: other,
            put_percent,
            ..
        } => {
            run.put_percent = puts.unwrap_or(put_percent);
            run.window = READS;
            run.system = match other {
                System::Emulated(emulated) => {
                    let is_read = run.put_percent == 0 || matches!(sweep, Sweep::Bytes(_));
                    return match is_read {
                        true => emulation(emulated, bytes, profile),
                        false => Err("PUTs of the emulations are not simulated".to_owned()),
                    };
                }
                System::Farm(FarmValues::Inline) => herdwick_sim_bench::System::Farm,
                System::Farm(FarmValues::OutOfTable) => herdwick_sim_bench::System::FarmVar,
                System::Pilaf => herdwick_sim_bench::System::Pilaf,
                _ => return Err("its machines are not simulated".to_owned()),
            };
            if matches!(sweep, Sweep::Workers(values) if values[index] > 1) {
                return Err("its server has one core".to_owned());
            }
            run.workers = 1;
            run.span.measured *= STORES_LONGER;
            system(&run, profile)
        }
        Load::Partitions { .. } => Err("no RNIC has a part in it".to_owned()),
    }
}

fn system(run: &Run, profile: &Profile) -> Result<Point, String> {
    let report = run.on(profile).map_err(|error| error.to_string())?;
    match report.failed {
        0 => Ok(report.outcome.into()),
        failed => Err(format!("{failed} requests failed")),
    }
}

/// The GETs of an emulation: its READs, one after the other.
fn emulation(system: EmulatedSystem, value: usize, profile: &Profile) -> Result<Point, String> {
    let reads = |payload| {
        let flood = Flood {
            direction: Issuer::Inbound,
            verb: FloodVerb::Read,
            transport: Transport::Rc,
            payload,
            inline: false,
            servers: 3,
            clients: 3 * MACHINES,
            machines: MACHINES,
            window: READS,
            postlist: 1,
            all_to_all: false,
        };
        let outcome = flood.run(profile, SEED, SPAN);
        outcome
            .map(|outcome| outcome.mops)
            .map_err(|error| error.to_string())
    };
    // READs one after the other: their times add up.
    let mops = match system {
        EmulatedSystem::PilafOpt => {
            1.0 / (PILAF_BUCKETS / reads(PILAF_BUCKET)? + 1.0 / reads(value)?)
        }
        EmulatedSystem::Farm => reads(NEIGHBOURHOOD * (KEY + value))?,
        EmulatedSystem::FarmVar => {
            1.0 / (1.0 / reads(NEIGHBOURHOOD * (KEY + POINTER))? + 1.0 / reads(value)?)
        }
    };
    // The READs of a GET ran apart, each kind in a flood of its own: no GET has a latency.
    let latencies = Vec::new();
    Ok(Point { mops, latencies })
}

fn flood(
    load: Load,
    (payload, threads): (usize, usize),
    profile: &Profile,
) -> Result<Point, String> {
    let Load::Verb {
        verb,
        transport,
        direction,
        inline,
        all_to_all,
        ..
    } = load
    else {
        return Err("no verb".to_owned());
    };
    let flood = Flood {
        direction: match direction {
            Direction::Inbound => Issuer::Inbound,
            Direction::Outbound => Issuer::Outbound,
        },
        verb: match verb {
            Verb::Send => FloodVerb::Send,
            Verb::Write => FloodVerb::Write,
            Verb::Read => FloodVerb::Read,
            Verb::FetchAdd => FloodVerb::FetchAdd,
            Verb::CompareSwap => return Err("COMPARE_SWAP is not simulated alone".to_owned()),
        },
        transport: match transport {
            VerbTransport::Rc => Transport::Rc,
            VerbTransport::Uc => Transport::Uc,
            VerbTransport::Ud => Transport::Ud,
        },
        payload,
        inline: inline.unwrap_or(verb != Verb::Read && payload <= INLINE_MAX),
        servers: threads,
        clients: threads,
        machines: threads,
        window: READS,
        postlist: 1,
        all_to_all,
    };
    let outcome = flood.run(profile, SEED, SPAN);
    outcome.map(Point::from).map_err(|error| error.to_string())
}

fn echo(
    sweep: Sweep,
    load: Load,
    (index, payload): (usize, usize),
    profile: &Profile,
) -> Result<Point, String> {
    let Load::Echo {
        design,
        level,
        window,
        accesses,
        ..
    } = load
    else {
        return Err("no ECHO".to_owned());
    };
    if accesses > 0 || level.is_some_and(|level| level != Level::Inlined) {
        return Err("simulated ECHOs have all optimizations, and no accesses to memory".to_owned());
    }
    let design = match sweep {
        Sweep::Designs(designs) => designs[index].0,
        _ => design,
    };
    let (request, reply) = match design {
        Design::SendSend => (Way::Send, Way::Send),
        Design::SendSendUd => (Way::Datagram, Way::Datagram),
        Design::WriteWrite => (Way::Write, Way::Write),
        Design::WriteSend => (Way::Write, Way::Datagram),
    };
    // A window of 1 is Figure 2's: the latency without other load.
    let [servers, clients, machines, window] = match window {
        1 => [1; 4],
        _ => [8, 48, 16, WINDOW],
    };
    let echo = Echo {
        request,
        reply,
        payload,
        servers,
        clients,
        machines,
        window,
    };
    let outcome = echo.run(profile, SEED, SPAN);
    outcome.map(Point::from).map_err(|error| error.to_string())
}
