//! The fabric alone: HERD's state machines with an echo in the store's place, an upper bound for
//! every server.

use std::{sync::Arc, time::Duration};

use herdwick_fabric::{Device, Port};
use herdwick_herd::{
    Echo, RequestPath, ServerEnd, ServerTerms,
    handshake::WorkerTickets,
    hello::Grant,
    wire::{Epoch, Window},
};
use herdwick_request::{Clock, HashKey, Second};

use super::{
    Driver,
    endpoints::{BenchClient, End, EndpointError, REPLY_BYTES_MAX},
};
use crate::{
    helper::Helper,
    host::Stopwatch,
    target::{DriveError, Load, Target},
    workload::KeySpace,
};

/// A constant time: nothing expires in an echo.
const CLOCK: Clock = Clock {
    epoch_unix: 0,
    second: Second(1),
};
/// Any hash key: the keys are not hostile.
const HASH_KEY: HashKey = HashKey([1, 2]);

/// One client of the echo.
pub(crate) struct EchoTarget<P> {
    end: End<P>,
    driver: Driver,
    // The last client that is dropped stops the server.
    _server: Arc<Helper>,
}

impl<P: Port + Send + 'static> EchoTarget<P> {
    /// Starts an echo on `cpus`, on the first device, and connects a client to it on each of the
    /// others.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub(crate) fn endpoints<D: Device<Port = P> + Send + 'static>(
        (worker, clients): (D, Vec<D>),
        (path, window): (RequestPath, usize),
        space: KeySpace,
        cpus: &[usize],
    ) -> Result<Vec<Self>, EndpointError> {
        if space.value_size() + herdwick_herd::REPLY_BYTES_MIN > REPLY_BYTES_MAX {
            return Err(EndpointError::Value);
        }
        let window = Window::new(window).ok_or(EndpointError::Window(window))?;
        let mut host = Host::new(worker, clients.len())?;
        let ends = clients
            .into_iter()
            .map(|client| host.admit(client, path, window));
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        let server = Helper::start("echo", cpus, host.echo(space.value_size()))?;
        let server = Arc::new(server);
        let target = |end| Self {
            end,
            driver: Driver::new(space, false),
            _server: Arc::clone(&server),
        };
        Ok(ends.into_iter().map(target).collect())
    }
}

impl<P: Port> Target for EchoTarget<P> {
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

/// The server side, set up as in a worker of `herdwick serve`.
struct Host<D: Device> {
    device: D,
    end: ServerEnd<D::Port>,
}

impl<D: Device> Host<D> {
    fn new(device: D, clients: usize) -> Result<Self, EndpointError> {
        let terms = ServerTerms {
            worker: 0,
            workers: 1,
            clients_max: clients,
            // The thread does nothing else, and so never sleeps.
            spin: Duration::MAX,
            reply_bytes_max: REPLY_BYTES_MAX,
        };
        let end = ServerEnd::open(&device, &terms)?;
        Ok(Self { device, end })
    }

    /// Creates a protection domain for a client, and the client in it.
    fn admit(
        &mut self,
        client: D,
        path: RequestPath,
        window: Window,
    ) -> Result<End<D::Port>, EndpointError> {
        let Self { device, end } = self;
        let pd = device.create_pd_for(&mut end.port, &path.pd_room(window))?;
        let resources = end.allocate(device, pd, path, window)?;
        let ticket = device.export_pd(&mut end.port, pd)?;
        let (blob, fds) = (ticket.blob.clone(), ticket.fds.len() as u8);
        let grant = Grant {
            epoch: epoch().get(),
            window: window.slots() as u16,
            reply_bytes_max: REPLY_BYTES_MAX as u32,
            workers: vec![end.grant(device, &resources, blob, fds)?],
        };
        let mut client = BenchClient::new(client, (path, window), epoch(), 1)?;
        let tickets = WorkerTickets {
            domain: ticket,
            store: None,
        };
        for peer in client.accept(&grant, vec![tickets])?.workers {
            end.admit(device, &resources, &peer, epoch(), REPLY_BYTES_MAX)?;
        }
        client.finish()
    }

    /// Returns one pass of a worker's loop, to be called repeatedly.
    fn echo(self, value_size: usize) -> impl FnMut() {
        let Self { device, mut end } = self;
        let (mut echo, watch) = (Echo::new(value_size), Stopwatch::start());
        // A lossless fabric has no timers, so the clock need not be read.
        let timed = !device.capabilities().lossless;
        move || {
            let now = if timed { watch.ns() } else { 0 };
            let now = Duration::from_nanos(now);
            end.side.round(&mut end.port, (now, CLOCK), &mut echo);
        }
    }
}

/// Returns an arbitrary epoch other than 0: the memory is new, so no earlier lease has used one.
fn epoch() -> Epoch {
    const { Epoch::new(1) }.unwrap_or_else(|| unreachable!("1 is an epoch"))
}
