//! The points of papers that profiles are fitted to. `docs/sim.md` has a row for each.

use herdwick_fabric::Transport::{self, Rc, Uc, Ud};

use super::{
    Direction::{Inbound, Outbound},
    Echo, Flood,
    FloodVerb::{FetchAdd, Read, Send, Write},
    Span, VerbsError, Way,
};
use crate::Profile;

/// A parameter of a profile that is fitted to a point: a time, with which the point gets slower.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its section and its name in the file.
    pub name: &'static str,
    pub(super) field: fn(&mut Profile) -> &mut f64,
}

/// A point of a paper: a rate, or a latency, of a verb or an ECHO.
#[derive(Clone, Copy, Debug)]
pub struct CalibrationPoint {
    /// Its name.
    pub row: &'static str,
    /// What the paper has: 10^6 a second, or microseconds.
    pub paper: f64,
    /// The parameter that is computed from it; `None`: it follows from those of other points.
    pub parameter: Option<Parameter>,
    run: PointRun,
}

#[derive(Clone, Copy, Debug)]
enum PointRun {
    Rate(Flood),
    EchoRate(Echo),
    /// Half of an ECHO, in microseconds.
    HalfEcho(Echo),
}

impl CalibrationPoint {
    const fn rate(row: &'static str, paper: f64, flood: Flood) -> Self {
        Self {
            row,
            paper,
            parameter: None,
            run: PointRun::Rate(flood),
        }
    }

    const fn echo(row: &'static str, paper: f64, echo: Echo) -> Self {
        Self {
            row,
            paper,
            parameter: None,
            run: PointRun::EchoRate(echo),
        }
    }

    const fn of(self, name: &'static str, field: fn(&mut Profile) -> &mut f64) -> Self {
        Self {
            parameter: Some(Parameter { name, field }),
            ..self
        }
    }

    /// Returns what the model has.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn value(&self, profile: &Profile, seed: u64, span: Span) -> Result<f64, VerbsError> {
        match self.run {
            PointRun::Rate(flood) => Ok(flood.run(profile, seed, span)?.mops),
            PointRun::EchoRate(echo) => Ok(echo.run(profile, seed, span)?.mops),
            PointRun::HalfEcho(echo) => {
                let mean_ns = echo.run(profile, seed, span)?.mean_ns();
                Ok(f64::from(u32::try_from(mean_ns).unwrap_or(u32::MAX)) / 2000.0)
            }
        }
    }

    /// Whether the model is slower than the paper with this value.
    pub(super) fn is_slow(&self, value: f64) -> bool {
        match self.run {
            PointRun::Rate(_) | PointRun::EchoRate(_) => value < self.paper,
            PointRun::HalfEcho(_) => value > self.paper,
        }
    }
}

/// The profiles that are fitted to rates of verbs.
pub const CALIBRATED: [&str; 2] = ["apt", "connect-ib"];

/// Returns the points that the profile of this name is fitted to; of a profile that is not in [`CALIBRATED`],
/// none.
#[must_use]
pub fn calibration_points(profile: &str) -> Vec<CalibrationPoint> {
    match profile {
        "apt" => {
            let points = floods().into_iter().chain(fan_out()).chain(echos());
            points.collect()
        }
        "connect-ib" => {
            let points = connect_ib().into_iter().chain(connect_ib_batches());
            points.collect()
        }
        _ => Vec::new(),
    }
}

fn flood(direction: super::Direction, verb: super::FloodVerb, transport: Transport) -> Flood {
    Flood {
        direction,
        verb,
        transport,
        payload: 32,
        inline: true,
        servers: 16,
        clients: 16,
        machines: 16,
        window: 16,
        postlist: 1,
        all_to_all: false,
    }
}

