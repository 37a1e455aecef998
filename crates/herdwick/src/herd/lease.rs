//! Leases: claiming one, testing it, and keeping it alive. Everything received from the server is
//! parsed as untrusted; a failure leaves the caller with the text protocol.
//!
//! Circular import with `direct` and the session `herd`, which holds the lease: the socket's type and the
//! sleep are of the session.

use std::{
    io::{self, Write},
    mem::{self, MaybeUninit},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use herdwick_fabric::{Device, Port};
use herdwick_herd::{
    ClientEnd, ClientSetup, ClientTerms, RequestPath, SetupError,
    handshake::{ClientEvent, ClientHandshake, HandshakeError},
    hello::{
        Claim, FrameError, Grant, HEARTBEAT, OneSidedOffer, STORE_FDS_MAX, TICKET_FDS_MAX, Token,
        WORKERS_MAX,
    },
    wire::{Epoch, Window},
};
use herdwick_mem::{ForkMark, without_signals};
use rustix::{
    cmsg_space,
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg},
};

use super::{
    LeaseSocket,
    one_sided::{Stores, monotonic},
    socket::in_time,
};
use crate::{
    Fabric, Fallback,
    due::{Due, clock},
    sleep::doze,
};

/// Largest reply in bytes over the fabric; larger values are read as text.
const REPLY_BYTES_MAX: usize = 4096;
/// Time after which a request is repeated. Shared memory loses only replies that find the ring
/// full; a network loses packets, and seldom delays one for longer.
const RETRY_AFTER: Duration = Duration::from_millis(5);
const RETRY_AFTER_MAX: Duration = Duration::from_millis(200);
/// Deadline of the state machine's requests: beyond any deadline of the session, which ends them.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// How often the system is asked whether the server has hung up, which costs as much as a tenth of a
/// round trip: a caller may learn so much later that a server has ended.
pub(crate) const ASK_AFTER: Duration = Duration::from_micros(50);

/// Least timeout of the first exchange over a fabric, which otherwise gets a quarter of the time
/// left. It is repeated after 5, 15, 35, 75 and 155 ms, so a network that loses one packet in ten
/// makes it fail once in ten thousand times.
pub(crate) const TRIAL: Duration = Duration::from_millis(250);
/// Its longest timeout.
pub(crate) const TRIAL_MAX: Duration = Duration::from_secs(5);
/// The fabric's clock at the start of the first exchange: it follows a pause, so it is announced.
pub(crate) const TRIAL_START: Duration = Duration::from_secs(1);

/// Why there is no lease; the caller goes on with memcached's text protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    #[error("lease socket: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Clover(#[from] herdwick_clover::SetupError),
    #[error(transparent)]
    Part(#[from] herdwick_clover::BadPart),
    #[error("{offered} workers were offered, {granted} granted")]
    Workers { offered: usize, granted: usize },
    #[error("a thread for the heartbeats: {0}")]
    Keeper(io::Error),
    #[error("no answer over the fabric")]
    Silent,
}

impl From<FrameError> for LeaseError {
    fn from(error: FrameError) -> Self {
        Self::Handshake(error.into())
    }
}

impl LeaseError {
    /// Returns the session's reason for text, if the lease over `fabric` was claimed on the unix
    /// socket `socket`, or over TCP.
    pub(crate) fn reason(self, fabric: Fabric, socket: Option<&Path>) -> Fallback {
        match (self, socket) {
            (Self::Io(error), Some(path)) => Fallback::Socket {
                path: path.to_owned(),
                error: error.into(),
            },
            (other, _) => other.remote(fabric),
        }
    }

    fn remote(self, fabric: Fabric) -> Fallback {
        match self {
            Self::Handshake(HandshakeError::Refused(refusal)) => Fallback::Refused(refusal),
            Self::Silent => Fallback::Silent(fabric),
            other => Fallback::Setup(other.to_string()),
        }
    }
}

/// A claimed lease, and everything that HERD needs on it.
pub(crate) struct Taken<P> {
    pub(super) end: ClientEnd<P>,
    pub(super) lease: Lease,
    /// The workers' stores, where this process may read them.
    pub(super) stores: Option<Stores>,
    /// Most requests in flight at all workers together.
    pub(super) capacity: u32,
    /// The time that the fabric's clock shows now.
    pub(super) elapsed: Duration,
}

