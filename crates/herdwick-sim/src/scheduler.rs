//! Processes on virtual cores: each is stepped when its core is free and it has something to do.
//!
//! A process polls without end. Passes that find nothing change nothing, so they are not run but
//! counted: when something happens to the port of an idle process, its next pass begins where the
//! passes since then would have ended.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    PartyId, SeededNetwork,
    host::{Picos, duration, of_ns, picos},
};

/// A poll loop on a core of its own.
pub trait Process {
    /// The port whose completions and inbound WRITEs the process polls.
    fn party(&self) -> PartyId;

    /// Another port of its own that it polls; what its pass does there takes time beside the rest.
    fn other_party(&self) -> Option<PartyId> {
        None
    }

    /// One pass, at `now`.
    fn step(&mut self, now: Duration) -> Step;
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Whether it changed anything; if not, the next one will not either before something happens.
    pub moved: bool,
    /// What it costs beside what the port charges for, in nanoseconds.
    pub cost_ns: f64,
    /// The time of the next pass at the latest.
    pub deadline: Option<Duration>,
}

/// Runs processes and their network in virtual time.
pub struct Scheduler<'a> {
    network: SeededNetwork,
    processes: Vec<Slot<'a>>,
    /// Which process serves a party.
    of_party: Vec<Option<usize>>,
    ready: BTreeSet<(Picos, usize)>,
    passes: u64,
}

struct Slot<'a> {
    process: &'a mut dyn Process,
    /// Its place in `ready`.
    due: Option<Picos>,
    /// Where idle passes began, and how long one takes; `None`: not idle.
    idle: Option<(Picos, Picos)>,
    busy: Picos,
    /// When its core has done what it is busy with.
    busy_until: Picos,
}

impl<'a> Scheduler<'a> {
    /// Makes a scheduler of `processes`, each of which is ready as soon as its core is free.
    #[must_use]
    pub fn new(network: &SeededNetwork, processes: Vec<&'a mut dyn Process>) -> Self {
        let start = picos(network.now());
        let mut world = network.world();
        world.watched = true;
        let mut of_party = Vec::new();
        for (index, process) in processes.iter().enumerate() {
            for PartyId(party) in std::iter::once(process.party()).chain(process.other_party()) {
                if of_party.len() <= party {
                    of_party.resize(party + 1, None);
                }
                of_party[party] = Some(index);
            }
        }
        let slots = processes.into_iter().map(|process| {
            let parties = std::iter::once(process.party()).chain(process.other_party());
            let free = parties.map(|party| world.core(party)).max();
            let free = free.unwrap_or(0).max(start);
            Slot {
                process,
                due: Some(free),
                idle: None,
                busy: free - start,
                busy_until: free,
            }
        });
        let processes: Vec<_> = slots.collect();
        drop(world);
        let due = processes.iter().zip(0..);
        Self {
            network: network.clone(),
            ready: due.filter_map(|(slot, i)| Some((slot.due?, i))).collect(),
            processes,
            of_party,
            passes: 0,
        }
    }

    /// Runs until `end`.
    pub fn run(&mut self, end: Duration) {
        loop {
            let event = self.network.world().next_due();
            let pass = self.ready.first().copied();
            let event_first = match (event, pass) {
                // At the same time the event is first: a pass finds what has happened by then.
                (Some(event), Some((at, _))) => event <= duration(at),
                (event, _) => event.is_some(),
            };
            if event_first {
                if event.is_some_and(|at| at > end) {
                    break;
                }
                self.network.step();
                self.wake();
            } else if let Some((at, index)) = pass.filter(|(at, _)| duration(*at) <= end) {
                self.ready.remove(&(at, index));
                self.pass(at, index);
            } else {
                break;
            }
        }
        // Nothing is due until `end`: only the time moves on.
        self.network.run(end);
        self.wake();
    }

    /// Number of passes so far that were run, not counted.
    #[must_use]
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Virtual time for which process `index` did something, from the start of this scheduler until now.
    #[must_use]
    pub fn busy(&self, index: usize) -> Duration {
        let slot = &self.processes[index];
        // What the core was charged for beyond this time is not done yet.
        let ahead = slot.busy_until.saturating_sub(picos(self.network.now()));
        duration(slot.busy.saturating_sub(ahead))
    }

    fn pass(&mut self, at: Picos, index: usize) {
        self.passes += 1;
        let slot = &mut self.processes[index];
        slot.due = None;
        slot.idle = None;
        let (party, other) = (slot.process.party(), slot.process.other_party());
        let now = duration(at);
        for party in std::iter::once(party).chain(other) {
            self.network.world().begin_pass(party, now);
        }
        let step = slot.process.step(now);
        let mut world = self.network.world();
        let other = other.map_or(0, |other| world.charge(other, 0));
        let end = world.charge(party, of_ns(step.cost_ns));
        // At least a nanosecond, so that a process whose passes cost nothing does not stop the time.
        let end = end.max(other).max(at + 1000);
        drop(world);
        if step.moved {
            slot.busy += end - at;
            slot.busy_until = end;
            self.schedule(index, end);
        } else {
            slot.idle = Some((end, end - at));
            if let Some(deadline) = step.deadline {
                self.schedule(index, picos(deadline).max(end));
            }
        }
        self.wake();
    }

    fn schedule(&mut self, index: usize, at: Picos) {
        let slot = &mut self.processes[index];
        if let Some(due) = slot.due {
            if due <= at {
                return;
            }
            self.ready.remove(&(due, index));
        }
        slot.due = Some(at);
        self.ready.insert((at, index));
    }

    /// Has the processes run that something has happened to.
    fn wake(&mut self) {
        let mut world = self.network.world();
        if world.woken.is_empty() {
            return;
        }
        let now = picos(world.now);
        let woken = std::mem::take(&mut world.woken);
        for party in &woken {
            world.parties[*party].woken = false;
        }
        drop(world);
        for party in woken {
            let index = self.of_party.get(party).copied().flatten();
            let Some((index, (since, pass))) =
                index.and_then(|index| Some((index, self.processes[index].idle?)))
            else {
                continue;
            };
            // Rounded up: an idle pass that was under way finds nothing, and the next one begins
            // behind it.
            let passes = now.saturating_sub(since).div_ceil(pass);
            self.processes[index].idle = None;
            self.schedule(index, since + passes * pass);
        }
    }
}
