//! The ways into a server, and the one place of the client that names them.

use std::time::Duration;

use crate::{
    Address, Answer, Cause, DialError, Key, Op, Options, Ticket,
    memcached::Memcached,
    stream::Stream,
    text::{Command, When},
};

/// An open way. Each call is one branch; behind it everything is concrete.
#[derive(Debug)]
pub(crate) enum Way {
    /// memcached's text, which any memcached speaks.
    Memcached(Memcached),
}

impl Way {
    /// Opens the best way to `address` that both ends have.
    pub(crate) fn dial(address: &Address, options: &Options) -> Result<Self, DialError> {
        let stream = Stream::dial(address, options.deadline)?;
        Ok(Self::Memcached(Memcached::new(
            stream,
            options.value_bytes_max,
        )))
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(way) => way.submit(when, key, op),
        }
    }

    pub(crate) fn command(&mut self, due: Duration, command: Command<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(way) => way.command(due, command),
        }
    }

    pub(crate) fn flush(&mut self) {
        match self {
            Self::Memcached(way) => way.flush(),
        }
    }

    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        match self {
            Self::Memcached(way) => way.poll(now, sink),
        }
    }

    pub(crate) fn wait(&self, limit: Duration) {
        match self {
            Self::Memcached(way) => way.wait(limit),
        }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        match self {
            Self::Memcached(way) => way.due(),
        }
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        match self {
            Self::Memcached(way) => way.broken(),
        }
    }
}
