//! The control verbs: making, connecting and destroying objects.

use std::{collections::VecDeque, io, sync::Arc};

use herdwick_fabric::{
    Access, AddressHandle, ConnectError, ControlError, CqId, CqSpec, Endpoint, PdId, Psn, QpId,
    QpSpec, QpState, Qpn, RegionId, RegionSpec, Scope, Transport,
};
use herdwick_mem::{Mapping, Span};

use crate::{
    complete::put_aside,
    endpoint::{Class, Fetches, Peer, kind, mtu_number},
    objects::{Address, Outstanding, PortCq, PortQp, Region},
    place::{LinkLayer, Place},
    port::VerbsPort,
    raw::{self, Ah, Mr, QpShape},
    sys,
};

/// Regions at least this large request huge pages.
const HUGE: usize = 2 << 20;

/// Local ACK timeout: 4.096 us << 14 = 67 ms.
const TIMEOUT: u8 = 14;
/// Retransmissions before a connection fails: about half a second. With rdma_rxe, 7 would mean no
/// limit.
const RETRIES: u8 = 6;
/// Retries after RNR NAKs; 7 would mean no limit.
const RNR_RETRIES: u8 = 6;
/// RNR timer code 26: 81.92 ms between retries, so about half a second as well. A worker that is
/// not scheduled posts no RECVs meanwhile, and should not lose its clients.
const RNR_TIMER: u8 = 26;
/// Linux's default TTL.
const HOP_LIMIT: u8 = 64;

pub(crate) const NO_QP: ControlError = ControlError::Unknown("queue pair");
const NO_PD: ControlError = ControlError::Unknown("protection domain");
const NO_CQ: ControlError = ControlError::Unknown("completion queue");

pub(crate) fn limit(what: &'static str, limit: usize) -> ControlError {
    ControlError::Limit { what, limit }
}

pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> ControlError {
    move |source| ControlError::System { what, source }
}

pub(crate) fn destroy_pd(port: &mut VerbsPort, pd: PdId) -> Result<(), ControlError> {
    port.pd(pd).ok_or(NO_PD)?;
    // Queue pairs first: they refer to the domain, and so keep it from being destroyed.
    let inside = port.qps.iter().filter(|(_, qp)| qp.pd == pd.0);
    for id in inside.map(|(_, qp)| qp.id).collect::<Vec<_>>() {
        destroy_qp(port, id)?;
    }
    let inside = port.regions.iter().filter(|(_, region)| region.pd == pd.0);
    for id in inside.map(|(id, _)| id).collect::<Vec<_>>() {
        port.regions.remove(id);
    }
    port.pds.remove(pd.0);
    Ok(())
}

pub(crate) fn allocate_region(
    port: &mut VerbsPort,
    id: PdId,
    spec: &RegionSpec,
) -> Result<RegionId, ControlError> {
    let memory = memory(spec.len).map_err(system("allocating a region"))?;
    // Cannot overflow: `memory` has mapped as much.
    let words = spec.len.next_multiple_of(8);
    let span = memory.slice(0..words);
    let span = span.map_err(|_| limit("bytes of a region", memory.len()))?;
    register(port, id, span, spec.access, spec.scope)
}

/// Registers memory with the device, in a domain of the port.
pub(crate) fn register(
    port: &mut VerbsPort,
    id: PdId,
    span: Span,
    rights: Access,
    scope: Scope,
) -> Result<RegionId, ControlError> {
    let pd = Arc::clone(port.pd(id).ok_or(NO_PD)?);
    let full = limit("regions", port.regions.capacity());
    if !port.regions.has_room() {
        return Err(full);
    }
    // That takes a type-2 memory window, which this provider does not make.
    if scope != Scope::Pd {
        return Err(ControlError::Unsupported("rkeys of a single queue pair"));
    }
    let mr = Mr::new(&pd, &span, access(rights));
    let mr = mr.map_err(system(
        "registering memory with the RDMA device (is the memlock limit high enough? see `ulimit -l`)",
    ))?;
    let region = Region { mr, span, pd: id.0 };
    port.regions.insert(region).map(RegionId).map_err(|_| full)
}

