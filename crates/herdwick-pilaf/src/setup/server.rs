//! The server's objects on a port: its tables, its clients, and the growth of the table.

use herdwick_fabric::{
    Access, ControlError, CqId, CqSpec, Device, PdId, PortLimits, QpId, QpSpec, RegionId, Scope,
    SharedMemory, Sharing, Transport,
};
use herdwick_read::{ReaderError, RecvBuffers};
use herdwick_request::HashKey;

use super::{Accept, CLIENTS_MAX, Grant, OptionsError, SetupError, TableGrant, buffers};
use crate::{
    ClientId, Server,
    judge::{ExtentsView, TableView},
    message::{CREDITS, HEAD_BYTES, MESSAGE_BYTES_MAX, PARTS_MAX},
    server::{PeerObjects, REPLY_DEPTH},
    store::Store,
};

/// Sizes of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Buckets at the start.
    pub buckets: u64,
    /// Buckets to which the table may grow.
    pub buckets_max: u64,
    /// Share of buckets in use at which it grows, in percent; up to 90. The paper's is 75.
    pub load_percent: u8,
    /// Passes for which a PUT that needs a larger table waits for clients that still READ the table
    /// before the last one; then these are dropped.
    pub lag_passes: u32,
    /// Memory of extents, in bytes.
    pub extent_bytes: usize,
    /// Most clients, up to [`CLIENTS_MAX`].
    pub clients: usize,
    /// The key by which keys are hashed: a secret of the server and its clients, drawn at random.
    pub hash_key: HashKey,
}

/// A server's port and machine.
pub struct ServerEnd<D: Device> {
    /// The device.
    pub device: D,
    /// The port, for domains.
    pub port: D::Port,
    server: Server,
    options: ServerOptions,
    cqs: Cqs,
    table: SharedMemory,
    extents: SharedMemory,
    clients: Vec<Attached>,
    /// Passes since a PUT has waited for a client to leave the old table.
    lagged: u32,
    /// Passes until the table may try to grow again, and how many it will be after the next failure.
    retry: GrowthRetry,
}

/// Growth that failed is tried again later, after twice as many passes each time: what was short may be
/// there again, but an attempt copies the table.
#[derive(Clone, Copy, Debug)]
struct GrowthRetry {
    left: u32,
    next: u32,
}

/// Passes after the first failure, and at most.
const RETRY_PASSES: u32 = 1 << 12;
const RETRY_PASSES_MAX: u32 = 1 << 30;

impl GrowthRetry {
    const FIRST: Self = Self {
        left: 0,
        next: RETRY_PASSES,
    };

    fn failed(&mut self) {
        self.left = self.next;
        self.next = (2 * self.next).min(RETRY_PASSES_MAX);
    }

    /// Counts a pass; returns whether it is time.
    fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

#[derive(Clone, Copy)]
struct Cqs {
    recv: CqId,
    send: CqId,
    /// Of the queue pairs for READs: nothing completes there.
    idle: CqId,
}

/// The objects of one client.
struct Attached {
    id: ClientId,
    pd: PdId,
    requests: QpId,
    reads: QpId,
    table: RegionId,
    /// The table before, until the client has left it.
    old_table: Option<RegionId>,
    extents: RegionId,
    buffers: [RegionId; 2],
}

impl<D: Device> ServerEnd<D> {
    /// Opens a port, and makes an empty store.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open(device: D, options: ServerOptions) -> Result<Self, SetupError> {
        check("clients", options.clients, CLIENTS_MAX)?;
        check("load_percent", options.load_percent.into(), 90)?;
        check(
            "buckets",
            usize::try_from(options.buckets).unwrap_or(0),
            usize::MAX,
        )?;
        let has = device.capabilities();
        if !has.read || !has.rc {
            return Err(OptionsError::Read(ReaderError::NoRead(has.name)).into());
        }
        if has.inline_bytes_max < HEAD_BYTES {
            return Err(OptionsError::Inline(has.name).into());
        }
        let inline_max = has.inline_bytes_max;
        let clients = options.clients;
        let mut port = device.open_port(&PortLimits {
            pds: clients,
            qps: 2 * clients,
            cqs: 3,
            regions: 5 * clients,
            addresses: 0,
        })?;
        let cqs = Cqs {
            recv: device.create_cq(
                &mut port,
                &CqSpec {
                    depth: clients * CREDITS,
                },
            )?,
            send: device.create_cq(
                &mut port,
                &CqSpec {
                    depth: clients * REPLY_DEPTH,
                },
            )?,
            idle: device.create_cq(&mut port, &CqSpec { depth: clients })?,
        };
        let table = allocate(&device, Store::table_bytes(options.buckets))?;
        let extents = allocate(&device, options.extent_bytes)?;
        let (span, extent_span) = (table.span().clone(), extents.span().clone());
        let store = Store::new(span, extent_span, options.hash_key);
        Ok(Self {
            server: Server::new(store, clients as u16, [cqs.recv, cqs.send], inline_max),
            device,
            port,
            options,
            cqs,
            table,
            extents,
            clients: Vec::with_capacity(clients),
            lagged: 0,
            retry: GrowthRetry::FIRST,
        })
    }

