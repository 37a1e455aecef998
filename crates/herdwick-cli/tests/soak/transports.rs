//! Every transport to a server, as one kind of client that makes one call at a time and panics if
//! one fails.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use herdwick::{Client, Fabric, Fallback, Options, Put, Session};
use rustls::pki_types::CertificateDer;

use crate::{
    binary::Binary,
    common::TIMEOUT,
    stream::Stream,
    text::{Classic, Meta},
    udp::Udp,
};

/// The addresses of a server.
#[derive(Clone)]
pub(crate) struct Places {
    /// `host:port`, or the path of a unix socket.
    pub(crate) main: String,
    pub(crate) tls: Option<(String, CertificateDer<'static>)>,
    pub(crate) udp: Option<SocketAddr>,
    /// Inodes of the memory that all clients share, which outlives their leases.
    pub(crate) boards: HashSet<u64>,
    /// Most simultaneous transfers of a megabyte by one client.
    pub(crate) transfers_max: u64,
    /// Leases whose trial of the fabric came too late.
    pub(crate) silent: Arc<AtomicU64>,
}

/// The transport and protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Shm,
    Roce,
    /// The library, over memcached's text protocol.
    Plain,
    Classic,
    Meta,
    Binary,
    /// The classic text protocol over TLS.
    Tls,
    Udp,
}

impl Kind {
    /// Whether a [`Session`] can use it.
    pub(crate) fn is_session(self) -> bool {
        matches!(self, Self::Shm | Self::Roce | Self::Plain)
    }

    /// Whether it needs a lease.
    pub(crate) fn is_lease(self) -> bool {
        matches!(self, Self::Shm | Self::Roce)
    }

    /// Whether it is a stream of memcached's text.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Classic | Self::Tls)
    }

    pub(crate) fn parse(name: &str) -> Self {
        let all = [Self::Shm, Self::Roce, Self::Plain];
        let found = all.into_iter().find(|kind| format!("{kind:?}") == name);
        found.expect("a transport of a session")
    }

    /// Options of the library for this transport.
    pub(crate) fn options(self, window: usize) -> Options {
        Options {
            deadline: TIMEOUT,
            fabric: self.is_lease(),
            only: match self {
                Self::Shm => Some(Fabric::Shm),
                Self::Roce => Some(Fabric::Roce),
                _ => None,
            },
            window,
            ..Options::default()
        }
    }
}

/// A client that makes one call at a time.
pub(crate) trait Transport {
    fn get(&mut self, key: &str) -> Option<Vec<u8>>;
    /// Stores a value with a time to live in seconds; 0 means no expiry.
    fn set(&mut self, key: &str, value: &[u8], ttl: u32);
    /// Removes an item. Returns whether there was one.
    fn delete(&mut self, key: &str) -> bool;
    /// Adds one and returns the new number.
    fn incr(&mut self, key: &str) -> Option<u64>;

    fn get_many(&mut self, keys: &[String]) -> Vec<Option<Vec<u8>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// The longest value over this transport.
    fn value_bytes_max(&self) -> usize {
        1_000_000
    }
}

impl Places {
    /// Makes the addresses of a server that has only one.
    pub(crate) fn at(main: &str) -> Self {
        Self {
            main: main.to_owned(),
            tls: None,
            udp: None,
            boards: HashSet::new(),
            transfers_max: 1,
            silent: Arc::default(),
        }
    }

    /// Connects a client; `None` if there are no leases left.
    pub(crate) fn connect(&self, kind: Kind) -> Option<Box<dyn Transport>> {
        Some(match kind {
            Kind::Shm | Kind::Roce | Kind::Plain => Box::new(self.library(kind, 32)?),
            Kind::Classic => Box::new(Classic::new(self.stream(kind))),
            Kind::Tls => Box::new(Classic::new(self.stream(kind))),
            Kind::Meta => Box::new(Meta::new(self.stream(kind))),
            Kind::Binary => Box::new(Binary::new(self.stream(kind))),
            Kind::Udp => Box::new(Udp::new(self.udp.expect("the server offers it"))),
        })
    }

    /// Opens a connection without sending anything.
    pub(crate) fn stream(&self, kind: Kind) -> Stream {
        match (kind, &self.tls) {
            (Kind::Tls, Some((address, trusted))) => Stream::tls(address, trusted.clone()),
            _ => Stream::plain(&self.main),
        }
    }

    /// Connects the library's client; `None` if it does not use the intended transport.
    pub(crate) fn library(&self, kind: Kind, window: usize) -> Option<Library> {
        let client = Client::connect_with(&self.main, kind.options(window)).unwrap();
        let session = client.session().expect("it has just connected");
        let silent = Arc::clone(&self.silent);
        is_on(session, kind, &silent).then_some(Library {
            client,
            kind,
            silent,
        })
    }

    /// Opens the library's session, likewise.
    pub(crate) fn session(&self, kind: Kind, window: usize) -> Option<Session> {
        let address = self.main.parse().unwrap();
        let session = Session::dial(&address, &kind.options(window)).unwrap();
        is_on(&session, kind, &self.silent).then_some(session)
    }
}

/// Whether a session uses the intended transport. Three reasons excuse another one: no leases are
/// left, or a busy host answered the hello or the trial of the fabric too late. The last is what a
/// fabric that carries nothing looks like, too, so it is added to `silent`, and has to be rare.
fn is_on(session: &Session, kind: Kind, silent: &AtomicU64) -> bool {
    let transport = match kind {
        Kind::Shm => "shm",
        Kind::Roce => "roce",
        _ => "tcp",
    };
    let excuse = session.fallback();
    let late = matches!(excuse, Some(Fallback::Silent(_)));
    silent.fetch_add(late.into(), Relaxed);
    let excused = late || matches!(excuse, Some(Fallback::Refused(_) | Fallback::NoAnswer));
    assert!(
        session.transport() == transport || excused,
        "{kind:?} uses {}: {:?}",
        session.transport(),
        session.fallback()
    );
    session.transport() == transport
}

/// The client library.
pub(crate) struct Library {
    pub(crate) client: Client,
    kind: Kind,
    silent: Arc<AtomicU64>,
}

impl Library {
    /// Checks that the lease was not ended while in use. (The client itself would dial again.)
    fn stays(&self) {
        let session = self.client.session();
        assert!(session.is_some_and(|session| is_on(session, self.kind, &self.silent)));
    }
}

impl Transport for Library {
    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let value = self.client.get(key).unwrap();
        self.stays();
        value
    }

    fn set(&mut self, key: &str, value: &[u8], ttl: u32) {
        let put = match ttl {
            0 => Put::new(value),
            seconds => Put::new(value).ttl(std::time::Duration::from_secs(seconds.into())),
        };
        self.client.set(key, put).unwrap();
        self.stays();
    }

    fn delete(&mut self, key: &str) -> bool {
        self.client.delete(key).unwrap()
    }

    fn incr(&mut self, key: &str) -> Option<u64> {
        self.client.incr(key, 1).unwrap()
    }

    fn get_many(&mut self, keys: &[String]) -> Vec<Option<Vec<u8>>> {
        let items = self.client.get_many(keys).unwrap();
        self.stays();
        items.into_iter().map(|item| Some(item?.value)).collect()
    }
}
