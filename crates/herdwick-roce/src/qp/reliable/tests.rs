//! Tests that have to choose the first PSN of a queue pair: wrapping of sequence numbers.

use core::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};
use std::{vec, vec::Vec};

use herdwick_fabric::{
    Access, Completion, CqId, CqSpec, Payload, QpId, QpSpec, RegionId, RegionSpec, Scope, SendOp,
    SendWr, Status, Transport,
};

use super::Requester;
use crate::{
    Arrival, Config, Engine, FlowId, Memory, Mtu, Peer, Peering, Wire, icrc::IpId, packet::Psn24,
};

const ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4791);

struct Word(u64);

impl Memory for Word {
    fn write(&mut self, _: RegionId, _: usize, bytes: &[u8]) {
        self.0 = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    fn read(&self, _: RegionId, _: usize, _: &mut [u8]) {}
    fn fetch_add(&mut self, _: RegionId, _: usize, add: u64) -> u64 {
        let original = self.0;
        self.0 += add;
        original
    }
    fn compare_swap(&mut self, _: RegionId, _: usize, _: u64, _: u64) -> u64 {
        0
    }
}

#[derive(Default)]
struct Out(Vec<Vec<u8>>);

impl Wire for Out {
    fn packet(&mut self, _: FlowId, len: usize, _: bool) -> Option<&mut [u8]> {
        self.0.push(vec![0; len]);
        self.0.last_mut().map(Vec::as_mut_slice)
    }
}

/// Returns an engine, a queue pair of it that starts five packets before the PSNs wrap, and the
/// address of a word.
fn end() -> (Engine, QpId, herdwick_fabric::Remote) {
    let config = Config {
        check_icrc: false,
        ..Config::default()
    };
    let mut engine = Engine::new(config, [1; 16]);
    let pd = engine.create_pd().expect("a domain");
    let cq = engine.create_cq(&CqSpec { depth: 64 }).expect("a queue");
    let spec = QpSpec {
        pd,
        transport: Transport::Rc,
        send_cq: cq,
        recv_cq: cq,
        send_depth: 8,
        recv_depth: 0,
    };
    let id = engine.create_qp(&spec).expect("a queue pair");
    let retry = engine.config().retry.clone();
    let qp = engine.qp_mut(id).expect("known");
    let psn = Psn24::new(u32::MAX - 4);
    qp.first_psn = psn;
    qp.sends.assign = psn;
    qp.sends.next = psn;
    qp.requester = Requester::new(psn, &retry);
    let spec = RegionSpec {
        len: 8,
        access: Access::ALL,
        scope: Scope::Pd,
    };
    let region = engine.register(pd, &spec, 0).expect("a region");
    let at = engine.remote(region).expect("known");
    (engine, id, at)
}

/// Returns the peering for a connection to `engine`'s queue pair.
fn peering(engine: &Engine, qp: QpId) -> Peering {
    let endpoint = engine.endpoint(qp).expect("known");
    Peering {
        peer: Peer {
            addr: ADDR,
            channel: 0,
        },
        qpn: endpoint.qpn,
        psn: endpoint.psn,
        mtu: Mtu::B256,
        rd_atomic: 1,
        refusals_are_fatal: true,
        key: None,
    }
}

/// Delivers the packets that one engine sent to the other; returns its answers.
fn carry(packets: &mut Out, to: &mut Engine, memory: &mut Word) -> Out {
    let mut answers = Out::default();
    for bytes in packets.0.drain(..) {
        let arrival = Arrival {
            from: ADDR,
            to: ADDR,
            bytes: &bytes,
            ip_id: IpId::Unknown,
            tos: 0,
        };
        to.handle_packet(Duration::ZERO, &arrival, memory, &mut answers);
    }
    to.poll_transmit(Duration::ZERO, memory, &mut answers);
    answers
}

#[test]
fn psns_wrap() {
    let ((mut a, qa, _), (mut b, qb, to)) = (end(), end());
    let (to_a, to_b) = (peering(&a, qa), peering(&b, qb));
    a.connect(qa, &to_b).expect("a connection");
    b.connect(qb, &to_a).expect("a connection");
    let (mut memory, mut out, mut wrapped) = (Word(0), Out::default(), false);
    for round in 1..=20 {
        let op = SendOp::Write {
            payload: Payload::Words(&[round]),
            to,
            imm: None,
        };
        let wr = SendWr {
            wr_id: round,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        };
        a.post_send(qa, &[wr], &memory, &mut out).expect("room");
        let psn = &out.0[0][9..12];
        wrapped |= psn == [0, 0, 0];
        let mut answers = carry(&mut out, &mut b, &mut memory);
        assert_eq!(memory.0, round);
        carry(&mut answers, &mut a, &mut Word(0));
        let mut done = [Completion::BLANK; 2];
        assert_eq!(a.poll(CqId(0), &mut done), 1);
        assert_eq!((done[0].wr_id, done[0].status), (round, Status::Success));
    }
    assert!(wrapped);
}

/// PSNs recur: a repeated atomic gets its own result, not that of an atomic with the same PSN 2^24
/// packets earlier.
#[test]
fn repeated_atomic_gets_its_own_reply_after_psn_wrap() {
    let ((a, qa, _), (mut b, qb, to)) = (end(), end());
    b.connect(qb, &peering(&a, qa)).expect("a connection");
    let (qpn, first) = (
        b.endpoint(qb).expect("known").qpn.0,
        a.endpoint(qa).expect("known").psn.0,
    );
    let mut memory = Word(0);
    let mut ask = |opcode: u8, psn: u32, b: &mut Engine| {
        let mut packet = vec![opcode, 0, 0xff, 0xff];
        packet.extend(qpn.to_be_bytes());
        packet.extend((0x8000_0000 | psn & 0x00ff_ffff).to_be_bytes());
        packet.extend(to.addr.to_be_bytes());
        packet.extend(to.rkey.0.to_be_bytes());
        // FETCH_ADD: add 1, compare field 0. WRITE: length 0.
        let rest: &[u8] = if opcode == FETCH_ADD {
            &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
        } else {
            &[0; 4]
        };
        packet.extend(rest);
        packet.extend([0; 4]);
        let mut answers = carry(&mut Out(vec![packet]), b, &mut memory);
        answers.0.pop().and_then(|answer| {
            answer[16..]
                .first_chunk()
                .map(|word| u64::from_be_bytes(*word))
        })
    };
    assert_eq!(ask(FETCH_ADD, first, &mut b), Some(0));
    // As if WRITEs had arrived in between, a quarter of the PSN space at a time.
    for quarter in 1..4 {
        let psn = first.wrapping_add(quarter << 22);
        b.qp_mut(qb).expect("known").inbound.expected = Psn24::new(psn);
        ask(WRITE_ONLY, psn, &mut b);
    }
    b.qp_mut(qb).expect("known").inbound.expected = Psn24::new(first);
    assert_eq!(ask(FETCH_ADD, first, &mut b), Some(1));
    assert_eq!(ask(FETCH_ADD, first, &mut b), Some(1), "repeated");
    assert_eq!(b.qp_mut(qb).expect("known").responder.kept(), 1);
}

const FETCH_ADD: u8 = 0x14;
const WRITE_ONLY: u8 = 0x0a;
