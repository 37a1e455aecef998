//! The transport to a server whose engine is Clover: GETs by READs, sets and deletes by WRITE and CAS, as the
//! requests of a session. Commands go as text, on the connection of the hello.

mod take;

use std::{collections::VecDeque, os::fd::AsFd, time::Duration};

use herdwick_clover::{Answer as Found, Client, Failure, Refused, Right};
use herdwick_fabric::Port;
use herdwick_herd::hello::StoreId;
use herdwick_mem::OwnProcess;
use herdwick_request::HashKey;
use rustix::event::PollFlags;

pub(crate) use self::take::{AskedClover, TakenClover, take};
use crate::{
    Answer, Cause, Hit, Key, Lost, Mode, Op, Put, Refusal, Ticket, Ttl,
    due::Due,
    herd::{Entry, Lease, OpKind, Pending},
    memcached::Memcached,
    memcached_port::MemcachedPort,
    sleep::{Sleep, spin},
    text::{Command, When},
};

/// Longest sleep between two polls: a READ over shared memory is executed in a poll, so no completion
/// ends a sleep.
const NAP: Duration = Duration::from_micros(50);

/// How long after an answer the system is asked whether the server has hung up.
const ASK_AFTER: Duration = Duration::from_micros(50);

/// A client of Clover, and memcached's text beside it for commands.
///
/// Requests of one key are in flight together only if all are reads, so they take effect in the order of
/// submission.
#[derive(Debug)]
pub(crate) struct Clover<P> {
    /// Not touched in a child process after a fork: dropping it would destroy what the parent uses.
    port: OwnProcess<P>,
    client: Client,
    lease: Lease,
    /// The server's, by which its memcached port is recognized.
    hash_key: HashKey,
    pending: Pending,
    /// Requests that Clover does not have, and why.
    refused: VecDeque<(Ticket, Refusal<'static>)>,
    memcached: Memcached,
    /// The port that the connection of `memcached` was dialled at.
    memcached_port: MemcachedPort,
    /// The ticket of the command that is in flight as text.
    command: Option<Ticket>,
    next: u64,
    /// Time of the last flush or answer.
    awake: Duration,
    /// How long a wait spins before it sleeps.
    spin: Duration,
    /// The time of the clock of `port` and `client` at the start of the caller's clock.
    elapsed: Duration,
    /// What names the store that this client has begun, if it is a secondary one.
    began: Option<StoreId>,
    broken: Option<Cause>,
}

impl<P: Port> Clover<P> {
    pub(crate) fn new(
        taken: TakenClover<P>,
        hash_key: HashKey,
        memcached: Memcached,
        memcached_port: MemcachedPort,
    ) -> Self {
        let TakenClover {
            port,
            client,
            lease,
            capacity,
            elapsed,
            began,
        } = taken;
        Self {
            port: OwnProcess::new(port),
            client,
            lease,
            hash_key,
            pending: Pending::new(capacity),
            refused: VecDeque::new(),
            memcached,
            memcached_port,
            command: None,
            next: 0,
            awake: Duration::ZERO,
            spin: spin(),
            elapsed,
            began,
            broken: None,
        }
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        // While a command is in flight as text nothing else is: the two connections have no order
        // between them.
        if self.memcached.due().is_some() {
            return None;
        }
        let request = match request(op) {
            Ok(request) => request,
            Err(what) => return Some(self.refuse(Refusal::Other(what))),
        };
        let kind = OpKind::from(op);
        if self.pending.holds(key.as_bytes(), kind) {
            return None;
        }
        let (key, token) = (key.as_bytes(), self.pending.reserve()?);
        let (client, now) = (&mut self.client, when.now.saturating_add(self.elapsed));
        let begun = match request {
            Request::Get => client.get(key, token),
            Request::Put(value) => client.put(key, value, token, now),
            Request::Delete => client.delete(key, token, now),
        };
        if let Err(refused) = begun {
            self.pending.release(token);
            return self.not_begun(refused);
        }
        let ticket = self.name();
        let entry = Entry {
            ticket,
            unix: when.unix,
            due: when.due,
            kind,
        };
        self.pending.fill(token, entry, key);
        Some(ticket)
    }

