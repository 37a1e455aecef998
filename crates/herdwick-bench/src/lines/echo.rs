//! The fabric alone: HERD's machines over shared memory with an echo in the store's place, which
//! is the most that a server could do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use herdwick_fabric::{
    Access, AddressHandle, ConnectError, ControlError, CqId, CqSpec, Device, OpenError, PdId, Port,
    PortLimits, QpId, QpSpec, RegionId, RegionSpec, Scope, Transport,
};
use herdwick_herd::{
    AttachError, BATCH, Chunk, ClientOptions, ClientSetupError, ClientSide, Echo, Outcome, Refused,
    SEND_DEPTH_MIN, ServerOptions, ServerOptionsError, ServerSide, WorkerLane,
    wire::{Epoch, Window},
};
use herdwick_mica::{Clock, HashKey, Request, Second};
use herdwick_shm::{PdSize, ShmDevice, ShmPort};

use super::{Driver, Lines};
use crate::{
    host::pin,
    target::{DriveError, Load, Target},
    workload::KeySpace,
};

/// The rig could not be built.
#[derive(Debug, thiserror::Error)]
pub enum EchoError {
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
    #[error("the echo has values up to {REPLY_BYTES_MAX} bytes, head included")]
    Value,
}

/// Largest reply, as the client that people link has it.
const REPLY_BYTES_MAX: usize = 4096;
/// RECVs beyond the window.
const RECV_SLACK: usize = 16;
/// Replies on their way.
const SEND_DEPTH: usize = if 2 * BATCH > SEND_DEPTH_MIN {
    2 * BATCH
} else {
    SEND_DEPTH_MIN
};
/// Nothing is lost in shared memory: a retry here would be a bug of ours, and is not hidden.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// Nothing expires in an echo.
const CLOCK: Clock = Clock {
    epoch_unix: 0,
    second: Second(1),
};
const HASH_KEY: HashKey = HashKey([1, 2]);

/// One client of the echo.
pub(crate) struct EchoTarget {
    end: End,
    driver: Driver,
    // Last: the server ends when its last client does.
    _server: Arc<Server>,
}

struct End {
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

impl EchoTarget {
    /// Starts an echo on `cpus` and connects `clients` clients to it.
    ///
    /// # Errors
    /// [`EchoError`].
    pub(crate) fn rig(
        clients: usize,
        window: usize,
        space: KeySpace,
        cpus: &[usize],
    ) -> Result<Vec<Self>, EchoError> {
        if space.value_size() + herdwick_herd::REPLY_BYTES_MIN > REPLY_BYTES_MAX {
            return Err(EchoError::Value);
        }
        let window = Window::new(window).ok_or(EchoError::Window(window))?;
        let mut host = Host::new(clients)?;
        let ends = (0..clients).map(|_| host.admit(window));
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        let server = Arc::new(Server::start(host, space.value_size(), cpus.to_vec())?);
        let target = |end| Self {
            end,
            driver: Driver::new(space, false),
            _server: Arc::clone(&server),
        };
        Ok(ends.into_iter().map(target).collect())
    }
}

impl Target for EchoTarget {
    fn hash_key(&mut self) -> Option<HashKey> {
        Some(HASH_KEY)
    }

    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        self.driver.drive(&mut self.end, load, until_ns, clock)
    }

    fn in_flight(&self) -> impl Iterator<Item = u64> {
        self.driver.slots.started()
    }
}

/// The echo's thread.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(mut host: Host, value_size: usize, cpus: Vec<usize>) -> Result<Self, EchoError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            pin(&cpus);
            let mut echo = Echo::new(value_size);
            while !stopped.load(Ordering::Relaxed) {
                host.side.pass(&mut host.port, CLOCK, &mut echo);
            }
        };
        let thread = std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(run)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The server's objects, made as a worker of `herdwick serve` makes them.
struct Host {
    device: ShmDevice,
    port: ShmPort,
    side: ServerSide,
    request_cq: CqId,
    replies: QpId,
}

impl Host {
    fn new(clients: usize) -> Result<Self, EchoError> {
        let device = ShmDevice::host(PdSize::default());
        let mut port = device.open_port(&PortLimits {
            pds: clients + 1,
            qps: clients + 1,
            cqs: 2,
            regions: 2 * clients + 1,
            addresses: clients,
        })?;
        let own = device.create_pd(&mut port)?;
        let request_cq = device.create_cq(&mut port, &CqSpec { depth: 2 * clients })?;
        let depth = SEND_DEPTH + 1;
        let reply_cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let spec = queue_pair(own, Transport::Ud, reply_cq, SEND_DEPTH, 1);
        let replies = device.create_qp(&mut port, &spec)?;
        let capabilities = device.capabilities();
        let reply_bytes_max = REPLY_BYTES_MAX.min(capabilities.datagram_bytes_max);
        let len = ServerOptions::reply_memory(reply_bytes_max);
        let reply_region = local(&device, &mut port, own, len)?;
        let options = ServerOptions {
            worker: 0,
            workers: 1,
            replies,
            reply_cq,
            reply_bytes_max,
            reply_region,
            postlist_max: capabilities.postlist_max,
            clients_max: clients,
        };
        let side = ServerSide::new(&port, options)?;
        Ok(Self {
            device,
            port,
            side,
            request_cq,
            replies,
        })
    }

