//! Paths with different MTUs, and addresses of different families and scopes.

use std::{
    fs::File,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    thread,
    time::Duration,
};

use herdwick_fabric::{
    Access, Completion, CqId, CqSpec, Device, Endpoint, Local, Payload, PdId, Port, PortLimits,
    QpId, QpSpec, RegionId, RegionSpec, Remote, Scope, SendOp, Status, Transport,
};
use herdwick_roce_udp::{Mtu, RoceDevice, RoceOptions, RocePort};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{attended::signaled, shards::write_across};

/// Polls of both ports before the test fails.
const TIMEOUT: usize = 1_000_000;
/// More than a packet on an Ethernet with MTU 1,500 holds, less than with 9,000.
const LEN: usize = 3000;

/// A device and its objects, in a network namespace if it has one.
struct Side {
    namespace: Option<String>,
    device: RoceDevice,
    port: RocePort,
    pd: PdId,
    cq: CqId,
    region: RegionId,
}

impl Side {
    fn new(namespace: Option<String>, options: RoceOptions) -> Self {
        inside(namespace.as_deref(), || {
            let device = RoceDevice::bind(options).expect("a port");
            let mut port = device.open_port(&PortLimits::default()).expect("a port");
            let pd = device.create_pd(&mut port).expect("a domain");
            let cq = device.create_cq(&mut port, &CqSpec { depth: 64 });
            let spec = RegionSpec {
                len: 2 * 4096,
                access: Access::ALL,
                scope: Scope::Pd,
            };
            let region = device.allocate_region(&mut port, pd, &spec);
            Self {
                cq: cq.expect("a queue"),
                region: region.expect("memory"),
                namespace: namespace.clone(),
                device,
                port,
                pd,
            }
        })
    }

    fn queue_pair(&mut self, transport: Transport) -> (QpId, Endpoint) {
        let spec = QpSpec {
            pd: self.pd,
            transport,
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: 4,
            recv_depth: 0,
        };
        let qp = self.device.create_qp(&mut self.port, &spec);
        let qp = qp.expect("a queue pair");
        let endpoint = self.device.endpoint(&self.port, qp);
        (qp, endpoint.expect("an endpoint"))
    }

    fn connect(&mut self, qp: QpId, peer: &Endpoint) {
        let namespace = self.namespace.clone();
        inside(namespace.as_deref(), || {
            let connected = self.device.connect(&mut self.port, qp, peer);
            connected.expect("a connection");
        });
    }

    fn remote(&self) -> Remote {
        self.device.remote(&self.port, self.region).expect("memory")
    }

    fn local(&self, offset: usize) -> Local {
        Local {
            region: self.region,
            offset,
            len: LEN,
        }
    }

    fn fill(&self, salt: u8) {
        let bytes: Vec<u8> = (0..LEN).map(|at| salt.wrapping_add(at as u8)).collect();
        let span = self.port.region(self.region).expect("memory");
        span.write_bytes(0, &bytes);
    }

    fn holds(&self, salt: u8) -> bool {
        let mut bytes = vec![0; LEN];
        let span = self.port.region(self.region).expect("memory");
        span.read_bytes(4096, &mut bytes);
        (0..LEN).all(|at| bytes[at] == salt.wrapping_add(at as u8))
    }
}

/// Runs `work` in a network namespace made by `ip netns`, or in the current one.
fn inside<T: Send>(namespace: Option<&str>, work: impl FnOnce() -> T + Send) -> T {
    let Some(namespace) = namespace else {
        return work();
    };
    let file = File::open(format!("/run/netns/{namespace}")).expect("a namespace");
    let there = thread::scope(|scope| {
        let there = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("permission");
            work()
        });
        there.join()
    });
    there.expect("no panic there")
}

