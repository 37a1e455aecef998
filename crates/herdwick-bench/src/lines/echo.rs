//! The fabric alone: HERD's machines over shared memory with an echo in the store's place, which
//! is the most that a server could do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use herdwick_fabric::Device;
use herdwick_herd::{
    Echo, RequestPath, ServerEnd, ServerTerms,
    wire::{Epoch, Window},
};
use herdwick_mica::{Clock, HashKey, Second};
use herdwick_shm::{PdSize, PdTicket, ShmDevice, ShmPort};

use super::{
    Driver,
    rig::{End, Guest, REPLY_BYTES_MAX, RigError},
};
use crate::{
    host::pin,
    target::{DriveError, Load, Target},
    workload::KeySpace,
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
                let ServerEnd { port, side, .. } = &mut host.end;
                side.pass(port, CLOCK, &mut echo);
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

/// The server's objects, as a worker of `herdwick serve` has them.
struct Host {
    device: ShmDevice,
    end: ServerEnd<ShmPort>,
}

impl Host {
    fn new(clients: usize) -> Result<Self, RigError> {
        let device = ShmDevice::host(PdSize::default());
        let terms = ServerTerms {
            worker: 0,
            workers: 1,
            clients_max: clients,
            reply_bytes_max: REPLY_BYTES_MAX,
        };
        let end = ServerEnd::open(&device, &terms)?;
        Ok(Self { device, end })
    }

    /// Makes a domain for a client, and the client in it.
    fn admit(&mut self, window: Window) -> Result<End, RigError> {
        let Self { device, end } = self;
        let pd = device.create_pd(&mut end.port)?;
        let berth = end.furnish(device, pd, RequestPath::UcWrite, window)?;
        let PdTicket { blob, fds } = device.ticket(&mut end.port, pd)?;
        let grant = end.grant(device, &berth, blob, fds.len() as u8)?;
        let mut guest = Guest::new(window, epoch(), 1)?;
        let peer = guest.join(&grant, fds)?;
        end.admit(device, &berth, &peer, epoch(), REPLY_BYTES_MAX)?;
        guest.finish()
    }
}

/// Any epoch but 0: this memory has had no lease before.
fn epoch() -> Epoch {
    const { Epoch::new(1) }.unwrap_or_else(|| unreachable!("1 is an epoch"))
}
