use std::{
    collections::HashMap,
    io::{self, ErrorKind, Read},
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender},
    },
    time::Duration,
};

use herdwick_herd::{
    hello::{Accept, Claim, Go, HEARTBEAT, Refusal, WorkerGrant},
    wire::Window,
};
use mio::{Events, Interest, Poll, Token as Key, net::UnixListener};

use super::{
    Answer, Arrival, DeskCounters, FabricId, Kind, LeaseId, Order, Seat, Terms, Tokens,
    client::{Client, Grants},
    counters::count,
    handshake::Event,
    socket::send_frame,
};
use crate::{tcp::Stream, time::Timer};

/// Most sockets that have claimed nothing yet; further ones are closed at once.
const STRANGERS_MAX: usize = 64;
/// Most sockets accepted in a turn: whoever keeps knocking must not keep the desk from everyone
/// that it has let in.
const ACCEPTS_MAX: usize = 64;

const LISTENER: Key = Key(0);
/// What workers wake the desk by.
pub(crate) const WAKER: Key = Key(1);
const FIRST_CLIENT: usize = 2;

/// How the desk reaches one worker.
pub(crate) struct WorkerLink {
    /// Orders, taken at the end of a pass. Bounded by three for each lease.
    pub(crate) orders: Sender<Order>,
    /// Wakes the worker if it sleeps.
    pub(crate) wake: Box<dyn Fn() + Send>,
}

/// Bounds, and where to count.
#[derive(Clone, Debug)]
pub(crate) struct DeskConfig {
    /// Most leases at a time.
    pub(crate) leases_max: usize,
    /// Largest reply payload that a worker sends, over each fabric.
    pub(crate) reply_bytes_max: Vec<u32>,
    /// Most bytes of memory that all leases hold at once.
    pub(crate) bytes_max: usize,
    /// Bytes that a lease of one window holds, at all workers together.
    pub(crate) lease_bytes: fn(kind: Kind, window: Window, workers: usize) -> usize,
    /// Whether descriptors have to cross, which takes a unix socket.
    pub(crate) is_local: fn(fabric: FabricId) -> bool,
}

/// Where clients come from, and the ways to the workers and back.
pub(crate) struct DeskWays {
    pub(crate) listener: Option<std::os::unix::net::UnixListener>,
    pub(crate) arrivals: Receiver<Arrival>,
    pub(crate) tokens: Arc<Tokens>,
    /// For each fabric that there is, the way to each worker.
    pub(crate) links: Vec<Vec<WorkerLink>>,
    pub(crate) answers: Receiver<(usize, Answer)>,
}

/// Grants and revokes leases; runs on a thread of its own.
pub(crate) struct Desk {
    poll: Poll,
    listener: Option<UnixListener>,
    /// The listener may have more.
    knocking: bool,
    /// Connections to the memcached port that began with a claim.
    arrivals: Receiver<Arrival>,
    config: DeskConfig,
    tokens: Arc<Tokens>,
    counters: Arc<DeskCounters>,
    workers: usize,
    /// For each fabric that there is, the way to each worker.
    links: Vec<Vec<WorkerLink>>,
    answers: Receiver<(usize, Answer)>,
    clients: HashMap<LeaseId, Client>,
    next: usize,
    epoch: u16,
    bytes: usize,
}

impl Desk {
    pub(crate) fn new(poll: Poll, config: DeskConfig, ways: DeskWays) -> io::Result<Self> {
        let mut listener = ways.listener.map(UnixListener::from_std);
        if let Some(listener) = &mut listener {
            poll.registry()
                .register(listener, LISTENER, Interest::READABLE)?;
        }
        let mut start = [0; 2];
        getrandom::fill(&mut start).map_err(|_| io::Error::other("no random bytes"))?;
        Ok(Self {
            poll,
            listener,
            knocking: false,
            arrivals: ways.arrivals,
            config,
            tokens: ways.tokens,
            counters: Arc::default(),
            workers: ways.links.iter().map(Vec::len).max().unwrap_or(0),
            links: ways.links,
            answers: ways.answers,
            clients: HashMap::new(),
            next: FIRST_CLIENT,
            epoch: u16::from_le_bytes(start),
            bytes: 0,
        })
    }

