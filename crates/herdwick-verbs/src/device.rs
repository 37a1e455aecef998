//! The control half of the provider `verbs`: selects and opens a device, and opens ports on it.

use std::{
    ffi::OsString,
    io,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use herdwick_fabric::{
    Access, AddressHandle, Capabilities, ConnectError, ControlError, CqId, CqSpec, Device,
    Endpoint, OpenError, PdId, PortHealth, PortLimits, QpId, QpSpec, QpState, RegionId, RegionSpec,
    Remote, Rkey, SLOTS_MAX, Scope, SharedMemory, Source,
};

use crate::{
    INLINE_BYTES_WANTED, Library, LibraryError, control,
    endpoint::Peer,
    measure::{self, TrialError},
    place::{self, DeviceInfo, LinkLayer, NoPlace, Place, PortInfo},
    port::{Health, VerbsPort},
    probe, query,
    raw::{self, Context, Pd},
    selector::DeviceSelector,
    send::Bounds,
    state::DeviceState,
    sys,
};

/// Options of a device.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The name of libibverbs; `None`: the system's.
    pub library: Option<OsString>,
    /// The requested device, port and address.
    pub selector: DeviceSelector,
    /// On Ethernet, the address that the device must have: the one from which the kernel reaches
    /// the peer.
    pub own_address: Option<IpAddr>,
    /// Inline bytes to request.
    pub inline_bytes: usize,
    /// Which payloads in registered memory are sent inline.
    pub inlining: Inlining,
    /// Whether service level and traffic class, if not requested, are those of the peer. For
    /// clients, so that only the server has to be configured. If false, they are 0.
    pub follow_class: bool,
}

/// Up to which length payloads in registered memory are copied into the work request, so that the
/// device need not fetch them. The HERD paper (4.3) found up to 144 or 192 bytes worthwhile,
/// depending on PCIe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inlining {
    /// None.
    #[default]
    Never,
    /// Payloads of up to this many bytes, if the device supports it.
    UpTo(usize),
    /// Payloads of sizes that are faster inline, measured when the device is opened.
    Measured,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        Self {
            library: None,
            selector: DeviceSelector::default(),
            own_address: None,
            inline_bytes: INLINE_BYTES_WANTED,
            inlining: Inlining::default(),
            follow_class: false,
        }
    }
}

/// No device can be opened.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// libibverbs is missing or too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// No device, port or address meets the request.
    #[error(transparent)]
    Place(#[from] NoPlace),
    /// The device refuses a call that it claims to support.
    #[error(transparent)]
    Trial(#[from] TrialError),
    /// The list of devices, or the device, returned an error.
    #[error("{what}: {source}; see `ibv_devinfo`, and the rights on /dev/infiniband")]
    System {
        /// The call that failed.
        what: String,
        /// Its error.
        source: io::Error,
    },
}

/// An RNIC: one port of a device, with one of its addresses. Clones share the same device.
#[derive(Clone, Debug)]
pub struct VerbsDevice {
    library: Arc<Library>,
    state: Arc<DeviceState>,
}

impl VerbsDevice {
    /// Loads libibverbs, selects a device, and probes it.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn open(options: &VerbsOptions) -> Result<Self, VerbsError> {
        let library = Arc::new(match &options.library {
            None => Library::load()?,
            Some(name) => Library::load_from(name)?,
        });
        // The device's name is resolved once; ports are opened by it.
        let place = place::choose(&survey(&library)?, &options.selector, options.own_address)?;
        let system = |source| VerbsError::System {
            what: format!("trying {}", place.device),
            source,
        };
        let context = Context::open(&library, &place.device).map_err(system)?;
        // By trial: a device does not report which transports and inline sizes it supports.
        let found = probe::probe(&context, &place, options.inline_bytes).map_err(system)?;
        let bounds = Bounds {
            inline: found.capabilities.inline_bytes_max,
            datagram: found.capabilities.datagram_bytes_max,
            message: found.capabilities.message_bytes_max,
            // 0 while `Measured` measures: its datagrams in regions must be fetched.
            copied: 0,
        };
        let mut state = DeviceState {
            place,
            selector: options.selector.clone(),
            own_address: options.own_address,
            follow_class: options.follow_class,
            found,
            bounds,
        };
        let most = state.bounds.inline;
        state.bounds.copied = match options.inlining {
            Inlining::Never => 0,
            Inlining::UpTo(bytes) => bytes.min(most),
            Inlining::Measured => {
                // A device of its own for the measurement, which goes when it is done.
                let state = Arc::new(state.clone());
                let library = Arc::clone(&library);
                measure::worth_copying(&Self { library, state }, most)?
            }
        };
        let state = Arc::new(state);
        Ok(Self { library, state })
    }

    /// Returns up to how many bytes payloads in registered memory are sent inline.
    #[must_use]
    pub fn copied_bytes_max(&self) -> usize {
        self.state.bounds.copied
    }

    /// Returns the device, port and address that were selected, for the operator.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.state.place
    }

    /// Returns the place for a new port: the one selected at first, unless the device's addresses
    /// or partitions have changed.
    fn place_now(&self, context: &Context) -> Result<Place, OpenError> {
        let DeviceState {
            place,
            selector,
            own_address,
            found,
            ..
        } = &*self.state;
        let system = |source| OpenError::System {
            what: "looking at the RDMA device's ports",
            source,
        };
        let state = DeviceInfo {
            name: place.device.clone(),
            iwarp: false,
            ports: query::ports(context).map_err(system)?,
            refusal: None,
        };
        let own_port = state
            .ports
            .iter()
            .find(|port| port.number == place.port.number);
        if own_port.is_none_or(|port| !port.active) {
            return Err(OpenError::System {
                what: "the RDMA device's port is down",
                source: io::ErrorKind::NetworkDown.into(),
            });
        }
        // The device and port are fixed now, whatever the selector left open.
        let same = DeviceSelector {
            device: Some(place.device.clone()),
            port: Some(place.port.number),
            ..selector.clone()
        };
        let now = place::choose(&[state], &same, *own_address)
            .map_err(|error| system(io::Error::other(error)))?;
        // Capabilities are promised for the life of the device, so a smaller MTU is an error.
        if now.port.mtu < found.capabilities.datagram_bytes_max {
            return Err(OpenError::Limit {
                what: "bytes of a datagram",
                asked: found.capabilities.datagram_bytes_max,
                allowed: now.port.mtu,
            });
        }
        Ok(now)
    }
}

