use std::fmt;

use herdwick_fabric::{
    Access, AddressHandle, ControlError, CqId, CqSpec, Device, PdId, Port, PortLimits, QpId,
    RegionId, RegionSpec, Remote, Rkey, Scope, Transport,
};

use super::{QueuePair, SetupError, local_memory};
use crate::{
    BATCH, Chunk, ClientId, Mailbox, RECV_SLACK, RequestPath, SEND_DEPTH_MIN, ServerOptions,
    ServerSide,
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
/// Most RECVs of all mailboxes of a worker: full windows of sixty clients, or small ones of a
/// thousand. A client that would need more gets no lease.
const MAIL_RECVS_MAX: usize = 16 << 10;

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
    datagram_header_bytes: usize,
}

/// What one client gets at this worker, in a domain of its own: memory to write, and the queue pair
/// that opens it.
#[derive(Clone, Copy, Debug)]
pub struct Berth {
    path: RequestPath,
    requests: QpId,
    lines: RegionId,
    overflow: RegionId,
    /// Where its datagrams arrive, if it sends.
    mail: Option<RegionId>,
    window: Window,
}

/// What clients are told of memory that they do not write.
const NOWHERE: Remote = Remote {
    rkey: Rkey(0),
    addr: 0,
};

/// RECVs of a mailbox: as many as a client posts for the replies.
const fn mail_recvs(window: Window) -> usize {
    window.slots() + RECV_SLACK
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
            regions: 3 * clients + 1,
            addresses: clients,
        })?;
        let own = device.create_pd(&mut port)?;
        // A client's queue pair sends nothing; if it receives WRITEs, errors are all that completes.
        let depth = clients.max(1) + MAIL_RECVS_MAX;
        let request_cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let depth = SEND_DEPTH + REPLY_RECVS;
        let reply_cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let replies = QueuePair {
            pd: own,
            transport: Transport::Ud,
            send_cq: reply_cq,
            recv_cq: reply_cq,
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
            request_cq,
            request_header_bytes: capabilities.datagram_header_bytes,
            reply_bytes_max,
            reply_region: local_memory(device, &mut port, own, len)?,
            postlist_max: capabilities.postlist_max,
            pad_replies: capabilities.trains,
            clients_max: clients,
        };
        Ok(Self {
            side: ServerSide::new(&port, options)?,
            port,
            request_cq,
            replies,
            datagram_header_bytes: capabilities.datagram_header_bytes,
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
        path: RequestPath,
        window: Window,
    ) -> Result<Berth, ControlError> {
        let port = &mut self.port;
        let sends = path == RequestPath::UdSend;
        let requests = QueuePair {
            pd,
            transport: path.transport(),
            send_cq: self.request_cq,
            recv_cq: self.request_cq,
            send_depth: 1,
            recv_depth: if sends { mail_recvs(window) } else { 0 },
        };
        let requests = requests.create(device, port)?;
        // A client has a domain to itself, so either scope lets no one else in.
        let (access, scope) = match path {
            RequestPath::UdSend => (Access::LOCAL, Scope::Pd),
            _ if device.capabilities().scoped_regions => (Access::WRITE, Scope::Qp(requests)),
            RequestPath::UcWrite | RequestPath::RcWrite => (Access::WRITE, Scope::Pd),
        };
        let mut memory = |len| device.allocate_region(port, pd, &RegionSpec { len, access, scope });
        let recv_bytes = Mailbox::recv_bytes(self.datagram_header_bytes);
        Ok(Berth {
            path,
            requests,
            lines: memory(window.line_bytes())?,
            overflow: memory(window.overflow_bytes())?,
            mail: sends
                .then(|| memory(mail_recvs(window) * recv_bytes))
                .transpose()?,
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
        let remote = |region| match berth.path {
            RequestPath::UdSend => Ok(NOWHERE),
            RequestPath::UcWrite | RequestPath::RcWrite => device.remote(port, region),
        };
        Ok(WorkerGrant {
            fds,
            ticket,
            lines: remote(berth.lines)?,
            overflow: remote(berth.overflow)?,
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
        let mailbox = match berth.mail {
            None => {
                device.connect(port, berth.requests, &peer.requests)?;
                None
            }
            Some(memory) => Some(Mailbox {
                qp: berth.requests,
                source: device.source(&peer.requests)?,
                recvs: mail_recvs(berth.window),
                memory,
            }),
        };
        let address = device.create_address(port, self.replies, &peer.replies)?;
        let chunk = Chunk {
            lines,
            overflow,
            mailbox,
            window: berth.window,
            epoch,
            address,
            reply_bytes_max,
        };
        match self.side.attach(port, chunk) {
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