fn memory(len: usize) -> io::Result<Span> {
    let mapping = Mapping::anonymous(len)?;
    // Fewer pages also mean fewer entries in the translation cache of the device.
    if len >= HUGE {
        mapping.advise_huge();
    }
    Ok(Span::new(Arc::new(mapping)))
}

fn access(access: Access) -> i32 {
    let right = |granted, flag| if granted { flag } else { 0 };
    // Remote write and atomic rights require the local write right.
    sys::IBV_ACCESS_LOCAL_WRITE
        | right(access.remote_read, sys::IBV_ACCESS_REMOTE_READ)
        | right(access.remote_write, sys::IBV_ACCESS_REMOTE_WRITE)
        | right(access.remote_atomic, sys::IBV_ACCESS_REMOTE_ATOMIC)
}

pub(crate) fn create_cq(port: &mut VerbsPort, spec: &CqSpec) -> Result<CqId, ControlError> {
    let most = port.state.found.cq_depth_max;
    if spec.depth > most {
        return Err(limit("entries of a completion queue", most));
    }
    if !port.cqs.has_room() {
        return Err(limit("completion queues", port.cqs.capacity()));
    }
    // Drivers refuse a queue of no entries.
    let depth = i32::try_from(spec.depth.max(1)).unwrap_or(i32::MAX);
    let raw = raw::Cq::new(&port.channel, depth);
    let cq = PortCq {
        raw: raw.map_err(system("making a completion queue"))?,
        depth: spec.depth,
        claimed: 0,
        armed: false,
        // For all that the queue may hold, so that `put_aside` does not allocate.
        stash: VecDeque::with_capacity(spec.depth),
    };
    let id = port.cqs.insert(cq);
    id.map(CqId)
        .map_err(|_| limit("completion queues", port.cqs.capacity()))
}

/// Returns the entries that the two queues of a queue pair need of each completion queue.
fn claims(qp: (CqId, usize), recv: (CqId, usize)) -> [(CqId, usize); 2] {
    // One queue for both: the sum, so that the check sees all of it at once.
    if qp.0 == recv.0 {
        [(qp.0, qp.1 + recv.1), (recv.0, 0)]
    } else {
        [qp, recv]
    }
}

pub(crate) fn create_qp(port: &mut VerbsPort, spec: &QpSpec) -> Result<QpId, ControlError> {
    let capabilities = &port.state.found.capabilities;
    let (there, name) = match spec.transport {
        Transport::Rc => (capabilities.rc, "RC queue pairs"),
        Transport::Uc => (capabilities.uc, "UC queue pairs"),
        Transport::Ud => (capabilities.ud, "UD queue pairs"),
    };
    if !there {
        return Err(ControlError::Unsupported(name));
    }
    let most = port.state.found.queue_depth_max;
    if spec.send_depth.max(spec.recv_depth) > most {
        return Err(limit("entries of a work queue", most));
    }
    if !port.qps.has_room() {
        return Err(limit("queue pairs", port.qps.capacity()));
    }
    let claims = claims(
        (spec.send_cq, spec.send_depth),
        (spec.recv_cq, spec.recv_depth),
    );
    for (cq, count) in claims {
        let cq = port.cqs.get(cq.0).ok_or(NO_CQ)?;
        if cq.claimed + count > cq.depth {
            return Err(limit("entries of the completion queue", cq.depth));
        }
    }
    // Before the claims: if the device refuses, nothing has to be undone.
    let qp = make_qp(port, spec)?;
    for (cq, count) in claims {
        port.cqs.get_mut(cq.0).ok_or(NO_CQ)?.claimed += count;
    }
    let id = port.qps.insert(qp);
    id.map(QpId)
        .map_err(|_| limit("queue pairs", port.qps.capacity()))
}

