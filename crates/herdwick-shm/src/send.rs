//! Sending: the CPU that posts is the RNIC, so a batch is complete when its post returns.

use herdwick_fabric::{
    Local, Payload, PostError, QpId, QpState, Remote, SendOp, SendWr, Slab, Status, Transport,
};
use herdwick_mem::{Span, Words};

use crate::{
    DATAGRAM_BYTES_MAX, INLINE_BYTES_MAX, MESSAGE_BYTES_MAX, READ_BYTES_MAX,
    bytes::PayloadBytes,
    drops::{DropReason, Drops},
    entry::AccessRight,
    pd::Pd,
    port::ShmPort,
    qp::{Address, Cq, Qp, Region, Sent, fail, local},
    read,
    ring::{CELL_PAYLOAD, Control, Full, RingProducer},
};

/// Posts a batch: all of it is checked before any of it is executed.
#[inline]
pub(crate) fn post(port: &mut ShmPort, id: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
    let qp = port.qps.get(id.0).ok_or(PostError::UnknownQp)?;
    if qp.state != QpState::ReadyToSend {
        return Err(PostError::State(qp.state));
    }
    // Each request may need a completion, if it fails.
    if batch.len() > qp.send_depth - qp.send_pending {
        return Err(PostError::Full);
    }
    match qp.transport {
        Transport::Ud => check_datagrams(qp, &port.regions, &port.addresses, batch)?,
        Transport::Uc | Transport::Rc => {
            let mut batch = batch.iter();
            batch.try_for_each(|wr| check(qp, &port.regions, wr))?;
        }
    }
    match qp.transport {
        Transport::Ud => post_datagrams(port, id, batch),
        Transport::Uc | Transport::Rc => post_connected(port, id, batch)?,
    }
    Ok(())
}

/// Checks whether a batch of datagrams may be posted: every error that is the caller's own mistake.
#[inline]
fn check_datagrams(
    qp: &Qp,
    regions: &Slab<Region>,
    addresses: &Slab<Address>,
    batch: &[SendWr<'_>],
) -> Result<(), PostError> {
    let mut known = None;
    for wr in batch {
        let SendOp::Send { payload, to, .. } = &wr.op else {
            return Err(PostError::Transport(qp.transport));
        };
        // Looked up once for a run of them.
        if known.is_none() || *to != known {
            let address = to.and_then(|to| addresses.get(to.0));
            if address.is_none_or(|address| address.qp != qp.id) {
                return Err(PostError::Transport(qp.transport));
            }
            known = *to;
        }
        check_payload(qp, regions, payload, DATAGRAM_BYTES_MAX)?;
    }
    Ok(())
}

/// Checks whether `wr` may be posted to a connected queue pair.
#[inline]
fn check(qp: &Qp, regions: &Slab<Region>, wr: &SendWr<'_>) -> Result<(), PostError> {
    match (&wr.op, qp.transport) {
        (
            SendOp::Write { payload, .. }
            | SendOp::Send {
                payload, to: None, ..
            },
            Transport::Rc | Transport::Uc,
        ) => check_payload(qp, regions, payload, MESSAGE_BYTES_MAX),
        (SendOp::Read { into, .. }, Transport::Rc) if into.len <= READ_BYTES_MAX => {
            check_local(qp, regions, *into)
        }
        (SendOp::FetchAdd { into, .. } | SendOp::CompareSwap { into, .. }, Transport::Rc)
            if into.len == 8 && into.offset.is_multiple_of(8) =>
        {
            check_local(qp, regions, *into)
        }
        (
            SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. },
            Transport::Rc,
        ) => Err(PostError::Bounds),
        _ => Err(PostError::Transport(qp.transport)),
    }
}

#[inline]
fn check_payload(
    qp: &Qp,
    regions: &Slab<Region>,
    payload: &Payload<'_>,
    max: usize,
) -> Result<(), PostError> {
    let inside = match payload {
        Payload::Words(words) => words.len() <= INLINE_BYTES_MAX / 8,
        Payload::Inline(bytes) => bytes.len() <= INLINE_BYTES_MAX,
        Payload::Region(from) => from.len <= max && check_local(qp, regions, *from).is_ok(),
    };
    if inside {
        Ok(())
    } else {
        Err(PostError::Bounds)
    }
}
const _: () = assert!(INLINE_BYTES_MAX <= DATAGRAM_BYTES_MAX);

