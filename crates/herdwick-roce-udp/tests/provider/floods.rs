//! More right packets from one peer than a port takes, beside another peer.

use std::time::Duration;

use herdwick_fabric::{
    Access, Completion, CqId, CqSpec, Device, Payload, Port, PortLimits, QpId, QpSpec, RegionId,
    RegionSpec, Remote, Scope, SendOp, SendWr, Transport,
};
use herdwick_mem::Words;
use herdwick_roce_udp::{RoceDevice, RoceOptions, RocePort};

/// Packets of a train.
const TRAIN: usize = 64;
/// More trains than a socket's buffer holds, whatever the host grants.
const TRAINS_MAX: usize = 40_000;
/// Looks at a port before what has not come does not come.
const PATIENCE: usize = 1_000_000;

fn open() -> (RoceDevice, RocePort) {
    let options = RoceOptions::new("127.0.0.1:0".parse().expect("an address"));
    let device = RoceDevice::bind(options).expect("a device");
    let port = device.open_port(&PortLimits::default()).expect("a port");
    (device, port)
}

/// A peer that writes into memory of its own at the server.
struct Peer {
    port: RocePort,
    qp: QpId,
    cq: CqId,
    region: RegionId,
    to: Remote,
    _device: RoceDevice,
}

impl Peer {
    fn of((server, theirs): (&RoceDevice, &mut RocePort)) -> Self {
        let (device, mut port) = open();
        let make = |device: &RoceDevice, port: &mut RocePort| {
            let pd = device.create_pd(port).expect("a domain");
            let cq = device.create_cq(port, &CqSpec { depth: TRAIN });
            let cq = cq.expect("a queue");
            let spec = QpSpec {
                pd,
                transport: Transport::Uc,
                send_cq: cq,
                recv_cq: cq,
                send_depth: TRAIN,
                recv_depth: 0,
            };
            let qp = device.create_qp(port, &spec).expect("a queue pair");
            (pd, cq, qp, device.endpoint(port, qp).expect("an endpoint"))
        };
        let (_, cq, qp, end) = make(&device, &mut port);
        let (pd, _, peer, their_end) = make(server, theirs);
        device.connect(&mut port, qp, &their_end).expect("a peer");
        server.connect(theirs, peer, &end).expect("a peer");
        let spec = RegionSpec {
            len: 64,
            access: Access::WRITE,
            scope: Scope::Qp(peer),
        };
        let region = server.allocate_region(theirs, pd, &spec).expect("memory");
        Self {
            to: server.remote(theirs, region).expect("ours"),
            port,
            qp,
            cq,
            region,
            _device: device,
        }
    }

    /// Sends `count` WRITEs of `value`, in one train.
    fn writes(&mut self, count: usize, value: u64) {
        let words = [value];
        let write = |n| SendWr {
            wr_id: 1,
            op: SendOp::Write {
                payload: Payload::Words(&words),
                to: self.to,
                imm: None,
            },
            signaled: n + 1 == count,
            solicited: false,
        };
        let batch: Vec<_> = (0..count).map(write).collect();
        self.port.post_send(self.qp, &batch).expect("room");
        for _ in 0..PATIENCE {
            self.port.progress(Duration::ZERO);
            if self.port.poll(self.cq, &mut [Completion::BLANK; 4]) > 0 {
                return;
            }
        }
        panic!("nothing left");
    }
}

fn count(port: &RocePort, name: &str) -> u64 {
    let drops = port.drops();
    let found = drops.iter().find(|(found, _)| *found == name);
    found.expect("a counter").1
}

/// Makes passes at `now` until one finds nothing.
fn settle(port: &mut RocePort, now: Duration) {
    for _ in 0..PATIENCE {
        if !port.progress(now).moved {
            return;
        }
    }
    panic!("there is no end of it");
}

#[test]
fn where_the_kernel_drops_packets_each_connection_has_its_share_of_a_pass() {
    let (device, mut server) = open();
    let mut honest = Peer::of((&device, &mut server));
    let mut greedy = Peer::of((&device, &mut server));
    let at = Duration::from_millis;
    // One that nobody is beside may send what it likes.
    let mut trains = 250;
    while count(&server, "roce_socket_overflow") == 0 {
        trains *= 2;
        assert!(trains <= TRAINS_MAX, "the kernel dropped nothing");
        (0..trains).for_each(|_| greedy.writes(TRAIN, 1));
        settle(&mut server, at(0));
        // What was dropped before it came is told with it.
        greedy.writes(TRAIN, 1);
        settle(&mut server, at(0));
    }
    assert_eq!(count(&server, "roce_over_share"), 0);
    for value in [2, 3] {
        honest.writes(1, value);
        (0..4).for_each(|_| greedy.writes(TRAIN, 1));
        settle(&mut server, at(1));
        let word = server.region(honest.region).expect("ours").load(0);
        assert_eq!(word, value);
    }
    let dropped = count(&server, "roce_over_share");
    assert!((1..8 * TRAIN as u64).contains(&dropped), "{dropped}");
    // For a while.
    honest.writes(1, 4);
    (0..4).for_each(|_| greedy.writes(TRAIN, 1));
    settle(&mut server, at(1000));
    assert_eq!(count(&server, "roce_over_share"), dropped);
}