fn make_qp(port: &VerbsPort, spec: &QpSpec) -> Result<PortQp, ControlError> {
    let pd = port.pd(spec.pd).ok_or(NO_PD)?;
    let cq = |id: CqId| port.cqs.get(id.0).map(|cq| &cq.raw).ok_or(NO_CQ);
    let depth = |depth| u32::try_from(depth).unwrap_or(u32::MAX);
    let shape = QpShape {
        kind: kind(spec.transport),
        sends: depth(spec.send_depth),
        recvs: depth(spec.recv_depth),
        inline_bytes: depth(port.state.bounds.inline),
    };
    let raw = raw::Qp::new(pd, cq(spec.send_cq)?, cq(spec.recv_cq)?, shape);
    let random = getrandom::u64().map_err(|error| ControlError::System {
        what: "drawing a random number",
        source: io::Error::other(error),
    })?;
    // 24 bits of PSN; 31 bits of Q_Key, because the high bit marks privileged ones.
    #[expect(clippy::cast_possible_truncation, reason = "random bits")]
    let (psn, qkey) = (random as u32 & 0xff_ffff, (random >> 32) as u32 >> 1);
    let mut qp = PortQp {
        raw: raw.map_err(system("making a queue pair"))?,
        // The id that `insert` will return: tokens of its work requests contain it.
        id: QpId(port.qps.next_id().unwrap_or(0)),
        pd: spec.pd.0,
        transport: spec.transport,
        send_cq: spec.send_cq,
        recv_cq: spec.recv_cq,
        state: QpState::Init,
        psn: Psn(psn),
        qkey,
        sends: Outstanding::new(spec.send_depth),
        recvs: Outstanding::new(spec.recv_depth),
    };
    // If it fails, `qp` is dropped, which destroys the device's object.
    initialise(&mut qp, &port.place).map_err(system("readying a queue pair"))?;
    Ok(qp)
}

/// Moves a queue pair from RESET to INIT; a UD queue pair, which needs no peer, on to RTS.
fn initialise(qp: &mut PortQp, place: &Place) -> io::Result<()> {
    let mut init = sys::QpAttr {
        qp_state: sys::IBV_QPS_INIT,
        port_num: place.port.number,
        pkey_index: place.pkey_index,
        ..sys::QpAttr::default()
    };
    let mask = sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT;
    if qp.transport != Transport::Ud {
        // The region's rights decide; UC has no READs and atomics.
        init.qp_access_flags = match qp.transport {
            Transport::Rc => access(Access::ALL).cast_unsigned(),
            _ => access(Access::WRITE).cast_unsigned(),
        };
        return qp.raw.modify(init, mask | sys::IBV_QP_ACCESS_FLAGS);
    }
    init.qkey = qp.qkey;
    qp.raw.modify(init, mask | sys::IBV_QP_QKEY)?;
    let ready = |state| sys::QpAttr {
        qp_state: state,
        sq_psn: qp.psn.0,
        ..sys::QpAttr::default()
    };
    qp.raw.modify(ready(sys::IBV_QPS_RTR), sys::IBV_QP_STATE)?;
    let mask = sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN;
    qp.raw.modify(ready(sys::IBV_QPS_RTS), mask)?;
    qp.state = QpState::ReadyToSend;
    Ok(())
}

pub(crate) fn destroy_qp(port: &mut VerbsPort, id: QpId) -> Result<(), ControlError> {
    let qp = port.qps.get(id.0).ok_or(NO_QP)?;
    let sends = (qp.send_cq, qp.sends.depth());
    let claims = claims(sends, (qp.recv_cq, qp.recvs.depth()));
    let of_it = port
        .addresses
        .iter()
        .filter(|(_, address)| address.qp == id);
    for address in of_it.map(|(id, _)| id).collect::<Vec<_>>() {
        port.addresses.remove(address);
    }
    // Destroyed before its completions are looked for: afterwards none is added.
    drop(port.qps.remove(id.0));
    for (cq, count) in claims {
        let VerbsPort {
            cqs,
            qps,
            faults,
            scratch,
            ..
        } = port;
        let Some(cq) = cqs.get_mut(cq.0) else {
            continue;
        };
        // Some drivers leave completions of the queue pair in the queue, where they would take up
        // entries promised to others.
        // The stash must not exceed its capacity.
        let most = cq.depth - cq.stash.len().min(cq.depth);
        put_aside(cq, qps, faults, scratch, most);
        cq.stash.retain(|completion| completion.qp != id);
        cq.claimed -= count;
    }
    Ok(())
}

