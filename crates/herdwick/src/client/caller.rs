//! The engine of a client's calls: one request at a time, on sessions that are dialled again as
//! needed. Every call ends by its deadline, and a mutation is never repeated.
//!
//! Circular import with `client` and `calls`: the client holds this engine, which returns the results of the
//! calls, and the calls are methods of the client.

use std::{fmt, time::Duration};

use super::redial::Redial;
use crate::{
    Address, Answer, Cause, DialError, Error, Hit, Key, Lost, Op, Options, Session, Ticket,
    client::calls::hit,
};

/// Most sessions that one call may use: one that was stale, one that breaks during the call, and
/// one more.
const SESSIONS_PER_CALL: u32 = 3;

/// The environment of a caller: its clock and its dialler.
pub(super) trait Surroundings: fmt::Debug {
    /// Time since any fixed start.
    fn now(&self) -> Duration;

    /// Opens a session.
    fn dial(&self, address: &Address, options: &Options) -> Result<Session, DialError>;
}

/// Makes one call at a time, on successive sessions.
#[derive(Debug)]
pub(super) struct Caller<S> {
    surroundings: S,
    redial: Redial,
    options: Options,
    session: Option<Session>,
}

/// One call, on as many sessions as it needs: when it must end, and how many it has used.
#[derive(Debug)]
pub(super) struct Attempts {
    due: Duration,
    sessions: u32,
}

/// The time of one call.
pub(super) struct Call<'a> {
    surroundings: &'a dyn Surroundings,
    due: Duration,
}

impl Call<'_> {
    pub(super) fn now(&self) -> Duration {
        self.surroundings.now()
    }
}

impl<S: Surroundings> Caller<S> {
    /// Makes a caller whose first call dials.
    pub(super) fn new(surroundings: S, redial: Redial, options: Options) -> Self {
        Self {
            surroundings,
            redial,
            options,
            session: None,
        }
    }

    /// Opens a session, if there is none that is not broken.
    pub(super) fn connect(&mut self) -> Result<(), Error> {
        let due = self.attempts().due;
        self.revive(due)
    }

    /// Returns how long calls without a session will fail.
    pub(super) fn redial_pause(&self) -> Duration {
        self.redial.pause(self.surroundings.now())
    }

    pub(super) fn failed_dials(&self) -> u64 {
        self.redial.failed_dials()
    }

    pub(super) fn set_deadline(&mut self, deadline: Duration) {
        self.options.deadline = deadline;
    }

    pub(super) fn set_member(&mut self, member: Option<u64>) {
        if std::mem::replace(&mut self.options.member, member) != member {
            // A server that has refused the one before does not wait for the pause to end.
            self.redial.end_pause();
        }
    }

