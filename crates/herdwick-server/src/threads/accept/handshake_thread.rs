//! The thread for TLS handshakes. It is separate because one signature takes as long as accepting
//! hundreds of plain connections.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use herdwick_mem::spsc::{self, Consumer, Producer};
use mio::{Events, Poll, Waker, net::TcpStream};

use crate::{
    context::Context,
    net::tls::{Certificates, HandshakeProgress, Handshakes, TlsStream},
    runtime::{
        readiness::{self, EVENTS, WAKE},
        shutdown::Shutdown,
        time::ServerClock,
    },
    settings::error::{StartError, refused},
};

/// Pause before a connection that found a queue full, to this thread or to a worker, is queued again.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// A connection before its handshake.
pub(super) struct Beginning {
    socket: TcpStream,
    /// Time by which the handshake must be complete.
    deadline: Duration,
}

/// The acceptor's end of the handshake thread.
pub(crate) struct HandshakeQueue {
    beginnings: Producer<Beginning>,
    /// Connections that found the queue full.
    waiting: VecDeque<Beginning>,
    done: Consumer<Box<TlsStream>>,
    waker: Arc<Waker>,
}

impl HandshakeQueue {
    /// Passes a connection to the thread, or keeps it until the queue has room.
    pub(super) fn begin(&mut self, socket: TcpStream, deadline: Duration) {
        self.waiting.push_back(Beginning { socket, deadline });
        self.pass_waiting();
    }

    /// Passes the connections that wait to the thread, as far as the queue has room.
    pub(super) fn pass_waiting(&mut self) {
        while let Some(beginning) = self.waiting.pop_front() {
            let passed = self.beginnings.push(beginning);
            // Fails only when a wakeup is already pending.
            let _ = self.waker.wake();
            if let Err(beginning) = passed {
                self.waiting.push_front(beginning);
                return;
            }
        }
    }

    /// Returns whether connections wait for room in the queue.
    pub(super) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the next connection with a complete handshake.
    pub(super) fn next(&mut self) -> Option<Box<TlsStream>> {
        self.done.pop()
    }
}

/// The handshake thread.
pub(crate) struct HandshakeThread {
    poll: Poll,
    beginnings: Consumer<Beginning>,
    done: Producer<Box<TlsStream>>,
    /// Connections with a complete handshake that found `done` full.
    waiting: VecDeque<Box<TlsStream>>,
    /// Wakes the acceptor.
    acceptor: Arc<Waker>,
    handshakes: Handshakes,
    context: Arc<Context>,
    timer: ServerClock,
    shutdown: Arc<Shutdown>,
}

/// Creates the thread's state, the acceptor's end of it, and its waker.
pub(crate) fn handshakes(
    connections_max: usize,
    acceptor: &Arc<Waker>,
    (context, timer, shutdown): (&Arc<Context>, ServerClock, &Arc<Shutdown>),
) -> Result<(HandshakeThread, HandshakeQueue, Arc<Waker>), StartError> {
    let poll = Poll::new().map_err(refused("a poll"))?;
    let waker = Waker::new(poll.registry(), WAKE).map_err(refused("a waker"))?;
    let waker = Arc::new(waker);
    // `connections_max` may be raised while the server runs: what finds a queue full waits beside it.
    let (beginnings, begun) = spsc::channel(connections_max);
    let (done, ended) = spsc::channel(connections_max);
    let handshake_queue = HandshakeQueue {
        beginnings,
        waiting: VecDeque::new(),
        done: ended,
        waker: Arc::clone(&waker),
    };
    let handshake_thread = HandshakeThread {
        poll,
        beginnings: begun,
        done,
        waiting: VecDeque::new(),
        acceptor: Arc::clone(acceptor),
        handshakes: Handshakes::new(0),
        context: Arc::clone(context),
        timer,
        shutdown: Arc::clone(shutdown),
    };
    Ok((handshake_thread, handshake_queue, waker))
}

impl HandshakeThread {
    /// Runs handshakes until the server stops.
    pub(crate) fn run(mut self) {
        let context = Arc::clone(&self.context);
        let Some(certificates) = &context.certificates else {
            return;
        };
        let mut events = Events::with_capacity(EVENTS);
        while !self.shutdown.is_set() {
            // A signal returns no events, so the queue and the deadlines are checked either way.
            let timeout = self.timeout();
            readiness::wait(&mut self.poll, &mut events, timeout);
            self.pass_waiting();
            for event in &events {
                let registry = self.poll.registry();
                let progress = self.handshakes.go_on(event.token(), certificates, registry);
                self.follow(progress);
            }
            self.begin_all(certificates);
            let registry = self.poll.registry();
            let now = self.timer.now();
            for _ in 0..self.handshakes.give_up(now, certificates, registry) {
                context.limits.leave();
            }
        }
    }

    /// Returns how long the thread may sleep.
    fn timeout(&self) -> Option<Duration> {
        let tick = self.handshakes.tick();
        match self.waiting.is_empty() {
            true => tick,
            false => Some(tick.map_or(RETRY, |tick| tick.min(RETRY))),
        }
    }

    /// Passes the connections with a complete handshake to the acceptor, as far as the queue has
    /// room.
    fn pass_waiting(&mut self) {
        while let Some(stream) = self.waiting.pop_front() {
            let passed = self.done.push(stream);
            // Fails only when a wakeup is already pending.
            let _ = self.acceptor.wake();
            if let Err(stream) = passed {
                self.waiting.push_front(stream);
                return;
            }
        }
    }

    fn begin_all(&mut self, certificates: &Certificates) {
        while let Some(Beginning { socket, deadline }) = self.beginnings.pop() {
            let registry = self.poll.registry();
            let progress = self
                .handshakes
                .begin(socket, certificates, registry, deadline);
            self.follow(progress);
        }
    }

    fn follow(&mut self, progress: HandshakeProgress) {
        match progress {
            HandshakeProgress::UnderWay => {}
            HandshakeProgress::Done(stream) => {
                self.waiting.push_back(stream);
                self.pass_waiting();
            }
            HandshakeProgress::Failed => self.context.limits.leave(),
        }
    }
}
