//! Receiving: matches the messages of the rings that feed a completion queue to posted RECVs. A
//! peer's ring may hold anything; a poll's work is bounded by the ring.

use herdwick_fabric::{
    Completion, CqId, InlineData, Opcode, QpState, Qpn, RecvWr, Slab, Source, Status, Transport,
};
use herdwick_mem::{LINE, Span, Words};

use crate::{
    DATAGRAM_BYTES_MAX, MESSAGE_BYTES_MAX,
    drops::{DropReason, Drops},
    layout::sender_word,
    pd::Pd,
    port::ShmPort,
    qp::{Cq, Qp, Region, Sent, fail, local},
    read,
    ring::{Control, RingConsumer},
};

/// Writes completions of `cq` to the front of `out`: completed sends, then one check of each ring,
/// starting where the last poll ran out of room.
pub(crate) fn poll(port: &mut ShmPort, cq: CqId, out: &mut [Completion]) -> usize {
    let Some(cq) = port.cqs.get_mut(cq.0) else {
        return 0;
    };
    let mut count = cq.take_sent(&mut port.qps, (&port.pds, &port.regions), out);
    // Once for each, so that a queue whose ring fills as fast as it is emptied does not hold the
    // others up.
    for _ in 0..cq.receivers.len() {
        let room = &mut out[count..];
        if room.is_empty() {
            break;
        }
        let id = cq.receivers[cq.next];
        if let Some(qp) = port.qps.get_mut(id.0)
            && let Some(pd) = port.pds.get(qp.pd)
        {
            count += receive(qp, pd, &port.regions, &mut port.drops, room);
        }
        // If the room has run out, the next poll begins with this queue pair: its ring may hold
        // more.
        if count < out.len() {
            cq.next += 1;
            if cq.next == cq.receivers.len() {
                cq.next = 0;
            }
        }
    }
    count
}

impl Cq {
    /// Moves finished sends to the front of `out`, READs executed on the way.
    #[inline]
    fn take_sent(
        &mut self,
        qps: &mut Slab<Qp>,
        (pds, regions): (&Slab<Pd>, &Slab<Region>),
        out: &mut [Completion],
    ) -> usize {
        // The budget bounds a poll: a worker must not copy megabytes before it serves others.
        let (mut count, mut budget) = (0, read::POLL_BYTES);
        while let (Some(to), Some(sent)) = (out.get_mut(count), self.sent.front().copied()) {
            let mut status = sent.status;
            if let Some(qp) = qps.get_mut(sent.qp.0) {
                if let (None, Some(pd)) = (status, pds.get(qp.pd)) {
                    status = read::poll(qp, pd, regions, &mut budget);
                    // A completion queue is in the order of the posts: what is behind an unfinished
                    // READ waits for it.
                    if status.is_none() {
                        break;
                    }
                }
                // Polled: the place in the send queue is free again.
                qp.send_pending -= 1;
            }
            self.sent.pop_front();
            // Without its queue pair or domain there is nothing left to READ from.
            let status = status.unwrap_or(Status::Flushed);
            if sent.signaled || status != Status::Success {
                *to = sent.completed(status);
                count += 1;
            }
        }
        count
    }
}

impl Sent {
    fn completed(&self, status: Status) -> Completion {
        Completion {
            wr_id: self.wr_id,
            status,
            opcode: self.opcode,
            qp: self.qp,
            byte_len: 0,
            imm: None,
            source: None,
            inline: None,
        }
    }
}

fn receive(
    qp: &mut Qp,
    pd: &Pd,
    regions: &Slab<Region>,
    drops: &mut Drops,
    out: &mut [Completion],
) -> usize {
    if qp.state == QpState::Error {
        return flush(qp, out);
    }
    if qp.state == QpState::Init {
        return 0;
    }
    // Out of the queue pair while its other fields are borrowed, and put back below.
    let Some(mut inbox) = qp.inbox.take() else {
        return 0;
    };
    let mut count = 0;
    // A peer may refill the ring as fast as its messages are dropped: stop after one lap.
    for _ in 0..inbox.shape().cells() {
        count += take_small(qp, pd, &mut inbox, &mut out[count..]);
        let (Some(to), Some(control)) = (out.get_mut(count), inbox.peek()) else {
            break;
        };
        match take(qp, pd, regions, &inbox, control, to) {
            ReceiveResult::Delivered => count += 1,
            ReceiveResult::Waits => break,
            ReceiveResult::Dropped(reason) => drops.count(reason),
        }
        // After the copy: the cell is the sender's again once `give_back` has counted it.
        inbox.advance(control);
        // RC fails with the message that did not fit; what is behind it stays unread.
        if qp.state == QpState::Error {
            break;
        }
    }
    // Once for the call: the counter is a line that the sender reads.
    inbox.give_back();
    qp.inbox = Some(inbox);
    count
}

