//! The control half of the seeded fabric: domains, regions, queues and queue pairs, all ids random
//! or never reused.

use std::{net::IpAddr, time::Duration};

use herdwick_fabric::{
    Access, AddressHandle, Capabilities, ConnectError, ControlError, CqId, CqSpec, Device,
    Endpoint, OpenError, PdId, PortHealth, PortLimits, QpId, QpSpec, QpState, Qpn, RegionId,
    RegionSpec, Remote, Scope, SharedMemory, Source, Status, Transport, Windows,
};
use herdwick_mem::{Span, WORD};

use super::{
    HostId, PartyId, SeededNetwork, SeededPort,
    party::{Address, Cq, Domain, PartyState, Qp, ReceiveSide, Region, SendSide},
    world::World,
};

/// The control half of a [`SeededNetwork`].
#[derive(Clone)]
pub struct SeededDevice {
    network: SeededNetwork,
    capabilities: Capabilities,
    host: Option<HostId>,
}

impl SeededNetwork {
    /// Returns the control half.
    #[must_use]
    pub fn device(&self) -> SeededDevice {
        SeededDevice::new(self.clone(), None)
    }

    /// Returns the control half of the RNIC of `host`. Each port is a process with a core of its
    /// own.
    #[must_use]
    pub fn device_at(&self, host: HostId) -> SeededDevice {
        SeededDevice::new(self.clone(), Some(host))
    }
}

impl SeededDevice {
    pub(super) fn new(network: SeededNetwork, host: Option<HostId>) -> Self {
        let world = network.world();
        let mut capabilities = world.capabilities.clone();
        if let Some(host) = host {
            capabilities.postlist_max = world.hosts[host.0].profile.rnic.postlist_max;
        }
        drop(world);
        Self {
            network,
            capabilities,
            host,
        }
    }

    fn register(
        &self,
        port: &mut SeededPort,
        pd: PdId,
        span: Span,
        spec: &RegionSpec,
    ) -> Result<RegionId, ControlError> {
        let len = span.len();
        let spec = RegionSpec {
            len,
            ..spec.clone()
        };
        self.register_with(port, pd, (span, None), &spec)
    }

    fn register_with(
        &self,
        port: &mut SeededPort,
        pd: PdId,
        (span, windows): (Span, Option<Windows>),
        spec: &RegionSpec,
    ) -> Result<RegionId, ControlError> {
        let mut world = port.network.world();
        let (rkey, base) = (world.fresh_rkey(), world.fresh_base());
        let party = &mut world.parties[port.party.0];
        party.know_pd(pd)?;
        within("regions", party.regions.len(), party.limits.regions)?;
        if let Scope::Qp(qp) = spec.scope {
            let known = party.qps.contains_key(&qp);
            known
                .then_some(())
                .ok_or(ControlError::Unknown("queue pair"))?;
        }
        let id = party.fresh_id();
        port.spans.insert(id, span.clone());
        let region = Region {
            pd,
            len: spec.len,
            span,
            windows,
            access: spec.access,
            scope: spec.scope,
            rkey,
            base,
        };
        if let Some(domain) = party.pds.get_mut(&pd) {
            domain.regions.push(id);
        }
        party.rkeys.insert(rkey, id);
        party.regions.insert(id, region);
        Ok(RegionId(id))
    }
}

impl Device for SeededDevice {
    type Port = SeededPort;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open_port(&self, limits: &PortLimits) -> Result<SeededPort, OpenError> {
        let mut world = self.network.world();
        let mut party = PartyState::new(limits.clone());
        party.host = self.host.map(|host| host.0);
        world.parties.push(party);
        let id = PartyId(world.parties.len() - 1);
        drop(world);
        Ok(SeededPort::new(self.network.clone(), id))
    }

    fn create_pd(&self, port: &mut SeededPort) -> Result<PdId, ControlError> {
        let party = &mut port.network.world().parties[port.party.0];
        within("domains", party.pds.len(), party.limits.pds)?;
        let pd = PdId(party.fresh_id());
        party.pds.insert(pd, Domain::default());
        Ok(pd)
    }

