//! The provider's device: makes ports and domains, hands out tickets, and dispatches control verbs.

use std::{
    io,
    net::IpAddr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use herdwick_fabric::{
    Access, AddressHandle, Atomics, Capabilities, ConnectError, ControlError, CqId, CqSpec, Device,
    Endpoint, INLINE_RECEIVE, ImportError, OpenError, PdId, PdRoom, PdTicket, PortLimits, QpId,
    QpSpec, QpState, RegionId, RegionSpec, Released, Remote, Rkey, SLOTS_MAX, Scope, SharedMemory,
    Sharing, Slab, Source,
};

use crate::{
    DATAGRAM_BYTES_MAX, INLINE_BYTES_MAX, MESSAGE_BYTES_MAX, READ_BYTES_MAX,
    control::{self, PD},
    datagram_ring_bytes, discard,
    drops::{DropReason, Drops},
    file::{self, Board, Writers},
    files::Files,
    layout::{CONTROL_BYTES, DomainSide, FILE_BYTES_MAX, PAGE, PdLayout, QpAddress},
    park::Arming,
    pd::{Parts, Pd, Unclaimed},
    port::{CHECK_PASSES, Doorbell, ShmPort},
    qp, shared, ticket,
    wakeup::{Wakeup, WakeupSet},
};

/// Bytes of a domain's memory, by use, rounded up to pages. Unused memory is not allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PdSize {
    /// Regions of the host that the client may WRITE, and rings into the host's queue pairs.
    pub host_inbound: usize,
    /// Regions of the host that the client may only READ.
    pub host_readable: usize,
    /// Rings into the client's queue pairs.
    pub client_inbound: usize,
    /// Regions of the client with remote rights.
    pub client_regions: usize,
}

impl Default for PdSize {
    /// One mebibyte each.
    fn default() -> Self {
        Self {
            host_inbound: 1 << 20,
            host_readable: 1 << 20,
            client_inbound: 1 << 20,
            client_regions: 1 << 20,
        }
    }
}

impl PdSize {
    /// No memory that a peer could use: for a domain of the host's own.
    pub const NONE: Self = Self {
        host_inbound: 0,
        host_readable: 0,
        client_inbound: 0,
        client_regions: 0,
    };

    /// Returns exactly the memory that `room` needs.
    fn of(room: &PdRoom) -> Self {
        let ring = |recvs| match recvs {
            0 => 0,
            recvs => datagram_ring_bytes(recvs),
        };
        Self {
            host_inbound: room.writable + ring(room.recvs),
            client_inbound: ring(room.peer_recvs),
            client_regions: room.peer_writable,
            ..Self::NONE
        }
    }

    /// Bytes of the two files of a domain of this size: the most memory that it can ever occupy.
    #[must_use]
    pub const fn file_bytes(&self) -> usize {
        2 * CONTROL_BYTES
            + area_bytes(self.host_inbound)
            + area_bytes(self.host_readable)
            + area_bytes(self.client_inbound)
            + area_bytes(self.client_regions)
    }
}

/// Whole pages, and one more for the colour.
const fn area_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE) + PAGE
}

/// The shared-memory provider, in one of its two roles.
///
/// A *host* makes protection domains and exports each one, once, as a [`PdTicket`]. A *client*
/// imports tickets and has no domains of its own. Queue pairs connect a host's port
/// with a client's, within one domain; a host's UD queue pairs also address clients' UD queue pairs
/// of any domain of their port.
#[derive(Debug)]
pub struct ShmDevice {
    capabilities: Capabilities,
    /// `None` for a client.
    host: Option<PdSize>,
    /// Domains made so far; gives each its colour.
    made: AtomicU64,
}

impl ShmDevice {
    /// Makes a host, whose domains have `size`.
    #[must_use]
    pub fn host(size: PdSize) -> Self {
        Self {
            capabilities: CAPABILITIES,
            host: Some(size),
            made: AtomicU64::new(0),
        }
    }

    /// Makes a client, which attaches to the domains of hosts.
    #[must_use]
    pub fn client() -> Self {
        Self {
            capabilities: CAPABILITIES,
            host: None,
            made: AtomicU64::new(0),
        }
    }

