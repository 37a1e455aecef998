//! The fabrics that a server offers: their devices, opened from the table of providers.

use std::{io, time::Duration};

use herdwick_fabric::{Device, OpenError};
use herdwick_herd::{
    ServerEnd, ServerTerms, SetupError, hello::WORKERS_MAX as LEASE_WORKERS_MAX, wire::Window,
};
use herdwick_providers::{AnyDevice, AnyPort, Fabric, ListenError, ListenHost, Visit, Wanted};

use crate::{
    herd::{
        HerdConfig, HerdFront,
        lease::{LeaseKind, Offered},
    },
    runtime::{front::Front, time::unix_time},
    settings::{config::Config, error::StartError},
};

/// Largest reply over a fabric, in bytes. Clients read larger values over their memcached
/// connection.
pub(crate) const REPLY_BYTES_MAX: usize = 4096;

/// Checks that this system supports the fabrics whose leases pass descriptors.
pub(crate) fn try_local() -> Result<(), ListenError> {
    let refused = |fabric: Fabric| move |error: io::Error| fabric.refused(error.to_string());
    Fabric::local().try_for_each(|fabric| fabric.probe().map_err(refused(fabric)))
}

/// What became of a configured fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricStatus {
    /// Not configured.
    Off,
    /// No device can be used, for this reason.
    Absent(String),
    /// This device, port and address is used.
    On(String),
}

/// The devices that the server uses.
#[derive(Clone)]
pub(crate) struct OpenFabrics {
    devices: Vec<(Offered, AnyDevice)>,
    statuses: Vec<(Fabric, FabricStatus)>,
    /// Whether the engine is on one fabric alone, and those that have to be there.
    one: bool,
    needed: Vec<Fabric>,
}

impl OpenFabrics {
    /// Opens the devices that `config` names, for `workers` workers. A device that is optional and
    /// cannot be used is removed from `config`.
    pub(crate) fn open(config: &mut Config, workers: usize) -> Result<Self, StartError> {
        let mut transports = Self {
            devices: Vec::new(),
            statuses: Vec::new(),
            one: !config.engine.has_partitions(),
            needed: config.fabrics.all(Wanted::Needed).collect(),
        };
        for fabric in Fabric::ALL {
            if fabric.is_local() {
                // Whether it is offered depends on the lease socket.
                transports.add(fabric, config, workers)?;
                continue;
            }
            let status = match config.fabrics.wanted(fabric) {
                Wanted::Off => Ok(FabricStatus::Off),
                Wanted::IfThere if workers > LEASE_WORKERS_MAX => {
                    let reason = format!("it is for at most {LEASE_WORKERS_MAX} workers");
                    Ok(FabricStatus::Absent(reason))
                }
                Wanted::IfThere => Ok(transports
                    .add(fabric, config, workers)
                    .unwrap_or_else(|error| FabricStatus::Absent(error.reason))),
                Wanted::Needed => transports.add(fabric, config, workers),
            }?;
            // With a memory file the partitions must have the same size whether the device is
            // present or not, so the memory for its leases stays set aside.
            if matches!(status, FabricStatus::Absent(_)) && config.memory_file.is_none() {
                config.fabrics.remove(fabric);
            }
            transports.statuses.push((fabric, status));
        }
        Ok(transports)
    }

    /// Opens a device of `fabric`, and where it may be lost, a trial server end on it, so that
    /// missing capabilities are found at the start.
    fn add(
        &mut self,
        fabric: Fabric,
        config: &Config,
        workers: usize,
    ) -> Result<FabricStatus, ListenError> {
        let host = ListenHost {
            workers: config.ports(workers),
            origin: unix_time(),
        };
        let device = fabric.listen(&config.fabrics, &host)?;
        let described = device.describe();
        if fabric.may_be_lost() {
            let terms = ServerTerms {
                worker: 0,
                workers,
                clients_max: config.leases.clone().unwrap_or_default().clients_max,
                spin: Duration::ZERO,
                reply_bytes_max: REPLY_BYTES_MAX,
            };
            // The trial end is closed again: each worker opens its own.
            let tried = device.clone().visit(Trial(&terms));
            tried.map_err(|error| fabric.refused(format!("{}: {error}", described.place)))?;
        }
        let offered = Offered {
            fabric,
            has: device.capabilities().clone(),
            attribute: config.fabrics.attribute(fabric),
        };
        self.devices.push((offered, device));
        Ok(FabricStatus::On(described.place + &described.found))
    }

    /// Returns the device of a fabric that is offered.
    pub(crate) fn device(&self, fabric: Fabric) -> Option<&AnyDevice> {
        let mut devices = self.devices.iter();
        let found = devices.find(|(offered, _)| offered.fabric == fabric);
        found.map(|(_, device)| device)
    }

    /// Returns what became of the configured fabrics, besides those for which there is a lease
    /// socket.
    pub(crate) fn statuses(&self) -> &[(Fabric, FabricStatus)] {
        &self.statuses
    }

    /// Returns the fabrics to offer. Leaves out those that pass descriptors if there is no lease socket. An
    /// engine that runs on one fabric (Clover) offers one: the required one, else the best.
    pub(crate) fn offered(&self, lease_socket: bool) -> Vec<Offered> {
        let offered = self.devices.iter().map(|(offered, _)| offered);
        let offered = offered.filter(|offered| lease_socket || !offered.fabric.is_local());
        let mut offered: Vec<_> = offered.cloned().collect();
        if self.one {
            // That which has to be there, else the best.
            let first = offered
                .iter()
                .position(|one| self.needed.contains(&one.fabric));
            offered = offered
                .into_iter()
                .skip(first.unwrap_or(0))
                .take(1)
                .collect();
        }
        offered
    }

    /// Creates a HERD front end over `fabric`.
    pub(crate) fn front(
        &self,
        fabric: Fabric,
        config: HerdConfig,
    ) -> Result<Box<dyn Front + Send>, SetupError> {
        let device = self.device(fabric).ok_or_else(|| {
            let source = io::ErrorKind::NotFound.into();
            let what = "a fabric that is not offered";
            OpenError::System { what, source }
        })?;
        device.clone().visit(MakeFront { fabric, config })
    }
}

/// Opens a server end and closes it.
struct Trial<'a>(&'a ServerTerms);

impl Visit for Trial<'_> {
    type Output = Result<(), SetupError>;

    fn visit<D>(self, device: D) -> Self::Output
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
    {
        ServerEnd::open(&device, self.0).map(drop)
    }
}

/// Makes a front end, compiled for each provider.
struct MakeFront {
    fabric: Fabric,
    config: HerdConfig,
}

impl Visit for MakeFront {
    type Output = Result<Box<dyn Front + Send>, SetupError>;

    fn visit<D>(self, device: D) -> Self::Output
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
    {
        let Self { fabric, config } = self;
        Ok(if fabric.may_be_lost() {
            Box::new(HerdFront::patient(fabric.name(), device, config))
        } else {
            Box::new(HerdFront::new(fabric.name(), device, config)?)
        })
    }
}

/// Returns the bytes of memory that a lease of `window` holds at all `workers` together: everything
/// that its client, which may be hostile, can write or fill.
pub(crate) fn lease_bytes(kind: LeaseKind, window: Window, workers: usize) -> usize {
    let domain = kind.fabric.pd_bytes(&kind.path.pd_room(window));
    workers * (domain + kind.path.private_bytes(window))
}
