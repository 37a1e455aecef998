//! A run under faults: the processes, their leases, which are kept as a server's manager does, and the
//! end, when all faults are gone.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use herdwick_sim::{Cpu, PartyId, Process, Scheduler, SeededDevice, SeededNetwork, Step};

use super::{
    caller::Caller,
    history::{Histories, Outcomes},
    kind::{Fault, FaultKind, Schedule},
    machine::Servers,
    run::{FaultReport, FaultRun, FaultSpan, Injected},
};
use crate::{keys::Draws, run::RunError};

/// How often leases are looked after.
const TICK: Duration = Duration::from_micros(50);
/// How long it takes at most until a client learns that its lease is over, and to get another.
const NEWS_MAX: u32 = 200_000;
/// Virtual time for a request that is answered, on average, at most: a run that takes longer hangs.
const PER_REQUEST: Duration = Duration::from_micros(200);
/// Virtual time after the last fault until all clients must be served again.
const RECOVERY_MAX: Duration = Duration::from_millis(400);
/// Requests of each client after the faults.
const LAST_REQUESTS: u64 = 4;
/// Rounds of them in which all have to be answered once.
const ROUNDS_MAX: usize = 4;

/// A client's place: one client after another has it.
pub(super) struct Place<L> {
    pub(super) caller: Caller,
    device: SeededDevice,
    pub(super) lease: Option<L>,
    /// When it learns that its lease is over.
    pub(super) learns_at: Option<Duration>,
    /// When a client joins.
    pub(super) joins_at: Option<Duration>,
    /// It is not run.
    pub(super) paused: bool,
    /// It is not run, and will not be.
    pub(super) dead: bool,
}

/// What is done to a worker.
#[derive(Clone, Copy)]
pub(super) struct Condition {
    pub(super) paused: bool,
    pub(super) slowness: u32,
}

pub(super) const WELL: Condition = Condition {
    paused: false,
    slowness: 1,
};

/// A run.
pub(super) struct Bench<S: Servers> {
    pub(super) network: SeededNetwork,
    pub(super) servers: S,
    pub(super) places: Vec<Place<S::Lease>>,
    pub(super) conditions: Vec<Condition>,
    /// The server process is gone until then.
    pub(super) down_until: Option<Duration>,
    pub(super) histories: Rc<RefCell<Histories>>,
    pub(super) schedule: Schedule,
    pub(super) next: Fault,
    pub(super) only: Option<Vec<u64>>,
    pub(super) happened: Vec<u64>,
    pub(super) spans: Vec<FaultSpan>,
    progress: Vec<(Duration, u64)>,
    /// Faults that last, and when they end.
    pub(super) lasting: Vec<(Duration, Fault, Vec<PartyId>)>,
    pub(super) injected: [Injected; FaultKind::ALL.len()],
    pub(super) draws: Draws,
    epoch: u16,
    operations: u64,
    pub(super) start: Duration,
    /// No fault happens any more.
    pub(super) over: bool,
    /// Passes of workers that were slow.
    pub(super) slow_passes: Cell<u64>,
}