    /// Makes a domain of another size than this device's default.
    ///
    /// # Errors
    /// As [`Device::create_pd`].
    pub fn create_pd_of(&self, port: &mut ShmPort, size: &PdSize) -> Result<PdId, ControlError> {
        if self.host.is_none() {
            let own = "domains of a client's own; import a ticket";
            return Err(ControlError::Unsupported(own));
        }
        if !port.pds.has_room() {
            return Err(control::limit("protection domains", port.pds.capacity()));
        }
        let layout = self.layout(size)?;
        let made = make(layout).and_then(|pd| add_domain(port, pd));
        made.map_err(control::system("making a protection domain"))
    }

    fn layout(&self, size: &PdSize) -> Result<PdLayout, ControlError> {
        let bytes = [
            size.host_inbound,
            size.host_readable,
            size.client_inbound,
            size.client_regions,
        ];
        if bytes.iter().any(|bytes| *bytes > FILE_BYTES_MAX / 4) {
            return Err(ControlError::Limit {
                what: "bytes of a part of a protection domain",
                limit: FILE_BYTES_MAX / 4,
            });
        }
        let [host_inbound, host_readable, client_inbound, client_regions] = bytes.map(area_bytes);
        let random = getrandom::u64().map_err(|error| ControlError::System {
            what: "drawing a random number",
            source: io::Error::other(error),
        })?;
        // 64 lines make up the page that `area_bytes` adds. Relaxed: any number will do, it orders nothing.
        let colour = self.made.fetch_add(1, Ordering::Relaxed) % 64;
        Ok(PdLayout {
            token: random & !63 | colour,
            up_split: CONTROL_BYTES + host_inbound,
            up_len: CONTROL_BYTES + host_inbound + client_regions,
            down_split: CONTROL_BYTES + client_inbound,
            down_len: CONTROL_BYTES + client_inbound + host_readable,
        })
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    name: "shm",
    rc: true,
    uc: true,
    ud: true,
    read: true,
    atomics: Atomics::Coherent,
    ordered_write: true,
    wakes_on_write: true,
    reports_writes: false,
    lossless: true,
    acknowledged_sends: false,
    inline_bytes_max: INLINE_BYTES_MAX,
    inline_receive_bytes: INLINE_RECEIVE,
    datagram_header_bytes: 0,
    datagram_bytes_max: DATAGRAM_BYTES_MAX,
    message_bytes_max: MESSAGE_BYTES_MAX,
    read_bytes_max: READ_BYTES_MAX,
    rd_atomic_max: usize::MAX,
    ordered_read: true,
    gso: false,
    senders: 1,
    postlist_max: 1024,
    scoped_regions: true,
    counted_drops: true,
    windows: true,
    virtual_addresses: false,
};

/// Makes the host's side of a domain.
fn make(layout: PdLayout) -> io::Result<Pd> {
    let (up, up_mapping) = file::make(layout.up_len, Writers::Everyone)?;
    let (down, down_mapping) = file::make(layout.down_len, Writers::Owner)?;
    let (wakeup, theirs) = Wakeup::pair()?;
    Pd::new(Parts {
        side: DomainSide::Host,
        layout,
        files: Files {
            up: up_mapping,
            down: down_mapping,
        },
        wakeup,
        board: None,
        unclaimed: Some(Unclaimed {
            up,
            down,
            wakeup: theirs,
        }),
    })
}

/// Adds a domain to a port that has room for it.
fn add_domain(port: &mut ShmPort, pd: Pd) -> io::Result<PdId> {
    let full = || io::Error::from(io::ErrorKind::QuotaExceeded);
    let id = port.pds.next_id().ok_or_else(full)?;
    port.wakeup_set.add(&pd.wakeup, id)?;
    pd.show(port.arming);
    let id = port.pds.insert(pd).map_err(|_| full())?;
    Ok(PdId(id))
}

/// The clone makes domains of the same size, and gives out colours of its own.
impl Clone for ShmDevice {
    fn clone(&self) -> Self {
        Self {
            capabilities: self.capabilities.clone(),
            host: self.host.clone(),
            made: AtomicU64::new(0),
        }
    }
}

impl Device for ShmDevice {
    type Port = ShmPort;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open_port(&self, limits: &PortLimits) -> Result<ShmPort, OpenError> {
        let all = [
            ("protection domains", limits.pds),
            ("queue pairs", limits.qps),
            ("completion queues", limits.cqs),
            ("regions", limits.regions),
            ("address handles", limits.addresses),
        ];
        if let Some((what, asked)) = all.into_iter().find(|(_, asked)| *asked > SLOTS_MAX) {
            return Err(OpenError::Limit {
                what,
                asked,
                allowed: SLOTS_MAX,
            });
        }
        let system = |what| move |source| OpenError::System { what, source };
        if self.host.is_some() {
            discard::start().map_err(system("starting the threads that give memory back"))?;
        }
        let board = self.host.as_ref().map(|_| Board::new());
        let board = board.transpose().map_err(system("making a board"))?;
        // At most one ring for each address and each connection.
        let rings = SLOTS_MAX.min(limits.qps + limits.addresses);
        Ok(ShmPort {
            pds: Slab::new(limits.pds),
            qps: Slab::new(limits.qps),
            cqs: Slab::new(limits.cqs),
            regions: Slab::new(limits.regions),
            addresses: Slab::new(limits.addresses),
            drops: Drops::new(),
            kept: Arc::default(),
            arming: Arming::default(),
            board,
            wakeup_set: WakeupSet::new().map_err(system("making an epoll descriptor"))?,
            outbounds: Slab::new(rings),
            doorbell: Doorbell::new(rings),
            passes_left: CHECK_PASSES,
        })
    }

