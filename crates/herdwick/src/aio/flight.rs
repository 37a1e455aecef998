//! What the calls and the driver share: the session, and the requests in line and in flight.

use std::{collections::VecDeque, task::Waker, time::Duration};

use super::{
    outcome::{Outcome, outcome, text},
    owned::OwnedRequest,
    queue::WaitQueue,
};
use crate::{Answer, Cause, DialError, Key, Lost, Op, Session, Ticket};

/// A line as short as this may be of dropped calls alone.
const GIVEN_UP_MAX: usize = 64;

/// A client without calls keeps no more slots: a crowd is rare.
const SLOTS_KEPT: usize = 4096;

/// The state of a client.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) session: Option<Session>,
    pub(super) flight: Flight,
    pub(super) queue: WaitQueue,
    pub(super) dials: Dials,
    /// Whether the driver was spawned, and has not ended.
    pub(super) is_driven: bool,
    /// Whether the driver sleeps, so that it has to be woken for what was submitted.
    pub(super) is_asleep: bool,
}

impl State {
    /// Sees to it that nothing is sent to a server that has gone since the last answer. Nothing may be in flight.
    pub(super) fn check(&mut self, now: Duration) {
        if let Some(session) = &mut self.session {
            session.check(now);
            if session.broken().is_some() {
                self.session = None;
            }
        }
    }
}

/// How dialling went.
#[derive(Debug, Default)]
pub(super) struct Dials {
    /// Counts the dials that failed.
    pub(super) failed: u64,
    /// Why the last one failed, and until when no call dials.
    pub(super) failure: Option<(DialError, Duration)>,
}

/// Requests that calls have left with the driver, and those in flight.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// What the driver has to submit, in the order of the turns.
    line: VecDeque<Standing>,
    /// How many of the last in `line` the driver has not seen.
    unseen: usize,
    /// How many in `line` belong to calls that are over.
    given_up: usize,
    /// The slots of the tickets from `first` on; `None`: answered.
    slots_of: VecDeque<Option<usize>>,
    first: u64,
    /// A slot belongs to one call from its first attempt until the call has taken the outcome and the session
    /// has answered, in either order. So an index stands for one request.
    slots: Vec<FlightSlot>,
    free: Vec<usize>,
    in_flight: usize,
    /// Whether a call has submitted what was not flushed.
    is_unflushed: bool,
    /// No call is due before.
    next_due: Option<Duration>,
}

/// A place in the line.
#[derive(Clone, Copy, Debug)]
struct Standing {
    turn: u64,
    slot: usize,
}

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    /// Until then.
    At(Duration),
    /// So long from when the driver next reads the clock, which spares each call to read it.
    Within(Duration),
}

#[derive(Debug, Default)]
struct FlightSlot {
    waker: Option<Waker>,
    outcome: Option<Outcome>,
    lines: Vec<(String, String)>,
    asked: OwnedRequest,
    limit: Option<Limit>,
    is_read: bool,
    stage: SlotStage,
    /// The call is over, or was dropped.
    is_abandoned: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotStage {
    #[default]
    InLine,
    InFlight,
    /// The session has answered, or ended, or will not be asked.
    Over,
}

impl Flight {
    /// Returns how many are in flight.
    pub(super) fn count(&self) -> usize {
        self.in_flight
    }

    /// Whether the driver has something to submit: calls that were given up are none.
    pub(super) fn has_line(&self) -> bool {
        self.line.len() > self.given_up
    }

    /// Returns the turn of the first in the line.
    pub(super) fn first_turn(&self) -> Option<u64> {
        self.line.front().map(|standing| standing.turn)
    }

    /// Leaves a request with the driver. Returns its slot.
    pub(super) fn leave(
        &mut self,
        turn: u64,
        (key, op): (Key<'_>, &Op<'_>),
        limit: Limit,
        waker: &Waker,
    ) -> usize {
        let place = self.slot(limit, matches!(op, Op::Get), waker);
        let slot = &mut self.slots[place];
        slot.stage = SlotStage::InLine;
        slot.asked.fill(key, op);
        self.line.push_back(Standing { turn, slot: place });
        self.unseen += 1;
        place
    }