    /// Returns the machine.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the data, to be filled before there are clients.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.server.store
    }

    /// Makes the objects for a client whose domain is `pd`.
    ///
    /// # Errors
    /// [`SetupError`]; objects that were made are left in the domain, and go with it.
    pub fn admit(&mut self, pd: PdId) -> Result<(ClientId, Grant), SetupError> {
        let id = self.server.next_id().ok_or(OptionsError::Clients)?;
        let Self {
            device, port, cqs, ..
        } = self;
        let qp = |send_cq, recv_cq, send_depth, recv_depth| QpSpec {
            pd,
            transport: Transport::Rc,
            send_cq,
            recv_cq,
            send_depth,
            recv_depth,
        };
        let requests = qp(cqs.send, cqs.recv, REPLY_DEPTH, CREDITS);
        let requests = device.create_qp(port, &requests)?;
        let reads = device.create_qp(port, &qp(cqs.idle, cqs.idle, 1, 0))?;
        let arrived = device.allocate_memory(port, pd, &buffers(CREDITS))?;
        let replies = device.allocate_memory(port, pd, &buffers(PARTS_MAX))?;
        let register = |port: &mut D::Port, memory| {
            device.register_shared(port, pd, memory, Access::READ, Scope::Pd)
        };
        let table = register(port, &self.table)?;
        let extents = register(port, &self.extents)?;
        let attached = Attached {
            id,
            pd,
            requests,
            reads,
            table,
            old_table: None,
            extents,
            buffers: [arrived.0, replies.0],
        };
        let objects = PeerObjects {
            qp: requests,
            requests: RecvBuffers::new(requests, arrived, MESSAGE_BYTES_MAX),
            replies,
        };
        self.server.attach(port, id, objects)?;
        self.clients.push(attached);
        let grant = self.grant(id);
        if grant.is_err() {
            self.server.detach(id);
            self.clients.retain(|client| client.id != id);
        }
        Ok((id, grant?))
    }

    fn grant(&self, id: ClientId) -> Result<Grant, SetupError> {
        let Self { device, port, .. } = self;
        let client = self.client(id)?;
        Ok(Grant {
            requests: device.endpoint(port, client.requests)?,
            reads: device.endpoint(port, client.reads)?,
            table: self.table_of(id)?,
            extents: ExtentsView {
                extents: device.remote(port, client.extents)?,
                bytes: self.extents.span().len() as u64,
            },
            extents_ticket: device.export_region(port, client.extents)?,
            hash_key: self.options.hash_key,
        })
    }

    fn client(&self, id: ClientId) -> Result<&Attached, SetupError> {
        let mut clients = self.clients.iter();
        let found = clients.find(|client| client.id == id);
        found.ok_or_else(|| ControlError::Unknown("client").into())
    }

    /// Returns the table as it is now, for a client that noticed that it has moved.
    ///
    /// # Errors
    /// The client is gone, or the provider refuses.
    pub fn table_of(&self, id: ClientId) -> Result<TableGrant, SetupError> {
        let region = self.client(id)?.table;
        let view = TableView {
            table: self.device.remote(&self.port, region)?,
            buckets: self.server.store.buckets(),
            generation: self.server.generation,
        };
        let ticket = self.device.export_region(&self.port, region)?;
        Ok(TableGrant { view, ticket })
    }

    /// Connects a client's queue pairs.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn connect(&mut self, id: ClientId, accept: &Accept) -> Result<(), SetupError> {
        let Attached {
            requests, reads, ..
        } = *self.client(id)?;
        self.device
            .connect(&mut self.port, requests, &accept.requests)?;
        self.device.connect(&mut self.port, reads, &accept.reads)?;
        Ok(())
    }

    /// Serves what has arrived, lets the table grow when it has to, and drops clients that failed.
    /// Returns the number of messages that arrived. The caller drives the port.
    pub fn pass(&mut self) -> usize {
        let arrived = self.server.pass(&mut self.port);
        if self.wants_growth() {
            self.grow();
        }
        if arrived > 0 || !self.clients.is_empty() {
            self.sweep();
        }
        arrived
    }

    fn wants_growth(&mut self) -> bool {
        let below_max = self.server.store.buckets() < self.options.buckets_max;
        if !self.server.may_grow && below_max {
            self.server.may_grow = self.retry.is_due();
        }
        let Server { store, .. } = &self.server;
        let loaded = store.buckets() * u64::from(self.options.load_percent) / 100;
        let wanted = self.server.starved || store.keys() as u64 >= loaded;
        if !self.server.may_grow || !wanted {
            return false;
        }
        // There is one old table at a time. A client that has not left it holds up growth, but not for
        // ever if a PUT waits.
        let lags = self.clients.iter().any(|client| client.old_table.is_some());
        if lags && self.server.starved {
            self.lagged += 1;
        }
        let grows = !lags || self.lagged > self.options.lag_passes;
        if grows {
            self.lagged = 0;
        }
        grows
    }

    /// Moves the table to a memory of twice the size.
    fn grow(&mut self) {
        let buckets = self.server.store.buckets();
        let larger = (2 * buckets).min(self.options.buckets_max);
        self.server.starved = false;
        // While there is no memory for it, PUTs of new keys are refused.
        let grown = larger > buckets && self.move_to(larger).is_ok();
        self.server.may_grow = grown;
        if grown {
            self.retry = GrowthRetry::FIRST;
        } else {
            self.retry.failed();
        }
    }

    /// Moves the table to a memory of `buckets` buckets. After an error clients READ it where it was.
    fn move_to(&mut self, buckets: u64) -> Result<(), SetupError> {
        let memory = allocate(&self.device, Store::table_bytes(buckets))?;
        let copy = self.server.store.copy_table(memory.span().clone());
        let copy = copy.ok_or(ControlError::Limit {
            what: "keys of the table",
            limit: 0,
        })?;
        self.drop_laggards();
        let registered = self.register_for_all(&memory)?;
        for (client, table) in self.clients.iter_mut().zip(registered) {
            client.old_table = Some(std::mem::replace(&mut client.table, table));
        }
        let server = &mut self.server;
        server.store.move_to(copy);
        server.generation = server.generation.wrapping_add(1);
        server.count_growth();
        self.table = memory;
        Ok(())
    }

    /// Registers a table in the domain of each client, or in none.
    fn register_for_all(&mut self, memory: &SharedMemory) -> Result<Vec<RegionId>, ControlError> {
        let Self {
            device,
            port,
            clients,
            ..
        } = self;
        let mut registered = Vec::with_capacity(clients.len());
        for client in clients {
            match device.register_shared(port, client.pd, memory, Access::READ, Scope::Pd) {
                Ok(region) => registered.push(region),
                Err(error) => {
                    for region in registered {
                        let _ = device.free_region(port, region);
                    }
                    return Err(error);
                }
            }
        }
        Ok(registered)
    }

    /// Drops the clients that still READ the table before the last one.
    fn drop_laggards(&mut self) {
        while let Some(lags) = self
            .clients
            .iter()
            .find(|client| client.old_table.is_some())
        {
            self.server.count_failed();
            self.remove(lags.id);
        }
    }

    /// Frees the tables that no client READs any more, and what failed clients held.
    fn sweep(&mut self) {
        let current = self.server.generation;
        let mut failed = None;
        for client in &mut self.clients {
            match self.server.generation_of(client.id) {
                None => failed = Some(client.id),
                Some(generation) if generation == current => {
                    if let Some(old) = client.old_table.take() {
                        let _ = self.device.free_region(&mut self.port, old);
                    }
                }
                Some(_) => {}
            }
        }
        if let Some(id) = failed {
            self.server.count_failed();
            self.remove(id);
        }
    }

    /// Ends a client's session: its queue pairs, regions and domain are destroyed.
    pub fn remove(&mut self, id: ClientId) {
        let Some(index) = self.clients.iter().position(|client| client.id == id) else {
            return;
        };
        let client = self.clients.swap_remove(index);
        self.server.detach(id);
        let Self { device, port, .. } = self;
        // What is left is destroyed with the domain.
        let _ = device.destroy_qp(port, client.requests);
        let _ = device.destroy_qp(port, client.reads);
        let [arrived, replies] = client.buffers;
        let regions = [client.table, client.extents, arrived, replies];
        for region in regions.into_iter().chain(client.old_table) {
            let _ = device.free_region(port, region);
        }
        let _ = device.destroy_pd(port, client.pd);
    }

    /// Returns the number of clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }
}

fn allocate<D: Device>(device: &D, bytes: usize) -> Result<SharedMemory, ControlError> {
    device.allocate_shared(bytes, Sharing::ReadOnly)
}

fn check(what: &'static str, asked: usize, max: usize) -> Result<(), OptionsError> {
    if (1..=max).contains(&asked) {
        return Ok(());
    }
    Err(OptionsError::Option { what, asked, max })
}
