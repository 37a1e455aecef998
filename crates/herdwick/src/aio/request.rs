//! A request as a future: it waits for a session and for room there, then for its answer.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    AsyncClient, driver,
    flight::{Outcome, State},
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
    /// Failed dials before the first poll.
    failed_dials: u64,
    sessions: u32,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    New,
    /// In the queue, or woken from this place in it.
    Waiting(u64),
    InFlight(usize),
}

impl<'a> PendingRequest<'a> {
    pub(super) fn new(client: &'a AsyncClient, asked: AskedFor<'a>) -> Self {
        Self {
            client,
            asked,
            stage: Stage::New,
            due: None,
            failed_dials: 0,
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
            failed_dials,
            ..Self::new(client, asked)
        }
    }

    /// Submits the request, if that is possible now.
    fn submit(
        &mut self,
        state: &mut State,
        now: Duration,
        due: Duration,
        waker: &Waker,
    ) -> Poll<Result<Outcome, Error>> {
        if now >= due {
            self.leave(state);
            return Poll::Ready(Err(Error::Timeout(self.client.deadline)));
        }
        if let Some(error) = self.failed_dial(state, now) {
            self.leave(state);
            return Poll::Ready(Err(error));
        }
        let number = match self.stage {
            Stage::Waiting(number) => Some(number),
            _ => None,
        };
        // Nothing is sent to a server that has gone since the last answer.
        if state.flight.count() == 0
            && let Some(session) = &mut state.session
        {
            session.check(now);
            if session.broken().is_some() {
                state.session = None;
            }
        }
        let is_behind = state.queue.is_behind(number);
        if let Some(session) = state.session.as_mut().filter(|_| !is_behind) {
            if matches!(self.asked, AskedFor::Session) {
                self.leave(state);
                return Poll::Ready(Ok(Outcome::Done));
            }
            // Counted from the call's begin, not from this submission.
            session.set_deadline(due.saturating_sub(now));
            if let Some(ticket) = self.asked.submit(session, now) {
                if let Some(number) = number {
                    state.queue.served(number);
                }
                let place = state.flight.add(ticket, due, self.asked.is_read(), waker);
                self.stage = Stage::InFlight(place);
                self.sessions += 1;
                return Poll::Pending;
            }
        }
        self.stage = Stage::Waiting(state.queue.wait(number, due, waker));
        Poll::Pending
    }

    /// Returns why there is no session, if dialling has failed since the first poll, or is not to be tried.
    fn failed_dial(&self, state: &State, now: Duration) -> Option<Error> {
        if state.session.is_some() {
            return None;
        }
        let (reason, until) = state.dials.failure.as_ref()?;
        let has_failed = state.dials.failed != self.failed_dials;
        (has_failed || now < *until).then(|| self.client.core.unreachable(reason.clone()))
    }

    /// Leaves the queue.
    fn leave(&mut self, state: &mut State) {
        if let Stage::Waiting(number) = self.stage {
            state.queue.leave(number);
        }
        self.stage = Stage::New;
    }

    /// Returns how a lost request ends; `None`: it is made again.
    fn lost(&self, lost: Lost, now: Duration, due: Duration) -> Option<Error> {
        match (lost.perhaps_done, lost.cause) {
            (true, cause) => Some(Error::UnknownOutcome(cause)),
            (false, Cause::Timeout) if now >= due => Some(Error::Timeout(self.client.deadline)),
            // Another call's deadline has ended the session.
            (false, Cause::Closed | Cause::Io(_) | Cause::Timeout)
                if self.sessions < SESSIONS_MAX && now < due =>
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
        let now = core.now();
        let due = match this.due {
            Some(due) => due,
            None => {
                this.failed_dials = state.dials.failed;
                *this.due.insert(now.saturating_add(this.client.deadline))
            }
        };
        if let Stage::InFlight(place) = this.stage {
            match state.flight.take(place, cx.waker()) {
                None => return Poll::Pending,
                Some(Outcome::Lost(lost)) => {
                    this.stage = Stage::New;
                    if let Some(error) = this.lost(lost, now, due) {
                        return Poll::Ready(Err(error));
                    }
                }
                Some(outcome) => {
                    this.stage = Stage::New;
                    return Poll::Ready(Ok(outcome));
                }
            }
        }
        let polled = this.submit(&mut state, now, due, cx.waker());
        if polled.is_pending()
            && let Some(driver) = driver::wake(core, &mut state)
        {
            // A runtime that ends drops the driver at once, which takes the lock.
            drop(state);
            if let Err(error) = driver.spawn() {
                // Without a driver there was no session to submit to.
                this.leave(&mut core.lock());
                return Poll::Ready(Err(core.unreachable(error.into())));
            }
        }
        polled
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        match self.stage {
            Stage::New => {}
            Stage::Waiting(number) => self.client.core.lock().queue.leave(number),
            Stage::InFlight(place) => self.client.core.lock().flight.abandon(place),
        }
    }
}
