//! The ways into a server, and the one place of the client that names them.

use std::{os::fd::OwnedFd, time::Duration};

use herdwick_fabric::PdId;
use herdwick_herd::{hello::Offer, wire::Window};
use herdwick_shm::{PdTicket, ShmDevice, ShmPort};

use crate::{
    Address, Answer, Cause, DialError, Fallback, Key, Op, Options, Ticket,
    hello::{self, Said},
    herd::{self, Direct, Herd, Taken, TicketDevice},
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
    /// Opens the best way to `address` that both ends have; if that is text, says why.
    pub(crate) fn dial(
        address: &Address,
        options: &Options,
    ) -> Result<(Self, Option<Fallback>), DialError> {
        let mut stream = open(address, options)?;
        let reason = if options.fabric {
            match hello::exchange(&mut stream, options.deadline) {
                Said::Offer(offer) => match lease(&offer, options) {
                    Ok(taken) => return Ok((shm(stream, taken, &offer, options), None)),
                    Err(reason) => reason,
                },
                Said::Version(version) => Fallback::Version(version),
                Said::Memcached => Fallback::Memcached,
                Said::Locked => return Err(DialError::LoginNeeded),
                Said::Spoiled => {
                    stream = open(address, options)?;
                    Fallback::NoAnswer
                }
            }
        } else {
            Fallback::Unasked
        };
        let way = Self::Memcached(Memcached::new(stream, options.value_bytes_max));
        Ok((way, Some(reason)))
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

/// A connection on which the peer takes commands.
fn open(address: &Address, options: &Options) -> Result<Stream, DialError> {
    let mut stream = Stream::dial(address, options.deadline)?;
    if let Some(login) = &options.login {
        hello::log_in(&mut stream, login, options.deadline)?;
    }
    Ok(stream)
}

/// Takes what the offer names.
fn lease(offer: &Offer, options: &Options) -> Result<Taken<ShmPort>, Fallback> {
    let shm = offer.shm.as_ref().ok_or(Fallback::NotOffered)?;
    let slots = options.window.clamp(1, Window::MAX).next_power_of_two();
    let taken = herd::take(&ShmDevice::guest(), shm, slots as u32, options.deadline);
    let taken = taken.map_err(|error| error.at(&shm.socket))?;
    // A worker's answers are matched by number, so the grant must speak of as many as the offer.
    if taken.workers() == offer.workers {
        Ok(taken)
    } else {
        let (granted, offered) = (taken.workers(), offer.workers);
        let reason = format!("{offered} workers were offered, {granted} granted");
        Err(Fallback::Setup(reason))
    }
}

/// HERD by a lease, with text beside it on the connection that brought the offer.
fn shm(stream: Stream, taken: Taken<ShmPort>, offer: &Offer, options: &Options) -> Way {
    let memcached = Memcached::new(stream, options.value_bytes_max);
    Way::Shm(Box::new(Herd::new(taken, offer.hash_key, memcached)))
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
