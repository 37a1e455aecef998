//! The HERD transport, over any provider. Requests that do not fit its lines are sent as text, on
//! the connection of the hello; order per key holds across both.
//!
//! Circular import with `lease` and `direct`: the session holds its lease and lends the fabric under it; the
//! type of the lease's socket, and its sleep, are of the session.

mod direct;
mod endings;
mod lease;
mod marked;
mod one_sided;
mod pending;
mod socket;
#[cfg(test)]
mod tests;
mod translate;

use std::{collections::VecDeque, os::fd::AsFd, time::Duration};

use herdwick_fabric::{Armed, CqId, Port};
use herdwick_herd::{ClientEnd, ClientSide, Outcome, Refused, wire::ReplyStatus};
use herdwick_mem::OwnProcess;
use herdwick_request::{HashKey, Request};
use rustix::event::PollFlags;

pub use self::{direct::Direct, one_sided::OneSidedCounters};
use self::{
    endings::{ended, outside},
    one_sided::OneSided,
    translate::{answer, lost, marked, store_op},
};
pub(crate) use self::{
    lease::{Asked, Lease, LeaseError, TRIAL, TRIAL_MAX, TRIAL_START, Taken, receive, take},
    pending::{Entry, Pending},
    socket::LeaseSocket,
    translate::{MarkedReply, OpKind},
};
use crate::{
    Answer, Cause, Key, OneSidedReads, Op, Ticket,
    due::Due,
    memcached::Memcached,
    memcached_port::MemcachedPort,
    sleep::{Sleep, spin},
    text::{Command, When},
};

/// HERD, and memcached's text beside it.
///
/// The fabric keeps the order of requests for one key. A request is sent as text only when nothing
/// is in flight on the fabric, and the other way round; so a command without a key keeps its place,
/// too.
#[derive(Debug)]
pub(crate) struct Herd<P> {
    /// Not touched in a child process after a fork: dropping it would destroy what the parent uses.
    port: OwnProcess<P>,
    side: ClientSide,
    reply_cq: CqId,
    hash_key: HashKey,
    lease: Lease,
    /// Reads in the server's memory, where it may be read.
    one_sided: Option<OneSided>,
    /// When the system was last asked whether the server lives. An answer is no such proof: it may have waited
    /// here while the server ended.
    asked: Duration,
    pending: Pending,
    memcached: Memcached,
    /// The port that the connection of `memcached` was dialled at.
    memcached_port: MemcachedPort,
    /// Tickets of the text connection and those shown to the caller, oldest first.
    aliases: VecDeque<(Ticket, Ticket)>,
    next: u64,
    /// Tokens of reads with values too large for the fabric.
    too_large: Vec<u64>,
    /// Time of the last flush or answer.
    awake: Duration,
    /// How long a wait spins before it sleeps.
    spin: Duration,
    /// The time of the clock of `port` and `side` at the start of the caller's clock.
    elapsed: Duration,
    /// Whether a wakeup of the port is armed.
    armed: bool,
    broken: Option<Cause>,
}

