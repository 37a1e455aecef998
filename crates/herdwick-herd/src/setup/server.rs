//! The worker's objects on a port, and a client's admission in steps: memory, grant, connection,
//! service. A failed step leaves nothing that outlives the client's domain.

use std::{fmt, os::fd::OwnedFd, time::Duration};

use herdwick_fabric::{
    Access, AddressHandle, ControlError, CqId, CqSpec, Device, Local, PdId, PdRoom, PdTicket, Port,
    PortLimits, QpId, QpSpec, QpState, RegionId, RegionSpec, Remote, Rkey, Scope, SharedMemory,
    Source, Transport,
};
use herdwick_mem::Span;

use super::{MachineError, SetupError};
use crate::{
    Announce, BATCH, Chunk, ClientId, LineWatch, RECV_SLACK, REPLY_QPS_MAX, RequestPath,
    SEND_DEPTH_MIN, ServerOptions, ServerSide, UdQueue, WriteNotify,
    hello::{StoreGrant, WorkerAccept, WorkerGrant},
    wire::{Epoch, Window},
};

/// Depth of each reply queue pair's send queue.
const SEND_DEPTH: usize = if 2 * BATCH > SEND_DEPTH_MIN {
    2 * BATCH
} else {
    SEND_DEPTH_MIN
};
/// The reply queue pairs only send.
const REPLY_RECVS: usize = 0;
/// Most RECVs of all clients' receive queues at a worker: full windows of sixty clients, or small
/// ones of a thousand. A client that would need more gets no lease.
const RECV_MEMORY_RECVS_MAX: usize = 16 << 10;

/// Options of a [`ServerEnd`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTerms {
    /// Number of this worker, below `workers`.
    pub worker: usize,
    /// Number of workers.
    pub workers: usize,
    /// Most clients.
    pub clients_max: usize,
    /// Least time that the worker polls after a request before it sleeps.
    pub spin: Duration,
    /// Most bytes of a reply, head included; the provider's limit may be lower.
    pub reply_bytes_max: usize,
}

/// A worker's objects on one port, and the state machine that uses them.
pub struct ServerEnd<P> {
    /// The port.
    pub port: P,
    /// The state machine.
    pub side: ServerSide,
    request_cq: CqId,
    replies: Vec<QpId>,
    /// Index in `replies` of the queue pair for the next client.
    turn: usize,
    spin: Duration,
    datagram_header_bytes: usize,
}

/// One client's resources at this worker, in a domain of its own: memory to write, and the queue
/// pair that gives access to it.
#[derive(Clone, Copy, Debug)]
pub struct LeaseResources {
    path: RequestPath,
    announce: Announce,
    requests: QpId,
    /// Index of the worker's queue pair that sends its replies.
    reply_qp: usize,
    /// Lines, then overflow areas, then the buffers of its datagrams, if it sends.
    memory: RegionId,
    window: Window,
    /// Whether the client may read the worker's store.
    reads: bool,
}

/// The remote memory in the grant of a client that does not write.
const NOWHERE: Remote = Remote {
    rkey: Rkey(0),
    addr: 0,
};

/// RECVs of the queue pair for requests: where every request consumes one, as many as the client
/// posts for the replies.
const fn request_recvs(path: RequestPath, announce: Announce, window: Window) -> usize {
    match (path, announce) {
        (RequestPath::UdSend, _) | (_, Announce::Always) => window.slots() + RECV_SLACK,
        (_, Announce::AfterPause) => RECV_SLACK,
        (_, Announce::Never) => 0,
    }
}

/// Largest header that a provider writes before a datagram (the GRH of InfiniBand).
const GRH_BYTES: usize = 40;

impl RequestPath {
    /// The room that a client with `window` needs in its domain at a worker, exactly.
    #[must_use]
    pub fn pd_room(self, window: Window) -> PdRoom {
        let recvs = window.slots() + RECV_SLACK;
        let (writable, ud_recvs) = match self {
            Self::UdSend => (0, recvs),
            Self::UcWrite | Self::RcWrite => (window.line_bytes() + window.overflow_bytes(), 0),
        };
        PdRoom {
            writable,
            peer_writable: 0,
            recvs: ud_recvs,
            peer_recvs: recvs,
        }
    }

