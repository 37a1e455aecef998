//! The control half of the provider `roce`: sockets, memory and routes for the engine's objects.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use herdwick_fabric::{
    Access, AddressHandle, Capabilities, ConnectError, ControlError, CqId, CqSpec, Device,
    Endpoint, OpenError, PdId, PortLimits, QpId, QpSpec, QpState, RegionId, RegionSpec, Remote,
    Scope, SharedMemory, Source, Transport,
};
use herdwick_mem::{Span, WORD};
use herdwick_roce::{
    Config, Destination, Engine, FlowId, Mtu, Peer, Peering, RD_ATOMIC_MAX, Secret, agree,
};

use crate::{
    capabilities::capabilities,
    capture::Capture,
    endpoint::Place,
    gso::{FlowState, SendHalf},
    memory::RegisteredMemory,
    misrouted::Misrouted,
    options::RoceOptions,
    path::{NetworkPath, any_port, reached},
    port::{RocePort, route},
    socket::{self, ReceiveBuffers, Socket},
};

/// The UDP port of RoCEv2.
pub const UDP_PORT: u16 = 4791;
/// Maximum sockets that share one address: the filter that steers packets reads one byte.
pub const SHARDS_MAX: usize = 256;
/// Maximum source ports of a client: one for each socket of its server.
const SOURCES_MAX: usize = 32;
/// The remote address of the first byte of a region.
const ZERO_BASED: u64 = 0;

/// A software RNIC on a UDP port.
#[derive(Clone, Debug)]
pub struct RoceDevice(Arc<DeviceShared>);

#[derive(Debug)]
struct DeviceShared {
    options: RoceOptions,
    capabilities: Capabilities,
    local: SocketAddr,
    /// Maximum payload of a datagram, and of a connection's packet as endpoints encode it.
    datagram: Mtu,
    offer: Mtu,
    /// Resources of the ports that are not open yet.
    parts: Mutex<VecDeque<PortParts>>,
}

/// The resources of a port.
#[derive(Debug)]
struct PortParts {
    shard: u16,
    socket: Socket,
    misrouted: Misrouted,
}

impl RoceDevice {
    /// Binds the sockets of all ports of the device.
    ///
    /// # Errors
    /// The address is taken or not ours, there are no shards or too many, or the system refuses a
    /// socket or the filter that steers.
    pub fn bind(options: RoceOptions) -> io::Result<Self> {
        if options.shards == 0 || options.shards > SHARDS_MAX {
            let message = format!("a port is shared by 1 to {SHARDS_MAX} sockets");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let shared = options.shards > 1;
        // The first socket does not share the port until it is bound to it: so it fails where a
        // socket of another device is bound, one that shares its port included.
        let first = socket_of(&options, options.address, false)?;
        let local = first.local();
        if shared {
            // From here on the others can join; sockets of other users cannot (SO_REUSEPORT).
            first.share()?;
        }
        let others = (1..options.shards).map(|_| socket_of(&options, local, true));
        let sockets = std::iter::once(Ok(first)).chain(others);
        let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
        if shared {
            // After all are bound, so that the indexes in the group are those of `sockets`.
            sockets[0].steer(options.shards)?;
        }
        let misrouted = Misrouted::between(options.shards);
        let parts = (0..).zip(sockets).zip(misrouted);
        let parts = parts.map(|((shard, socket), misrouted)| PortParts {
            shard,
            socket,
            misrouted,
        });
        // What an Ethernet MTU of 1500 takes, for a peer's path is unknown. The loopback has
        // 65,536.
        let datagram = if local.ip().is_loopback() {
            Mtu::B4096
        } else {
            Mtu::B1024
        };
        let offer = options.mtu.unwrap_or_else(|| {
            // A missing path is an error only when `connect` needs it.
            let path = options
                .peer_host
                .map(|host| NetworkPath::find(local, reached(local, host, UDP_PORT)));
            path.and_then(Result::ok).map_or(datagram, |path| path.mtu)
        });
        Ok(Self(Arc::new(DeviceShared {
            options,
            offer,
            capabilities: capabilities(datagram),
            local,
            datagram,
            parts: Mutex::new(parts.collect()),
        })))
    }

    /// Binds a device with the same options to the same address. The ports of this one have to be closed;
    /// those that were not opened can be opened no more. The captures go on in the same files.
    ///
    /// # Errors
    /// As of [`Self::bind`].
    pub fn bind_again(&self) -> io::Result<Self> {
        let parts = self.0.parts.lock();
        // Sockets that were not opened hold the address; the new device could not bind to it.
        parts.unwrap_or_else(PoisonError::into_inner).clear();
        Self::bind(RoceOptions {
            address: self.0.local,
            capture_appends: true,
            ..self.0.options.clone()
        })
    }

    /// Returns the address that the device is bound to.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.0.local
    }

