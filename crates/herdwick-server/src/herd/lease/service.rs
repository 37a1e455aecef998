//! Creates the lease manager with its channels, and answers hellos.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Sender},
    },
    time::Duration,
};

use herdwick_fabric::Capabilities;
use herdwick_herd::{
    RequestPath,
    hello::{ANOTHER_MEMBER, BootId, FabricOffer, Hello, LineError, Offer},
};
use herdwick_providers::Fabric;
use herdwick_request::HashKey;
use mio::{Poll, Waker};

use super::{
    LeaseArrival, LeaseChannels, LeaseConfig, LeaseKind, LeaseListener, LeaseManager, LeaseTokens,
    WAKER, WorkerEnd, WorkerLink, commands::command_channel,
};
use crate::{
    context::LeasesShared,
    runtime::{offload::OffloadLink, parking::WakeupFd, time::ServerClock},
    settings::member_fence::MemberFence,
    telemetry::leases::LeaseCounters,
};

/// A fabric to offer.
#[derive(Clone, Debug)]
pub(crate) struct Offered {
    pub(crate) fabric: Fabric,
    pub(crate) has: Capabilities,
    /// The word of its own in the offer.
    pub(crate) attribute: Option<(&'static str, &'static str)>,
}

/// The lease manager before its thread starts, and the workers' ends of its channels.
pub(crate) struct LeaseService {
    pub(crate) manager: LeaseManager,
    /// For each worker, its ends, one per fabric.
    pub(crate) ends: Vec<Vec<(Fabric, WorkerEnd)>>,
    pub(crate) closing: Closing,
    /// Taken by the [`HelloResponder`].
    offers: Option<LeaseOffers>,
}

/// What clients need to reach the lease manager.
struct LeaseOffers {
    tokens: Arc<LeaseTokens>,
    counters: Arc<LeaseCounters>,
    arrivals: Sender<LeaseArrival>,
    waker: Arc<Waker>,
    fabrics: Vec<Offered>,
    /// The path of the lease socket.
    socket: Option<PathBuf>,
}

/// Stops the lease manager; removes its socket when dropped.
pub(crate) struct Closing {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    _socket: Option<LeaseListener>,
}

impl LeaseService {
    /// Creates a lease manager for `fabrics`, with `socket` for those that pass descriptors.
    pub(crate) fn open(
        mut socket: Option<LeaseListener>,
        fabrics: Vec<Offered>,
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
        let fence = Arc::new(MemberFence::with_manager(Arc::clone(&waker)));
        let tokens = LeaseTokens::new(HashKey([word(low), word(high)]), fence);
        let tokens = Arc::new(tokens);
        let (arrivals, arrived) = mpsc::channel();
        let (to_manager, answers) = mpsc::channel();
        let mut links: Vec<Vec<WorkerLink>> = Fabric::ALL.map(|_| Vec::new()).into();
        let mut ends: Vec<_> = wakeups.iter().map(|_| Vec::new()).collect();
        for Offered { fabric, .. } in &fabrics {
            for (wakeup, ends) in wakeups.iter().zip(&mut ends) {
                let wakeup = wakeup.clone();
                let (commands, taken) = command_channel();
                links[fabric.rank()].push(WorkerLink {
                    commands,
                    wake: Box::new(move || wakeup.ring()),
                });
                let end = WorkerEnd {
                    commands: taken,
                    answers: to_manager.clone(),
                    manager: Arc::clone(&waker),
                };
                ends.push((*fabric, end));
            }
        }
        let channels = LeaseChannels {
            listener: socket.as_mut().and_then(LeaseListener::take_listener),
            arrivals: arrived,
            tokens: Arc::clone(&tokens),
            links,
            answers,
            random,
        };
        let manager = LeaseManager::new(poll, config, channels)?;
        let offers = LeaseOffers {
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
            offers: Some(offers),
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
        // Pairs with the acquire in the manager's loop, which looks after each wakeup.
        self.stop.store(true, Ordering::Release);
        // Fails only when a wakeup is already pending.
        let _ = self.waker.wake();
    }
}

/// Answers hellos on the memcached port.
pub(crate) struct HelloResponder {
    /// The answer, without the lease offers.
    offer: Offer,
    /// The request path of every lease, overriding the clients' choice.
    path: Option<RequestPath>,
    offers: Option<LeaseOffers>,
    boot: Option<BootId>,
    timer: ServerClock,
    /// What is known of the secondary store, if there is to be one.
    secondary: Option<Arc<OffloadLink>>,
    fence: Arc<MemberFence>,
}

/// The answer to a hello.
pub(crate) struct Greeting {
    /// The line, with its end.
    pub(crate) line: String,
    /// Of a client that knows the server by its registration, the orders of the fence at which it was admitted.
    pub(crate) member: Option<u64>,
}

impl HelloResponder {
    /// Creates the answer for a server with or without a lease service.
    pub(crate) fn new(
        offer: Offer,
        path: Option<RequestPath>,
        service: Option<&mut LeaseService>,
        timer: ServerClock,
    ) -> Self {
        // Clients of this host read the same file: equal ids mean one kernel, so shared memory
        // reaches.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let offers = service.and_then(|service| service.offers.take());
        let fence = offers.as_ref().map(|offers| &offers.tokens.fence);
        Self {
            offer,
            path,
            fence: fence.map_or_else(Arc::default, Arc::clone),
            offers,
            boot: boot.and_then(|text| BootId::parse(&text)),
            timer,
            secondary: None,
        }
    }