/// Sends WRITEs over UC and RC and a READ, longer than a packet of the narrower path, from the
/// first side to the other's memory.
fn cross(sides: &mut [Side; 2], salt: u8) {
    for transport in [Transport::Uc, Transport::Rc] {
        let [ours, theirs] = sides;
        let ((qp, here), (far, there)) = (ours.queue_pair(transport), theirs.queue_pair(transport));
        ours.connect(qp, &there);
        theirs.connect(far, &here);
        let write = SendOp::Write {
            payload: Payload::Region(ours.local(0)),
            to: theirs.remote().offset(4096),
            imm: None,
        };
        let salt = salt.wrapping_add(transport as u8);
        ours.fill(salt);
        assert_eq!(perform(sides, qp, write), Status::Success, "{transport:?}");
        let arrived = (0..TIMEOUT).any(|_| {
            sides[1].port.progress(Duration::ZERO);
            sides[1].holds(salt)
        });
        assert!(arrived, "WRITE over {transport:?}");
        if transport == Transport::Rc {
            let [ours, theirs] = &*sides;
            theirs.fill(!salt);
            let read = SendOp::Read {
                into: ours.local(4096),
                from: theirs.remote(),
            };
            assert_eq!(perform(sides, qp, read), Status::Success);
            assert!(sides[0].holds(!salt), "READ");
        }
    }
}

/// Posts a request at the first side and returns its status.
fn perform(sides: &mut [Side; 2], qp: QpId, op: SendOp<'_>) -> Status {
    let posted = sides[0].port.post_send(qp, &[signaled(op)]);
    posted.expect("room");
    let mut done = [Completion::BLANK; 1];
    for check in 0..TIMEOUT {
        for side in &mut *sides {
            // A pass takes a microsecond or more, so retries do not run out sooner than in real
            // time.
            side.port.progress(Duration::from_micros(check as u64));
        }
        let cq = sides[0].cq;
        if sides[0].port.poll(cq, &mut done) == 1 {
            return done[0].status;
        }
    }
    panic!("no completion");
}

fn both_ways(mut sides: [Side; 2]) {
    cross(&mut sides, 1);
    sides.reverse();
    cross(&mut sides, 100);
}

#[test]
fn endpoints_agree_on_the_smaller_path_mtu() {
    let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let side = |mtu| {
        let options = RoceOptions {
            mtu: Some(mtu),
            ..RoceOptions::new(address)
        };
        Side::new(None, options)
    };
    both_ways([side(Mtu::B4096), side(Mtu::B1024)]);
}

/// Run by `tests/roce/mtu.sh`, which makes the namespaces.
#[test]
#[ignore = "needs two network namespaces: tests/roce/mtu.sh"]
fn long_messages_cross_namespaces_with_different_mtus() {
    let names = told("HERDWICK_NETNS");
    let hosts: [IpAddr; 2] = [[10, 9, 9, 1].into(), [10, 9, 9, 2].into()];
    for known in [[false, false], [true, false], [false, true], [true, true]] {
        let side = |which: usize| {
            let options = RoceOptions {
                peer_host: known[which].then_some(hosts[1 - which]),
                ..RoceOptions::new(SocketAddr::new(hosts[which], 0))
            };
            Side::new(Some(names[which].clone()), options)
        };
        both_ways([side(0), side(1)]);
    }
}

/// Link-local addresses, on interfaces with different indexes.
#[test]
#[ignore = "needs two network namespaces: tests/roce/mtu.sh"]
fn namespaces_reach_each_other_by_link_local_addresses() {
    let (names, links) = (told("HERDWICK_NETNS"), told("HERDWICK_LINKS"));
    both_ways([0, 1].map(|which| {
        let address = format!("[fe80::{}%{}]:0", which + 1, links[which]);
        let options = RoceOptions::new(address.parse().expect("an address"));
        Side::new(Some(names[which].clone()), options)
    }));
}

/// Returns what `tests/roce/mtu.sh` passes for each side.
#[expect(clippy::disallowed_methods, reason = "tests/roce/mtu.sh says where")]
fn told(name: &str) -> Vec<String> {
    let told = std::env::var(name).expect("run by tests/roce/mtu.sh");
    told.split(',').map(str::to_owned).collect()
}

#[test]
fn wildcard_ipv6_port_serves_ipv4_peers() {
    let server = RoceDevice::bind(RoceOptions::new("[::]:0".parse().expect("an address")));
    let server = server.expect("a port");
    let mut theirs = server.open_port(&PortLimits::default()).expect("a port");
    for host in ["127.0.0.1", "::1"] {
        let host: IpAddr = host.parse().expect("an address");
        let client = RoceDevice::bind(RoceOptions {
            peer_host: Some(host),
            ..RoceOptions::new(SocketAddr::new(host, 0))
        });
        let client = client.expect("a port");
        let mut port = client.open_port(&PortLimits::default()).expect("a port");
        let word = write_across((&client, &mut port), (&server, &mut theirs), 77);
        assert_eq!(word, 77, "{host}");
    }
}