    fn destroy_pd(&self, port: &mut SeededPort, pd: PdId) -> Result<(), ControlError> {
        let mut world = port.network.world();
        let party = &mut world.parties[port.party.0];
        let domain = party.pds.remove(&pd);
        let domain = domain.ok_or(ControlError::Unknown("domain"))?;
        for address in domain.addresses {
            party.addresses.remove(&address);
        }
        for region in domain.regions {
            port.spans.remove(&region);
            if let Some(region) = party.regions.remove(&region) {
                party.rkeys.remove(&region.rkey);
            }
        }
        for qp in domain.qps {
            if world.named_qp(port.party, qp).is_ok() {
                world.forget_qp(port.party, qp)?;
            }
        }
        Ok(())
    }

    fn allocate_region(
        &self,
        port: &mut SeededPort,
        pd: PdId,
        spec: &RegionSpec,
    ) -> Result<RegionId, ControlError> {
        let span = anonymous(spec.len)?;
        self.register(port, pd, span, spec)
    }

    fn register_shared(
        &self,
        port: &mut SeededPort,
        pd: PdId,
        memory: &SharedMemory,
        access: Access,
        scope: Scope,
    ) -> Result<RegionId, ControlError> {
        memory.may_grant(access)?;
        let len = memory.region_len();
        let spec = RegionSpec { len, access, scope };
        let span = memory.span().clone();
        self.register_with(port, pd, (span, memory.windows()), &spec)
    }

    fn free_region(&self, port: &mut SeededPort, region: RegionId) -> Result<(), ControlError> {
        let party = &mut port.network.world().parties[port.party.0];
        let freed = party.regions.remove(&region.0);
        port.spans.remove(&region.0);
        let freed = freed.ok_or(ControlError::Unknown("region"))?;
        party.rkeys.remove(&freed.rkey);
        Ok(())
    }

    fn remote(&self, port: &SeededPort, region: RegionId) -> Result<Remote, ControlError> {
        let party = &port.network.world().parties[port.party.0];
        let region = party.regions.get(&region.0);
        let region = region.ok_or(ControlError::Unknown("region"))?;
        Ok(Remote {
            rkey: region.rkey,
            addr: region.base,
        })
    }

    fn create_cq(&self, port: &mut SeededPort, spec: &CqSpec) -> Result<CqId, ControlError> {
        let party = &mut port.network.world().parties[port.party.0];
        within("completion queues", party.cqs.len(), party.limits.cqs)?;
        let cq = CqId(party.fresh_id());
        party.cqs.insert(cq, Cq::new(spec.depth));
        Ok(cq)
    }

    fn destroy_cq(&self, port: &mut SeededPort, cq: CqId) -> Result<(), ControlError> {
        let mut world = port.network.world();
        let used = world.parties[port.party.0].qps.values();
        let mut used = used.filter_map(|qpn| world.qps.get(qpn));
        if used.any(|qp| qp.send.cq == cq || qp.receive.cq == cq) {
            return Err(ControlError::InUse("completion queue"));
        }
        let gone = world.parties[port.party.0].cqs.remove(&cq);
        gone.map(|_| ())
            .ok_or(ControlError::Unknown("completion queue"))
    }

    fn create_qp(&self, port: &mut SeededPort, spec: &QpSpec) -> Result<QpId, ControlError> {
        let world = &mut *port.network.world();
        supports(&self.capabilities, spec.transport)?;
        let qpn = world.fresh_qpn();
        let party = &mut world.parties[port.party.0];
        party.know_pd(spec.pd)?;
        within("queue pairs", party.qps.len(), party.limits.qps)?;
        party.promise(spec)?;
        let id = QpId(party.fresh_id());
        party.qps.insert(id, qpn);
        if let Some(domain) = party.pds.get_mut(&spec.pd) {
            domain.qps.push(id);
        }
        let mut qp = Qp::new(port.party, id, qpn, spec);
        if let Some(host) = party.host {
            qp.unit = world.hosts[host].next_unit();
        }
        world.qps.insert(qpn, qp);
        Ok(id)
    }

    fn destroy_qp(&self, port: &mut SeededPort, qp: QpId) -> Result<(), ControlError> {
        port.network.world().forget_qp(port.party, qp)
    }

    fn endpoint(&self, port: &SeededPort, qp: QpId) -> Result<Endpoint, ControlError> {
        let world = port.network.world();
        let qpn = world.named_qp(port.party, qp)?.qpn;
        let mut blob = [0; ENDPOINT_BYTES];
        blob[..8].copy_from_slice(&world.tag.to_le_bytes());
        blob[8..].copy_from_slice(&qpn.0.to_le_bytes());
        Endpoint::new(&blob).map_err(|_| ControlError::Unsupported("endpoint of this length"))
    }

