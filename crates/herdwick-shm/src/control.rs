//! Creation and destruction of a port's objects: domains, regions, queues, queue pairs, addresses.
//! A failed creation leaves nothing behind.

use std::{collections::VecDeque, io};

use herdwick_fabric::{
    Access, AddressHandle, ConnectError, ControlError, CqId, CqSpec, Endpoint, PdId, QpId, QpSpec,
    QpState, Qpn, RegionId, RegionSpec, Rkey, Scope, Slab, Source, Transport,
};
use herdwick_mem::Span;

use crate::{
    files::Files,
    layout::{DomainSide, QP_READY, QpAddress, REGIONS},
    outbound::Outbound,
    pd::{OutboundError, Pd, Shortage},
    port::ShmPort,
    qp::{Address, Cq, OPENED, Peer, Qp, Region},
    region::PeerRegion,
    ring::{Control, RingConsumer, Shape},
};

pub(crate) const PD: &str = "protection domain";
const QP: &str = "queue pair";
const CQ: &str = "completion queue";
const MALFORMED: ConnectError = ConnectError::Endpoint("it is malformed");

pub(crate) fn limit(what: &'static str, limit: usize) -> ControlError {
    ControlError::Limit { what, limit }
}

pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> ControlError {
    move |source| ControlError::System { what, source }
}

pub(crate) fn short(shortage: Shortage) -> ControlError {
    match shortage {
        Shortage::Limit(what, limit) => ControlError::Limit { what, limit },
        Shortage::System(what, source) => ControlError::System { what, source },
    }
}

/// Destroys a domain: the objects in it, then what refers to them. Returns its files, whose memory
/// a host must give back.
pub(crate) fn destroy_pd(port: &mut ShmPort, pd: PdId) -> Result<Option<Files>, ControlError> {
    // Looked at before anything changes: an unknown domain changes nothing.
    let gone = port.pds.get(pd.0).ok_or(ControlError::Unknown(PD))?;
    // Closing it would not: the client holds the same eventfd, so epoll would keep it (epoll(7)).
    port.wakeup_set.take_down(&gone.wakeup);
    let ids = |of: Vec<u32>| of.into_iter();
    let qps = port.qps.iter().filter(|(_, qp)| qp.pd == pd.0);
    for id in ids(qps.map(|(id, _)| id).collect()) {
        destroy_qp(port, QpId(id))?;
    }
    let regions = port.regions.iter().filter(|(_, region)| region.pd == pd.0);
    for id in ids(regions.map(|(id, _)| id).collect()) {
        port.regions.remove(id);
    }
    let addresses = port.addresses.iter().filter(|(_, to)| to.pd == pd.0);
    for id in ids(addresses.map(|(id, _)| id).collect()) {
        port.addresses.remove(id);
    }
    let Some(mut gone) = port.pds.remove(pd.0) else {
        return Ok(None);
    };
    for ring in gone.outbound.iter().flatten() {
        // The rings into the domain's queue pairs lie in its files, which go with it.
        port.outbounds.remove(*ring);
    }
    Ok(gone.end())
}

pub(crate) fn allocate_region(
    port: &mut ShmPort,
    id: PdId,
    spec: &RegionSpec,
) -> Result<RegionId, ControlError> {
    port.pds.get(id.0).ok_or(ControlError::Unknown(PD))?;
    // Before memory is taken, which would have to be given back.
    if !port.regions.has_room() {
        return Err(limit("regions", port.regions.capacity()));
    }
    let scope = scope(port, id, spec.scope)?;
    let pd = port.pds.get_mut(id.0).ok_or(ControlError::Unknown(PD))?;
    let random = random()?;
    // Memory that no peer accesses need not lie in a shared file, where it would count against the
    // domain's size.
    let region = if spec.access == Access::LOCAL {
        let span = Span::anonymous(spec.len).and_then(|span| trim(&span, spec.len));
        Region {
            pd: id.0,
            rkey: rkey(random, 0),
            span: span.map_err(|source| ControlError::System {
                what: "allocating memory",
                source,
            })?,
            place: None,
            shared: None,
            read_only: false,
        }
    } else {
        let opened = pd.open_region(spec.len, spec.access, scope, |entry| rkey(random, entry));
        let (place, rkey, span) = opened.map_err(short)?;
        Region {
            pd: id.0,
            rkey,
            span,
            place: Some(place),
            shared: None,
            read_only: false,
        }
    };
    let inserted = port.regions.insert(region);
    inserted
        .map(RegionId)
        .map_err(|_| limit("regions", port.regions.capacity()))
}