impl<P> Taken<P> {
    /// Returns the same over a port of another type.
    pub(crate) fn map<Q>(self, port: impl FnOnce(P) -> Q) -> Taken<Q> {
        Taken {
            end: ClientEnd {
                port: port(self.end.port),
                side: self.end.side,
                reply_cq: self.end.reply_cq,
            },
            lease: self.lease,
            stores: self.stores,
            capacity: self.capacity,
            elapsed: self.elapsed,
        }
    }

    /// Makes a lease without a thread: a test closes `socket`, and sets `over` when that is
    /// noticed.
    #[cfg(test)]
    pub(crate) fn held(
        end: ClientEnd<P>,
        socket: std::os::unix::net::UnixStream,
        over: Arc<AtomicBool>,
    ) -> Self {
        Self {
            capacity: (end.side.workers() * end.side.window().slots()) as u32,
            end,
            lease: Lease::held(socket, over),
            stores: None,
            elapsed: TRIAL_START,
        }
    }

    /// Number of workers in the grant.
    pub(crate) fn workers(&self) -> usize {
        self.end.side.workers()
    }
}

/// The lease socket, and the thread that keeps it alive.
///
/// Heartbeats cannot wait for the caller's next call, and must stop when the process does: hence a
/// thread.
#[derive(Debug)]
pub(crate) struct Lease {
    socket: LeaseSocket,
    over: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
    /// The process that the thread runs in.
    process: ForkMark,
}

impl Lease {
    /// Makes a lease without a thread.
    #[cfg(test)]
    pub(super) fn held(socket: std::os::unix::net::UnixStream, over: Arc<AtomicBool>) -> Self {
        Self {
            socket: LeaseSocket::of(socket),
            over,
            keeper: None,
            process: ForkMark::here(),
        }
    }

    pub(crate) fn keep(socket: LeaseSocket) -> io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let (mut ours, flag) = (socket.try_clone()?, Arc::clone(&over));
        let keep = move || {
            beat(&mut ours);
            // Relaxed, as in `is_over`: the flag publishes no other data.
            flag.store(true, Ordering::Relaxed);
        };
        // The program's signals are for threads that it knows of.
        let thread = std::thread::Builder::new().name("herdwick-lease".into());
        let keeper = without_signals(|| thread.spawn(keep))?;
        Ok(Self {
            socket,
            over,
            keeper: Some(keeper),
            process: ForkMark::here(),
        })
    }

    /// Whether the thread has seen the server hang up.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether the server lives, as the system knows at `now` or up to [`ASK_AFTER`] before; `asked` is when
    /// it was asked last.
    #[inline]
    pub(crate) fn lives(&self, now: Duration, asked: &mut Duration) -> bool {
        let asks = now.saturating_sub(*asked) >= ASK_AFTER;
        if self.is_over() || asks && self.is_hung_up() {
            return false;
        }
        if asks {
            *asked = now;
        }
        true
    }

    /// Whether the server has hung up: a system call, for the thread may not have run since.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN | PollFlags::RDHUP)];
        // If this poll fails, the thread notices the end of the connection.
        self.is_over() || matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }
}

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // In a child process after a fork the lease and the thread are the parent's.
            mem::forget(self.keeper.take());
            return;
        }
        // It fails if the server has closed already; the thread then has ended or is about to.
        let _ = self.socket.shutdown();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Sends a byte every [`HEARTBEAT`] until either end closes the socket.
