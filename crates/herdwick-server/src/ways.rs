//! The ways in, and the one place of the server that names providers.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
};

use herdwick_fabric::{Capabilities, ControlError, Device, Endpoint, PdId};
use herdwick_herd::{Mailbox, RECV_SLACK, RequestPath, SetupError, wire::Window};
pub use herdwick_roce_udp::UDP_PORT;
use herdwick_roce_udp::{RoceDevice, RoceOptions, RocePort};
use herdwick_shm::{PdSize, ShmDevice, ShmPort, datagram_ring_bytes};

use crate::{
    front::Front,
    herd::{HerdConfig, HerdFront, LeaseDevice},
    lease::{FabricId, Kind},
};

/// Shared memory.
pub(crate) const SHM: FabricId = FabricId(0);
/// RoCEv2 over UDP.
pub(crate) const ROCE: FabricId = FabricId(1);

/// All of them.
pub(crate) fn fabrics() -> impl Iterator<Item = FabricId> {
    [SHM, ROCE].into_iter()
}

/// Whether descriptors have to cross for a lease.
pub(crate) fn is_local(fabric: FabricId) -> bool {
    fabric == SHM
}

/// The providers of a server, as far as it has them.
#[derive(Clone)]
pub(crate) struct Ways {
    roce: Option<RoceDevice>,
}

impl Ways {
    /// Binds what has to be bound, for so many workers.
    pub(crate) fn open(roce: Option<SocketAddr>, workers: usize) -> io::Result<Self> {
        let bind = |address| {
            RoceDevice::bind(RoceOptions {
                shards: workers,
                ..RoceOptions::new(address)
            })
        };
        Ok(Self {
            roce: roce.map(bind).transpose()?,
        })
    }

    /// Where it takes packets.
    pub(crate) fn roce_address(&self) -> Option<SocketAddr> {
        self.roce.as_ref().map(RoceDevice::local)
    }

    /// What there is to offer, with what it can.
    pub(crate) fn offered(&self, shm: bool) -> Vec<(FabricId, Capabilities)> {
        let shm = shm.then(|| (SHM, ShmDevice::host(PdSize::NONE).capabilities().clone()));
        let roce = self.roce.as_ref();
        let roce = roce.map(|roce| (ROCE, roce.capabilities().clone()));
        shm.into_iter().chain(roce).collect()
    }

    /// HERD over `fabric`.
    pub(crate) fn front(
        &self,
        fabric: FabricId,
        config: HerdConfig,
    ) -> Result<Box<dyn Front + Send>, SetupError> {
        Ok(match (&self.roce, fabric) {
            (Some(roce), ROCE) => Box::new(HerdFront::new("roce", roce.clone(), config)?),
            _ => Box::new(HerdFront::new(
                "shm",
                ShmDevice::host(PdSize::NONE),
                config,
            )?),
        })
    }
}

impl LeaseDevice for ShmDevice {
    fn domain(
        &self,
        port: &mut ShmPort,
        path: RequestPath,
        window: Window,
    ) -> Result<PdId, ControlError> {
        self.create_pd_of(port, &domain(path, window))
    }

    fn ticket(
        &self,
        port: &mut ShmPort,
        pd: PdId,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError> {
        let ticket = Self::ticket(self, port, pd)?;
        Ok((ticket.blob, ticket.fds))
    }

    fn is_at(&self, _: &Endpoint, _: Option<IpAddr>) -> bool {
        true
    }
}

/// Its memory is the worker's own, and there is nothing to hand over: rkeys open it.
impl LeaseDevice for RoceDevice {
    fn domain(&self, port: &mut RocePort, _: RequestPath, _: Window) -> Result<PdId, ControlError> {
        self.create_pd(port)
    }

    fn ticket(&self, _: &mut RocePort, _: PdId) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError> {
        Ok((Vec::new(), Vec::new()))
    }

    /// Nobody has replies sent to somebody else.
    fn is_at(&self, endpoint: &Endpoint, host: Option<IpAddr>) -> bool {
        let named = Self::endpoint_host(endpoint).map(|named| named.to_canonical());
        named.is_some() && named == host
    }
}

/// Bytes of memory that a lease of `window` holds at all `workers` together: all that its client,
/// which may be hostile, can touch or fill.
pub(crate) fn lease_bytes(kind: Kind, window: Window, workers: usize) -> usize {
    let slots = window.line_bytes() + window.overflow_bytes();
    let mail = match kind.path {
        RequestPath::UdSend => (window.slots() + RECV_SLACK) * Mailbox::recv_bytes(GRH_BYTES),
        RequestPath::UcWrite | RequestPath::RcWrite => 0,
    };
    let bytes = match (kind.fabric, kind.path) {
        (SHM, RequestPath::UdSend) => domain(kind.path, window).file_bytes() + slots + mail,
        (SHM, _) => domain(kind.path, window).file_bytes(),
        _ => slots + mail,
    };
    workers * bytes
}

/// The most that a provider puts before a datagram.
const GRH_BYTES: usize = 40;

/// What a client of `window` needs at one worker, and no more.
fn domain(path: RequestPath, window: Window) -> PdSize {
    let recvs = window.slots() + RECV_SLACK;
    PdSize {
        host_inbound: match path {
            RequestPath::UdSend => datagram_ring_bytes(recvs),
            RequestPath::UcWrite | RequestPath::RcWrite => {
                window.line_bytes() + window.overflow_bytes()
            }
        },
        guest_inbound: datagram_ring_bytes(recvs),
        ..PdSize::NONE
    }
}