fn check_local(qp: &Qp, regions: &Slab<Region>, at: Local) -> Result<(), PostError> {
    let found = local(regions, qp.pd, (at.region, at.offset, at.len));
    found.map(|_| ()).ok_or(PostError::Bounds)
}

/// UD: each SEND goes to the ring of its address; a ring without room loses it.
#[inline(never)]
fn post_datagrams(port: &mut ShmPort, id: QpId, batch: &[SendWr<'_>]) {
    let ShmPort {
        qps,
        cqs,
        regions,
        addresses,
        outbounds,
        drops,
        doorbell,
        ..
    } = port;
    let Some(qp) = qps.get_mut(id.0) else {
        return;
    };
    let (mut known, mut target) = (None, None);
    for wr in batch {
        let SendOp::Send { payload, imm, to } = &wr.op else {
            continue;
        };
        // Looked up once for a run of datagrams to one address.
        if known.is_none() || *to != known {
            known = *to;
            let address = to.and_then(|to| addresses.get(to.0));
            target = address.and_then(|address| {
                let outbound = outbounds.get_mut(address.outbound?)?;
                doorbell.touch(outbound);
                Some((&mut outbound.ring, address.stamp))
            });
        }
        if let Some((ring, stamp)) = &mut target {
            let control = Control::new(payload.len(), *imm).stamped(*stamp);
            if push(ring, control, payload, regions, qp.pd).is_err() {
                lost_for_room(ring, drops);
            }
        } else {
            // UD reports no loss to the sender; the counter does.
            drops.count(DropReason::NoPeer);
        }
        if wr.signaled {
            // Sent, which is not received: a datagram that was dropped above completes, too.
            complete(qp, cqs, wr, Some(Status::Success));
        }
    }
}

/// Puts one message into a ring.
#[inline(always)]
fn push(
    ring: &mut RingProducer<Span>,
    control: Control,
    payload: &Payload<'_>,
    regions: &Slab<Region>,
    pd: u32,
) -> Result<(), Full> {
    match payload {
        Payload::Words(words) if words.len() <= CELL_PAYLOAD / 8 => ring.push_small(control, words),
        _ => push_bytes(ring, control, &bytes_of(payload, regions, pd)),
    }
}

#[inline(never)]
fn push_bytes(
    ring: &mut RingProducer<Span>,
    control: Control,
    from: &PayloadBytes<'_>,
) -> Result<(), Full> {
    if control.is_small() {
        ring.push_small(control, &from.line(0)[..CELL_PAYLOAD / 8])
    } else {
        ring.push_long(control, |n| from.line(n))
    }
}

#[cold]
fn lost_for_room(ring: &mut RingProducer<Span>, drops: &mut Drops) {
    drops.count(DropReason::RingFull);
    if ring.liar {
        ring.liar = false;
        drops.count(DropReason::BadCounter);
    }
}

/// RC and UC: one peer, looked up once for the batch.
#[inline(never)]
fn post_connected(port: &mut ShmPort, id: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
    let ShmPort {
        pds,
        qps,
        cqs,
        regions,
        outbounds,
        drops,
        doorbell,
        ..
    } = port;
    let qp = qps.get_mut(id.0).ok_or(PostError::UnknownQp)?;
    let (Some(pd), Some(peer)) = (pds.get(qp.pd), qp.peer) else {
        return Err(PostError::UnknownQp);
    };
    // Once for the batch: a peer that fails during it may still get the rest, as packets on their way
    // would.
    let listens = peer.listens(pd);
    let outbound = peer.outbound.and_then(|ring| outbounds.get_mut(ring));
    let mut ring = outbound.map(|outbound| &mut outbound.ring);
    // Before the doorbell and any effect: a batch that is refused leaves nothing behind.
    if let (Transport::Rc, true, Some(ring)) = (qp.transport, listens, &mut ring) {
        reserve(ring, drops, batch)?;
    }
    // Also for a batch of WRITEs: a host sleeps until something arrives in its memory, not only
    // messages.
    doorbell.touch_pd(qp.pd);
    let mut wire = ConnectedBatch {
        pd,
        regions,
        ring,
        drops,
        listens,
    };
    let mut rest = batch;
    loop {
        // Behind a request that failed everything is flushed.
        if listens && qp.state != QpState::Error {
            rest = write_words(qp, pd, rest);
        }
        let Some((wr, behind)) = rest.split_first() else {
            break;
        };
        rest = behind;
        let status = wire.perform(qp, wr);
        // A failed request completes even if it is unsignaled, as the verbs have it.
        if wr.signaled || status != Some(Status::Success) {
            complete(qp, cqs, wr, status);
        }
    }
    Ok(())
}

/// Reserves room for a batch. RC loses nothing: a batch that does not fit into the peer's ring is
/// refused whole.
fn reserve(
    ring: &mut RingProducer<Span>,
    drops: &mut Drops,
    batch: &[SendWr<'_>],
) -> Result<(), PostError> {
    let (mut cells, mut lines) = (0, 0);
    for wr in batch {
        match &wr.op {
            SendOp::Send { payload, .. } => {
                cells += 1;
                lines += RingProducer::<Span>::lines_for(payload.len());
            }
            SendOp::Write { imm: Some(_), .. } => cells += 1,
            _ => (),
        }
    }
    if cells > 0 && ring.reserve(cells, lines).is_err() {
        if std::mem::take(&mut ring.liar) {
            drops.count(DropReason::BadCounter);
        }
        return Err(PostError::Full);
    }
    Ok(())
}

/// Context of a connected queue pair's batch.
struct ConnectedBatch<'a> {
    pd: &'a Pd,
    regions: &'a Slab<Region>,
    /// `None`: the peer accepts no messages.
    ring: Option<&'a mut RingProducer<Span>>,
    drops: &'a mut Drops,
    /// Whether the peer's queue pair exists and is ready.
    listens: bool,
}

/// Executes the first WRITEs of whole words into one region, the common case alone, and returns what is
/// behind them. The region is looked up once for all of them: one that its owner closes meanwhile may still
/// get the rest, as packets on their way would.
#[inline(always)]
fn write_words<'a, 'b>(qp: &mut Qp, pd: &Pd, batch: &'a [SendWr<'b>]) -> &'a [SendWr<'b>] {
    let Some((_, Remote { rkey, .. })) = batch.first().and_then(plain_words) else {
        return batch;
    };
    let Some(region) = qp.reach_whole(pd, rkey, AccessRight::WRITE) else {
        return batch;
    };
    let mut rest = batch;
    while let Some((wr, behind)) = rest.split_first()
        && let Some((words, to)) = plain_words(wr)
        && to.rkey == rkey
        && let Some(offset) = region.offset(to.addr, words.len() * 8)
        // An address between words is left to `write`, which merges into the words at both ends.
        && offset.is_multiple_of(8)
    {
        // A line of constant length is stored without a loop.
        match <&[u64; 8]>::try_from(words) {
            Ok(line) => region.span.write_words(offset / 8, line),
            Err(_) => region.span.write_words(offset / 8, words),
        }
        rest = behind;
    }
    rest
}