fn beat(socket: &mut LeaseSocket) {
    let pause = Timespec {
        tv_sec: HEARTBEAT.as_secs() as i64,
        tv_nsec: 0,
    };
    loop {
        let mut fds = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
        match poll(&mut fds, Some(&pause)) {
            Ok(0) => {}
            // After Go the server sends nothing: an event means that it has closed.
            Ok(_) => return,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        if socket.write_all(&[0]).is_err() {
            return;
        }
    }
}

/// The parameters of a claim.
pub(crate) struct Asked {
    pub(crate) token: Token,
    /// The request path, as offered by the server.
    pub(crate) path: RequestPath,
    /// Slots at each worker.
    pub(crate) slots: u32,
    /// How the server offers its stores to readers, if this client is to be one.
    pub(crate) reads: Option<OneSidedOffer>,
    /// Largest value in bytes that is read from them.
    pub(crate) value_bytes_max: usize,
}

/// Claims a lease on `socket` and sets HERD up on it.
pub(crate) fn take<D: Device>(
    device: &D,
    mut socket: LeaseSocket,
    asked: &Asked,
) -> Result<Taken<D::Port>, LeaseError> {
    let (mut shake, claim) = ClientHandshake::new(&Claim {
        token: asked.token,
        window: asked.slots,
        // Replies are datagrams.
        reply_bytes_max: REPLY_BYTES_MAX.min(device.capabilities().datagram_bytes_max) as u32,
        reads: asked.reads.is_some(),
    });
    // Around the exchange: if the server's clock is this one, it shows a time in between.
    let since = monotonic();
    socket.write_all(&claim)?;
    let ClientEvent::Granted(grant, tickets) = receive(&socket, &mut shake)? else {
        return Err(FrameError::Body.into());
    };
    let between = (since, monotonic());
    let window = Window::new(grant.window.into()).ok_or(FrameError::Body)?;
    let workers = grant.workers.len();
    let mut setup = ClientSetup::open(device, workers, &terms(&grant, asked.path, window)?)?;
    let accept = setup.accept(device, &grant, tickets)?;
    socket.write_all(&shake.accept(&accept))?;
    let ClientEvent::Go = receive(&socket, &mut shake)? else {
        return Err(FrameError::Body.into());
    };
    let due = socket.due().unwrap_or_else(|| Due::after(TRIAL));
    // Before the thread gets its copy of the socket, which would keep the deadline.
    socket.settle()?;
    // From here on heartbeats are sent: the trial may take seconds.
    let lease = Lease::keep(socket).map_err(LeaseError::Keeper)?;
    let memories = setup.take_stores();
    // Beside a request there has to be room for a report of reads.
    let reads = asked.reads.filter(|_| window.slots() > 1);
    let open = |offer| Stores::open((offer, memories), &grant, between, asked.value_bytes_max);
    let stores = reads.and_then(open);
    let mut end = setup.finish()?;
    let elapsed = try_out(&mut end, due.quarter(TRIAL, TRIAL_MAX))?;
    Ok(Taken {
        end,
        lease,
        stores,
        capacity: (workers * window.slots()) as u32,
        elapsed,
    })
}

/// Makes one exchange with each worker over the fabric: a lease granted on a socket may still carry
/// nothing, because of a firewall or a forwarded port in between. Returns the time of the fabric's
/// clock after it.
fn try_out<P: Port>(end: &mut ClientEnd<P>, due: Due) -> Result<Duration, LeaseError> {
    let ClientEnd {
        port,
        side,
        reply_cq,
    } = end;
    let start = clock();
    let now = || TRIAL_START + start.elapsed();
    side.probe(port, now());
    port.flush(now());
    loop {
        port.progress(now());
        side.poll(port, now(), &mut |_, _| {});
        port.flush(now());
        if side.in_flight() == 0 {
            return Ok(now());
        }
        if side.is_broken() {
            return Err(LeaseError::Silent);
        }
        let left = due.left().map_err(|_| LeaseError::Silent)?;
        let retry = side.poll_timeout().unwrap_or_default();
        doze(port, *reply_cq, left.min(retry.saturating_sub(now())));
    }
}

fn terms(grant: &Grant, path: RequestPath, window: Window) -> Result<ClientTerms, FrameError> {
    Ok(ClientTerms {
        path,
        window,
        epoch: Epoch::new(grant.epoch).ok_or(FrameError::Body)?,
        reply_bytes_max: (grant.reply_bytes_max as usize).min(REPLY_BYTES_MAX),
        retry_after: RETRY_AFTER,
        retry_after_max: RETRY_AFTER_MAX,
        deadline: NEVER,
    })
}

/// Reads the next message of the server.
pub(crate) fn receive(
    socket: &LeaseSocket,
    shake: &mut ClientHandshake,
) -> Result<ClientEvent, LeaseError> {
    loop {
        let mut bytes = vec![0; shake.wanted()];
        let (read, fds) = receive_with_fds(socket, &mut bytes)?;
        if let Some(event) = shake.handle_input(&bytes[..read], fds)? {
            return Ok(event);
        }
    }
}

fn receive_with_fds(
    socket: &LeaseSocket,
    into: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), LeaseError> {
    socket.limit_read()?;
    // Room for the descriptors of all tickets in one message.
    let mut space = [MaybeUninit::uninit();
        cmsg_space!(ScmRights(WORKERS_MAX * (TICKET_FDS_MAX + STORE_FDS_MAX)))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [io::IoSliceMut::new(into)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    });
    let message = in_time(message.map_err(io::Error::from))?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    // MSG_CTRUNC: descriptors were dropped, so the tickets are not complete.
    if message.bytes == 0 || message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok((message.bytes, fds))
}