    /// Returns the options that it was bound with.
    #[must_use]
    pub fn options(&self) -> &RoceOptions {
        &self.0.options
    }

    /// Decodes an endpoint. Its address gets the scope of the local one where it is link-local.
    fn place(&self, endpoint: &Endpoint) -> Result<Place, ConnectError> {
        let mut place = Place::read(endpoint, self.0.options.peer_host)?;
        let (host, port) = (place.address.ip(), place.address.port());
        place.address = reached(self.0.local, host, port);
        Ok(place)
    }

    /// Returns the key shared with a peer, from both secrets. Both ends must be keyed, or neither.
    fn key(&self, own: &Secret, peer: &Place) -> Result<Option<Secret>, ConnectError> {
        match (self.0.options.keyed, &peer.secret) {
            (true, Some(other)) => Ok(Some(agree(own, other))),
            (false, None) => Ok(None),
            (true, None) => Err(ConnectError::Endpoint("it brings nothing to a key")),
            (false, Some(_)) => Err(ConnectError::Endpoint("it wants a key")),
        }
    }

    fn capture(&self, shard: u16) -> io::Result<Option<Capture>> {
        let Some(path) = &self.0.options.capture else {
            return Ok(None);
        };
        let mut path = path.clone();
        // The first port has the name as it was given.
        if shard > 0 {
            path.as_mut_os_string().push(format!(".{shard}"));
        }
        let options = &self.0.options;
        Capture::open(&path, options.origin, options.capture_appends).map(Some)
    }

    fn path(&self, place: &Place) -> Result<NetworkPath, ConnectError> {
        let path = NetworkPath::find(self.0.local, place.address);
        Ok(path.map_err(system("finding a way to the peer"))?)
    }

    /// Registers the route of a flow to a peer. Packets of the flow can be sent from then on.
    fn add_flow(
        &self,
        port: &mut RocePort,
        flow: FlowId,
        place: &Place,
        path: &NetworkPath,
    ) -> Result<(), ConnectError> {
        // A receiving network card merges datagrams of one source port: one port for each socket of
        // a server. With several shards, everything is sent from the main socket.
        let wanted = if self.0.options.shards == 1 {
            usize::from(place.channel) % SOURCES_MAX
        } else {
            0
        };
        // One source port for each channel up to this one: they are bound as peers need them.
        while port.outbox.sockets().len() <= wanted {
            let socket = socket_of(&self.0.options, any_port(self.0.local), false)
                .map_err(system("binding a source port"))?;
            port.outbox.add_socket(socket);
        }
        let source = port.outbox.sockets()[wanted].local().port();
        let from = SocketAddr::new(path.from, source);
        // A socket bound to one address sends from it: only others need the source given.
        let told = self.0.local.ip().is_unspecified().then_some(path.from);
        let to = socket::Destination::new(place.address, told);
        let route = route(from, place.address);
        port.outbox
            .add_flow(FlowState::new(flow, wanted, route, to));
        Ok(())
    }
}

/// Binds a socket for packets of a device with these options.
fn socket_of(options: &RoceOptions, address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::bind(address, shared)?;
    if options.ecn {
        socket.mark_ecn_capable()?;
    }
    Ok(socket)
}

/// The path has less room than the packets that both ends agreed on.
const NARROW: ConnectError = ConnectError::Endpoint(
    "the path to it has no room for the packets that it expects; raise the MTU on the way",
);

fn peer_at(place: &Place) -> Peer {
    Peer {
        addr: place.address,
        channel: place.channel,
    }
}