    /// Adds the request of `ticket`, which its call has submitted. Returns its slot.
    pub(super) fn add(
        &mut self,
        ticket: Ticket,
        due: Duration,
        is_read: bool,
        waker: &Waker,
    ) -> usize {
        let place = self.slot(Limit::At(due), is_read, waker);
        self.note_due(due);
        self.is_unflushed = true;
        self.sent(ticket, place);
        place
    }

    fn slot(&mut self, limit: Limit, is_read: bool, waker: &Waker) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(FlightSlot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[place];
        slot.waker = Some(waker.clone());
        slot.limit = Some(limit);
        slot.is_read = is_read;
        place
    }

    fn sent(&mut self, ticket: Ticket, place: usize) {
        self.slots[place].stage = SlotStage::InFlight;
        if self.slots_of.is_empty() {
            self.first = ticket.number();
        }
        self.slots_of.push_back(Some(place));
        self.in_flight += 1;
    }

    fn note_due(&mut self, due: Duration) {
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
    }

    /// Notes when the calls are due that have come since the last time, which is at `now`.
    pub(super) fn see(&mut self, now: Duration) {
        let seen = self.line.len() - std::mem::take(&mut self.unseen);
        for at in seen..self.line.len() {
            let slot = &mut self.slots[self.line[at].slot];
            let due = slot.begin(now);
            self.note_due(due);
        }
    }

    /// Submits the line up to `turn`, as far as the session accepts it, and flushes what was submitted. Returns
    /// how many that were.
    pub(super) fn submit(
        &mut self,
        now: Duration,
        session: &mut Session,
        turn: Option<u64>,
    ) -> usize {
        let before = self.in_flight;
        while let Some(Standing { turn: own, slot }) = self.line.front().copied()
            && turn.is_none_or(|turn| own < turn)
        {
            if !self.submit_one(now, session, slot) {
                break;
            }
            self.line.pop_front();
        }
        let submitted = self.in_flight - before;
        if std::mem::take(&mut self.is_unflushed) || submitted > 0 {
            session.flush(now);
        }
        submitted
    }

    /// Whether the request in `place` is out of the line.
    fn submit_one(&mut self, now: Duration, session: &mut Session, place: usize) -> bool {
        let slot = &mut self.slots[place];
        if slot.is_abandoned {
            self.given_up -= 1;
            self.release(place);
            return true;
        }
        let left = slot.begin(now).saturating_sub(now);
        // What is due is not sent: its outcome would be unknown.
        if left.is_zero() {
            slot.stage = SlotStage::Over;
            slot.end_late();
            return true;
        }
        session.set_deadline(left);
        let asked = &slot.asked;
        let Some(ticket) = session.submit(now, asked.key(), &asked.op()) else {
            return false;
        };
        self.sent(ticket, place);
        true
    }

    /// Lets the calls in the line try again, for want of a session or a driver.
    pub(super) fn return_line(&mut self) {
        self.unseen = 0;
        self.given_up = 0;
        for Standing { slot: place, .. } in std::mem::take(&mut self.line) {
            let slot = &mut self.slots[place];
            slot.stage = SlotStage::Over;
            if slot.is_abandoned {
                self.release(place);
            } else {
                slot.end(Outcome::Unsent);
            }
        }
    }

    /// Returns the outcome in `place` and when the call is due, which frees it; `None`: there is none yet, and
    /// `waker` is woken.
    pub(super) fn take(
        &mut self,
        place: usize,
        waker: &Waker,
    ) -> Option<(Outcome, Option<Duration>)> {
        let slot = &mut self.slots[place];
        match slot.outcome.take() {
            Some(outcome) => {
                let due = slot.due();
                self.abandon(place);
                Some((outcome, due))
            }
            None => {
                let is_kept = slot
                    // The waker is cloned only if another task polls.
                    .waker
                    .as_ref()
                    .is_some_and(|kept| kept.will_wake(waker));
                if !is_kept {
                    slot.waker = Some(waker.clone());
                }
                None
            }
        }
    }

