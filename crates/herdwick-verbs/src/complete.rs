//! Completions, from the verbs' shape to the fabric's.

use herdwick_fabric::{Completion, Opcode, QpState, Qpn, Slab, Source, Status, Transport};

use crate::{
    DATAGRAM_HEADER_BYTES,
    events::{Fault, Faults},
    objects::{Cq, Qp, Token},
    sys,
};

/// Completions taken from the device at once.
pub(crate) const TAKE: usize = 32;

/// Room for what a device gives.
pub(crate) type Scratch = Box<[sys::Wc; TAKE]>;

/// What became of a queue when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Found(usize),
    Failed,
}

/// Takes from `cq` into the front of `out`: what was put aside before, then what is new.
#[inline]
pub(crate) fn poll(
    cq: &mut Cq,
    qps: &mut Slab<Qp>,
    faults: &mut Faults,
    scratch: &mut Scratch,
    out: &mut [Completion],
) -> Look {
    let mut count = 0;
    while count < out.len()
        && let Some(earlier) = cq.stash.pop_front()
    {
        out[count] = earlier;
        count += 1;
    }
    while count < out.len() {
        let room = TAKE.min(out.len() - count);
        let Some(taken) = cq.raw.poll(&mut scratch[..room]) else {
            return if count > 0 {
                Look::Found(count)
            } else {
                Look::Failed
            };
        };
        for wc in &scratch[..taken.min(room)] {
            if let Some(completion) = translate(wc, qps, faults) {
                out[count] = completion;
                count += 1;
            }
        }
        if taken < room {
            break;
        }
    }
    Look::Found(count)
}

/// Puts aside at most `most` of what waits; whether anything is put aside now.
pub(crate) fn put_aside(
    cq: &mut Cq,
    qps: &mut Slab<Qp>,
    faults: &mut Faults,
    scratch: &mut Scratch,
    most: usize,
) -> bool {
    let mut left = most;
    while left > 0 {
        let room = TAKE.min(left);
        let taken = cq.raw.poll(&mut scratch[..room]).unwrap_or(0).min(room);
        let found = scratch[..taken].iter();
        cq.stash
            .extend(found.filter_map(|wc| translate(wc, qps, faults)));
        if taken < room {
            break;
        }
        left -= taken;
    }
    !cq.stash.is_empty()
}

/// `None`: of a queue pair that is gone, or a RECV or send that nobody posted.
#[inline]
fn translate(wc: &sys::Wc, qps: &mut Slab<Qp>, faults: &mut Faults) -> Option<Completion> {
    let token = Token::decode(wc.wr_id);
    let qp = qps.get_mut(token.qp)?;
    let mut completion = Completion {
        qp: qp.id,
        status: Status::Success,
        ..Completion::BLANK
    };
    if token.recv {
        completion.wr_id = qp.recvs.complete(token.position)?;
        received(wc, qp.transport, &mut completion);
    } else {
        (completion.wr_id, completion.opcode) = qp.sends.complete(token.position)?;
    }
    if wc.status != sys::IBV_WC_SUCCESS {
        failed(wc, token.recv, qp, faults, &mut completion);
    }
    Some(completion)
}

#[inline]
fn received(wc: &sys::Wc, transport: Transport, completion: &mut Completion) {
    completion.opcode = match wc.opcode {
        sys::IBV_WC_RECV_RDMA_WITH_IMM => Opcode::RecvWithImm,
        _ => Opcode::Recv,
    };
    if wc.wc_flags & sys::IBV_WC_WITH_IMM.cast_unsigned() != 0 {
        completion.imm = Some(u32::from_be(wc.imm_data));
    }
    completion.byte_len = wc.byte_len;
    if transport == Transport::Ud {
        completion.source = Some(Source {
            qpn: Qpn(wc.src_qp),
        });
        completion.byte_len = wc.byte_len.saturating_sub(HEADER);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "40")]
const HEADER: u32 = DATAGRAM_HEADER_BYTES as u32;

#[cold]
fn failed(wc: &sys::Wc, recv: bool, qp: &mut Qp, faults: &mut Faults, completion: &mut Completion) {
    completion.status = status(wc.status, recv);
    if completion.status != Status::Flushed {
        faults.count(Fault::Completion);
    }
    // A connected queue pair is in error after any failure; a datagram's, when it flushes.
    if qp.transport != Transport::Ud || completion.status == Status::Flushed {
        qp.state = QpState::Error;
    }
}

fn status(number: i32, recv: bool) -> Status {
    match number {
        // A receiver says so when a message is longer than its buffer; rdma_rxe in the other words.
        sys::IBV_WC_LOC_LEN_ERR | sys::IBV_WC_REM_INV_REQ_ERR if recv => Status::LengthError,
        sys::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        sys::IBV_WC_REM_INV_REQ_ERR | sys::IBV_WC_REM_OP_ERR => Status::RemoteInvalid,
        sys::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        sys::IBV_WC_RETRY_EXC_ERR => Status::RetryExceeded,
        sys::IBV_WC_RNR_RETRY_EXC_ERR => Status::ReceiverNotReady,
        _ => Status::LocalError,
    }
}
