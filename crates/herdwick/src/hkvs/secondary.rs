//! The transport to the secondary store. A thread of its own asks the server which store that is, and dials it, so
//! that no call waits for a store that does not answer.
//!
//! Circular import with `hkvs` and `transports`: a session with a secondary store has a transport to each store.

use std::{
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::{Duration, Instant},
};

use herdwick_herd::hello::StoreName;
use herdwick_hkvs::QUIET_MAX;
use herdwick_request::HashKey;

use crate::{
    Address, Options,
    due::{Due, clock},
    memcached_port::MemcachedPort,
    transports::OpenTransport,
};

/// Pause before another attempt to dial.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an attempt may take, and a read.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);
/// Reads in flight.
pub(super) const WINDOW: usize = 64;

/// How to get there.
#[derive(Clone, Debug)]
pub(crate) struct SecondaryWay {
    /// The server's memcached port.
    pub(crate) home: MemcachedPort,
    /// The server's, by which it is recognized.
    pub(crate) hash_key: HashKey,
    /// The store's memcached port.
    pub(crate) address: Address,
    pub(crate) options: Options,
}

impl SecondaryWay {
    /// Asks the server which store it is connected to, and dials that one: another that stands at the address
    /// refuses.
    fn dial(&self) -> Option<OpenStore> {
        let heard = clock();
        let (_, offer) = (self.home)
            .ask_again(self.hash_key, Due::after(DEADLINE))
            .ok()?;
        let StoreName { id, number } = offer.secondary?.store?;
        let options = Options {
            deadline: DEADLINE,
            window: WINDOW,
            secret: None,
            store: Some(id),
            member: None,
            ..self.options.clone()
        };
        let (transport, _) = OpenTransport::dial(&self.address, &options).ok()?;
        // Over TCP there is nothing to read there.
        transport.is_read_only().then(|| OpenStore {
            transport: Box::new(transport),
            number,
            opened: clock(),
            heard,
        })
    }
}

/// A session with the secondary store.
#[derive(Debug)]
pub(super) struct OpenStore {
    transport: Box<OpenTransport>,
    /// What the server's replies call it.
    number: u8,
    /// Requests that were sent later are answered by a server that knows this store, or a later one.
    opened: Instant,
    /// The last time at which the server is known to have called this store so.
    heard: Instant,
}

/// The transport, or the attempt to get one.
#[derive(Debug)]
pub(super) enum Secondary {
    /// None; another attempt may begin at this time.
    Absent(Instant),
    Dialling(Receiver<Option<OpenStore>>),
    Open(OpenStore),
}

impl Secondary {
    pub(super) fn new() -> Self {
        Self::Absent(clock())
    }

    pub(super) fn open(&mut self) -> Option<&mut OpenTransport> {
        match self {
            Self::Open(open) => Some(&mut open.transport),
            Self::Absent(_) | Self::Dialling(_) => None,
        }
    }

    /// Returns the name of the transport.
    pub(super) fn name(&self) -> Option<&'static str> {
        match self {
            Self::Open(open) => Some(open.transport.name()),
            Self::Absent(_) | Self::Dialling(_) => None,
        }
    }

    /// Returns whether a lease of the store of that number is one of the open session's. The reply to a request
    /// that was `sent` then has granted it. Ends the session if the server has another store.
    pub(super) fn is_leased(&mut self, number: u8, sent: Instant) -> bool {
        let Self::Open(open) = self else {
            return false;
        };
        // Numbers come again, but not within that time.
        let is_known = sent.saturating_duration_since(open.heard) <= QUIET_MAX;
        if open.number == number && is_known {
            open.heard = open.heard.max(sent);
            return true;
        }
        if sent > open.opened {
            *self = Self::Absent(clock());
        }
        false
    }

    /// Begins to dial if a session is `wanted`, or takes what was dialled. Returns whether a transport was lost, or
    /// is a new one.
    pub(super) fn tend(&mut self, way: &SecondaryWay, wanted: bool) -> bool {
        match self {
            Self::Absent(at) if wanted && clock() >= *at => self.dial(way.clone()),
            Self::Absent(_) => {}
            Self::Dialling(dialled) => match dialled.try_recv() {
                Ok(Some(open)) => {
                    *self = Self::Open(open);
                    return true;
                }
                Ok(None) | Err(TryRecvError::Disconnected) => self.pause(),
                Err(TryRecvError::Empty) => {}
            },
            // Another client may have its place.
            Self::Open(_) if !wanted => {
                *self = Self::Absent(clock());
                return true;
            }
            Self::Open(open) => {
                if open.transport.broken().is_some() {
                    self.pause();
                    return true;
                }
            }
        }
        false
    }

    fn pause(&mut self) {
        *self = Self::Absent(clock() + PAUSE);
    }

    fn dial(&mut self, way: SecondaryWay) {
        let (done, dialled) = mpsc::channel();
        let thread = thread::Builder::new().name("herdwick-secondary".into());
        let spawned = thread.spawn(move || {
            // It is not waited for any more if the client has ended.
            let _ = done.send(way.dial());
        });
        match spawned {
            Ok(_) => *self = Self::Dialling(dialled),
            Err(_) => self.pause(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(1);

    /// A session that was opened at `opened`, and heard of then.
    fn store(number: u8, opened: Instant) -> Secondary {
        let server = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
        let options = Options {
            fabric: false,
            ..Options::default()
        };
        let address = server.address().to_string().parse().unwrap();
        let (transport, _) = OpenTransport::dial(&address, &options).unwrap();
        Secondary::Open(OpenStore {
            transport: Box::new(transport),
            number,
            opened,
            heard: opened,
        })
    }

    #[test]
    fn leases_of_another_store_count_for_nothing_and_end_the_session() {
        let start = clock();
        let mut secondary = store(3, start);
        assert!(secondary.is_leased(3, start + AGE));
        assert!(
            !secondary.is_leased(4, start),
            "an earlier one's reply is late"
        );
        assert!(secondary.is_leased(3, start + AGE));
        assert!(!secondary.is_leased(4, start + AGE));
        assert!(
            !secondary.is_leased(3, start + AGE),
            "the session has ended"
        );
    }

    #[test]
    fn a_number_that_was_not_heard_for_long_may_be_anothers() {
        let start = clock();
        let mut secondary = store(3, start);
        let mut sent = start;
        for _ in 0..5 {
            sent += QUIET_MAX;
            assert!(secondary.is_leased(3, sent));
        }
        assert!(!secondary.is_leased(3, sent + QUIET_MAX + AGE));
        assert!(secondary.open().is_none());
    }
}