    fn create_pd(&self, port: &mut ShmPort) -> Result<PdId, ControlError> {
        self.create_pd_of(port, self.host.as_ref().unwrap_or(&PdSize::NONE))
    }

    fn create_pd_for(&self, port: &mut ShmPort, room: &PdRoom) -> Result<PdId, ControlError> {
        self.create_pd_of(port, &PdSize::of(room))
    }

    fn pd_bytes(room: &PdRoom) -> usize {
        PdSize::of(room).file_bytes()
    }

    /// There is only one ticket: a domain has one client.
    fn export_pd(&self, port: &mut ShmPort, pd: PdId) -> Result<PdTicket, ControlError> {
        let ShmPort { pds, board, .. } = port;
        let pd = pds.get_mut(pd.0).ok_or(ControlError::Unknown(PD))?;
        let board = board.as_ref().ok_or(ControlError::Unsupported("tickets"))?;
        let board = board.fd.as_fd().try_clone_to_owned();
        let board = board.map_err(control::system("duplicating a descriptor"))?;
        let unclaimed = pd.unclaimed.take().ok_or(ControlError::InUse("ticket"))?;
        Ok(PdTicket {
            fds: vec![
                unclaimed.up,
                unclaimed.down,
                board,
                unclaimed.wakeup.socket,
                unclaimed.wakeup.event,
            ],
            blob: pd.layout.encode(),
        })
    }

    /// Attaches the client's side of a domain.
    fn import_pd(&self, port: &mut ShmPort, ticket: PdTicket) -> Result<PdId, ImportError> {
        if self.host.is_some() {
            let tickets = "tickets to take; open the port on a client device";
            return Err(ControlError::Unsupported(tickets).into());
        }
        if !port.pds.has_room() {
            return Err(control::limit("protection domains", port.pds.capacity()).into());
        }
        let pd = ticket::open(ticket)?;
        let added = add_domain(port, pd).map_err(control::system("watching the wakeup descriptor"));
        Ok(added?)
    }

    /// Does not wait for the client: another thread gives a host's memory back to the system. A
    /// client that holds the lock of a file can delay that for ever.
    fn release_pd(&self, port: &mut ShmPort, pd: PdId, done: Released) {
        let files = match control::destroy_pd(port, pd) {
            Ok(Some(files)) => files,
            other => return done(other.map(|_| ())),
        };
        let kept = Arc::clone(&port.kept);
        let done = move |discarded: io::Result<()>| {
            kept.fetch_add(discarded.is_err().into(), Ordering::Relaxed);
            done(discarded.map_err(control::system("giving memory back")));
        };
        discard::elsewhere(files, Box::new(done));
    }

    /// Tells by the domain: a host's port reaches the clients of all its domains, and replies to an
    /// endpoint in another client's would stop when that client leaves.
    fn is_at(&self, port: &ShmPort, pd: PdId, endpoints: &[&Endpoint], _: Option<IpAddr>) -> bool {
        let token = port.pds.get(pd.0).map(|pd| pd.layout.token);
        let named = |end: &&Endpoint| QpAddress::decode(end).map(|address| address.token);
        token.is_some() && endpoints.iter().all(|end| named(end) == token)
    }

