//! The transports to a server: memcached's text protocol, and HERD over each fabric that both ends
//! have.
//!
//! Circular import with `hkvs` and `secondary`: a session with a secondary store has a transport to each store.

use std::{io, time::Duration};

use herdwick_fabric::Device;
use herdwick_herd::{
    hello::{FabricOffer, Offer, StoreId},
    wire::Window,
};
use herdwick_providers::{self as providers, AnyPort, Dial, Visit};

use crate::{
    Address, Answer, Cause, DialError, Fabric, Fallback, Key, OneSidedCounters, OneSidedReads, Op,
    Options, ReadFrom, SecondaryReads, Ticket,
    clover::{self, AskedClover, Clover, TakenClover},
    due::Due,
    hello::{self, SECONDARY, Said},
    herd::{self, Asked, Direct, Herd, LeaseError, LeaseSocket, Taken},
    hkvs::{Hkvs, SecondaryWay},
    memcached::Memcached,
    memcached_port::MemcachedPort,
    sleep::Sleep,
    stream::Stream,
    text::{Command, When},
};

/// An open transport. Each call is one branch; everything behind it is concrete.
#[derive(Debug)]
pub(crate) enum OpenTransport {
    /// memcached's text protocol, which every memcached speaks.
    Memcached(Memcached),
    /// HERD over a fabric.
    Herd(Fabric, Box<Herd<AnyPort>>),
    /// The engine Clover over a fabric.
    Clover(Fabric, Box<Clover<AnyPort>>),
    /// HERD over a fabric, and a secondary store.
    Hkvs(Fabric, Box<Hkvs<AnyPort>>),
}

/// A lease of either engine.
enum Leased {
    Herd(Box<Taken<AnyPort>>),
    Clover(Box<TakenClover<AnyPort>>),
}

impl OpenTransport {
    /// Opens the best transport to `address` that both ends have. Also returns why a better one
    /// failed, or why there is only text.
    pub(crate) fn dial(
        address: &Address,
        options: &Options,
    ) -> Result<(Self, Option<Fallback>), DialError> {
        let due = Due::after(options.deadline);
        let memcached_port = MemcachedPort::new(address, options);
        let mut stream = memcached_port.open(due)?;
        // A server in etcd learns by which registration it is known, whatever the transport.
        let reason = if options.fabric || options.member.is_some() {
            match hello::exchange(&mut stream, options, due) {
                Said::Offer(offer) => match lease(&stream, &offer, due, options) {
                    Ok((fabric, leased, missed)) => {
                        let (port, key) = (memcached_port.at(&stream), offer.hash_key);
                        let memcached = Memcached::new(stream, options.value_bytes_max);
                        let transport = match leased {
                            Leased::Herd(taken) => {
                                let workers = taken.workers();
                                let (mode, home) = (options.one_sided, port.clone());
                                let herd = Herd::new(*taken, key, memcached, port, mode);
                                let home = (home, workers);
                                Self::beside((fabric, herd), &offer, home, options)
                            }
                            Leased::Clover(taken) => {
                                let clover = Clover::new(*taken, key, memcached, port);
                                Self::Clover(fabric, Box::new(clover))
                            }
                        };
                        return Ok((transport, missed));
                    }
                    Err(_) if !options.fabric => Fallback::Unasked,
                    Err(reason) => reason,
                },
                Said::Version(version) => Fallback::Version(version),
                Said::Memcached => Fallback::Memcached,
                Said::Locked => return Err(DialError::LoginNeeded),
                Said::AnotherMember => return Err(DialError::AnotherMember),
                Said::Refused(reason) => return Err(reason),
                // By text the server could not refuse one that knows a former registration alone.
                Said::Spoiled if options.member.is_some() => {
                    return Err(DialError::Io(io::ErrorKind::TimedOut.into()));
                }
                Said::Spoiled => {
                    // An answer to the hello that comes late would be taken for that to a request.
                    stream = memcached_port.open(due)?;
                    Fallback::NoAnswer
                }
            }
        } else {
            if options.tls.is_some() {
                hello::confirm(&mut stream, due)?;
            }
            Fallback::Unasked
        };
        let transport = Self::Memcached(Memcached::new(stream, options.value_bytes_max));
        Ok((transport, Some(reason)))
    }

    /// Returns the transport of a HERD session, with the secondary store that the server offers.
    fn beside(
        (fabric, herd): (Fabric, Herd<AnyPort>),
        offer: &Offer,
        (home, workers): (MemcachedPort, usize),
        options: &Options,
    ) -> Self {
        let secondary = offer.secondary.as_ref();
        // An address that this client cannot parse is as good as none: it reads from the server.
        let address = secondary.and_then(|it| it.address.parse::<Address>().ok());
        match (secondary, address) {
            (Some(secondary), Some(address)) => {
                let way = SecondaryWay {
                    home,
                    hash_key: offer.hash_key,
                    address,
                    options: options.clone(),
                };
                let terms = (secondary.lease, workers);
                Self::Hkvs(fabric, Box::new(Hkvs::new(herd, way, terms)))
            }
            _ => Self::Herd(fabric, Box::new(herd)),
        }
    }

