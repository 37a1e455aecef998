//! One-sided verbs served by a thread while the port's owner does not poll.

use std::time::Duration;

use herdwick_fabric::{
    Access, Completion, CqId, CqSpec, Device, Local, Payload, Port, PortLimits, QpId, QpSpec,
    RegionId, RegionSpec, Remote, Scope, SendOp, SendWr, Status, Transport,
};
use herdwick_mem::{Span, Words};
use herdwick_roce_udp::{Attended, RoceDevice, RoceOptions, RocePort};

/// Polls of a port before the test fails.
const TIMEOUT: usize = 10_000_000;
const COUNTS: u64 = 2000;
/// Increments that the CPU does at the same time.
const BESIDE: u64 = 2_000_000;

/// A device, and the objects that one queue pair of it needs.
pub(crate) struct Side {
    pub(crate) device: RoceDevice,
    cq: CqId,
    pub(crate) qp: QpId,
    region: RegionId,
}

impl Side {
    pub(crate) fn new() -> (Self, RocePort) {
        let address = "127.0.0.1:0".parse().expect("an address");
        let device = RoceDevice::bind(RoceOptions::new(address)).expect("a port");
        let mut port = device.open_port(&PortLimits::default()).expect("a port");
        let pd = device.create_pd(&mut port).expect("a domain");
        let cq = device.create_cq(&mut port, &CqSpec { depth: 8 });
        let cq = cq.expect("a queue");
        let spec = QpSpec {
            pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            send_depth: 4,
            recv_depth: 0,
        };
        let qp = device.create_qp(&mut port, &spec).expect("a queue pair");
        let region = RegionSpec {
            len: 64,
            access: Access {
                remote_read: true,
                remote_atomic: true,
                ..Access::WRITE
            },
            scope: Scope::Pd,
        };
        let region = device.allocate_region(&mut port, pd, &region);
        let side = Self {
            cq,
            qp,
            region: region.expect("memory"),
            device,
        };
        (side, port)
    }

    /// Connects the queue pairs of both sides.
    pub(crate) fn connect(sides: [&Self; 2], ports: [&mut RocePort; 2]) {
        let [ours, theirs] = sides;
        let [port, far] = ports;
        let here = ours.device.endpoint(port, ours.qp).expect("an endpoint");
        let there = theirs.device.endpoint(far, theirs.qp).expect("an endpoint");
        let connected = ours.device.connect(port, ours.qp, &there);
        connected.expect("a connection");
        let connected = theirs.device.connect(far, theirs.qp, &here);
        connected.expect("a connection");
    }

    /// Returns the address of this side's memory on `port` for the peer.
    pub(crate) fn remote(&self, port: &RocePort) -> Remote {
        self.device.remote(port, self.region).expect("memory")
    }
}

/// A polled port, connected to an attended one.
struct Stage {
    ours: Side,
    port: RocePort,
    now: Duration,
    theirs: Side,
    far: Attended,
    /// The memory of each side, and its address for the other.
    memory: [(Span, Remote); 2],
}

impl Stage {
    fn new() -> Self {
        let ((ours, mut port), (theirs, mut far)) = (Side::new(), Side::new());
        Side::connect([&ours, &theirs], [&mut port, &mut far]);
        let memory = [(&ours, &port), (&theirs, &far)].map(|(side, port)| {
            let span = port.region(side.region).expect("memory").clone();
            (span, side.remote(port))
        });
        Self {
            far: Attended::start(far).expect("a thread"),
            now: Duration::ZERO,
            ours,
            port,
            theirs,
            memory,
        }
    }

    /// Makes a pass of the polled port.
    fn pass(&mut self) {
        self.now += Duration::from_micros(1);
        self.port.progress(self.now);
        std::thread::yield_now();
    }

    /// Posts `op` on the polled port and makes passes until it completes.
    fn perform(&mut self, op: SendOp<'_>) {
        let request = signaled(op);
        self.port.post_send(self.ours.qp, &[request]).expect("room");
        let mut done = [Completion::BLANK; 1];
        for _ in 0..TIMEOUT {
            self.pass();
            if self.port.poll(self.ours.cq, &mut done) == 1 {
                assert_eq!(done[0].status, Status::Success);
                return;
            }
        }
        panic!("no answer");
    }
}

pub(crate) fn signaled(op: SendOp<'_>) -> SendWr<'_> {
    SendWr {
        wr_id: 1,
        op,
        signaled: true,
        solicited: false,
        fence: false,
    }
}

pub(crate) fn write(words: &[u64], to: Remote) -> SendOp<'_> {
    SendOp::Write {
        payload: Payload::Words(words),
        to,
        imm: None,
    }
}

#[test]
fn attended_port_serves_memory_while_its_owner_does_not_poll() {
    let mut stage = Stage::new();
    let [(mine, _), (memory, at)] = stage.memory.clone();
    let into = Local {
        region: stage.ours.region,
        offset: 0,
        len: 8,
    };
    let from = at.offset(8);
    stage.perform(write(&[77], from));
    assert_eq!(memory.load_acquire(1), 77);
    stage.perform(SendOp::Read { into, from });
    assert_eq!(mine.load_acquire(0), 77);
    std::thread::scope(|scope| {
        let counted = memory.clone();
        scope.spawn(move || {
            for _ in 0..BESIDE {
                counted.fetch_add(0, 1);
            }
        });
        for _ in 0..COUNTS {
            stage.perform(SendOp::FetchAdd { into, at, add: 1 });
        }
    });
    assert_eq!(
        memory.load_acquire(0),
        COUNTS + BESIDE,
        "no increment is lost"
    );
}

#[test]
fn attended_port_sends_and_completes_the_owners_posts() {
    let mut stage = Stage::new();
    let [(mine, here), _] = stage.memory.clone();
    let (qp, cq) = (stage.theirs.qp, stage.theirs.cq);
    let request = signaled(write(&[77], here.offset(16)));
    let posted = stage.far.with(|far| far.post_send(qp, &[request]));
    posted.expect("room");
    let mut done = [Completion::BLANK; 1];
    let mut checks = 0..TIMEOUT;
    while stage.far.with(|far| far.poll(cq, &mut done)) == 0 {
        assert!(checks.next().is_some(), "no answer");
        stage.pass();
    }
    assert_eq!(done[0].status, Status::Success);
    assert_eq!(mine.load_acquire(2), 77);
}
