//! Creates the lease manager with its channels, and answers hellos.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    time::Duration,
};

use herdwick_fabric::Capabilities;
use herdwick_herd::{
    RequestPath,
    hello::{BootId, Hello, LineError, Offer, ShmOffer, Token, VerbsOffer},
};
use herdwick_mica::HashKey;
use mio::{Poll, Waker};

use super::{
    Answer, Arrival, FabricId, Kind, LeaseChannels, LeaseConfig, LeaseCounters, LeaseManager,
    LeaseSocket, Order, Tokens, WAKER, WorkerLink,
};
use crate::{parking::WakeupFd, time::Timer, transports};

/// The lease manager before its thread starts, and the workers' ends of its channels.
pub(crate) struct LeaseService {
    pub(crate) manager: LeaseManager,
    /// For each worker, its ends, one per fabric.
    pub(crate) ends: Vec<Vec<(FabricId, WorkerEnd)>>,
    pub(crate) closing: Closing,
    /// Taken by the [`Host`].
    entrance: Option<Entrance>,
}

/// What clients need to reach the lease manager.
struct Entrance {
    tokens: Arc<Tokens>,
    counters: Arc<LeaseCounters>,
    arrivals: Sender<Arrival>,
    waker: Arc<Waker>,
    fabrics: Vec<(FabricId, Capabilities)>,
    /// The path of the lease socket.
    socket: Option<PathBuf>,
}

/// One worker's end of the channels.
pub(crate) struct WorkerEnd {
    pub(crate) orders: Receiver<Order>,
    pub(crate) answers: Sender<(usize, Answer)>,
    pub(crate) manager: Arc<Waker>,
}

/// Stops the lease manager; removes its socket when dropped.
pub(crate) struct Closing {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    _socket: Option<LeaseSocket>,
}

impl LeaseService {
    /// Creates a lease manager for `fabrics`, with `socket` for those that pass descriptors.
    pub(crate) fn open(
        mut socket: Option<LeaseSocket>,
        fabrics: Vec<(FabricId, Capabilities)>,
        config: LeaseConfig,
        wakeups: &[WakeupFd],
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let mut key = [0; 16];
        random(&mut key)?;
        let (low, high) = key.split_at(8);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        let tokens = Arc::new(Tokens::new(HashKey([word(low), word(high)])));
        let (arrivals, arrived) = mpsc::channel();
        let (to_manager, answers) = mpsc::channel();
        let mut links: Vec<Vec<WorkerLink>> = transports::fabrics().map(|_| Vec::new()).collect();
        let mut ends: Vec<_> = wakeups.iter().map(|_| Vec::new()).collect();
        for (fabric, _) in &fabrics {
            for (wakeup, ends) in wakeups.iter().zip(&mut ends) {
                let wakeup = wakeup.clone();
                let (orders, taken) = mpsc::channel();
                links[fabric.0].push(WorkerLink {
                    orders,
                    wake: Box::new(move || wakeup.ring()),
                });
                let end = WorkerEnd {
                    orders: taken,
                    answers: to_manager.clone(),
                    manager: Arc::clone(&waker),
                };
                ends.push((*fabric, end));
            }
        }
        let transports = LeaseChannels {
            listener: socket.as_mut().and_then(LeaseSocket::take_listener),
            arrivals: arrived,
            tokens: Arc::clone(&tokens),
            links,
            answers,
            random,
        };
        let manager = LeaseManager::new(poll, config, transports)?;
        let entrance = Entrance {
            tokens,
            counters: manager.counters(),
            arrivals,
            waker: Arc::clone(&waker),
            fabrics,
            socket: socket.as_ref().map(|socket| socket.path().to_owned()),
        };
        let closing = Closing {
            stop: Arc::default(),
            waker,
            _socket: socket,
        };
        Ok(Self {
            manager,
            ends,
            closing,
            entrance: Some(entrance),
        })
    }
}

fn random(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes).map_err(|_| io::Error::other("no random bytes"))
}

impl Closing {
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub(crate) fn ask(&self) {
        self.stop.store(true, Ordering::Release);
        // Fails only when a wakeup is already pending.
        let _ = self.waker.wake();
    }
}

/// Answers hellos on the memcached port.
pub(crate) struct Host {
    /// The answer, without the lease offers.
    offer: Offer,
    /// The request path of every lease, overriding the clients' choice.
    path: Option<RequestPath>,
    entrance: Option<Entrance>,
    boot: Option<BootId>,
    timer: Timer,
}

impl Host {
    /// Creates the answer for a server with or without a lease service.
    pub(crate) fn new(
        offer: Offer,
        path: Option<RequestPath>,
        service: Option<&mut LeaseService>,
        timer: Timer,
    ) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        Self {
            offer,
            path,
            entrance: service.and_then(|service| service.entrance.take()),
            boot: boot.and_then(|text| BootId::parse(&text)),
            timer,
        }
    }

    /// Returns the answer line, with its end; `None`: `line` is no hello.
    pub(crate) fn greet(&self, line: &[u8]) -> Option<String> {
        let hello = match Hello::parse(line) {
            Ok(hello) => hello,
            // An unknown version is answered with this server's version and no fabric; the client
            // decides.
            Err(LineError::Version(_)) => Hello::default(),
            Err(_) => return None,
        };
        let asked = self.path.or(hello.path);
        let path = asked.unwrap_or_default();
        let mut offer = Offer {
            path,
            ..self.offer.clone()
        };
        if let Some(entrance) = &self.entrance {
            let now = self.timer.now();
            let same_host = hello.boot.is_some() && hello.boot == self.boot;
            let token = |fabric| entrance.token(fabric, path, now);
            if hello.shm && same_host {
                let offered = entrance.socket.clone().zip(token(transports::SHM));
                offer.shm = offered.map(|(socket, token)| ShmOffer { socket, token });
            }
            let verbs = asked.or_else(|| entrance.best_path(transports::VERBS));
            if let (true, Some(path)) = (hello.verbs, verbs) {
                let token = entrance.token(transports::VERBS, path, now);
                offer.verbs = token.map(|token| VerbsOffer { token, path });
            }
            if hello.roce {
                offer.roce = token(transports::ROCE);
            }
        }
        Some(offer.to_line())
    }

    /// Returns whether there is a lease manager to send claims to.
    pub(crate) fn takes_claims(&self) -> bool {
        self.entrance.is_some()
    }

    /// Sends a connection that began with a claim to the lease manager.
    pub(crate) fn pass_on(&self, arrival: Arrival) {
        if let Some(entrance) = &self.entrance {
            // Fails only when the lease manager has ended; then the connection is closed here.
            let _ = entrance.arrivals.send(arrival);
            let _ = entrance.waker.wake();
        }
    }

    /// Returns the lease manager's counters, by name.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let entrances = self.entrance.iter();
        entrances.flat_map(|entrance| entrance.counters.all())
    }
}

impl Entrance {
    /// Returns the best request path on `fabric`, if the server has that fabric.
    fn best_path(&self, fabric: FabricId) -> Option<RequestPath> {
        let mut fabrics = self.fabrics.iter();
        let (_, has) = fabrics.find(|(given, _)| *given == fabric)?;
        RequestPath::best(has)
    }

    /// Issues a token, if the fabric supports the path.
    fn token(&self, fabric: FabricId, path: RequestPath, now: Duration) -> Option<Token> {
        let mut fabrics = self.fabrics.iter();
        let (_, has) = fabrics.find(|(given, _)| *given == fabric)?;
        if !path.is_possible(has) {
            return None;
        }
        Some(self.tokens.issue(Kind { fabric, path }, now))
    }
}