impl<P: Port> Herd<P> {
    pub(crate) fn new(
        taken: Taken<P>,
        hash_key: HashKey,
        memcached: Memcached,
        memcached_port: MemcachedPort,
        mode: OneSidedReads,
    ) -> Self {
        let Taken {
            end,
            lease,
            stores,
            capacity,
            elapsed,
        } = taken;
        let ClientEnd {
            port,
            side,
            reply_cq,
        } = end;
        Self {
            port: OwnProcess::new(port),
            side,
            reply_cq,
            hash_key,
            lease,
            one_sided: stores.map(|stores| OneSided::new(stores, mode)),
            asked: Duration::ZERO,
            pending: Pending::new(capacity),
            memcached,
            memcached_port,
            aliases: VecDeque::new(),
            next: 0,
            too_large: Vec::new(),
            awake: Duration::ZERO,
            spin: spin(),
            elapsed,
            armed: false,
            broken: None,
        }
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        if self.memcached.due().is_some() || !self.too_large.is_empty() {
            return self.submit_text(when, key, op);
        }
        let hash = self.hash_key.hash(key.as_bytes());
        if let Some(one_sided) = &mut self.one_sided {
            let is_read = matches!(op, Op::Get);
            if !is_read {
                one_sided.note_other();
            } else if !self.pending.changes(key.as_bytes()) && one_sided.is_chosen() {
                let token = self.pending.reserve()?;
                one_sided.begin(token, hash);
                return Some(self.fill(token, when, key, op));
            }
            // What was submitted before is read before, and gets the next room.
            if one_sided.waits_for_room(hash) || !is_read && one_sided.holds(hash) {
                return None;
            }
        }
        let request = Request {
            hash,
            key: key.as_bytes(),
            op: store_op(op, when.unix),
        };
        let token = self.pending.reserve()?;
        match self.side.submit(&request, token) {
            Ok(()) => Some(self.fill(token, when, key, op)),
            Err(refused) => {
                self.pending.release(token);
                match refused {
                    Refused::Full => None,
                    Refused::Unencodable(_) => self.submit_text(when, key, op),
                }
            }
        }
    }

    fn fill(&mut self, token: u64, when: When, key: Key<'_>, op: &Op<'_>) -> Ticket {
        let ticket = self.name();
        let entry = Entry {
            ticket,
            unix: when.unix,
            due: when.due,
            kind: op.into(),
        };
        self.pending.fill(token, entry, key.as_bytes());
        ticket
    }

    /// Whether nothing but text is in flight.
    fn is_text_alone(&self) -> bool {
        // Not those of `side`: a report of reads may be in flight, which has no place in their order.
        self.pending.in_flight() == 0
    }

    pub(crate) fn command(&mut self, when: When, command: Command<'_>) -> Option<Ticket> {
        if !self.is_text_alone() || !self.has_text(when) {
            return None;
        }
        let inner = self.memcached.command(when.due, command)?;
        Some(self.alias(inner))
    }

    fn submit_text(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        if !self.is_text_alone() || !self.has_text(when) {
            return None;
        }
        let inner = self.memcached.submit(when, key, op)?;
        Some(self.alias(inner))
    }

    /// Whether the text connection accepts a request made at `when`. A connection that was closed
    /// while it was idle, as by a server with an idle timeout, is opened again: nothing was sent on
    /// it. If that fails, the session ends.
    fn has_text(&mut self, when: When) -> bool {
        if let Err(cause) = self.reopen_text(when) {
            self.broken = Some(cause);
        }
        self.broken.is_none()
    }

    fn reopen_text(&mut self, when: When) -> Result<(), Cause> {
        if self.memcached.due().is_some() || self.memcached.is_open() {
            return Ok(());
        }
        let due = Due::after(when.due.saturating_sub(when.now));
        self.memcached = self.memcached_port.open_again(self.hash_key, due)?;
        // They belong to requests of the old connection, all of which were answered.
        self.aliases.clear();
        // A server that was started again has closed the lease as well.
        if self.lease.is_hung_up() {
            return Err(Cause::Closed);
        }
        Ok(())
    }

    fn alias(&mut self, inner: Ticket) -> Ticket {
        let ticket = self.name();
        self.aliases.push_back((inner, ticket));
        ticket
    }

    fn name(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    pub(crate) fn flush(&mut self, now: Duration) {
        self.awake = now;
        if let Some(one_sided) = &mut self.one_sided {
            one_sided.locate();
        }
        let inside = self.inside(now);
        self.side.flush(&mut *self.port, inside);
        self.port.flush(inside);
        self.memcached.flush();
    }

    /// Converts `now` to the clock of `port` and `side`.
    fn inside(&self, now: Duration) -> Duration {
        now.saturating_add(self.elapsed)
    }

    /// Takes the answers of both transports; ends the session if the oldest is overdue at `now`, or
    /// if the lease or the connection has ended.
    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        self.poll_with(now, &mut |_| {}, sink);
    }

