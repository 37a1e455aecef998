//! The data half of the seeded fabric: posting with all checks of Table 1, and polling.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, OnceLock},
    time::Duration,
};

use herdwick_fabric::{
    AddressHandle, Armed, Atomics, Capabilities, Completion, CqId, Local, Payload, Port, PostError,
    Progress, QpId, QpState, Qpn, RecvWr, RegionId, SendOp, SendWr, Transport, WriteReport,
};
use herdwick_mem::{Span, WORD};
use rustix::event::{EventfdFlags, eventfd};

use super::{
    PartyId, SeededNetwork,
    event::{Event, Verb},
    host::{Picos, duration, of_ns},
    maps::IdMap,
    party::{PartyState, Qp, Watch},
    profile::Cpu,
    send_entry::{Body, SendEntry},
    world::World,
};

/// The data half of a [`SeededNetwork`]. Dropping it destroys its queue pairs and regions.
pub struct SeededPort {
    pub(super) network: SeededNetwork,
    pub(super) party: PartyId,
    pub(super) spans: IdMap<u32, Span>,
    drops: Vec<(&'static str, u64)>,
    /// Made when something is to sleep on it: a run in virtual time has more ports than a process may
    /// have descriptors.
    wake: OnceLock<Arc<OwnedFd>>,
}

impl SeededPort {
    pub(super) fn new(network: SeededNetwork, party: PartyId) -> Self {
        Self {
            network,
            party,
            spans: IdMap::default(),
            drops: Vec::new(),
            wake: OnceLock::new(),
        }
    }

    /// Returns the descriptor that a completion rings; `None` if the process may have no more.
    fn wake(&self) -> Option<&OwnedFd> {
        if self.wake.get().is_none() {
            let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
            let wake = Arc::new(eventfd(0, flags).ok()?);
            // A port belongs to one thread, so no other one is there.
            let wake = self.wake.get_or_init(|| wake);
            self.network.world().parties[self.party.0].wake = Some(Arc::clone(wake));
        }
        self.wake.get().map(|wake| &**wake)
    }

    /// The id of this port in the network's faults.
    #[must_use]
    pub fn party(&self) -> PartyId {
        self.party
    }
}

impl fmt::Debug for SeededPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeededPort")
            .field("party", &self.party)
            .finish_non_exhaustive()
    }
}

impl Drop for SeededPort {
    fn drop(&mut self) {
        let mut world = self.network.world();
        let qps = std::mem::take(&mut world.parties[self.party.0].qps);
        for qpn in qps.values() {
            world.cancel_timer(*qpn);
            world.qps.remove(qpn);
        }
        world.parties[self.party.0].clear();
    }
}

