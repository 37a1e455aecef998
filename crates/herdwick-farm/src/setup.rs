//! The objects of both ends on a port.
//!
//! ```text
//!            client                                       server
//! GETs       RC queue pair that READs                ->   RC queue pair of each client; the table, which
//!                                                         all clients may READ and none may WRITE
//! messages   RC queue pair that WRITEs requests      ->   a ring for each client, its own alone
//!            a ring for replies                      <-   the same queue pair WRITEs replies
//! ```

use std::time::Duration;

use herdwick_fabric::{
    Access, ControlError, CqId, CqSpec, Device, Endpoint, PdId, PdRoom, PdTicket, Port, PortLimits,
    QpId, QpSpec, RegionId, RegionSpec, Remote, Scope, SharedMemory, Sharing, Transport,
};
use herdwick_read::{ReadCounters, Reader, ReaderError, ReaderOptions};
use herdwick_request::HashKey;

use crate::{
    ClientId,
    client::{ClientSide, Messages},
    layout::{Geometry, GeometryError, Terms},
    message::{Ring, WINDOW_MAX},
    probe::View,
    server::{Attached, ServerSide, send_depth},
    table::Table,
};

/// Why an end cannot be set up.
pub type SetupError = herdwick_fabric::SetupError<TermsError>;

/// FaRM-KV refuses its terms, the fabric or a client.
#[derive(Debug, thiserror::Error)]
pub enum TermsError {
    /// The table cannot have these dimensions.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A ring cannot have this many cells.
    #[error("a window of {0} messages: give 1 to {WINDOW_MAX}")]
    Window(usize),
    /// The fabric lacks what a system of READs needs.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// As many clients are in service as there may be.
    #[error("the server has no room for another client")]
    Clients,
    /// A server cannot have this many clients.
    #[error("at most {0} clients: give 1 to {CLIENTS_MAX}")]
    ClientsMax(usize),
}

impl From<TermsError> for SetupError {
    fn from(error: TermsError) -> Self {
        Self::Refused(error)
    }
}

/// Most clients of a server.
pub const CLIENTS_MAX: usize = 4096;

/// Options of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTerms {
    /// The table.
    pub table: Terms,
    /// The key that locates items.
    pub hash_key: HashKey,
    /// Most clients at a time, 1 to [`CLIENTS_MAX`].
    pub clients_max: usize,
    /// Messages of each client on their way, 1 to [`WINDOW_MAX`].
    pub window: usize,
}

/// A server's objects on a port, and its machine.
pub struct ServerEnd<P> {
    /// The port.
    pub port: P,
    /// The machine.
    pub side: ServerSide,
    memory: SharedMemory,
    cq: CqId,
    window: usize,
    /// Grants without an admission.
    granted: Vec<PdId>,
    admitted: Vec<(ClientId, Resources)>,
}

/// One client's objects at the server.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    pd: PdId,
    reads: QpId,
    messages: QpId,
    requests: RegionId,
    stage: RegionId,
    table: RegionId,
}

/// What a client needs to know.
#[derive(Debug)]
pub struct Grant {
    /// The table's dimensions.
    pub table: Terms,
    /// The key that locates items.
    pub hash_key: HashKey,
    /// Messages on their way.
    pub window: usize,
    /// Where the table is.
    pub memory: Remote,
    /// Where the client's ring of requests is.
    pub requests: Remote,
    /// The queue pair for READs.
    pub reads: Endpoint,
    /// The queue pair for messages.
    pub messages: Endpoint,
    /// The domain, for the client to join.
    pub domain: PdTicket,
    /// The table in it.
    pub region: PdTicket,
}

/// What the server needs to know of a client.
#[derive(Clone, Copy, Debug)]
pub struct Accept {
    /// Where the ring of replies is.
    pub replies: Remote,
    /// The queue pair for READs.
    pub reads: Endpoint,
    /// The queue pair for messages.
    pub messages: Endpoint,
}

fn window(window: usize) -> Result<usize, TermsError> {
    let fits = (1..=WINDOW_MAX).contains(&window);
    fits.then_some(window).ok_or(TermsError::Window(window))
}

fn connected<D: Device>(
    device: &D,
    port: &mut D::Port,
    (pd, cq, send_depth): (PdId, CqId, usize),
) -> Result<QpId, ControlError> {
    let spec = QpSpec {
        pd,
        transport: Transport::Rc,
        send_cq: cq,
        recv_cq: cq,
        send_depth,
        recv_depth: 0,
    };
    device.create_qp(port, &spec)
}

/// Memory that the peer WRITEs.
const fn writable(len: usize) -> RegionSpec {
    RegionSpec {
        access: Access::WRITE,
        ..RegionSpec::local(len)
    }
}