const fn bytes(flood: Flood, payload: usize) -> Flood {
    Flood { payload, ..flood }
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

fn floods() -> [CalibrationPoint; 9] {
    let rate = CalibrationPoint::rate;
    let writes = flood(Inbound, Write, Uc);
    let written = flood(Outbound, Write, Uc);
    let atomics = bytes(flood(Inbound, FetchAdd, Rc), 8);
    [
        rate("inbound WRITE, UC, 32 B", 35.0, writes)
            .of("rnic.write_in_ns", |p| &mut p.rnic.write_in_ns),
        rate("inbound WRITE, RC, 32 B", 35.0, flood(Inbound, Write, Rc)),
        rate("inbound WRITE, UC, 128 B", 35.0, bytes(writes, 128)),
        rate("inbound READ, 32 B", 26.0, flood(Inbound, Read, Rc))
            .of("rnic.read_in_ns", |p| &mut p.rnic.read_in_ns),
        rate("outbound WRITE, UC, 28 B", 35.0, bytes(written, 28))
            .of("rnic.send_ns", |p| &mut p.rnic.send_ns),
        rate("outbound WRITE, UC, 32 B", 26.0, written),
        rate("outbound SEND, UD, 32 B", 26.0, flood(Outbound, Send, Ud)),
        rate("outbound READ, 32 B", 22.0, flood(Outbound, Read, Rc))
            .of("rnic.read_request_ns", |p| &mut p.rnic.read_request_ns),
        rate("inbound FETCH_ADD", 2.7, atomics).of("rnic.atomic_ns", |p| &mut p.rnic.atomic_ns),
    ]
}

fn fan_out() -> [CalibrationPoint; 3] {
    let rate = CalibrationPoint::rate;
    let all_to_all = |direction| Flood {
        all_to_all: true,
        ..flood(direction, Write, Uc)
    };
    let many = Flood {
        servers: 1,
        clients: 1600,
        window: 1,
        ..flood(Inbound, Write, Uc)
    };
    let [outbound, inbound] = [Outbound, Inbound].map(all_to_all);
    [
        rate("outbound WRITE, 16 x 16 queue pairs", 7.35, outbound)
            .of("rnic.requester_miss_ns", |p| &mut p.rnic.requester_miss_ns),
        rate("inbound WRITE, 16 x 16 queue pairs", 35.0, inbound),
        rate("inbound WRITE, 1,600 queue pairs", 30.0, many)
            .of("rnic.responder_miss_ns", |p| &mut p.rnic.responder_miss_ns),
    ]
}

fn echos() -> [CalibrationPoint; 5] {
    let rate = CalibrationPoint::echo;
    let writes = |payload| echo(Way::Write, Way::Write, payload);
    let datagrams = echo(Way::Write, Way::Datagram, 32);
    let sends = echo(Way::Send, Way::Send, 32);
    let alone = Echo {
        servers: 1,
        clients: 1,
        machines: 1,
        window: 1,
        ..writes(32)
    };
    let half = CalibrationPoint {
        run: PointRun::HalfEcho(alone),
        ..rate("half of an ECHO, one at a time, us", 1.0, alone)
    };
    [
        rate("ECHO, WRITE and WRITE, 32 B", 26.0, writes(32))
            .of("rnic.line_ns", |p| &mut p.rnic.line_ns),
        rate("ECHO, WRITE and WRITE, 16 B", 30.0, writes(16))
            .of("rnic.message_ns", |p| &mut p.rnic.message_ns),
        rate("ECHO, WRITE and UD SEND, 32 B", 26.0, datagrams),
        rate("ECHO, SEND and SEND, 32 B", 21.0, sends)
            .of("rnic.recv_message_ns", |p| &mut p.rnic.recv_message_ns),
        half.of("rnic.latency_ns", |p| &mut p.rnic.latency_ns),
    ]
}

/// Of the points in the text of "Design Guidelines for High Performance RDMA Systems"; the rate of inbound
/// READs is that of which HERD's is 1.63 times the half.
fn connect_ib() -> [CalibrationPoint; 6] {
    let rate = |row, paper, flood| CalibrationPoint::rate(row, paper, flood);
    let writes = flood(Inbound, Write, Uc);
    let reads = Flood {
        clients: 48,
        ..flood(Inbound, Read, Rc)
    };
    let atomics = bytes(flood(Inbound, FetchAdd, Rc), 8);
    let written = flood(Outbound, Write, Uc);
    let sent = flood(Outbound, Send, Ud);
    [
        rate("Connect-IB: inbound WRITE, UC, 32 B", 122.0, writes)
            .of("rnic.write_in_ns", |p| &mut p.rnic.write_in_ns),
        rate("Connect-IB: inbound READ, 32 B", 120.6, reads)
            .of("rnic.read_in_ns", |p| &mut p.rnic.read_in_ns),
        rate(
            "Connect-IB: inbound SEND, UD, 32 B",
            82.0,
            flood(Inbound, Send, Ud),
        )
        .of("rnic.recv_in_ns", |p| &mut p.rnic.recv_in_ns),
        rate("Connect-IB: inbound FETCH_ADD, one address", 2.24, atomics)
            .of("rnic.atomic_ns", |p| &mut p.rnic.atomic_ns),
        rate("Connect-IB: outbound WRITE, UC, 32 B", 80.0, written),
        rate("Connect-IB: outbound SEND, UD, 32 B", 80.0, sent)
            .of("rnic.line_ns", |p| &mut p.rnic.line_ns),
    ]
}

fn connect_ib_batches() -> [CalibrationPoint; 4] {
    let rate = |row, paper, flood| CalibrationPoint::rate(row, paper, flood);
    let batches = Flood {
        postlist: 16,
        window: 64,
        ..flood(Outbound, Send, Ud)
    };
    let one = Flood {
        servers: 1,
        clients: 1,
        ..batches
    };
    let reads = flood(Outbound, Read, Rc);
    let sequencer = Echo {
        servers: 1,
        clients: 16,
        ..echo(Way::Datagram, Way::Datagram, 8)
    };
    [
        rate(
            "Connect-IB: outbound SEND, UD, 16 of a post",
            101.6,
            batches,
        ),
        rate("Connect-IB: the same over one queue pair", 16.6, one)
            .of("rnic.unit_ns", |p| &mut p.rnic.unit_ns),
        rate("Connect-IB: outbound READ, 32 B", 88.0, reads)
            .of("rnic.read_request_ns", |p| &mut p.rnic.read_request_ns),
        CalibrationPoint::echo(
            "Connect-IB: ECHO, SEND and SEND over UD, one core",
            7.0,
            sequencer,
        )
        .of("cpu.post_ns", |p| &mut p.cpu.post_ns),
    ]
}