    fn poll_with(
        &mut self,
        now: Duration,
        note: &mut impl FnMut(MarkedReply),
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) {
        if self.broken.is_some() {
            return;
        }
        if self.poll_one_sided(now, sink) > 0 {
            self.awake = now;
        }
        if self.broken.is_some() {
            // The server is gone, and everything in flight has ended.
            return;
        }
        let inside = self.inside(now);
        self.request_unread();
        self.side.flush(&mut *self.port, inside);
        self.port.progress(inside);
        if self.poll_fabric(inside, note, sink) > 0 {
            self.awake = now;
            if self.request_unread() {
                self.side.flush(&mut *self.port, inside);
                self.port.flush(inside);
            }
        }
        self.resubmit(now);
        if let Some(one_sided) = &mut self.one_sided {
            if self.too_large.is_empty() {
                one_sided.ask(&mut self.side);
            }
            one_sided.end_poll(now, self.pending.in_flight() == 0, &mut self.side);
        }
        if self.memcached.due().is_some() {
            self.poll_text(now, sink);
        }
        if let Some(cause) = self.ending(now) {
            self.end(now, cause, sink);
        }
    }

    /// Sees to it that a session whose server is gone has ended, also where the thread that keeps
    /// its lease has not run since. Nothing may be in flight.
    pub(crate) fn check(&mut self, now: Duration) {
        self.poll(now, &mut |_, _| {});
        if self.broken.is_none() && !self.lease.lives(now, &mut self.asked) {
            self.end(now, Cause::Closed, &mut |_, _| {});
        }
    }

    /// Answers the reads that are in the window of one-sided ones. Returns how many.
    fn poll_one_sided(
        &mut self,
        now: Duration,
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) -> usize {
        let one_sided = self.one_sided.as_mut().filter(|reads| !reads.is_idle());
        let Some(one_sided) = one_sided else {
            return 0;
        };
        // The memory outlives the server, and another may have taken its place.
        if !self.lease.lives(now, &mut self.asked) {
            self.end(now, Cause::Closed, sink);
            return 0;
        }
        one_sided.poll(&mut self.pending, sink)
    }

    /// Requests reads that the memory did not answer. Returns whether there was any, and room for it.
    fn request_unread(&mut self) -> bool {
        let one_sided = self.one_sided.as_mut();
        one_sided.is_some_and(|reads| reads.request_unread(&self.pending, &mut self.side))
    }

    fn poll_fabric(
        &mut self,
        inside: Duration,
        note: &mut impl FnMut(MarkedReply),
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) -> usize {
        let (side, port, pending) = (&mut self.side, &mut self.port, &mut self.pending);
        let (too_large, one_sided) = (&mut self.too_large, &mut self.one_sided);
        let hash_key = self.hash_key;
        side.poll(&mut **port, inside, &mut |token, outcome| {
            let Some(entry) = pending.entry(token) else {
                // Of a question where an item lies, or of a report.
                let _ = one_sided.as_mut().map(|reads| reads.learn(token, &outcome));
                return;
            };
            let (ticket, kind) = (entry.ticket, entry.kind);
            let key = pending.key(token);
            (one_sided.iter_mut())
                .for_each(|reads| reads.note_outcome((kind, &outcome), key, hash_key));
            if let Outcome::Answered(reply) = &outcome
                && reply.status == ReplyStatus::ReplyTooLarge
                && kind.wants_value()
            {
                too_large.push(token);
                return;
            }
            pending.release(token);
            if let Some(reply) = marked(ticket, kind, &outcome) {
                note(reply);
            }
            let answer = answer(kind, &outcome);
            if let Some(one_sided) = one_sided {
                one_sided.note_answer(&answer);
            }
            sink(ticket, answer);
        })
    }

    /// Requests values too large for the fabric as text, once nothing is in flight on the fabric.
    fn resubmit(&mut self, now: Duration) {
        if self.side.in_flight() > 0 {
            return;
        }
        while let Some(token) = self.too_large.last().copied() {
            let Some(entry) = self.pending.entry(token).copied() else {
                return;
            };
            let when = When {
                unix: entry.unix,
                now,
                due: entry.due,
            };
            if let Err(cause) = self.reopen_text(when) {
                return self.memcached.fail(cause);
            }
            let Some(Ok(key)) = self.pending.key(token).map(Key::new) else {
                return;
            };
            let Some(inner) = self.memcached.submit(when, key, &Op::Get) else {
                return;
            };
            self.aliases.push_back((inner, entry.ticket));
            self.pending.release(token);
            self.too_large.pop();
        }
    }