impl<P: Port> ServerEnd<P> {
    /// Makes a server's end without clients.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open<D: Device<Port = P>>(device: &D, terms: &ServerTerms) -> Result<Self, SetupError> {
        let (geometry, clients) = (
            Geometry::new(terms.table).map_err(TermsError::from)?,
            terms.clients_max,
        );
        if !(1..=CLIENTS_MAX).contains(&clients) {
            return Err(TermsError::ClientsMax(clients).into());
        }
        let window = window(terms.window)?;
        let has = device.capabilities();
        if !has.read || !has.rc {
            return Err(TermsError::Reader(ReaderError::NoRead(has.name)).into());
        }
        let mut port = device.open_port(&PortLimits {
            pds: clients,
            qps: 2 * clients,
            cqs: 1,
            regions: 3 * clients,
            addresses: 0,
        })?;
        let memory = device.allocate_shared(geometry.bytes(), Sharing::ReadOnly)?;
        // The queue pairs that READs come from send nothing, and need a queue all the same.
        let depth = clients * (send_depth(window) + 1);
        let cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let table = Table::new(memory.span().clone(), geometry, terms.hash_key);
        // At most `CLIENTS_MAX`.
        let side = ServerSide::new(table, (clients as u16, window), (cq, has.inline_bytes_max));
        Ok(Self {
            port,
            side,
            memory,
            cq,
            window,
            granted: Vec::new(),
            admitted: Vec::new(),
        })
    }

    /// Makes a client's objects, in a domain of its own, and returns what the client needs to know. The
    /// client holds a place until [`ServerEnd::admit`], and from then on until [`ServerEnd::detach`]; one
    /// that is gone before it was admitted gives it back by [`ServerEnd::withdraw`].
    ///
    /// # Errors
    /// [`SetupError`]; nothing is kept.
    pub fn grant<D: Device<Port = P>>(
        &mut self,
        device: &D,
    ) -> Result<(Resources, Grant), SetupError> {
        if self.granted.len() + self.admitted.len() >= self.side.clients_max() {
            return Err(TermsError::Clients.into());
        }
        let geometry = self.side.table().geometry();
        let room = PdRoom {
            writable: Ring::requests(geometry, self.window).bytes(),
            peer_writable: Ring::replies(geometry, self.window).bytes(),
            recvs: 0,
            peer_recvs: 0,
        };
        let pd = device.create_pd_for(&mut self.port, &room)?;
        let granted = self.resources(device, pd);
        match &granted {
            Ok(_) => self.granted.push(pd),
            Err(_) => device.destroy_pd(&mut self.port, pd)?,
        }
        granted
    }

    /// Gives back what a client was granted that was not admitted, as one that died before. Does nothing
    /// for one that was.
    ///
    /// # Errors
    /// [`SetupError`], of the provider; everything that can be given back is.
    pub fn withdraw<D: Device<Port = P>>(
        &mut self,
        device: &D,
        resources: Resources,
    ) -> Result<(), SetupError> {
        if !self.take_grant(resources.pd) {
            return Ok(());
        }
        self.destroy(device, resources)
    }

    /// Takes a grant off the list; returns whether it was on it.
    fn take_grant(&mut self, pd: PdId) -> bool {
        let place = self.granted.iter().position(|granted| *granted == pd);
        place.map(|place| self.granted.swap_remove(place)).is_some()
    }

    /// Destroys a client's objects, all that can be; returns the first error.
    fn destroy<D: Device<Port = P>>(
        &mut self,
        device: &D,
        resources: Resources,
    ) -> Result<(), SetupError> {
        let port = &mut self.port;
        // All are tried: the first error ends nothing.
        let results = [
            device.destroy_qp(port, resources.messages),
            device.destroy_qp(port, resources.reads),
            device.free_region(port, resources.table),
            // What is left goes with the domain.
            device.destroy_pd(port, resources.pd),
        ];
        Ok(results.into_iter().collect::<Result<(), _>>()?)
    }

    fn resources<D: Device<Port = P>>(
        &mut self,
        device: &D,
        pd: PdId,
    ) -> Result<(Resources, Grant), SetupError> {
        let (port, geometry) = (&mut self.port, *self.side.table().geometry());
        let requests = Ring::requests(&geometry, self.window).bytes();
        let requests = device.allocate_region(port, pd, &writable(requests))?;
        let replies = Ring::replies(&geometry, self.window).bytes();
        let stage = device.allocate_region(port, pd, &RegionSpec::local(replies))?;
        let table = (&self.memory, Access::READ, Scope::Pd);
        let table = device.register_shared(port, pd, table.0, table.1, table.2)?;
        let resources = Resources {
            pd,
            reads: connected(device, port, (pd, self.cq, 1))?,
            messages: connected(device, port, (pd, self.cq, send_depth(self.window)))?,
            requests,
            stage,
            table,
        };
        let grant = Grant {
            table: *geometry.terms(),
            hash_key: self.side.table().hash_key(),
            window: self.window,
            memory: device.remote(port, table)?,
            requests: device.remote(port, requests)?,
            reads: device.endpoint(port, resources.reads)?,
            messages: device.endpoint(port, resources.messages)?,
            domain: device.export_pd(port, pd)?,
            region: device.export_region(port, table)?,
        };
        Ok((resources, grant))
    }

    /// Takes a client into service.
    ///
    /// # Errors
    /// [`SetupError`]; the client's objects are freed. [`ControlError::Unknown`]: the grant was withdrawn,
    /// or admitted before.
    pub fn admit<D: Device<Port = P>>(
        &mut self,
        device: &D,
        resources: Resources,
        peer: &Accept,
    ) -> Result<ClientId, SetupError> {
        if !self.take_grant(resources.pd) {
            return Err(ControlError::Unknown("grant").into());
        }
        let admitted = self.connect(device, resources, peer);
        match &admitted {
            Ok(client) => self.admitted.push((*client, resources)),
            Err(_) => self.destroy(device, resources)?,
        }
        admitted
    }

    fn connect<D: Device<Port = P>>(
        &mut self,
        device: &D,
        resources: Resources,
        peer: &Accept,
    ) -> Result<ClientId, SetupError> {
        let port = &mut self.port;
        device.connect(port, resources.reads, &peer.reads)?;
        device.connect(port, resources.messages, &peer.messages)?;
        let span = |region| {
            port.region(region)
                .cloned()
                .ok_or(ControlError::Unknown("region"))
        };
        let attached = Attached {
            qp: resources.messages,
            requests: span(resources.requests)?,
            replies: peer.replies,
            stage: (resources.stage, span(resources.stage)?),
        };
        Ok(self.side.attach(attached).ok_or(TermsError::Clients)?)
    }

    /// Ends a client: its ring, its queue pairs and its way to the table are given back.
    ///
    /// # Errors
    /// [`SetupError`], of the provider; everything that can be given back is.
    pub fn detach<D: Device<Port = P>>(
        &mut self,
        device: &D,
        client: ClientId,
    ) -> Result<(), SetupError> {
        let place = self.admitted.iter().position(|(id, _)| *id == client);
        let Some(place) = place else {
            return Ok(());
        };
        self.side.detach(client);
        let (_, resources) = self.admitted.swap_remove(place);
        self.destroy(device, resources)
    }
}

