mod calls;
mod redial;

use std::time::{Duration, Instant};

pub use self::calls::{Cas, Item};
use self::redial::Redial;
use crate::{Answer, Cause, Error, Key, Lost, Op, Options, Session, Ticket};

/// How many sessions one call may use up: a first that was stale, one that breaks under it, and
/// one more.
const SESSIONS_PER_CALL: u32 = 3;
/// A client of one server. One call at a time, each waiting for its answer.
///
/// A lost connection is dialled again by the next call. Reads are then repeated by themselves;
/// a mutation that was sent and not answered ends as [`Error::UnknownOutcome`] and is never
/// repeated. While the server is away, calls fail at once with [`Error::Unreachable`], and only
/// now and then does one of them dial.
#[derive(Debug)]
pub struct Client {
    redial: Redial,
    options: Options,
    session: Option<Session>,
    origin: Instant,
}

impl Client {
    /// Connects to `address`: `host:port`, or the path of a unix socket.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Usage`] for an address that is none.
    pub fn connect(address: &str) -> Result<Self, Error> {
        Self::connect_with(address, Options::default())
    }

    /// As [`Client::connect`], with options.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(address: &str, options: Options) -> Result<Self, Error> {
        let (origin, seed) = chance_and_time();
        let mut redial = Redial::new(address.parse()?, seed);
        let session = Some(redial.dial(Duration::ZERO, &options)?);
        Ok(Self {
            redial,
            options,
            session,
            origin,
        })
    }

    /// How long each call from now on may take.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.options.deadline = deadline;
    }

    /// The session that the last call used, or the first dial opened; `None` when it was lost.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Submits one request and waits for its answer, which `take` reads; answers that it passes
    /// over (`None`) have more behind them.
    fn call<T>(
        &mut self,
        submit: impl Fn(&mut Session, Duration) -> Option<Ticket>,
        mut take: impl FnMut(Answer<'_>) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        self.with_session(|session, now| {
            if submit(session, now()).is_none() {
                return Err(not_taken(session));
            }
            session.flush(now());
            let mut outcome = None;
            while outcome.is_none() {
                session.wait(now());
                session.poll(now(), &mut |_, answer| {
                    outcome = match answer {
                        Answer::Lost(lost) => Some(Err(lost)),
                        answer => take(answer).map(Ok),
                    };
                });
            }
            outcome.unwrap_or_else(|| Err(not_taken(session)))
        })
    }

    /// Runs `exchange` on a session; again on another one while nothing was changed and the
    /// connection is to blame.
    fn with_session<T>(
        &mut self,
        mut exchange: impl FnMut(&mut Session, &dyn Fn() -> Duration) -> Result<Result<T, Error>, Lost>,
    ) -> Result<T, Error> {
        let origin = self.origin;
        let now = move || origin.elapsed();
        let due = now() + self.options.deadline;
        let mut sessions = 0;
        loop {
            let session = self.live_session(&now, due)?;
            sessions += 1;
            let lost = match exchange(session, &now) {
                Ok(outcome) => return outcome,
                Err(lost) => lost,
            };
            self.session = None;
            match lost {
                Lost {
                    perhaps_done: true,
                    cause,
                } => return Err(Error::UnknownOutcome(cause)),
                Lost {
                    cause: Cause::Timeout,
                    ..
                } => {
                    return Err(Error::Timeout(self.options.deadline));
                }
                Lost {
                    cause: Cause::Closed | Cause::Io(_),
                    ..
                } if sessions < SESSIONS_PER_CALL && now() < due => {}
                Lost { cause, .. } => return Err(Error::Disconnected(cause)),
            }
        }
    }

    /// The session, dialled if there is none that lives; its requests are due at `due`.
    fn live_session(
        &mut self,
        clock: &dyn Fn() -> Duration,
        due: Duration,
    ) -> Result<&mut Session, Error> {
        let now = clock();
        let mut kept = self.session.take();
        // A server that has gone since the last call has closed its end, and no mutation should end
        // as unknown for that: one look is cheap beside a round trip.
        if let Some(session) = &mut kept {
            session.poll(now, &mut |_, _| {});
        }
        let options = Options {
            deadline: due.saturating_sub(now),
            ..self.options.clone()
        };
        let mut session = match kept.filter(|session| session.broken().is_none()) {
            Some(kept) => match self.redial.better(now, &kept, &options) {
                Some(better) => better,
                None => kept,
            },
            None => self.redial.dial(now, &options)?,
        };
        session.set_deadline(due.saturating_sub(clock()));
        Ok(self.session.insert(session))
    }
}

/// What became of a request that a session would not take.
fn not_taken(session: &Session) -> Lost {
    Lost {
        cause: session.broken().unwrap_or(Cause::Closed),
        perhaps_done: false,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the blocking face is a shell: it has the clock"
)]
fn chance_and_time() -> (Instant, u64) {
    let now = Instant::now();
    // Without a random source clients only lose the spread of their pauses.
    (now, getrandom::u64().unwrap_or(1))
}

/// A key and an operation as a submission.
fn request<'a>(
    key: &'a [u8],
    op: Op<'a>,
) -> Result<impl Fn(&mut Session, Duration) -> Option<Ticket> + use<'a>, Error> {
    let key = Key::new(key)?;
    Ok(move |session: &mut Session, now| session.submit(now, key, &op))
}
