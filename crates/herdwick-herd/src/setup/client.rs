//! The client's objects on a port: made one worker at a time, from the server's grants.

use std::{fmt, time::Duration};

use herdwick_fabric::{
    CqId, CqSpec, Device, PdId, Port, PortLimits, QpId, QpSpec, RegionSpec, Transport,
};
use herdwick_mem::Span;

use super::{MachineError, SetupError};
use crate::{
    ClientOptions, ClientSide, Destination, RequestPath, SEND_DEPTH_MIN, WorkerChannel,
    handshake::WorkerTickets,
    hello::{Accept, Grant, WorkerAccept, WorkerGrant},
    wire::{Epoch, REQUEST_BYTES_MAX, Window},
};

/// RECVs that a client posts beyond its window: retries may be answered twice at once.
pub const RECV_SLACK: usize = 16;

/// What a client and its server have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTerms {
    /// How requests reach the workers.
    pub path: RequestPath,
    /// Slots at each worker.
    pub window: Window,
    /// The lease's epoch.
    pub epoch: Epoch,
    /// Longest reply in bytes, as claimed from the server.
    pub reply_bytes_max: usize,
    /// [`ClientOptions::retry_after`].
    pub retry_after: Duration,
    /// [`ClientOptions::retry_after_max`].
    pub retry_after_max: Duration,
    /// [`ClientOptions::deadline`].
    pub deadline: Duration,
}

/// A client's objects on one port while they are made: one domain after the other.
pub struct ClientSetup<P> {
    /// The port; attach a worker's domain to it before [`ClientSetup::join`].
    pub port: P,
    options: ClientOptions,
    path: RequestPath,
    epoch: Epoch,
    channels: Vec<WorkerChannel>,
    stores: Vec<Span>,
}

/// A client's port, and its state machine.
pub struct ClientEnd<P> {
    /// The port.
    pub port: P,
    /// The state machine.
    pub side: ClientSide,
    /// Completion queue of the replies: arm it before sleeping.
    pub reply_cq: CqId,
}

