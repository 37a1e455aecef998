//! The transports to a server: the only module of the client that names the providers.

pub(crate) mod port;

use std::{net::SocketAddr, time::Duration};

use herdwick_herd::{
    RequestPath,
    hello::{Offer, ShmOffer, Token, VerbsOffer},
    wire::Window,
};
use herdwick_roce_udp::{RoceDevice, RoceOptions};
use herdwick_shm::ShmDevice;
pub use herdwick_verbs::VerbsOptions;
use herdwick_verbs::{NoPlace, VerbsDevice, VerbsError};
use port::AnyPort;

use crate::{
    Address, Answer, Cause, DialError, Fabric, Fallback, Key, Op, Options, Ticket,
    door::Door,
    due::Due,
    hello::{self, Said},
    herd::{self, Asked, Direct, Herd, LeaseError, LeaseSocket, Taken},
    memcached::Memcached,
    stream::Stream,
    text::{Command, When},
};

/// An open transport. Each call is one branch; everything behind it is concrete.
#[derive(Debug)]
pub(crate) enum Transport {
    /// memcached's text protocol, which every memcached speaks.
    Memcached(Memcached),
    /// HERD over a fabric.
    Herd(Fabric, Box<Herd<AnyPort>>),
}

impl Transport {
    /// Opens the best transport to `address` that both ends have. Also returns why a better one
    /// failed, or why there is only text.
    pub(crate) fn dial(
        address: &Address,
        options: &Options,
    ) -> Result<(Self, Option<Fallback>), DialError> {
        let due = Due::after(options.deadline);
        let door = Door::new(address, options);
        let mut stream = door.open(due)?;
        let reason = if options.fabric {
            match hello::exchange(&mut stream, options, due) {
                Said::Offer(offer) => match lease(&stream, &offer, due, options) {
                    Ok((fabric, taken, missed)) => {
                        let door = door.at(&stream);
                        let memcached = Memcached::new(stream, options.value_bytes_max);
                        let herd = Herd::new(taken, offer.hash_key, memcached, door);
                        return Ok((Self::Herd(fabric, Box::new(herd)), missed));
                    }
                    Err(reason) => reason,
                },
                Said::Version(version) => Fallback::Version(version),
                Said::Memcached => Fallback::Memcached,
                Said::Locked => return Err(DialError::LoginNeeded),
                Said::Spoiled => {
                    stream = door.open(due)?;
                    Fallback::NoAnswer
                }
            }
        } else {
            Fallback::Unasked
        };
        let transport = Self::Memcached(Memcached::new(stream, options.value_bytes_max));
        Ok((transport, Some(reason)))
    }

    /// The name of the transport, as in `--fabric`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Memcached(_) => "tcp",
            Self::Herd(fabric, _) => fabric.name(),
        }
    }

    /// Rank of the transport, 0 for the best.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Herd(Fabric::Shm, _) => 0,
            Self::Herd(Fabric::Verbs, _) => 1,
            Self::Herd(Fabric::Roce, _) => 2,
            Self::Memcached(_) => 3,
        }
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(transport) => transport.submit(when, key, op),
            Self::Herd(_, transport) => transport.submit(when, key, op),
        }
    }

    pub(crate) fn command(&mut self, when: When, command: Command<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(transport) => transport.command(when.due, command),
            Self::Herd(_, transport) => transport.command(when, command),
        }
    }

    pub(crate) fn flush(&mut self, now: Duration) {
        match self {
            Self::Memcached(transport) => transport.flush(),
            Self::Herd(_, transport) => transport.flush(now),
        }
    }

    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        match self {
            Self::Memcached(transport) => transport.poll(now, sink),
            Self::Herd(_, transport) => transport.poll(now, sink),
        }
    }

    /// Sees to it that a session whose server is gone has ended. Nothing may be in flight.
    pub(crate) fn check(&mut self, now: Duration) {
        match self {
            Self::Memcached(transport) => transport.poll(now, &mut |_, _| {}),
            Self::Herd(_, transport) => transport.check(now),
        }
    }

    pub(crate) fn wait(&mut self, now: Duration, limit: Duration) {
        match self {
            Self::Memcached(transport) => transport.wait(limit),
            Self::Herd(_, transport) => transport.wait(now, limit),
        }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        match self {
            Self::Memcached(transport) => transport.due(),
            Self::Herd(_, transport) => transport.due(),
        }
    }

    /// Ends the session for `cause`, without using the server again.
    pub(crate) fn abandon(&mut self, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        match self {
            Self::Memcached(transport) => transport.abandon(cause, sink),
            Self::Herd(_, transport) => transport.abandon(cause, sink),
        }
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        match self {
            Self::Memcached(transport) => transport.broken(),
            Self::Herd(_, transport) => transport.broken(),
        }
    }

    pub(crate) fn direct(&mut self) -> Option<Direct<'_, AnyPort>> {
        match self {
            Self::Memcached(_) => None,
            Self::Herd(_, transport) => Some(transport.direct()),
        }
    }
}

