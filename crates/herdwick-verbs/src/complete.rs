//! Polling of completion queues: translates completions from the verbs' form to the fabric's.

use herdwick_fabric::{Completion, Opcode, QpState, Qpn, Slab, Source, Status, Transport};

use crate::{
    DATAGRAM_HEADER_BYTES,
    faults::{Fault, Faults},
    objects::{PortCq, PortQp, WorkId},
    sys,
};

/// Maximum completions polled from the device in one call.
pub(crate) const TAKE: usize = 32;

/// Buffer for completions from the device.
pub(crate) type WcBuffer = Box<[sys::Wc; TAKE]>;

/// The result of polling a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Found(usize),
    Failed,
}

/// Moves completions from `cq` to the front of `out`: first those in the stash, then new ones.
#[inline]
pub(crate) fn poll(
    cq: &mut PortCq,
    qps: &mut Slab<PortQp>,
    faults: &mut Faults,
    scratch: &mut WcBuffer,
    out: &mut [Completion],
) -> Check {
    let mut count = 0;
    // The stash first: what is in it was completed before what the device still has.
    while count < out.len()
        && let Some(earlier) = cq.stash.pop_front()
    {
        out[count] = earlier;
        count += 1;
    }
    // More than one call if the caller takes more than the buffer holds.
    while count < out.len() {
        let room = TAKE.min(out.len() - count);
        // A negative count: the queue has failed. What was found before is returned first; the next
        // poll reports the failure.
        let Some(taken) = cq.raw.poll(&mut scratch[..room]) else {
            return if count > 0 {
                Check::Found(count)
            } else {
                Check::Failed
            };
        };
        let mut known = None;
        // A driver that returns more than it had room for is not believed.
        for wc in &scratch[..taken.min(room)] {
            let token = WorkId::decode(wc.wr_id);
            // Consecutive completions often have the same queue pair.
            if known
                .as_ref()
                .is_none_or(|qp: &&mut PortQp| qp.id.0 != token.qp)
            {
                known = qps.get_mut(token.qp);
            }
            // Translated in place, because a completion is two cache lines long.
            if let Some(qp) = known.as_deref_mut() {
                count += usize::from(translate(wc, token, qp, faults, &mut out[count]));
            }
        }
        // The queue was empty at the end of the call, so another call would most likely find
        // nothing.
        if taken < room {
            break;
        }
    }
    Check::Found(count)
}

/// Moves at most `most` completions from the device to the stash; returns whether the stash has
/// any.
pub(crate) fn put_aside(
    cq: &mut PortCq,
    qps: &mut Slab<PortQp>,
    faults: &mut Faults,
    scratch: &mut WcBuffer,
    most: usize,
) -> bool {
    let mut left = most;
    while left > 0 {
        let room = TAKE.min(left);
        // A queue that fails returns no more; its state is checked separately, and shows the failure.
        let taken = cq.raw.poll(&mut scratch[..room]).unwrap_or(0).min(room);
        for wc in &scratch[..taken] {
            let token = WorkId::decode(wc.wr_id);
            let mut completion = Completion::BLANK;
            // A completion of a queue pair that was destroyed has no receiver, and is dropped.
            if let Some(qp) = qps.get_mut(token.qp)
                && translate(wc, token, qp, faults, &mut completion)
            {
                cq.stash.push_back(completion);
            }
        }
        if taken < room {
            break;
        }
        left -= taken;
    }
    !cq.stash.is_empty()
}

/// Translates a completion; returns `false` if it matches no posted work request.
#[inline]
fn translate(
    wc: &sys::Wc,
    token: WorkId,
    qp: &mut PortQp,
    faults: &mut Faults,
    out: &mut Completion,
) -> bool {
    let recv = token.opcode == Opcode::Recv;
    let queue = if recv { &mut qp.recvs } else { &mut qp.sends };
    // First, for a failed request, too: it frees the positions of those before it.
    let Some(wr_id) = queue.complete(token.position) else {
        return false;
    };
    (out.wr_id, out.opcode, out.qp) = (wr_id, token.opcode, qp.id);
    // The buffer holds an earlier completion, so every field is set.
    (out.status, out.inline) = (Status::Success, None);
    if recv {
        received(wc, qp.transport, out);
    } else {
        (out.imm, out.source) = (None, None);
    }
    if wc.status != sys::IBV_WC_SUCCESS {
        // After the fields that a success has, for the failure replaces some of them.
        failed(wc, recv, qp, faults, out);
    }
    true
}

#[inline]
fn received(wc: &sys::Wc, transport: Transport, completion: &mut Completion) {
    // Of a failed completion the opcode is undefined (ibv_poll_cq(3)); it is read here all the
    // same, and means nothing.
    if wc.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM {
        completion.opcode = Opcode::RecvWithImm;
    }
    let with_imm = wc.wc_flags & sys::IBV_WC_WITH_IMM.cast_unsigned() != 0;
    // The verbs pass an immediate in network byte order.
    completion.imm = with_imm.then(|| u32::from_be(wc.imm_data));
    (completion.byte_len, completion.source) = match transport {
        Transport::Ud => {
            let qpn = Qpn(wc.src_qp);
            // The device counts the GRH.
            (wc.byte_len.saturating_sub(HEADER), Some(Source { qpn }))
        }
        Transport::Rc | Transport::Uc => (wc.byte_len, None),
    };
}

#[expect(clippy::cast_possible_truncation, reason = "40")]
const HEADER: u32 = DATAGRAM_HEADER_BYTES as u32;

#[cold]
fn failed(
    wc: &sys::Wc,
    recv: bool,
    qp: &mut PortQp,
    faults: &mut Faults,
    completion: &mut Completion,
) {
    completion.status = status(wc.status, recv);
    // Flushed requests are the consequence of a failure that was counted.
    if completion.status != Status::Flushed {
        faults.count(Fault::Completion);
    }
    // A connected queue pair enters the error state at any failure; a UD queue pair is known to
    // have entered it when it flushes.
    let fails = qp.transport != Transport::Ud || completion.status == Status::Flushed;
    if fails && qp.state != QpState::Error {
        qp.state = QpState::Error;
        faults.count(Fault::Qp);
    }
}

fn status(number: i32, recv: bool) -> Status {
    match number {
        // The receiver of a message longer than its buffer reports LOC_LEN_ERR, with rdma_rxe
        // REM_INV_REQ_ERR.
        sys::IBV_WC_LOC_LEN_ERR | sys::IBV_WC_REM_INV_REQ_ERR if recv => Status::LengthError,
        sys::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        sys::IBV_WC_REM_INV_REQ_ERR | sys::IBV_WC_REM_OP_ERR => Status::RemoteInvalid,
        sys::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        sys::IBV_WC_RETRY_EXC_ERR => Status::RetryExceeded,
        sys::IBV_WC_RNR_RETRY_EXC_ERR => Status::ReceiverNotReady,
        _ => Status::LocalError,
    }
}