    /// Gives a slot up whose call is over, or was dropped.
    pub(super) fn abandon(&mut self, place: usize) {
        let slot = &mut self.slots[place];
        match slot.stage {
            SlotStage::Over => return self.release(place),
            SlotStage::InLine => self.given_up += 1,
            SlotStage::InFlight => {}
        }
        slot.waker = None;
        slot.is_abandoned = true;
        // Calls that are made and dropped while there is no session do not lengthen the line.
        if self.given_up * 2 > self.line.len().max(GIVEN_UP_MAX) {
            self.leave_out(|slot| slot.is_abandoned, |_| {});
        }
    }

    /// Takes out of the line what `chosen` chooses, and what was given up.
    fn leave_out(
        &mut self,
        chosen: impl Fn(&FlightSlot) -> bool,
        mut end: impl FnMut(&mut FlightSlot),
    ) {
        let seen = self.line.len() - self.unseen;
        let (mut at, mut over) = (0, Vec::new());
        self.line.retain(|standing| {
            let slot = &mut self.slots[standing.slot];
            at += 1;
            let leaves = slot.is_abandoned || chosen(slot);
            if leaves {
                self.unseen -= usize::from(at > seen);
                slot.stage = SlotStage::Over;
                if slot.is_abandoned {
                    over.push(standing.slot);
                } else {
                    end(slot);
                }
            }
            !leaves
        });
        self.given_up = 0;
        over.into_iter().for_each(|place| self.release(place));
    }

    /// Ends the calls that are due at `now`. The session goes on: its own deadline is that of its oldest
    /// request, which may have more time.
    pub(super) fn expire(&mut self, now: Duration) {
        if self.next_due.is_none_or(|due| due > now) {
            return;
        }
        self.leave_out(
            |slot| slot.due().is_some_and(|due| due <= now),
            FlightSlot::end_late,
        );
        let mut next = None;
        for place in self.slots_of.iter().flatten() {
            let slot = &mut self.slots[*place];
            if slot.is_abandoned || slot.outcome.is_some() {
                continue;
            }
            match slot.due() {
                Some(due) if due <= now => slot.end_late(),
                due => next = next.into_iter().chain(due).min(),
            }
        }
        let standing = self.line.iter().map(|standing| standing.slot);
        let standing = standing.filter_map(|place| self.slots[place].due());
        self.next_due = standing.chain(next).min();
    }

    /// Returns how long after `now` none is due.
    pub(super) fn left(&self, now: Duration) -> Duration {
        let due = (self.next_due).filter(|_| self.in_flight > 0 || self.has_line());
        due.map_or(Duration::MAX, |due| due.saturating_sub(now))
    }

    fn release(&mut self, place: usize) {
        let slot = &mut self.slots[place];
        slot.waker = None;
        slot.outcome = None;
        slot.lines = Vec::new();
        slot.asked.clear();
        slot.is_abandoned = false;
        self.free.push(place);
        if self.slots.len() > SLOTS_KEPT && self.free.len() == self.slots.len() {
            (self.slots, self.free, self.line) = Default::default();
        }
    }

    /// Takes an answer of the session, and wakes its call.
    pub(super) fn answer(&mut self, ticket: Ticket, answer: Answer<'_>) {
        let at = usize::try_from(ticket.number().wrapping_sub(self.first));
        let Some(entry) = at.ok().and_then(|at| self.slots_of.get_mut(at)) else {
            return;
        };
        let Some(place) = *entry else {
            return;
        };
        let slot = &mut self.slots[place];
        if let Answer::Line { name, value } = answer {
            slot.lines.push((text(name), text(value)));
            return;
        }
        *entry = None;
        // Answers may come in another order: what was answered behind one in flight stays until
        // that ends.
        while let Some(None) = self.slots_of.front() {
            self.slots_of.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        self.in_flight -= 1;
        if slot.is_abandoned {
            return self.release(place);
        }
        slot.stage = SlotStage::Over;
        let lines = std::mem::take(&mut slot.lines);
        slot.end(outcome(answer, lines));
    }

    /// Ends what is in flight on a session that has ended for `cause`, and did not answer it.
    pub(super) fn lose(&mut self, cause: Cause) {
        for entry in std::mem::take(&mut self.slots_of) {
            let Some(place) = entry else { continue };
            self.in_flight -= 1;
            let slot = &mut self.slots[place];
            if slot.is_abandoned {
                self.release(place);
                continue;
            }
            slot.stage = SlotStage::Over;
            let perhaps_done = !slot.is_read;
            slot.end(Outcome::Lost(Lost {
                cause,
                perhaps_done,
            }));
        }
    }
}

impl FlightSlot {
    /// Returns when the call is due, if the driver has seen it.
    fn due(&self) -> Option<Duration> {
        match self.limit {
            Some(Limit::At(due)) => Some(due),
            Some(Limit::Within(_)) | None => None,
        }
    }