/// Claims the best lease that is offered on `stream`. Also returns why better ones failed. Each
/// attempt gets half of the time left, so that one that waits in vain leaves time for the next, and
/// for the request itself.
fn lease(
    stream: &Stream,
    offer: &Offer,
    due: Due,
    options: &Options,
) -> Result<(Fabric, Taken<AnyPort>, Option<Fallback>), Fallback> {
    let mut missed = None;
    if let Some(shm) = &offer.shm {
        match take_shm(shm, offer, options, due.half()) {
            Ok(taken) => return Ok((Fabric::Shm, taken, missed)),
            Err(error) => missed = Some(error.at(&shm.socket)),
        }
    }
    let ends = stream.ends();
    if let (Some(verbs), Some(ends)) = (&offer.verbs, ends) {
        match take_verbs(verbs, ends, offer, options, due.half()) {
            Ok(taken) => return Ok((Fabric::Verbs, taken, missed)),
            Err(why) => missed = Some(more_hopeful(missed, why)),
        }
    }
    if let (Some(token), Some(ends)) = (offer.roce, ends) {
        match take_roce(token, ends, offer, options, due.half()) {
            Ok(taken) => return Ok((Fabric::Roce, taken, missed)),
            Err(error) => missed = Some(more_hopeful(missed, error.remote(Fabric::Roce))),
        }
    }
    Err(missed.unwrap_or(Fallback::NotOffered))
}

/// Returns that of two reasons which is temporary: it decides whether to try again.
fn more_hopeful(missed: Option<Fallback>, why: Fallback) -> Fallback {
    missed.filter(Fallback::may_pass).unwrap_or(why)
}

fn take_shm(
    shm: &ShmOffer,
    offer: &Offer,
    options: &Options,
    due: Due,
) -> Result<Taken<AnyPort>, LeaseError> {
    let socket = LeaseSocket::unix(&shm.socket, due)?;
    let asked = asked((shm.token, offer.path), options);
    let taken = herd::take(&ShmDevice::client(), socket, &asked)?;
    checked(taken.map(|port| AnyPort::Shm(Box::new(port))), offer)
}

/// Claims a lease as over RoCEv2, on the device that has the address from which the server was
/// reached: the kernel has chosen that route. For a loopback address any device will do.
fn take_verbs(
    verbs: &VerbsOffer,
    (local, peer): (SocketAddr, SocketAddr),
    offer: &Offer,
    options: &Options,
    due: Due,
) -> Result<Taken<AnyPort>, Fallback> {
    let own_address = (!local.ip().to_canonical().is_loopback()).then_some(local.ip());
    let device = VerbsDevice::open(&VerbsOptions {
        own_address,
        follow_class: true,
        ..options.verbs.clone().unwrap_or_default()
    });
    let device = device.map_err(no_device)?;
    let asked = asked((verbs.token, verbs.path), options);
    let taken = LeaseSocket::tcp(peer, due).map_err(LeaseError::from);
    let taken = taken.and_then(|socket| herd::take(&device, socket, &asked));
    let taken = taken.map(|taken| taken.map(|port| AnyPort::Verbs(Box::new(port))));
    let taken = taken.and_then(|taken| checked(taken, offer));
    taken.map_err(|error| error.remote(Fabric::Verbs))
}

/// Distinguishes temporary errors from permanent ones.
fn no_device(error: VerbsError) -> Fallback {
    match error {
        VerbsError::System { .. }
        | VerbsError::Trial(_)
        | VerbsError::Place(NoPlace::PortDown(_)) => Fallback::Setup(error.to_string()),
        VerbsError::Library(_) | VerbsError::Place(_) => Fallback::NoDevice(error.to_string()),
    }
}

/// Claims a lease on a separate connection to the address that `offer` came from.
fn take_roce(
    token: Token,
    (local, peer): (SocketAddr, SocketAddr),
    offer: &Offer,
    options: &Options,
    due: Due,
) -> Result<Taken<AnyPort>, LeaseError> {
    let socket = LeaseSocket::tcp(peer, due)?;
    // Copy the whole address: a link-local one needs its scope.
    let mut own = local;
    own.set_port(0);
    let device = RoceDevice::bind(RoceOptions {
        peer_host: Some(peer.ip()),
        keyed: offer.keyed,
        ..RoceOptions::new(own)
    })?;
    let asked = asked((token, offer.path), options);
    let taken = herd::take(&device, socket, &asked)?;
    checked(taken.map(|port| AnyPort::Roce(Box::new(port))), offer)
}

fn asked((token, path): (Token, RequestPath), options: &Options) -> Asked {
    let slots = options.window.clamp(1, Window::MAX).next_power_of_two();
    Asked {
        token,
        path,
        slots: slots as u32,
    }
}

/// Checks that the grant has as many workers as the offer: replies are matched by the worker's
/// number.
fn checked(taken: Taken<AnyPort>, offer: &Offer) -> Result<Taken<AnyPort>, LeaseError> {
    let (granted, offered) = (taken.workers(), offer.workers);
    if granted == offered {
        Ok(taken)
    } else {
        Err(LeaseError::Workers { offered, granted })
    }
}