    fn destroy_pd(&self, port: &mut ShmPort, pd: PdId) -> Result<(), ControlError> {
        let files = control::destroy_pd(port, pd)?;
        if files.is_some_and(|files| files.discard().is_err()) {
            port.drops.count(DropReason::Unreleased);
        }
        Ok(())
    }

    fn allocate_region(
        &self,
        port: &mut ShmPort,
        pd: PdId,
        spec: &RegionSpec,
    ) -> Result<RegionId, ControlError> {
        control::allocate_region(port, pd, spec)
    }

    fn allocate_shared(&self, len: usize, sharing: Sharing) -> Result<SharedMemory, ControlError> {
        shared::allocate(len, sharing)
    }

    fn register_shared(
        &self,
        port: &mut ShmPort,
        pd: PdId,
        memory: &SharedMemory,
        access: Access,
        scope: Scope,
    ) -> Result<RegionId, ControlError> {
        shared::register(port, pd, memory, access, scope)
    }

    fn export_region(&self, port: &ShmPort, region: RegionId) -> Result<PdTicket, ControlError> {
        shared::export(port, region)
    }

    fn import_region(
        &self,
        port: &mut ShmPort,
        pd: PdId,
        ticket: PdTicket,
    ) -> Result<(), ImportError> {
        shared::import(port, pd, ticket)
    }

    fn imported(&self, port: &ShmPort, pd: PdId, rkey: Rkey) -> Option<herdwick_mem::Span> {
        shared::imported(port, pd, rkey)
    }

    fn free_region(&self, port: &mut ShmPort, region: RegionId) -> Result<(), ControlError> {
        let freed = port.regions.remove(region.0);
        let freed = freed.ok_or(ControlError::Unknown("region"))?;
        if let (Some(pd), Some(place)) = (port.pds.get_mut(freed.pd), freed.place) {
            pd.close_region(place);
        }
        Ok(())
    }

    fn remote(&self, port: &ShmPort, region: RegionId) -> Result<Remote, ControlError> {
        let region = port.regions.get(region.0);
        let region = region.ok_or(ControlError::Unknown("region"))?;
        Ok(Remote {
            rkey: region.rkey,
            addr: 0,
        })
    }

    fn create_cq(&self, port: &mut ShmPort, spec: &CqSpec) -> Result<CqId, ControlError> {
        control::create_cq(port, spec)
    }

    fn destroy_cq(&self, port: &mut ShmPort, cq: CqId) -> Result<(), ControlError> {
        control::destroy_cq(port, cq)
    }

    fn create_qp(&self, port: &mut ShmPort, spec: &QpSpec) -> Result<QpId, ControlError> {
        control::create_qp(port, spec)
    }

    fn destroy_qp(&self, port: &mut ShmPort, qp: QpId) -> Result<(), ControlError> {
        control::destroy_qp(port, qp)
    }

    fn endpoint(&self, port: &ShmPort, qp: QpId) -> Result<Endpoint, ControlError> {
        control::endpoint(port, qp)
    }

    fn source(&self, peer: &Endpoint) -> Result<Source, ConnectError> {
        control::source(peer)
    }

    fn connect(&self, port: &mut ShmPort, qp: QpId, peer: &Endpoint) -> Result<(), ConnectError> {
        control::connect(port, qp, peer)
    }

    fn create_address(
        &self,
        port: &mut ShmPort,
        qp: QpId,
        peer: &Endpoint,
    ) -> Result<AddressHandle, ConnectError> {
        control::create_address(port, qp, peer)
    }

    fn destroy_address(
        &self,
        port: &mut ShmPort,
        address: AddressHandle,
    ) -> Result<(), ControlError> {
        let gone = port.addresses.remove(address.0);
        gone.map(drop)
            .ok_or(ControlError::Unknown("address handle"))
    }

    fn fail_qp(&self, port: &mut ShmPort, qp: QpId) -> Result<(), ControlError> {
        let qp = port.qps.get_mut(qp.0);
        let qp = qp.ok_or(ControlError::Unknown("queue pair"))?;
        let pd = port.pds.get(qp.pd).ok_or(ControlError::Unknown(PD))?;
        qp::fail(qp, pd);
        Ok(())
    }

    fn check(&self, port: &mut ShmPort) {
        port.check_peers();
    }

    fn qp_state(&self, port: &ShmPort, qp: QpId) -> Result<QpState, ControlError> {
        let qp = port.qps.get(qp.0);
        Ok(qp.ok_or(ControlError::Unknown("queue pair"))?.state)
    }
}