    fn source(&self, peer: &Endpoint) -> Result<Source, ConnectError> {
        let qpn = self.network.world().peer_of(Transport::Ud, peer)?;
        Ok(Source { qpn })
    }

    fn connect(
        &self,
        port: &mut SeededPort,
        qp: QpId,
        peer: &Endpoint,
    ) -> Result<(), ConnectError> {
        let mut world = port.network.world();
        let named = world.named_qp(port.party, qp)?;
        let (qpn, transport, state) = (named.qpn, named.transport, named.state);
        if transport == Transport::Ud {
            return Err(ConnectError::Transport(transport));
        }
        if state != QpState::Init {
            return Err(ConnectError::State(state));
        }
        let peer = world.peer_of(transport, peer)?;
        if let Some(qp) = world.qps.get_mut(&qpn) {
            qp.peer = Some(peer);
            qp.state = QpState::ReadyToSend;
        }
        Ok(())
    }

    fn create_address(
        &self,
        port: &mut SeededPort,
        qp: QpId,
        peer: &Endpoint,
    ) -> Result<AddressHandle, ConnectError> {
        let mut world = port.network.world();
        let named = world.named_qp(port.party, qp)?;
        let (pd, transport) = (named.pd, named.transport);
        if transport != Transport::Ud {
            return Err(ConnectError::Transport(transport));
        }
        let to = world.peer_of(transport, peer)?;
        let party = &mut world.parties[port.party.0];
        within("addresses", party.addresses.len(), party.limits.addresses)?;
        let id = party.fresh_id();
        party.addresses.insert(id, Address { pd, to });
        if let Some(domain) = party.pds.get_mut(&pd) {
            domain.addresses.push(id);
        }
        Ok(AddressHandle(id))
    }

    fn destroy_address(
        &self,
        port: &mut SeededPort,
        address: AddressHandle,
    ) -> Result<(), ControlError> {
        let party = &mut port.network.world().parties[port.party.0];
        let gone = party.addresses.remove(&address.0);
        gone.map(|_| ()).ok_or(ControlError::Unknown("address"))
    }

    fn fail_qp(&self, port: &mut SeededPort, qp: QpId) -> Result<(), ControlError> {
        let mut world = port.network.world();
        let qpn = world.named_qp(port.party, qp)?.qpn;
        world.fail(qpn, Status::Flushed);
        Ok(())
    }

    fn qp_state(&self, port: &SeededPort, qp: QpId) -> Result<QpState, ControlError> {
        Ok(port.network.world().named_qp(port.party, qp)?.state)
    }

    fn health(&self, port: &SeededPort) -> PortHealth {
        let party = &port.network.world().parties[port.party.0];
        PortHealth {
            lost: party.lost,
            failures: party.failures,
        }
    }

    /// All parties of a network are on this host; its tag is in the endpoints.
    fn is_at(
        &self,
        port: &SeededPort,
        _: PdId,
        endpoints: &[&Endpoint],
        host: Option<IpAddr>,
    ) -> bool {
        let tag = port.network.world().tag.to_le_bytes();
        let ours = endpoints.iter().all(|end| end.as_bytes().starts_with(&tag));
        ours && host.is_none_or(|host| host.is_loopback())
    }
}

/// The network's tag, then the queue pair number.
const ENDPOINT_BYTES: usize = 12;

impl World {
    fn named_qp(&self, party: PartyId, qp: QpId) -> Result<&Qp, ControlError> {
        let qpn = self.parties[party.0].qps.get(&qp);
        let qp = qpn.and_then(|qpn| self.qps.get(qpn));
        qp.ok_or(ControlError::Unknown("queue pair"))
    }

    /// Removes a queue pair, its work, and its completions.
    fn forget_qp(&mut self, party: PartyId, qp: QpId) -> Result<(), ControlError> {
        let qpn = self.named_qp(party, qp)?.qpn;
        self.cancel_timer(qpn);
        let party = &mut self.parties[party.0];
        party.qps.remove(&qp);
        party.written.retain(|other| *other != qp);
        for cq in party.cqs.values_mut() {
            cq.entries.retain(|entry| entry.qpn != qpn);
        }
        if let Some(qp) = self.qps.remove(&qpn) {
            party.unpromise(qp.send.cq, qp.send.depth);
            party.unpromise(qp.receive.cq, qp.receive.depth);
        }
        Ok(())
    }