    pub(crate) fn counters(&self) -> Arc<DeskCounters> {
        Arc::clone(&self.counters)
    }

    /// Serves until `stop` is set and the desk is woken.
    pub(crate) fn run(mut self, timer: Timer, stop: &AtomicBool) {
        let mut events = Events::with_capacity(64);
        let mut now = timer.now();
        while !stop.load(Ordering::Acquire) {
            let timeout = if self.knocking {
                Some(Duration::ZERO)
            } else {
                self.timeout(now)
            };
            let due = timeout.map(|timeout| now + timeout);
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return,
                _ => {}
            }
            now = timer.now();
            self.excuse(now.saturating_sub(due.unwrap_or(now)));
            for event in &events {
                match event.token() {
                    LISTENER => self.knocking = true,
                    WAKER => {}
                    Key(client) => self.handle_client(LeaseId(client as u64), now),
                }
            }
            if self.knocking {
                self.handle_strangers(now);
            }
            self.handle_arrivals(now);
            self.handle_answers(now);
            self.handle_timeouts(now);
        }
    }

    /// How long the desk may sleep at `now`.
    fn timeout(&self, now: Duration) -> Option<Duration> {
        let heard = self
            .clients
            .values()
            .filter(|client| client.stream.is_some());
        let next = heard.map(|client| client.shake.poll_timeout()).min()?;
        Some(next.saturating_sub(now).min(HEARTBEAT))
    }

    /// A desk that woke so much too late was stopped, or its host was: what clients did not say in
    /// that time is not held against them.
    fn excuse(&mut self, late: Duration) {
        if late >= HEARTBEAT {
            let shakes = self.clients.values_mut().map(|client| &mut client.shake);
            shakes.for_each(|shake| shake.excuse(late));
        }
    }

    fn handle_strangers(&mut self, now: Duration) {
        for _ in 0..ACCEPTS_MAX {
            let accepted = match &self.listener {
                Some(listener) => listener.accept(),
                None => return,
            };
            match accepted {
                Ok((stream, _)) => drop(self.admit(Stream::Unix(stream), None, now)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // WouldBlock; or out of descriptors, and then the next event tries again.
                Err(_) => {
                    self.knocking = false;
                    return;
                }
            }
        }
    }

    /// There are never more of them than connections.
    fn handle_arrivals(&mut self, now: Duration) {
        while let Ok(Arrival {
            stream,
            input,
            seat,
        }) = self.arrivals.try_recv()
        {
            if let Some(id) = self.admit(stream, Some(seat), now)
                && self.hear(id, &input, now)
            {
                // What has come meanwhile was announced elsewhere.
                self.handle_client(id, now);
            }
        }
    }

    /// Takes a connection in, if not too many wait that have claimed nothing.
    fn admit(&mut self, mut stream: Stream, seat: Option<Seat>, now: Duration) -> Option<LeaseId> {
        let claimed = |client: &&Client| client.terms.is_none();
        if self.clients.values().filter(claimed).count() >= STRANGERS_MAX {
            count(&self.counters.strangers_refused);
            return None;
        }
        let id = LeaseId(self.next as u64);
        stream.register(self.poll.registry(), Key(self.next)).ok()?;
        self.clients.insert(id, Client::new(stream, seat, now));
        self.next += 1;
        Some(id)
    }

    fn handle_client(&mut self, id: LeaseId, now: Duration) {
        let mut bytes = [0; 4096];
        loop {
            let Some(client) = self.clients.get_mut(&id) else {
                return;
            };
            let Some(stream) = &mut client.stream else {
                return;
            };
            let read = match stream.read(&mut bytes) {
                Ok(0) => return self.end(id),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return self.end(id),
            };
            if !self.hear(id, &bytes[..read], now) {
                return;
            }
        }
    }

    /// Takes what a client says; `false`: that was the end of it.
    fn hear(&mut self, id: LeaseId, bytes: &[u8], now: Duration) -> bool {
        let Some(client) = self.clients.get_mut(&id) else {
            return false;
        };
        match client.shake.handle_input(now, bytes) {
            Ok(None) => {}
            Ok(Some(Event::Claim(claim))) => self.handle_claim(id, claim, now),
            Ok(Some(Event::Accept(accept))) => self.handle_accept(id, &accept),
            Err(_) => {
                count(&self.counters.malformed);
                self.refuse(id, Refusal::Malformed);
                return false;
            }
        }
        true
    }

    fn handle_claim(&mut self, id: LeaseId, claim: Claim, now: Duration) {
        let Some(stream) = self.clients.get(&id).and_then(|it| it.stream.as_ref()) else {
            return;
        };
        let (local, host) = whence(stream);
        let kind = self.tokens.redeem(claim.token, now);
        let kind = kind.filter(|kind| (self.config.is_local)(kind.fabric) == local);
        let Some(kind) = kind else {
            count(&self.counters.refused_token);
            return self.refuse(id, Refusal::Token);
        };
        let Some((window, bytes)) = self.room(kind, claim.window) else {
            count(&self.counters.refused_full);
            return self.refuse(id, Refusal::Full);
        };
        // 0 is no epoch.
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        let most = self.config.reply_bytes_max.get(kind.fabric.0);
        let reply_bytes_max = claim.reply_bytes_max.min(most.copied().unwrap_or(0));
        let terms = Terms {
            epoch: self.epoch,
            window: window.slots() as u16,
            reply_bytes_max,
            path: kind.path,
            host,
        };
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.claim(kind.fabric, terms, bytes, self.workers);
        self.hold(self.bytes + bytes);
        self.order(kind.fabric, |_| Order::Grant(id, terms));
    }

    /// The window for a client that asks for `asked` slots, and what it holds; `None` when there is
    /// no room for it at all.
    ///
    /// As room gets scarce, windows get smaller: each takes at most half of what is left, so that
    /// others find some too. Only the smallest may take all of it.
    fn room(&self, kind: Kind, asked: u32) -> Option<(Window, usize)> {
        let leases = self.clients.values();
        let leases = leases.filter(|client| client.terms.is_some()).count();
        if leases >= self.config.leases_max {
            return None;
        }
        let left = self.config.bytes_max.saturating_sub(self.bytes);
        let asked = (asked as usize).clamp(1, Window::MAX).next_power_of_two();
        let halves = (0..=asked.ilog2()).map(|halved| asked >> halved);
        halves
            .filter_map(Window::new)
            .map(|window| {
                (
                    window,
                    (self.config.lease_bytes)(kind, window, self.workers),
                )
            })
            .find(|(window, bytes)| bytes * 2 <= left || (window.slots() == 1 && *bytes <= left))
    }

    fn hold(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.counters.bytes.store(bytes as u64, Ordering::Relaxed);
    }

    fn handle_accept(&mut self, id: LeaseId, accept: &Accept) {
        let workers = self.workers;
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if accept.workers.len() != workers {
            count(&self.counters.malformed);
            return self.refuse(id, Refusal::Malformed);
        }
        client.connecting = workers;
        let fabric = client.fabric;
        self.order(fabric, |worker| Order::Connect(id, accept.workers[worker]));
    }

    fn handle_answers(&mut self, now: Duration) {
        while let Ok((worker, answer)) = self.answers.try_recv() {
            match answer {
                Answer::Granted(id, grant) => self.handle_granted(id, worker, grant),
                Answer::Connected(id, outcome) => self.handle_connected(id, outcome, now),
                Answer::Lost(id) => self.handle_lost(id),
                Answer::Revoked(id) => self.handle_revoked(id),
            }
        }
    }

    fn handle_granted(
        &mut self,
        id: LeaseId,
        worker: usize,
        grant: Option<Box<(WorkerGrant, Vec<OwnedFd>)>>,
    ) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let Some(grant) = grant else {
            count(&self.counters.refused_full);
            return self.refuse(id, Refusal::Memory);
        };
        let Some(Grants { frame, fds }) = client.grant(worker, *grant) else {
            return;
        };
        // No stream: the client is gone, and what was granted is on its way back.
        let stream = client.stream.as_mut();
        if stream.is_some_and(|stream| send_frame(stream, &frame, &fds)) {
            client.shake.granted();
        } else {
            self.end(id);
        }
    }

    fn handle_connected(&mut self, id: LeaseId, outcome: Result<(), Refusal>, now: Duration) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let Some(stream) = &mut client.stream else {
            return;
        };
        if let Err(refusal) = outcome {
            count(self.counters.refused(refusal));
            return self.refuse(id, refusal);
        }
        client.connecting -= 1;
        if client.connecting > 0 {
            return;
        }
        // Counted before it is told: who has a lease finds it in the statistics.
        client.live = true;
        count(&self.counters.granted);
        if let Some(terms) = client.terms {
            count(self.counters.by_path(terms.path));
        }
        self.counters.live.fetch_add(1, Ordering::Relaxed);
        if send_frame(stream, &Go.to_frame(), &[]) {
            client.shake.connected(now);
        } else {
            self.end(id);
        }
    }

    /// Every worker may say so of the same lease.
    fn handle_lost(&mut self, id: LeaseId) {
        let client = self.clients.get(&id);
        if client.is_some_and(|client| client.stream.is_some()) {
            count(&self.counters.fabric_lost);
            self.end(id);
        }
    }

    fn handle_revoked(&mut self, id: LeaseId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.revoking -= 1;
        if client.revoking == 0 {
            let bytes = self.bytes - client.bytes;
            self.clients.remove(&id);
            self.hold(bytes);
        }
    }

    fn handle_timeouts(&mut self, now: Duration) {
        let late = |client: &Client| client.stream.is_some() && client.shake.poll_timeout() <= now;
        let late: Vec<LeaseId> = self
            .clients
            .iter()
            .filter(|(_, client)| late(client))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let live = self.clients.get(&id).is_some_and(|client| client.live);
            let counters = &self.counters;
            count(if live {
                &counters.heartbeat_timeouts
            } else {
                &counters.handshake_timeouts
            });
            self.end(id);
        }
    }

    /// Says no, as far as the socket takes it, and ends.
    fn refuse(&mut self, id: LeaseId, refusal: Refusal) {
        if let Some(stream) = self
            .clients
            .get_mut(&id)
            .and_then(|client| client.stream.as_mut())
        {
            send_frame(stream, &refusal.to_frame(), &[]);
        }
        self.end(id);
    }

    /// Closes the socket and has the workers take back what they gave.
    fn end(&mut self, id: LeaseId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let Some(mut stream) = client.hang_up() else {
            return;
        };
        // Closing deregisters too; a failure here has nothing left to leak.
        let _ = stream.deregister(self.poll.registry());
        if client.live {
            self.counters.live.fetch_sub(1, Ordering::Relaxed);
        }
        if client.terms.is_none() {
            self.clients.remove(&id);
            return;
        }
        client.revoking = self.workers;
        let fabric = client.fabric;
        self.order(fabric, |_| Order::Revoke(id));
    }

    fn order(&self, fabric: FabricId, order: impl Fn(usize) -> Order) {
        let links = self.links.get(fabric.0).into_iter().flatten();
        for (worker, link) in links.enumerate() {
            // A worker that is gone has let go of everything; the server is ending.
            let _ = link.orders.send(order(worker));
            (link.wake)();
        }
    }
}

/// Whether a client came by the unix socket, and if not, from which host.
fn whence(stream: &Stream) -> (bool, Option<IpAddr>) {
    let (_, from) = stream.origin();
    let local = matches!(stream, Stream::Unix(_));
    (local, from.map(|from| from.ip().to_canonical()))
}

#[cfg(test)]
mod tests;
