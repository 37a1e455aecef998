//! The session: one connection to a server over whichever transport it has, driven by polling.

use std::time::{Duration, SystemTime};

use herdwick_fabric::Port;
use herdwick_mem::ForkMark;

use crate::{
    Address, Answer, Cause, DialError, Direct, Fallback, Key, OneSidedCounters, Op, Options,
    PollDescriptor, ReadFrom, SecondaryReads, StoreId, Ticket,
    sleep::Sleep,
    text::{Command, When},
    transports::OpenTransport,
};

/// One connection, driven by polling: submit many requests, flush them together, poll the answers.
///
/// Every request that [`Session::submit`] accepts is answered exactly once by a later
/// [`Session::poll`], with [`Answer::Lost`] if no other answer arrives. A broken session stays
/// broken; dial another.
///
/// Requests for one key are executed in the order of submission, whatever the network loses; those
/// for different keys in any order, and their answers arrive in any order. Over a fabric a request
/// therefore waits for the answers to earlier ones for its key, unless all are reads: many
/// mutations of one key take a round trip each. One exception: a value that is too large for the
/// fabric is read again as text, after all requests in flight on the fabric are answered, so that
/// such a `Get` may find what a later request stored.
///
/// `now` is any clock of the caller's that does not run backwards. The session itself reads the
/// clock where it dials, and the wall clock once, at the first request: long times to live are sent
/// as dates.
///
/// In a child process after a fork, the session is [`broken`](Session::broken): it is the parent's.
///
/// ```
/// # let server = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
/// # let address = server.address().to_string();
/// use herdwick::{Answer, Key, Op, Options, Session};
/// use std::time::Instant;
///
/// let mut session = Session::dial(&address.parse()?, &Options::default())?;
/// let start = Instant::now();
/// for name in ["ant", "bee", "cow"] {
///     session.submit(start.elapsed(), Key::new(name.as_bytes())?, &Op::Get);
/// }
/// session.flush(start.elapsed());
/// let mut answers = Vec::new();
/// while answers.len() < 3 {
///     session.wait(start.elapsed());
///     session.poll(start.elapsed(), &mut |ticket, answer| {
///         answers.push((ticket, answer == Answer::Miss));
///     });
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    transport: OpenTransport,
    /// Why a better transport is not used.
    missed: Option<Fallback>,
    deadline: Duration,
    /// Unix time and `now` of the first request, from which later Unix times follow.
    wall: Option<(u64, Duration)>,
    /// The process that the session belongs to.
    process: ForkMark,
}

impl Session {
    /// Opens the best transport to a server that both ends have, and tries it. Blocks, for
    /// [`Options::deadline`] at most, but for what is named there.
    ///
    /// # Errors
    /// [`DialError`].
    pub fn dial(address: &Address, options: &Options) -> Result<Self, DialError> {
        let (transport, missed) = OpenTransport::dial(address, options)?;
        Ok(Self::over(transport, missed, options.deadline))
    }

    /// Makes a session over an open transport.
    pub(crate) fn over(
        transport: OpenTransport,
        missed: Option<Fallback>,
        deadline: Duration,
    ) -> Self {
        Self {
            transport,
            missed,
            deadline,
            wall: None,
            process: ForkMark::here(),
        }
    }

    /// Sets the longest time from a request's submission to its answer; the session ends when it
    /// passes. An answer that has arrived counts, however late the session is polled. In the text protocol no answer overtakes another, so a request waits as long as an
    /// earlier one with a later deadline.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Accepts a request; returns `None` if so many are in flight that the session must be polled
    /// first, or if it is broken.
    ///
    /// Sends nothing, and blocks in one case only: over a fabric, a value too large for it is sent
    /// as text, and if the server has closed that connection because it was idle, it is opened
    /// again; for no longer than the request's deadline.
    pub fn submit(&mut self, now: Duration, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        if self.broken().is_some() {
            return None;
        }
        let when = self.when(now);
        self.transport.submit(when, key, op)
    }

    pub(crate) fn command(&mut self, now: Duration, command: Command<'_>) -> Option<Ticket> {
        if self.broken().is_some() {
            return None;
        }
        let when = self.when(now);
        self.transport.command(when, command)
    }

    fn when(&mut self, now: Duration) -> When {
        let (unix, since) = *self.wall.get_or_insert_with(|| (unix_seconds(), now));
        When {
            unix: unix.saturating_add(now.saturating_sub(since).as_secs()),
            now,
            due: now.saturating_add(self.deadline),
        }
    }

    /// Sends what was submitted, as far as it is accepted now; polling sends the rest.
    pub fn flush(&mut self, now: Duration) {
        if self.process.is_here() {
            self.transport.flush(now);
        }
    }