/// The common case alone: messages that fit into their cells, and have RECVs. A function of its
/// own, to keep its variables in registers.
#[inline(never)]
fn take_small(
    qp: &mut Qp,
    pd: &Pd,
    inbox: &mut RingConsumer<Span>,
    out: &mut [Completion],
) -> usize {
    let datagram = qp.transport == Transport::Ud;
    // The sender's number is looked up once for a run of messages of one sender.
    let (mut count, mut known) = (0, (usize::MAX, None));
    for (to, wr) in out.iter_mut().zip(&qp.recvs) {
        // The copy in `payload` is what is used: the sender may still change the cell.
        let Some((control, payload)) = inbox.small() else {
            break;
        };
        if known.0 != control.sender() {
            known = (control.sender(), datagram.then(|| source(pd, control)));
        }
        let len = control.len();
        // Where it stays: a completion that is made elsewhere is copied, all of its two lines.
        *to.inline.get_or_insert(InlineData::EMPTY).refill(len) = payload;
        to.wr_id = wr.wr_id;
        to.status = Status::Success;
        to.opcode = Opcode::Recv;
        to.qp = qp.id;
        #[expect(clippy::cast_possible_truncation, reason = "at most 56")]
        let byte_len = len as u32;
        to.byte_len = byte_len;
        to.imm = control.imm();
        to.source = known.1;
        inbox.advance_small();
        count += 1;
    }
    qp.recvs.drain(..count);
    count
}

/// What happened to one message.
enum ReceiveResult {
    Delivered,
    /// It stays in the ring until a RECV is posted.
    Waits,
    Dropped(DropReason),
}

/// The other cases: long messages, WRITEs with an immediate, missing RECVs, malformed messages.
fn take(
    qp: &mut Qp,
    pd: &Pd,
    regions: &Slab<Region>,
    inbox: &RingConsumer<Span>,
    control: Control,
    to: &mut Completion,
) -> ReceiveResult {
    let (len, datagram) = (control.len(), qp.transport == Transport::Ud);
    let max = if datagram {
        DATAGRAM_BYTES_MAX
    } else {
        MESSAGE_BYTES_MAX
    };
    // Only a peer that breaks the protocol sends this.
    if len > max || (datagram && control.is_written()) {
        return ReceiveResult::Dropped(DropReason::Malformed);
    }
    if control.is_small() && !qp.recvs.is_empty() {
        // It arrived after the common case had found none: the next poll takes it.
        return ReceiveResult::Waits;
    }
    let Some(wr) = qp.recvs.pop_front() else {
        return if qp.transport == Transport::Rc {
            ReceiveResult::Waits
        } else {
            ReceiveResult::Dropped(DropReason::NoRecv)
        };
    };
    let (opcode, status) = if control.is_written() {
        (Opcode::RecvWithImm, Status::Success)
    } else {
        (Opcode::Recv, place(qp, regions, inbox, len, wr))
    };
    *to = Completion {
        wr_id: wr.wr_id,
        status,
        opcode,
        qp: qp.id,
        #[expect(clippy::cast_possible_truncation, reason = "17 bits")]
        byte_len: len as u32,
        imm: control.imm(),
        source: datagram.then(|| source(pd, control)),
        inline: None,
    };
    if status != Status::Success && qp.transport == Transport::Rc {
        // On RC a message that does not fit fails the queue pair; UC and UD go on.
        fail(qp, pd);
    }
    ReceiveResult::Delivered
}

fn source(pd: &Pd, control: Control) -> Source {
    // The peer may have written any word there; a qpn has 24 bits.
    let qpn = pd.theirs.load(sender_word(control.sender())) & 0xff_ffff;
    let qpn = Qpn(qpn as u32);
    Source { qpn }
}

/// Copies a long message into the buffer of its RECV.
fn place(
    qp: &Qp,
    regions: &Slab<Region>,
    inbox: &RingConsumer<Span>,
    len: usize,
    wr: RecvWr,
) -> Status {
    if len > wr.into.len {
        return Status::LengthError;
    }
    let Some(span) = local(regions, qp.pd, (wr.into.region, wr.into.offset, len)) else {
        return Status::LocalError;
    };
    for (n, at) in (0..len).step_by(LINE).enumerate() {
        let line = inbox.long_line(n);
        let (offset, rest) = (wr.into.offset + at, len - at);
        // The last line is stored by bytes: what is behind the message in the buffer is not the peer's
        // to change.
        if rest >= LINE && offset.is_multiple_of(8) {
            span.write_words(offset / 8, &line);
        } else {
            let mut bytes = [0; LINE];
            for (to, word) in bytes.chunks_exact_mut(8).zip(line) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            span.write_bytes(offset, &bytes[..rest.min(LINE)]);
        }
    }
    Status::Success
}

/// Completes as flushed what was posted before the queue pair failed.
fn flush(qp: &mut Qp, out: &mut [Completion]) -> usize {
    let count = qp.recvs.len().min(out.len());
    for (to, wr) in out.iter_mut().zip(qp.recvs.drain(..count)) {
        *to = Completion {
            wr_id: wr.wr_id,
            status: Status::Flushed,
            opcode: Opcode::Recv,
            qp: qp.id,
            byte_len: 0,
            imm: None,
            source: None,
            inline: None,
        };
    }
    count
}
