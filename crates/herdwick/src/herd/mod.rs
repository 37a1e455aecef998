//! The way in by HERD, over any provider; what does not fit its lines goes by memcached's text, on
//! the connection that said hello.

mod direct;
mod lease;
mod pending;
mod socket;
mod translate;

use std::{collections::VecDeque, os::fd::AsFd, time::Duration};

use herdwick_fabric::{Armed, CqId, Port};
use herdwick_herd::{ClientEnd, ClientSide, Outcome, Refused, wire::ReplyStatus};
use herdwick_mica::{HashKey, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::direct::Direct;
use self::{
    lease::Lease,
    pending::{Entry, Pending},
    translate::{answer, lost, store_op},
};
pub(crate) use self::{
    lease::{Asked, LeaseError, Taken, TicketDevice, take},
    socket::LeaseSocket,
};
use crate::{
    Answer, Cause, Key, Op, Ticket,
    memcached::Memcached,
    text::{Command, When},
};

/// How long a wait spins before it sleeps. A round trip takes a microsecond or two, a worker that
/// slept some tens more to wake; to sleep meanwhile would cost a second wake, ours. Longer means
/// that the worker is busy elsewhere.
const SPIN: Duration = Duration::from_micros(200);

/// HERD, and memcached's text beside it.
///
/// Requests of one session are carried out in order: one goes by text only when nothing is in
/// flight on the fabric, and the other way round.
#[derive(Debug)]
pub(crate) struct Herd<P> {
    port: P,
    side: ClientSide,
    reply_cq: CqId,
    hash_key: HashKey,
    lease: Lease,
    pending: Pending,
    memcached: Memcached,
    /// Text's tickets and what they are called outside, oldest first.
    aliases: VecDeque<(Ticket, Ticket)>,
    next: u64,
    /// Tokens of reads whose values are too large for the fabric.
    too_large: Vec<u64>,
    /// When something was last submitted or answered.
    awake: Duration,
    /// [`SPIN`], or nothing where the worker would wait for this very CPU.
    spin: Duration,
    broken: Option<Cause>,
}

impl<P: Port> Herd<P> {
    pub(crate) fn new(taken: Taken<P>, hash_key: HashKey, memcached: Memcached) -> Self {
        let Taken {
            end,
            lease,
            capacity,
        } = taken;
        let ClientEnd {
            port,
            side,
            reply_cq,
        } = end;
        Self {
            port,
            side,
            reply_cq,
            hash_key,
            lease,
            pending: Pending::new(capacity),
            memcached,
            aliases: VecDeque::new(),
            next: 0,
            too_large: Vec::new(),
            awake: Duration::ZERO,
            spin: if has_spare_cpu() {
                SPIN
            } else {
                Duration::ZERO
            },
            broken: None,
        }
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        if self.memcached.due().is_some() || !self.too_large.is_empty() {
            return self.submit_text(when, key, op);
        }
        let hash = self.hash_key.hash(key.as_bytes());
        let request = Request {
            hash,
            key: key.as_bytes(),
            op: store_op(op, when.unix),
        };
        let token = self.pending.reserve()?;
        match self.side.submit(&request, token) {
            Ok(()) => {
                let ticket = self.name();
                let entry = Entry {
                    ticket,
                    unix: when.unix,
                    due: when.due,
                    kind: op.into(),
                };
                self.pending.fill(token, entry, key.as_bytes());
                Some(ticket)
            }
            Err(refused) => {
                self.pending.release(token);
                match refused {
                    Refused::Full => None,
                    Refused::Unencodable(_) => self.submit_text(when, key, op),
                }
            }
        }
    }

    pub(crate) fn command(&mut self, due: Duration, command: Command<'_>) -> Option<Ticket> {
        if self.side.in_flight() > 0 {
            return None;
        }
        let inner = self.memcached.command(due, command)?;
        Some(self.alias(inner))
    }

    fn submit_text(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        if self.side.in_flight() > 0 || !self.too_large.is_empty() {
            return None;
        }
        let inner = self.memcached.submit(when, key, op)?;
        Some(self.alias(inner))
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
        self.side.flush(&mut self.port, now);
        self.port.flush(now);
        self.memcached.flush();
    }

    /// Takes answers of both ways; ends the session when the oldest is overdue at `now`, or when
    /// the lease or the connection is over.
    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        if self.broken.is_some() {
            return;
        }
        self.side.flush(&mut self.port, now);
        self.port.progress(now);
        if self.poll_fabric(now, sink) > 0 {
            self.awake = now;
        }
        self.resubmit();
        if self.memcached.due().is_some() {
            self.poll_text(now, sink);
        }
        if let Some(cause) = self.ending(now) {
            self.end(now, cause, sink);
        }
    }

    fn poll_fabric(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) -> usize {
        let Self {
            side,
            port,
            pending,
            too_large,
            ..
        } = self;
        side.poll(port, now, &mut |token, outcome| {
            let Some(entry) = pending.entry(token) else {
                return;
            };
            let (ticket, kind) = (entry.ticket, entry.kind);
            if let Outcome::Answered(reply) = &outcome
                && reply.status == ReplyStatus::ReplyTooLarge
                && kind.wants_value()
            {
                too_large.push(token);
                return;
            }
            pending.release(token);
            sink(ticket, answer(kind, &outcome));
        })
    }

    /// Sends what was too large for the fabric by text, once the fabric is quiet.
    fn resubmit(&mut self) {
        if self.side.in_flight() > 0 {
            return;
        }
        while let Some(token) = self.too_large.last().copied() {
            let Some((entry, key)) = self.pending.keyed(token) else {
                return;
            };
            let Ok(key) = Key::new(key) else { return };
            let when = When {
                unix: entry.unix,
                due: entry.due,
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

    /// Why the session has to end now.
    fn ending(&mut self, now: Duration) -> Option<Cause> {
        if self.lease.is_over() || self.side.is_broken() {
            return Some(Cause::Closed);
        }
        let overdue = self.pending.due(now).is_some_and(|due| due <= now);
        self.memcached
            .broken()
            .or(if overdue { Some(Cause::Timeout) } else { None })
    }

    fn end(&mut self, now: Duration, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        self.broken = Some(cause);
        // What the port never took has not been done; the machine knows which.
        let Self {
            side,
            port,
            pending,
            ..
        } = self;
        side.close(port, now, &mut |token, outcome| {
            if let Some(entry) = pending.entry(token) {
                let ticket = entry.ticket;
                pending.release(token);
                sink(ticket, lost(cause, &outcome));
            }
        });
        self.port.flush(now);
        for token in std::mem::take(&mut self.too_large) {
            if let Some(entry) = self.pending.entry(token) {
                sink(entry.ticket, lost(cause, &Outcome::Timeout));
            }
        }
        let aliases = &mut self.aliases;
        self.memcached.abandon(cause, &mut |inner, answer| {
            outside(aliases, inner, answer, sink)
        });
    }

    /// Sleeps until there is something to do, or `limit` has gone by.
    pub(crate) fn wait(&mut self, now: Duration, limit: Duration) {
        if self.broken.is_some() {
            return;
        }
        if self.memcached.due().is_some() {
            return self.memcached.wait(limit);
        }
        if now.saturating_sub(self.awake) < self.spin {
            return std::hint::spin_loop();
        }
        if self.port.arm(self.reply_cq) == Armed::Yes {
            let retry = self
                .side
                .poll_timeout()
                .map_or(limit, |at| at.saturating_sub(now));
            self.sleep(limit.min(retry));
        }
        self.port.disarm(self.reply_cq);
    }

    fn sleep(&self, limit: Duration) {
        let Some(fd) = self.port.wait_fd() else {
            return;
        };
        let mut fds = [
            PollFd::from_borrowed_fd(fd, PollFlags::IN),
            PollFd::from_borrowed_fd(self.lease.as_fd(), PollFlags::RDHUP),
        ];
        let limit = Timespec::try_from(limit).ok();
        // An interrupted wait is a short one, which every caller expects.
        let _ = poll(&mut fds, limit.as_ref());
    }

    /// When the oldest request in flight is overdue, or earlier.
    pub(crate) fn due(&self) -> Option<Duration> {
        [self.pending.due_hint(), self.memcached.due()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        self.broken
    }

    pub(crate) fn direct(&mut self) -> Direct<'_, P> {
        Direct::new(&mut self.side, &mut self.port, self.hash_key, &self.lease)
    }
}

/// Passes on an answer of text's under the ticket's outside name.
fn outside(
    aliases: &mut VecDeque<(Ticket, Ticket)>,
    inner: Ticket,
    answer: Answer<'_>,
    sink: &mut impl FnMut(Ticket, Answer<'_>),
) {
    // Answers come in order, and some tickets get several: an older alias has had its last.
    while aliases.front().is_some_and(|(front, _)| *front < inner) {
        aliases.pop_front();
    }
    if let Some((_, ticket)) = aliases.front() {
        sink(*ticket, answer);
    }
}

fn has_spare_cpu() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)
}
