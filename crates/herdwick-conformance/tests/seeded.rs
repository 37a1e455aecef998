//! The seeded fabric has exactly the faults that it is configured for.

use std::time::Duration;

use herdwick_conformance::seeded::{Faults, SeededDevice, SeededNetwork, SeededPort};
use herdwick_fabric::{
    Access, AddressHandle, Completion, CqId, CqSpec, Device, InlineData, Local, Payload, PdId,
    Port, PortLimits, PostError, QpId, QpSpec, QpState, RecvWr, RegionId, RegionSpec, Remote,
    Scope, SendOp, SendWr, Status, Transport,
};
use herdwick_mem::Words;

const DEPTH: usize = 64;

/// One port with a completion queue, memory that its peer may access, and local memory.
struct Node {
    device: SeededDevice,
    port: SeededPort,
    pd: PdId,
    cq: CqId,
    shared: RegionId,
    own: RegionId,
}

impl Node {
    fn new(network: &SeededNetwork) -> Self {
        let device = network.device();
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let cq = device.create_cq(&mut port, &CqSpec { depth: 4 * DEPTH });
        let mut region = |access| {
            let spec = RegionSpec {
                len: 4096,
                access,
                scope: Scope::Pd,
            };
            device.allocate_region(&mut port, pd, &spec).unwrap()
        };
        let (shared, own) = (region(Access::ALL), region(Access::LOCAL));
        Self {
            cq: cq.unwrap(),
            device,
            port,
            pd,
            shared,
            own,
        }
    }

    fn qp(&mut self, transport: Transport) -> QpId {
        let spec = QpSpec {
            pd: self.pd,
            transport,
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: DEPTH,
            recv_depth: DEPTH,
        };
        self.device.create_qp(&mut self.port, &spec).unwrap()
    }

    fn remote(&self) -> Remote {
        self.device.remote(&self.port, self.shared).unwrap()
    }

    fn recv(&mut self, qp: QpId, wr_id: u64) {
        let into = Local {
            region: self.own,
            offset: 0,
            len: 4096,
        };
        self.port.post_recv(qp, &[RecvWr { wr_id, into }]).unwrap();
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut out = [Completion::BLANK];
        (self.port.poll(self.cq, &mut out) == 1).then_some(out[0])
    }
}

fn pair(network: &SeededNetwork, transport: Transport) -> ([Node; 2], [QpId; 2]) {
    let (mut a, mut b) = (Node::new(network), Node::new(network));
    let qps = [a.qp(transport), b.qp(transport)];
    if transport != Transport::Ud {
        let ends = [
            a.device.endpoint(&a.port, qps[0]).unwrap(),
            b.device.endpoint(&b.port, qps[1]).unwrap(),
        ];
        a.device.connect(&mut a.port, qps[0], &ends[1]).unwrap();
        b.device.connect(&mut b.port, qps[1], &ends[0]).unwrap();
    }
    ([a, b], qps)
}

fn send(words: &[u64], to: Option<AddressHandle>) -> SendWr<'_> {
    SendWr {
        wr_id: words[0],
        op: SendOp::Send {
            payload: Payload::Words(words),
            imm: None,
            to,
        },
        signaled: true,
        solicited: false,
        fence: false,
    }
}

fn write(words: &[u64], to: Remote) -> SendWr<'_> {
    SendWr {
        wr_id: words[0],
        op: SendOp::Write {
            payload: Payload::Words(words),
            to,
            imm: None,
        },
        signaled: true,
        solicited: false,
        fence: false,
    }
}

fn storm() -> Faults {
    Faults {
        drop_per_mille: 200,
        duplicate_per_mille: 100,
        reorder_per_mille: 200,
        reorder_window: Duration::from_micros(30),
        delay_min: Duration::from_micros(1),
        delay_max: Duration::from_micros(5),
        tear: Duration::from_micros(1),
        tear_reads: Duration::from_micros(1),
        ..Faults::default()
    }
}

