//! HERD's objects, made by hand.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    time::Duration,
};

use herdwick_fabric::{ControlError, Device, PdId, Port};
use herdwick_herd::{
    ClientEnd, ClientSetup, ClientSide, ClientTerms, Refused, RequestPath, SetupError,
    hello::{WorkerAccept, WorkerGrant},
    wire::{Epoch, Window},
};
use herdwick_mica::Request;
use herdwick_roce_udp::{RoceDevice, RoceOptions, RocePort};
use herdwick_shm::{PdSize, PdTicket, ShmDevice, ShmPort};

use super::{Lines, Reply};

/// The endpoints could not be built.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// HERD's objects could not be made, or do not meet.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The provider refused a domain.
    #[error("setting up a domain: {0}")]
    Control(#[from] ControlError),
    /// A domain was not taken up.
    #[error("taking up a domain: {0}")]
    Ticket(#[from] herdwick_shm::AttachError),
    /// No thread, or no socket.
    #[error("starting an echo: {0}")]
    System(#[from] std::io::Error),
    /// A window that HERD has not.
    #[error("--window is a power of two from 1 to {max}, not {0}", max = Window::MAX)]
    Window(usize),
    /// Values that do not travel in a reply.
    #[error("the echo has values up to {REPLY_BYTES_MAX} bytes, head included: lower --value-size")]
    Value,
}

/// Largest reply, as the client that people link has it.
pub(crate) const REPLY_BYTES_MAX: usize = 4096;
/// Beyond any measurement.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// Where both ends of a fabric of sockets are: any port.
pub(super) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A provider on which both ends can be made by hand.
pub(crate) trait BenchDevice: Device + Sized {
    /// How long a client waits for an answer before it asks again.
    const RETRY_AFTER: Duration;

    /// A worker's device.
    fn host() -> std::io::Result<Self>;

    /// A client's.
    fn client() -> std::io::Result<Self>;

    /// The ticket to a worker's domain, and the descriptors that go with it.
    fn hand_over(
        &self,
        port: &mut Self::Port,
        pd: PdId,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), EndpointError>;

    /// The client's domain that a ticket opens.
    fn take_up(
        &self,
        port: &mut Self::Port,
        ticket: Vec<u8>,
        fds: Vec<OwnedFd>,
    ) -> Result<PdId, EndpointError>;
}

/// Room for the lines and rings of the largest window there is; what is not used is not taken.
const RINGS_BYTES: usize = 16 << 20;

impl BenchDevice for ShmDevice {
    /// Nothing is lost in shared memory: a retry here would be a bug of ours, and is not hidden.
    const RETRY_AFTER: Duration = NEVER;

    fn host() -> std::io::Result<Self> {
        Ok(Self::host(PdSize {
            host_inbound: RINGS_BYTES,
            client_inbound: RINGS_BYTES,
            ..PdSize::default()
        }))
    }

    fn client() -> std::io::Result<Self> {
        Ok(Self::client())
    }

    fn hand_over(
        &self,
        port: &mut ShmPort,
        pd: PdId,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), EndpointError> {
        let PdTicket { blob, fds } = self.ticket(port, pd)?;
        Ok((blob, fds))
    }

    fn take_up(
        &self,
        port: &mut ShmPort,
        blob: Vec<u8>,
        fds: Vec<OwnedFd>,
    ) -> Result<PdId, EndpointError> {
        Ok(self.attach(port, PdTicket { fds, blob })?)
    }
}

impl BenchDevice for RoceDevice {
    /// As the client that people link has it.
    const RETRY_AFTER: Duration = Duration::from_millis(5);

    fn host() -> std::io::Result<Self> {
        Self::bind(RoceOptions::new(LOOPBACK))
    }

    fn client() -> std::io::Result<Self> {
        Self::host()
    }

    fn hand_over(
        &self,
        _: &mut RocePort,
        _: PdId,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), EndpointError> {
        Ok(Default::default())
    }

    fn take_up(
        &self,
        port: &mut RocePort,
        _: Vec<u8>,
        _: Vec<OwnedFd>,
    ) -> Result<PdId, EndpointError> {
        Ok(self.create_pd(port)?)
    }
}

/// A client ready to ask.
pub(crate) struct End<P> {
    port: P,
    side: ClientSide,
}

impl<P: Port> Lines for End<P> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        self.side.submit(request, token).map(drop)
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.side.flush(&mut self.port, now);
        self.port.flush(now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        self.port.progress(now);
        self.side.poll(&mut self.port, now, &mut |token, outcome| {
            sink(token, Reply::of(&outcome));
        })
    }
}

/// A client's endpoints on a provider.
pub(crate) struct BenchClient<D: BenchDevice> {
    device: D,
    endpoints: ClientSetup<D::Port>,
}

impl<D: BenchDevice> BenchClient<D> {
    /// Of `workers` workers.
    pub(crate) fn new(
        path: RequestPath,
        window: Window,
        epoch: Epoch,
        workers: usize,
    ) -> Result<Self, EndpointError> {
        let device = D::client()?;
        let terms = ClientTerms {
            path,
            window,
            epoch,
            reply_bytes_max: REPLY_BYTES_MAX,
            retry_after: D::RETRY_AFTER,
            retry_after_max: D::RETRY_AFTER.saturating_mul(40).min(NEVER),
            deadline: NEVER,
        };
        let endpoints = ClientSetup::open(&device, workers, &terms)?;
        Ok(Self { device, endpoints })
    }

    /// Takes up the next worker's domain.
    pub(crate) fn join(
        &mut self,
        grant: &WorkerGrant,
        fds: Vec<OwnedFd>,
    ) -> Result<WorkerAccept, EndpointError> {
        let ticket = grant.ticket.clone();
        let pd = self.device.take_up(&mut self.endpoints.port, ticket, fds)?;
        Ok(self.endpoints.join(&self.device, pd, grant)?)
    }

    /// Posts the RECVs.
    pub(crate) fn finish(self) -> Result<End<D::Port>, EndpointError> {
        let ClientEnd { port, side, .. } = self.endpoints.finish()?;
        Ok(End { port, side })
    }
}
