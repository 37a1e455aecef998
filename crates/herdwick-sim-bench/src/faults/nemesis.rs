//! The nemesis: it brings the faults of the schedule over the processes and the network, and takes
//! them back.

use std::time::Duration;

use herdwick_sim::{Faults, PartyId, Process};

use super::{
    bench::{Bench, Condition, WELL},
    kind::{Fault, FaultKind},
    machine::Servers,
    run::FaultSpan,
};

/// Of so many faults that may hit either, one hits the server.
const SERVER_IN: u64 = 4;

/// The party that a fault hits.
enum Victim {
    Client(usize),
    Worker(usize),
}

impl<S: Servers> Bench<S> {
    /// Begins the faults that are due, and ends those that have lasted.
    pub(super) fn strike(&mut self) {
        let now = self.network.now();
        while let Some(place) = self.lasting.iter().position(|(at, ..)| *at <= now) {
            let (_, fault, parties) = self.lasting.swap_remove(place);
            self.end(&fault, &parties);
        }
        while self.start + self.next.at <= now {
            // Drawn whether or not it happens: a fault keeps its number and its draws when others
            // are left out.
            let fault = std::mem::replace(&mut self.next, self.schedule.draw());
            let chosen = self.only.as_ref();
            if chosen.is_none_or(|only| only.contains(&fault.number)) {
                self.happened.push(fault.number);
                self.injected[fault.kind.index()].faults += 1;
                self.note_span(&fault);
                self.begin(&fault);
            }
        }
    }

    /// Ends all faults at once, for good.
    pub(super) fn end_faults(&mut self) {
        self.over = true;
        let now = self.since_start();
        for span in &mut self.spans {
            span.until = span.until.min(now);
        }
        while let Some((_, fault, parties)) = self.lasting.pop() {
            self.end(&fault, &parties);
        }
    }

    /// Notes when a fault begins and ends.
    fn note_span(&mut self, fault: &Fault) {
        let from = self.since_start();
        let at_once = [
            FaultKind::Device,
            FaultKind::Overrun,
            FaultKind::Clock,
            FaultKind::Revoke,
        ];
        let lasts = if at_once.contains(&fault.kind) {
            Duration::ZERO
        } else {
            fault.lasts
        };
        self.spans.push(FaultSpan {
            kind: fault.kind,
            from,
            until: from + lasts,
        });
    }

    fn victim(&self, fault: &Fault) -> Victim {
        // What is left of the number after the choice of the side.
        let one = |count: usize| usize::try_from(fault.who / SERVER_IN % count as u64).unwrap_or(0);
        if fault.who.is_multiple_of(SERVER_IN) {
            Victim::Worker(one(self.conditions.len()))
        } else {
            Victim::Client(one(self.places.len()))
        }
    }

    /// The client that a fault hits that hits clients alone.
    fn client(&self, fault: &Fault) -> usize {
        usize::try_from(fault.who % self.places.len() as u64).unwrap_or(0)
    }

    fn worker_party(&mut self, worker: usize) -> PartyId {
        self.servers.workers()[worker].party()
    }

    fn party(&mut self, fault: &Fault) -> Option<PartyId> {
        match self.victim(fault) {
            Victim::Worker(worker) => Some(self.worker_party(worker)),
            Victim::Client(client) => {
                let place = &self.places[client];
                // One without a lease has no queue pairs; one that is being killed loses them anyway.
                let lives = place.caller.has_machine() && !place.dead;
                lives.then(|| place.caller.party())
            }
        }
    }

    fn effect(&mut self, fault: &Fault, count: usize) {
        self.injected[fault.kind.index()].effects += count as u64;
    }

    fn begin(&mut self, fault: &Fault) {
        let parties = match fault.kind {
            FaultKind::Cut => self.cut(fault),
            FaultKind::Device | FaultKind::Overrun => {
                self.fail(fault);
                return;
            }
            FaultKind::Slow | FaultKind::Pause => {
                self.hinder(fault, fault.kind == FaultKind::Pause);
                Vec::new()
            }
            FaultKind::Kill => self.kill(fault),
            FaultKind::Restart => {
                self.stop_server(fault);
                return;
            }
            FaultKind::Clock => {
                self.step_clock(fault);
                return;
            }
            FaultKind::Revoke => {
                let client = self.client(fault);
                let leases = usize::from(self.places[client].lease.is_some());
                self.effect(fault, leases);
                self.revoke(client);
                return;
            }
            _ => Vec::new(),
        };
        let until = self.network.now() + fault.lasts;
        self.lasting.push((until, *fault, parties));
        self.set_faults();
    }

    fn end(&mut self, fault: &Fault, parties: &[PartyId]) {
        let now = self.network.now();
        match fault.kind {
            FaultKind::Cut => {
                for pair in parties.chunks_exact(2) {
                    self.network.heal(pair[0], pair[1]);
                }
            }
            FaultKind::Slow | FaultKind::Pause => self.relieve(fault),
            FaultKind::Kill => {
                let client = self.client(fault);
                // Only now the server learns of the death: until then it holds the lease of a
                // process that is gone.
                self.places[client].caller.die(now);
                self.places[client].dead = false;
                self.revoke(client);
                self.places[client].joins_at = Some(self.soon());
            }
            _ => {}
        }
        self.set_faults();
    }

    /// Loses packets one way between a client and the workers.
    fn cut(&mut self, fault: &Fault) -> Vec<PartyId> {
        let place = &self.places[self.client(fault)];
        let client = place.caller.party();
        let mut parties = Vec::new();
        for worker in 0..self.conditions.len() {
            let worker = self.worker_party(worker);
            let (from, to) = match fault.amount % 2 {
                0 => (client, worker),
                _ => (worker, client),
            };
            self.network.cut(from, to);
            parties.extend([from, to]);
        }
        parties
    }