/// Options of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTerms {
    /// GETs on their way.
    pub lookups: usize,
    /// READs on their way.
    pub outstanding: usize,
    /// Times that a GET begins again before it is sent as a message.
    pub retries: u32,
    /// How long a reply may take before the server counts as lost.
    pub deadline: Duration,
}

impl Default for ClientTerms {
    fn default() -> Self {
        Self {
            lookups: 32,
            outstanding: 32,
            retries: 16,
            deadline: Duration::from_secs(5),
        }
    }
}

/// A client's objects on a port, and its machine.
pub struct ClientEnd<P> {
    /// The port.
    pub port: P,
    /// The machine.
    pub side: ClientSide,
}

impl<P: Port> ClientEnd<P> {
    /// Makes a client's end from a grant, and returns what the server needs to know. Calls may begin when
    /// the server has admitted it.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open<D: Device<Port = P>>(
        device: &D,
        terms: &ClientTerms,
        grant: Grant,
    ) -> Result<(Self, Accept), SetupError> {
        let (geometry, window) = (
            Geometry::new(grant.table).map_err(TermsError::from)?,
            window(grant.window)?,
        );
        let mut port = device.open_port(&PortLimits {
            pds: 1,
            qps: 2,
            cqs: 2,
            regions: 3,
            addresses: 0,
        })?;
        let pd = device.import_pd(&mut port, grant.domain)?;
        device.import_region(&mut port, pd, grant.region)?;
        let has = device.capabilities();
        let options = ReaderOptions {
            lookups: terms.lookups,
            outstanding: terms.outstanding,
            step_bytes: geometry.read_bytes_max(),
            retries: terms.retries,
            ..ReaderOptions::default()
        };
        let reader = Reader::create(device, &mut port, pd, &options).map_err(TermsError::from)?;
        let depth = send_depth(window);
        let cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let qp = connected(device, &mut port, (pd, cq, depth))?;
        let replies = writable(Ring::replies(&geometry, window).bytes());
        let (region, replies) = device.allocate_memory(&mut port, pd, &replies)?;
        let stage = RegionSpec::local(Ring::requests(&geometry, window).bytes());
        let stage = device.allocate_memory(&mut port, pd, &stage)?;
        device.connect(&mut port, reader.qp(), &grant.reads)?;
        device.connect(&mut port, qp, &grant.messages)?;
        let accept = Accept {
            replies: device.remote(&port, region)?,
            reads: device.endpoint(&port, reader.qp())?,
            messages: device.endpoint(&port, qp)?,
        };
        let view = View {
            geometry,
            hash_key: grant.hash_key,
            ordered_read: has.ordered_read,
        };
        let messages = Messages {
            qp,
            cq,
            requests: grant.requests,
            replies,
            stage,
            inline_bytes_max: has.inline_bytes_max,
            window,
            deadline: terms.deadline,
        };
        let side = ClientSide::new(view, grant.memory, (reader, terms.lookups), messages);
        Ok((Self { port, side }, accept))
    }

    /// Returns the counters of GETs.
    #[must_use]
    pub fn read_counters(&self) -> &ReadCounters {
        self.side.read_counters()
    }
}

impl<P> std::fmt::Debug for ServerEnd<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerEnd")
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}

impl<P> std::fmt::Debug for ClientEnd<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientEnd")
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}
