//! The thread for TLS handshakes. It is separate because one signature takes as long as accepting
//! hundreds of plain connections.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use herdwick_mem::spsc::{self, Consumer, Producer};
use mio::{Events, Poll, Waker, net::TcpStream};

use super::{EVENTS, WAKE};
use crate::{
    config::StartError,
    context::Context,
    readiness,
    server::refused,
    stopping::Stopping,
    time::Timer,
    tls::{Certificates, Handshakes, Progress, TlsStream},
};

/// A connection before its handshake.
pub(super) struct Beginning {
    socket: TcpStream,
    /// Time by which the handshake must be complete.
    deadline: Duration,
}

/// The acceptor's end of the handshake thread.
pub(crate) struct Porch {
    beginnings: Producer<Beginning>,
    done: Consumer<Box<TlsStream>>,
    waker: Arc<Waker>,
}

impl Porch {
    /// Passes a connection to the thread; `false`: the queue is full.
    pub(super) fn begin(&mut self, socket: TcpStream, deadline: Duration) -> bool {
        let passed = self.beginnings.push(Beginning { socket, deadline }).is_ok();
        // Fails only when a wakeup is already pending.
        let _ = self.waker.wake();
        passed
    }

    /// Returns the next connection with a complete handshake.
    pub(super) fn next(&mut self) -> Option<Box<TlsStream>> {
        self.done.pop()
    }
}

/// The handshake thread.
pub(crate) struct Greeter {
    poll: Poll,
    beginnings: Consumer<Beginning>,
    done: Producer<Box<TlsStream>>,
    /// Wakes the acceptor.
    acceptor: Arc<Waker>,
    handshakes: Handshakes,
    context: Arc<Context>,
    timer: Timer,
    stopping: Arc<Stopping>,
}

/// Creates the thread's state, the acceptor's end of it, and its waker.
pub(crate) fn greeter(
    connections_max: usize,
    acceptor: &Arc<Waker>,
    (context, timer, stopping): (&Arc<Context>, Timer, &Arc<Stopping>),
) -> Result<(Greeter, Porch, Arc<Waker>), StartError> {
    let poll = Poll::new().map_err(refused("a poll"))?;
    let waker = Waker::new(poll.registry(), WAKE).map_err(refused("a waker"))?;
    let waker = Arc::new(waker);
    // Both queues have room for `connections_max`: every connection is counted before it is queued.
    let (beginnings, begun) = spsc::channel(connections_max);
    let (done, ended) = spsc::channel(connections_max);
    let porch = Porch {
        beginnings,
        done: ended,
        waker: Arc::clone(&waker),
    };
    let greeter = Greeter {
        poll,
        beginnings: begun,
        done,
        acceptor: Arc::clone(acceptor),
        handshakes: Handshakes::new(0),
        context: Arc::clone(context),
        timer,
        stopping: Arc::clone(stopping),
    };
    Ok((greeter, porch, waker))
}

impl Greeter {
    /// Runs handshakes until the server stops.
    pub(crate) fn run(mut self) {
        let context = Arc::clone(&self.context);
        let Some(certificates) = &context.certificates else {
            return;
        };
        let mut events = Events::with_capacity(EVENTS);
        while !self.stopping.is_set() {
            // A signal returns no events, so the queue and the deadlines are checked either way.
            readiness::wait(&mut self.poll, &mut events, self.handshakes.tick());
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

    fn begin_all(&mut self, certificates: &Certificates) {
        while let Some(Beginning { socket, deadline }) = self.beginnings.pop() {
            let registry = self.poll.registry();
            let progress = self
                .handshakes
                .begin(socket, certificates, registry, deadline);
            self.follow(progress);
        }
    }

    fn follow(&mut self, progress: Progress) {
        match progress {
            Progress::UnderWay => {}
            Progress::Done(stream) => {
                if self.done.push(stream).is_err() {
                    self.context.limits.rejected.fetch_add(1, Relaxed);
                    self.context.limits.leave();
                }
                // Fails only when a wakeup is already pending.
                let _ = self.acceptor.wake();
            }
            Progress::Failed => self.context.limits.leave(),
        }
    }
}
