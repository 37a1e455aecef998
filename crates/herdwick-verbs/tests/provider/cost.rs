//! The cost of this crate without the driver, beside that of a program that uses raw verbs;
//! `tests/verbs/cost.sh` counts the instructions of both.

use std::{hint::black_box, ptr};

use herdwick_fabric::{Completion, Local, Port, PostError, RecvWr, SendWr};
use herdwick_verbs::sys;

use crate::side::{Side, signaled};

const ROUNDS: usize = 1000;
const BATCH: usize = 16;

#[inline(never)]
fn cost_of_sends(side: &mut Side, batch: &[SendWr<'_>]) -> Result<(), PostError> {
    side.port.post_send(side.qp, batch)
}

#[inline(never)]
fn cost_of_recvs(side: &mut Side, batch: &[RecvWr]) -> Result<(), PostError> {
    side.port.post_recv(side.qp, batch)
}

#[inline(never)]
fn cost_of_completions(side: &mut Side, out: &mut [Completion]) -> usize {
    side.port.poll(side.cq, out)
}

/// A message as a program knows it: location, key and destination.
struct Message {
    wr_id: u64,
    at: u64,
    len: u32,
    key: u32,
    imm: u32,
    to: sys::Datagram,
}

/// Fills in a datagram in each work request of a linked chain.
#[inline(never)]
fn raw_sends(messages: &[Message], chain: &mut [(sys::SendWr, sys::Sge)]) {
    for (message, (wr, sge)) in messages.iter().zip(chain) {
        (sge.addr, sge.length) = (message.at, message.len);
        wr.wr_id = message.wr_id;
        wr.num_sge = 1;
        wr.opcode = sys::IBV_WR_SEND_WITH_IMM;
        wr.send_flags = (sys::IBV_SEND_INLINE | sys::IBV_SEND_SIGNALED).cast_unsigned();
        wr.imm_data = message.imm.to_be();
        wr.wr.ud = message.to;
    }
}

/// Fills in RECVs.
#[inline(never)]
fn raw_recvs(messages: &[Message], chain: &mut [(sys::RecvWr, sys::Sge)]) {
    for (message, (wr, sge)) in messages.iter().zip(chain) {
        (sge.addr, sge.length, sge.lkey) = (message.at, message.len, message.key);
        (wr.wr_id, wr.num_sge) = (message.wr_id, 1);
    }
}

/// Reads status, id and received data of each completion.
#[inline(never)]
fn raw_completions(completions: &[sys::Wc]) -> Option<u64> {
    let mut sum = 0_u64;
    for wc in completions {
        if wc.status != sys::IBV_WC_SUCCESS {
            return None;
        }
        let came = u32::from_be(wc.imm_data) ^ wc.byte_len ^ wc.src_qp;
        sum = sum.wrapping_add(wc.wr_id ^ u64::from(came));
    }
    Some(sum)
}

#[test]
#[ignore = "to be counted by tests/verbs/cost.sh"]
fn cost_of_a_thousand_raw_verbs_postlists_of_sixteen() {
    let to = sys::Datagram {
        ah: ptr::null_mut(),
        remote_qpn: 1,
        remote_qkey: 2,
    };
    let message = |wr_id| Message {
        wr_id,
        at: 64 * wr_id,
        len: 8,
        key: 3,
        imm: 4,
        to,
    };
    let messages: Vec<Message> = (0..BATCH as u64).map(message).collect();
    let send = || sys::SendWr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        wr: sys::Target { ud: to },
        qp_type: 0,
        _extra: [0; 6],
    };
    let recv = || sys::RecvWr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
    };
    let mut sends: Vec<_> = (0..BATCH).map(|_| (send(), sys::Sge::default())).collect();
    let mut recvs: Vec<_> = (0..BATCH).map(|_| (recv(), sys::Sge::default())).collect();
    let completions = vec![sys::Wc::default(); 2 * BATCH];
    for _ in 0..ROUNDS {
        raw_recvs(black_box(&messages), black_box(&mut recvs));
        raw_sends(black_box(&messages), black_box(&mut sends));
        assert!(raw_completions(black_box(&completions)).is_some());
    }
}

#[test]
#[ignore = "to be counted by tests/verbs/cost.sh"]
fn cost_of_a_thousand_postlists_of_sixteen_datagrams() {
    let mut side = Side::new();
    let into = Local {
        region: side.inbox,
        offset: 0,
        len: 256,
    };
    let recvs = [RecvWr { wr_id: 1, into }; BATCH];
    let sends = [signaled(2, side.own); BATCH];
    let mut out = [Completion::BLANK; 2 * BATCH];
    for _ in 0..ROUNDS {
        cost_of_recvs(&mut side, &recvs).unwrap();
        cost_of_sends(&mut side, &sends).unwrap();
        assert_eq!(cost_of_completions(&mut side, &mut out), 2 * BATCH);
    }
}
