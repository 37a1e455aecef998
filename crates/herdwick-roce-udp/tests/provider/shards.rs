//! Ports (shards) that share one UDP port.

use std::{io::ErrorKind, time::Duration};

use herdwick_fabric::{
    Access, Completion, CqSpec, Device, Endpoint, Payload, Port, PortLimits, QpSpec, RegionSpec,
    Scope, SendOp, SendWr, Transport,
};
use herdwick_mem::Words;
use herdwick_roce_udp::{RoceDevice, RoceOptions, RocePort};

/// Polls of a port before the test fails.
const TIMEOUT: usize = 1_000_000;

fn device(shards: usize) -> RoceDevice {
    let address = "127.0.0.1:0".parse().expect("an address");
    let options = RoceOptions {
        shards,
        ..RoceOptions::new(address)
    };
    RoceDevice::bind(options).expect("a port")
}

/// Sockets of two processes that share a port get each other's packets.
#[test]
fn port_shared_by_another_devices_sockets_is_in_use() {
    let first = device(2);
    let second = RoceDevice::bind(RoceOptions {
        shards: 2,
        ..RoceOptions::new(first.local())
    });
    assert_eq!(
        second.map_err(|error| error.kind()).err(),
        Some(ErrorKind::AddrInUse)
    );
}

/// Of devices that bind to one address at the same time, at most one gets it.
#[test]
fn of_two_devices_that_bind_at_the_same_time_one_fails() {
    let address = device(2).local();
    let start = std::sync::Barrier::new(2);
    let bind = || {
        let bound = RoceDevice::bind(RoceOptions {
            shards: 2,
            ..RoceOptions::new(address)
        });
        // Both are held until both have tried.
        start.wait();
        bound.is_ok()
    };
    let mut bound = 0;
    for round in 0..500 {
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                start.wait();
                bind()
            });
            start.wait();
            [bind(), other.join().expect("no panic")]
        });
        assert_ne!(both, [true, true], "round {round}");
        bound += usize::from(both.contains(&true));
    }
    assert!(bound > 0, "another program has taken {address}");
}

#[test]
fn each_worker_receives_its_packets_on_its_own_socket() {
    let server = device(3);
    let mut workers = [(); 3].map(|()| server.open_port(&PortLimits::default()).expect("a port"));
    let client = device(1);
    let mut port = client.open_port(&PortLimits::default()).expect("a port");
    for (worker, theirs) in (1..).zip(&mut workers) {
        let word = write_across((&client, &mut port), (&server, theirs), worker);
        assert_eq!(word, worker);
    }
    for theirs in &workers {
        let misrouted = theirs.drops();
        let misrouted = misrouted
            .iter()
            .find(|(name, _)| *name == "roce_misrouted_forwarded");
        assert_eq!(misrouted.map(|(_, count)| *count), Some(0));
    }
}

/// WRITEs `value` from one port to the other; returns what arrived.
pub(crate) fn write_across(
    (client, port): (&RoceDevice, &mut RocePort),
    (server, theirs): (&RoceDevice, &mut RocePort),
    value: u64,
) -> u64 {
    let pds = [
        client.create_pd(port).expect("a domain"),
        server.create_pd(theirs).expect("a domain"),
    ];
    let cq = CqSpec { depth: 8 };
    let cqs = [
        client.create_cq(port, &cq).expect("a queue"),
        server.create_cq(theirs, &cq).expect("a queue"),
    ];
    let spec = |side: usize| QpSpec {
        pd: pds[side],
        transport: Transport::Uc,
        send_cq: cqs[side],
        recv_cq: cqs[side],
        send_depth: 4,
        recv_depth: 0,
    };
    let ours = client.create_qp(port, &spec(0)).expect("a queue pair");
    let peer = server.create_qp(theirs, &spec(1)).expect("a queue pair");
    let ends = [
        client.endpoint(port, ours).expect("an endpoint"),
        server.endpoint(theirs, peer).expect("an endpoint"),
    ];
    client.connect(port, ours, &ends[1]).expect("a connection");
    server
        .connect(theirs, peer, &ends[0])
        .expect("a connection");
    let region = RegionSpec {
        len: 64,
        access: Access::WRITE,
        scope: Scope::Qp(peer),
    };
    let region = server
        .allocate_region(theirs, pds[1], &region)
        .expect("memory");
    let words = [value];
    let op = SendOp::Write {
        payload: Payload::Words(&words),
        to: server.remote(theirs, region).expect("ours"),
        imm: None,
    };
    let write = SendWr {
        wr_id: 1,
        op,
        signaled: true,
        solicited: false,
        fence: false,
    };
    port.post_send(ours, &[write]).expect("room");
    port.progress(Duration::ZERO);
    assert_eq!(port.poll(cqs[0], &mut [Completion::BLANK; 4]), 1);
    for _ in 0..TIMEOUT {
        theirs.progress(Duration::ZERO);
        let word = theirs.region(region).expect("ours").load(0);
        if word != 0 {
            return word;
        }
    }
    panic!("nothing arrived: {:?}", theirs.drops());
}

#[test]
fn an_endpoint_is_at_the_host_that_it_names_and_at_no_other() {
    let address = "127.0.0.1:0".parse().expect("an address");
    let device = RoceDevice::bind(RoceOptions::new(address)).expect("a port");
    let mut port = device.open_port(&PortLimits::default()).expect("a port");
    let pd = device.create_pd(&mut port).expect("a domain");
    let cq = device.create_cq(&mut port, &CqSpec { depth: 8 });
    let cq = cq.expect("a queue");
    let qp = device.create_qp(
        &mut port,
        &QpSpec {
            pd,
            transport: Transport::Ud,
            send_cq: cq,
            recv_cq: cq,
            send_depth: 1,
            recv_depth: 1,
        },
    );
    let end = device.endpoint(&port, qp.expect("a queue pair"));
    let end = end.expect("an endpoint");
    let at = |ends: &[&Endpoint], host: Option<&str>| {
        let host = host.map(|host| host.parse().expect("an address"));
        device.is_at(&port, pd, ends, host)
    };
    assert!(at(&[&end, &end], Some("127.0.0.1")));
    assert!(!at(&[&end], Some("127.0.0.2")) && !at(&[&end], None));
    let garbage = Endpoint::new(b"garbage").expect("short");
    assert!(!at(&[&end, &garbage], Some("127.0.0.1")));
}