impl<S: Servers> Bench<S> {
    pub(super) fn new(
        (run, network, devices, kinds, cpu): (
            &FaultRun,
            &SeededNetwork,
            Vec<SeededDevice>,
            &[FaultKind],
            &Cpu,
        ),
        mut servers: S,
    ) -> Result<Self, RunError> {
        let histories = Histories::new(run.seed, S::ASKS, run.clients * run.window);
        let histories = Rc::new(RefCell::new(histories));
        let mut places = Vec::with_capacity(run.clients);
        for (number, device) in devices.into_iter().enumerate() {
            // Epochs begin at 1, and `check` allows 4096 clients at most.
            let (machine, lease) = servers.join(&device, (number + 1) as u16)?;
            let caller = (machine, &histories);
            places.push(Place {
                caller: Caller::new(number, run.seed, run.window, cpu, caller),
                device,
                lease: Some(lease),
                learns_at: None,
                joins_at: None,
                paused: false,
                dead: false,
            });
        }
        // Kinds that this seed leaves out happen if there are no others: alone, each is survived.
        let kinds = if kinds.is_empty() { &run.kinds } else { kinds };
        let mut schedule = Schedule::new(run.seed, kinds);
        Ok(Self {
            network: network.clone(),
            conditions: vec![WELL; servers.workers().len()],
            servers,
            epoch: places.len() as u16,
            places,
            down_until: None,
            histories,
            next: schedule.draw(),
            schedule,
            only: run.only.clone(),
            happened: Vec::new(),
            spans: Vec::new(),
            progress: Vec::new(),
            lasting: Vec::new(),
            injected: [Injected::default(); FaultKind::ALL.len()],
            // `news` in ASCII: a sequence of its own beside the others of the seed.
            draws: Draws::new(run.seed ^ 0x6e65_7773_0000),
            operations: run.operations,
            start: network.now(),
            over: false,
            slow_passes: Cell::new(0),
        })
    }

    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<FaultReport, RunError> {
        let limit = RECOVERY_MAX + PER_REQUEST * u32::try_from(self.operations).unwrap_or(u32::MAX);
        while self.goes_on() && self.outcomes().begun < self.operations {
            if self.since_start() > limit {
                let words = format!("only {} requests in {limit:?}", self.outcomes().begun);
                self.histories.borrow_mut().violate(words);
            }
            self.advance()?;
            self.strike();
        }
        self.end_faults();
        // No request begins any more, so that all can end.
        self.allow(0);
        self.settle()?;
        self.serve_again()?;
        let mut histories = self.histories.borrow_mut();
        // Histories of keys that are still in use are checked, too.
        if histories.violation.is_none() {
            histories.retire_all();
        }
        let (outcomes, violation) = (histories.outcomes, histories.violation.take());
        drop(histories);
        self.count_effects();
        Ok(FaultReport {
            begun: outcomes.begun,
            answered: outcomes.answered,
            unknown: outcomes.unknown,
            keys: outcomes.keys,
            injected: self.injected,
            spans: self.spans,
            progress: self.progress,
            happened: self.happened,
            trace: self.network.trace(),
            events: self.network.steps(),
            took: self.network.now() - self.start,
            violation,
        })
    }

    pub(super) fn outcomes(&self) -> Outcomes {
        self.histories.borrow().outcomes
    }

    fn goes_on(&self) -> bool {
        self.histories.borrow().violation.is_none()
    }

    pub(super) fn since_start(&self) -> Duration {
        self.network.now().saturating_sub(self.start)
    }

    /// Draws a moment in which news travels.
    pub(super) fn soon(&mut self) -> Duration {
        self.network.now() + Duration::from_nanos(self.draws.below(NEWS_MAX).into())
    }

    /// Runs the processes until something is to be done, then looks after the leases.
    fn advance(&mut self) -> Result<(), RunError> {
        let now = self.network.now();
        let ends = self.lasting.iter().map(|(at, ..)| *at);
        let strikes = (!self.over).then(|| self.start + self.next.at);
        let due = ends.chain(strikes).min().unwrap_or(Duration::MAX);
        // A fault that is overdue must not set the end before `now`.
        let end = due.clamp(now, now + TICK);
        let mut workers: Vec<Governed<'_>> = self
            .servers
            .workers()
            .into_iter()
            .zip(&self.conditions)
            .filter(|(_, condition)| !condition.paused && self.down_until.is_none())
            .map(|(process, condition)| {
                for party in std::iter::once(process.party()).chain(process.other_party()) {
                    self.network.slow(party, condition.slowness);
                }
                Governed {
                    process,
                    is_slow: condition.slowness > 1,
                    slow_passes: &self.slow_passes,
                }
            })
            .collect();
        let mut processes: Vec<&mut dyn Process> = Vec::new();
        processes.extend(workers.iter_mut().map(|worker| worker as &mut dyn Process));
        for place in &mut self.places {
            if !place.paused && !place.dead && place.caller.has_machine() {
                self.network
                    .slow(place.caller.party(), place.caller.slowness);
                processes.push(&mut place.caller);
            }
        }
        Scheduler::new(&self.network, processes).run(end);
        let answered = self.outcomes().answered;
        self.progress.push((self.since_start(), answered));
        self.look_after()
    }

    /// Lets clients leave that have to, join that may, and the server start again.
    fn look_after(&mut self) -> Result<(), RunError> {
        let now = self.network.now();
        if self.down_until.is_some_and(|until| until <= now) {
            self.down_until = None;
            self.start_again(false)?;
        }
        if self.down_until.is_none() && self.servers.is_lost() {
            self.start_again(true)?;
        }
        for index in 0..self.places.len() {
            self.look_after_place(index, now)?;
        }
        Ok(())
    }

