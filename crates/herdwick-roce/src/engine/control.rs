//! The control verbs: making, connecting and destroying objects.

use herdwick_fabric::{
    AddressHandle, ConnectError, ControlError, CqId, CqSpec, PdId, Psn, QpId, QpSpec, QpState, Qpn,
    RegionId, RegionSpec, Remote, Scope, Status, Transport,
};

use super::Engine;
use crate::{
    Destination, FlowId, LocalEndpoint, Peer, Peering, Secret,
    completions::Cq,
    keyed::Keyed,
    packet::{LOW_24, Psn24},
    qp::{Link, Names, Qp, Target},
    regions::Region,
    shared::{Address, Shared},
    slab,
};

impl Engine {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn create_pd(&mut self) -> Result<PdId, ControlError> {
        let limit = self.pds.limit();
        let id = self.pds.insert(());
        id.map(PdId)
            .ok_or_else(|| over("protection domains", limit))
    }

    /// Destroys a domain and everything in it.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    pub fn destroy_pd(&mut self, pd: PdId) -> Result<(), ControlError> {
        let known = self.pds.remove(pd.0);
        known.ok_or(ControlError::Unknown("protection domain"))?;
        // Regions first: from here on no packet finds memory of the domain.
        self.shared.regions.remove_pd(pd);
        // The ids are collected first, because each removal changes the table.
        for id in self.qps.ids(|qp| qp.pd == pd) {
            self.destroy_qp(QpId(id))?;
        }
        for id in self.shared.addresses.ids(|address| address.pd == pd) {
            self.destroy_address(AddressHandle(id))?;
        }
        Ok(())
    }

    /// Registers memory of the driver whose remote addresses start at `base`; zero is usual.
    ///
    /// # Errors
    /// A limit is reached, or the domain or queue pair is unknown.
    pub fn register(
        &mut self,
        pd: PdId,
        spec: &RegionSpec,
        base: u64,
    ) -> Result<RegionId, ControlError> {
        self.know_pd(pd)?;
        if let Scope::Qp(qp) = spec.scope {
            self.known(qp)?;
        }
        let limit = over("regions", self.shared.regions.limit());
        if self.shared.regions.is_full() {
            return Err(limit);
        }
        let mut rkey = self.draw.rkey();
        // Only after 2^32 registrations can a number that is still registered be drawn again.
        while self.shared.regions.knows_rkey(rkey) {
            rkey = self.draw.rkey();
        }
        let region = Region {
            pd,
            len: spec.len,
            access: spec.access,
            scope: spec.scope,
            rkey,
            base,
        };
        self.shared.regions.insert(region).ok_or(limit)
    }

    /// Deregisters a region: its rkey is invalid from now on, and the engine does not pass its id
    /// to [`crate::Memory`] again.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    pub fn deregister(&mut self, region: RegionId) -> Result<(), ControlError> {
        let gone = self.shared.regions.remove(region);
        gone.map(drop).ok_or(ControlError::Unknown("region"))
    }

    /// Returns the rkey and remote address of a region.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    pub fn remote(&self, region: RegionId) -> Result<Remote, ControlError> {
        let remote = self.shared.regions.remote(region);
        remote.ok_or(ControlError::Unknown("region"))
    }

    /// Makes a completion queue.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn create_cq(&mut self, spec: &CqSpec) -> Result<CqId, ControlError> {
        let limit = over("completion queues", self.shared.cqs.limit());
        // Before the queue is made: its memory would be allocated in vain.
        if self.shared.cqs.is_full() {
            return Err(limit);
        }
        let id = self.shared.cqs.insert(Cq::new(spec.depth));
        id.map(CqId).ok_or(limit)
    }

    /// Destroys a completion queue that no queue pair uses.
    ///
    /// # Errors
    /// [`ControlError::Unknown`], [`ControlError::InUse`].
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        let known = self.shared.cqs.get(cq.0);
        if known
            .ok_or(ControlError::Unknown("completion queue"))?
            .users
            > 0
        {
            return Err(ControlError::InUse("completion queue"));
        }
        self.shared.cqs.remove(cq.0);
        Ok(())
    }

    /// Makes a queue pair with an unpredictable number.
    ///
    /// # Errors
    /// A limit is reached, or the domain or a completion queue is unknown.
    pub fn create_qp(&mut self, spec: &QpSpec) -> Result<QpId, ControlError> {
        self.know_pd(spec.pd)?;
        let limit = over("queue pairs", self.qps.limit());
        if self.qps.is_full() {
            return Err(limit);
        }
        // Nothing after it fails, so what is reserved here is never left behind: the slab has room,
        // as checked above.
        self.promise(spec)?;
        let names = Names {
            qpn: self.fresh_qpn(),
            psn: Psn24::new(self.draw.bits()),
            qkey: self.fresh_qkey(),
            secret: self.draw.secret(),
        };
        let qp = Qp::new(spec, &names, &self.shared.config);
        let id = self.qps.insert(qp).ok_or(limit)?;
        self.by_qpn.insert(names.qpn, id);
        // The id is known only after the insertion.
        if let Some(qp) = self.qps.get_mut(id) {
            qp.id = QpId(id);
        }
        Ok(QpId(id))
    }

    /// Destroys a queue pair; its outstanding work is dropped without completions.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    pub fn destroy_qp(&mut self, id: QpId) -> Result<(), ControlError> {
        let qp = self.qps.remove(id.0);
        let qp = qp.ok_or(ControlError::Unknown("queue pair"))?;
        // All that refers to the queue pair goes with it: a later one at the same index would
        // inherit its timer and its place in the list.
        self.by_qpn.remove(qp.qpn);
        self.ready.forget(id);
        self.shared.written.forget(id);
        self.shared.timers.clear(slab::index(id.0));
        if let Some(link) = qp.link {
            self.shared.leave(&link.target);
        }
        for (cq, depth) in [(qp.sends.cq, qp.sends.depth), (qp.recvs.cq, qp.recvs.depth)] {
            if let Some(cq) = self.shared.cqs.get_mut(cq.0) {
                // Its unpolled completions too. Polled later, they would free slots of no queue
                // pair.
                cq.forget(id);
                cq.promised -= depth;
                cq.users -= 1;
            }
        }
        Ok(())
    }

    /// Returns what the peer of a queue pair needs to know of it.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    pub fn endpoint(&self, qp: QpId) -> Result<LocalEndpoint, ControlError> {
        let qp = self.known(qp)?;
        Ok(LocalEndpoint {
            transport: qp.transport,
            qpn: Qpn(qp.qpn),
            psn: Psn(qp.first_psn.get()),
            qkey: qp.qkey,
            mtu: self.shared.config.mtu,
            secret: qp.secret,
        })
    }

    /// Replaces the random Q_Key of a UD queue pair: some peers' programs use a fixed one.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    pub fn set_qkey(&mut self, qp: QpId, qkey: u32) -> Result<(), ControlError> {
        let known = self.qps.get_mut(qp.0);
        known.ok_or(ControlError::Unknown("queue pair"))?.qkey = qkey;
        Ok(())
    }

    /// Returns the state of a queue pair.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    pub fn qp_state(&self, qp: QpId) -> Result<QpState, ControlError> {
        Ok(self.known(qp)?.state)
    }

    /// Connects an RC or UC queue pair to the peer's; returns the flow of its packets.
    ///
    /// # Errors
    /// A wrong state or transport, or a limit is reached.
    pub fn connect(&mut self, qp: QpId, peering: &Peering) -> Result<FlowId, ConnectError> {
        let known = self.qps.get_mut(qp.0);
        let qp = known.ok_or(ControlError::Unknown("queue pair"))?;
        // UD has no connection: address handles name its destinations.
        if qp.transport == Transport::Ud {
            return Err(ConnectError::Transport(qp.transport));
        }
        if qp.state != QpState::Init {
            return Err(ConnectError::State(qp.state));
        }
        self.shared.has_room_for(peering.key)?;
        // Fails only when the table is full, and before anything has changed.
        let flow = self.shared.flows.join(peering.peer);
        let flow = flow.ok_or(ControlError::Unsupported("more destinations"))?;
        qp.link = Some(Link {
            target: Target {
                flow,
                // The upper byte of the field is reserved in the BTH.
                qpn: peering.qpn.0 & LOW_24,
                qkey: 0,
                keyed: self.shared.join_keyed(peering.key),
            },
            ip: peering.peer.addr.ip().to_canonical(),
            mtu: peering.mtu.bytes(),
            rd_atomic: peering.rd_atomic.into(),
            refusals_are_fatal: peering.refusals_are_fatal,
        });
        // Before the state changes: packets are accepted from that moment on.
        qp.inbound.expected = Psn24::new(peering.psn.0);
        // The states RTR and RTS of the verbs are one here: a peer that is not connected yet drops
        // packets as `NotReady`, and RC sends them again.
        qp.state = QpState::ReadyToSend;
        Ok(flow)
    }

    /// Makes an address handle for datagrams of `qp`; returns it with the flow of its packets.
    ///
    /// # Errors
    /// A wrong transport, a limit, or a keyed address that exists already.
    pub fn create_address(
        &mut self,
        qp: QpId,
        to: &Destination,
    ) -> Result<(AddressHandle, FlowId), ConnectError> {
        let known = self.known(qp)?;
        let (pd, transport) = (known.pd, known.transport);
        if transport != Transport::Ud {
            return Err(ConnectError::Transport(transport));
        }
        let limit = over("address handles", self.shared.addresses.limit());
        if self.shared.addresses.is_full() {
            return Err(limit.into());
        }
        let from = (qp, to.peer.addr.ip().to_canonical(), to.qpn.0 & LOW_24);
        let source = to.key.map(|_| from);
        // One key for each sender: with two, the receiver would not know which one to check a tag
        // with.
        if source.is_some_and(|source| self.shared.by_source.contains_key(&source)) {
            return Err(ControlError::InUse("keyed address").into());
        }
        self.shared.has_room_for(to.key)?;
        let flow = self.shared.flows.join(to.peer);
        let flow = flow.ok_or(ControlError::Unsupported("more destinations"))?;
        let target = Target {
            flow,
            qpn: to.qpn.0 & LOW_24,
            qkey: to.qkey,
            keyed: self.shared.join_keyed(to.key),
        };
        if let (Some(source), Some(keyed)) = (source, target.keyed) {
            self.shared.by_source.insert(source, keyed);
            // From now on unkeyed datagrams are refused: otherwise a forger would leave the trailer
            // out.
            self.require_keys(qp);
        }
        let address = Address { pd, target, source };
        let id = self.shared.addresses.insert(address);
        Ok((AddressHandle(id.ok_or(limit)?), flow))
    }

    /// Destroys an address handle.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    pub fn destroy_address(&mut self, address: AddressHandle) -> Result<(), ControlError> {
        let gone = self.shared.addresses.remove(address.0);
        let gone = gone.ok_or(ControlError::Unknown("address"))?;
        self.shared.leave(&gone.target);
        if let Some(source) = gone.source {
            self.shared.by_source.remove(&source);
        }
        Ok(())
    }

    /// Moves a queue pair to the error state; outstanding work completes as flushed.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    pub fn fail_qp(&mut self, qp: QpId) -> Result<(), ControlError> {
        let known = self.qps.get_mut(qp.0);
        let qp = known.ok_or(ControlError::Unknown("queue pair"))?;
        qp.fail(&mut self.shared, Status::Flushed);
        Ok(())
    }

    /// Returns the other end of a flow; `None` when nothing uses the flow any more.
    #[must_use]
    pub fn peer(&self, flow: FlowId) -> Option<&Peer> {
        self.shared.flows.peer(flow)
    }

    fn require_keys(&mut self, qp: QpId) {
        if let Some(qp) = self.qps.get_mut(qp.0) {
            qp.keyed = true;
        }
    }

    fn know_pd(&self, pd: PdId) -> Result<(), ControlError> {
        let known = self.pds.get(pd.0);
        known
            .copied()
            .ok_or(ControlError::Unknown("protection domain"))
    }

    fn known(&self, qp: QpId) -> Result<&Qp, ControlError> {
        let known = self.qps.get(qp.0);
        known.ok_or(ControlError::Unknown("queue pair"))
    }

    /// Reserves the depths of both queues in their completion queues, so that these cannot
    /// overflow.
    fn promise(&mut self, spec: &QpSpec) -> Result<(), ControlError> {
        let feeds = [
            (spec.send_cq, spec.send_depth),
            (spec.recv_cq, spec.recv_depth),
        ];
        let shared = spec.send_cq == spec.recv_cq;
        // Both are checked before either is changed. If they are one queue, each check is of the
        // sum.
        for (cq, depth) in feeds {
            let more = if shared {
                spec.send_depth + spec.recv_depth
            } else {
                depth
            };
            let known = self.shared.cqs.get(cq.0);
            let known = known.ok_or(ControlError::Unknown("completion queue"))?;
            if known.promised + more > known.depth {
                let what = "queue depths that feed one completion queue";
                return Err(over(what, known.depth));
            }
        }
        for (cq, depth) in feeds {
            if let Some(cq) = self.shared.cqs.get_mut(cq.0) {
                cq.promised += depth;
                cq.users += 1;
            }
        }
        Ok(())
    }

    /// Returns an unused number that steers to this shard. 0 and 1 are reserved for subnet
    /// management, the last one for multicast.
    fn fresh_qpn(&mut self) -> u32 {
        let (shard, shards) = (self.shared.config.shard, self.shared.config.shards);
        loop {
            // At most half of the shard's numbers are in use (`Engine::new`): the loop ends soon.
            let qpn = self.draw.bits() & LOW_24;
            let steered = (qpn & 0xff) % shards == shard;
            if steered && (2..LOW_24).contains(&qpn) && self.by_qpn.get(qpn).is_none() {
                return qpn;
            }
        }
    }

    /// Returns a random Q_Key without the high bit, which marks privileged keys.
    fn fresh_qkey(&mut self) -> u32 {
        // A sender that names a privileged Q_Key sends that of its own queue pair instead.
        const PRIVILEGED: u32 = 0x8000_0000;
        self.draw.bits() & !PRIVILEGED
    }
}

impl Shared {
    /// Refuses a keyed peer beyond the limit: without its key, packets of forgers would be accepted.
    fn has_room_for(&self, key: Option<Secret>) -> Result<(), ControlError> {
        if key.is_some() && self.keyed.is_full() {
            return Err(over("keyed peers", self.keyed.limit()));
        }
        Ok(())
    }

    fn join_keyed(&mut self, key: Option<Secret>) -> Option<u32> {
        key.and_then(|key| self.keyed.insert(Keyed::new(key)))
    }

    fn leave(&mut self, target: &Target) {
        self.flows.leave(target.flow);
        if let Some(keyed) = target.keyed {
            self.keyed.remove(keyed);
        }
    }
}

fn over(what: &'static str, limit: usize) -> ControlError {
    ControlError::Limit { what, limit }
}
