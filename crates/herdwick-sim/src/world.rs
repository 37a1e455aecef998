//! The event queue of the seeded fabric: virtual time, packets under way, and their faults.

use std::{collections::BTreeSet, time::Duration};

use herdwick_check::mix;
use herdwick_fabric::{Capabilities, CqId, QpState, Qpn, Received, RecvWr, Rkey, Status};

use super::{
    FaultCounts, Faults, PartyId,
    completing::{Completing, Entry},
    event::{Event, Packet},
    host::{Host, Picos, duration, of_ns, picos},
    maps::IdMap,
    party::{PartyState, Qp},
    queue::{EventKey, EventQueue},
    rng::Rng,
};

/// The whole state: parties, queue pairs, and what is under way between them.
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) faults: Faults,
    pub(super) capabilities: Capabilities,
    pub(super) now: Duration,
    pub(super) steps: u64,
    pub(super) trace: u64,
    pub(super) lost: u64,
    pub(super) counts: FaultCounts,
    /// Requests that have been executed.
    pub(super) executed: u64,
    pub(super) parties: Vec<PartyState>,
    pub(super) qps: IdMap<Qpn, Qp>,
    /// The hosts of parties whose messages cost time.
    pub(super) hosts: Vec<Host>,
    /// The parties that something has happened to; kept if `watched`.
    pub(super) woken: Vec<usize>,
    pub(super) watched: bool,
    /// Whether no port can be armed.
    pub(super) polled_only: bool,
    /// Whether the queue pairs to which a party sends have one context together.
    pub(super) one_context: bool,
    /// Every rkey and every queue pair number ever used: what is late finds none of a successor.
    pub(super) rkeys: BTreeSet<Rkey>,
    pub(super) qpns: BTreeSet<Qpn>,
    /// Identifies this network in its endpoints.
    pub(super) tag: u64,
    events: EventQueue,
    /// From the first party to the second.
    cuts: BTreeSet<(PartyId, PartyId)>,
    stops: Vec<(u64, PartyId)>,
}

impl World {
    pub(super) fn new(seed: u64, capabilities: Capabilities) -> Self {
        let mut rng = Rng::new(seed);
        let tag = rng.next();
        Self {
            rng,
            faults: Faults::default(),
            capabilities,
            now: Duration::ZERO,
            steps: 0,
            trace: 0,
            lost: 0,
            counts: FaultCounts::default(),
            executed: 0,
            parties: Vec::new(),
            qps: IdMap::default(),
            hosts: Vec::new(),
            woken: Vec::new(),
            watched: false,
            polled_only: false,
            one_context: false,
            rkeys: BTreeSet::new(),
            qpns: BTreeSet::new(),
            tag,
            events: EventQueue::default(),
            cuts: BTreeSet::new(),
            stops: Vec::new(),
        }
    }

    pub(super) fn run(&mut self, now: Duration) -> bool {
        let before = self.steps;
        while self.next_due().is_some_and(|due| due <= now) {
            self.step();
        }
        self.now = self.now.max(now);
        self.steps != before
    }

    pub(super) fn step(&mut self) -> bool {
        let Some((at, event)) = self.events.pop() else {
            return false;
        };
        self.now = self.now.max(at);
        self.steps += 1;
        self.stop_the_due();
        self.fold(&event);
        match event {
            Event::HandOver(qpn, wqe) => self.hand_over(qpn, &wqe),
            Event::Transmit(qpn) => self.transmit(qpn),
            Event::Arrive(packet) => self.arrive(packet),
            Event::Deliver(packet) => self.deliver(packet),
            Event::Complete(completing) => self.complete(completing),
            Event::Land(landing) => self.land(landing),
            Event::Load(loading) => self.load(loading),
            Event::Timer(qpn) => self.timer(qpn),
        }
        true
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.events.next_due()
    }

    pub(super) fn schedule(&mut self, at: Duration, event: Event) -> EventKey {
        self.events.schedule(at, event)
    }

    pub(super) fn cancel(&mut self, key: EventKey) {
        self.events.cancel(key);
    }

    /// Sends a packet of `packet.from` that is on the link at `departs`, subject to the faults.
    pub(super) fn launch(&mut self, packet: Packet, departs: Duration) {
        // Each copy is subject to the other faults by itself.
        let twice = self.rng.chance(self.faults.duplicate_per_mille);
        let first = twice && self.launch_once(packet.clone(), departs);
        let second = self.launch_once(packet, departs);
        self.counts.duplicated += u64::from(first && second);
    }