    /// Returns the queue pair of a peer's endpoint.
    fn peer_of(&self, transport: Transport, peer: &Endpoint) -> Result<Qpn, ConnectError> {
        let blob: &[u8; ENDPOINT_BYTES] = peer
            .as_bytes()
            .try_into()
            .map_err(|_| ConnectError::Endpoint("wrong length"))?;
        let [a, b, c, d, e, f, g, h, q, r, s, t] = *blob;
        if u64::from_le_bytes([a, b, c, d, e, f, g, h]) != self.tag {
            return Err(ConnectError::Endpoint("of another network"));
        }
        let qpn = Qpn(u32::from_le_bytes([q, r, s, t]));
        let there = self.qps.get(&qpn);
        let there = there.ok_or(ConnectError::Endpoint("names no queue pair"))?;
        if there.transport == transport {
            Ok(qpn)
        } else {
            Err(ConnectError::Endpoint("of another transport"))
        }
    }
}

impl PartyState {
    fn promise(&mut self, spec: &QpSpec) -> Result<(), ControlError> {
        for (cq, depth) in [
            (spec.send_cq, spec.send_depth),
            (spec.recv_cq, spec.recv_depth),
        ] {
            let known = self.cqs.get_mut(&cq);
            known
                .ok_or(ControlError::Unknown("completion queue"))?
                .promised += depth;
        }
        let over = |cq: &Cq| cq.promised > cq.depth;
        let over = [spec.send_cq, spec.recv_cq].map(|cq| self.cqs.get(&cq).is_some_and(over));
        if over == [false, false] {
            return Ok(());
        }
        self.unpromise(spec.send_cq, spec.send_depth);
        self.unpromise(spec.recv_cq, spec.recv_depth);
        Err(ControlError::Limit {
            what: "queue depths that feed one completion queue",
            limit: self.cqs.get(&spec.recv_cq).map_or(0, |cq| cq.depth),
        })
    }

    fn unpromise(&mut self, cq: CqId, depth: usize) {
        if let Some(cq) = self.cqs.get_mut(&cq) {
            cq.promised = cq.promised.saturating_sub(depth);
        }
    }
}

impl Cq {
    fn new(depth: usize) -> Self {
        Self {
            depth,
            promised: 0,
            entries: std::collections::VecDeque::new(),
            armed: false,
        }
    }
}

impl Qp {
    fn new(party: PartyId, id: QpId, qpn: Qpn, spec: &QpSpec) -> Self {
        let state = match spec.transport {
            Transport::Ud => QpState::ReadyToSend,
            Transport::Rc | Transport::Uc => QpState::Init,
        };
        Self {
            party: party.0,
            id,
            qpn,
            pd: spec.pd,
            transport: spec.transport,
            state,
            peer: None,
            send: SendSide::new(spec.send_cq, spec.send_depth),
            receive: ReceiveSide::new(spec.recv_cq, spec.recv_depth),
            last_arrival: Duration::ZERO,
            latest_arrival: Duration::ZERO,
            last_delivery: Duration::ZERO,
            last_completion: Duration::ZERO,
            unit: 0,
            watch: None,
        }
    }
}

fn within(what: &'static str, used: usize, limit: usize) -> Result<(), ControlError> {
    if used < limit {
        Ok(())
    } else {
        Err(ControlError::Limit { what, limit })
    }
}

fn supports(capabilities: &Capabilities, transport: Transport) -> Result<(), ControlError> {
    let (has, name) = match transport {
        Transport::Rc => (capabilities.rc, "RC"),
        Transport::Uc => (capabilities.uc, "UC"),
        Transport::Ud => (capabilities.ud, "UD"),
    };
    has.then_some(()).ok_or(ControlError::Unsupported(name))
}

/// Allocates `len` bytes, rounded up to words but not to pages: a region ends exactly where it was
/// asked to.
fn anonymous(len: usize) -> Result<Span, ControlError> {
    let words = len.div_ceil(WORD);
    let span = words.checked_mul(WORD).ok_or(ControlError::Limit {
        what: "region bytes",
        limit: usize::MAX - WORD + 1,
    })?;
    let system = |source| ControlError::System {
        what: "mmap",
        source,
    };
    let whole = Span::anonymous(span).map_err(system)?;
    whole.slice(0..span).map_err(|_| ControlError::Limit {
        what: "region bytes",
        limit: whole.len(),
    })
}
