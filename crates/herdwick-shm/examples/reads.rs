//! The rate of READs over shared memory, of one client core, over tables that fit the cache and ones
//! that do not:
//!
//! ```text
//! cargo run --release -p herdwick-shm --example reads -- 64 32 1024
//! ```
//!
//! The arguments are the bytes of a READ, the READs posted at a time, and the MiB of the larger
//! table. It prints millions of READs a second of random entries, the best and the middle of several
//! runs. Host and client are two ports of one process: the host's CPU takes no part in a READ.
#![forbid(unsafe_code)]

use std::{env::args, time::Instant};

use herdwick_check::Rng;
use herdwick_fabric::{
    Access, Completion, CqSpec, Device, Local, Port, PortLimits, QpSpec, RegionSpec, Remote, Scope,
    SendOp, SendWr, Sharing, Status, Transport,
};
use herdwick_mem::Words;
use herdwick_shm::{PdSize, ShmDevice, ShmPort};

/// READs of one run.
const READS: usize = 4_000_000;
const RUNS: usize = 7;
const SMALL: usize = 256 << 10;

/// Two connected ports. The host's has to stay open.
struct Ends {
    host: (ShmDevice, ShmPort),
    client: (ShmDevice, ShmPort),
    cq: herdwick_fabric::CqId,
    qp: herdwick_fabric::QpId,
    table: Remote,
    inbox: herdwick_fabric::RegionId,
}

fn ends(bytes: usize, window: usize, len: usize) -> Ends {
    let limits = PortLimits::default();
    let (host, client) = (ShmDevice::host(PdSize::default()), ShmDevice::client());
    let mut there = host.open_port(&limits).expect("a port");
    let mut here = client.open_port(&limits).expect("a port");
    let host_pd = host.create_pd(&mut there).expect("a domain");
    let ticket = host.export_pd(&mut there, host_pd).expect("a ticket");
    let pd = client.import_pd(&mut here, ticket).expect("the domain");
    let qp = |device: &ShmDevice, port: &mut ShmPort, pd| {
        let depth = window;
        let cq = device.create_cq(port, &CqSpec { depth }).expect("a queue");
        let spec = QpSpec {
            pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            send_depth: window,
            recv_depth: 0,
        };
        (cq, device.create_qp(port, &spec).expect("a queue pair"))
    };
    let ((_, far), (cq, near)) = (qp(&host, &mut there, host_pd), qp(&client, &mut here, pd));
    let at = host.endpoint(&there, far).expect("ours");
    client.connect(&mut here, near, &at).expect("connected");
    let at = client.endpoint(&here, near).expect("ours");
    host.connect(&mut there, far, &at).expect("connected");
    let memory = host.allocate_shared(bytes, Sharing::ReadOnly);
    let memory = memory.expect("memory");
    (0..bytes / 8).for_each(|n| memory.span().store(n, n as u64));
    let region = host
        .register_shared(&mut there, host_pd, &memory, Access::READ, Scope::Pd)
        .expect("a region");
    let ticket = host.export_region(&there, region).expect("a ticket");
    client.import_region(&mut here, pd, ticket).expect("mapped");
    let table = host.remote(&there, region).expect("ours");
    let spec = RegionSpec {
        len: window * len,
        access: Access::LOCAL,
        scope: Scope::Pd,
    };
    let inbox = client.allocate_region(&mut here, pd, &spec);
    Ends {
        host: (host, there),
        client: (client, here),
        cq,
        qp: near,
        table,
        inbox: inbox.expect("a region"),
    }
}

/// READs random entries, a window at a time with one signaled READ; returns millions a second.
#[expect(
    clippy::disallowed_methods,
    reason = "a clock is what it measures with"
)]
fn run(ends: &mut Ends, bytes: usize, window: usize, len: usize) -> f64 {
    let entries = (bytes / len) as u64;
    let (mut chance, mut done) = (Rng::new(1), 0);
    let mut out = vec![Completion::BLANK; window];
    let mut batch = Vec::with_capacity(window);
    let start = Instant::now();
    while done < READS {
        batch.clear();
        for n in 0..window {
            let entry = chance.below(entries);
            let into = Local {
                region: ends.inbox,
                offset: n * len,
                len,
            };
            let from = ends.table.offset(entry * len as u64);
            batch.push(SendWr {
                wr_id: n as u64,
                op: SendOp::Read { into, from },
                signaled: true,
                solicited: false,
                fence: false,
            });
        }
        ends.client.1.post_send(ends.qp, &batch).expect("room");
        let mut polled = 0;
        while polled < window {
            let count = ends.client.1.poll(ends.cq, &mut out);
            assert!(out[..count].iter().all(|c| c.status == Status::Success));
            polled += count;
        }
        done += window;
    }
    done as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn main() {
    let given: Vec<usize> = args().skip(1).filter_map(|n| n.parse().ok()).collect();
    let number = |at: usize, default| given.get(at).copied().unwrap_or(default);
    let (len, window) = (number(0, 64).max(1), number(1, 32).max(1));
    for bytes in [SMALL, number(2, 1024).max(1) << 20] {
        let mut ends = ends(bytes, window, len);
        let mut rates = [0; RUNS].map(|_| run(&mut ends, bytes, window, len));
        rates.sort_by(f64::total_cmp);
        let found = ends.client.1.region(ends.inbox).expect("ours").load(0);
        assert_eq!(
            found % (len as u64 / 8).max(1),
            0,
            "the first word of an entry"
        );
        println!(
            "READ of {len} B, window {window}, table of {} KiB: best {:.1} M/s, middle {:.1} M/s",
            bytes >> 10,
            rates[RUNS - 1],
            rates[RUNS / 2],
        );
        drop(ends.host);
    }
}