    fn not_begun(&mut self, refused: Refused) -> Option<Ticket> {
        let refusal = match refused {
            Refused::Full => return None,
            Refused::Failed(_) => {
                self.broken = Some(Cause::Closed);
                return None;
            }
            Refused::Value { .. } => Refusal::TooLarge,
            Refused::ReadOnly => Refusal::Other(b"this client may only read"),
            Refused::Key(_) => Refusal::Other(b"not a key of Clover's"),
        };
        Some(self.refuse(refusal))
    }

    fn refuse(&mut self, refusal: Refusal<'static>) -> Ticket {
        let ticket = self.name();
        self.refused.push_back((ticket, refusal));
        ticket
    }

    pub(crate) fn command(&mut self, when: When, command: Command<'_>) -> Option<Ticket> {
        if self.pending.in_flight() > 0 || self.memcached.due().is_some() {
            return None;
        }
        if let Err(cause) = self.reopen_text(when) {
            self.broken = Some(cause);
            return None;
        }
        self.memcached.command(when.due, command)?;
        let ticket = self.name();
        self.command = Some(ticket);
        Some(ticket)
    }

    /// Opens the text connection again if it was closed while it was idle.
    fn reopen_text(&mut self, when: When) -> Result<(), Cause> {
        if self.memcached.is_open() {
            return Ok(());
        }
        let due = Due::after(when.due.saturating_sub(when.now));
        self.memcached = self.memcached_port.open_again(self.hash_key, due)?;
        match self.lease.is_hung_up() {
            true => Err(Cause::Closed),
            false => Ok(()),
        }
    }

    fn name(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    pub(crate) fn flush(&mut self, now: Duration) {
        self.awake = now;
        let inside = now.saturating_add(self.elapsed);
        self.client.post(&mut *self.port, inside);
        self.port.flush(inside);
        self.memcached.flush();
    }

    /// Takes the answers that have arrived; ends the session if the oldest is overdue at `now`, or if the
    /// lease or the connection has ended.
    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        if let Some(cause) = self.broken {
            // A submission may have found the end, with requests in flight.
            return self.abandon(cause, sink);
        }
        while let Some((ticket, refusal)) = self.refused.pop_front() {
            sink(ticket, Answer::Refused(refusal));
        }
        let inside = now.saturating_add(self.elapsed);
        let Self {
            port,
            client,
            pending,
            ..
        } = self;
        port.progress(inside);
        let answered = client.poll(&mut **port, inside, &mut |token, found| {
            if let Some(entry) = pending.entry(token) {
                let (ticket, kind) = (entry.ticket, entry.kind);
                pending.release(token);
                sink(ticket, answer(kind, &found));
            }
        });
        // What has a next step goes on at once.
        client.post(&mut **port, inside);
        port.flush(inside);
        if answered > 0 {
            self.awake = now;
        }
        if self.memcached.due().is_some() {
            self.poll_text(now, sink);
        }
        if let Some(cause) = self.ending(now) {
            self.abandon(cause, sink);
        }
    }

    fn poll_text(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        if let Some(ticket) = self.command {
            self.memcached
                .poll(now, &mut |_, answer| sink(ticket, answer));
        }
    }

    /// Returns why the session must end now, if it must.
    fn ending(&mut self, now: Duration) -> Option<Cause> {
        if self.lease.is_over() || self.client.failed().is_some() {
            return Some(Cause::Closed);
        }
        let overdue = self.pending.due(now).is_some_and(|due| due <= now);
        self.memcached
            .broken()
            .or(if overdue { Some(Cause::Timeout) } else { None })
    }

    /// Sees to it that a session whose server is gone, or has ended the lease, has ended. Nothing may be
    /// in flight.
    pub(crate) fn check(&mut self, now: Duration) {
        self.poll(now, &mut |_, _| {});
        if self.broken.is_none()
            && now.saturating_sub(self.awake) >= ASK_AFTER
            && self.lease.is_hung_up()
        {
            self.broken = Some(Cause::Closed);
        }
    }

