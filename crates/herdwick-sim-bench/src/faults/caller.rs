//! A client process under faults: it draws requests, and records the replies.

use std::{cell::RefCell, rc::Rc, time::Duration};

use herdwick_sim::{Cpu, PartyId, Process, Step};

use super::{history::Histories, machine::Machine};
use crate::{client::SPINS, keys::Draws};

/// Of so many requests one is followed by a rest, so that the server's workers and the paths notice
/// pauses.
const REST_IN: u32 = 48;
/// The longest rest, in nanoseconds.
const REST_MAX: u32 = 40_000;

/// A client process. Without a machine it has no lease, and does nothing.
pub(super) struct Caller {
    machine: Option<Box<dyn Machine>>,
    party: PartyId,
    number: usize,
    histories: Rc<RefCell<Histories>>,
    window: usize,
    cpu: Cpu,
    draws: Draws,
    /// Requests under way.
    open: usize,
    rests_until: Duration,
    /// How far its clock is ahead.
    pub(super) ahead: Duration,
    /// Its passes cost so many times what they should.
    pub(super) slowness: u32,
    /// Requests that it may still begin.
    pub(super) allowance: u64,
    /// Passes that were slow.
    pub(super) slow_passes: u64,
    spins: u32,
}

impl Caller {
    pub(super) fn new(
        number: usize,
        seed: u64,
        window: usize,
        cpu: &Cpu,
        (machine, histories): (Box<dyn Machine>, &Rc<RefCell<Histories>>),
    ) -> Self {
        Self {
            party: machine.party(),
            machine: Some(machine),
            number,
            histories: Rc::clone(histories),
            window,
            cpu: cpu.clone(),
            draws: Draws::new(seed ^ (number as u64 + 1) << 32),
            open: 0,
            rests_until: Duration::ZERO,
            ahead: Duration::ZERO,
            slowness: 1,
            allowance: u64::MAX,
            slow_passes: 0,
            spins: 0,
        }
    }

    pub(super) fn has_machine(&self) -> bool {
        self.machine.is_some()
    }

    /// Requests under way.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    pub(super) fn is_broken(&self) -> bool {
        self.machine
            .as_ref()
            .is_some_and(|machine| machine.is_broken())
    }

    pub(super) fn set_machine(&mut self, machine: Box<dyn Machine>) {
        self.party = machine.party();
        self.machine = Some(machine);
        self.spins = 0;
    }

    /// Closes the machine and its port; requests that have no outcome then have an unknown one.
    pub(super) fn leave(&mut self, now: Duration) {
        if let Some(mut machine) = self.machine.take() {
            let histories = &self.histories;
            machine.close(now + self.ahead, &mut |token, told| {
                histories.borrow_mut().end(token, nanos(now), told);
            });
        }
        self.abandon(now);
    }

    /// Loses the machine and its port at once, as when the process is killed.
    pub(super) fn die(&mut self, now: Duration) {
        self.machine = None;
        self.abandon(now);
        // The process that takes its place has a clock of its own.
        self.ahead = Duration::ZERO;
    }

    fn abandon(&mut self, now: Duration) {
        let mut histories = self.histories.borrow_mut();
        histories.abandon(self.number, nanos(now));
        self.open = 0;
    }

    fn poll(&mut self, now: Duration) -> usize {
        let Self {
            machine: Some(machine),
            histories,
            ahead,
            ..
        } = self
        else {
            return 0;
        };
        let mut ended = 0;
        machine.poll(now + *ahead, &mut |token, told| {
            histories.borrow_mut().end(token, nanos(now), told);
            ended += 1;
        });
        // A request that ends twice is a violation of its history, and must not end the run here.
        self.open = self.open.saturating_sub(ended);
        ended
    }

    fn begin(&mut self, now: Duration) -> usize {
        let Some(machine) = &mut self.machine else {
            return 0;
        };
        let mut begun = 0;
        let mut histories = self.histories.borrow_mut();
        while self.allowance > 0 && now >= self.rests_until && self.open < self.window {
            // The machine sees the client's clock. Histories are in the network's time, as they
            // compare clients.
            let own = now + self.ahead;
            let room = histories.begin(self.number, nanos(now), |key, ask, token| {
                machine.submit(own, key, ask, token)
            });
            if !room {
                break;
            }
            begun += 1;
            self.open += 1;
            self.allowance -= 1;
            if self.draws.below(REST_IN) == 0 {
                let rest = self.draws.below(REST_MAX);
                self.rests_until = now + Duration::from_nanos(rest.into());
            }
        }
        drop(histories);
        machine.flush(now + self.ahead);
        begun
    }
}

impl Process for Caller {
    fn party(&self) -> PartyId {
        self.party
    }

    fn step(&mut self, now: Duration) -> Step {
        let moved = self.poll(now) + self.begin(now);
        self.spins = if moved > 0 { 0 } else { self.spins + 1 };
        self.slow_passes += u64::from(self.slowness > 1);
        let machine = self.machine.as_ref();
        let due = machine.and_then(|machine| machine.deadline());
        // From the client's clock to the network's.
        let due = due.map(|due| due.saturating_sub(self.ahead));
        let rests = (self.allowance > 0 && self.rests_until > now).then_some(self.rests_until);
        Step {
            moved: self.spins <= SPINS && machine.is_some(),
            cost_ns: self.cpu.pass_ns + moved as f64 * self.cpu.request_ns,
            deadline: due.into_iter().chain(rests).min(),
        }
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
