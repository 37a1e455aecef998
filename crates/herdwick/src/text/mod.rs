//! memcached's text protocol on the client's side, without a socket: requests become bytes, bytes
//! become answers. It reads no clock and does no I/O.
//!
//! Call order: [`Text::submit`] any number of times; write [`Text::unsent`] to a socket and report
//! the length to [`Text::sent`]; read into [`Text::room`] and report the length to
//! [`Text::received`], which answers. At the end of a connection [`Text::lose`] answers the rest.

mod inbox;
mod outbox;
mod queue;

use std::time::Duration;

use herdwick_memcache::reply;

use self::{
    inbox::Inbox,
    outbox::Outbox,
    queue::{CommandKind, PendingCommand, Queue},
};
use crate::{Answer, Cause, Key, Mode, Op, Put, Ticket};

/// Most requests in flight.
pub(crate) const IN_FLIGHT_MAX: usize = 4096;
/// No request is accepted while this many bytes wait for the socket. One more request always fits,
/// so a value may be larger.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Most keys of one `gets` line: 64 * 251 bytes, a length that every memcached accepts.
const KEYS_PER_LINE_MAX: u64 = 64;

/// Commands for the whole server; only memcached's protocol has them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command<'a> {
    /// `stats`, with an argument or without.
    Stats(&'a [u8]),
    Version,
    FlushAll,
}

/// The time of a request, and the deadline of its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct When {
    /// Unix time in seconds, for times to live beyond 30 days.
    pub(crate) unix: u64,
    pub(crate) now: Duration,
    pub(crate) due: Duration,
}

/// One connection's requests and answers.
#[derive(Debug)]
pub(crate) struct Text {
    outbox: Outbox,
    inbox: Inbox,
    queue: Queue,
    value_bytes_max: usize,
}

impl Text {
    pub(crate) fn new(value_bytes_max: usize) -> Self {
        Self {
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            queue: Queue::default(),
            value_bytes_max,
        }
    }

    /// Accepts a request; returns `None` if no more fit.
    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        if self.is_full() {
            return None;
        }
        let (ticket, start) = (self.queue.next_ticket(), self.outbox.end());
        if matches!(op, Op::Get) && self.join_gets(key) {
            return Some(ticket);
        }
        let kind = encode(&mut self.outbox, when.unix, key.as_bytes(), op);
        self.push(kind, start, when.due, key.as_bytes());
        Some(ticket)
    }

    /// As [`Text::submit`], for a command without a key.
    pub(crate) fn command(&mut self, due: Duration, command: Command<'_>) -> Option<Ticket> {
        if self.is_full() {
            return None;
        }
        let (ticket, start) = (self.queue.next_ticket(), self.outbox.end());
        let (line, argument, kind) = match command {
            Command::Stats(b"") => ("stats", b"".as_slice(), CommandKind::Stats),
            Command::Stats(argument) => ("stats ", argument, CommandKind::Stats),
            Command::Version => ("version", b"".as_slice(), CommandKind::Version),
            Command::FlushAll => ("flush_all", b"".as_slice(), CommandKind::FlushAll),
        };
        for part in [line.as_bytes(), argument, b"\r\n"] {
            self.outbox.push(part);
        }
        self.push(kind, start, due, b"");
        Some(ticket)
    }

    /// The bytes to write to the socket.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.outbox.unsent()
    }

    /// Records that the socket accepted `len` bytes of them.
    pub(crate) fn sent(&mut self, len: usize) {
        self.outbox.advance(len);
    }

    /// Room for bytes from the socket; never empty.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.inbox.room()
    }

    /// Parses `len` bytes that were read into the room, and answers what it can.
    ///
    /// # Errors
    /// Why the connection can no longer be used. Requests in flight still wait for [`Text::lose`].
    pub(crate) fn received(
        &mut self,
        len: usize,
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) -> Result<(), Cause> {
        self.inbox.filled(len);
        while let Some((reply, used)) = reply::parse(self.inbox.unread(), self.value_bytes_max)? {
            self.queue.answer(reply, sink)?;
            self.inbox.consume(used);
        }
        Ok(())
    }

    /// Ends the requests in flight, because the connection has ended.
    pub(crate) fn lose(&mut self, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        self.queue.lose(cause, self.outbox.sent(), sink);
    }

    /// The deadline of the oldest answer.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.queue.front().map(|front| front.due)
    }

    fn is_full(&self) -> bool {
        self.outbox.unsent().len() >= UNSENT_BYTES_MAX || self.queue.in_flight() >= IN_FLIGHT_MAX
    }

    fn push(&mut self, kind: CommandKind, start: u64, due: Duration, key: &[u8]) {
        let (first, end) = (self.queue.next_ticket(), self.outbox.end());
        self.queue.push(
            PendingCommand {
                kind,
                first,
                count: 1,
                due,
                start,
                end,
            },
            key,
        );
    }

    /// Appends the key to the `gets` line submitted just before, if none of that line was sent yet:
    /// one line for many keys makes a multi-get cheap for the server.
    fn join_gets(&mut self, key: Key<'_>) -> bool {
        let sent = self.outbox.sent();
        let open = |last: &&PendingCommand| last.start >= sent && last.count < KEYS_PER_LINE_MAX;
        let joins = self.queue.last_gets().filter(open).is_some();
        if joins {
            // The end of the line.
            self.outbox.unpush(2);
            for part in [b" ", key.as_bytes(), b"\r\n"] {
                self.outbox.push(part);
            }
            self.queue.extend_gets(key.as_bytes(), self.outbox.end());
        }
        joins
    }
}