/// Returns all devices as found.
///
/// # Errors
/// [`VerbsError::System`] if they cannot be listed.
pub fn survey(library: &Arc<Library>) -> Result<Vec<DeviceInfo>, VerbsError> {
    let devices = raw::devices(library).map_err(|source| VerbsError::System {
        what: "listing RDMA devices".to_owned(),
        source,
    })?;
    let state = devices.into_iter().map(|(name, transport)| {
        let looked = check(library, &name);
        let refusal = looked.as_ref().err().map(ToString::to_string);
        DeviceInfo {
            name,
            iwarp: transport == sys::IBV_TRANSPORT_IWARP,
            ports: looked.unwrap_or_default(),
            refusal,
        }
    });
    Ok(state.collect())
}

fn check(library: &Arc<Library>, name: &str) -> io::Result<Vec<PortInfo>> {
    query::ports(&*Context::open(library, name)?)
}

impl Device for VerbsDevice {
    type Port = VerbsPort;

    fn capabilities(&self) -> &Capabilities {
        &self.state.found.capabilities
    }

    fn open_port(&self, limits: &PortLimits) -> Result<VerbsPort, OpenError> {
        let all = [
            ("protection domains", limits.pds),
            ("queue pairs", limits.qps),
            ("completion queues", limits.cqs),
            ("regions", limits.regions),
            ("address handles", limits.addresses),
        ];
        if let Some((what, asked)) = all.into_iter().find(|(_, asked)| *asked > SLOTS_MAX) {
            let allowed = SLOTS_MAX;
            return Err(OpenError::Limit {
                what,
                asked,
                allowed,
            });
        }
        let system = |what| move |source| OpenError::System { what, source };
        let context = Context::open(&self.library, &self.state.place.device);
        let context = context.map_err(system("opening the RDMA device"))?;
        let place = self.place_now(&context)?;
        VerbsPort::new(context, Arc::clone(&self.state), place, limits)
            .map_err(system("opening a port of the RDMA device"))
    }

    fn create_pd(&self, port: &mut VerbsPort) -> Result<PdId, ControlError> {
        if !port.pds.has_room() {
            return Err(control::limit("protection domains", port.pds.capacity()));
        }
        let made = Pd::new(&port.context).map_err(control::system("making a protection domain"))?;
        let id = port.pds.insert(made);
        id.map(PdId)
            .map_err(|_| control::limit("protection domains", port.pds.capacity()))
    }

    fn destroy_pd(&self, port: &mut VerbsPort, pd: PdId) -> Result<(), ControlError> {
        control::destroy_pd(port, pd)
    }

    fn allocate_region(
        &self,
        port: &mut VerbsPort,
        pd: PdId,
        spec: &RegionSpec,
    ) -> Result<RegionId, ControlError> {
        control::allocate_region(port, pd, spec)
    }

    fn register_shared(
        &self,
        port: &mut VerbsPort,
        pd: PdId,
        memory: &SharedMemory,
        access: Access,
        scope: Scope,
    ) -> Result<RegionId, ControlError> {
        memory.may_grant(access)?;
        if memory.windows().is_some() {
            return Err(ControlError::Unsupported("windows onto shared memory"));
        }
        control::register(port, pd, memory.span().clone(), access, scope)
    }

