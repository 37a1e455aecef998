//! The fabric alone: HERD's machines over shared memory with an echo in the store's place, which
//! is the most that a server could do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use herdwick_fabric::{
    Access, AddressHandle, ControlError, CqId, CqSpec, Device, Port, PortLimits, QpId, RegionId,
    RegionSpec, Scope, Transport,
};
use herdwick_herd::{
    BATCH, Chunk, Echo, SEND_DEPTH_MIN, ServerOptions, ServerSide,
    wire::{Epoch, Window},
};
use herdwick_mica::{Clock, HashKey, Second};
use herdwick_shm::{PdSize, ShmDevice, ShmPort};

use super::{
    Driver,
    rig::{End, Guest, REPLY_BYTES_MAX, RigError, local, queue_pair},
};
use crate::{
    host::pin,
    target::{DriveError, Load, Target},
    workload::KeySpace,
};

/// Replies on their way.
const SEND_DEPTH: usize = if 2 * BATCH > SEND_DEPTH_MIN {
    2 * BATCH
} else {
    SEND_DEPTH_MIN
};
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

impl EchoTarget {
    /// Starts an echo on `cpus` and connects `clients` clients to it.
    ///
    /// # Errors
    /// [`RigError`].
    pub(crate) fn rig(
        clients: usize,
        window: usize,
        space: KeySpace,
        cpus: &[usize],
    ) -> Result<Vec<Self>, RigError> {
        if space.value_size() + herdwick_herd::REPLY_BYTES_MIN > REPLY_BYTES_MAX {
            return Err(RigError::Value);
        }
        let window = Window::new(window).ok_or(RigError::Window(window))?;
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
    fn start(mut host: Host, value_size: usize, cpus: Vec<usize>) -> Result<Self, RigError> {
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
    fn new(clients: usize) -> Result<Self, RigError> {
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
        let depth = SEND_DEPTH;
        let reply_cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let spec = queue_pair(own, Transport::Ud, reply_cq, SEND_DEPTH, 0);
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
    fn admit(&mut self, window: Window) -> Result<End, RigError> {
        let Self { device, port, .. } = self;
        let pd = device.create_pd(port)?;
        let spec = queue_pair(pd, Transport::Uc, self.request_cq, 1, 0);
        let requests = device.create_qp(port, &spec)?;
        let mut memory = |len| {
            let (access, scope) = (Access::WRITE, Scope::Qp(requests));
            device.allocate_region(port, pd, &RegionSpec { len, access, scope })
        };
        let lines = memory(window.line_bytes())?;
        let overflow = memory(window.overflow_bytes())?;
        let mut guest = Guest::new(window, 1)?;
        let ticket = device.ticket(port, pd)?;
        let (requests_peer, replies_peer) = guest.join(
            ticket,
            &device.endpoint(port, requests)?,
            [device.remote(port, lines)?, device.remote(port, overflow)?],
            epoch(),
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
    ) -> Result<(), RigError> {
        let unknown = RigError::Control(ControlError::Unknown("region"));
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

/// Any epoch but 0: this memory has had no lease before.
fn epoch() -> Epoch {
    const { Epoch::new(1) }.unwrap_or_else(|| unreachable!("1 is an epoch"))
}
