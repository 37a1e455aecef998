//! HERD's objects on shared memory, made by hand.

use std::time::Duration;

use herdwick_fabric::{
    Access, ConnectError, ControlError, CqId, CqSpec, Device, Endpoint, OpenError, PdId,
    PortLimits, QpSpec, RegionId, RegionSpec, Remote, Scope, Transport,
};
use herdwick_herd::{
    AttachError, ClientOptions, ClientSetupError, ClientSide, Outcome, Refused, SEND_DEPTH_MIN,
    ServerOptionsError, WorkerLane,
    wire::{Epoch, Window},
};
use herdwick_mica::Request;
use herdwick_shm::{PdTicket, ShmDevice, ShmPort};

use super::Lines;

/// The rig could not be built.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// A port could not be opened.
    #[error("opening a port: {0}")]
    Open(#[from] OpenError),
    /// The provider refused an object.
    #[error("setting up the fabric: {0}")]
    Control(#[from] ControlError),
    /// Two queue pairs did not meet.
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
    /// A domain was not taken up.
    #[error("taking up a domain: {0}")]
    Ticket(#[from] herdwick_shm::AttachError),
    /// HERD's server half.
    #[error("setting up HERD's server: {0}")]
    Server(#[from] ServerOptionsError),
    /// HERD's server half, for one client.
    #[error("attaching a client: {0}")]
    Attach(#[from] AttachError),
    /// HERD's client half.
    #[error("setting up HERD's client: {0}")]
    Client(#[from] ClientSetupError),
    /// No thread.
    #[error("starting a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A window that HERD has not.
    #[error("--window is a power of two from 1 to {max}, not {0}", max = Window::MAX)]
    Window(usize),
    /// Values that do not travel in a reply.
    #[error("the echo has values up to {REPLY_BYTES_MAX} bytes, head included: lower --value-size")]
    Value,
}

/// Largest reply, as the client that people link has it.
pub(crate) const REPLY_BYTES_MAX: usize = 4096;
/// RECVs beyond the window.
const RECV_SLACK: usize = 16;
/// Nothing is lost in shared memory: a retry here would be a bug of ours, and is not hidden.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// A client ready to ask.
pub(crate) struct End {
    port: ShmPort,
    side: ClientSide,
}

impl Lines for End {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        self.side.submit(request, token).map(drop)
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.side.flush(&mut self.port, now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Outcome<'_>)) -> usize {
        self.side.poll(&mut self.port, now, sink)
    }
}

/// A client's objects, as they come together.
pub(crate) struct Guest {
    device: ShmDevice,
    port: ShmPort,
    window: Window,
    request_cq: CqId,
    reply_cq: CqId,
    lanes: Vec<WorkerLane>,
}

impl Guest {
    /// Of `workers` workers.
    pub(crate) fn new(window: Window, workers: usize) -> Result<Self, RigError> {
        let device = ShmDevice::guest();
        let mut port = device.open_port(&PortLimits {
            pds: workers,
            qps: 2 * workers,
            cqs: 2,
            regions: 2 * workers,
            addresses: workers,
        })?;
        let depth = workers * (window.slots() + RECV_SLACK + 1);
        let requests = CqSpec {
            depth: workers * (SEND_DEPTH_MIN + 1),
        };
        Ok(Self {
            request_cq: device.create_cq(&mut port, &requests)?,
            reply_cq: device.create_cq(&mut port, &CqSpec { depth })?,
            lanes: Vec::with_capacity(workers),
            window,
            device,
            port,
        })
    }

    /// Takes up the next worker's domain; the endpoints of its request and reply queue pairs.
    pub(crate) fn join(
        &mut self,
        ticket: PdTicket,
        server: &Endpoint,
        [lines, overflow]: [Remote; 2],
        epoch: Epoch,
    ) -> Result<(Endpoint, Endpoint), RigError> {
        let (device, port) = (&self.device, &mut self.port);
        let pd = device.attach(port, ticket)?;
        let recvs = self.window.slots() + RECV_SLACK;
        let spec = queue_pair(pd, Transport::Uc, self.request_cq, SEND_DEPTH_MIN, 0);
        let requests = device.create_qp(port, &spec)?;
        let spec = queue_pair(pd, Transport::Ud, self.reply_cq, 1, recvs);
        let replies = device.create_qp(port, &spec)?;
        self.lanes.push(WorkerLane {
            epoch,
            requests,
            replies,
            lines,
            overflow,
            receive: local(device, port, pd, recvs * REPLY_BYTES_MAX)?,
            stage: local(device, port, pd, self.window.overflow_bytes())?,
        });
        device.connect(port, requests, server)?;
        Ok((
            device.endpoint(port, requests)?,
            device.endpoint(port, replies)?,
        ))
    }

    /// Posts the RECVs.
    pub(crate) fn finish(mut self) -> Result<End, RigError> {
        let options = ClientOptions {
            window: self.window,
            recv_slack: RECV_SLACK,
            reply_bytes_max: REPLY_BYTES_MAX,
            request_cq: self.request_cq,
            reply_cq: self.reply_cq,
            postlist_max: self.device.capabilities().postlist_max,
            retry_after: NEVER,
            retry_after_max: NEVER,
            deadline: NEVER,
        };
        let side = ClientSide::new(&mut self.port, options, self.lanes)?;
        Ok(End {
            port: self.port,
            side,
        })
    }
}

pub(super) fn queue_pair(
    pd: PdId,
    transport: Transport,
    cq: CqId,
    send_depth: usize,
    recv_depth: usize,
) -> QpSpec {
    QpSpec {
        pd,
        transport,
        send_cq: cq,
        recv_cq: cq,
        send_depth,
        recv_depth,
    }
}

pub(super) fn local(
    device: &ShmDevice,
    port: &mut ShmPort,
    pd: PdId,
    len: usize,
) -> Result<RegionId, ControlError> {
    let (access, scope) = (Access::LOCAL, Scope::Pd);
    device.allocate_region(port, pd, &RegionSpec { len, access, scope })
}
