//! Metrics: what `stats` counts, as a page that Prometheus reads.
//!
//! A thread of its own listens, asks the workers as a connection's `stats` does, and words the
//! answers. All who ask while it does get the same page. Nothing is asked, and no worker has
//! anything to do, while nobody reads.

mod exporter;
mod page;
mod visitor;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use mio::{
    Events, Interest, Poll, Token, Waker,
    net::{TcpListener, TcpStream},
};

use crate::{
    accept::WAKE,
    config::StartError,
    context::Context,
    counters::Snapshot,
    cross_core::CrossCore,
    forward::{Order, Ticket},
    parking::WakeupFd,
    partition::NOBODY,
    readiness,
    stopping::Stopping,
    time::Timer,
};
use visitor::{Step, Visitor};

/// Most readers at a time; one more takes the place of whoever has been here longest.
const VISITORS_MAX: usize = 16;
/// A reader is given up this long after it came.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Deadlines are looked at this often while somebody is here.
const TICK: Duration = Duration::from_millis(500);
/// The token of the listener; readers' are their places.
const LISTENER: Token = Token(VISITORS_MAX);
/// The name of the only worker-side ticket: there is one round of questions at a time.
const TICKET: Ticket = Ticket {
    connection: 0,
    generation: 0,
    caller: NOBODY,
    slot: 0,
};

/// The listener, before its thread starts.
pub(crate) struct Gauges {
    poll: Poll,
    listener: TcpListener,
    address: SocketAddr,
    /// Wakes the thread.
    pub(crate) wakeup: WakeupFd,
}

impl Gauges {
    pub(crate) fn open(address: SocketAddr) -> Result<Self, StartError> {
        let open = || -> io::Result<Self> {
            let mut listener = TcpListener::bind(address)?;
            let poll = Poll::new()?;
            poll.registry()
                .register(&mut listener, LISTENER, Interest::READABLE)?;
            let wakeup = WakeupFd::new(Waker::new(poll.registry(), WAKE)?);
            Ok(Self {
                address: listener.local_addr()?,
                listener,
                poll,
                wakeup,
            })
        };
        open().map_err(|source| StartError::Metrics { address, source })
    }

    /// Where it listens, and how its thread is woken.
    pub(crate) fn place(&self) -> (SocketAddr, WakeupFd) {
        (self.address, self.wakeup.clone())
    }

    /// The thread, which asks over `cross_core`.
    pub(crate) fn reporter(
        self,
        cross_core: CrossCore,
        context: &Arc<Context>,
        timer: Timer,
        stopping: &Arc<Stopping>,
    ) -> Reporter {
        Reporter {
            poll: self.poll,
            listener: self.listener,
            wakeup: self.wakeup,
            cross_core,
            context: Arc::clone(context),
            timer,
            stopping: Arc::clone(stopping),
            visitors: Default::default(),
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
    timer: Timer,
    stopping: Arc<Stopping>,
    visitors: [Option<Visitor>; VISITORS_MAX],
    round: Option<Round>,
}

/// The workers have been asked.
struct Round {
    outstanding: usize,
    parts: Vec<Snapshot>,
}

impl Reporter {
    /// Serves until the server stops.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(VISITORS_MAX + 2);
        while !self.stopping.is_set() {
            self.sleep(&mut events);
            let now = self.timer.now();
            self.accept(now);
            self.collect();
            for place in 0..VISITORS_MAX {
                self.serve(place, now);
            }
            self.ask();
        }
    }

    fn sleep(&mut self, events: &mut Events) {
        self.wakeup.flag().raise();
        let timeout = if !self.cross_core.is_quiet() || self.stopping.is_set() {
            Some(Duration::ZERO)
        } else {
            self.visitors.iter().any(Option::is_some).then_some(TICK)
        };
        // After an interruption, as after an event, all are looked at.
        readiness::wait(&mut self.poll, events, timeout);
        self.wakeup.flag().lower();
    }

    /// Lets in who waits. An error says that nobody does, or that there are no descriptors left:
    /// then the next event, or tick, tries again.
    fn accept(&mut self, now: Duration) {
        while let Ok((stream, _)) = self.listener.accept() {
            let place = self.place();
            self.admit(stream, place, now);
        }
    }

    /// A free place, or that of whoever came first.
    fn place(&self) -> usize {
        let came = |place: &usize| self.visitors[*place].as_ref().map(Visitor::came);
        (0..VISITORS_MAX).min_by_key(came).unwrap_or(0)
    }

    fn admit(&mut self, mut stream: TcpStream, place: usize, now: Duration) {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self
            .poll
            .registry()
            .register(&mut stream, Token(place), interest);
        // Whoever was there is closed; who cannot be watched is as well.
        self.visitors[place] = registered.ok().map(|()| Visitor::new(stream, now));
    }

    fn serve(&mut self, place: usize, now: Duration) {
        let Some(visitor) = &mut self.visitors[place] else {
            return;
        };
        let late = now.saturating_sub(visitor.came()) > TIMEOUT;
        if late || visitor.step() == Step::Gone {
            self.visitors[place] = None;
        }
    }

    /// Asks the workers if somebody wants to know, and they have not been asked.
    fn ask(&mut self) {
        let wanted = self.visitors.iter().flatten().any(Visitor::waits);
        if self.round.is_some() || !wanted {
            return;
        }
        // There is one round at a time, so there are forwarded batches.
        if let Ok(outstanding) = self.cross_core.broadcast(
            Order::Count {
                hot: self.context.settings.metrics_hot_keys,
            },
            TICKET,
        ) {
            self.round = Some(Round {
                outstanding,
                parts: Vec::new(),
            });
        }
        self.cross_core.depart();
    }

    /// Takes what the workers have answered; after the last, everybody who waits gets the page.
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
        for visitor in self.visitors.iter_mut().flatten() {
            visitor.hand(&page);
        }
    }
}
