//! Two threads: one accepts connections, receives datagrams and assigns both to the workers; the other
//! completes TLS handshakes before the workers see a connection.

mod handshake_thread;

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Write},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use herdwick_mem::spsc::Producer;
use herdwick_memcache::text;
use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};

use handshake_thread::RETRY;
pub(crate) use handshake_thread::{HandshakeQueue, handshakes};

use crate::{
    context::Context,
    net::{listeners::StreamListener, stream::Stream, udp::UdpListener},
    runtime::{
        parking::WakeupFd,
        readiness::{self, EVENTS},
        shutdown::Shutdown,
        time::ServerClock,
    },
};

/// How long accepting pauses when the process has no descriptors left, or `-c` is reached.
const PAUSE: Duration = Duration::from_millis(50);

/// The thread that accepts connections and assigns them to the workers round-robin.
pub(crate) struct Acceptor {
    pub(crate) poll: Poll,
    pub(crate) listeners: Vec<StreamListener>,
    pub(crate) udp: Vec<UdpListener>,
    /// The thread for TLS handshakes, if there are TLS listeners.
    pub(crate) handshake_queue: Option<HandshakeQueue>,
    /// One queue for each worker, with room for `connections_max` of the start.
    pub(crate) intakes: Vec<(Producer<Stream>, WakeupFd)>,
    /// Connections that found their worker's queue full, with its index: the limit may have been
    /// raised since the start. Each is counted in `limits`, which bounds them.
    pub(crate) waiting: VecDeque<(usize, Stream)>,
    pub(crate) context: Arc<Context>,
    pub(crate) timer: ServerClock,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) next: usize,
}

/// An accepted connection.
enum Accepted {
    Plain(Stream),
    /// Its handshake has not begun.
    Tls(TcpStream),
}

impl Acceptor {
    /// Registers the listeners with the poll.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        for (index, socket) in self.udp.iter_mut().enumerate() {
            let token = Token(self.listeners.len() + index);
            socket.register(self.poll.registry(), token)?;
        }
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            let registry = self.poll.registry();
            match listener {
                StreamListener::Tcp(tcp) | StreamListener::Tls(tcp) => {
                    registry.register(tcp, Token(index), Interest::READABLE)?;
                }
                StreamListener::Unix(unix) => {
                    registry.register(unix, Token(index), Interest::READABLE)?;
                }
            }
        }
        Ok(())
    }

    /// Accepts connections and datagrams until the server stops.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut timeout = None;
        while !self.shutdown.is_set() {
            // A signal returns no events, so all listeners are checked either way.
            readiness::wait(&mut self.poll, &mut events, timeout);
            let now = self.timer.now();
            self.assign_waiting();
            self.assign_after_handshake();
            // Stops at the first listener that is exhausted: descriptors are short for all of them.
            let exhausted = (0..self.listeners.len()).any(|index| !self.accept_all(index, now));
            self.context.limits.rest(exhausted, now);
            let more = !self.take_in();
            timeout = if more {
                Some(Duration::ZERO)
            } else if self.is_behind() {
                Some(RETRY)
            } else {
                exhausted.then_some(PAUSE)
            };
        }
    }

    /// Accepts until the queue is empty; `false`: stopped early for lack of descriptors or of room.
    fn accept_all(&mut self, index: usize, now: Duration) -> bool {
        loop {
            // Without `maxconns_fast` the connection stays in the kernel's queue, as in memcached.
            if !self.context.settings.refuse_at_once && self.context.limits.is_full() {
                return false;
            }
            let accepted = match &self.listeners[index] {
                StreamListener::Tcp(tcp) => {
                    accept(tcp).map(|stream| Accepted::Plain(Stream::Tcp(stream)))
                }
                StreamListener::Tls(tcp) => accept(tcp).map(Accepted::Tls),
                StreamListener::Unix(listener) => {
                    let accepted = listener.accept();
                    accepted.map(|stream| Accepted::Plain(Stream::Unix(stream)))
                }
            };
            match accepted {
                Ok(arrival) => self.admit(arrival, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if is_exhaustion(&error) => return false,
                // The peer has disconnected already, or the call was interrupted.
                Err(_) => {}
            }
        }
    }

    /// Receives datagrams; `false`: there may be more.
    fn take_in(&mut self) -> bool {
        let mut udp = std::mem::take(&mut self.udp);
        let context = Arc::clone(&self.context);
        let mut emptied = true;
        for socket in &mut udp {
            emptied &= socket.take_in(&context.udp, |exchange| {
                // A datagram counts as a connection while it is served, so `-c` bounds both.
                if context.limits.enter_briefly() {
                    self.assign(Stream::Datagram(Box::new(exchange)));
                } else {
                    context.udp.over_limit.fetch_add(1, Relaxed);
                }
            });
        }
        self.udp = udp;
        emptied
    }

    fn admit(&mut self, arrival: Accepted, now: Duration) {
        let has_room = self.context.limits.enter();
        match arrival {
            Accepted::Plain(stream) if has_room => self.assign(stream),
            Accepted::Plain(mut stream) => {
                // Best effort: the connection ends either way.
                let _ = stream.write(text::TOO_MANY_CONNECTIONS);
            }
            Accepted::Tls(socket) if has_room => {
                let deadline = now + self.context.tunables.timeout().request;
                match &mut self.handshake_queue {
                    Some(handshake_queue) => handshake_queue.begin(socket, deadline),
                    None => self.context.limits.leave(),
                }
            }
            // A text line would be a malformed record to a TLS client, so the socket is closed
            // silently.
            Accepted::Tls(_) => {}
        }
    }

    /// Assigns the connections with a complete handshake.
    fn assign_after_handshake(&mut self) {
        while let Some(stream) = self.handshake_queue.as_mut().and_then(HandshakeQueue::next) {
            self.assign(Stream::Tls(stream));
        }
    }

    fn assign(&mut self, stream: Stream) {
        let worker = self.next;
        self.next = (self.next + 1) % self.intakes.len();
        self.hand_over(worker, stream);
    }

    /// Queues a connection for its worker, or keeps it until the queue has room.
    fn hand_over(&mut self, worker: usize, stream: Stream) {
        let (intake, wakeup) = &mut self.intakes[worker];
        if let Err(stream) = intake.push(stream) {
            self.waiting.push_back((worker, stream));
        }
        // Also where the queue is full: the worker makes room in it.
        wakeup.ring();
    }

    /// Tries once more to queue the connections that found a queue full.
    fn assign_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            if let Some((worker, stream)) = self.waiting.pop_front() {
                self.hand_over(worker, stream);
            }
        }
        if let Some(handshake_queue) = &mut self.handshake_queue {
            handshake_queue.pass_waiting();
        }
    }

    /// Returns whether connections wait for room in a queue.
    fn is_behind(&self) -> bool {
        let handshakes = self
            .handshake_queue
            .as_ref()
            .is_some_and(HandshakeQueue::is_behind);
        handshakes || !self.waiting.is_empty()
    }
}

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    // Replies are written in whole batches, so Nagle's algorithm would only delay them. A refusal
    // costs latency only.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Returns whether descriptors or memory have run out, where accepting again at once would spin.
fn is_exhaustion(error: &io::Error) -> bool {
    use rustix::io::Errno;
    if error.kind() == ErrorKind::QuotaExceeded {
        // `unix::Listener::accept`: too many sockets wait to be closed.
        return true;
    }
    Errno::from_io_error(error).is_some_and(|errno| {
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno)
    })
}