    fn free_region(&self, port: &mut VerbsPort, region: RegionId) -> Result<(), ControlError> {
        let freed = port.regions.remove(region.0);
        freed.map(drop).ok_or(ControlError::Unknown("region"))
    }

    fn remote(&self, port: &VerbsPort, region: RegionId) -> Result<Remote, ControlError> {
        let region = port.regions.get(region.0);
        let region = region.ok_or(ControlError::Unknown("region"))?;
        Ok(Remote {
            rkey: Rkey(region.mr.keys().1),
            addr: 0,
        })
    }

    fn create_cq(&self, port: &mut VerbsPort, spec: &CqSpec) -> Result<CqId, ControlError> {
        control::create_cq(port, spec)
    }

    fn destroy_cq(&self, port: &mut VerbsPort, cq: CqId) -> Result<(), ControlError> {
        // Asked of the queue pairs: to drop the queue would drop one of its `Arc`s alone, and leave
        // it open.
        let uses = |cq: CqId| {
            port.qps
                .iter()
                .any(|(_, qp)| qp.send_cq == cq || qp.recv_cq == cq)
        };
        if port.cqs.get(cq.0).is_some() && uses(cq) {
            return Err(ControlError::InUse("completion queue"));
        }
        let gone = port.cqs.remove(cq.0);
        gone.map(drop)
            .ok_or(ControlError::Unknown("completion queue"))
    }

    fn create_qp(&self, port: &mut VerbsPort, spec: &QpSpec) -> Result<QpId, ControlError> {
        control::create_qp(port, spec)
    }

    fn destroy_qp(&self, port: &mut VerbsPort, qp: QpId) -> Result<(), ControlError> {
        control::destroy_qp(port, qp)
    }

    fn endpoint(&self, port: &VerbsPort, qp: QpId) -> Result<Endpoint, ControlError> {
        control::endpoint(port, qp)
    }

    fn source(&self, peer: &Endpoint) -> Result<Source, ConnectError> {
        let peer = Peer::decode(peer)?;
        Ok(Source { qpn: peer.qpn })
    }

    fn connect(&self, port: &mut VerbsPort, qp: QpId, peer: &Endpoint) -> Result<(), ConnectError> {
        control::connect(port, qp, peer)
    }

    fn create_address(
        &self,
        port: &mut VerbsPort,
        qp: QpId,
        peer: &Endpoint,
    ) -> Result<AddressHandle, ConnectError> {
        control::create_address(port, qp, peer)
    }

    fn destroy_address(
        &self,
        port: &mut VerbsPort,
        address: AddressHandle,
    ) -> Result<(), ControlError> {
        let gone = port.addresses.remove(address.0);
        gone.map(drop)
            .ok_or(ControlError::Unknown("address handle"))
    }

    fn fail_qp(&self, port: &mut VerbsPort, qp: QpId) -> Result<(), ControlError> {
        let qp = port.qps.get_mut(qp.0).ok_or(control::NO_QP)?;
        let error = sys::QpAttr {
            qp_state: sys::IBV_QPS_ERR,
            ..sys::QpAttr::default()
        };
        let failed = qp.raw.modify(error, sys::IBV_QP_STATE);
        // Also if the driver refused: nothing more is posted here.
        qp.state = QpState::Error;
        failed.map_err(control::system("failing a queue pair"))
    }

    fn qp_state(&self, port: &VerbsPort, qp: QpId) -> Result<QpState, ControlError> {
        Ok(port.qps.get(qp.0).ok_or(control::NO_QP)?.state)
    }

    /// Tells by the address on Ethernet, because the kernel may need long to resolve another one
    /// than the client's own, and a worker must not wait. If `host` is a loopback address, the
    /// queue pairs may also have the address of `port`. On InfiniBand only all being at one address
    /// is checked.
    fn is_at(
        &self,
        port: &VerbsPort,
        _: PdId,
        endpoints: &[&Endpoint],
        host: Option<IpAddr>,
    ) -> bool {
        let peers: Result<Vec<_>, _> = endpoints.iter().map(|end| Peer::decode(end)).collect();
        // Without the host nothing can be compared.
        let (Ok(peers), Some(host)) = (peers, host) else {
            return false;
        };
        let host = host.to_canonical();
        let on_host = |peer: &Peer| {
            let of_host = Ipv6Addr::from(peer.gid).to_canonical() == host;
            let ours = host.is_loopback() && peer.gid == port.place.gid.address.octets();
            peer.link == LinkLayer::InfiniBand || of_host || ours
        };
        let together = |pair: &[Peer]| (pair[0].lid, pair[0].gid) == (pair[1].lid, pair[1].gid);
        peers.iter().all(on_host) && peers.windows(2).all(together)
    }

    fn check(&self, port: &mut VerbsPort) {
        port.check();
    }

    #[inline]
    fn health(&self, port: &VerbsPort) -> PortHealth {
        PortHealth {
            lost: port.health() != Health::Well,
            failures: port.failures(),
        }
    }
}
