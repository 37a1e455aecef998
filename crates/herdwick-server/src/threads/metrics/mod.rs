//! Metrics over HTTP, in the text format of Prometheus.
//!
//! A thread of its own listens, requests a snapshot from every worker as `stats` does, and formats
//! the page. All clients that wait meanwhile receive the same page. Without clients no worker has
//! any work for metrics.

mod http_client;
mod page;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use mio::{
    Events, Interest, Poll, Token, Waker,
    net::{TcpListener, TcpStream},
};

use crate::{
    context::Context,
    runtime::{
        cross_core::CrossCore,
        forward::{ReplyTo, WorkerCommand},
        parking::WakeupFd,
        partition::NOBODY,
        readiness,
        shutdown::Shutdown,
        time::ServerClock,
    },
    settings::error::StartError,
    telemetry::snapshot::Snapshot,
};
use http_client::{HttpClient, HttpStep};

/// Largest number of clients at a time. A further one replaces the oldest.
const CLIENTS_MAX: usize = 16;
/// Time after which a client is disconnected.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which timeouts are checked while there are clients.
const TICK: Duration = Duration::from_millis(500);
/// The token of the listener; a client's token is its index.
const LISTENER: Token = Token(CLIENTS_MAX);
/// The ticket of all commands: there is one round at a time.
const TICKET: ReplyTo = ReplyTo {
    connection: 0,
    generation: 0,
    caller: NOBODY,
    slot: 0,
};

/// The metrics listener before its thread starts.
pub(crate) struct HttpListener {
    poll: Poll,
    listener: TcpListener,
    address: SocketAddr,
    /// Wakes the thread.
    pub(crate) wakeup: WakeupFd,
}

impl HttpListener {
    pub(crate) fn open(address: SocketAddr) -> Result<Self, StartError> {
        let open = || -> io::Result<Self> {
            let mut listener = TcpListener::bind(address)?;
            let poll = Poll::new()?;
            poll.registry()
                .register(&mut listener, LISTENER, Interest::READABLE)?;
            let wakeup = WakeupFd::new(Waker::new(poll.registry(), readiness::WAKE)?);
            Ok(Self {
                address: listener.local_addr()?,
                listener,
                poll,
                wakeup,
            })
        };
        open().map_err(|source| StartError::Metrics { address, source })
    }

    /// Returns the address it listens on, and the descriptor that wakes its thread.
    pub(crate) fn place(&self) -> (SocketAddr, WakeupFd) {
        (self.address, self.wakeup.clone())
    }

    /// Creates the thread's state; it sends its commands over `cross_core`.
    pub(crate) fn reporter(
        self,
        cross_core: CrossCore,
        context: &Arc<Context>,
        timer: ServerClock,
        shutdown: &Arc<Shutdown>,
    ) -> Reporter {
        Reporter {
            poll: self.poll,
            listener: self.listener,
            wakeup: self.wakeup,
            cross_core,
            context: Arc::clone(context),
            timer,
            shutdown: Arc::clone(shutdown),
            clients: Default::default(),
            round: None,
        }
    }
}

/// The thread that serves metrics.
pub(crate) struct Reporter {
    poll: Poll,
    listener: TcpListener,
    wakeup: WakeupFd,
    cross_core: CrossCore,
    context: Arc<Context>,
    timer: ServerClock,
    shutdown: Arc<Shutdown>,
    clients: [Option<HttpClient>; CLIENTS_MAX],
    round: Option<SnapshotRound>,
}

/// A round of snapshots, requested from every worker.
struct SnapshotRound {
    outstanding: usize,
    parts: Vec<Snapshot>,
}

impl Reporter {
    /// Serves until the server stops.
    pub(crate) fn run(mut self) {
        // The clients, the listener and the waker.
        let mut events = Events::with_capacity(CLIENTS_MAX + 2);
        while !self.shutdown.is_set() {
            self.sleep(&mut events);
            let now = self.timer.now();
            self.accept(now);
            self.collect();
            for place in 0..CLIENTS_MAX {
                self.serve(place, now);
            }
            self.ask();
        }
    }

    fn sleep(&mut self, events: &mut Events) {
        // As a worker does: the flag first, then the queues (`parking`).
        self.wakeup.flag().raise();
        let timeout = if !self.cross_core.is_quiet() || self.shutdown.is_set() {
            Some(Duration::ZERO)
        } else {
            self.clients.iter().any(Option::is_some).then_some(TICK)
        };
        // A signal returns no events, so everything is checked either way.
        readiness::wait(&mut self.poll, events, timeout);
        self.wakeup.flag().lower();
    }

    /// Accepts all waiting connections. An error means that none waits, or that no descriptors are
    /// left; the next event or tick tries again.
    fn accept(&mut self, now: Duration) {
        while let Ok((stream, _)) = self.listener.accept() {
            let place = self.place();
            self.admit(stream, place, now);
        }
    }

    /// Returns a free index, or that of the oldest client.
    fn place(&self) -> usize {
        let came = |place: &usize| self.clients[*place].as_ref().map(HttpClient::came);
        // A free place has no time, and `None` is less than any.
        (0..CLIENTS_MAX).min_by_key(came).unwrap_or(0)
    }

    fn admit(&mut self, mut stream: TcpStream, place: usize, now: Duration) {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self
            .poll
            .registry()
            .register(&mut stream, Token(place), interest);
        // Closes the client that had this index; the new one too, if it cannot be registered.
        self.clients[place] = registered.ok().map(|()| HttpClient::new(stream, now));
    }

    fn serve(&mut self, place: usize, now: Duration) {
        let Some(client) = &mut self.clients[place] else {
            return;
        };
        // From the connection on, whatever the client does meanwhile.
        let late = now.saturating_sub(client.came()) > TIMEOUT;
        if late || client.step() == HttpStep::Gone {
            self.clients[place] = None;
        }
    }

    /// Requests snapshots if a client waits for the page and no round is in progress.
    fn ask(&mut self) {
        let wanted = self.clients.iter().flatten().any(HttpClient::waits);
        if self.round.is_some() || !wanted {
            return;
        }
        // Cannot fail for lack of batches: there is one round at a time.
        if let Ok(outstanding) = self.cross_core.broadcast(
            WorkerCommand::Count {
                hot: self.context.settings.metrics_hot_keys,
            },
            TICKET,
        ) {
            self.round = Some(SnapshotRound {
                outstanding,
                parts: Vec::new(),
            });
        }
        self.cross_core.depart();
    }

    /// Collects the workers' snapshots. After the last one, sends the page to every waiting client.
    fn collect(&mut self) {
        while let Some((peer, mut batch)) = self.cross_core.returned() {
            if let Some(round) = &mut self.round {
                round.outstanding -= 1;
                round.parts.extend(batch.snapshot.take().map(|part| *part));
            }
            self.cross_core.recycle(peer, batch);
        }
        let Some(round) = self.round.take_if(|round| round.outstanding == 0) else {
            return;
        };
        let clock = self.timer.clock(self.timer.now());
        let page = page::page(&self.context, clock, &round.parts);
        for client in self.clients.iter_mut().flatten() {
            client.hand(&page);
        }
    }
}