    /// Makes a domain for a client, and the client in it.
    fn admit(&mut self, window: Window) -> Result<End, EchoError> {
        let Self { device, port, .. } = self;
        let pd = device.create_pd(port)?;
        let spec = queue_pair(pd, Transport::Uc, self.request_cq, 1, 1);
        let requests = device.create_qp(port, &spec)?;
        let mut memory = |len| {
            let (access, scope) = (Access::WRITE, Scope::Qp(requests));
            device.allocate_region(port, pd, &RegionSpec { len, access, scope })
        };
        let lines = memory(window.line_bytes())?;
        let overflow = memory(window.overflow_bytes())?;
        let mut guest = Guest::new(window)?;
        let ticket = device.ticket(port, pd)?;
        let (requests_peer, replies_peer) = guest.join(
            ticket,
            &device.endpoint(port, requests)?,
            [device.remote(port, lines)?, device.remote(port, overflow)?],
        )?;
        device.connect(port, requests, &requests_peer)?;
        let address = device.create_address(port, self.replies, &replies_peer)?;
        self.serve(window, [lines, overflow], address)?;
        guest.finish()
    }

    fn serve(
        &mut self,
        window: Window,
        regions: [RegionId; 2],
        address: AddressHandle,
    ) -> Result<(), EchoError> {
        let unknown = EchoError::Control(ControlError::Unknown("region"));
        let [Some(lines), Some(overflow)] = regions.map(|id| self.port.region(id).cloned()) else {
            return Err(unknown);
        };
        self.side.attach(Chunk {
            lines,
            overflow,
            window,
            epoch: epoch(),
            address,
            reply_bytes_max: REPLY_BYTES_MAX,
        })?;
        Ok(())
    }
}

/// A client's objects, as they come together.
struct Guest {
    device: ShmDevice,
    port: ShmPort,
    window: Window,
    request_cq: CqId,
    reply_cq: CqId,
    lanes: Vec<WorkerLane>,
}

impl Guest {
    fn new(window: Window) -> Result<Self, EchoError> {
        let device = ShmDevice::guest();
        let mut port = device.open_port(&PortLimits {
            pds: 1,
            qps: 2,
            cqs: 2,
            regions: 2,
            addresses: 1,
        })?;
        let depth = window.slots() + RECV_SLACK + 1;
        let requests = CqSpec {
            depth: SEND_DEPTH_MIN + 1,
        };
        Ok(Self {
            request_cq: device.create_cq(&mut port, &requests)?,
            reply_cq: device.create_cq(&mut port, &CqSpec { depth })?,
            lanes: Vec::with_capacity(1),
            window,
            device,
            port,
        })
    }

    /// Takes up a domain; the endpoints of its request and reply queue pairs.
    fn join(
        &mut self,
        ticket: herdwick_shm::PdTicket,
        server: &herdwick_fabric::Endpoint,
        [lines, overflow]: [herdwick_fabric::Remote; 2],
    ) -> Result<(herdwick_fabric::Endpoint, herdwick_fabric::Endpoint), EchoError> {
        let (device, port) = (&self.device, &mut self.port);
        let pd = device.attach(port, ticket)?;
        let recvs = self.window.slots() + RECV_SLACK;
        let spec = queue_pair(pd, Transport::Uc, self.request_cq, SEND_DEPTH_MIN, 1);
        let requests = device.create_qp(port, &spec)?;
        let spec = queue_pair(pd, Transport::Ud, self.reply_cq, 1, recvs);
        let replies = device.create_qp(port, &spec)?;
        self.lanes.push(WorkerLane {
            epoch: epoch(),
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

    fn finish(mut self) -> Result<End, EchoError> {
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

fn queue_pair(
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

fn local(
    device: &ShmDevice,
    port: &mut ShmPort,
    pd: PdId,
    len: usize,
) -> Result<RegionId, ControlError> {
    let (access, scope) = (Access::LOCAL, Scope::Pd);
    device.allocate_region(port, pd, &RegionSpec { len, access, scope })
}

/// Any epoch but 0: this memory has had no lease before.
fn epoch() -> Epoch {
    const { Epoch::new(1) }.unwrap_or_else(|| unreachable!("1 is an epoch"))
}
