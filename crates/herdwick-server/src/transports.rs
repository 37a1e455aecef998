//! The transports, and the one place of the server that names providers.

use std::{io, net::IpAddr, os::fd::OwnedFd, time::Duration};

use herdwick_fabric::{Capabilities, ControlError, Device, Endpoint, PdId, PortLimits};
use herdwick_herd::{
    RECV_SLACK, RequestPath, ServerEnd, ServerTerms, SetupError, UdQueue,
    hello::WORKERS_MAX as LEASE_WORKERS_MAX, wire::Window,
};
pub use herdwick_roce_udp::UDP_PORT;
use herdwick_roce_udp::{RoceDevice, RoceOptions, RocePort};
use herdwick_shm::{PdSize, ShmDevice, ShmPort, datagram_ring_bytes};
pub use herdwick_verbs::{DeviceSelector, VerbsOptions};
use herdwick_verbs::{Health, Inlining, VerbsDevice, VerbsPort};

use crate::{
    config::{Config, StartError, Verbs},
    front::Front,
    herd::{HerdConfig, HerdFront, LeaseDevice, Released},
    lease::{FabricId, Kind},
    memory::REPLY_BYTES_MAX,
    time::unix_time,
};

/// Shared memory.
pub(crate) const SHM: FabricId = FabricId(0);
/// RoCEv2 over UDP.
pub(crate) const ROCE: FabricId = FabricId(1);
/// An RDMA device.
pub(crate) const VERBS: FabricId = FabricId(2);

/// All of them.
pub(crate) fn fabrics() -> impl Iterator<Item = FabricId> {
    [SHM, ROCE, VERBS].into_iter()
}

/// Whether descriptors have to cross for a lease.
pub(crate) fn is_local(fabric: FabricId) -> bool {
    fabric == SHM
}

/// Whether this system has what shared memory takes.
pub(crate) fn try_shm() -> io::Result<()> {
    let none = PortLimits {
        pds: 1,
        qps: 1,
        cqs: 1,
        regions: 1,
        addresses: 1,
    };
    let device = ShmDevice::host(PdSize::NONE);
    let tried = device.open_port(&none).map_err(io::Error::other);
    let port = &mut tried?;
    let pd = device.create_pd(port).map_err(io::Error::other)?;
    device.destroy_pd(port, pd).map_err(io::Error::other)
}

/// Whether the kernel knows of an RDMA device, which may still turn out to be of no use.
pub(crate) fn has_rdma_devices() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// What became of [`Config::verbs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerbsStatus {
    /// It was not asked for.
    Off,
    /// There is none that can be used, and this is why.
    Absent(String),
    /// This device, port and address.
    On(String),
}

/// The providers of a server, as far as it has them.
#[derive(Clone)]
pub(crate) struct Transports {
    roce: Option<RoceDevice>,
    verbs: Option<VerbsDevice>,
    verbs_status: VerbsStatus,
}

impl Transports {
    /// Binds and opens what `config` names, for so many workers. What it names only if it is there,
    /// and is not, it names no longer.
    pub(crate) fn open(config: &mut Config, workers: usize) -> Result<Self, StartError> {
        let bind = |address| {
            let bound = RoceDevice::bind(RoceOptions {
                shards: workers,
                keyed: config.roce_keyed,
                capture: config.roce_capture.clone(),
                origin: unix_time(),
                ..RoceOptions::new(address)
            });
            bound.map_err(|source| StartError::Roce { address, source })
        };
        let roce = config.roce.map(bind).transpose()?;
        let clients_max = config.leases.clone().unwrap_or_default().clients_max;
        let open = |options| open_verbs(options, workers, clients_max);
        let opened = match &config.verbs {
            Verbs::Off => Err(VerbsStatus::Off),
            Verbs::Needed(options) => Ok(open(options).map_err(StartError::Verbs)?),
            Verbs::IfThere(_) if workers > LEASE_WORKERS_MAX => {
                let reason = format!("it is for at most {LEASE_WORKERS_MAX} workers");
                Err(VerbsStatus::Absent(reason))
            }
            Verbs::IfThere(options) => open(options).map_err(VerbsStatus::Absent),
        };
        let (verbs, verbs_status) = match opened {
            Ok(device) => {
                let copied = device.copied_bytes_max();
                let place = format!("{}, memory to {copied} bytes inline", device.place());
                (Some(device), VerbsStatus::On(place))
            }
            Err(status) => (None, status),
        };
        // Items that are to be here again find partitions of the same size, even if the device is
        // there at one start and not at the other.
        if verbs.is_none() && config.memory_file.is_none() {
            config.verbs = Verbs::Off;
        }
        Ok(Self {
            roce,
            verbs,
            verbs_status,
        })
    }

    /// What became of the selector for an RDMA device.
    pub(crate) fn verbs_status(&self) -> &VerbsStatus {
        &self.verbs_status
    }

