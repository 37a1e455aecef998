//! One memcached connection: an outbox, an inbox, and the requests that wait for replies.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
};

use super::{
    compose::Composer,
    reply::{Asked, FOREIGN_MAX, NextReply, Reader},
};
use crate::{
    counters::RunCounters,
    target::{DriveError, Load},
};

/// One connection: requests composed but not written, bytes received but not parsed, and the
/// requests in between.
#[derive(Debug)]
pub(super) struct Connection<S> {
    stream: S,
    outbox: Vec<u8>,
    /// Bytes of `outbox` already written.
    sent: usize,
    inbox: Vec<u8>,
    /// Bytes of `inbox` received so far.
    filled: usize,
    asked: VecDeque<Asked>,
    /// Keys of the reads in `asked`, in order.
    wanted: VecDeque<u32>,
    /// Whether a short read means that nothing more can be read.
    ends_short: bool,
}

/// Bytes for headers besides a value, for a foreign value, and for many small replies in one read.
const INBOX: usize = 2 * FOREIGN_MAX;

impl<S: Read + Write> Connection<S> {
    /// `ends_short`: a read that fills less than its buffer has emptied the stream, as of a socket
    /// (epoll(7): edge-triggered streams), but not of TLS, which returns a record at a time.
    pub(super) fn new(stream: S, value_size: usize, ends_short: bool) -> Self {
        Self {
            stream,
            outbox: Vec::new(),
            sent: 0,
            inbox: vec![0; INBOX + value_size],
            filled: 0,
            asked: VecDeque::new(),
            wanted: VecDeque::new(),
            ends_short,
        }
    }

    /// Returns the underlying stream.
    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    pub(super) fn in_flight(&self) -> usize {
        self.asked.len()
    }

    /// Returns the due time of each request in flight, once per key.
    pub(super) fn waiting_since(&self) -> impl Iterator<Item = u64> + '_ {
        self.asked
            .iter()
            // A PUT has no keys left, and counts once.
            .flat_map(|asked| std::iter::repeat_n(asked.start_ns, asked.remaining.max(1)))
    }

    /// Composes one request; [`Connection::send`] writes it.
    pub(super) fn ask(&mut self, composer: &mut Composer, load: &mut Load<'_>, now_ns: u64) {
        let composed = composer.compose(load, &mut self.outbox, &mut self.wanted);
        let operations = composed.reads.max(1) as u64;
        self.asked.push_back(Asked {
            start_ns: load.pace.take(operations, now_ns),
            is_put: composed.reads == 0,
            remaining: composed.reads,
        });
    }

    /// Closed loop: refills the pipeline when at most half of it is in flight, so that one write
    /// carries many requests.
    pub(super) fn refill(
        &mut self,
        composer: &mut Composer,
        load: &mut Load<'_>,
        pipeline: usize,
        now_ns: u64,
    ) -> Result<(), DriveError> {
        if self.in_flight() > pipeline / 2 {
            return Ok(());
        }
        while self.in_flight() < pipeline && composer.has_more(load) {
            self.ask(composer, load, now_ns);
        }
        self.send()
    }

    /// Writes as much of the outbox as the socket accepts.
    pub(super) fn send(&mut self) -> Result<(), DriveError> {
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(0) => return Err(DriveError::Closed),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads all bytes that have arrived and counts the replies as answered at `now_ns`.
    pub(super) fn receive(
        &mut self,
        reader: &mut Reader,
        counters: &mut RunCounters,
        now_ns: u64,
    ) -> Result<(), DriveError> {
        loop {
            let room = self.inbox.len() - self.filled;
            match self.stream.read(&mut self.inbox[self.filled..]) {
                Ok(0) => return Err(DriveError::Closed),
                Ok(n) => {
                    self.filled += n;
                    self.understand(reader, counters, now_ns)?;
                    if n < room && self.ends_short {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn understand(
        &mut self,
        reader: &mut Reader,
        counters: &mut RunCounters,
        now_ns: u64,
    ) -> Result<(), DriveError> {
        let mut at = 0;
        while let Some(asked) = self.asked.front_mut() {
            let bytes = &self.inbox[at..self.filled];
            match reader.front(bytes, asked, &mut self.wanted, counters)? {
                NextReply::Partial => break,
                NextReply::Part(n) => at += n,
                NextReply::End(n) => {
                    at += n;
                    counters.latency(asked.start_ns, now_ns);
                    self.asked.pop_front();
                }
            }
        }
        // Nothing was asked that this could answer.
        if self.asked.is_empty() && at < self.filled {
            let text = String::from_utf8_lossy(&self.inbox[at..self.filled.min(at + 64)]);
            return Err(DriveError::Reply(text.into_owned()));
        }
        self.inbox.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }
}
