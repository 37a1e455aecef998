//! The ways into a server, and the one place of the client that names them.

use std::{os::fd::OwnedFd, time::Duration};

use herdwick_fabric::PdId;
use herdwick_herd::{hello::Offer, wire::Window};
use herdwick_shm::{PdTicket, ShmDevice, ShmPort};

use crate::{
    Address, Answer, Cause, DialError, Key, Op, Options, Ticket,
    hello::{self, Said},
    herd::{self, Direct, Herd, TicketDevice},
    memcached::Memcached,
    stream::Stream,
    text::{Command, When},
};

/// An open way. Each call is one branch; behind it everything is concrete.
#[derive(Debug)]
pub(crate) enum Way {
    /// memcached's text, which any memcached speaks.
    Memcached(Memcached),
    /// HERD over shared memory.
    Shm(Box<Herd<ShmPort>>),
}

impl Way {
    /// Opens the best way to `address` that both ends have.
    pub(crate) fn dial(address: &Address, options: &Options) -> Result<Self, DialError> {
        let mut stream = Stream::dial(address, options.deadline)?;
        if !options.fabric {
            return Ok(text(stream, options));
        }
        match hello::exchange(&mut stream, options.deadline) {
            Said::Offer(offer) => Ok(fabric(stream, &offer, options)),
            Said::Memcached => Ok(text(stream, options)),
            Said::Spoiled => Ok(text(Stream::dial(address, options.deadline)?, options)),
        }
    }

    /// Which way it is, as `--fabric` names it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Memcached(_) => "tcp",
            Self::Shm(_) => "shm",
        }
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(way) => way.submit(when, key, op),
            Self::Shm(way) => way.submit(when, key, op),
        }
    }

    pub(crate) fn command(&mut self, due: Duration, command: Command<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(way) => way.command(due, command),
            Self::Shm(way) => way.command(due, command),
        }
    }

    pub(crate) fn flush(&mut self, now: Duration) {
        match self {
            Self::Memcached(way) => way.flush(),
            Self::Shm(way) => way.flush(now),
        }
    }

    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        match self {
            Self::Memcached(way) => way.poll(now, sink),
            Self::Shm(way) => way.poll(now, sink),
        }
    }

    pub(crate) fn wait(&mut self, now: Duration, limit: Duration) {
        match self {
            Self::Memcached(way) => way.wait(limit),
            Self::Shm(way) => way.wait(now, limit),
        }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        match self {
            Self::Memcached(way) => way.due(),
            Self::Shm(way) => way.due(),
        }
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        match self {
            Self::Memcached(way) => way.broken(),
            Self::Shm(way) => way.broken(),
        }
    }

    pub(crate) fn direct(&mut self) -> Option<Direct<'_, ShmPort>> {
        match self {
            Self::Memcached(_) => None,
            Self::Shm(way) => Some(way.direct()),
        }
    }
}

fn text(stream: Stream, options: &Options) -> Way {
    Way::Memcached(Memcached::new(stream, options.value_bytes_max))
}

/// The best fabric of the offer, or text on the connection that brought it.
fn fabric(stream: Stream, offer: &Offer, options: &Options) -> Way {
    let slots = options.window.clamp(1, Window::MAX).next_power_of_two();
    let taken = offer
        .shm
        .as_ref()
        .zip(Window::new(slots))
        .and_then(|(shm, window)| {
            herd::take(&ShmDevice::guest(), shm, window, options.deadline).ok()
        });
    // A worker's answers are matched by number, so the grant must speak of as many as the offer.
    match taken.filter(|taken| taken.workers() == offer.workers) {
        Some(taken) => {
            let memcached = Memcached::new(stream, options.value_bytes_max);
            Way::Shm(Box::new(Herd::new(taken, offer.hash_key, memcached)))
        }
        None => text(stream, options),
    }
}

impl TicketDevice for ShmDevice {
    fn attach(
        &self,
        port: &mut ShmPort,
        blob: Vec<u8>,
        fds: Vec<OwnedFd>,
    ) -> Result<PdId, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self::attach(self, port, PdTicket { fds, blob })?)
    }
}