/// Checks that the endpoint has the same transport.
fn of(transport: Transport, place: &Place) -> Result<(), ConnectError> {
    if place.transport == transport {
        Ok(())
    } else {
        Err(ConnectError::Transport(place.transport))
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ControlError {
    move |source| ControlError::System { what, source }
}

impl Device for RoceDevice {
    type Port = RocePort;

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn open_port(&self, limits: &PortLimits) -> Result<RocePort, OpenError> {
        let refused = |what| move |source| OpenError::System { what, source };
        let mut parts = self.0.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.pop_front().ok_or(OpenError::Limit {
            what: "ports of this device",
            asked: self.0.options.shards + 1,
            allowed: self.0.options.shards,
        })?;
        let capture = self.capture(parts.shard);
        let capture = capture.map_err(refused("writing the capture"))?;
        // From the system: peers must not predict numbers and keys.
        let mut seed = [0; 16];
        getrandom::fill(&mut seed)
            .map_err(|error| refused("drawing numbers")(io::Error::other(error)))?;
        let config = Config {
            shard: parts.shard.into(),
            shards: self.0.options.shards as u32,
            limits: limits.clone(),
            // What the engine accepts; what is sent is agreed for each connection.
            mtu: Mtu::B4096,
            datagram: self.0.datagram,
            ecn: self.0.options.ecn,
            ..Config::default()
        };
        Ok(RocePort {
            engine: Engine::new(config, seed),
            regions: RegisteredMemory::default(),
            outbox: SendHalf::new(parts.socket, capture),
            misrouted: parts.misrouted,
            shard: parts.shard,
            inbox: ReceiveBuffers::new(),
            local: self.0.local,
            truncated: 0,
        })
    }

    fn create_pd(&self, port: &mut RocePort) -> Result<PdId, ControlError> {
        port.engine.create_pd()
    }

    fn destroy_pd(&self, port: &mut RocePort, pd: PdId) -> Result<(), ControlError> {
        port.engine.destroy_pd(pd)?;
        // The engine drops what lived in the domain; its memory and routes are here.
        port.sweep();
        Ok(())
    }

    fn allocate_region(
        &self,
        port: &mut RocePort,
        pd: PdId,
        spec: &RegionSpec,
    ) -> Result<RegionId, ControlError> {
        // Spans are whole words.
        let len = spec.len.next_multiple_of(WORD);
        let span = Span::anonymous(len).map_err(system("allocating memory"))?;
        let spec = RegionSpec {
            len,
            ..spec.clone()
        };
        let region = port.engine.register(pd, &spec, ZERO_BASED)?;
        port.regions.insert(region, span);
        Ok(region)
    }

    fn register_shared(
        &self,
        port: &mut RocePort,
        pd: PdId,
        memory: &SharedMemory,
        access: Access,
        scope: Scope,
    ) -> Result<RegionId, ControlError> {
        memory.may_grant(access)?;
        let len = memory.region_len();
        let spec = RegionSpec { len, access, scope };
        let region = port.engine.register(pd, &spec, ZERO_BASED)?;
        let (span, windows) = (memory.span().clone(), memory.windows());
        port.regions.insert_with(region, span, windows);
        Ok(region)
    }

    fn free_region(&self, port: &mut RocePort, region: RegionId) -> Result<(), ControlError> {
        port.engine.deregister(region)?;
        port.sweep();
        Ok(())
    }

    fn remote(&self, port: &RocePort, region: RegionId) -> Result<Remote, ControlError> {
        port.engine.remote(region)
    }

    fn create_cq(&self, port: &mut RocePort, spec: &CqSpec) -> Result<CqId, ControlError> {
        port.engine.create_cq(spec)
    }

    fn destroy_cq(&self, port: &mut RocePort, cq: CqId) -> Result<(), ControlError> {
        port.engine.destroy_cq(cq)
    }

    fn create_qp(&self, port: &mut RocePort, spec: &QpSpec) -> Result<QpId, ControlError> {
        port.engine.create_qp(spec)
    }

    fn destroy_qp(&self, port: &mut RocePort, qp: QpId) -> Result<(), ControlError> {
        port.engine.destroy_qp(qp)?;
        port.sweep();
        Ok(())
    }

    fn endpoint(&self, port: &RocePort, qp: QpId) -> Result<Endpoint, ControlError> {
        let endpoint = port.engine.endpoint(qp)?;
        let place = Place {
            transport: endpoint.transport,
            channel: port.shard,
            qpn: endpoint.qpn,
            psn: endpoint.psn,
            qkey: endpoint.qkey,
            address: self.0.local,
            mtu: match endpoint.transport {
                Transport::Rc | Transport::Uc => self.0.offer,
                Transport::Ud => endpoint.mtu,
            },
            reads: match endpoint.transport {
                Transport::Rc => RD_ATOMIC_MAX,
                Transport::Uc | Transport::Ud => 0,
            },
            // A secret in an endpoint demands a key, so an unkeyed end does not show one.
            secret: self.0.options.keyed.then_some(endpoint.secret),
        };
        Ok(place.endpoint())
    }

    fn source(&self, peer: &Endpoint) -> Result<Source, ConnectError> {
        let place = self.place(peer)?;
        of(Transport::Ud, &place)?;
        Ok(Source { qpn: place.qpn })
    }

    fn connect(&self, port: &mut RocePort, qp: QpId, peer: &Endpoint) -> Result<(), ConnectError> {
        let place = self.place(peer)?;
        let endpoint = port.engine.endpoint(qp)?;
        of(endpoint.transport, &place)?;
        // Before the engine connects: an error must leave the queue pair as it was.
        let (path, mtu) = (self.path(&place)?, self.0.offer.min(place.mtu));
        // The peer relies on both offers only, so this end cannot choose smaller packets.
        if path.mtu < mtu {
            return Err(NARROW);
        }
        let peering = Peering {
            peer: peer_at(&place),
            qpn: place.qpn,
            psn: place.psn,
            mtu,
            rd_atomic: place.reads.min(RD_ATOMIC_MAX),
            // UDP sources can be forged: one packet with a false rkey must not end a client's
            // connection.
            refusals_are_fatal: false,
            key: self.key(&endpoint.secret, &place)?,
        };
        let flow = port.engine.connect(qp, &peering)?;
        self.add_flow(port, flow, &place, &path)
    }

    fn create_address(
        &self,
        port: &mut RocePort,
        qp: QpId,
        peer: &Endpoint,
    ) -> Result<AddressHandle, ConnectError> {
        let place = self.place(peer)?;
        of(Transport::Ud, &place)?;
        let path = self.path(&place)?;
        // Datagrams are not split, so the peer has to take the largest one.
        if path.mtu.min(place.mtu) < self.0.datagram {
            return Err(NARROW);
        }
        let to = Destination {
            peer: peer_at(&place),
            qpn: place.qpn,
            qkey: place.qkey,
            key: self.key(&port.engine.endpoint(qp)?.secret, &place)?,
        };
        let (address, flow) = port.engine.create_address(qp, &to)?;
        self.add_flow(port, flow, &place, &path)?;
        Ok(address)
    }

    fn accept_from(
        &self,
        port: &mut RocePort,
        qp: QpId,
        peer: &Endpoint,
    ) -> Result<Option<AddressHandle>, ConnectError> {
        let keyed = self.0.options.keyed;
        // Without keys any sender with the Q_Key is accepted.
        let known = keyed.then(|| self.create_address(port, qp, peer));
        known.transpose()
    }

    fn destroy_address(
        &self,
        port: &mut RocePort,
        address: AddressHandle,
    ) -> Result<(), ControlError> {
        port.engine.destroy_address(address)?;
        port.sweep();
        Ok(())
    }

    fn fail_qp(&self, port: &mut RocePort, qp: QpId) -> Result<(), ControlError> {
        port.engine.fail_qp(qp)
    }

    fn qp_state(&self, port: &RocePort, qp: QpId) -> Result<QpState, ControlError> {
        port.engine.qp_state(qp)
    }

    /// Tells by the host, so that no client directs replies to a third party.
    fn is_at(&self, _: &RocePort, _: PdId, ends: &[&Endpoint], host: Option<IpAddr>) -> bool {
        // An address that was left open is no address of `host`.
        let named = |end: &&Endpoint| Some(Place::read(end, None).ok()?.address.ip());
        host.is_some() && (ends.iter()).all(|end| named(end).map(|ip| ip.to_canonical()) == host)
    }
}

#[cfg(test)]
mod tests {
    use herdwick_fabric::Port;

    use super::*;

    #[test]
    fn repeated_leases_leave_nothing_behind() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let device = RoceDevice::bind(RoceOptions::new(address)).expect("a port");
        let mut port = device.open_port(&PortLimits::default()).expect("a port");
        let spec = RegionSpec {
            len: 64,
            access: Access::WRITE,
            scope: Scope::Pd,
        };
        let mut before = None;
        for round in 0..1000 {
            let pd = device.create_pd(&mut port).expect("a domain");
            let region = device.allocate_region(&mut port, pd, &spec);
            let region = region.expect("memory");
            assert!(port.region(region).is_some());
            if let Some(before) = before.replace(region) {
                assert!(port.region(before).is_none(), "its memory is freed");
            }
            device.destroy_pd(&mut port, pd).expect("a domain");
            assert_eq!(port.regions.places(), 1, "after {} leases", round + 1);
        }
    }
}