/// Returns words and destination of a WRITE that needs no completion.
#[inline(always)]
fn plain_words<'b>(wr: &SendWr<'b>) -> Option<(&'b [u64], Remote)> {
    match &wr.op {
        SendOp::Write {
            payload: Payload::Words(words),
            to,
            imm: None,
        } if !wr.signaled && !wr.fence => Some((words, *to)),
        _ => None,
    }
}

impl ConnectedBatch<'_> {
    /// Executes one work request, behind the READs that it may not overtake; returns how it ended.
    /// `None`: a READ, which is only posted.
    #[inline(never)]
    fn perform(&mut self, qp: &mut Qp, wr: &SendWr<'_>) -> Option<Status> {
        let atomic = matches!(wr.op, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
        // A READ is copied when it is polled, an atomic is executed here: without this it would
        // overtake the READ, which would then show its effect.
        if (wr.fence || atomic) && !qp.reads.is_empty() {
            read::finish(qp, self.pd, self.regions);
        }
        if qp.state == QpState::Error {
            return Some(Status::Flushed);
        }
        if let (SendOp::Read { into, from }, true) = (&wr.op, self.listens) {
            read::post(qp, self.pd, *into, *from);
            return None;
        }
        let status = self.execute(qp, wr);
        if status != Status::Success {
            // The READs before a request that fails are still executed; only what is behind it is
            // flushed.
            read::finish(qp, self.pd, self.regions);
            fail(qp, self.pd);
        }
        Some(status)
    }

    /// Executes any verb but READ. UC does not report a loss to the caller.
    #[inline(never)]
    fn execute(&mut self, qp: &mut Qp, wr: &SendWr<'_>) -> Status {
        if !self.listens {
            return self.lost(qp, DropReason::NoPeer, Status::RetryExceeded);
        }
        match &wr.op {
            SendOp::Write { payload, to, imm } => {
                // The memory first: the message announces it.
                let status = self.write(qp, payload, *to);
                match imm {
                    Some(imm) if status == Status::Success => {
                        let control = Control::new(payload.len(), Some(*imm)).written();
                        // The bytes are in the region; the control word has their length.
                        self.message(qp, control, &Payload::Words(&[]))
                    }
                    _ => status,
                }
            }
            SendOp::Send { payload, imm, .. } => {
                let control = Control::new(payload.len(), *imm);
                self.message(qp, control, payload)
            }
            // Posted before, to a peer that listens.
            SendOp::Read { .. } => Status::RetryExceeded,
            SendOp::FetchAdd { into, at, add } => {
                self.atomic(qp, *into, *at, |span, word| span.fetch_add(word, *add))
            }
            SendOp::CompareSwap {
                into,
                at,
                expected,
                new,
            } => self.atomic(qp, *into, *at, |span, word| {
                span.compare_swap(word, *expected, *new)
            }),
        }
    }

    fn write(&mut self, qp: &mut Qp, payload: &Payload<'_>, to: Remote) -> Status {
        let len = payload.len();
        let (pd, at) = (qp.pd, (to.addr, len));
        let Some((span, offset)) = qp.reach(self.pd, to.rkey, at, AccessRight::WRITE) else {
            return self.lost(qp, DropReason::Refused, Status::RemoteAccess);
        };
        let from = bytes_of(payload, self.regions, pd);
        from.write_to(span, offset, len);
        Status::Success
    }

    fn message(&mut self, qp: &Qp, control: Control, payload: &Payload<'_>) -> Status {
        let Some(ring) = &mut self.ring else {
            return self.lost(qp, DropReason::RingFull, Status::ReceiverNotReady);
        };
        match push(ring, control, payload, self.regions, qp.pd) {
            Ok(()) => Status::Success,
            Err(Full) => self.lost(qp, DropReason::RingFull, Status::ReceiverNotReady),
        }
    }

    fn atomic(
        &mut self,
        qp: &mut Qp,
        into: Local,
        at: Remote,
        change: impl FnOnce(&Span, usize) -> u64,
    ) -> Status {
        // The region begins on a line, so the offset is as aligned as the address.
        if !at.addr.is_multiple_of(8) {
            return Status::RemoteInvalid;
        }
        // Before the word changes: without a place for the result the atomic must not be executed.
        let Some(to) = local(self.regions, qp.pd, (into.region, into.offset, 8)) else {
            return Status::LocalError;
        };
        let word = (at.addr, 8);
        let Some((span, offset)) = qp.reach(self.pd, at.rkey, word, AccessRight::ATOMIC) else {
            return Status::RemoteAccess;
        };
        let old = change(span, offset / 8);
        to.store(into.offset / 8, old);
        Status::Success
    }

    /// Returns `status` for RC, which fails; for UC counts a loss and returns success.
    #[cold]
    fn lost(&mut self, qp: &Qp, reason: DropReason, status: Status) -> Status {
        if qp.transport == Transport::Rc {
            return status;
        }
        self.drops.count(reason);
        Status::Success
    }
}

/// Returns the bytes of `payload`; none for a local range that has become invalid since it was
/// checked.
#[inline]
fn bytes_of<'a>(payload: &Payload<'a>, regions: &'a Slab<Region>, pd: u32) -> PayloadBytes<'a> {
    match *payload {
        Payload::Words(words) => PayloadBytes::Words(words),
        Payload::Inline(bytes) => PayloadBytes::Inline(bytes),
        Payload::Region(from) => match local(regions, pd, (from.region, from.offset, from.len)) {
            Some(span) => PayloadBytes::Span(span, from.offset, from.len),
            None => PayloadBytes::Words(&[]),
        },
    }
}

#[inline(never)]
fn complete(qp: &mut Qp, cqs: &mut Slab<Cq>, wr: &SendWr<'_>, status: Option<Status>) {
    let opcode = wr.op.opcode();
    if let Some(cq) = cqs.get_mut(qp.send_cq.0) {
        // Unsignaled READs and failed requests, too, take a place until a poll.
        qp.send_pending += 1;
        cq.sent.push_back(Sent {
            wr_id: wr.wr_id,
            qp: qp.id,
            opcode,
            signaled: wr.signaled,
            status,
        });
    }
}