impl<P: Port> ClientSetup<P> {
    /// Opens a port for a client of `workers` workers.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open<D: Device<Port = P>>(
        device: &D,
        workers: usize,
        terms: &ClientTerms,
    ) -> Result<Self, SetupError> {
        let mut port = device.open_port(&PortLimits {
            pds: workers,
            qps: 2 * workers,
            cqs: 2,
            regions: 2 * workers,
            addresses: 2 * workers,
        })?;
        let has = device.capabilities();
        // The queue pairs of one worker never have more outstanding, whatever the request path.
        let requests = CqSpec {
            depth: workers * (SEND_DEPTH_MIN + 1),
        };
        let replies = CqSpec {
            depth: workers * (terms.window.slots() + RECV_SLACK),
        };
        let options = ClientOptions {
            window: terms.window,
            recv_slack: RECV_SLACK,
            reply_bytes_max: terms.reply_bytes_max,
            reply_header_bytes: has.datagram_header_bytes,
            inline_bytes_max: has.inline_bytes_max,
            // The server has accepted replies of this length as datagrams; the worker's MTU may be
            // lower than the client's.
            request_bytes_max: match terms.path {
                RequestPath::UdSend => has
                    .datagram_bytes_max
                    .min(terms.reply_bytes_max)
                    .min(REQUEST_BYTES_MAX),
                RequestPath::UcWrite | RequestPath::RcWrite => REQUEST_BYTES_MAX,
            },
            request_cq: device.create_cq(&mut port, &requests)?,
            reply_cq: device.create_cq(&mut port, &replies)?,
            postlist_max: has.postlist_max,
            retry_after: terms.retry_after,
            retry_after_max: terms.retry_after_max,
            deadline: terms.deadline,
        };
        Ok(Self {
            port,
            options,
            path: terms.path,
            epoch: terms.epoch,
            channels: Vec::with_capacity(workers),
            stores: Vec::new(),
        })
    }

    /// Joins the domains of all workers of a grant, and makes what is needed in each. Returns what
    /// to send to the server.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn accept<D: Device<Port = P>>(
        &mut self,
        device: &D,
        grant: &Grant,
        tickets: Vec<WorkerTickets>,
    ) -> Result<Accept, SetupError> {
        let mut workers = Vec::with_capacity(grant.workers.len());
        for (worker, WorkerTickets { domain, store }) in grant.workers.iter().zip(tickets) {
            let pd = device.import_pd(&mut self.port, domain)?;
            workers.push(self.join(device, pd, worker)?);
            if let (Some(ticket), Some(granted)) = (store, &worker.store) {
                // A store that this process cannot map, as under a limit of its address space, is none: requests
                // need no store.
                let mapped = device.import_region(&mut self.port, pd, ticket);
                let memory = mapped.ok().and_then(|()| {
                    let rkey = granted.memory.rkey;
                    device.imported(&self.port, pd, rkey)
                });
                self.stores.extend(memory);
            }
        }
        Ok(Accept { workers })
    }

    /// Returns the workers' stores, where all are granted and mapped here; otherwise none.
    pub fn take_stores(&mut self) -> Vec<Span> {
        let stores = std::mem::take(&mut self.stores);
        match stores.len() == self.channels.len() {
            true => stores,
            false => Vec::new(),
        }
    }

    /// Makes the queue pairs and memory for the next worker, in its domain `pd`. Returns what to
    /// send that worker.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn join<D: Device<Port = P>>(
        &mut self,
        device: &D,
        pd: PdId,
        grant: &WorkerGrant,
    ) -> Result<WorkerAccept, SetupError> {
        let replies = self.create_replies(device, pd)?;
        device.accept_from(&mut self.port, replies, &grant.replies)?;
        let (requests, to) = match self.path {
            RequestPath::UcWrite | RequestPath::RcWrite => self.connect(device, pd, grant)?,
            RequestPath::UdSend => {
                let ud_queue = device.create_address(&mut self.port, replies, &grant.requests)?;
                (replies, Destination::UdQueue(ud_queue))
            }
        };
        let (port, options) = (&mut self.port, &self.options);
        let recvs = options.window.slots() + options.recv_slack;
        let receive = RegionSpec::local(recvs * options.reply_buffer_bytes());
        let stage = RegionSpec::local(options.window.stage_bytes());
        self.channels.push(WorkerChannel {
            epoch: self.epoch,
            requests,
            replies,
            to,
            announce: grant.announce,
            receive: device.allocate_region(port, pd, &receive)?,
            stage: device.allocate_region(port, pd, &stage)?,
        });
        Ok(WorkerAccept {
            requests: device.endpoint(port, requests)?,
            replies: device.endpoint(port, replies)?,
        })
    }

    /// Makes the queue pair that receives replies, and sends requests where they are datagrams.
    fn create_replies<D: Device<Port = P>>(
        &mut self,
        device: &D,
        pd: PdId,
    ) -> Result<QpId, SetupError> {
        let replies = QpSpec {
            pd,
            transport: Transport::Ud,
            send_cq: self.options.request_cq,
            recv_cq: self.options.reply_cq,
            send_depth: match self.path {
                RequestPath::UdSend => SEND_DEPTH_MIN,
                RequestPath::UcWrite | RequestPath::RcWrite => 1,
            },
            recv_depth: self.options.window.slots() + self.options.recv_slack,
        };
        Ok(device.create_qp(&mut self.port, &replies)?)
    }

    /// Makes and connects the queue pair that writes to a worker. Returns it, and its destination.
    fn connect<D: Device<Port = P>>(
        &mut self,
        device: &D,
        pd: PdId,
        grant: &WorkerGrant,
    ) -> Result<(QpId, Destination), SetupError> {
        let requests = QpSpec {
            pd,
            transport: self.path.transport(),
            send_cq: self.options.request_cq,
            recv_cq: self.options.request_cq,
            send_depth: SEND_DEPTH_MIN,
            recv_depth: 0,
        };
        let requests = device.create_qp(&mut self.port, &requests)?;
        device.connect(&mut self.port, requests, &grant.requests)?;
        let WorkerGrant {
            lines, overflow, ..
        } = *grant;
        Ok((requests, Destination::Slots { lines, overflow }))
    }

    /// Posts the RECVs, when every worker is joined and may reply.
    ///
    /// # Errors
    /// [`MachineError::Client`].
    pub fn finish(self) -> Result<ClientEnd<P>, SetupError> {
        let Self {
            mut port,
            options,
            channels,
            ..
        } = self;
        let reply_cq = options.reply_cq;
        let side = ClientSide::new(&mut port, options, channels).map_err(MachineError::from)?;
        Ok(ClientEnd {
            port,
            side,
            reply_cq,
        })
    }
}

impl<P> fmt::Debug for ClientSetup<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSetup")
            .field("options", &self.options)
            .field("joined", &self.channels.len())
            .finish_non_exhaustive()
    }
}

impl<P> fmt::Debug for ClientEnd<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientEnd")
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}
