//! The server's objects on a port: its tables, its clients, and the growth of the table.

use std::{sync::mpsc::Sender, time::Duration};

use herdwick_fabric::{
    Access, ControlError, CqId, CqSpec, Device, PdId, PortLimits, QpId, QpSpec, RegionId, Scope,
    SharedMemory, Sharing, Transport,
};
use herdwick_read::{ReaderError, RecvBuffers};
use herdwick_request::HashKey;

use super::{
    Accept, CLIENTS_MAX, Grant, OptionsError, SetupError, TableGrant, buffers,
    pace::{GrowthRetry, slice},
};
use crate::{
    ClientId, Server,
    growth::GrowthState,
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
    /// Time for which a PUT that needs a larger table waits for clients that still READ the table
    /// before the last one; then these are dropped.
    pub lag: Duration,
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
    pub(super) clients: Vec<Attached>,
    /// Where clients of this process learn of a table that has moved.
    pub(super) handovers: Vec<(ClientId, Sender<TableGrant>)>,
    /// The larger table that is being made.
    larger: Option<SharedMemory>,
    /// Since when a PUT has waited for a client to leave the old table.
    lags_since: Option<Duration>,
    /// Passes until the table may try to grow again, and how many it will be after the next failure.
    retry: GrowthRetry,
}

#[derive(Clone, Copy)]
struct Cqs {
    recv: CqId,
    send: CqId,
    /// Of the queue pairs for READs: nothing completes there.
    idle: CqId,
}

/// The objects of one client.
pub(super) struct Attached {
    pub(super) id: ClientId,
    pub(super) pd: PdId,
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
            // 0, which is refused, for a number beyond this host's memory.
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
            // At most `CLIENTS_MAX`.
            server: Server::new(store, clients as u16, [cqs.recv, cqs.send], inline_max),
            device,
            port,
            options,
            cqs,
            table,
            extents,
            clients: Vec::with_capacity(clients),
            larger: None,
            lags_since: None,
            handovers: Vec::new(),
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
        // Behind the attachment, which has made what it names.
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
        self.server.connected(id);
        Ok(())
    }

    /// Serves what has arrived, lets the table grow when it has to, and drops clients that failed.
    /// Returns the number of messages that arrived. The caller drives the port.
    pub fn pass(&mut self, now: Duration) -> usize {
        let before = self.server.store.keys();
        let arrived = self.server.pass(&mut self.port);
        // DELETEs may have left fewer.
        let stored = self.server.store.keys().saturating_sub(before) as u64;
        self.grow(now, stored);
        if arrived > 0 || !self.clients.is_empty() {
            self.sweep();
        }
        arrived
    }

    /// Goes on with a move of the table, or begins one, in a pass that stored so many keys.
    fn grow(&mut self, now: Duration, stored: u64) {
        let slice = slice(stored, self.server.put_waits);
        // Until the old table is marked whole, no larger one is begun.
        if self.server.store.retire(slice) {
            return;
        }
        match self.server.store.grow(slice) {
            Some(GrowthState::UnderWay) => {}
            Some(GrowthState::Complete) => self.finish_growth(),
            Some(GrowthState::Full) => self.growth_failed(),
            None if self.wants_growth(now) => self.begin_growth(),
            None => {}
        }
    }

    fn wants_growth(&mut self, now: Duration) -> bool {
        if self.server.store.buckets() >= self.options.buckets_max {
            self.server.may_grow = false;
            return false;
        }
        if !self.server.may_grow {
            self.server.may_grow = self.retry.is_due();
        }
        let Server { store, .. } = &self.server;
        let loaded = store.buckets() * u64::from(self.options.load_percent) / 100;
        let wanted = self.server.put_waits || store.keys() as u64 >= loaded;
        if !self.server.may_grow || !wanted {
            return false;
        }
        // There is one old table at a time. A client that has not left it holds up growth, but not for
        // ever if a PUT waits.
        let lags = self.clients.iter().any(|client| client.old_table.is_some());
        if !lags || !self.server.put_waits {
            self.lags_since = None;
            return !lags;
        }
        let since = *self.lags_since.get_or_insert(now);
        now.saturating_sub(since) > self.options.lag
    }

    /// Begins to copy the table to a memory of twice the size.
    fn begin_growth(&mut self) {
        let buckets = self.server.store.buckets();
        let larger = (2 * buckets).min(self.options.buckets_max);
        let memory = allocate(&self.device, Store::table_bytes(larger));
        match memory {
            Ok(memory) => {
                self.server.store.begin_growth(memory.span().clone());
                self.larger = Some(memory);
            }
            Err(_) => self.growth_failed(),
        }
    }

    /// Until it is tried again, PUTs of keys that find no place are refused.
    fn growth_failed(&mut self) {
        self.server.store.abandon_growth();
        (self.larger, self.lags_since) = (None, None);
        (self.server.put_waits, self.server.may_grow) = (false, false);
        self.retry.failed();
    }

    /// Goes on with the larger table. After an error clients READ it where it was.
    fn finish_growth(&mut self) {
        let Some(memory) = self.larger.take() else {
            return;
        };
        let Ok(registered) = self.register_for_followers(&memory) else {
            return self.growth_failed();
        };
        // After the registration, which may fail.
        self.drop_laggards();
        for (client, table) in self.clients.iter_mut().zip(registered) {
            client.old_table = Some(std::mem::replace(&mut client.table, table));
        }
        self.table = memory;
        self.lags_since = None;
        self.retry = GrowthRetry::FIRST;
        self.server.moved();
        self.hand_over();
    }

    /// Gives clients of this process the table's new place.
    // Taken out, since `table_of` borrows all of `self`.
    fn hand_over(&mut self) {
        let handovers = std::mem::take(&mut self.handovers);
        for (id, handover) in &handovers {
            // A client that is not given it is served by SEND, and dropped when the table moves again.
            if let Ok(grant) = self.table_of(*id) {
                let _ = handover.send(grant);
            }
        }
        self.handovers = handovers;
    }

    /// Registers a table in the domain of each client that has left the one before the last, or in none.
    fn register_for_followers(
        &mut self,
        memory: &SharedMemory,
    ) -> Result<Vec<RegionId>, ControlError> {
        let Self {
            device,
            port,
            clients,
            ..
        } = self;
        let mut registered = Vec::with_capacity(clients.len());
        for client in clients.iter().filter(|client| client.old_table.is_none()) {
            match device.register_shared(port, client.pd, memory, Access::READ, Scope::Pd) {
                Ok(region) => registered.push(region),
                Err(error) => {
                    for region in registered {
                        // The error that is returned is the first one.
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
                        // A region that is not freed goes with the client's domain.
                        let _ = self.device.free_region(&mut self.port, old);
                    }
                }
                Some(_) => {}
            }
        }
        // One in a pass: its removal changes the list.
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
        let client = self.clients.remove(index);
        self.handovers.retain(|(other, _)| *other != id);
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