    /// Returns the same, which names the secondary store while the server is connected to it.
    pub(crate) fn beside(self, secondary: Option<Arc<OffloadLink>>) -> Self {
        Self { secondary, ..self }
    }

    /// Returns the answer; `None`: `line` is no hello.
    pub(crate) fn answer_hello(&self, line: &[u8]) -> Option<Greeting> {
        let hello = match Hello::parse(line) {
            Ok(hello) => hello,
            // An unknown version is answered with this server's version and no fabric; the client
            // decides.
            Err(LineError::Version(_)) => Hello::default(),
            Err(_) => return None,
        };
        let member = hello.member.map(|member| self.fence.admits(member));
        if member == Some(None) {
            let line = ANOTHER_MEMBER.to_owned();
            return Some(Greeting { line, member: None });
        }
        let member = member.flatten();
        let line = self.offer_to(&hello, member).to_line();
        Some(Greeting { line, member })
    }

    /// Returns the offer to the client of this hello, which is the fence's `member` if it knows the server by its
    /// registration.
    fn offer_to(&self, hello: &Hello, member: Option<u64>) -> Offer {
        let asked = self.path.or(hello.path);
        let path = asked.unwrap_or_default();
        let mut offer = Offer {
            path,
            ..self.offer.clone()
        };
        if let (Some(link), Some(secondary)) = (&self.secondary, &mut offer.secondary) {
            secondary.store = link.store();
        }
        if let Some(offers) = &self.offers {
            let now = self.timer.now();
            let knows = hello.knows(offer.engine.as_deref());
            let same_host = hello.boot.is_some() && hello.boot == self.boot;
            let usable = |offered: &&Offered| {
                let fabric = offered.fabric;
                knows && hello.has(fabric.name()) && (same_host || !fabric.is_local())
            };
            let usable = offers.fabrics.iter().filter(usable);
            let offers = usable.filter_map(|offered| offers.offer(offered, (asked, member), now));
            offer.fabrics = offers.collect();
        }
        offer
    }

    /// Returns whether there is a lease manager to send claims to.
    pub(crate) fn takes_claims(&self) -> bool {
        self.offers.is_some()
    }

    /// Sends a connection that began with a claim to the lease manager.
    pub(crate) fn pass_on(&self, arrival: LeaseArrival) {
        if let Some(offers) = &self.offers {
            // Fails only when the lease manager has ended; then the connection is closed here.
            let _ = offers.arrivals.send(arrival);
            let _ = offers.waker.wake();
        }
    }

    /// Returns what the context has of it.
    pub(crate) fn shared(&self) -> LeasesShared {
        let offers = self.offers.as_ref();
        let counters = offers.map(|offers| Arc::clone(&offers.counters));
        (counters, Arc::clone(&self.fence))
    }
}

impl LeaseOffers {
    /// Issues a token for a lease over one fabric, if the fabric supports the path that is `asked`
    /// for. Where that depends on the device, the best path is chosen if none was asked for.
    fn offer(
        &self,
        Offered {
            fabric,
            has,
            attribute,
        }: &Offered,
        (asked, member): (Option<RequestPath>, Option<u64>),
        now: Duration,
    ) -> Option<FabricOffer> {
        let words = fabric.words();
        let path = if words.own_path {
            asked.or_else(|| RequestPath::best(has))?
        } else {
            asked.unwrap_or_default()
        };
        let socket = match words.socket {
            true => Some(self.socket.clone()?),
            false => None,
        };
        let kind = LeaseKind {
            fabric: *fabric,
            path,
            member,
        };
        path.is_possible(has).then(|| FabricOffer {
            name: words.name,
            token: self.tokens.issue(kind, now),
            socket,
            path: words.own_path.then_some(path),
            attribute: *attribute,
        })
    }
}