    /// Returns whether the packet arrives.
    fn launch_once(&mut self, mut packet: Packet, departs: Duration) -> bool {
        if self.rng.chance(self.faults.drop_per_mille) {
            self.lost += 1;
            self.counts.dropped += 1;
            return false;
        }
        packet.corrupt = self.rng.chance(self.faults.corrupt_per_mille);
        let travel = self
            .rng
            .between(self.faults.delay_min, self.faults.delay_max);
        self.counts.delayed += u64::from(travel > Duration::ZERO);
        let host = self.parties[packet.origin].host;
        let link = host.map_or(0, |host| of_ns(self.hosts[host].profile.link.latency_ns));
        let mut at = departs + travel + duration(link);
        let strays = self.rng.chance(self.faults.reorder_per_mille);
        if strays {
            at += self.rng.between(Duration::ZERO, self.faults.reorder_window);
        }
        if let Some(qp) = self.qps.get_mut(&packet.from) {
            // One that strays may be overtaken, but does not hold up those behind it.
            if !strays {
                at = at.max(qp.last_arrival);
                qp.last_arrival = at;
            }
            self.counts.reordered += u64::from(at < qp.latest_arrival);
            qp.latest_arrival = qp.latest_arrival.max(at);
        }
        self.schedule(at, Event::Arrive(packet));
        true
    }

    /// Whether a packet from one party may reach the other now.
    pub(super) fn road(&mut self, from: usize, to: usize) -> bool {
        let cut = self.cuts.contains(&(PartyId(from), PartyId(to)));
        self.counts.cut += u64::from(cut);
        !cut && self.parties[from].transmits() && self.parties[to].transmits()
    }

    pub(super) fn stop(&mut self, party: PartyId) {
        self.parties[party.0].stopped = true;
    }

    pub(super) fn stop_after(&mut self, party: PartyId, steps: u64) {
        self.stops.push((self.steps.saturating_add(steps), party));
    }

    fn stop_the_due(&mut self) {
        let steps = self.steps;
        for (at, party) in &self.stops {
            if *at < steps {
                self.parties[party.0].stopped = true;
            }
        }
        self.stops.retain(|(at, _)| *at >= steps);
    }

    pub(super) fn cut(&mut self, from: PartyId, to: PartyId) {
        self.cuts.insert((from, to));
    }

    pub(super) fn heal(&mut self, a: PartyId, b: PartyId) {
        self.cuts.remove(&(a, b));
        self.cuts.remove(&(b, a));
    }

    /// Takes a party's device away: its queue pairs fail, and nothing comes or goes any more.
    pub(super) fn lose_device(&mut self, party: PartyId) {
        let qpns: Vec<Qpn> = self.parties[party.0].qps.values().copied().collect();
        for qpn in qpns {
            self.counts.failed_qps += 1;
            self.fail(qpn, Status::Flushed);
        }
        self.parties[party.0].lost = true;
        self.wake(party.0);
    }

    /// Overruns the completion queue of a party whose turn `which` is: its completions are lost, and
    /// its queue pairs fail without any.
    pub(super) fn overrun(&mut self, party: PartyId, which: u64) {
        let state = &mut self.parties[party.0];
        let count = state.cqs.len().max(1) as u64;
        let turn = usize::try_from(which % count).unwrap_or(0);
        let Some((&cq, queue)) = state.cqs.iter_mut().nth(turn) else {
            return;
        };
        // Slots stay in use: what would have freed them is lost, as on a queue that was overrun.
        queue.entries.clear();
        state.failures += 1;
        let qpns: Vec<Qpn> = state.qps.values().copied().collect();
        for qpn in qpns {
            let qp = self.qps.get(&qpn);
            if qp.is_none_or(|qp| qp.send.cq != cq && qp.receive.cq != cq) {
                continue;
            }
            self.cancel_timer(qpn);
            let Some(qp) = self.qps.get_mut(&qpn) else {
                continue;
            };
            qp.state = QpState::Error;
            qp.send.entries.clear();
            qp.send.sent = 0;
            qp.receive.entries.clear();
            self.counts.failed_qps += 1;
        }
        self.wake(party.0);
    }

