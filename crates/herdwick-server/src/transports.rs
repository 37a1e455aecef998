//! The transports. This is the only module of the server that names providers.

use std::{io, time::Duration};

use herdwick_fabric::{Capabilities, Device, PortLimits};
use herdwick_herd::{
    ServerEnd, ServerTerms, SetupError, hello::WORKERS_MAX as LEASE_WORKERS_MAX, wire::Window,
};
pub use herdwick_roce_udp::UDP_PORT;
use herdwick_roce_udp::{RoceDevice, RoceOptions};
use herdwick_shm::{PdSize, ShmDevice};
pub use herdwick_verbs::{DeviceSelector, VerbsOptions};
use herdwick_verbs::{Inlining, VerbsDevice};

use crate::{
    config::{Config, StartError, Verbs},
    front::Front,
    herd::{HerdConfig, HerdFront},
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

/// Returns every fabric.
pub(crate) fn fabrics() -> impl Iterator<Item = FabricId> {
    [SHM, ROCE, VERBS].into_iter()
}

/// Returns whether a lease on this fabric passes descriptors to the client.
pub(crate) fn is_local(fabric: FabricId) -> bool {
    fabric == SHM
}

/// Checks that this system supports what the shared-memory provider needs.
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

/// Returns whether the kernel lists an RDMA device, which may still be unusable.
pub(crate) fn has_rdma_devices() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// The outcome of [`Config::verbs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerbsStatus {
    /// Not configured.
    Off,
    /// No device can be used, for this reason.
    Absent(String),
    /// This device, port and address is used.
    On(String),
}

/// The providers that the server uses.
#[derive(Clone)]
pub(crate) struct Transports {
    roce: Option<RoceDevice>,
    verbs: Option<VerbsDevice>,
    verbs_status: VerbsStatus,
}

impl Transports {
    /// Opens the providers that `config` names, for `workers` workers. A device that is optional
    /// and cannot be used is removed from `config`.
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
        // With a file of items the partitions must have the same size whether the device is present
        // or not, so the memory for its leases stays set aside.
        if verbs.is_none() && config.memory_file.is_none() {
            config.verbs = Verbs::Off;
        }
        Ok(Self {
            roce,
            verbs,
            verbs_status,
        })
    }

    /// Returns the outcome of the RDMA device.
    pub(crate) fn verbs_status(&self) -> &VerbsStatus {
        &self.verbs_status
    }

    /// Returns the fabrics to offer, with their capabilities.
    pub(crate) fn offered(&self, shm: bool) -> Vec<(FabricId, Capabilities)> {
        let shm = shm.then(|| (SHM, ShmDevice::host(PdSize::NONE).capabilities().clone()));
        let roce = self.roce.as_ref();
        let roce = roce.map(|roce| (ROCE, roce.capabilities().clone()));
        let verbs = self.verbs.as_ref();
        let verbs = verbs.map(|verbs| (VERBS, verbs.capabilities().clone()));
        shm.into_iter().chain(roce).chain(verbs).collect()
    }

    /// Creates a HERD front over `fabric`.
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

/// Opens a device and a trial server end on it, so that missing capabilities are found at the
/// start.
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

/// Returns the bytes of memory that a lease of `window` holds at all `workers` together: everything
/// that its client, which may be hostile, can write or fill.
pub(crate) fn lease_bytes(kind: Kind, window: Window, workers: usize) -> usize {
    let pd_bytes = match kind.fabric {
        SHM => ShmDevice::pd_bytes,
        VERBS => VerbsDevice::pd_bytes,
        _ => RoceDevice::pd_bytes,
    };
    workers * (pd_bytes(&kind.path.pd_room(window)) + kind.path.private_bytes(window))
}