    fn poll_text(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        let aliases = &mut self.aliases;
        self.memcached.poll(now, &mut |inner, answer| {
            outside(aliases, inner, answer, sink)
        });
    }

    /// Returns why the session must end now, if it must.
    fn ending(&mut self, now: Duration) -> Option<Cause> {
        if self.lease.is_over() || self.side.is_broken() {
            return Some(Cause::Closed);
        }
        let overdue = self.pending.due(now).is_some_and(|due| due <= now);
        self.memcached
            .broken()
            .or(if overdue { Some(Cause::Timeout) } else { None })
    }

    /// Ends the session for `cause`, and every request with it.
    fn end(&mut self, now: Duration, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        let inside = self.inside(now);
        let (side, port, pending) = (&mut self.side, &mut self.port, &mut self.pending);
        // A request that the port never took was not executed; the state machine knows which.
        side.close(&mut **port, inside, &mut |token, outcome| {
            ended(pending, cause, token, &outcome, sink);
        });
        self.port.flush(inside);
        self.end_texts(cause, sink);
    }

    /// Ends the session in a process that it does not belong to, without using the fabric.
    pub(crate) fn abandon(&mut self, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        let Self { side, pending, .. } = self;
        side.forget(&mut |token, outcome| ended(pending, cause, token, &outcome, sink));
        self.end_texts(cause, sink);
    }

    /// Ends the requests that are not on the fabric.
    fn end_texts(&mut self, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        self.broken = Some(cause);
        let reads = self.one_sided.take().into_iter().flat_map(OneSided::tokens);
        for token in reads.chain(std::mem::take(&mut self.too_large)) {
            if let Some(entry) = self.pending.entry(token) {
                sink(entry.ticket, lost(cause, &Outcome::Timeout));
            }
        }
        let aliases = &mut self.aliases;
        self.memcached.abandon(cause, &mut |inner, answer| {
            outside(aliases, inner, answer, sink)
        });
    }

    /// Arms the fabric's wakeup, and returns what to sleep on until there is something to do, for
    /// `limit` at most; `None`: to be polled now. [`Herd::disarm`] must follow.
    pub(crate) fn sleep(&mut self, now: Duration, limit: Duration) -> Option<Sleep<'_>> {
        if self.broken.is_some() {
            return None;
        }
        if self.memcached.due().is_some() {
            return self.memcached.sleep(limit);
        }
        let one_sided = self.one_sided.as_ref();
        let reads = one_sided.is_some_and(|reads| !reads.is_idle());
        if reads || now.saturating_sub(self.awake) < self.spin {
            std::hint::spin_loop();
            return None;
        }
        let inside = self.inside(now);
        let retry = self.side.poll_timeout();
        let limit = retry.map_or(limit, |at| limit.min(at.saturating_sub(inside)));
        self.armed = true;
        if self.port.arm(self.reply_cq) != Armed::Yes {
            return None;
        }
        let fabric = (self.port.wait_fd()?, PollFlags::IN);
        let lease = (self.lease.as_fd(), PollFlags::RDHUP);
        Some(Sleep::on_two([fabric, lease], limit))
    }

    /// Cancels what [`Herd::sleep`] armed, if anything.
    pub(crate) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.port.disarm(self.reply_cq);
        }
    }

    /// Returns when the oldest request in flight is overdue, or an earlier time.
    pub(crate) fn due(&self) -> Option<Duration> {
        [self.pending.due_hint(), self.memcached.due()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        self.broken
    }

    /// Returns what became of reads in the server's memory; `None`: it may not be read.
    pub(crate) fn one_sided(&self) -> Option<OneSidedCounters> {
        self.one_sided.as_ref().map(OneSided::counters)
    }
}