pub(crate) fn endpoint(port: &VerbsPort, qp: QpId) -> Result<Endpoint, ControlError> {
    let qp = port.qps.get(qp.0).ok_or(NO_QP)?;
    let place = &port.place;
    let selector = &port.state.selector;
    let peer = Peer {
        transport: qp.transport,
        link: place.port.link,
        mtu: mtu_number(place.port.mtu),
        qpn: Qpn(qp.raw.number()),
        psn: qp.psn,
        qkey: qp.qkey,
        lid: place.port.lid,
        gid: place.gid.address.octets(),
        class: Class {
            // 0 where the operator asks for none.
            traffic_class: selector.traffic_class.unwrap_or(0),
            sl: selector.sl.unwrap_or(0),
        },
        pkey: place.pkey(),
        fetches: port.state.found.fetches,
    };
    Ok(peer.encode())
}

/// Decodes `endpoint` and checks that a queue pair of `transport` on this port can reach it.
fn peer(port: &VerbsPort, transport: Transport, endpoint: &Endpoint) -> Result<Peer, ConnectError> {
    let peer = Peer::decode(endpoint)?;
    if peer.transport != transport {
        return Err(ConnectError::Endpoint("of another transport"));
    }
    if peer.link != port.place.port.link {
        return Err(ConnectError::Endpoint(
            "InfiniBand and Ethernet do not meet",
        ));
    }
    if !meet(peer.pkey, port.place.pkey()) {
        return Err(ConnectError::Endpoint(
            "in another partition; give both ends one by `pkey=`",
        ));
    }
    Ok(peer)
}

/// Returns whether two P_Keys have the same partition and at least one is a full member.
fn meet(one: u16, other: u16) -> bool {
    // The membership bit of a P_Key: limited members do not reach each other.
    const FULL: u16 = 0x8000;
    (one ^ other) & !FULL == 0 && (one | other) & FULL != 0
}

fn way_to(port: &VerbsPort, qpn: u32, peer: &Peer) -> sys::AhAttr {
    let (place, state) = (&port.place, &*port.state);
    let theirs = if state.follow_class {
        peer.class
    } else {
        Class::default()
    };
    sys::AhAttr {
        grh: sys::GlobalRoute {
            dgid: sys::Gid { raw: peer.gid },
            flow_label: flow_label(qpn, peer.qpn.0),
            // Only GIDs whose index fits are selected.
            sgid_index: u8::try_from(place.gid.index).unwrap_or(0),
            hop_limit: HOP_LIMIT,
            traffic_class: state.selector.traffic_class.unwrap_or(theirs.traffic_class),
        },
        dlid: peer.lid,
        sl: state.selector.sl.unwrap_or(theirs.sl),
        // RoCE always has a GRH; within one InfiniBand subnet the LID is enough.
        is_global: u8::from(place.port.link == LinkLayer::Ethernet),
        port_num: place.port.number,
        ..sys::AhAttr::default()
    }
}

/// Returns a 20-bit flow label, different for each pair of queue pairs, so that switches spread
/// flows over equal-cost paths. On RoCEv2 the UDP source port is derived from it.
fn flow_label(from: u32, to: u32) -> u32 {
    // Fibonacci hashing (2^64 divided by the golden ratio): numbers that count up spread over the high
    // bits.
    let mixed = (u64::from(from) << 32 | u64::from(to)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 44) as u32
}