    fn look_after_place(&mut self, index: usize, now: Duration) -> Result<(), RunError> {
        let place = &self.places[index];
        let unheard = place.lease.as_ref();
        if self.down_until.is_none() && unheard.is_some_and(|lease| !self.servers.hears(lease)) {
            self.revoke(index);
        }
        let place = &mut self.places[index];
        if place.paused || place.dead {
            return Ok(());
        }
        let learns = place.learns_at.is_some_and(|at| at <= now);
        if place.caller.has_machine() && (learns || place.caller.is_broken()) {
            place.caller.leave(now);
            self.revoke(index);
            let place_at = self.soon();
            self.places[index].joins_at = Some(place_at);
        }
        let place = &mut self.places[index];
        let takes = self.down_until.is_none() && self.servers.takes_clients();
        if takes && place.joins_at.is_some_and(|at| at <= now) {
            place.joins_at = None;
            place.learns_at = None;
            // Never 0, which no lease has.
            self.epoch = self.epoch.wrapping_add(1).max(1);
            let (machine, lease) = self.servers.join(&place.device, self.epoch)?;
            place.lease = Some(lease);
            place.caller.set_machine(machine);
        }
        Ok(())
    }

    /// Ends a lease at the server; its client learns it later.
    pub(super) fn revoke(&mut self, index: usize) {
        if let Some(lease) = self.places[index].lease.take() {
            if self.down_until.is_none() {
                self.servers.dismiss(lease);
            }
            self.places[index].learns_at = Some(self.soon());
        }
    }

    /// Opens other ends of the server: no lease is left.
    fn start_again(&mut self, keeps: bool) -> Result<(), RunError> {
        for index in 0..self.places.len() {
            self.revoke(index);
        }
        // Without its items the server would break every history: other keys take the place of all.
        if !self.servers.restart(keeps)? {
            self.histories.borrow_mut().retire_all();
        }
        Ok(())
    }

    /// Lets each client begin so many more requests.
    fn allow(&mut self, requests: u64) {
        for place in &mut self.places {
            place.caller.allowance = requests;
        }
    }

    /// Whether every client has a lease that serves it.
    fn is_whole(&self) -> bool {
        let served = |place: &Place<S::Lease>| {
            place.lease.is_some() && place.learns_at.is_none() && !place.caller.is_broken()
        };
        self.places.iter().all(served)
    }

    /// Runs until no request is under way and every client has a lease.
    fn settle(&mut self) -> Result<(), RunError> {
        let limit = self.network.now() + RECOVERY_MAX;
        while self.goes_on() {
            let open = self.histories.borrow().open();
            if open == 0 && self.is_whole() {
                break;
            }
            if self.network.now() > limit {
                let words = format!(
                    "{RECOVERY_MAX:?} after the faults {open} requests have no outcome; all clients are served: {}",
                    self.is_whole()
                );
                self.histories.borrow_mut().violate(words);
            }
            self.advance()?;
        }
        Ok(())
    }

    /// Every client is answered, once the faults are gone. One whose queue pairs failed without a
    /// completion learns it when it posts, so it may take more than one round.
    fn serve_again(&mut self) -> Result<(), RunError> {
        for _ in 1..ROUNDS_MAX {
            if self.serve_round()? {
                return Ok(());
            }
        }
        if !self.serve_round()? {
            let words = "after the faults a client is not answered".to_owned();
            self.histories.borrow_mut().violate(words);
        }
        Ok(())
    }

    /// Has every client make requests; returns whether all were answered.
    fn serve_round(&mut self) -> Result<bool, RunError> {
        let before = self.outcomes();
        self.allow(LAST_REQUESTS);
        let wanted = before.begun + LAST_REQUESTS * self.places.len() as u64;
        let limit = self.network.now() + RECOVERY_MAX;
        while self.goes_on() && self.outcomes().begun < wanted && self.network.now() < limit {
            self.advance()?;
        }
        self.settle()?;
        let answered = self.outcomes().answered - before.answered;
        Ok(answered == wanted - before.begun)
    }
}

/// A worker whose passes may be slow.
struct Governed<'a> {
    process: &'a mut dyn Process,
    is_slow: bool,
    slow_passes: &'a Cell<u64>,
}

impl Process for Governed<'_> {
    fn party(&self) -> PartyId {
        self.process.party()
    }

    fn other_party(&self) -> Option<PartyId> {
        self.process.other_party()
    }

    fn step(&mut self, now: Duration) -> Step {
        if self.is_slow {
            self.slow_passes.set(self.slow_passes.get() + 1);
        }
        self.process.step(now)
    }
}
