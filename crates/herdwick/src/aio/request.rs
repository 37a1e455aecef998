//! A request as a future: it waits for a session and for room there, then for its answer.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    AsyncClient, driver,
    flight::{Limit, State},
    outcome::Outcome,
    owned::OwnedRequest,
};
use crate::{Cause, Error, Key, Lost, Op, Session, Ticket, text::Command};

/// Most sessions that one request may use, as in the blocking client.
const SESSIONS_MAX: u32 = 3;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum AskedFor<'a> {
    /// A session.
    Session,
    Op(Key<'a>, Op<'a>),
    Command(Command<'a>),
}

impl AskedFor<'_> {
    fn is_read(&self) -> bool {
        match self {
            Self::Session | Self::Op(_, Op::Get) => true,
            Self::Op(..) => false,
            Self::Command(command) => !matches!(command, Command::FlushAll),
        }
    }

    fn submit(&self, session: &mut Session, now: Duration) -> Option<Ticket> {
        match self {
            Self::Session => None,
            Self::Op(key, op) => session.submit(now, *key, op),
            Self::Command(command) => session.command(now, *command),
        }
    }
}

/// A request, from its first poll to its answer.
#[derive(Debug)]
pub(super) struct PendingRequest<'a> {
    client: &'a AsyncClient,
    asked: AskedFor<'a>,
    stage: Stage,
    due: Option<Duration>,
    /// Failed dials before the first poll; `None`: not polled yet.
    failed_dials: Option<u64>,
    sessions: u32,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    New,
    /// In the queue, or woken from this place in it.
    Waiting(u64),
    /// With the driver: in its line, or in flight.
    Left(usize),
}

impl<'a> PendingRequest<'a> {
    pub(super) fn new(client: &'a AsyncClient, asked: AskedFor<'a>) -> Self {
        Self {
            client,
            asked,
            stage: Stage::New,
            due: None,
            failed_dials: None,
            sessions: 0,
        }
    }

    /// As `new`, of a call that began when `failed_dials` had failed, and is due at a time.
    pub(super) fn begun(
        client: &'a AsyncClient,
        asked: AskedFor<'a>,
        (due, failed_dials): (Duration, u64),
    ) -> Self {
        Self {
            due: Some(due),
            failed_dials: Some(failed_dials),
            ..Self::new(client, asked)
        }
    }

    /// Leaves the request with the driver, or submits it, if that is possible now.
    fn make(&mut self, state: &mut State, waker: &Waker) -> Poll<Result<Outcome, Error>> {
        let failed_dials = *self.failed_dials.get_or_insert(state.dials.failed);
        if let Some(error) = self.failed_dial(state, failed_dials) {
            self.give_up(state);
            return Poll::Ready(Err(error));
        }
        match self.asked {
            AskedFor::Op(key, op) if OwnedRequest::accepts(&op) => {
                let limit = match self.due {
                    Some(due) => Limit::At(due),
                    None => Limit::Within(self.client.deadline),
                };
                let turn = state.queue.next_turn();
                let place = state.flight.leave(turn, (key, &op), limit, waker);
                self.stage = Stage::Left(place);
                Poll::Pending
            }
            _ => self.submit(state, waker),
        }
    }

    /// Submits the request, if that is possible now.
    // Rare and large, it would take room and time of every poll.
    #[inline(never)]
    fn submit(&mut self, state: &mut State, waker: &Waker) -> Poll<Result<Outcome, Error>> {
        let (now, deadline) = (self.client.core.now(), self.client.deadline);
        let due = *(self.due).get_or_insert_with(|| now.saturating_add(deadline));
        if now >= due {
            self.give_up(state);
            return Poll::Ready(Err(Error::Timeout(deadline)));
        }
        let number = match self.stage {
            Stage::Waiting(number) => Some(number),
            _ => None,
        };
        if state.flight.count() == 0 {
            state.check(now);
        }
        let is_behind = state.queue.is_behind(number, state.flight.first_turn());
        if let Some(session) = &mut state.session {
            if matches!(self.asked, AskedFor::Session) {
                self.give_up(state);
                return Poll::Ready(Ok(Outcome::Done));
            }
            session.set_deadline(due.saturating_sub(now));
            if !is_behind && let Some(ticket) = self.asked.submit(session, now) {
                if let Some(number) = number {
                    state.queue.served(number);
                    // There may be room for the next one, too: the driver wakes one for each answer
                    // only.
                    state.queue.wake(1);
                }
                let place = state.flight.add(ticket, due, self.asked.is_read(), waker);
                self.stage = Stage::Left(place);
                return Poll::Pending;
            }
        }
        self.stage = Stage::Waiting(state.queue.wait(number, due, waker));
        Poll::Pending
    }

    /// Returns why there is no session, if dialling has failed since the first poll, or is not to be tried.
    fn failed_dial(&self, state: &State, failed_dials: u64) -> Option<Error> {
        if state.session.is_some() {
            return None;
        }
        let core = &self.client.core;
        let (reason, until) = state.dials.failure.as_ref()?;
        let has_failed = state.dials.failed != failed_dials;
        (has_failed || core.now() < *until).then(|| core.unreachable(reason.clone()))
    }

    /// Takes the request out of the queue, or back from the driver.
    fn give_up(&mut self, state: &mut State) {
        match std::mem::replace(&mut self.stage, Stage::New) {
            Stage::New => {}
            Stage::Waiting(number) => state.queue.leave(number),
            Stage::Left(place) => state.flight.abandon(place),
        }
    }

    /// Returns how a lost request ends; `None`: it is made again.
    #[cold]
    fn lost(&mut self, lost: Lost, due: Option<Duration>) -> Option<Error> {
        self.due = due.or(self.due);
        self.sessions += 1;
        let deadline = self.client.deadline;
        let is_due = || self.due.is_some_and(|due| due <= self.client.core.now());
        match (lost.perhaps_done, lost.cause) {
            (true, cause) => Some(Error::UnknownOutcome(cause)),
            (false, Cause::Timeout) if is_due() => Some(Error::Timeout(deadline)),
            // Another call's deadline has ended the session.
            (false, Cause::Closed | Cause::Io(_) | Cause::Timeout)
                if self.sessions < SESSIONS_MAX && !is_due() =>
            {
                None
            }
            (false, cause) => Some(Error::Disconnected(cause)),
        }
    }
}

impl Future for PendingRequest<'_> {
    type Output = Result<Outcome, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let core = &this.client.core;
        let mut state = core.lock();
        if let Stage::Left(place) = this.stage {
            let Some((outcome, due)) = state.flight.take(place, cx.waker()) else {
                return Poll::Pending;
            };
            this.stage = Stage::New;
            match outcome {
                Outcome::Unsent => this.due = due.or(this.due),
                Outcome::Lost(lost) => {
                    if let Some(error) = this.lost(lost, due) {
                        return Poll::Ready(Err(error));
                    }
                }
                outcome => return Poll::Ready(Ok(outcome)),
            }
        }
        let polled = this.make(&mut state, cx.waker());
        if polled.is_pending()
            && let Some(driver) = driver::wake(core, &mut state)
        {
            // A runtime that ends drops the driver at once, which takes the lock.
            drop(state);
            if let Err(error) = driver.spawn() {
                // Without a driver there was no session to submit to.
                this.give_up(&mut core.lock());
                return Poll::Ready(Err(core.unreachable(error.into())));
            }
        }
        polled
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::New) {
            self.give_up(&mut self.client.core.lock());
        }
    }
}
