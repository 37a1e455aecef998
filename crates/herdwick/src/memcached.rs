//! memcached's text protocol over a socket, TCP or unix: the transport that every server has.

use std::{os::fd::AsFd, time::Duration};

use rustix::event::PollFlags;

use crate::{
    Answer, Cause, Key, Op, Ticket,
    sleep::Sleep,
    stream::Stream,
    text::{Command, Text, When},
};

/// The transport over memcached's text protocol, on TCP or a unix socket.
#[derive(Debug)]
pub(crate) struct Memcached {
    stream: Stream,
    text: Text,
    broken: Option<Cause>,
}

impl Memcached {
    pub(crate) fn new(stream: Stream, value_bytes_max: usize) -> Self {
        Self {
            stream,
            text: Text::new(value_bytes_max),
            broken: None,
        }
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        self.text.submit(when, key, op)
    }

    pub(crate) fn command(&mut self, due: Duration, command: Command<'_>) -> Option<Ticket> {
        self.text.command(due, command)
    }

    /// Writes as much as the socket accepts.
    pub(crate) fn flush(&mut self) {
        while self.broken.is_none() && !self.text.unsent().is_empty() {
            match self.stream.write(self.text.unsent()) {
                Ok(Some(len)) => self.text.sent(len),
                Ok(None) => return,
                Err(error) => self.broken = Some(Cause::Io(error.into())),
            }
        }
    }

    /// Flushes, reads once and passes the answers on; ends the session if the oldest answer is
    /// overdue at `now`.
    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        // Unread replies may explain why the socket accepts no more, so a failed write does not end
        // the session before they are read.
        self.flush();
        let outcome = self.read(sink);
        let overdue = self.text.due().is_some_and(|due| due <= now);
        let cause = outcome
            .err()
            .or(self.broken)
            .or_else(|| overdue.then_some(Cause::Timeout));
        if let Some(cause) = cause {
            self.broken = Some(cause);
            self.text.lose(cause, sink);
        }
    }

    /// Ends the session for `cause`, without using the socket again.
    pub(crate) fn abandon(&mut self, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        self.broken = Some(cause);
        self.text.lose(cause, sink);
    }

    /// Makes the session end for `cause` at the next poll.
    pub(crate) fn fail(&mut self, cause: Cause) {
        self.broken = Some(cause);
    }

    fn read(&mut self, sink: &mut impl FnMut(Ticket, Answer<'_>)) -> Result<(), Cause> {
        match self.stream.read(self.text.room()) {
            Ok(Some(0)) => Err(Cause::Closed),
            Ok(Some(len)) => self.text.received(len, sink),
            Ok(None) => Ok(()),
            Err(error) => Err(Cause::Io(error.into())),
        }
    }

    /// Whether a connection without requests in flight is still open: one read of the socket. Data
    /// that can be read then answers no request, so it makes the connection unusable.
    pub(crate) fn is_open(&mut self) -> bool {
        self.broken.is_none() && matches!(self.stream.read(self.text.room()), Ok(None))
    }

    /// Returns what to sleep on until there is something to do, for `limit` at most; `None`: there
    /// is something to do now.
    pub(crate) fn sleep(&self, limit: Duration) -> Option<Sleep<'_>> {
        if self.broken.is_some() || self.stream.has_unread() {
            return None;
        }
        let writes = if self.text.unsent().is_empty() {
            PollFlags::empty()
        } else {
            PollFlags::OUT
        };
        let socket = (self.stream.as_fd(), PollFlags::IN | writes);
        Some(Sleep::on_one(socket, limit))
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        self.text.due()
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        self.broken
    }
}
