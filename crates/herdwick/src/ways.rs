//! The ways into a server, and the one place of the client that names them.

mod port;

use std::{
    net::{SocketAddr, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Duration,
};

use herdwick_fabric::{Device, PdId};
use herdwick_herd::{
    hello::{Offer, ShmOffer, Token},
    wire::Window,
};
use herdwick_roce_udp::{RoceDevice, RoceOptions, RocePort};
use herdwick_shm::{PdTicket, ShmDevice, ShmPort};
use port::AnyPort;

use crate::{
    Address, Answer, Cause, DialError, Fabric, Fallback, Key, Op, Options, Ticket,
    hello::{self, Said},
    herd::{self, Asked, Direct, Herd, LeaseError, LeaseSocket, Taken, TicketDevice},
    memcached::Memcached,
    stream::Stream,
    text::{Command, When},
};

/// An open way. Each call is one branch; behind it everything is concrete.
#[derive(Debug)]
pub(crate) enum Way {
    /// memcached's text, which any memcached speaks.
    Memcached(Memcached),
    /// HERD over a fabric.
    Herd(Fabric, Box<Herd<AnyPort>>),
}

impl Way {
    /// Opens the best way to `address` that both ends have; if that is text, says why.
    pub(crate) fn dial(
        address: &Address,
        options: &Options,
    ) -> Result<(Self, Option<Fallback>), DialError> {
        let mut stream = open(address, options)?;
        let reason = if options.fabric {
            match hello::exchange(&mut stream, options) {
                Said::Offer(offer) => match lease(&stream, &offer, options) {
                    Ok((fabric, taken)) => {
                        let memcached = Memcached::new(stream, options.value_bytes_max);
                        let herd = Herd::new(taken, offer.hash_key, memcached);
                        return Ok((Self::Herd(fabric, Box::new(herd)), None));
                    }
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
            Self::Herd(fabric, _) => fabric.name(),
        }
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(way) => way.submit(when, key, op),
            Self::Herd(_, way) => way.submit(when, key, op),
        }
    }

    pub(crate) fn command(&mut self, due: Duration, command: Command<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(way) => way.command(due, command),
            Self::Herd(_, way) => way.command(due, command),
        }
    }

    pub(crate) fn flush(&mut self, now: Duration) {
        match self {
            Self::Memcached(way) => way.flush(),
            Self::Herd(_, way) => way.flush(now),
        }
    }

    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        match self {
            Self::Memcached(way) => way.poll(now, sink),
            Self::Herd(_, way) => way.poll(now, sink),
        }
    }

    pub(crate) fn wait(&mut self, now: Duration, limit: Duration) {
        match self {
            Self::Memcached(way) => way.wait(limit),
            Self::Herd(_, way) => way.wait(now, limit),
        }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        match self {
            Self::Memcached(way) => way.due(),
            Self::Herd(_, way) => way.due(),
        }
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        match self {
            Self::Memcached(way) => way.broken(),
            Self::Herd(_, way) => way.broken(),
        }
    }

    pub(crate) fn direct(&mut self) -> Option<Direct<'_, AnyPort>> {
        match self {
            Self::Memcached(_) => None,
            Self::Herd(_, way) => Some(way.direct()),
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

/// Takes the best of what is offered on `stream`.
fn lease(
    stream: &Stream,
    offer: &Offer,
    options: &Options,
) -> Result<(Fabric, Taken<AnyPort>), Fallback> {
    let mut reason = Fallback::NotOffered;
    if let Some(shm) = &offer.shm {
        match take_shm(shm, offer, options) {
            Ok(taken) => return Ok((Fabric::Shm, taken)),
            Err(error) => reason = error.at(&shm.socket),
        }
    }
    if let (Some(token), Some(ends)) = (offer.roce, stream.ends()) {
        match take_roce(token, ends, offer, options) {
            Ok(taken) => return Ok((Fabric::Roce, taken)),
            Err(LeaseError::Refused(refusal)) => reason = Fallback::Refused(refusal),
            Err(error) => reason = Fallback::Setup(error.to_string()),
        }
    }
    Err(reason)
}

fn take_shm(
    shm: &ShmOffer,
    offer: &Offer,
    options: &Options,
) -> Result<Taken<AnyPort>, LeaseError> {
    let socket = LeaseSocket::Unix(UnixStream::connect(&shm.socket)?);
    let asked = asked(shm.token, offer, options);
    let taken = herd::take(&ShmDevice::guest(), socket, &asked)?;
    checked(taken.map(|port| AnyPort::Shm(Box::new(port))), offer)
}

/// By a lease on a connection of its own, to where `offer` came from.
fn take_roce(
    token: Token,
    (local, peer): (SocketAddr, SocketAddr),
    offer: &Offer,
    options: &Options,
) -> Result<Taken<AnyPort>, LeaseError> {
    let socket = TcpStream::connect_timeout(&peer, options.deadline)?;
    socket.set_nodelay(true)?;
    let device = RoceDevice::bind(RoceOptions {
        peer_host: Some(peer.ip()),
        ..RoceOptions::new(SocketAddr::new(local.ip(), 0))
    })?;
    let asked = asked(token, offer, options);
    let taken = herd::take(&device, LeaseSocket::Tcp(socket), &asked)?;
    checked(taken.map(|port| AnyPort::Roce(Box::new(port))), offer)
}

fn asked(token: Token, offer: &Offer, options: &Options) -> Asked {
    let slots = options.window.clamp(1, Window::MAX).next_power_of_two();
    Asked {
        token,
        path: offer.path,
        slots: slots as u32,
        deadline: options.deadline,
    }
}

/// A worker's answers are matched by number, so the grant must speak of as many as the offer.
fn checked(taken: Taken<AnyPort>, offer: &Offer) -> Result<Taken<AnyPort>, LeaseError> {
    let (granted, offered) = (taken.workers(), offer.workers);
    if granted == offered {
        Ok(taken)
    } else {
        Err(LeaseError::Workers { offered, granted })
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

/// There is nothing to take up: a domain of the client's own is as good as any.
impl TicketDevice for RoceDevice {
    fn attach(
        &self,
        port: &mut RocePort,
        _: Vec<u8>,
        _: Vec<OwnedFd>,
    ) -> Result<PdId, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.create_pd(port)?)
    }
}