/// Returns the number of the queue pair that a region entry names; 0: any.
pub(crate) fn scope(port: &ShmPort, pd: PdId, scope: Scope) -> Result<u32, ControlError> {
    match scope {
        Scope::Pd => Ok(0),
        Scope::Qp(qp) => {
            let qp = port.qps.get(qp.0).filter(|qp| qp.pd == pd.0);
            Ok(qp.ok_or(ControlError::Unknown(QP))?.qpn.0)
        }
    }
}

/// Returns the first `len` bytes, rounded up to words.
fn trim(span: &Span, len: usize) -> io::Result<Span> {
    let len = len.checked_next_multiple_of(8);
    let slice = len.and_then(|len| span.slice(0..len).ok());
    slice.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

pub(crate) fn random() -> Result<u32, ControlError> {
    getrandom::u32().map_err(|error| ControlError::System {
        what: "drawing a random number",
        source: io::Error::other(error),
    })
}

/// Makes an rkey: its low bits are the number of its entry in the control area; the others are
/// random, and not all zero.
#[expect(clippy::cast_possible_truncation, reason = "entry < REGIONS = 64")]
pub(crate) fn rkey(random: u32, entry: usize) -> Rkey {
    let mask = REGIONS as u32 - 1;
    // An rkey of 0 would match the word of a closed entry.
    let drawn = match random & !mask {
        0 => REGIONS as u32,
        drawn => drawn,
    };
    Rkey(drawn | entry as u32 & mask)
}

pub(crate) fn create_cq(port: &mut ShmPort, spec: &CqSpec) -> Result<CqId, ControlError> {
    let cq = Cq {
        depth: spec.depth,
        reserved: 0,
        sent: VecDeque::new(),
        receivers: Vec::with_capacity(port.qps.capacity()),
        next: 0,
        users: 0,
    };
    let inserted = port.cqs.insert(cq);
    inserted
        .map(CqId)
        .map_err(|_| limit("completion queues", port.cqs.capacity()))
}

pub(crate) fn destroy_cq(port: &mut ShmPort, id: CqId) -> Result<(), ControlError> {
    let cq = port.cqs.get(id.0).ok_or(ControlError::Unknown(CQ))?;
    if cq.users > 0 {
        return Err(ControlError::InUse(CQ));
    }
    port.cqs.remove(id.0);
    Ok(())
}

pub(crate) fn create_qp(port: &mut ShmPort, spec: &QpSpec) -> Result<QpId, ControlError> {
    let recvs_max = match spec.transport {
        Transport::Ud => Shape::DATAGRAM_RECVS_MAX,
        Transport::Rc | Transport::Uc => Shape::RECVS_MAX,
    };
    if spec.recv_depth > recvs_max {
        return Err(limit("outstanding RECVs", recvs_max));
    }
    let full = limit("queue pairs", port.qps.capacity());
    let id = QpId(port.qps.next_id().ok_or(full)?);
    // Counted twice if both are one queue, which then needs the sum of the depths.
    reserve(port, spec.send_cq, spec.send_depth)?;
    let reserved = reserve(port, spec.recv_cq, spec.recv_depth);
    let made = reserved.and_then(|()| {
        let made = make_qp(port, id, spec);
        if made.is_err() {
            release(port, spec.recv_cq, spec.recv_depth);
        }
        made
    });
    let qp = match made {
        Ok(qp) => qp,
        Err(error) => {
            release(port, spec.send_cq, spec.send_depth);
            return Err(error);
        }
    };
    if let Some(cq) = port.cqs.get_mut(spec.send_cq.0) {
        // Now, so that a post never allocates.
        cq.sent.reserve(cq.reserved);
    }
    // One that accepts no messages is never polled.
    if let (Some(cq), true) = (port.cqs.get_mut(spec.recv_cq.0), spec.recv_depth > 0) {
        cq.receivers.push(id);
    }
    let inserted = port.qps.insert(qp);
    inserted
        .map(QpId)
        .map_err(|_| limit("queue pairs", port.qps.capacity()))
}

/// Reserves `depth` entries of a completion queue for a queue pair.
fn reserve(port: &mut ShmPort, cq: CqId, depth: usize) -> Result<(), ControlError> {
    let cq = port.cqs.get_mut(cq.0).ok_or(ControlError::Unknown(CQ))?;
    // The caller chooses the depth.
    let reserved = cq.reserved.saturating_add(depth);
    if reserved > cq.depth {
        return Err(limit("completions of the queue", cq.depth));
    }
    cq.reserved = reserved;
    cq.users += 1;
    Ok(())
}

fn release(port: &mut ShmPort, cq: CqId, depth: usize) {
    if let Some(cq) = port.cqs.get_mut(cq.0) {
        cq.reserved -= depth;
        cq.users -= 1;
    }
}

/// Makes the queue pair itself, with its line in the control area and its ring.
fn make_qp(port: &mut ShmPort, id: QpId, spec: &QpSpec) -> Result<Qp, ControlError> {
    let pd = port.pds.get_mut(spec.pd.0);
    let pd = pd.ok_or(ControlError::Unknown(PD))?;
    let (state, shape) = match spec.transport {
        Transport::Ud => (QpState::ReadyToSend, Shape::for_datagrams(spec.recv_depth)),
        Transport::Rc | Transport::Uc => (QpState::Init, Shape::for_messages(spec.recv_depth)),
    };
    let line = pd.take_line().map_err(short)?;
    // A queue pair without RECVs has no ring: peers cannot send to it.
    let ring = (spec.recv_depth > 0).then(|| pd.take_ring(line, shape));
    let ring = match ring.transpose() {
        Ok(ring) => ring,
        Err(shortage) => {
            pd.give_line(line);
            return Err(short(shortage));
        }
    };
    // 24 bits and never 0: the slab's generation in the upper byte, the index below.
    let qpn = Qpn((((id.0 >> 16) % 0xff + 1) << 16) | (id.0 & 0xffff));
    pd.show_qp(
        line,
        qpn,
        if state == QpState::ReadyToSend {
            QP_READY
        } else {
            0
        },
    );
    let place = ring.as_ref().map(|(place, ..)| *place);
    Ok(Qp {
        id,
        qpn,
        pd: spec.pd.0,
        transport: spec.transport,
        state,
        send_cq: spec.send_cq,
        recv_cq: spec.recv_cq,
        send_depth: spec.send_depth,
        send_pending: 0,
        recv_depth: spec.recv_depth,
        recvs: VecDeque::with_capacity(spec.recv_depth),
        line,
        place,
        inbox: ring.map(|(place, ring, taken)| RingConsumer::new(ring, taken, place.shape)),
        peer: None,
        reads: match spec.transport {
            // Only RC carries READs. Allocated now, so that a post never does.
            Transport::Rc => VecDeque::with_capacity(spec.send_depth),
            Transport::Uc | Transport::Ud => VecDeque::new(),
        },
        opened: [PeerRegion::NOTHING; OPENED],
    })
}

pub(crate) fn destroy_qp(port: &mut ShmPort, id: QpId) -> Result<(), ControlError> {
    let qp = port.qps.remove(id.0).ok_or(ControlError::Unknown(QP))?;
    for (_, pd) in port.pds.iter_mut() {
        // In every domain: a host's UD queue pair sends into those of other clients as well.
        pd.strike_sender(qp.qpn, &mut port.outbounds);
    }
    if let Some(pd) = port.pds.get_mut(qp.pd) {
        pd.give_line(qp.line);
    }
    let addresses = port.addresses.iter().filter(|(_, to)| to.qp == id);
    for address in addresses.map(|(id, _)| id).collect::<Vec<_>>() {
        port.addresses.remove(address);
    }
    if let Some(cq) = port.cqs.get_mut(qp.send_cq.0) {
        cq.sent.retain(|sent| sent.qp != id);
    }
    if let Some(cq) = port.cqs.get_mut(qp.recv_cq.0) {
        cq.receivers.retain(|receiver| *receiver != id);
        // The index may be behind the end now.
        cq.next = 0;
    }
    release(port, qp.send_cq, qp.send_depth);
    release(port, qp.recv_cq, qp.recv_depth);
    Ok(())
}

pub(crate) fn endpoint(port: &ShmPort, qp: QpId) -> Result<Endpoint, ControlError> {
    let qp = port.qps.get(qp.0).ok_or(ControlError::Unknown(QP))?;
    let pd = port.pds.get(qp.pd).ok_or(ControlError::Unknown(PD))?;
    let address = QpAddress {
        side: pd.side,
        transport: qp.transport,
        line: qp.line,
        qpn: qp.qpn,
        token: pd.layout.token,
        ring: qp.place,
    };
    Ok(address.encode())
}

pub(crate) fn connect(port: &mut ShmPort, id: QpId, peer: &Endpoint) -> Result<(), ConnectError> {
    let qp = port.qps.get_mut(id.0).ok_or(ControlError::Unknown(QP))?;
    if qp.transport == Transport::Ud {
        return Err(ConnectError::Transport(qp.transport));
    }
    if qp.state != QpState::Init {
        return Err(ConnectError::State(qp.state));
    }
    let pd = port.pds.get_mut(qp.pd).ok_or(ControlError::Unknown(PD))?;
    let peer = read(peer, qp.transport, pd.side)?;
    // A connected queue pair uses the rkeys of its own domain's control area; those of another domain
    // are other memory.
    if peer.token != pd.layout.token {
        return Err(ConnectError::Endpoint("it is of another protection domain"));
    }
    qp.peer = Some(Peer {
        line: peer.line,
        qpn: peer.qpn,
        outbound: open_outbound(&mut port.outbounds, (qp.pd, pd), &peer)?,
    });
    qp.state = QpState::ReadyToSend;
    pd.show_qp(qp.line, qp.qpn, QP_READY);
    Ok(())
}

pub(crate) fn create_address(
    port: &mut ShmPort,
    id: QpId,
    peer: &Endpoint,
) -> Result<AddressHandle, ConnectError> {
    let qp = port.qps.get(id.0).ok_or(ControlError::Unknown(QP))?;
    if qp.transport != Transport::Ud {
        return Err(ConnectError::Transport(qp.transport));
    }
    if !port.addresses.has_room() {
        return Err(limit("address handles", port.addresses.capacity()).into());
    }
    let side = port.pds.get(qp.pd).ok_or(ControlError::Unknown(PD))?.side;
    let peer = read(peer, Transport::Ud, side)?;
    let found = port.pds.iter_mut().find(|(id, pd)| {
        pd.layout.token == peer.token && (pd.side == DomainSide::Host || *id == qp.pd)
    });
    let elsewhere = ConnectError::Endpoint("it is of a protection domain out of reach");
    let (pd_id, pd) = found.ok_or(elsewhere)?;
    let outbound = open_outbound(&mut port.outbounds, (pd_id, pd), &peer)?;
    let index = pd
        // After everything that can fail for the peer's sake: a number is taken only for an address
        // that will exist.
        .enrol_sender(qp.qpn, &mut port.outbounds)
        .map_err(short)?;
    let address = Address {
        qp: id,
        // The receiver's domain, whose peer is to be woken; a host's sender may be in another.
        pd: pd_id,
        outbound,
        stamp: Control::stamp(index),
    };
    let inserted = port.addresses.insert(address);
    let full = |_| limit("address handles", port.addresses.capacity()).into();
    inserted.map(AddressHandle).map_err(full)
}

/// Returns the number that the peer's domain lists for the queue pair.
pub(crate) fn source(peer: &Endpoint) -> Result<Source, ConnectError> {
    let peer = QpAddress::decode(peer).ok_or(MALFORMED)?;
    match peer.transport {
        Transport::Ud => Ok(Source { qpn: peer.qpn }),
        transport => Err(ConnectError::Transport(transport)),
    }
}

/// Decodes a peer's endpoint: it must be of the other side and of the same transport.
fn read(
    peer: &Endpoint,
    transport: Transport,
    side: DomainSide,
) -> Result<QpAddress, ConnectError> {
    let peer = QpAddress::decode(peer).ok_or(MALFORMED)?;
    // Both ends of a ring are never on one side: each file has one writer.
    if peer.side == side {
        return Err(ConnectError::Endpoint("it is of this side of its domain"));
    }
    if peer.transport != transport {
        return Err(ConnectError::Endpoint("it is of another transport"));
    }
    Ok(peer)
}

/// Opens the ring to a queue pair of the peer, or finds it: all senders on this side share one. A
/// queue pair that has taken the line of an earlier one takes the place of its ring, too.
fn open_outbound(
    outbounds: &mut Slab<Outbound>,
    (id, pd): (u32, &mut Pd),
    peer: &QpAddress,
) -> Result<Option<u32>, ConnectError> {
    let Some(place) = peer.ring else {
        return Ok(None);
    };
    if let Some(open) = pd.outbound[peer.line] {
        // The line may have been reused since: then the old ring's counters are of another queue
        // pair.
        if outbounds.get(open).is_some_and(|o| o.qpn == peer.qpn) {
            return Ok(Some(open));
        }
        outbounds.remove(open);
        pd.outbound[peer.line] = None;
    }
    let ring = pd.reach_ring(peer.line, place);
    let ring = ring.map_err(|error| match error {
        OutboundError::Place => ConnectError::Endpoint("its ring is out of place"),
        OutboundError::System(source) => ControlError::System {
            what: "populating shared memory",
            source,
        }
        .into(),
    })?;
    let opened = outbounds.insert(Outbound {
        qpn: peer.qpn,
        pd: id,
        touched: 0,
        ring,
    });
    let opened = opened.map_err(|_| limit("rings to peers", outbounds.capacity()))?;
    pd.outbound[peer.line] = Some(opened);
    Ok(Some(opened))
}