    /// Sets where replicated keys are read.
    pub(crate) fn set_read_from(&mut self, read_from: ReadFrom) {
        if let Self::Hkvs(_, transport) = self {
            transport.set_read_from(read_from);
        }
    }

    /// Returns the transport to a secondary store, while there is a session with it.
    pub(crate) fn secondary(&self) -> Option<&'static str> {
        match self {
            Self::Hkvs(_, transport) => transport.secondary(),
            Self::Memcached(_) | Self::Herd(..) | Self::Clover(..) => None,
        }
    }

    /// Returns what has become of reads that went to a secondary store.
    pub(crate) fn secondary_reads(&self) -> SecondaryReads {
        match self {
            Self::Hkvs(_, transport) => transport.secondary_reads(),
            Self::Memcached(_) | Self::Herd(..) | Self::Clover(..) => SecondaryReads::default(),
        }
    }

    /// The name of the transport, as in `--fabric`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Memcached(_) => "tcp",
            Self::Herd(fabric, _) | Self::Clover(fabric, _) | Self::Hkvs(fabric, _) => {
                fabric.name()
            }
        }
    }

    /// Rank of the transport, 0 for the best.
    pub(crate) fn rank(&self) -> usize {
        match self {
            Self::Herd(fabric, _) | Self::Clover(fabric, _) | Self::Hkvs(fabric, _) => {
                fabric.rank()
            }
            Self::Memcached(_) => Fabric::ALL.len(),
        }
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(transport) => transport.submit(when, key, op),
            Self::Herd(_, transport) => transport.submit(when, key, op),
            Self::Clover(_, transport) => transport.submit(when, key, op),
            Self::Hkvs(_, transport) => transport.submit(when, key, op),
        }
    }

    pub(crate) fn command(&mut self, when: When, command: Command<'_>) -> Option<Ticket> {
        match self {
            Self::Memcached(transport) => transport.command(when.due, command),
            Self::Herd(_, transport) => transport.command(when, command),
            Self::Clover(_, transport) => transport.command(when, command),
            Self::Hkvs(_, transport) => transport.command(when, command),
        }
    }

    pub(crate) fn flush(&mut self, now: Duration) {
        match self {
            Self::Memcached(transport) => transport.flush(),
            Self::Herd(_, transport) => transport.flush(now),
            Self::Clover(_, transport) => transport.flush(now),
            Self::Hkvs(_, transport) => transport.flush(now),
        }
    }

    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        match self {
            Self::Memcached(transport) => transport.poll(now, sink),
            Self::Herd(_, transport) => transport.poll(now, sink),
            Self::Clover(_, transport) => transport.poll(now, sink),
            Self::Hkvs(_, transport) => transport.poll(now, sink),
        }
    }

    /// Sees to it that a session whose server is gone has ended. Nothing may be in flight.
    pub(crate) fn check(&mut self, now: Duration) {
        match self {
            Self::Memcached(transport) => transport.poll(now, &mut |_, _| {}),
            Self::Herd(_, transport) => transport.check(now),
            Self::Clover(_, transport) => transport.check(now),
            Self::Hkvs(_, transport) => transport.check(now),
        }
    }

    /// Returns what to sleep on; `None`: to be polled now. [`OpenTransport::disarm`] must follow.
    pub(crate) fn sleep(&mut self, now: Duration, limit: Duration) -> Option<Sleep<'_>> {
        match self {
            Self::Memcached(transport) => transport.sleep(limit),
            Self::Herd(_, transport) => transport.sleep(now, limit),
            Self::Clover(_, transport) => transport.sleep(now, limit),
            Self::Hkvs(_, transport) => transport.sleep(now, limit),
        }
    }

    /// Cancels what a sleep armed, if anything.
    pub(crate) fn disarm(&mut self) {
        match self {
            Self::Memcached(_) | Self::Clover(..) => {}
            Self::Herd(_, transport) => transport.disarm(),
            Self::Hkvs(_, transport) => transport.disarm(),
        }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        match self {
            Self::Memcached(transport) => transport.due(),
            Self::Herd(_, transport) => transport.due(),
            Self::Clover(_, transport) => transport.due(),
            Self::Hkvs(_, transport) => transport.due(),
        }
    }

    /// Ends the session for `cause`, without using the server again.
    pub(crate) fn abandon(&mut self, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        match self {
            Self::Memcached(transport) => transport.abandon(cause, sink),
            Self::Herd(_, transport) => transport.abandon(cause, sink),
            Self::Clover(_, transport) => transport.abandon(cause, sink),
            Self::Hkvs(_, transport) => transport.abandon(cause, sink),
        }
    }

    /// Whether the server lets this client read alone.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            Self::Memcached(_) | Self::Herd(..) | Self::Hkvs(..) => false,
            Self::Clover(_, transport) => transport.is_read_only(),
        }
    }

    /// What names the secondary store that this client has begun, as its writer.
    pub(crate) fn began_store(&self) -> Option<StoreId> {
        match self {
            Self::Memcached(_) | Self::Herd(..) | Self::Hkvs(..) => None,
            Self::Clover(_, transport) => transport.began_store(),
        }
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        match self {
            Self::Memcached(transport) => transport.broken(),
            Self::Herd(_, transport) => transport.broken(),
            Self::Clover(_, transport) => transport.broken(),
            Self::Hkvs(_, transport) => transport.broken(),
        }
    }

    pub(crate) fn one_sided(&self) -> Option<OneSidedCounters> {
        match self {
            Self::Memcached(_) | Self::Clover(..) => None,
            Self::Herd(_, transport) => transport.one_sided(),
            Self::Hkvs(_, transport) => transport.primary.one_sided(),
        }
    }

    pub(crate) fn direct(&mut self) -> Option<Direct<'_, AnyPort>> {
        match self {
            Self::Memcached(_) | Self::Clover(..) => None,
            Self::Herd(_, transport) => Some(transport.direct()),
            Self::Hkvs(_, transport) => Some(transport.primary.direct()),
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
) -> Result<(Fabric, Leased, Option<Fallback>), Fallback> {
    let known = hello::engine(options);
    match offer.engine.as_deref() {
        other if known == SECONDARY && other != Some(SECONDARY) => {
            return Err(Fallback::NotSecondary);
        }
        Some(engine) if engine != known => return Err(Fallback::Engine(engine.to_owned())),
        _ => {}
    }
    let mut missed = None;
    let ends = stream.ends();
    for fabric in Fabric::ALL {
        let Some(lease) = offer.fabric(fabric.name()) else {
            continue;
        };
        // A fabric that leaves the host is claimed at the server's address, and a unix socket has
        // none.
        if ends.is_none() && !fabric.is_local() {
            continue;
        }
        let dial = Dial {
            options: &options.dial,
            ends,
            attribute: lease.attribute,
        };
        match take((fabric, lease), &dial, offer, options, due.half()) {
            Ok(taken) => return Ok((fabric, taken, missed)),
            Err(why) => missed = Some(more_hopeful(missed, why)),
        }
    }
    Err(missed.unwrap_or(Fallback::NotOffered))
}

