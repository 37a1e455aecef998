//! Starts and stops a server: opens its stores, listeners and devices, wires the threads together,
//! and joins them at the end. A start that fails leaves nothing running.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
};

use herdwick_mem::spsc;
use herdwick_providers::Fabric;
use mio::{Events, Poll, Waker};

use crate::{
    context::Context,
    herd::{
        fabrics::{FabricStatus, OpenFabrics},
        lease::{Closing, HelloResponder, LeaseService, WorkerEnd},
    },
    memcached::{MemcachedFront, Owners},
    memory::{
        file::MemoryFile,
        fit_config::{self, Reduced},
        offload::OffloadParts,
        recovery::Restart,
        split::{LeaseBounds, hello, lease_socket},
        stores::{Stores, stores},
    },
    net::{auth::Auth, stream::Stream, unix::SocketFile},
    preflight::Preflight,
    runtime::{
        cross_core::CrossCore,
        front::{Front, Tokens},
        invalidator::Invalidator,
        offload::OffloadPart,
        parking::WakeupFd,
        partition_lock::Partitions,
        pin::{allowed_cpus, on_cpu},
        readiness::WAKE,
        shutdown::Shutdown,
        spin::AdaptiveSpin,
        store::Store,
        time::ServerClock,
        upload_permits::Permits,
        worker::{EVENTS, Worker, WorkerState},
    },
    settings::{
        config::Config,
        error::{StartError, refused},
        listen_address::Address,
        tuning::Tuning,
    },
    telemetry::{snapshot::WorkerCounters, stats::PollCounters, watch::EventQueue},
    threads::{
        accept::{self, Acceptor, HandshakeQueue},
        event_writer::{Asking, EventWriter},
        metrics::HttpListener,
    },
};