    /// Queues a completion that frees its slots when polled.
    pub(super) fn push_completion(&mut self, index: usize, cq: CqId, entry: Entry) {
        let party = &mut self.parties[index];
        let Some(queue) = party.cqs.get_mut(&cq) else {
            return;
        };
        debug_assert!(
            queue.entries.len() < queue.depth,
            "depths were summed at creation"
        );
        queue.entries.push_back(entry);
        // One event for each arming, as on an RNIC.
        if std::mem::take(&mut queue.armed) {
            party.ring();
        }
        self.wake(index);
    }

    /// Queues a completion of a send once it is in memory, after those before it.
    pub(super) fn push_completion_at(&mut self, at: Duration, completing: Completing) {
        let Some(qp) = self.qps.get_mut(&completing.entry.qpn) else {
            return;
        };
        let at = at.max(qp.last_completion);
        qp.last_completion = at;
        if at <= self.now {
            self.complete(completing);
        } else {
            self.schedule(at, Event::Complete(completing));
        }
    }

    fn complete(&mut self, completing: Completing) {
        let Completing { party, cq, entry } = completing;
        // A queue pair destroyed meanwhile takes its completions along.
        if self.qps.contains_key(&entry.qpn) {
            self.push_completion(party, cq, entry);
        }
    }

    /// Notes that something has happened to a party.
    pub(super) fn wake(&mut self, party: usize) {
        let state = &mut self.parties[party];
        if self.watched && !std::mem::replace(&mut state.woken, true) {
            self.woken.push(party);
        }
    }

    pub(super) fn rest_cores(&mut self) {
        let now = picos(self.now);
        for party in &mut self.parties {
            party.core = party.core.min(now);
        }
    }

    /// When a party's core has done what it was charged for.
    pub(super) fn core(&self, party: PartyId) -> Picos {
        self.parties[party.0].core
    }

    /// A party's core begins a pass: what happened to the party until now, the pass finds.
    pub(super) fn begin_pass(&mut self, party: PartyId, now: Duration) {
        self.run(now);
        let party = &mut self.parties[party.0];
        party.core = party.core.max(picos(now));
    }

    /// Charges a party's core, which starts as soon as it is free; returns when it is done. Parties
    /// without a host are not charged.
    pub(super) fn charge(&mut self, party: PartyId, cost: Picos) -> Picos {
        let now = picos(self.now);
        let party = &mut self.parties[party.0];
        if party.host.is_none() {
            return now;
        }
        party.core = party.core.max(now) + cost * Picos::from(party.slowness);
        party.core
    }

    pub(super) fn complete_receive(&mut self, qpn: Qpn, recv: RecvWr, received: Received) {
        let Some(qp) = self.qps.get(&qpn) else {
            return;
        };
        let completion = received.completion(recv.wr_id, qp.id);
        let (party, cq) = (qp.party, qp.receive.cq);
        let entry = Entry {
            completion,
            qpn,
            slots: 1,
            receive: true,
        };
        self.push_completion(party, cq, entry);
    }

    fn fold(&mut self, event: &Event) {
        let [kind, a, b, c] = match event {
            Event::HandOver(qpn, wqe) => [8, qpn.0.into(), wqe.payload, 0],
            Event::Transmit(qpn) => [1, qpn.0.into(), 0, 0],
            Event::Arrive(packet) => {
                let route = u64::from(packet.from.0) << 32 | u64::from(packet.to.0);
                [2, route, packet.psn, packet.digest()]
            }
            Event::Deliver(packet) => [6, packet.to.0.into(), packet.psn, 0],
            Event::Complete(completing) => {
                let Entry {
                    completion, qpn, ..
                } = &completing.entry;
                let status = completion.status as u64;
                [7, completion.wr_id, qpn.0.into(), status]
            }
            Event::Land(landing) => [3, landing.digest(), 0, 0],
            Event::Load(loading) => [5, loading.words.len() as u64, 0, 0],
            Event::Timer(qpn) => [4, qpn.0.into(), 0, 0],
        };
        let at = u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX);
        for value in [at, kind, a, b, c] {
            // The sum keeps a zero from leaving the hash as it is.
            self.trace = mix(self.trace ^ value).wrapping_add(value);
        }
    }
}