    /// Takes the answers that have arrived, without waiting; but a value too large for the fabric
    /// is requested as text, which may open that connection again, as in [`Session::submit`].
    pub fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        if self.process.is_here() {
            self.transport.poll(now, sink);
        // In a child after a fork: every request ends here, and nothing is sent on the parent's
        // connection.
        } else if self.transport.broken().is_none() {
            self.transport.abandon(Cause::Forked, sink);
        }
    }

    /// Sees to it that it has ended if its server is gone, so that nothing is sent in vain after a pause. Nothing
    /// may be in flight.
    pub fn check(&mut self, now: Duration) {
        if self.process.is_here() {
            self.transport.check(now);
        }
    }

    /// Sleeps until polling may bring something: an answer, an end, or the oldest deadline. Returns
    /// at once when nothing is in flight, and sometimes early. Over a fabric it returns at once
    /// until 200 µs have gone by without an answer, unless there is one CPU alone: to sleep would
    /// take longer than the answer does.
    pub fn wait(&mut self, now: Duration) {
        if let Some(sleep) = self.sleep(now) {
            sleep.run();
        }
        self.disarm();
    }

    /// Prepares a wait for `descriptor` by other means than [`Session::wait`]: returns the longest time
    /// until the session has to be polled, which is zero where [`Session::wait`] would return at once, and
    /// [`Duration::MAX`] if nothing is in flight. [`Session::end_wait`] must follow, and a poll. A request that
    /// is submitted before that is not waited for: [`PollDescriptor::wake`] ends the wait.
    pub fn arm(&mut self, now: Duration, descriptor: &mut PollDescriptor) -> Duration {
        if self.transport.due().is_none() {
            return Duration::MAX;
        }
        match self.sleep(now) {
            Some(sleep) => descriptor.watch(&sleep),
            None => Duration::ZERO,
        }
    }

    /// Ends what [`Session::arm`] has begun, whether `descriptor` became readable or not.
    pub fn end_wait(&mut self, descriptor: &mut PollDescriptor) {
        // After a fork both processes have the descriptor, and the wait is the parent's.
        if self.process.is_here() {
            descriptor.clear();
        }
        self.disarm();
    }

    /// Returns what [`Session::wait`] would sleep on; `None` where it would return at once.
    /// [`Session::disarm`] must follow, and a poll.
    pub(crate) fn sleep(&mut self, now: Duration) -> Option<Sleep<'_>> {
        if !self.process.is_here() {
            return None;
        }
        let due = self.transport.due()?;
        self.transport.sleep(now, due.saturating_sub(now))
    }

    /// Ends a sleep.
    pub(crate) fn disarm(&mut self) {
        if self.process.is_here() {
            self.transport.disarm();
        }
    }

    /// The session's transport: `tcp` (memcached's text), `shm`, `verbs` or `roce`.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.transport.name()
    }

    /// What became of the reads that were looked up in the server's memory; `None` where this session may not
    /// read it: the server does not publish it (`--one-sided-reads`), or not to this user, or
    /// [`Options::one_sided`] forbids it.
    #[must_use]
    pub fn one_sided(&self) -> Option<OneSidedCounters> {
        self.transport.one_sided()
    }

    /// Why it does not go by a better transport that the server offers, if there is one; by text,
    /// why it goes by text.
    #[must_use]
    pub fn missed(&self) -> Option<&Fallback> {
        self.missed.as_ref()
    }

    /// Why it goes by text, if it does.
    #[must_use]
    pub fn fallback(&self) -> Option<&Fallback> {
        let text = matches!(self.transport, OpenTransport::Memcached(_));
        self.missed.as_ref().filter(|_| text)
    }

    /// Whether a better transport failed for a reason that may be temporary.
    pub(crate) fn is_second_best(&self) -> bool {
        self.missed.as_ref().is_some_and(Fallback::may_pass)
    }

    /// Whether its transport is better than that of `other`.
    pub(crate) fn beats(&self, other: &Self) -> bool {
        self.transport.rank() < other.transport.rank()
    }

    /// Returns the fabric under the session, if it has one and belongs to this process: for callers
    /// that count nanoseconds.
    pub fn direct(&mut self) -> Option<Direct<'_, impl Port + use<>>> {
        if !self.process.is_here() {
            return None;
        }
        self.transport.direct()
    }

    /// Sets where later reads of replicated keys go ([`Options::read_from`]).
    pub fn set_read_from(&mut self, read_from: ReadFrom) {
        self.transport.set_read_from(read_from);
    }

    /// Returns the transport to the server's secondary store, while there is a session with it: as
    /// [`Session::transport`].
    #[must_use]
    pub fn secondary(&self) -> Option<&'static str> {
        self.transport.secondary()
    }

    /// Returns what has become of the reads that went to a secondary store.
    #[must_use]
    pub fn secondary_reads(&self) -> SecondaryReads {
        self.transport.secondary_reads()
    }

    /// What names the store that this session has begun: the server is a secondary store (`docs/hkvs.md`), and
    /// was shown its secret ([`Options::secret`]). Clients that know it may read there ([`Options::store`]).
    #[must_use]
    pub fn began_store(&self) -> Option<StoreId> {
        self.transport.began_store()
    }

    /// Whether the server lets this session read alone: it is a secondary store, and was shown
    /// [`Options::store`].
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.transport.is_read_only()
    }

    /// Why the session has ended, if it has.
    #[must_use]
    pub fn broken(&self) -> Option<Cause> {
        if !self.process.is_here() {
            return Some(Cause::Forked);
        }
        self.transport.broken()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "long times to live are sent as dates"
)]
fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