    /// Most bytes of a worker's own memory that a client with `window` takes beside its domain:
    /// what arrives as datagrams is copied there.
    #[must_use]
    pub fn private_bytes(self, window: Window) -> usize {
        match self {
            Self::UdSend => {
                let recvs = window.slots() + RECV_SLACK;
                let slots = window.line_bytes() + window.overflow_bytes();
                slots + recvs * UdQueue::recv_bytes(GRH_BYTES)
            }
            Self::UcWrite | Self::RcWrite => 0,
        }
    }
}

/// A client in service.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    client: ClientId,
    address: AddressHandle,
}

impl<P: Port> ServerEnd<P> {
    /// Makes a worker's end without clients.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open<D: Device<Port = P>>(device: &D, terms: &ServerTerms) -> Result<Self, SetupError> {
        Self::open_for_recvs(device, terms, RECV_MEMORY_RECVS_MAX)
    }

    /// Makes a worker's end whose clients may post so many RECVs together. [`ServerEnd::open`] bounds them for
    /// a host that pays for their memory.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open_for_recvs<D: Device<Port = P>>(
        device: &D,
        terms: &ServerTerms,
        recvs_max: usize,
    ) -> Result<Self, SetupError> {
        let clients = terms.clients_max;
        let capabilities = device.capabilities();
        let reply_qps = capabilities.senders.clamp(1, REPLY_QPS_MAX);
        let mut port = device.open_port(&PortLimits {
            pds: clients + 1,
            qps: clients + reply_qps,
            cqs: 2,
            // Each client's memory, and for those that read the store, its own rkey of that.
            regions: 2 * clients + 1,
            addresses: 2 * clients,
        })?;
        let own = device.create_pd(&mut port)?;
        // A client's queue pair sends nothing; where it takes unannounced WRITEs, only errors
        // complete.
        let depth = clients.max(1) + recvs_max;
        let request_cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let depth = reply_qps * (SEND_DEPTH + REPLY_RECVS);
        let reply_cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let replies = QpSpec {
            pd: own,
            transport: Transport::Ud,
            send_cq: reply_cq,
            recv_cq: reply_cq,
            send_depth: SEND_DEPTH,
            recv_depth: REPLY_RECVS,
        };
        let replies = (0..reply_qps).map(|_| device.create_qp(&mut port, &replies));
        let replies = replies.collect::<Result<Vec<_>, _>>()?;
        let reply_bytes_max = terms.reply_bytes_max.min(capabilities.datagram_bytes_max);
        let reply_memory = RegionSpec::local(ServerOptions::reply_memory(reply_bytes_max));
        let options = ServerOptions {
            worker: terms.worker,
            workers: terms.workers,
            replies: replies.clone(),
            reply_cq,
            request_cq,
            request_header_bytes: capabilities.datagram_header_bytes,
            reply_bytes_max,
            reply_region: device.allocate_region(&mut port, own, &reply_memory)?,
            postlist_max: capabilities.postlist_max,
            inline_bytes_max: capabilities.inline_bytes_max,
            gso: capabilities.gso,
            clients_max: clients,
        };
        Ok(Self {
            side: ServerSide::new(&port, options).map_err(MachineError::from)?,
            port,
            request_cq,
            replies,
            turn: 0,
            spin: terms.spin,
            datagram_header_bytes: capabilities.datagram_header_bytes,
        })
    }

    /// Completion queue of the clients' queue pairs: arm it before sleeping.
    #[must_use]
    pub fn request_cq(&self) -> CqId {
        self.request_cq
    }

    /// Whether only another end helps: the device is lost, or a queue pair for replies failed.
    #[inline]
    #[must_use]
    pub fn is_lost<D: Device<Port = P>>(&self, device: &D) -> bool {
        let health = device.health(&self.port);
        // Queue pairs are asked for their state only on a provider where some have failed.
        health.lost || (health.failures > 0 && !self.is_sound(device))
    }

    /// Whether replies can be sent.
    fn is_sound<D: Device<Port = P>>(&self, device: &D) -> bool {
        let sends = |qp: &QpId| device.qp_state(&self.port, *qp).ok() == Some(QpState::ReadyToSend);
        self.replies.iter().all(sends)
    }

    /// Whether requests of the client at `resources` can arrive; if not, only another lease helps.
    #[must_use]
    pub fn hears<D: Device<Port = P>>(&self, device: &D, resources: &LeaseResources) -> bool {
        device.qp_state(&self.port, resources.requests).ok() != Some(QpState::Error)
    }

    /// Makes a client's memory and queue pair in `pd`. They are destroyed with the domain.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn allocate<D: Device<Port = P>>(
        &mut self,
        device: &D,
        pd: PdId,
        path: RequestPath,
        window: Window,
    ) -> Result<LeaseResources, ControlError> {
        let port = &mut self.port;
        let announce = Announce::for_spin(path, device.capabilities(), self.spin);
        let recvs = request_recvs(path, announce, window);
        let requests = QpSpec {
            pd,
            transport: path.transport(),
            send_cq: self.request_cq,
            recv_cq: self.request_cq,
            send_depth: 1,
            recv_depth: recvs,
        };
        let requests = device.create_qp(port, &requests)?;
        // A client has a domain to itself, so no other client passes either scope.
        let (access, scope) = match path {
            RequestPath::UdSend => (Access::LOCAL, Scope::Pd),
            _ if device.capabilities().scoped_regions => (Access::WRITE, Scope::Qp(requests)),
            RequestPath::UcWrite | RequestPath::RcWrite => (Access::WRITE, Scope::Pd),
        };
        let recv_memory = match path {
            RequestPath::UdSend => recvs * UdQueue::recv_bytes(self.datagram_header_bytes),
            RequestPath::UcWrite | RequestPath::RcWrite => 0,
        };
        let len = window.line_bytes() + window.overflow_bytes() + recv_memory;
        let memory = device.allocate_region(port, pd, &RegionSpec { len, access, scope })?;
        // Clients are dealt out to the queue pairs in turns.
        let reply_qp = self.turn % self.replies.len();
        self.turn = reply_qp + 1;
        Ok(LeaseResources {
            path,
            announce,
            requests,
            reply_qp,
            memory,
            window,
            reads: false,
        })
    }

    /// Builds the grant of `resources` for its client, with the provider's `ticket` to the domain
    /// and the number of descriptors that accompany it.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn grant<D: Device<Port = P>>(
        &self,
        device: &D,
        resources: &LeaseResources,
        ticket: Vec<u8>,
        fds: u8,
    ) -> Result<WorkerGrant, ControlError> {
        let port = &self.port;
        let (lines, overflow) = match resources.path {
            RequestPath::UdSend => (NOWHERE, NOWHERE),
            RequestPath::UcWrite | RequestPath::RcWrite => {
                let lines = device.remote(port, resources.memory)?;
                (lines, lines.offset(resources.window.line_bytes() as u64))
            }
        };
        Ok(WorkerGrant {
            fds,
            ticket,
            lines,
            overflow,
            announce: resources.announce,
            requests: device.endpoint(port, resources.requests)?,
            replies: device.endpoint(port, self.replies[resources.reply_qp])?,
            store: None,
        })
    }

    /// Registers the worker's store `memory` in the domain `pd` of a client that may read it, and grants that at
    /// its `resources`, with `now` as the time. Returns its descriptors, too. The region is destroyed with the domain.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn share<D: Device<Port = P>>(
        &mut self,
        device: &D,
        (pd, resources): (PdId, &mut LeaseResources),
        memory: &SharedMemory,
        now: Duration,
    ) -> Result<(StoreGrant, Vec<OwnedFd>), ControlError> {
        let port = &mut self.port;
        let region = device.register_shared(port, pd, memory, Access::READ, Scope::Pd)?;
        let PdTicket { blob, fds } = device.export_region(port, region)?;
        let grant = StoreGrant {
            fds: fds.len() as u8,
            memory: device.remote(port, region)?,
            now: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            ticket: blob,
        };
        resources.reads = true;
        Ok((grant, fds))
    }

    /// Connects `resources` with its client's queue pairs and takes the client into service.
    ///
    /// # Errors
    /// [`SetupError`]; of the attempt only the connection remains.
    pub fn admit<D: Device<Port = P>>(
        &mut self,
        device: &D,
        resources: &LeaseResources,
        peer: &WorkerAccept,
        epoch: Epoch,
        reply_bytes_max: usize,
    ) -> Result<Admitted, SetupError> {
        let port = &mut self.port;
        let ud_queue = match resources.path {
            RequestPath::UdSend => {
                // Revoked with the client's domain.
                device.accept_from(port, resources.requests, &peer.requests)?;
                Some(resources.ud_queue(device.source(&peer.requests)?))
            }
            RequestPath::UcWrite | RequestPath::RcWrite => {
                device.connect(port, resources.requests, &peer.requests)?;
                None
            }
        };
        let memory = port.region(resources.memory).cloned();
        let memory = memory.ok_or(ControlError::Unknown("region"))?;
        let (lines, overflow) = resources.slots(&memory)?;
        let replies = self.replies[resources.reply_qp];
        let address = device.create_address(port, replies, &peer.replies)?;
        let chunk = Chunk {
            lines,
            overflow,
            ud_queue,
            notify: resources.notify(),
            watch: resources.watch(),
            window: resources.window,
            epoch,
            reply_qp: resources.reply_qp as u8,
            address,
            reply_bytes_max,
            reads: resources.reads,
        };
        match self.side.attach(port, chunk) {
            Ok(client) => Ok(Admitted { client, address }),
            Err(error) => {
                device.destroy_address(port, address)?;
                Err(MachineError::from(error).into())
            }
        }
    }

    /// Takes a client out of service: after the return, nothing reads its memory and nothing is
    /// sent to it.
    ///
    /// # Errors
    /// [`ControlError::Unknown`]: it was not in service.
    pub fn dismiss<D: Device<Port = P>>(
        &mut self,
        device: &D,
        admitted: Admitted,
    ) -> Result<(), ControlError> {
        // The chunk refers to the memory; it must not outlive this line.
        drop(self.side.detach(admitted.client));
        device.destroy_address(&mut self.port, admitted.address)
    }
}

