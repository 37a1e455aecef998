//! The engine of a client's calls: one request at a time, on sessions that are dialled again as
//! needed. Every call ends by its deadline, and a mutation is never repeated.
//!
//! Circular import with `client` and `calls`: the client holds this engine, which returns the results of the
//! calls, and the calls are methods of the client.

use std::{fmt, time::Duration};

use super::redial::Redial;
use crate::{
    Address, Answer, Cause, DialError, Error, Key, Lost, Op, Options, Session, Ticket,
    client::calls::{Item, item},
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
    /// Opens the first session.
    pub(super) fn connect(
        surroundings: S,
        mut redial: Redial,
        options: Options,
    ) -> Result<Self, Error> {
        let dial = |address: &Address| surroundings.dial(address, &options);
        let session = Some(redial.attempt(surroundings.now(), dial)?);
        Ok(Self {
            surroundings,
            redial,
            options,
            session,
        })
    }

    pub(super) fn set_deadline(&mut self, deadline: Duration) {
        self.options.deadline = deadline;
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

    /// Reads `keys`.
    pub(super) fn get_many(&mut self, keys: &[Key<'_>]) -> Result<Vec<Option<Item>>, Error> {
        self.with_session(|session, call| read_all(session, call, keys))
    }

    /// Runs `exchange` on a session; repeats it on another one as long as nothing was changed and
    /// the connection is to blame.
    fn with_session<T>(
        &mut self,
        mut exchange: impl FnMut(&mut Session, &Call<'_>) -> Result<Result<T, Error>, Lost>,
    ) -> Result<T, Error> {
        let due = self
            .surroundings
            .now()
            .saturating_add(self.options.deadline);
        let late = Error::Timeout(self.options.deadline);
        let mut sessions = 0;
        loop {
            self.revive(due)?;
            let call = Call {
                surroundings: &self.surroundings,
                due,
            };
            let left = due.saturating_sub(call.now());
            // A request that is sent without time for its answer would have an unknown outcome.
            let Some(session) = self.session.as_mut().filter(|_| !left.is_zero()) else {
                return Err(late);
            };
            session.set_deadline(left);
            sessions += 1;
            let lost = match exchange(session, &call) {
                Ok(outcome) => return outcome,
                Err(lost) => lost,
            };
            self.session = None;
            match (lost.perhaps_done, lost.cause) {
                (true, cause) => return Err(Error::UnknownOutcome(cause)),
                (false, Cause::Timeout) => return Err(late),
                (false, Cause::Closed | Cause::Io(_))
                    if sessions < SESSIONS_PER_CALL && self.surroundings.now() < due => {}
                (false, cause) => return Err(Error::Disconnected(cause)),
            }
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

/// Reads `keys`, as many at a time as the session accepts.
fn read_all(
    session: &mut Session,
    call: &Call<'_>,
    keys: &[Key<'_>],
) -> Result<Result<Vec<Option<Item>>, Error>, Lost> {
    let mut items = vec![None; keys.len()];
    let (mut submitted, mut answered) = (0, 0);
    let (mut first, mut refused, mut lost) = (None, None, None);
    while answered < keys.len() {
        let at = call.now();
        session.set_deadline(call.due.saturating_sub(at));
        while let Some(key) = keys.get(submitted)
            && let Some(ticket) = session.submit(at, *key, &Op::Get)
        {
            first.get_or_insert(ticket.0);
            submitted += 1;
        }
        // The session may end with the poll that takes the last answers in flight: then no answer
        // reports it.
        if submitted == answered {
            return Err(not_taken(session));
        }
        session.flush(call.now());
        session.wait(call.now());
        session.poll(call.now(), &mut |ticket, answer| {
            answered += 1;
            let place = ticket.0.wrapping_sub(first.unwrap_or(0)) as usize;
            match (answer, items.get_mut(place)) {
                (Answer::Lost(end), _) => lost = Some(end),
                (answer, place) => match (item(answer), place) {
                    (Ok(item), Some(place)) => *place = item,
                    (Ok(_), None) => {}
                    (Err(error), _) => refused = Some(error),
                },
            }
        });
        if let Some(lost) = lost {
            return Err(lost);
        }
    }
    Ok(refused.map_or(Ok(items), Err))
}