fn encode(out: &mut Outbox, unix: u64, key: &[u8], op: &Op<'_>) -> CommandKind {
    match *op {
        Op::Get => line(out, "gets ", key, &[], CommandKind::Gets),
        Op::Store(mode, put) => store(out, verb(mode), unix, key, &put, None),
        Op::Cas(version, put) => store(out, "cas ", unix, key, &put, Some(version)),
        Op::Delete => line(out, "delete ", key, &[], CommandKind::Delete),
        Op::Touch(ttl) => touch(out, key, ttl.exptime(unix)),
        Op::Incr(delta) => line(out, "incr ", key, &[delta], CommandKind::Arith),
        Op::Decr(delta) => line(out, "decr ", key, &[delta], CommandKind::Arith),
    }
}

fn verb(mode: Mode) -> &'static str {
    match mode {
        Mode::Set => "set ",
        Mode::Add => "add ",
        Mode::Replace => "replace ",
        Mode::Append => "append ",
        Mode::Prepend => "prepend ",
    }
}

fn line(
    out: &mut Outbox,
    verb: &str,
    key: &[u8],
    numbers: &[u64],
    kind: CommandKind,
) -> CommandKind {
    out.push(verb.as_bytes());
    out.push(key);
    for &number in numbers {
        out.push_number(number);
    }
    out.push(b"\r\n");
    kind
}

fn touch(out: &mut Outbox, key: &[u8], exptime: u32) -> CommandKind {
    out.push(b"touch ");
    out.push(key);
    push_exptime(out, exptime);
    out.push(b"\r\n");
    CommandKind::Touch
}

fn store(
    out: &mut Outbox,
    verb: &str,
    unix: u64,
    key: &[u8],
    put: &Put<'_>,
    compare: Option<u64>,
) -> CommandKind {
    out.push(verb.as_bytes());
    out.push(key);
    // Taken apart whole: a new option has to be encoded here.
    let Put { value, flags, ttl } = *put;
    out.push_number(flags.into());
    push_exptime(out, ttl.exptime(unix));
    out.push_number(value.len() as u64);
    if let Some(version) = compare {
        out.push_number(version);
    }
    for part in [b"\r\n", value, b"\r\n"] {
        out.push(part);
    }
    CommandKind::Store
}

/// Appends an exptime. The text protocol cannot encode a time after January 2038: the item then
/// stays until it is evicted.
fn push_exptime(out: &mut Outbox, exptime: u32) {
    let said = i32::try_from(exptime).map_or(0, |_| exptime);
    out.push_number(said.into());
}

#[cfg(test)]
mod tests;