/// Returns that of two reasons which is temporary: it decides whether to try again.
fn more_hopeful(missed: Option<Fallback>, why: Fallback) -> Fallback {
    missed.filter(Fallback::may_pass).unwrap_or(why)
}

/// Claims a lease over one fabric, on the socket that its offer names, or on a separate connection
/// to the address that the offer came from.
fn take(
    (fabric, lease): (Fabric, &FabricOffer),
    dial: &Dial<'_>,
    offer: &Offer,
    options: &Options,
    due: Due,
) -> Result<Leased, Fallback> {
    let device = fabric.dial(dial).map_err(|error| match error {
        providers::ClientDeviceError::Absent(why) => Fallback::NoDevice(fabric, why),
        providers::ClientDeviceError::Setup(why) => Fallback::Setup(why),
    })?;
    let socket = match (&lease.socket, dial.ends) {
        (Some(path), _) => LeaseSocket::unix(path, due),
        (None, Some((_, peer))) => LeaseSocket::tcp(peer, due),
        (None, None) => Err(io::ErrorKind::AddrNotAvailable.into()),
    };
    // A window is a power of two.
    let slots = options.window.clamp(1, Window::MAX).next_power_of_two();
    let asked = Asked {
        token: lease.token,
        path: lease.path.unwrap_or(offer.path),
        slots: slots as u32,
        reads: (offer.one_sided).filter(|_| options.one_sided != OneSidedReads::Never),
        value_bytes_max: options.value_bytes_max,
    };
    let taken = socket.map_err(LeaseError::from).and_then(|socket| {
        // `lease` has seen that it is this client's.
        if offer.engine.is_some() {
            let asked = AskedClover {
                token: lease.token,
                window: slots,
                secret: options.secret,
                store: options.store,
            };
            return device
                .visit(TakeClover { socket, asked })
                .map(|taken| Leased::Clover(Box::new(taken)));
        }
        let taken = device.visit(Take { socket, asked })?;
        checked(taken, offer).map(|taken| Leased::Herd(Box::new(taken)))
    });
    taken.map_err(|error| error.reason(fabric, lease.socket.as_deref()))
}

/// Claims a lease, compiled for each provider.
struct Take {
    socket: LeaseSocket,
    asked: Asked,
}

impl Visit for Take {
    type Output = Result<Taken<AnyPort>, LeaseError>;

    fn visit<D>(self, device: D) -> Self::Output
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
    {
        Ok(herd::take(&device, self.socket, &self.asked)?.map(Into::into))
    }
}

/// Claims a lease of the engine Clover, compiled for each provider.
struct TakeClover {
    socket: LeaseSocket,
    asked: AskedClover,
}

impl Visit for TakeClover {
    type Output = Result<TakenClover<AnyPort>, LeaseError>;

    fn visit<D>(self, device: D) -> Self::Output
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
    {
        Ok(clover::take(device, self.socket, &self.asked)?.map(Into::into))
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