    pub(super) fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Submits one request and waits for its answer, which `take` reads. `take` returns `None` for
    /// an answer that others follow.
    pub(super) fn call<T>(
        &mut self,
        submit: impl Fn(&mut Session, Duration) -> Option<Ticket>,
        mut take: impl FnMut(Answer<'_>) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        self.with_session(|session, call| {
            if submit(session, call.now()).is_none() {
                return Err(not_taken(session));
            }
            session.flush(call.now());
            loop {
                let mut outcome = None;
                session.wait(call.now());
                session.poll(call.now(), &mut |_, answer| {
                    outcome = match answer {
                        Answer::Lost(lost) => Some(Err(lost)),
                        answer => take(answer).map(Ok),
                    };
                });
                if let Some(outcome) = outcome {
                    return outcome;
                }
                // The end of a session answers every request; if one were missed, the call must end
                // anyway.
                if let Some(cause) = session.broken() {
                    return Err(Lost {
                        cause,
                        perhaps_done: true,
                    });
                }
            }
        })
    }

    /// Reads `keys`, and gives `each` the place of a key and what is found for it: again, if a session is lost.
    pub(super) fn get_many(
        &mut self,
        keys: &[Key<'_>],
        mut each: impl FnMut(usize, Option<Hit<'_>>),
    ) -> Result<(), Error> {
        self.with_session(|session, call| {
            let mut reads = Reads::new(keys);
            while !reads.step(session, call, &mut each)? {
                session.wait(call.now());
            }
            Ok(reads.finish())
        })
    }

    /// Begins a call.
    pub(super) fn attempts(&self) -> Attempts {
        let now = self.surroundings.now();
        Attempts {
            due: now.saturating_add(self.options.deadline),
            sessions: 0,
        }
    }

    /// Runs `exchange` on a session; repeats it on another one as long as nothing was changed and
    /// the connection is to blame.
    fn with_session<T>(
        &mut self,
        mut exchange: impl FnMut(&mut Session, &Call<'_>) -> Result<Result<T, Error>, Lost>,
    ) -> Result<T, Error> {
        let mut attempts = self.attempts();
        loop {
            let (session, call) = self.next_session(&mut attempts, 1)?;
            let lost = match exchange(session, &call) {
                Ok(outcome) => return outcome,
                Err(lost) => lost,
            };
            self.after_loss(&attempts, lost)?;
        }
    }

    /// Returns a session for the next exchange of a call. If there is none, it is dialled, in one
    /// `parts`th of the time left: so many servers may have to be dialled.
    pub(super) fn next_session(
        &mut self,
        attempts: &mut Attempts,
        parts: u32,
    ) -> Result<(&mut Session, Call<'_>), Error> {
        let deadline = self.options.deadline;
        let now = self.surroundings.now();
        let left = attempts.due.saturating_sub(now);
        self.revive(now.saturating_add(left / parts.max(1)))?;
        attempts.sessions += 1;
        let left = attempts.due.saturating_sub(self.surroundings.now());
        // A request that is sent without time for its answer would have an unknown outcome.
        let (session, call) = self
            .current(attempts)
            .filter(|_| !left.is_zero())
            .ok_or(Error::Timeout(deadline))?;
        session.set_deadline(left);
        Ok((session, call))
    }

    /// Returns the session of a call that has one.
    pub(super) fn current(&mut self, attempts: &Attempts) -> Option<(&mut Session, Call<'_>)> {
        let call = Call {
            surroundings: &self.surroundings,
            due: attempts.due,
        };
        Some((self.session.as_mut()?, call))
    }

    /// Drops the session that a call has lost. `Ok`: the exchange may be repeated on another one.
    pub(super) fn after_loss(&mut self, attempts: &Attempts, lost: Lost) -> Result<(), Error> {
        self.session = None;
        let is_early = || self.surroundings.now() < attempts.due;
        match (lost.perhaps_done, lost.cause) {
            (true, cause) => Err(Error::UnknownOutcome(cause)),
            // The session's deadline was that of the call, so no time is left to repeat it.
            (false, Cause::Timeout) => Err(Error::Timeout(self.options.deadline)),
            (false, Cause::Closed | Cause::Io(_))
                if attempts.sessions < SESSIONS_PER_CALL && is_early() =>
            {
                Ok(())
            }
            (false, cause) => Err(Error::Disconnected(cause)),
        }
    }

    /// Ensures that there is a session that is not broken.
    fn revive(&mut self, due: Duration) -> Result<(), Error> {
        let now = self.surroundings.now();
        let mut kept = self.session.take();
        // A server that ended since the last call has closed its end, and no mutation should get an
        // unknown outcome because of that: one poll is cheap compared with a round trip.
        if let Some(session) = &mut kept {
            session.check(now);
        }
        let options = Options {
            deadline: due.saturating_sub(now),
            ..self.options.clone()
        };
        let surroundings = &self.surroundings;
        let session = match kept.filter(|session| session.broken().is_none()) {
            Some(kept) => {
                let dial =
                    |address: &Address, options: &Options| surroundings.dial(address, options);
                let better = self.redial.better(now, &kept, &options, dial);
                better.unwrap_or(kept)
            }
            None => {
                let dial = |address: &Address| surroundings.dial(address, &options);
                self.redial.attempt(now, dial)?
            }
        };
        self.session = Some(session);
        Ok(())
    }
}

/// How a request ended that a session did not accept.
fn not_taken(session: &Session) -> Lost {
    Lost {
        cause: session.broken().unwrap_or(Cause::Closed),
        perhaps_done: false,
    }
}

/// Reads of several keys on one session, as many at a time as it accepts.
#[derive(Debug)]
pub(super) struct Reads<'k> {
    keys: &'k [Key<'k>],
    submitted: usize,
    answered: usize,
    /// The number of the first ticket: the others follow it.
    first: Option<u64>,
    refused: Option<Error>,
}

impl<'k> Reads<'k> {
    pub(super) fn new(keys: &'k [Key<'k>]) -> Self {
        Self {
            keys,
            submitted: 0,
            answered: 0,
            first: None,
            refused: None,
        }
    }

    /// Submits what the session accepts and gives `each` the answers that have arrived. Returns whether
    /// those were the last.
    pub(super) fn step(
        &mut self,
        session: &mut Session,
        call: &Call<'_>,
        each: &mut impl FnMut(usize, Option<Hit<'_>>),
    ) -> Result<bool, Lost> {
        self.poll(session, call, each)?;
        if self.answered == self.keys.len() {
            return Ok(true);
        }
        let at = call.now();
        session.set_deadline(call.due.saturating_sub(at));
        while let Some(key) = self.keys.get(self.submitted)
            && let Some(ticket) = session.submit(at, *key, &Op::Get)
        {
            self.first.get_or_insert(ticket.0);
            self.submitted += 1;
        }
        // The session may end with the poll that takes the last answers in flight: then no answer
        // reports it.
        if self.submitted == self.answered {
            return Err(not_taken(session));
        }
        session.flush(call.now());
        Ok(false)
    }

    fn poll(
        &mut self,
        session: &mut Session,
        call: &Call<'_>,
        each: &mut impl FnMut(usize, Option<Hit<'_>>),
    ) -> Result<(), Lost> {
        if self.submitted == self.answered {
            return Ok(());
        }
        let Self {
            keys,
            answered,
            first,
            refused,
            ..
        } = self;
        let mut lost = None;
        session.poll(call.now(), &mut |ticket, answer| {
            *answered += 1;
            let place = ticket.0.wrapping_sub(first.unwrap_or(0)) as usize;
            match answer {
                Answer::Lost(end) => lost = Some(end),
                answer => match hit(answer) {
                    Ok(hit) if place < keys.len() => each(place, hit),
                    Ok(_) => {}
                    Err(error) => *refused = Some(error),
                },
            }
        });
        lost.map_or(Ok(()), Err)
    }

    /// Returns how one was refused, if one was.
    pub(super) fn finish(self) -> Result<(), Error> {
        self.refused.map_or(Ok(()), Err)
    }
}