    fn fail(&mut self, fault: &Fault) {
        let before = self.network.fault_counts().failed_qps;
        if let Some(party) = self.party(fault) {
            match fault.kind {
                FaultKind::Device => self.network.lose_device(party),
                _ => self.network.overrun(party, fault.amount),
            }
        }
        let failed = self.network.fault_counts().failed_qps - before;
        self.injected[fault.kind.index()].effects += failed;
    }

    fn hinder(&mut self, fault: &Fault, pause: bool) {
        let slowness = 2 + (fault.amount % 30) as u32;
        let open = match self.victim(fault) {
            Victim::Worker(worker) => {
                let condition = &mut self.conditions[worker];
                condition.paused |= pause;
                condition.slowness = if pause { condition.slowness } else { slowness };
                self.histories.borrow().open()
            }
            Victim::Client(client) => {
                let place = &mut self.places[client];
                place.paused |= pause;
                if !pause {
                    place.caller.slowness = slowness;
                }
                place.caller.open()
            }
        };
        if pause {
            self.effect(fault, open);
        }
    }

    fn relieve(&mut self, fault: &Fault) {
        let pause = fault.kind == FaultKind::Pause;
        match self.victim(fault) {
            Victim::Worker(worker) => {
                let condition = &mut self.conditions[worker];
                // Of two such faults on one worker the first that ends relieves it of both; so with
                // a client.
                *condition = Condition {
                    paused: condition.paused && !pause,
                    slowness: if pause {
                        condition.slowness
                    } else {
                        WELL.slowness
                    },
                };
            }
            Victim::Client(client) => {
                let place = &mut self.places[client];
                place.paused &= !pause;
                if !pause {
                    place.caller.slowness = WELL.slowness;
                }
            }
        }
    }

    /// Kills a client while it sends.
    fn kill(&mut self, fault: &Fault) -> Vec<PartyId> {
        let client = self.client(fault);
        let place = &mut self.places[client];
        let party = place.caller.party();
        let open = place.caller.open();
        place.dead = true;
        // At any of the next events, so that it may be in the middle of a message.
        self.network.stop_after(party, fault.amount % 40);
        self.effect(fault, open);
        Vec::new()
    }

    /// Kills the server: it starts again after a while, without its items unless they outlive it.
    fn stop_server(&mut self, fault: &Fault) {
        if self.down_until.is_some() {
            return;
        }
        let open = self.histories.borrow().open();
        self.effect(fault, open);
        for party in self.servers.killed() {
            self.network.stop(party);
        }
        // The leases end with the process.
        for index in 0..self.places.len() {
            if self.places[index].lease.take().is_some() {
                self.places[index].learns_at = Some(self.soon());
            }
        }
        self.down_until = Some(self.network.now() + fault.lasts);
        // No history may span the loss of the items, which would break it.
        if !S::ITEMS_OUTLIVE {
            self.histories.borrow_mut().retire_all();
        }
    }

    fn step_clock(&mut self, fault: &Fault) {
        if let Victim::Client(client) = self.victim(fault) {
            let ahead = Duration::from_nanos(fault.amount % 3_000_000);
            let caller = &mut self.places[client].caller;
            caller.ahead += ahead;
            let open = caller.open();
            self.effect(fault, open);
        } else {
            self.servers.step_clock((fault.amount % 3600) as u32);
            self.effect(fault, 1);
        }
    }

    /// Gives the network the faults that last.
    fn set_faults(&mut self) {
        let mut faults = Faults::default();
        for (_, fault, _) in &self.lasting {
            // Of two faults of a kind the later one in the list counts.
            let amount = |times: &[u16]| times[(fault.amount % times.len() as u64) as usize];
            let micros = |most: u64| Duration::from_nanos(1 + fault.amount % (most * 1000));
            match fault.kind {
                FaultKind::Loss => faults.drop_per_mille = amount(&[5, 20, 100, 300]),
                FaultKind::Duplicate => faults.duplicate_per_mille = amount(&[50, 200]),
                FaultKind::Reorder => {
                    faults.reorder_per_mille = amount(&[50, 200]);
                    faults.reorder_window = micros(100);
                }
                FaultKind::Delay => faults.delay_max = micros(20),
                FaultKind::Corrupt => faults.corrupt_per_mille = amount(&[5, 50, 200]),
                FaultKind::NotReady => faults.not_ready_per_mille = amount(&[20, 200]),
                FaultKind::Tear => {
                    faults.tear = micros(3);
                    faults.tear_reads = micros(3);
                }
                _ => {}
            }
        }
        self.network.set_faults(faults);
    }

    /// Reads how often each fault of the network had an effect.
    pub(super) fn count_effects(&mut self) {
        let counts = self.network.fault_counts();
        let callers = self.places.iter().map(|place| place.caller.slow_passes);
        let slow = self.slow_passes.get() + callers.sum::<u64>();
        for (kind, count) in [
            (FaultKind::Loss, counts.dropped),
            (FaultKind::Duplicate, counts.duplicated),
            (FaultKind::Reorder, counts.reordered),
            (FaultKind::Delay, counts.delayed),
            (FaultKind::Corrupt, counts.corrupted),
            (FaultKind::Tear, counts.torn),
            (FaultKind::NotReady, counts.not_ready),
            (FaultKind::Cut, counts.cut),
            (FaultKind::Slow, slow),
        ] {
            // The counters are those of the whole run, so each replaces what it was at the last
            // reading.
            self.injected[kind.index()].effects = count;
        }
    }
}