    /// Returns when the call is due, which the driver sees at `now`.
    fn begin(&mut self, now: Duration) -> Duration {
        let due = match self.limit {
            Some(Limit::At(due)) => due,
            Some(Limit::Within(span)) => now.saturating_add(span),
            None => now,
        };
        self.limit = Some(Limit::At(due));
        due
    }

    /// Ends the call that is due.
    fn end_late(&mut self) {
        // A read changes nothing, and neither does what was not submitted.
        let perhaps_done = !self.is_read && self.stage == SlotStage::InFlight;
        self.end(Outcome::Lost(Lost {
            cause: Cause::Timeout,
            perhaps_done,
        }));
    }

    /// Notes how the call ends, unless that is known already, and wakes it.
    fn end(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_calls_do_not_lengthen_the_line() {
        let mut flight = Flight::default();
        let key = Key::new(b"k").unwrap();
        let limit = Limit::Within(Duration::from_secs(1));
        let kept = flight.leave(0, (key, &Op::Get), limit, Waker::noop());
        for turn in 1..10_000 {
            let place = flight.leave(turn, (key, &Op::Delete), limit, Waker::noop());
            if turn % 5 == 0 {
                flight.see(Duration::ZERO);
            }
            flight.abandon(place);
            assert!(flight.line.len() <= GIVEN_UP_MAX, "{}", flight.line.len());
        }
        assert!(flight.slots.len() <= GIVEN_UP_MAX + 1);
        assert_eq!(flight.first_turn(), Some(0));
        let late = flight.leave(10_000, (key, &Op::Delete), limit, Waker::noop());
        flight.see(Duration::from_millis(500));
        flight.expire(Duration::from_secs(1));
        let ended = flight.take(kept, Waker::noop());
        assert!(
            matches!(ended, Some((Outcome::Lost(_), Some(_)))),
            "{ended:?}"
        );
        assert!(flight.take(late, Waker::noop()).is_none());
        assert_eq!(
            flight.left(Duration::from_secs(1)),
            Duration::from_millis(500)
        );
        flight.expire(Duration::from_millis(1500));
        let Some((Outcome::Lost(lost), _)) = flight.take(late, Waker::noop()) else {
            panic!("it is due");
        };
        // It was not sent.
        assert!(!lost.perhaps_done && !flight.has_line());
        assert_eq!(flight.free.len(), flight.slots.len());
    }

    #[test]
    fn slots_of_a_crowd_are_freed_after_it() {
        let mut flight = Flight::default();
        let key = Key::new(b"k").unwrap();
        let limit = Limit::Within(Duration::from_secs(1));
        for turn in 0..2 * SLOTS_KEPT as u64 {
            flight.leave(turn, (key, &Op::Get), limit, Waker::noop());
        }
        flight.return_line();
        for place in 0..flight.slots.len() {
            let ended = flight.take(place, Waker::noop());
            assert!(matches!(ended, Some((Outcome::Unsent, _))), "{ended:?}");
        }
        assert_eq!((flight.slots.len(), flight.free.len()), (0, 0));
        assert_eq!(flight.leave(0, (key, &Op::Get), limit, Waker::noop()), 0);
    }
}
