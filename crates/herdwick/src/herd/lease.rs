//! Claiming a lease and keeping it.

use std::{
    io::{self, Read, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use herdwick_fabric::{Device, PdId};
use herdwick_herd::{
    ClientEnd, ClientRig, ClientTerms, RequestPath, SetupError,
    hello::{
        Accept, Claim, FrameError, Grant, HEADER_BYTES, HEARTBEAT, Header, Kind, Refusal,
        TICKET_FDS_MAX, Token, WORKERS_MAX,
    },
    wire::{Epoch, Window},
};
use rustix::{
    cmsg_space,
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg},
};

use super::LeaseSocket;
use crate::Fallback;

/// What a client needs of a provider besides the verbs: to take up a ticket.
pub(crate) trait TicketDevice: Device {
    /// Joins the domain that a ticket opens.
    fn attach(
        &self,
        port: &mut Self::Port,
        blob: Vec<u8>,
        fds: Vec<OwnedFd>,
    ) -> Result<PdId, Box<dyn std::error::Error + Send + Sync>>;
}

/// Largest reply that the client takes over the fabric; larger values come by text.
const REPLY_BYTES_MAX: usize = 4096;
/// A request is repeated after this long. Shared memory loses nothing but a reply that finds the
/// ring full; a network loses packets, and seldom keeps one for longer.
const RETRY_AFTER: Duration = Duration::from_millis(5);
const RETRY_AFTER_MAX: Duration = Duration::from_millis(200);
/// The session ends requests by its own deadlines; this is beyond any of them.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// No lease was to be had; the caller goes on with memcached's text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    #[error("lease socket: {0}")]
    Io(#[from] io::Error),
    #[error("the server refuses: {0}")]
    Refused(Refusal),
    #[error("the server's frame: {0}")]
    Frame(#[from] FrameError),
    #[error("the server's ticket: {0}")]
    Ticket(Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("{offered} workers were offered, {granted} granted")]
    Workers { offered: usize, granted: usize },
    #[error("a thread for the heartbeats: {0}")]
    Keeper(io::Error),
}

impl LeaseError {
    /// What it means for a session, the lease socket being `socket`.
    pub(crate) fn at(self, socket: &Path) -> Fallback {
        match self {
            Self::Io(error) => Fallback::Socket {
                path: socket.to_owned(),
                kind: match error.kind() {
                    // What a socket with a timeout says when it ends.
                    io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut,
                    kind => kind,
                },
            },
            other => other.remote(),
        }
    }

    /// What it means for a session that asked for a lease over TCP.
    pub(crate) fn remote(self) -> Fallback {
        match self {
            Self::Refused(refusal) => Fallback::Refused(refusal),
            other => Fallback::Setup(other.to_string()),
        }
    }
}

/// A lease taken: everything that HERD needs.
pub(crate) struct Taken<P> {
    pub(super) end: ClientEnd<P>,
    pub(super) lease: Lease,
    /// Requests that may be in flight at all workers together.
    pub(super) capacity: u32,
}

impl<P> Taken<P> {
    /// The same over a port of another type.
    pub(crate) fn map<Q>(self, port: impl FnOnce(P) -> Q) -> Taken<Q> {
        Taken {
            end: ClientEnd {
                port: port(self.end.port),
                side: self.end.side,
                reply_cq: self.end.reply_cq,
            },
            lease: self.lease,
            capacity: self.capacity,
        }
    }

    /// How many workers granted.
    pub(crate) fn workers(&self) -> usize {
        self.end.side.workers()
    }
}

/// The lease socket, and the thread that keeps it alive.
///
/// Heartbeats cannot wait for the caller's next call, and must stop when the process does: hence a
/// thread.
#[derive(Debug)]
pub(super) struct Lease {
    socket: LeaseSocket,
    over: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl Lease {
    fn keep(socket: LeaseSocket) -> io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let (mut ours, flag) = (socket.try_clone()?, Arc::clone(&over));
        let keeper = std::thread::Builder::new()
            .name("herdwick-lease".into())
            .spawn(move || {
                beat(&mut ours);
                flag.store(true, Ordering::Release);
            })?;
        Ok(Self {
            socket,
            over,
            keeper: Some(keeper),
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.socket.shutdown();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Sends a byte every [`HEARTBEAT`] until the server hangs up, or we do.
fn beat(socket: &mut LeaseSocket) {
    let pause = Timespec {
        tv_sec: HEARTBEAT.as_secs() as i64,
        tv_nsec: 0,
    };
    loop {
        let mut fds = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
        match poll(&mut fds, Some(&pause)) {
            Ok(0) => {}
            // The server has nothing to say after Go but that it is over.
            Ok(_) => return,
            Err(_) => continue,
        }
        if socket.write_all(&[0]).is_err() {
            return;
        }
    }
}

/// What a lease is asked for with.
pub(crate) struct Asked {
    pub(crate) token: Token,
    /// How requests travel, as the server says.
    pub(crate) path: RequestPath,
    /// Slots at each worker.
    pub(crate) slots: u32,
    /// For each answer.
    pub(crate) deadline: Duration,
}

/// Claims a lease on `socket` and sets up HERD on it.
pub(crate) fn take<D: TicketDevice>(
    device: &D,
    mut socket: LeaseSocket,
    asked: &Asked,
) -> Result<Taken<D::Port>, LeaseError> {
    socket.set_timeout(Some(asked.deadline))?;
    let claim = Claim {
        token: asked.token,
        window: asked.slots,
        reply_bytes_max: REPLY_BYTES_MAX.min(device.capabilities().datagram_bytes_max) as u32,
    };
    socket.write_all(&claim.to_frame())?;
    let (body, fds) = receive(&mut socket, Kind::Grant)?;
    let grant = Grant::parse(&body)?;
    let window = Window::new(grant.window.into()).ok_or(FrameError::Body)?;
    let mut rig = ClientRig::open(
        device,
        grant.workers.len(),
        &terms(&grant, asked.path, window)?,
    )?;
    let mut fds = fds.into_iter();
    let mut accept = Accept {
        workers: Vec::new(),
    };
    for worker in &grant.workers {
        let fds = fds.by_ref().take(worker.fds.into()).collect();
        let pd = device.attach(&mut rig.port, worker.ticket.clone(), fds);
        let pd = pd.map_err(LeaseError::Ticket)?;
        accept.workers.push(rig.join(device, pd, worker)?);
    }
    socket.write_all(&accept.to_frame())?;
    receive(&mut socket, Kind::Go)?;
    socket.set_timeout(None)?;
    let lease = Lease::keep(socket).map_err(LeaseError::Keeper)?;
    Ok(Taken {
        end: rig.finish()?,
        lease,
        capacity: (grant.workers.len() * window.slots()) as u32,
    })
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

/// Reads a frame of `kind` and the descriptors that ride on it.
fn receive(socket: &mut LeaseSocket, kind: Kind) -> Result<(Vec<u8>, Vec<OwnedFd>), LeaseError> {
    let mut head = [0; HEADER_BYTES];
    let (mut read, fds) = receive_with_fds(socket, &mut head)?;
    while read < HEADER_BYTES {
        match socket.read(&mut head[read..])? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            more => read += more,
        }
    }
    let header = Header::parse(&head)?;
    let mut body = vec![0; header.body_bytes];
    socket.read_exact(&mut body)?;
    match header.kind {
        found if found == kind => Ok((body, fds)),
        Kind::Refusal => Err(LeaseError::Refused(Refusal::parse(&body))),
        _ => Err(FrameError::Body.into()),
    }
}

fn receive_with_fds(
    socket: &LeaseSocket,
    into: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), LeaseError> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(WORKERS_MAX * TICKET_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [io::IoSliceMut::new(into)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })
    .map_err(io::Error::from)?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    if message.bytes == 0 || message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok((message.bytes, fds))
}
