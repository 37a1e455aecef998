//! Sets the desk up, and answers hellos.

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
};

use herdwick_herd::hello::{BootId, Hello, LineError, Offer, ShmOffer, Token};
use mio::{Poll, Waker};

use super::{
    Answer, Desk, DeskConfig, DeskCounters, LeaseSocket, Order, Tokens, WAKER, WorkerLink,
};
use crate::{parking::Bell, time::Timer};

/// The desk before its thread starts, and the workers' ends of it.
pub(crate) struct Office {
    pub(crate) desk: Desk,
    pub(crate) ends: Vec<WorkerEnd>,
    pub(crate) closing: Closing,
    pub(crate) tokens: Arc<Tokens>,
}

/// One worker's end.
pub(crate) struct WorkerEnd {
    pub(crate) orders: Receiver<Order>,
    pub(crate) answers: Sender<(usize, Answer)>,
    pub(crate) desk: Arc<Waker>,
}

/// Ends the desk, and removes its socket when dropped.
pub(crate) struct Closing {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    pub(crate) counters: Arc<DeskCounters>,
    socket: LeaseSocket,
}

impl Office {
    pub(crate) fn open(
        directory: &Path,
        mode: Option<u32>,
        config: DeskConfig,
        bells: &[Bell],
    ) -> io::Result<Self> {
        let mut socket = LeaseSocket::bind(directory, mode)?;
        let listener = socket.take_listener().ok_or(io::ErrorKind::NotConnected)?;
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let tokens = Arc::new(Tokens::default());
        let (to_desk, answers) = mpsc::channel();
        let (mut links, mut ends) = (Vec::new(), Vec::new());
        for bell in bells {
            let bell = bell.clone();
            let (orders, taken) = mpsc::channel();
            links.push(WorkerLink {
                orders,
                wake: Box::new(move || bell.ring()),
            });
            ends.push(WorkerEnd {
                orders: taken,
                answers: to_desk.clone(),
                desk: Arc::clone(&waker),
            });
        }
        let desk = Desk::new(poll, listener, config, Arc::clone(&tokens), links, answers)?;
        let counters = desk.counters();
        let closing = Closing {
            stop: Arc::default(),
            waker,
            counters,
            socket,
        };
        Ok(Self {
            desk,
            ends,
            closing,
            tokens,
        })
    }
}

impl Closing {
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub(crate) fn path(&self) -> &Path {
        self.socket.path()
    }

    pub(crate) fn ask(&self) {
        self.stop.store(true, Ordering::Release);
        // Fails only while a wake is pending already.
        let _ = self.waker.wake();
    }
}

/// Answers hellos on the memcached port.
pub(crate) struct Host {
    /// Everything but a token.
    offer: Offer,
    desk: Option<(Arc<Tokens>, Arc<DeskCounters>)>,
    boot: Option<BootId>,
    timer: Timer,
}

impl Host {
    /// Answers for a server with `office`, if it has one.
    pub(crate) fn new(mut offer: Offer, office: Option<&Office>, timer: Timer) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        offer.shm = office.map(|office| ShmOffer {
            socket: office.closing.path().to_owned(),
            token: Token([0; 16]),
        });
        let desk = office.map(|office| {
            (
                Arc::clone(&office.tokens),
                Arc::clone(&office.closing.counters),
            )
        });
        Self {
            offer,
            desk,
            boot: boot.and_then(|text| BootId::parse(&text)),
            timer,
        }
    }

    /// The answering line, with its end; `None` if `line` is no hello.
    pub(crate) fn greet(&self, line: &[u8]) -> Option<String> {
        let hello = match Hello::parse(line) {
            Ok(hello) => hello,
            // Our version, and no fabric: the client decides.
            Err(LineError::Version(_)) => Hello {
                shm: false,
                boot: None,
            },
            Err(_) => return None,
        };
        let same_host = hello.shm && hello.boot.is_some() && hello.boot == self.boot;
        let desk = self.desk.as_ref().filter(|_| same_host);
        let token = desk.and_then(|(tokens, _)| tokens.issue(self.timer.now()));
        let mut offer = self.offer.clone();
        offer.shm = offer
            .shm
            .zip(token)
            .map(|(shm, token)| ShmOffer { token, ..shm });
        Some(offer.to_line())
    }

    /// What the desk has counted, by name.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.desk.iter().flat_map(|(_, counters)| counters.all())
    }
}
