use std::fmt;

use herdwick_fabric::{
    Access, AddressHandle, ControlError, CqId, CqSpec, Device, PdId, Port, PortLimits, QpId,
    RegionId, RegionSpec, Scope, Transport,
};

use super::{QueuePair, SetupError, local_memory};
use crate::{
    BATCH, Chunk, ClientId, SEND_DEPTH_MIN, ServerOptions, ServerSide,
    hello::{WorkerAccept, WorkerGrant},
    wire::{Epoch, Window},
};

/// Replies on their way.
const SEND_DEPTH: usize = if 2 * BATCH > SEND_DEPTH_MIN {
    2 * BATCH
} else {
    SEND_DEPTH_MIN
};
/// The queue pair of the replies only sends.
const REPLY_RECVS: usize = 0;
/// Requests are WRITTEN, never SENT.
const REQUEST_RECVS: usize = 0;

/// What a worker's end is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTerms {
    /// Which worker this is, below `workers`.
    pub worker: usize,
    /// How many there are.
    pub workers: usize,
    /// Most clients.
    pub clients_max: usize,
    /// Most bytes of a reply, head included; the provider's limit may be lower.
    pub reply_bytes_max: usize,
}

/// A worker's objects on one port, and the machine that uses them.
pub struct ServerEnd<P> {
    /// The port.
    pub port: P,
    /// The machine.
    pub side: ServerSide,
    request_cq: CqId,
    replies: QpId,
}

/// What one client gets at this worker, in a domain of its own: memory to write, and the queue pair
/// that opens it.
#[derive(Clone, Copy, Debug)]
pub struct Berth {
    requests: QpId,
    lines: RegionId,
    overflow: RegionId,
    window: Window,
}

/// A client in service.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    client: ClientId,
    address: AddressHandle,
}

impl<P: Port> ServerEnd<P> {
    /// A worker's end, without clients.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open<D: Device<Port = P>>(device: &D, terms: &ServerTerms) -> Result<Self, SetupError> {
        let clients = terms.clients_max;
        let mut port = device.open_port(&PortLimits {
            pds: clients + 1,
            qps: clients + 1,
            cqs: 2,
            regions: 2 * clients + 1,
            addresses: clients,
        })?;
        let own = device.create_pd(&mut port)?;
        // A client's queue pair sends nothing and receives WRITEs: errors are all that completes.
        let depth = 2 * clients.max(1);
        let request_cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let depth = SEND_DEPTH + REPLY_RECVS;
        let reply_cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let replies = QueuePair {
            pd: own,
            transport: Transport::Ud,
            cq: reply_cq,
            send_depth: SEND_DEPTH,
            recv_depth: REPLY_RECVS,
        };
        let replies = replies.create(device, &mut port)?;
        let capabilities = device.capabilities();
        let reply_bytes_max = terms.reply_bytes_max.min(capabilities.datagram_bytes_max);
        let len = ServerOptions::reply_memory(reply_bytes_max);
        let options = ServerOptions {
            worker: terms.worker,
            workers: terms.workers,
            replies,
            reply_cq,
            reply_bytes_max,
            reply_region: local_memory(device, &mut port, own, len)?,
            postlist_max: capabilities.postlist_max,
            clients_max: clients,
        };
        Ok(Self {
            side: ServerSide::new(&port, options)?,
            port,
            request_cq,
            replies,
        })
    }

    /// Where the clients' queue pairs complete: what to arm before sleeping.
    #[must_use]
    pub fn request_cq(&self) -> CqId {
        self.request_cq
    }

    /// Makes a client's memory and queue pair in `pd`. They go with the domain.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn furnish<D: Device<Port = P>>(
        &mut self,
        device: &D,
        pd: PdId,
        window: Window,
    ) -> Result<Berth, ControlError> {
        let port = &mut self.port;
        let requests = QueuePair {
            pd,
            transport: Transport::Uc,
            cq: self.request_cq,
            send_depth: 1,
            recv_depth: REQUEST_RECVS,
        };
        let requests = requests.create(device, port)?;
        let mut memory = |len| {
            let (access, scope) = (Access::WRITE, Scope::Qp(requests));
            device.allocate_region(port, pd, &RegionSpec { len, access, scope })
        };
        Ok(Berth {
            requests,
            lines: memory(window.line_bytes())?,
            overflow: memory(window.overflow_bytes())?,
            window,
        })
    }

    /// What the client of `berth` is told, beside the provider's `ticket` to the domain and the
    /// number of descriptors that go with it.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn grant<D: Device<Port = P>>(
        &self,
        device: &D,
        berth: &Berth,
        ticket: Vec<u8>,
        fds: u8,
    ) -> Result<WorkerGrant, ControlError> {
        let port = &self.port;
        Ok(WorkerGrant {
            fds,
            ticket,
            lines: device.remote(port, berth.lines)?,
            overflow: device.remote(port, berth.overflow)?,
            requests: device.endpoint(port, berth.requests)?,
            replies: device.endpoint(port, self.replies)?,
        })
    }

    /// Connects `berth` with its client's queue pairs and takes the client into service.
    ///
    /// # Errors
    /// [`SetupError`]; nothing but the connection is left of the attempt.
    pub fn admit<D: Device<Port = P>>(
        &mut self,
        device: &D,
        berth: &Berth,
        peer: &WorkerAccept,
        epoch: Epoch,
        reply_bytes_max: usize,
    ) -> Result<Admitted, SetupError> {
        let port = &mut self.port;
        let memory = |region| port.region(region).cloned();
        let gone = ControlError::Unknown("region");
        let (Some(lines), Some(overflow)) = (memory(berth.lines), memory(berth.overflow)) else {
            return Err(gone.into());
        };
        device.connect(port, berth.requests, &peer.requests)?;
        let address = device.create_address(port, self.replies, &peer.replies)?;
        let chunk = Chunk {
            lines,
            overflow,
            window: berth.window,
            epoch,
            address,
            reply_bytes_max,
        };
        match self.side.attach(chunk) {
            Ok(client) => Ok(Admitted { client, address }),
            Err(error) => {
                device.destroy_address(port, address)?;
                Err(error.into())
            }
        }
    }

    /// Takes a client out of service: from the return on, nothing reads its memory and nothing is
    /// sent to it.
    ///
    /// # Errors
    /// [`ControlError::Unknown`]: it was not in service.
    pub fn dismiss<D: Device<Port = P>>(
        &mut self,
        device: &D,
        admitted: Admitted,
    ) -> Result<(), ControlError> {
        // The chunk names the memory; it must not outlive this line.
        drop(self.side.detach(admitted.client));
        device.destroy_address(&mut self.port, admitted.address)
    }
}

impl<P> fmt::Debug for ServerEnd<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerEnd")
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}