impl LeaseResources {
    /// The lines and the overflow areas.
    fn slots(&self, memory: &Span) -> Result<(Span, Span), ControlError> {
        let lines = self.window.line_bytes();
        let end = lines + self.window.overflow_bytes();
        let part = |bytes| memory.slice(bytes);
        let short = |_| ControlError::Unknown("region of that length");
        Ok((
            part(0..lines).map_err(short)?,
            part(lines..end).map_err(short)?,
        ))
    }

    /// The receive queue for datagrams of `source`.
    fn ud_queue(&self, source: Source) -> UdQueue {
        UdQueue {
            qp: self.requests,
            source,
            recvs: request_recvs(self.path, self.announce, self.window),
            memory: self.memory,
            offset: self.window.line_bytes() + self.window.overflow_bytes(),
        }
    }

    /// Where its WRITEs can be watched, if it writes.
    fn watch(&self) -> Option<LineWatch> {
        (self.path != RequestPath::UdSend).then(|| LineWatch {
            qp: self.requests,
            range: Local {
                region: self.memory,
                offset: 0,
                len: self.window.line_bytes(),
            },
        })
    }

    /// The receive queue for announcements, if WRITEs are announced.
    fn notify(&self) -> Option<WriteNotify> {
        (self.announce != Announce::Never).then(|| WriteNotify {
            qp: self.requests,
            recvs: request_recvs(self.path, self.announce, self.window),
            memory: self.memory,
            always: self.announce == Announce::Always,
        })
    }
}

impl<P> fmt::Debug for ServerEnd<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerEnd")
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}
