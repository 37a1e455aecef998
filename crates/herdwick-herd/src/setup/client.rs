use std::{fmt, time::Duration};

use herdwick_fabric::{CqId, CqSpec, Device, PdId, Port, PortLimits, Transport};

use super::{QueuePair, SetupError, local_memory};
use crate::{
    ClientOptions, ClientSide, SEND_DEPTH_MIN, WorkerLane,
    hello::{WorkerAccept, WorkerGrant},
    wire::{Epoch, Window},
};

/// RECVs that a client posts beyond its window: retries that may be answered twice at once.
pub const RECV_SLACK: usize = 16;

/// What a client's end is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTerms {
    /// Slots at each worker.
    pub window: Window,
    /// The lease's epoch.
    pub epoch: Epoch,
    /// Longest reply, as the server was told.
    pub reply_bytes_max: usize,
    /// [`ClientOptions::retry_after`].
    pub retry_after: Duration,
    /// [`ClientOptions::retry_after_max`].
    pub retry_after_max: Duration,
    /// [`ClientOptions::deadline`].
    pub deadline: Duration,
}

/// A client's objects on one port, as they come together: one domain after the other.
pub struct ClientRig<P> {
    /// The port; domains are attached to it before they are joined.
    pub port: P,
    options: ClientOptions,
    epoch: Epoch,
    lanes: Vec<WorkerLane>,
}

/// A client's port, and the machine that uses it.
pub struct ClientEnd<P> {
    /// The port.
    pub port: P,
    /// The machine.
    pub side: ClientSide,
    /// Where replies complete: what to arm before sleeping.
    pub reply_cq: CqId,
}

impl<P: Port> ClientRig<P> {
    /// A port for a client of `workers` workers.
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
            addresses: workers,
        })?;
        // Each queue pair has one entry in the queue that it does not use.
        let requests = CqSpec {
            depth: workers * (SEND_DEPTH_MIN + 1),
        };
        let replies = CqSpec {
            depth: workers * (terms.window.slots() + RECV_SLACK + 1),
        };
        let options = ClientOptions {
            window: terms.window,
            recv_slack: RECV_SLACK,
            reply_bytes_max: terms.reply_bytes_max,
            reply_header_bytes: device.capabilities().datagram_header_bytes,
            request_cq: device.create_cq(&mut port, &requests)?,
            reply_cq: device.create_cq(&mut port, &replies)?,
            postlist_max: device.capabilities().postlist_max,
            retry_after: terms.retry_after,
            retry_after_max: terms.retry_after_max,
            deadline: terms.deadline,
        };
        Ok(Self {
            port,
            options,
            epoch: terms.epoch,
            lanes: Vec::with_capacity(workers),
        })
    }

    /// Makes the queue pairs and memory for the next worker, in its domain `pd`; what that worker
    /// is told.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn join<D: Device<Port = P>>(
        &mut self,
        device: &D,
        pd: PdId,
        grant: &WorkerGrant,
    ) -> Result<WorkerAccept, SetupError> {
        let (port, options) = (&mut self.port, &self.options);
        let recvs = options.window.slots() + options.recv_slack;
        let requests = QueuePair {
            pd,
            transport: Transport::Uc,
            cq: options.request_cq,
            send_depth: SEND_DEPTH_MIN,
            recv_depth: 0,
        };
        let replies = QueuePair {
            pd,
            transport: Transport::Ud,
            cq: options.reply_cq,
            send_depth: 1,
            recv_depth: recvs,
        };
        let requests = requests.create(device, port)?;
        let replies = replies.create(device, port)?;
        let receive = recvs * options.reply_buffer_bytes();
        self.lanes.push(WorkerLane {
            epoch: self.epoch,
            requests,
            replies,
            lines: grant.lines,
            overflow: grant.overflow,
            receive: local_memory(device, port, pd, receive)?,
            stage: local_memory(device, port, pd, options.window.overflow_bytes())?,
        });
        device.connect(port, requests, &grant.requests)?;
        Ok(WorkerAccept {
            requests: device.endpoint(port, requests)?,
            replies: device.endpoint(port, replies)?,
        })
    }

    /// Posts the RECVs: every worker is joined, and may answer.
    ///
    /// # Errors
    /// [`SetupError::Client`].
    pub fn finish(self) -> Result<ClientEnd<P>, SetupError> {
        let Self {
            mut port,
            options,
            lanes,
            ..
        } = self;
        let reply_cq = options.reply_cq;
        let side = ClientSide::new(&mut port, options, lanes)?;
        Ok(ClientEnd {
            port,
            side,
            reply_cq,
        })
    }
}

impl<P> fmt::Debug for ClientRig<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientRig")
            .field("options", &self.options)
            .field("joined", &self.lanes.len())
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