/// A running server. Dropping it shuts it down.
pub struct Server {
    context: Arc<Context>,
    addresses: Vec<Address>,
    socket_file: Option<SocketFile>,
    udp_addresses: Vec<SocketAddr>,
    left_out: Vec<StartError>,
    reduced: Vec<Reduced>,
    lasting: Option<(MemoryFile, Restart)>,
    fabrics: Vec<(Fabric, FabricStatus)>,
    workers: usize,
    timer: ServerClock,
    shutdown: Arc<Shutdown>,
    acceptor: Arc<Waker>,
    /// Wakes the thread for TLS handshakes, if there is one.
    handshakes: Option<Arc<Waker>>,
    manager: Option<Closing>,
    metrics: Option<(SocketAddr, WakeupFd)>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts a server. When this returns, it accepts connections.
///
/// # Errors
/// [`StartError`]: nothing is left running.
pub fn spawn(mut config: Config) -> Result<Server, StartError> {
    let cpus = allowed_cpus();
    let (workers, reduced) = fit_config::settle(&mut config, cpus.len())?;
    let pinned = config.pin.cpus(&cpus, workers)?;
    let fabrics = OpenFabrics::open(&mut config, workers)?;
    let mut left_out = Vec::new();
    let socket = lease_socket(&mut config, &mut left_out)?;
    let leases = LeaseBounds::new(&config);
    let preflight = Preflight::open(&config, &mut left_out)?;
    let (opened, metrics, admitted) = (preflight.opened, preflight.metrics, preflight.credentials);
    let mut stores = stores(&config, workers)?;
    let timer = stores.timer;
    let (polls, wakeups) = polls(workers)?;
    let mut service = leases.service(&fabrics, &wakeups, socket)?;
    let observer = metrics.as_ref().map(|metrics| &metrics.wakeup);
    let (cross_cores, observing) = CrossCore::connect(&wakeups, observer);
    let hello = hello(&config, workers, stores.of_hellos(), service.as_mut());
    let clock = timer.clock(timer.now());
    let limits = (workers, stores.memory_limit(&config));
    let counters = (hello.shared(), stores.offload.counters.take());
    let context = Context::new(&config, limits, &opened, admitted, counters, clock);
    let context = Arc::new(context);
    let (accept_poll, acceptor) = poll_with_waker()?;
    let mut server = Server {
        context: Arc::clone(&context),
        addresses: opened.addresses,
        socket_file: opened.socket_file,
        udp_addresses: opened.udp_addresses,
        left_out,
        reduced,
        lasting: stores.lasting.take(),
        fabrics: fabrics.statuses().to_vec(),
        workers,
        timer,
        shutdown: Arc::new(Shutdown::new(wakeups.clone())),
        acceptor: Arc::new(acceptor),
        handshakes: None,
        manager: None,
        metrics: None,
        threads: Vec::new(),
    };
    server.open_metrics(metrics.zip(observing))?;
    let ends = server.open_manager(service, timer)?;
    let inputs = WorkerInputs {
        config: &config,
        fabrics: &fabrics,
        context: &context,
        hello: &hello,
        pinned: pinned.as_deref(),
        spare_cpus: cpus.len() > workers,
        wakeups: &wakeups,
        timer,
    };
    let parts = cross_cores.into_iter().zip(polls);
    let intakes = server.start_workers(&inputs, stores, parts, ends, &leases)?;
    let acceptor = Acceptor {
        poll: accept_poll,
        handshake_queue: server.start_handshakes(config.connections_max)?,
        listeners: opened.listeners,
        udp: opened.udp,
        intakes,
        waiting: VecDeque::new(),
        context,
        timer,
        shutdown: Arc::clone(&server.shutdown),
        next: 0,
    };
    server.start_acceptor(acceptor)?;
    Ok(server)
}

/// Creates the accepting thread's poll and its waker.
fn poll_with_waker() -> Result<(Poll, Waker), StartError> {
    let poll = Poll::new().map_err(refused("a poll"))?;
    let waker = Waker::new(poll.registry(), WAKE).map_err(refused("a waker"))?;
    Ok((poll, waker))
}

/// Creates each worker's poll and the descriptor that wakes it.
fn polls(workers: usize) -> Result<(Vec<Poll>, Vec<WakeupFd>), StartError> {
    let polls = (0..workers)
        .map(|_| Poll::new())
        .collect::<Result<Vec<_>, _>>();
    let polls = polls.map_err(refused("a poll"))?;
    let wakeups = polls
        .iter()
        .map(|poll| Waker::new(poll.registry(), WAKE).map(WakeupFd::new));
    let wakeups = wakeups
        .collect::<Result<_, _>>()
        .map_err(refused("a waker"))?;
    Ok((polls, wakeups))
}

/// What the workers are started with.
struct WorkerInputs<'a> {
    config: &'a Config,
    fabrics: &'a OpenFabrics,
    context: &'a Arc<Context>,
    hello: &'a Arc<HelloResponder>,
    /// The CPU of each worker, if workers are pinned.
    pinned: Option<&'a [usize]>,
    /// Whether there are more CPUs than workers.
    spare_cpus: bool,
    wakeups: &'a [WakeupFd],
    timer: ServerClock,
}

/// For each worker, its ends of the lease manager's channels, one per fabric.
type WorkersEnds = Vec<Vec<(Fabric, WorkerEnd)>>;

/// For each worker, the queue of accepted connections and the descriptor that wakes it.
type Intakes = Vec<(spsc::Producer<Stream>, WakeupFd)>;

