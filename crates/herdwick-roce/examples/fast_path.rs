//! The fast path alone, for counting its instructions:
//!
//! ```text
//! cargo build --release -p herdwick-roce --example fast_path
//! valgrind --tool=callgrind target/release/examples/fast_path write 100000
//! ```
//!
//! `write` posts 64-byte UC WRITEs and receives them on the other side, `send` does the same with
//! UD SENDs of 64 bytes; `post-write` and `post-send` only post; `keyed-write` authenticates the
//! packets.
#![forbid(unsafe_code)]

use std::{env::args, net::SocketAddr, time::Duration};

use herdwick_fabric::{
    Access, Completion, CqId, CqSpec, Local, Payload, QpId, QpSpec, RecvWr, RegionId, RegionSpec,
    Remote, Scope, SendOp, SendWr, Transport,
};
use herdwick_roce::{
    Arrival, Config, Destination, Engine, FlowId, Memory, Mtu, Peer, Peering, RD_ATOMIC_MAX,
    Secret, Wire, icrc::IpId,
};

/// Packets of one batch; as many are posted and received at a time.
const GSO_BATCH: usize = 64;

struct Line([u8; 4096]);

impl Memory for Line {
    fn write(&mut self, _: RegionId, offset: usize, bytes: &[u8]) {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    fn read(&self, _: RegionId, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0[offset..offset + out.len()]);
    }
    fn fetch_add(&mut self, _: RegionId, _: usize, _: u64) -> u64 {
        0
    }
    fn compare_swap(&mut self, _: RegionId, _: usize, _: u64, _: u64) -> u64 {
        0
    }
}

struct GsoBatch {
    bytes: Vec<u8>,
    end: usize,
    segment: usize,
}

impl Wire for GsoBatch {
    #[inline]
    fn packet(&mut self, _: FlowId, len: usize, _: bool) -> Option<&mut [u8]> {
        let room = self.bytes.get_mut(self.end..self.end + len)?;
        self.end += len;
        self.segment = len;
        Some(room)
    }
}

struct End {
    engine: Engine,
    cq: CqId,
    qp: QpId,
    region: RegionId,
    at: Remote,
}

const ADDR: &str = "127.0.0.1:4791";

fn end(transport: Transport) -> End {
    let config = Config {
        check_icrc: false,
        ..Config::default()
    };
    let mut engine = Engine::new(config, [1; 16]);
    let pd = engine.create_pd().expect("a domain");
    let cq = engine.create_cq(&CqSpec { depth: 256 }).expect("a queue");
    let spec = QpSpec {
        pd,
        transport,
        send_cq: cq,
        recv_cq: cq,
        send_depth: 128,
        recv_depth: 128,
    };
    let qp = engine.create_qp(&spec).expect("a queue pair");
    let spec = RegionSpec {
        len: 4096,
        access: Access::WRITE,
        scope: Scope::Qp(qp),
    };
    let region = engine.register(pd, &spec, 0).expect("a region");
    let at = engine.remote(region).expect("known");
    End {
        engine,
        cq,
        qp,
        region,
        at,
    }
}

fn peer() -> Peer {
    Peer {
        addr: ADDR.parse().expect("an address"),
        channel: 0,
    }
}

fn peering(other: &End, key: Option<Secret>) -> Peering {
    let endpoint = other.engine.endpoint(other.qp).expect("known");
    Peering {
        peer: peer(),
        qpn: endpoint.qpn,
        psn: endpoint.psn,
        mtu: Mtu::B1024,
        rd_atomic: RD_ATOMIC_MAX,
        refusals_are_fatal: false,
        key,
    }
}

fn main() {
    let mode = args().nth(1).unwrap_or_else(|| "write".into());
    let count = args().nth(2).and_then(|count| count.parse().ok());
    let rounds: usize = count.unwrap_or(100_000) / GSO_BATCH;
    let datagrams = mode.ends_with("send");
    let takes = !mode.starts_with("post");
    let transport = if datagrams {
        Transport::Ud
    } else {
        Transport::Uc
    };
    let (mut a, mut b) = (end(transport), end(transport));
    let mut to = None;
    if datagrams {
        let endpoint = b.engine.endpoint(b.qp).expect("known");
        let destination = Destination {
            peer: peer(),
            qpn: endpoint.qpn,
            qkey: endpoint.qkey,
            key: None,
        };
        let made = a.engine.create_address(a.qp, &destination);
        to = Some(made.expect("an address").0);
    } else {
        let key = mode.starts_with("keyed").then_some(Secret([5; 16]));
        let (for_a, for_b) = (peering(&b, key), peering(&a, key));
        a.engine.connect(a.qp, &for_a).expect("a connection");
        b.engine.connect(b.qp, &for_b).expect("a connection");
    }
    let words = [7u64; 8];
    let op = match to {
        Some(_) => SendOp::Send {
            payload: Payload::Words(&words),
            imm: Some(1),
            to,
        },
        None => SendOp::Write {
            payload: Payload::Words(&words),
            to: b.at,
            imm: None,
        },
    };
    run(&mut a, &mut b, op, rounds, takes);
    let counters = b.engine.counters();
    let dropped: u64 = counters.drops().map(|(_, count)| count).sum();
    println!("{} packets taken, {dropped} dropped", counters.packets_in);
}

fn run(a: &mut End, b: &mut End, op: SendOp<'_>, rounds: usize, takes: bool) {
    let addr: SocketAddr = ADDR.parse().expect("an address");
    let mut memory = Line([0; 4096]);
    let mut gso_batch = GsoBatch {
        bytes: vec![0; 1 << 16],
        end: 0,
        segment: 1,
    };
    let wr = |signaled| SendWr {
        wr_id: 1,
        op,
        signaled,
        solicited: false,
        fence: false,
    };
    let mut batch = [wr(false); GSO_BATCH];
    batch[GSO_BATCH - 1].signaled = true;
    let into = Local {
        region: b.region,
        offset: 0,
        len: 256,
    };
    let recvs = [RecvWr { wr_id: 1, into }; GSO_BATCH];
    let mut done = [Completion::BLANK; GSO_BATCH];
    for _ in 0..rounds {
        gso_batch.end = 0;
        let posted = a.engine.post_send(a.qp, &batch, &memory, &mut gso_batch);
        posted.expect("room");
        a.engine.poll(a.cq, &mut done);
        if !takes {
            continue;
        }
        if matches!(op, SendOp::Send { .. }) {
            b.engine.post_recv(b.qp, &recvs).expect("room");
        }
        let packets = std::mem::take(&mut gso_batch.bytes);
        let arrival = Arrival {
            from: addr,
            to: addr,
            bytes: &packets[..gso_batch.end],
            ip_id: IpId::Unknown,
            tos: 0,
        };
        let (now, segment) = (Duration::ZERO, gso_batch.segment);
        b.engine
            .handle_batch(now, &arrival, segment, &mut memory, &mut gso_batch);
        gso_batch.bytes = packets;
        b.engine.poll(b.cq, &mut done);
    }
}