    /// What there is to offer, with what it can.
    pub(crate) fn offered(&self, shm: bool) -> Vec<(FabricId, Capabilities)> {
        let shm = shm.then(|| (SHM, ShmDevice::host(PdSize::NONE).capabilities().clone()));
        let roce = self.roce.as_ref();
        let roce = roce.map(|roce| (ROCE, roce.capabilities().clone()));
        let verbs = self.verbs.as_ref();
        let verbs = verbs.map(|verbs| (VERBS, verbs.capabilities().clone()));
        shm.into_iter().chain(roce).chain(verbs).collect()
    }

    /// HERD over `fabric`.
    pub(crate) fn front(
        &self,
        fabric: FabricId,
        config: HerdConfig,
    ) -> Result<Box<dyn Front + Send>, SetupError> {
        Ok(match (fabric, &self.roce, &self.verbs) {
            (ROCE, Some(roce), _) => Box::new(HerdFront::new("roce", roce.clone(), config)?),
            (VERBS, _, Some(verbs)) => Box::new(HerdFront::patient("verbs", verbs.clone(), config)),
            _ => Box::new(HerdFront::new(
                "shm",
                ShmDevice::host(PdSize::NONE),
                config,
            )?),
        })
    }
}

/// A device on which a worker's end can be set up: what is missing is found before anybody relies
/// on it.
fn open_verbs(
    options: &VerbsOptions,
    workers: usize,
    clients_max: usize,
) -> Result<VerbsDevice, String> {
    let measured = VerbsOptions {
        inlining: Inlining::Measured,
        ..options.clone()
    };
    let device = VerbsDevice::open(&measured).map_err(|error| error.to_string())?;
    let terms = ServerTerms {
        worker: 0,
        workers,
        clients_max,
        spin: Duration::ZERO,
        reply_bytes_max: REPLY_BYTES_MAX,
    };
    match ServerEnd::open(&device, &terms) {
        Ok(_) => Ok(device),
        Err(error) => Err(format!("{}: {error}", device.place())),
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

    fn release_pd(&self, port: &mut ShmPort, pd: PdId, done: Released) {
        Self::release_pd(self, port, pd, done);
    }

    /// Of another client's domain, its replies would end with that client's lease.
    fn is_at(&self, port: &ShmPort, pd: PdId, endpoints: &[&Endpoint], _: Option<IpAddr>) -> bool {
        endpoints.iter().all(|end| self.is_in(port, pd, end))
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
    fn is_at(&self, _: &RocePort, _: PdId, endpoints: &[&Endpoint], host: Option<IpAddr>) -> bool {
        endpoints.iter().all(|endpoint| {
            let named = Self::endpoint_host(endpoint).map(|named| named.to_canonical());
            named.is_some() && named == host
        })
    }
}

/// As over RoCEv2. The device may be lost while the server runs.
impl LeaseDevice for VerbsDevice {
    fn domain(
        &self,
        port: &mut VerbsPort,
        _: RequestPath,
        _: Window,
    ) -> Result<PdId, ControlError> {
        self.create_pd(port)
    }

    fn ticket(&self, _: &mut VerbsPort, _: PdId) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError> {
        Ok((Vec::new(), Vec::new()))
    }

    /// Reaching another address may take the kernel long, and a worker does not wait.
    fn is_at(
        &self,
        port: &VerbsPort,
        _: PdId,
        endpoints: &[&Endpoint],
        host: Option<IpAddr>,
    ) -> bool {
        host.is_some_and(|host| Self::is_at(self, port, endpoints, host))
    }

    fn check(&self, port: &mut VerbsPort) {
        port.check();
    }

    fn failures(&self, port: &VerbsPort) -> u64 {
        port.failures()
    }

    fn is_lost(&self, end: &ServerEnd<VerbsPort>) -> bool {
        end.port.health() != Health::Well || !end.is_sound(self)
    }
}

/// Bytes of memory that a lease of `window` holds at all `workers` together: all that its client,
/// which may be hostile, can touch or fill.
pub(crate) fn lease_bytes(kind: Kind, window: Window, workers: usize) -> usize {
    let slots = window.line_bytes() + window.overflow_bytes();
    let recv_memory = match kind.path {
        RequestPath::UdSend => (window.slots() + RECV_SLACK) * UdQueue::recv_bytes(GRH_BYTES),
        RequestPath::UcWrite | RequestPath::RcWrite => 0,
    };
    let bytes = match (kind.fabric, kind.path) {
        (SHM, RequestPath::UdSend) => domain(kind.path, window).file_bytes() + slots + recv_memory,
        (SHM, _) => domain(kind.path, window).file_bytes(),
        _ => slots + recv_memory,
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
        client_inbound: datagram_ring_bytes(recvs),
        ..PdSize::NONE
    }
}
