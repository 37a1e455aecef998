//! memcached's text protocol over a socket, TCP or unix: the transport that every server has.

use std::{os::fd::AsFd, time::Duration};

use rustix::event::PollFlags;

use crate::{
    Answer, Cause, Key, Op, Ticket,
    sleep::Sleep,
    stream::Stream,
    text::{Command, Text, When},
};

/// Most bytes that are read when answers are overdue: more than a socket holds by Linux's limits, so that an
/// answer which had arrived in time is found, and a server that goes on sending is not waited for.
const OVERDUE_BYTES_MAX: usize = 8 << 20;

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

    /// Flushes, reads once and passes the answers on. If the oldest answer is overdue at `now`, reads what has
    /// arrived, and ends the session if it is not there.
    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        // Unread replies may explain why the socket accepts no more, so a failed write does not end
        // the session before they are read.
        self.flush();
        let mut outcome = self.read(sink);
        let mut left = OVERDUE_BYTES_MAX;
        while self.is_overdue(now)
            && let Ok(Some(len)) = outcome
            && len <= left
        {
            left -= len;
            outcome = self.read(sink);
        }
        let overdue = self.is_overdue(now);
        // What the peer has sent explains an end best, then a write that failed, then the deadline.
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

    fn is_overdue(&self, now: Duration) -> bool {
        self.text.due().is_some_and(|due| due <= now)
    }

    /// Returns how many bytes it has read; `None`: there are none now.
    fn read(&mut self, sink: &mut impl FnMut(Ticket, Answer<'_>)) -> Result<Option<usize>, Cause> {
        match self.stream.read(self.text.room()) {
            Ok(Some(0)) => Err(Cause::Closed),
            Ok(Some(len)) => self.text.received(len, sink).map(|()| Some(len)),
            Ok(None) => Ok(None),
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
        // What TLS has decrypted ends no wait for the socket.
        if self.broken.is_some() || self.stream.has_unread() {
            return None;
        }
        // Only then: a socket has room most of the time, and would end every wait.
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

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        os::unix::net::UnixStream,
    };

    use super::*;
    use crate::Lost;

    const KEYS: usize = 100;
    const DUE: Duration = Duration::from_secs(1);

    /// A connection on which reads were sent, and the server's end.
    fn asked() -> (Memcached, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut memcached = Memcached::new(Stream::Unix(ours), 1 << 20);
        for key in 0..KEYS {
            let (now, name) = (Duration::ZERO, format!("key-{key}"));
            let when = When {
                unix: 0,
                now,
                due: DUE,
            };
            let key = Key::new(name.as_bytes()).unwrap();
            assert!(memcached.submit(when, key, &Op::Get).is_some());
        }
        memcached.flush();
        (memcached, theirs)
    }

    /// Answers all lines that have arrived, but for the last `left_out` keys.
    fn answer(theirs: &mut UnixStream, left_out: usize) {
        let mut lines = Vec::new();
        theirs.set_nonblocking(true).unwrap();
        let end = theirs.read_to_end(&mut lines).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::WouldBlock);
        theirs.set_nonblocking(false).unwrap();
        let (mut replies, mut left) = (String::new(), KEYS - left_out);
        for line in String::from_utf8(lines).unwrap().lines() {
            let mut keys = line.split(' ').skip(1).peekable();
            while let Some(key) = keys.next_if(|_| left > 0) {
                left -= 1;
                let value = "v".repeat(1000);
                replies += &format!("VALUE {key} 0 {} 1\r\n{value}\r\n", value.len());
            }
            if keys.peek().is_none() {
                replies += "END\r\n";
            }
        }
        assert!(replies.len() > 4 * 16384, "many reads of the socket");
        theirs.write_all(replies.as_bytes()).unwrap();
    }

    #[test]
    fn answers_that_have_arrived_count_however_late_they_are_polled() {
        let (mut memcached, mut theirs) = asked();
        answer(&mut theirs, 0);
        let mut hits = 0;
        memcached.poll(2 * DUE, &mut |_, answer| {
            assert!(matches!(answer, Answer::Hit(_)), "{answer:?}");
            hits += 1;
        });
        assert_eq!((hits, memcached.broken()), (KEYS, None));
    }

    #[test]
    fn answer_that_has_not_arrived_is_overdue_and_those_before_it_count() {
        let (mut memcached, mut theirs) = asked();
        answer(&mut theirs, 1);
        let (mut hits, mut lost) = (0, Vec::new());
        memcached.poll(2 * DUE, &mut |_, answer| match answer {
            Answer::Hit(_) => hits += 1,
            answer => lost.push(format!("{answer:?}")),
        });
        let (cause, perhaps_done) = (Cause::Timeout, false);
        let overdue = Answer::Lost(Lost {
            cause,
            perhaps_done,
        });
        assert_eq!(hits, KEYS - 1);
        assert_eq!(lost, [format!("{overdue:?}")]);
        assert_eq!(memcached.broken(), Some(cause));
    }
}