/// Sends 0, 1, 2, … for `count` messages. Returns what arrived, and the network's trace.
fn stream(seed: u64, transport: Transport, faults: Faults, count: u64) -> (Vec<u64>, u64) {
    let network = SeededNetwork::new(seed);
    let ([mut a, mut b], [qa, qb]) = pair(&network, transport);
    let to = (transport == Transport::Ud).then(|| {
        let end = b.device.endpoint(&b.port, qb).unwrap();
        a.device.create_address(&mut a.port, qa, &end).unwrap()
    });
    network.set_faults(faults);
    (0..DEPTH as u64).for_each(|i| b.recv(qb, i));
    let (mut next, mut seen, mut now) = (0, Vec::new(), Duration::ZERO);
    for _ in 0..count * 200 {
        if next < count && a.port.post_send(qa, &[send(&[next], to)]).is_ok() {
            next += 1;
        }
        now += Duration::from_micros(1);
        a.port.progress(now);
        while let Some(done) = a.poll() {
            assert_eq!(done.status, Status::Success);
        }
        while let Some(done) = b.poll() {
            assert_eq!(done.status, Status::Success);
            seen.push(done.inline.as_ref().map(InlineData::words).unwrap()[0]);
            b.recv(qb, done.wr_id);
        }
    }
    assert_eq!(next, count, "the sender was never let through");
    (seen, network.trace())
}

#[test]
fn rc_delivers_once_and_in_order_under_all_faults() {
    for seed in 0..20 {
        let (seen, _) = stream(seed, Transport::Rc, storm(), 200);
        assert!(seen.into_iter().eq(0..200), "seed {seed}");
    }
}

#[test]
fn uc_and_ud_lose_duplicate_and_reorder_as_configured() {
    for transport in [Transport::Uc, Transport::Ud] {
        let (mut seen, _) = stream(1, transport, storm(), 2000);
        assert!(!seen.is_sorted(), "reordered");
        seen.sort_unstable();
        let arrived = seen.len();
        seen.dedup();
        // 20 % of the packets are lost, 10 % sent twice: a message is missing if its packet, or
        // both of them, are lost: 0.9 * 0.2 + 0.1 * 0.04 = 18.4 %, give or take five standard
        // deviations (4.3 %).
        let missing = 2000 - seen.len();
        assert!((282..=454).contains(&missing), "{missing} missing");
        assert!(arrived > seen.len(), "doubled");
    }
}

#[test]
fn without_faults_everything_arrives_in_order() {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        let (seen, _) = stream(1, transport, Faults::default(), 500);
        assert!(seen.into_iter().eq(0..500));
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    let run = |seed| stream(seed, Transport::Rc, storm(), 20);
    let mut traces: Vec<u64> = (0..100).map(|seed| run(seed).1).collect();
    for (seed, trace) in (0..100).zip(&traces) {
        assert_eq!(run(seed).1, *trace, "seed {seed}");
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 100, "other seeds give other runs");
}

/// Writes one line after another to the same place with torn words. Returns in how many steps the
/// last word was visible before another one.
fn torn_lines(network: &SeededNetwork) -> usize {
    let ([mut a, b], [qa, _]) = pair(network, Transport::Uc);
    network.set_faults(Faults {
        tear: Duration::from_micros(1),
        tear_reads: Duration::from_micros(1),
        ..Faults::default()
    });
    let span = b.port.region(b.shared).unwrap().clone();
    let mut early = 0;
    for line in 1..=200u64 {
        a.port
            .post_send(qa, &[write(&[line; 8], b.remote())])
            .unwrap();
        while network.step() {
            let words: [u64; 8] = std::array::from_fn(|i| span.load_acquire(i));
            early += usize::from(words[7] == line && words != [line; 8]);
        }
        assert_eq!(span.read_words::<8>(0), [line; 8]);
        a.poll().unwrap();
    }
    early
}

#[test]
fn torn_write_publishes_its_last_word_last() {
    assert_eq!(torn_lines(&SeededNetwork::new(3)), 0);
}

#[test]
fn torn_write_without_ordering_publishes_its_last_word_early() {
    let mut capabilities = SeededNetwork::capabilities();
    capabilities.ordered_write = false;
    assert!(torn_lines(&SeededNetwork::with_capabilities(3, capabilities)) > 100);
}

