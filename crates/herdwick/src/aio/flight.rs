//! What the calls and the driver share: the session, requests in flight, and calls that wait for room.

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
    time::Duration,
};

use crate::{Answer, Cause, DialError, Error, Hit, Item, Lost, Refusal, Session, Ticket};

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

/// How dialling went.
#[derive(Debug, Default)]
pub(super) struct Dials {
    /// Counts the dials that failed.
    pub(super) failed: u64,
    /// Why the last one failed, and until when no call dials.
    pub(super) failure: Option<(DialError, Duration)>,
}

/// An answer that its call has not taken.
#[derive(Debug)]
pub(super) enum Outcome {
    Item(Option<Item>),
    Done,
    NotStored,
    Exists,
    Missing,
    Number(u64),
    Lines(Vec<(String, String)>),
    Failed(Error),
    Lost(Lost),
}

/// Requests in flight.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// The slots of the tickets from `first` on; `None`: answered.
    slots_of: VecDeque<Option<usize>>,
    first: u64,
    /// A slot belongs to one call from its submission until the call has taken the outcome and the session
    /// has answered, in either order. So an index stands for one request.
    slots: Vec<FlightSlot>,
    free: Vec<usize>,
    in_flight: usize,
    /// No call is due before.
    next_due: Option<Duration>,
}

#[derive(Debug, Default)]
struct FlightSlot {
    waker: Option<Waker>,
    outcome: Option<Outcome>,
    lines: Vec<(String, String)>,
    due: Duration,
    is_read: bool,
    /// The session has answered, or ended.
    is_answered: bool,
    /// The call is over, or was dropped.
    is_abandoned: bool,
}

impl Flight {
    pub(super) fn count(&self) -> usize {
        self.in_flight
    }

    /// Adds the request of `ticket`. Returns its slot.
    pub(super) fn add(
        &mut self,
        ticket: Ticket,
        due: Duration,
        is_read: bool,
        waker: &Waker,
    ) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(FlightSlot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[place];
        slot.waker = Some(waker.clone());
        slot.due = due;
        slot.is_read = is_read;
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
        if self.slots_of.is_empty() {
            self.first = ticket.number();
        }
        self.slots_of.push_back(Some(place));
        self.in_flight += 1;
        place
    }

    /// Returns the answer in `place`, which frees it; `None`: there is none yet, and `waker` is woken.
    pub(super) fn take(&mut self, place: usize, waker: &Waker) -> Option<Outcome> {
        let slot = &mut self.slots[place];
        match slot.outcome.take() {
            Some(outcome) => {
                self.abandon(place);
                Some(outcome)
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
        if slot.is_answered {
            self.release(place);
        } else {
            slot.waker = None;
            slot.is_abandoned = true;
        }
    }

    /// Ends the calls that are due at `now`. The session goes on: its own deadline is that of its oldest
    /// request, which may have more time.
    pub(super) fn expire(&mut self, now: Duration) {
        if self.next_due.is_none_or(|due| due > now) {
            return;
        }
        self.next_due = None;
        for place in self.slots_of.iter().flatten() {
            let slot = &mut self.slots[*place];
            if slot.is_abandoned || slot.outcome.is_some() {
                continue;
            }
            if slot.due > now {
                self.next_due = Some(self.next_due.map_or(slot.due, |next| next.min(slot.due)));
                continue;
            }
            slot.end(Outcome::Lost(Lost {
                cause: Cause::Timeout,
                perhaps_done: !slot.is_read,
            }));
            // The slot stays until the session answers: its ticket would find another request
            // there.
        }
    }

    /// Returns how long after `now` none is due.
    pub(super) fn left(&self, now: Duration) -> Duration {
        let due = self.next_due.filter(|_| self.in_flight > 0);
        due.map_or(Duration::MAX, |due| due.saturating_sub(now))
    }

    fn release(&mut self, place: usize) {
        self.slots[place] = FlightSlot::default();
        self.free.push(place);
    }

    /// Takes an answer of the session, and wakes its call.
    pub(super) fn answer(&mut self, ticket: Ticket, answer: Answer<'_>) {
        // Tickets begin anywhere, and may wrap.
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
        slot.is_answered = true;
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
            slot.is_answered = true;
            let perhaps_done = !slot.is_read;
            slot.end(Outcome::Lost(Lost {
                cause,
                perhaps_done,
            }));
        }
    }
}

impl FlightSlot {
    /// Notes how the call ends, unless that is known already, and wakes it.
    fn end(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn outcome(answer: Answer<'_>, lines: Vec<(String, String)>) -> Outcome {
    match answer {
        Answer::Hit(Hit {
            value,
            flags,
            version,
        }) => Outcome::Item(Some(Item {
            value: value.to_vec(),
            flags,
            version,
        })),
        Answer::Miss => Outcome::Missing,
        Answer::Done if lines.is_empty() => Outcome::Done,
        Answer::Done => Outcome::Lines(lines),
        Answer::NotStored => Outcome::NotStored,
        Answer::Exists => Outcome::Exists,
        Answer::Number(number) => Outcome::Number(number),
        Answer::Refused(Refusal::TooLarge) => Outcome::Failed(Error::TooLarge),
        Answer::Refused(Refusal::NotNumeric) => Outcome::Failed(Error::NotNumeric),
        Answer::Refused(Refusal::Other(words)) => Outcome::Failed(Error::Server(text(words))),
        Answer::Lost(lost) => Outcome::Lost(lost),
        Answer::Line { .. } => Outcome::Failed(Error::Disconnected(Cause::Unexpected)),
    }
}

/// Calls that wait for room in the session, or for a session, in the order of their first attempt.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    waiting: BTreeMap<u64, (Duration, Waker)>,
    last: u64,
    /// No call is due before.
    next_due: Option<Duration>,
}

impl WaitQueue {
    /// Whether a call has to wait behind others: `number` is its place, if it has one.
    pub(super) fn is_behind(&self, number: Option<u64>) -> bool {
        let first = self.waiting.first_key_value();
        match (number, first) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(number), Some((first, _))) => *first < number,
        }
    }

    /// Lets a call wait, which is due at a time. Returns its place.
    pub(super) fn wait(&mut self, number: Option<u64>, due: Duration, waker: &Waker) -> u64 {
        let number = number.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        self.waiting.insert(number, (due, waker.clone()));
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
        number
    }

    /// Takes a call out that gives up. If it was woken already, the next one is woken in its place.
    pub(super) fn leave(&mut self, number: u64) {
        if self.waiting.remove(&number).is_none() {
            self.wake(1);
        }
    }

    /// Takes a call out that is served.
    pub(super) fn served(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// Wakes the `count` that have waited longest.
    pub(super) fn wake(&mut self, count: usize) {
        for _ in 0..count {
            let Some((_, (_, waker))) = self.waiting.pop_first() else {
                return;
            };
            waker.wake();
        }
    }

    pub(super) fn wake_all(&mut self) {
        self.wake(self.waiting.len());
    }

    /// Wakes those that are due at `now`.
    pub(super) fn expire(&mut self, now: Duration) {
        if self.next_due.is_none_or(|due| due > now) {
            return;
        }
        for (_, (_, waker)) in self.waiting.extract_if(.., |_, (due, _)| *due <= now) {
            waker.wake();
        }
        self.next_due = self.waiting.values().map(|(due, _)| *due).min();
    }

    /// Returns how long after `now` none is due.
    pub(super) fn left(&self, now: Duration) -> Duration {
        let due = self.next_due.filter(|_| !self.waiting.is_empty());
        due.map_or(Duration::MAX, |due| due.saturating_sub(now))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