impl Port for SeededPort {
    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        let world = &mut *self.network.world();
        let party = &world.parties[self.party.0];
        let qpn = *party.qps.get(&qp).ok_or(PostError::UnknownQp)?;
        let qp = world.qps.get_mut(&qpn).ok_or(PostError::UnknownQp)?;
        if qp.state != QpState::ReadyToSend {
            return Err(PostError::State(qp.state));
        }
        if batch.len() > world.capabilities.postlist_max {
            return Err(PostError::Bounds);
        }
        let check = Check {
            capabilities: &world.capabilities,
            party,
            qp,
        };
        // All are checked before the first is queued: a postlist that is refused has no effect.
        let entries: Result<Vec<_>, _> = batch.iter().map(|wr| check.entry(wr)).collect();
        let entries = entries?;
        if qp.send.held + entries.len() > qp.send.depth {
            return Err(PostError::Full);
        }
        qp.send.held += entries.len();
        for mut entry in entries {
            entry.psn = qp.send.next_psn;
            // The first WQE of a postlist, too: the doorbell of a chain only makes the RNIC read it.
            entry.fetched = batch.len() > 1;
            qp.send.next_psn += 1;
            qp.send.entries.push_back(entry);
        }
        world.ring_doorbell(self.party, qpn, batch.len());
        Ok(())
    }

    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        let world = &mut *self.network.world();
        let party = &world.parties[self.party.0];
        let qpn = party.qps.get(&qp).ok_or(PostError::UnknownQp)?;
        let qp = world.qps.get_mut(qpn).ok_or(PostError::UnknownQp)?;
        if qp.state == QpState::Error {
            return Err(PostError::State(qp.state));
        }
        // All are checked before the first is queued.
        for recv in batch {
            party.local(qp, recv.into)?;
        }
        if qp.receive.held + batch.len() > qp.receive.depth {
            return Err(PostError::Full);
        }
        qp.receive.held += batch.len();
        qp.receive.entries.extend(batch);
        world.charge_each(self.party, batch.len(), |cpu| cpu.post_recv_ns);
        Ok(())
    }

    fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        let mut world = self.network.world();
        let mut count = 0;
        for slot in out {
            let Some(completion) = world.take_completion(self.party, cq) else {
                break;
            };
            *slot = completion;
            count += 1;
        }
        // A poll that finds nothing is paid for with the pass (`pass_ns`).
        world.charge_each(self.party, count, |cpu| cpu.completion_ns);
        count
    }

    fn watch_writes(&mut self, qp: QpId, range: Local, token: u64) -> bool {
        let world = &mut *self.network.world();
        let party = &mut world.parties[self.party.0];
        let known = party.qps.get(&qp);
        let known = known.and_then(|qpn| world.qps.get_mut(qpn));
        let Some(known) = known.filter(|_| world.capabilities.reports_writes) else {
            return false;
        };
        let report = WriteReport { token, writes: 0 };
        known.watch = Some(Watch { range, report });
        party.written.retain(|other| *other != qp);
        true
    }

    fn written(&mut self, out: &mut [WriteReport]) -> usize {
        let world = &mut *self.network.world();
        let mut count = 0;
        while count < out.len() {
            let party = &mut world.parties[self.party.0];
            let Some(qp) = party.written.pop_front() else {
                break;
            };
            let qp = party.qps.get(&qp).and_then(|qpn| world.qps.get_mut(qpn));
            if let Some(Watch { report, .. }) = qp.and_then(|qp| qp.watch.as_mut()) {
                out[count] = *report;
                report.writes = 0;
                count += 1;
            }
        }
        count
    }

    fn progress(&mut self, now: Duration) -> Progress {
        let mut world = self.network.world();
        let moved = world.run(now);
        self.drops.clone_from(&world.parties[self.party.0].drops);
        Progress {
            moved,
            deadline: world.next_due(),
        }
    }

    fn arm(&mut self, cq: CqId) -> Armed {
        // Before the lock, which it takes itself.
        let has_wake = self.wake().is_some();
        let world = &mut *self.network.world();
        if world.polled_only || !has_wake {
            return Armed::Never;
        }
        let party = &mut world.parties[self.party.0];
        let Some(cq) = party.cqs.get_mut(&cq) else {
            return Armed::Never;
        };
        if !cq.entries.is_empty() || !party.written.is_empty() {
            return Armed::Pending;
        }
        cq.armed = true;
        Armed::Yes
    }

    fn disarm(&mut self, cq: CqId) {
        let party = &mut self.network.world().parties[self.party.0];
        if let Some(cq) = party.cqs.get_mut(&cq) {
            cq.armed = false;
        }
        if let Some(wake) = self.wake.get() {
            // An empty counter is not an error: there was no wakeup.
            let _ = rustix::io::read(wake, &mut [0; WORD]);
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake().map(AsFd::as_fd)
    }

    fn region(&self, region: RegionId) -> Option<&Span> {
        self.spans.get(&region.0)
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        self.drops.to_vec()
    }
}

impl World {
    /// Has the last `count` work requests of a queue pair transmitted, as soon as the party's core has
    /// posted them.
    fn ring_doorbell(&mut self, party: PartyId, qpn: Qpn, count: usize) {
        let Some(host) = self.parties[party.0].host else {
            for _ in 0..count {
                self.schedule(self.now, Event::Transmit(qpn));
            }
            return;
        };
        // A WQE that is posted alone is stored to the RNIC by the core; of a postlist the RNIC
        // fetches all.
        if count == 1 {
            // Its stores wait for the RNIC to take those before them.
            let waits = self.hosts[host].stores_wait();
            let core = &mut self.parties[party.0].core;
            *core = (*core).max(waits);
        }
        let cpu = &self.hosts[host].profile.cpu;
        let more = of_ns(cpu.post_more_ns) * count.saturating_sub(1) as Picos;
        let cost = of_ns(cpu.post_ns) + more;
        let posted = duration(self.charge(party, cost));
        // Oldest first: events of one time happen in the order of scheduling.
        for back in (1..=count).rev() {
            let wqe = self.qps.get(&qpn).and_then(|qp| {
                let entries = &qp.send.entries;
                let entry = entries.get(entries.len().checked_sub(back)?)?;
                Some(entry.wqe(qp.transport))
            });
            if let Some(wqe) = wqe {
                self.schedule(posted, Event::HandOver(qpn, wqe));
            }
        }
    }

    /// Charges a core `count` times for the same.
    fn charge_each(&mut self, party: PartyId, count: usize, cost: impl Fn(&Cpu) -> f64) {
        if let Some(host) = self.parties[party.0].host
            && count > 0
        {
            let each = of_ns(cost(&self.hosts[host].profile.cpu));
            self.charge(party, each * count as Picos);
        }
    }

    /// Takes a completion and frees its slots.
    fn take_completion(&mut self, party: PartyId, cq: CqId) -> Option<Completion> {
        let queue = self.parties[party.0].cqs.get_mut(&cq)?;
        let entry = queue.entries.pop_front()?;
        if let Some(qp) = self.qps.get_mut(&entry.qpn) {
            let held = if entry.receive {
                &mut qp.receive.held
            } else {
                &mut qp.send.held
            };
            *held = held.saturating_sub(entry.slots);
        }
        Some(entry.completion)
    }
}