#[test]
fn writer_stopped_at_any_step_leaves_a_prefix_of_steps() {
    // A transmission, then eight words: after step 1 + n, n words are visible.
    for steps in 0..10 {
        let network = SeededNetwork::new(steps);
        let ([mut a, b], [qa, _]) = pair(&network, Transport::Uc);
        network.set_faults(Faults {
            tear: Duration::from_micros(1),
            ..Faults::default()
        });
        network.stop_after(a.port.party(), steps);
        a.port.post_send(qa, &[write(&[1; 8], b.remote())]).unwrap();
        while network.step() {}
        let words = b.port.region(b.shared).unwrap().read_words::<8>(0);
        let landed = words.iter().filter(|word| **word == 1).count() as u64;
        assert_eq!(landed, steps.saturating_sub(1).min(8));
        assert_eq!(words[7] == 1, landed == 8, "the last word is written last");
    }
}

#[test]
fn rc_fails_after_the_deadline_if_the_peer_is_unreachable() {
    for cut in [false, true] {
        let network = SeededNetwork::new(5);
        let ([mut a, b], [qa, _]) = pair(&network, Transport::Rc);
        if cut {
            network.partition(a.port.party(), b.port.party());
        } else {
            network.stop(b.port.party());
        }
        let batch = [send(&[1], None), send(&[2], None)];
        a.port.post_send(qa, &batch).unwrap();
        a.port.progress(Duration::from_millis(19));
        assert!(a.poll().is_none(), "still trying");
        a.port.progress(Duration::from_millis(21));
        let ends = [a.poll().unwrap().status, a.poll().unwrap().status];
        assert_eq!(ends, [Status::RetryExceeded, Status::Flushed]);
        assert_eq!(a.device.qp_state(&a.port, qa).unwrap(), QpState::Error);
        let refused = a.port.post_send(qa, &batch).unwrap_err();
        assert_eq!(refused, PostError::State(QpState::Error));
    }
}

#[test]
fn rc_survives_a_network_partition_shorter_than_the_deadline() {
    let network = SeededNetwork::new(6);
    let ([mut a, mut b], [qa, qb]) = pair(&network, Transport::Rc);
    b.recv(qb, 9);
    network.partition(a.port.party(), b.port.party());
    a.port.post_send(qa, &[send(&[1], None)]).unwrap();
    a.port.progress(Duration::from_millis(10));
    assert!(b.poll().is_none());
    network.heal(a.port.party(), b.port.party());
    a.port.progress(Duration::from_millis(12));
    assert_eq!(a.poll().unwrap().status, Status::Success);
    assert_eq!(b.poll().unwrap().wr_id, 9);
    assert!(network.lost() > 0);
}

#[test]
fn rc_send_waits_for_a_recv_until_the_deadline() {
    let network = SeededNetwork::new(7);
    let ([mut a, mut b], [qa, qb]) = pair(&network, Transport::Rc);
    a.port.post_send(qa, &[send(&[1], None)]).unwrap();
    a.port.progress(Duration::from_millis(5));
    assert!(a.poll().is_none());
    b.recv(qb, 1);
    a.port.progress(Duration::from_millis(6));
    assert_eq!(a.poll().unwrap().status, Status::Success);
    a.port.post_send(qa, &[send(&[2], None)]).unwrap();
    a.port.progress(Duration::from_millis(30));
    assert_eq!(a.poll().unwrap().status, Status::ReceiverNotReady);
}

#[test]
fn send_slots_are_freed_only_by_polling() {
    let network = SeededNetwork::new(8);
    let ([mut a, b], [qa, _]) = pair(&network, Transport::Uc);
    let words = [1];
    let quiet = SendWr {
        signaled: false,
        ..write(&words, b.remote())
    };
    a.port.post_send(qa, &[quiet; DEPTH - 1]).unwrap();
    a.port.progress(Duration::from_micros(1));
    assert_eq!(a.port.post_send(qa, &[quiet; 2]), Err(PostError::Full));
    a.port.post_send(qa, &[write(&words, b.remote())]).unwrap();
    a.port.progress(Duration::from_micros(2));
    assert_eq!(a.port.post_send(qa, &[quiet]), Err(PostError::Full));
    assert_eq!(a.poll().unwrap().wr_id, 1);
    a.port.post_send(qa, &[quiet; DEPTH]).unwrap();
}