impl Server {
    /// Returns the first address it listens on.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.addresses[0]
    }

    /// Returns every address it listens on.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns the addresses of its UDP sockets.
    #[must_use]
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        &self.udp_addresses
    }

    /// Returns why it does not listen on some of the configured addresses, or offers no shared
    /// memory.
    #[must_use]
    pub fn left_out(&self) -> &[StartError] {
        &self.left_out
    }

    /// Returns what was reduced because the memory did not suffice, and to what.
    #[must_use]
    pub fn reduced(&self) -> &[Reduced] {
        &self.reduced
    }

    /// Returns the address of the metrics, if they are served.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(address, _)| *address)
    }

    /// Returns what was recovered of the previous server's items, if they are kept in a file.
    #[must_use]
    pub fn restart(&self) -> Option<&Restart> {
        self.lasting.as_ref().map(|(_, restart)| restart)
    }

    /// Returns which device of a fabric is used, or why none is.
    #[must_use]
    pub fn fabric(&self, fabric: Fabric) -> &FabricStatus {
        let found = self.fabrics.iter().find(|(given, _)| *given == fabric);
        found.map_or(&FabricStatus::Off, |(_, status)| status)
    }

    /// Returns the number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the log verbosity: memcached's `-v`, or the value that a client has set since with
    /// `verbosity`.
    #[must_use]
    pub fn verbosity(&self) -> u8 {
        self.context.tunables.verbosity.load(Relaxed)
    }

    /// Changes the settings that may change while the server runs.
    pub fn tune(&self, tuning: &Tuning) {
        self.context.tunables.set(tuning);
        let limits = &self.context.limits;
        limits
            .connections_max
            .store(tuning.connections_max, Relaxed);
    }

    /// Reads the users again, for new connections. If the file cannot be used, the previous users
    /// stay.
    ///
    /// # Errors
    /// [`crate::AuthError`].
    pub fn reload_users(&self) -> Result<(), crate::AuthError> {
        self.context.auth.as_ref().map_or(Ok(()), Auth::reload)
    }

    /// Reads the certificates and key again, for new connections. If they cannot be used, the
    /// previous ones stay.
    ///
    /// # Errors
    /// [`crate::TlsError`].
    pub fn reload_certificates(&self) -> Result<(), crate::TlsError> {
        let second = self.timer.clock(self.timer.now()).second.0;
        let certificates = self.context.certificates.as_ref();
        certificates.map_or(Ok(()), |certificates| certificates.reload(second))
    }

    /// Returns what decides, for another thread, which clients of a cluster are served, and invalidates all items.
    #[must_use]
    pub fn invalidator(&self) -> Invalidator {
        Invalidator::new(&self.context, &self.shutdown, self.workers)
    }

    /// Stops accepting, answers what has arrived, and ends within seconds, even if a client does
    /// not read its replies.
    pub fn shutdown(mut self) {
        self.stop();
    }

    /// Starts serving metrics, if they are configured.
    fn open_metrics(&mut self, parts: Option<(HttpListener, CrossCore)>) -> Result<(), StartError> {
        let Some((listener, cross_core)) = parts else {
            return Ok(());
        };
        self.metrics = Some(listener.place());
        let reporter = listener.reporter(cross_core, &self.context, self.timer, &self.shutdown);
        self.start("metrics".into(), move || reporter.run())
    }

    /// Starts the thread for TLS handshakes, if TLS is configured.
    fn start_handshakes(&mut self, most: usize) -> Result<Option<HandshakeQueue>, StartError> {
        if self.context.certificates.is_none() {
            return Ok(None);
        }
        let rest = (&self.context, self.timer, &self.shutdown);
        let (thread, queue, waker) = accept::handshakes(most, &self.acceptor, rest)?;
        self.handshakes = Some(waker);
        self.start("tls".into(), move || thread.run())?;
        Ok(Some(queue))
    }

    /// Starts the thread that accepts connections.
    fn start_acceptor(&mut self, mut acceptor: Acceptor) -> Result<(), StartError> {
        acceptor
            .register()
            .map_err(refused("the listeners' events"))?;
        self.start("accept".into(), move || acceptor.run())
    }

    /// Starts the lease manager. Returns each worker's ends of its channels, or an empty list.
    fn open_manager(
        &mut self,
        service: Option<LeaseService>,
        timer: ServerClock,
    ) -> Result<WorkersEnds, StartError> {
        let Some(LeaseService {
            manager,
            ends,
            closing,
            ..
        }) = service
        else {
            return Ok(Vec::new());
        };
        let stop = closing.flag();
        self.manager = Some(closing);
        self.start("leases".into(), move || manager.run(timer, &stop))?;
        Ok(ends)
    }

    fn start_workers(
        &mut self,
        inputs: &WorkerInputs<'_>,
        stores: Stores,
        parts: impl Iterator<Item = (CrossCore, Poll)>,
        ends: WorkersEnds,
        leases: &LeaseBounds,
    ) -> Result<Intakes, StartError> {
        let mut intakes = Intakes::new();
        let (writer, event_queues) = self.start_writer(inputs)?;
        let mut ends = ends.into_iter();
        let permits = stores.stores.first().map_or(0, Store::staged_max);
        let permits = Permits::new(permits, self.workers);
        let offload = self.start_offload(stores.offload)?;
        let hot_keys = inputs.config.hot_keys;
        let partitions = Partitions::new(stores.stores, event_queues, hot_keys, offload);
        let partitions = Arc::new(partitions);
        for (index, (cross_core, poll)) in parts.enumerate() {
            let (intake, taken) = spsc::channel::<Stream>(inputs.config.connections_max);
            intakes.push((intake, inputs.wakeups[index].clone()));
            let owners = Owners {
                hash_key: stores.hash_key,
                workers: self.workers,
                own: index,
            };
            let mut fronts: Vec<Box<dyn Front + Send>> = vec![Box::new(MemcachedFront::new(
                Arc::clone(inputs.context),
                Arc::clone(inputs.hello),
                owners,
                taken,
                writer.clone(),
                Arc::clone(&permits),
            ))];
            for end in ends.next().into_iter().flatten() {
                let (place, clock) = ((index, self.workers), (stores.hash_key, inputs.timer));
                fronts.push(leases.front(place, inputs.fabrics, end, clock, &stores.published)?);
            }
            for (number, front) in fronts.iter_mut().enumerate() {
                front
                    .register(poll.registry(), Tokens::of_front(number))
                    .map_err(refused("a front's sources"))?;
            }
            let worker = Worker {
                context: Arc::clone(inputs.context),
                partitions: Arc::clone(&partitions),
                permits: Arc::clone(&permits),
                fronts,
                cross_core,
                poll,
                events: Events::with_capacity(EVENTS),
                wakeup: inputs.wakeups[index].clone(),
                timer: inputs.timer,
                spin: AdaptiveSpin::new(inputs.config.spin, inputs.spare_cpus),
                shutdown: Arc::clone(&self.shutdown),
                counters: WorkerCounters::default(),
                polling: PollCounters::default(),
                index,
                state: WorkerState::default(),
            };
            on_cpu(inputs.pinned.map(|cpus| cpus[index]), || {
                self.start(format!("worker-{index}"), move || worker.run())
            })?;
        }
        Ok(intakes)
    }

    /// Starts the thread that keeps the secondary store up to date, if there is one. Returns each partition's
    /// part.
    fn start_offload(&mut self, parts: OffloadParts) -> Result<Vec<OffloadPart>, StartError> {
        if let Some(thread) = parts.thread {
            let shutdown = Arc::clone(&self.shutdown);
            self.start("offload".into(), move || thread.run(shutdown))?;
        }
        Ok(parts.parts)
    }

    /// Starts the thread that serves watchers. Returns the channel to it, and an event queue for each
    /// worker.
    fn start_writer(
        &mut self,
        inputs: &WorkerInputs<'_>,
    ) -> Result<(Sender<Asking>, Vec<EventQueue>), StartError> {
        let shared = &inputs.context.watch;
        let ends = (0..self.workers).map(|_| EventQueue::new(Arc::clone(shared)));
        let (event_queues, read) = ends.unzip();
        let (writer, arrivals) = mpsc::channel();
        let thread = EventWriter {
            event_queues: read,
            arrivals,
            shared: Arc::clone(shared),
            context: Arc::clone(inputs.context),
            timer: inputs.timer,
        };
        self.start("watch".into(), move || thread.run())?;
        Ok((writer, event_queues))
    }

    fn start(
        &mut self,
        name: String,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        let spawned = thread::Builder::new().name(name).spawn(run);
        self.threads.push(spawned.map_err(refused("a thread"))?);
        Ok(())
    }

    fn stop(&mut self) {
        self.shutdown.ask();
        // Fails only while a wake is pending already.
        let _ = self.acceptor.wake();
        let _ = self.handshakes.as_ref().map(|thread| thread.wake());
        if let Some(manager) = &self.manager {
            manager.ask();
        }
        if let Some((_, wakeup)) = &self.metrics {
            wakeup.ring();
        }
        let mut whole = true;
        for thread in self.threads.drain(..) {
            // A panic was already printed to stderr.
            whole &= thread.join().is_ok();
        }
        // Only if every thread has ended as it should: after a panic the last stores may be torn.
        if let Some((file, _)) = self.lasting.take().filter(|_| whole) {
            // On failure the next server treats the file as one of a killed server.
            let _ = file.end();
        }
        self.socket_file = None;
        self.addresses.truncate(1);
        self.manager = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop();
        }
    }
}