/// Context of the checks at posting.
struct Check<'a> {
    capabilities: &'a Capabilities,
    party: &'a PartyState,
    qp: &'a Qp,
}

impl Check<'_> {
    fn entry(&self, wr: &SendWr<'_>) -> Result<SendEntry, PostError> {
        let mut entry = SendEntry {
            wr_id: wr.wr_id,
            signaled: wr.signaled,
            fence: wr.fence,
            psn: 0,
            verb: Verb::Send,
            imm: None,
            body: Body::Copied(Vec::new()),
            // The address of a datagram replaces it below.
            to: self.qp.peer.unwrap_or(Qpn(0)),
            into: None,
            fetched: false,
            outcome: None,
        };
        match wr.op {
            SendOp::Send { payload, imm, to } => {
                entry.to = self.destination(to)?;
                entry.imm = imm;
                entry.body = self.body(payload)?;
            }
            SendOp::Write { payload, to, imm } => {
                self.only(self.qp.transport != Transport::Ud)?;
                entry.verb = Verb::Write(to);
                entry.imm = imm;
                entry.body = self.body(payload)?;
            }
            SendOp::Read { into, from } => {
                self.only(self.qp.transport == Transport::Rc && self.capabilities.read)?;
                let fits = into.len <= self.capabilities.read_bytes_max;
                fits.then_some(()).ok_or(PostError::Bounds)?;
                entry.verb = Verb::Read(from, into.len);
                entry.into = Some(self.party.local(self.qp, into)?);
            }
            SendOp::FetchAdd { into, at, add } => {
                entry.verb = Verb::FetchAdd(at, add);
                entry.into = Some(self.atomic(into)?);
            }
            SendOp::CompareSwap {
                into,
                at,
                expected,
                new,
            } => {
                entry.verb = Verb::CompareSwap(at, expected, new);
                entry.into = Some(self.atomic(into)?);
            }
        }
        Ok(entry)
    }

    /// Checks a cell of Table 1.
    fn only(&self, allowed: bool) -> Result<(), PostError> {
        let refused = PostError::Transport(self.qp.transport);
        allowed.then_some(()).ok_or(refused)
    }

    fn destination(&self, to: Option<AddressHandle>) -> Result<Qpn, PostError> {
        let refused = PostError::Transport(self.qp.transport);
        match (self.qp.transport, to) {
            (Transport::Ud, Some(handle)) => {
                let address = self.party.addresses.get(&handle.0);
                // As with libibverbs, an address handle is of use in its own domain alone.
                let address = address.filter(|address| address.pd == self.qp.pd);
                address.map(|address| address.to).ok_or(refused)
            }
            (Transport::Rc | Transport::Uc, None) => self.qp.peer.ok_or(refused),
            _ => Err(refused),
        }
    }

    fn body(&self, payload: Payload<'_>) -> Result<Body, PostError> {
        self.carries(payload.len())?;
        let copied = match payload {
            Payload::Inline(bytes) => bytes.to_vec(),
            Payload::Words(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            Payload::Region(local) => {
                let (span, offset) = self.party.local(self.qp, local)?;
                return Ok(Body::Region(span, offset, local.len));
            }
        };
        if copied.len() > self.capabilities.inline_bytes_max {
            return Err(PostError::Bounds);
        }
        Ok(Body::Copied(copied))
    }

    fn carries(&self, len: usize) -> Result<(), PostError> {
        let max = match self.qp.transport {
            Transport::Ud => self.capabilities.datagram_bytes_max,
            Transport::Rc | Transport::Uc => self.capabilities.message_bytes_max,
        };
        (len <= max).then_some(()).ok_or(PostError::Bounds)
    }

    fn atomic(&self, into: Local) -> Result<(Span, usize), PostError> {
        let has = self.capabilities.atomics != Atomics::None;
        self.only(self.qp.transport == Transport::Rc && has)?;
        // An atomic has 8 aligned bytes.
        if into.len != WORD || !into.offset.is_multiple_of(WORD) {
            return Err(PostError::Bounds);
        }
        self.party.local(self.qp, into)
    }
}

impl PartyState {
    /// Returns the memory of a local range, which must be within a region of the queue pair's
    /// domain.
    fn local(&self, qp: &Qp, local: Local) -> Result<(Span, usize), PostError> {
        let region = self.regions.get(&local.region.0);
        let region = region.filter(|region| region.pd == qp.pd);
        let region = region.ok_or(PostError::Bounds)?;
        let end = local.offset.checked_add(local.len);
        if end.is_none_or(|end| end > region.len) {
            return Err(PostError::Bounds);
        }
        Ok((region.span.clone(), local.offset))
    }
}