    /// Ends the session for `cause`, without using the fabric.
    pub(crate) fn abandon(&mut self, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        self.broken = Some(cause);
        self.pending.drain(|entry| {
            let perhaps_done = entry.kind != OpKind::Get;
            let lost = Lost {
                cause,
                perhaps_done,
            };
            sink(entry.ticket, Answer::Lost(lost));
        });
        for (ticket, refusal) in self.refused.drain(..) {
            sink(ticket, Answer::Refused(refusal));
        }
        if let Some(ticket) = self.command.take() {
            self.memcached
                .abandon(cause, &mut |_, answer| sink(ticket, answer));
        }
    }

    /// Returns what to sleep on until there may be something to do, for `limit` at most; `None`: to be
    /// polled now.
    pub(crate) fn sleep(&mut self, now: Duration, limit: Duration) -> Option<Sleep<'_>> {
        if self.broken.is_some() {
            return None;
        }
        if self.memcached.due().is_some() {
            return self.memcached.sleep(limit);
        }
        if now.saturating_sub(self.awake) < self.spin {
            std::hint::spin_loop();
            return None;
        }
        let lease = (self.lease.as_fd(), PollFlags::RDHUP);
        Some(Sleep::on_one(lease, limit.min(NAP)))
    }

    /// Returns when the oldest request in flight is overdue, or an earlier time.
    pub(crate) fn due(&self) -> Option<Duration> {
        // An answer waits here.
        let refused = (!self.refused.is_empty()).then_some(Duration::ZERO);
        [refused, self.pending.due_hint(), self.memcached.due()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.client.right() == Right::Read
    }

    pub(crate) fn began_store(&self) -> Option<StoreId> {
        self.began
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        self.broken
    }
}

/// What Clover has of the session's operations.
enum Request<'a> {
    Get,
    Put(&'a [u8]),
    Delete,
}

/// Returns `op` as Clover has it.
///
/// # Errors
/// What it has not, for people.
fn request<'a>(op: &Op<'a>) -> Result<Request<'a>, &'static [u8]> {
    let set = |put: &Put<'a>| {
        // Taken apart whole: a new option has to be looked at here.
        let Put { value, flags, ttl } = *put;
        match (flags, ttl) {
            (0, Ttl::Never) => Ok(Request::Put(value)),
            (0, _) => Err(&b"the engine clover has no times to live"[..]),
            _ => Err(&b"the engine clover has no client flags"[..]),
        }
    };
    match op {
        Op::Get => Ok(Request::Get),
        Op::Store(Mode::Set, put) => set(put),
        Op::Delete => Ok(Request::Delete),
        Op::Store(..) => {
            Err(b"the engine clover has set alone, no add, replace, append or prepend")
        }
        Op::Cas(..) => Err(b"the engine clover has no cas: its items have no version to compare"),
        Op::Touch(_) => Err(b"the engine clover has no times to live"),
        Op::Incr(_) | Op::Decr(_) => Err(b"the engine clover has no incr and decr"),
    }
}

/// Returns the session's answer to a request of `kind`.
fn answer<'a>(kind: OpKind, found: &Found<'a>) -> Answer<'a> {
    match *found {
        Found::Value(value) => Answer::Hit(Hit {
            value,
            flags: 0,
            version: 0,
        }),
        Found::Missing => Answer::Miss,
        Found::Done => Answer::Done,
        Found::Full => Answer::Refused(Refusal::Other(b"out of memory")),
        Found::Contended => Answer::Refused(Refusal::Other(
            b"others change the key all the time; try again",
        )),
        Found::Refused => Answer::Refused(Refusal::Other(b"malformed call")),
        Found::Failed(Failure::Divided) => {
            Answer::Refused(Refusal::Other(b"the data nodes' replicas differ"))
        }
        Found::Failed(_) => Answer::Lost(Lost {
            cause: Cause::Closed,
            perhaps_done: kind != OpKind::Get,
        }),
    }
}
