//! Takes a lease without the client library, so that its memory can be written arbitrarily.

use std::{
    io::{self, BufRead, BufReader, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Duration,
};

use herdwick_herd::{
    RequestPath,
    handshake::{ClientEvent, ClientHandshake, HandshakeError},
    hello::{
        BootId, Claim, FabricOffer, FrameError, HEARTBEAT, HELLO_BYTES_MAX, Hello, LineError,
        Offer, TICKET_FDS_MAX, WORKERS_MAX,
    },
    wire::{Epoch, Window},
};
use herdwick_mem::{Access, Mapping, Span};
use herdwick_shm::ShmDevice;
use rustix::{
    cmsg_space,
    fs::fstat,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use crate::{
    lines::{BenchClient, EndpointError, REPLY_BYTES_MAX},
    remote::Remote,
};

/// Interval of heartbeats that keep a lease.
pub(super) const HEARTBEAT_NS: u64 = HEARTBEAT.as_nanos() as u64;
/// Timeout of each answer of the server.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The fabric whose memory it writes.
const LOCAL: herdwick::Fabric = herdwick::Fabric::Shm;
/// Slots that the scribbler requests: the largest window, so that the server polls as many lines as
/// possible.
const WINDOW: usize = Window::MAX;

/// Why no lease was taken.
#[derive(Debug, thiserror::Error)]
pub enum HostileLeaseError {
    /// No connection to the server.
    #[error(transparent)]
    Unreachable(#[from] herdwick::Error),
    /// A socket failed.
    #[error("taking a lease: {0}")]
    Io(#[from] io::Error),
    /// The server's hello line is invalid.
    #[error("the server's hello: {0}")]
    Hello(#[from] LineError),
    /// The server does not offer shared memory.
    #[error("the server offers no shared memory")]
    NoOffer,
    /// The server refuses, or a frame of it is invalid.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The client endpoints could not be created.
    #[error(transparent)]
    Endpoints(#[from] EndpointError),
}

impl From<FrameError> for HostileLeaseError {
    fn from(error: FrameError) -> Self {
        Self::Handshake(error.into())
    }
}

/// A lease, and its memory that the client may write: request lines, overflow areas, rings.
pub(super) struct Prey {
    pub(super) memory: Vec<Span>,
    socket: UnixStream,
    _client: BenchClient<ShmDevice>,
}

impl Prey {
    /// Takes a lease at `server` by the protocol that every client uses.
    pub(super) fn take(server: &Remote) -> Result<Self, HostileLeaseError> {
        let offer = hello(server)?;
        let mut socket = UnixStream::connect(offer.socket.ok_or(HostileLeaseError::NoOffer)?)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let (mut shake, claim) = ClientHandshake::new(&Claim {
            token: offer.token,
            window: WINDOW as u32,
            reply_bytes_max: REPLY_BYTES_MAX as u32,
            reads: false,
        });
        socket.write_all(&claim)?;
        let ClientEvent::Granted(grant, tickets) = receive(&socket, &mut shake)? else {
            return Err(FrameError::Body.into());
        };
        let window = Window::new(grant.window.into()).ok_or(FrameError::Body)?;
        let epoch = Epoch::new(grant.epoch).ok_or(FrameError::Body)?;
        let (device, path) = (ShmDevice::client(), RequestPath::UcWrite);
        let mut client = BenchClient::new(device, (path, window), epoch, grant.workers.len())?;
        // Ahead of `accept`, which takes the tickets.
        let memory = tickets.iter().map(|worker| writable(&worker.domain.fds));
        let memory = memory.collect::<Result<_, _>>()?;
        let accept = client.accept(&grant, tickets)?;
        socket.write_all(&shake.accept(&accept))?;
        receive(&socket, &mut shake)?;
        Ok(Self {
            memory,
            socket,
            _client: client,
        })
    }

    /// Sends a heartbeat. The error is ignored: a server that closed the lease leaves the memory
    /// mapped, and the load goes on.
    pub(super) fn beat(&mut self) {
        let _ = self.socket.write_all(&[0]);
    }
}

/// Maps the file of a ticket that the client may write, its first, a second time.
fn writable(fds: &[OwnedFd]) -> Result<Span, HostileLeaseError> {
    let up = fds.first().ok_or(FrameError::Body)?;
    let len = fstat(up).map_err(io::Error::from)?.st_size as usize;
    let mapping = Mapping::shared(up.as_fd(), len, Access::ReadWrite)?;
    Ok(Span::new(Arc::new(mapping)))
}

fn hello(server: &Remote) -> Result<FabricOffer, HostileLeaseError> {
    let mut stream = server.connect_blocking()?;
    // Only a client on the same host gets shared memory; the server knows it by this.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let hello = Hello {
        fabrics: vec![LOCAL.name().to_owned()],
        boot: BootId::parse(&boot),
        ..Hello::default()
    };
    stream.write_all(hello.to_line().as_bytes())?;
    let mut line = Vec::new();
    BufReader::new(stream.take(HELLO_BYTES_MAX as u64)).read_until(b'\n', &mut line)?;
    let offer = Offer::parse(line.trim_ascii_end(), &[*LOCAL.words()])?;
    offer
        .fabrics
        .into_iter()
        .next()
        .ok_or(HostileLeaseError::NoOffer)
}

/// Reads the next message of the server.
fn receive(
    socket: &UnixStream,
    shake: &mut ClientHandshake,
) -> Result<ClientEvent, HostileLeaseError> {
    loop {
        let mut bytes = vec![0; shake.wanted()];
        let mut space =
            [MaybeUninit::uninit(); cmsg_space!(ScmRights(WORKERS_MAX * TICKET_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let message = recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC);
        let read = message.map_err(io::Error::from)?.bytes;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        if let Some(event) = shake.handle_input(&bytes[..read], fds)? {
            return Ok(event);
        }
    }
}