pub(crate) fn connect(
    port: &mut VerbsPort,
    id: QpId,
    endpoint: &Endpoint,
) -> Result<(), ConnectError> {
    let qp = port.qps.get(id.0).ok_or(NO_QP)?;
    if qp.transport == Transport::Ud {
        return Err(ConnectError::Transport(qp.transport));
    }
    if qp.state != QpState::Init {
        return Err(ConnectError::State(qp.state));
    }
    let peer = peer(port, qp.transport, endpoint)?;
    let fetches = port.state.found.fetches.agreed(peer.fetches);
    let receive = ready_to_receive(port, qp, &peer, fetches);
    let send = ready_to_send(qp, fetches);
    // RTR before RTS: the verbs know no other way, and a queue pair in RTR receives already.
    qp.raw
        .modify(receive.0, receive.1)
        .map_err(system("reaching the peer"))?;
    let sent = qp.raw.modify(send.0, send.1);
    let qp = port.qps.get_mut(id.0).ok_or(NO_QP)?;
    // After a half of it the queue pair cannot be connected again.
    qp.state = match sent {
        Ok(()) => QpState::ReadyToSend,
        Err(_) => QpState::Error,
    };
    Ok(sent.map_err(system("connecting a queue pair"))?)
}

fn ready_to_receive(
    port: &VerbsPort,
    qp: &PortQp,
    peer: &Peer,
    fetches: Fetches,
) -> (sys::QpAttr, i32) {
    let attributes = sys::QpAttr {
        qp_state: sys::IBV_QPS_RTR,
        // The smaller of the two: each end computes the same.
        path_mtu: peer.mtu.min(mtu_number(port.place.port.mtu)).into(),
        dest_qp_num: peer.qpn.0,
        rq_psn: peer.psn.0,
        ah_attr: way_to(port, qp.raw.number(), peer),
        max_dest_rd_atomic: fetches.serves,
        min_rnr_timer: RNR_TIMER,
        ..sys::QpAttr::default()
    };
    let mask = sys::IBV_QP_STATE
        | sys::IBV_QP_AV
        | sys::IBV_QP_PATH_MTU
        | sys::IBV_QP_DEST_QPN
        | sys::IBV_QP_RQ_PSN;
    let reliable = sys::IBV_QP_MAX_DEST_RD_ATOMIC | sys::IBV_QP_MIN_RNR_TIMER;
    (attributes, with(mask, qp.transport, reliable))
}

fn ready_to_send(qp: &PortQp, fetches: Fetches) -> (sys::QpAttr, i32) {
    let attributes = sys::QpAttr {
        qp_state: sys::IBV_QPS_RTS,
        sq_psn: qp.psn.0,
        max_rd_atomic: fetches.asks,
        timeout: TIMEOUT,
        retry_cnt: RETRIES,
        rnr_retry: RNR_RETRIES,
        ..sys::QpAttr::default()
    };
    let reliable = sys::IBV_QP_MAX_QP_RD_ATOMIC
        | sys::IBV_QP_TIMEOUT
        | sys::IBV_QP_RETRY_CNT
        | sys::IBV_QP_RNR_RETRY;
    let mask = sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN;
    (attributes, with(mask, qp.transport, reliable))
}

fn with(mask: i32, transport: Transport, reliable: i32) -> i32 {
    // The verbs refuse attributes that a transport does not have.
    match transport {
        Transport::Rc => mask | reliable,
        Transport::Uc | Transport::Ud => mask,
    }
}

pub(crate) fn create_address(
    port: &mut VerbsPort,
    id: QpId,
    endpoint: &Endpoint,
) -> Result<AddressHandle, ConnectError> {
    let qp = port.qps.get(id.0).ok_or(NO_QP)?;
    if qp.transport != Transport::Ud {
        return Err(ConnectError::Transport(qp.transport));
    }
    if !port.addresses.has_room() {
        return Err(limit("address handles", port.addresses.capacity()).into());
    }
    let peer = peer(port, Transport::Ud, endpoint)?;
    let pd = port.pd(PdId(qp.pd)).ok_or(NO_PD)?;
    let ah =
        Ah::new(pd, way_to(port, qp.raw.number(), &peer)).map_err(system("addressing the peer"))?;
    let address = Address {
        ah,
        qp: id,
        qpn: peer.qpn.0,
        qkey: peer.qkey,
    };
    let id = port.addresses.insert(address);
    let full = |_| limit("address handles", port.addresses.capacity());
    Ok(id.map(AddressHandle).map_err(full)?)
}
