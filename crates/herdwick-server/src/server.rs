use std::{
    io,
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
};

use herdwick_herd::{ServerOptions, hello::Offer};
use herdwick_mem::spsc;
use herdwick_mica::{HashKey, Store, StoreConfig, StoreError};
use mio::{Events, Poll, Waker};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{
    accept::{self, Acceptor, WAKE},
    auth::{Auth, AuthError},
    config::{Address, Config, StartError},
    crossing::Crossing,
    facts::Facts,
    front::{Front, Tokens},
    herd::HerdConfig,
    lease::{Closing, DeskConfig, Host, Office, WorkerEnd},
    parking::Bell,
    partition::Partition,
    stopping::Stopping,
    tally::Tally,
    tcp::{Owners, Stream, TcpFront},
    time::Timer,
    watch::{Asking, Journal, Teller},
    ways,
    worker::{EVENTS, Worker},
};

/// A running server. Dropping it shuts it down.
pub struct Server {
    facts: Arc<Facts>,
    addresses: Vec<Address>,
    workers: usize,
    stopping: Arc<Stopping>,
    acceptor: Arc<Waker>,
    desk: Option<Closing>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts a server; when this returns, it accepts connections.
///
/// # Errors
/// [`StartError`]: nothing is left running.
pub fn spawn(config: Config) -> Result<Server, StartError> {
    let cpus = allowed_cpus();
    let workers = config.settle(cpus.len())?;
    let leases = LeaseBounds::new(&config);
    let stores = stores(&config, workers)?;
    let opened = accept::open(&config.listen, config.backlog)?;
    let (listeners, addresses): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    let timer = Timer::start();
    let polls = (0..workers)
        .map(|_| Poll::new())
        .collect::<Result<Vec<_>, _>>();
    let polls = polls.map_err(refused("a poll"))?;
    let bells = polls
        .iter()
        .map(|poll| Waker::new(poll.registry(), WAKE).map(Bell::new));
    let bells: Vec<Bell> = bells
        .collect::<Result<_, _>>()
        .map_err(refused("a waker"))?;
    let office = leases.office(&config, &bells)?;
    let offer = Offer {
        workers,
        hash_key: stores.hash_key,
        item_bytes_max: config.item_bytes_max,
        shm: None,
    };
    let host = Host::new(offer, office.as_ref(), timer);
    let port = addresses.iter().find_map(Address::port).unwrap_or(0);
    let facts = Arc::new(Facts::new(&config, workers, port, host)?);
    let accept_poll = Poll::new().map_err(refused("a poll"))?;
    let acceptor = Waker::new(accept_poll.registry(), WAKE).map_err(refused("a waker"))?;

    let mut server = Server {
        facts: Arc::clone(&facts),
        addresses,
        workers,
        stopping: Arc::new(Stopping::new(bells.clone())),
        acceptor: Arc::new(acceptor),
        desk: None,
        threads: Vec::new(),
    };
    let ends = server.open_desk(office, timer)?;
    let crew = Crew {
        config: &config,
        facts: &facts,
        cpus: &cpus,
        bells: &bells,
        timer,
    };
    let intakes = server.start_workers(&crew, stores, polls, ends, &leases)?;
    let mut acceptor = Acceptor {
        poll: accept_poll,
        listeners,
        intakes,
        facts,
        stopping: Arc::clone(&server.stopping),
        next: 0,
    };
    acceptor
        .register()
        .map_err(refused("the listeners' events"))?;
    server.start("accept".into(), move || acceptor.run())?;
    Ok(server)
}

/// What all workers are started with.
struct Crew<'a> {
    config: &'a Config,
    facts: &'a Arc<Facts>,
    cpus: &'a [usize],
    bells: &'a [Bell],
    timer: Timer,
}

/// Where accepted connections of each worker go, and how it is woken for them.
type Intakes = Vec<(spsc::Producer<Stream>, Bell)>;

impl Server {
    /// The first address it listens on.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.addresses[0]
    }

    /// Every address it listens on.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// How many workers it has.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Reads again what may change while the server runs: the users. What was read before stays if
    /// it cannot be used.
    ///
    /// # Errors
    /// [`AuthError`].
    pub fn reload(&self) -> Result<(), AuthError> {
        self.facts.auth.as_ref().map_or(Ok(()), Auth::reload)
    }

    /// Accepts no more, answers what has arrived, and ends: within seconds, even if a client does
    /// not read its replies.
    pub fn shutdown(mut self) {
        self.stop();
    }

    /// Starts the desk; gives each worker's end of it, or none.
    fn open_desk(
        &mut self,
        office: Option<Office>,
        timer: Timer,
    ) -> Result<Vec<WorkerEnd>, StartError> {
        let Some(Office {
            desk,
            ends,
            closing,
            ..
        }) = office
        else {
            return Ok(Vec::new());
        };
        let stop = closing.flag();
        self.desk = Some(closing);
        self.start("leases".into(), move || desk.run(timer, &stop))?;
        Ok(ends)
    }

    fn start_workers(
        &mut self,
        crew: &Crew<'_>,
        stores: Stores,
        polls: Vec<Poll>,
        ends: Vec<WorkerEnd>,
        leases: &LeaseBounds,
    ) -> Result<Intakes, StartError> {
        let mut intakes = Intakes::new();
        let (teller, journals) = self.start_teller(crew)?;
        let mut ends = ends.into_iter();
        let crossings = Crossing::connect(crew.bells);
        let parts = stores.stores.into_iter().zip(crossings).zip(polls);
        for (index, (((store, crossing), poll), journal)) in parts.zip(journals).enumerate() {
            let (intake, taken) = spsc::channel::<Stream>(crew.config.connections_max);
            intakes.push((intake, crew.bells[index].clone()));
            let owners = Owners {
                hash_key: stores.hash_key,
                workers: self.workers,
                own: index,
            };
            let mut fronts: Vec<Box<dyn Front + Send>> = vec![Box::new(TcpFront::new(
                Arc::clone(crew.facts),
                owners,
                taken,
                teller.clone(),
            ))];
            if let Some(end) = ends.next() {
                fronts.push(leases.front(index, self.workers, end)?);
            }
            for (number, front) in fronts.iter_mut().enumerate() {
                front
                    .register(poll.registry(), Tokens::of_front(number))
                    .map_err(refused("a front's sources"))?;
            }
            let worker = Worker {
                partition: Partition::new(store, journal),
                fronts,
                crossing,
                poll,
                events: Events::with_capacity(EVENTS),
                bell: crew.bells[index].clone(),
                timer: crew.timer,
                spin: crew.config.spin,
                stopping: Arc::clone(&self.stopping),
                tally: Tally::default(),
                drain_end: None,
                drained: false,
            };
            let cpu = (crew.cpus.len() > self.workers).then(|| crew.cpus[index]);
            self.start(format!("worker-{index}"), move || {
                pin(cpu);
                worker.run();
            })?;
        }
        Ok(intakes)
    }

    /// Starts the thread that tells watchers; gives the way to it, and a journal for each worker.
    fn start_teller(
        &mut self,
        crew: &Crew<'_>,
    ) -> Result<(Sender<Asking>, Vec<Journal>), StartError> {
        let shared = &crew.facts.watch;
        let ends = (0..self.workers).map(|_| Journal::new(Arc::clone(shared)));
        let (journals, read) = ends.unzip();
        let (teller, arrivals) = mpsc::channel();
        let thread = Teller {
            journals: read,
            arrivals,
            shared: Arc::clone(shared),
            facts: Arc::clone(crew.facts),
            started_unix: crew.timer.started_unix(),
        };
        self.start("watch".into(), move || thread.run())?;
        Ok((teller, journals))
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
        self.stopping.ask();
        // Fails only while a wake is pending already.
        let _ = self.acceptor.wake();
        if let Some(desk) = &self.desk {
            desk.ask();
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so on stderr.
            let _ = thread.join();
        }
        for address in &self.addresses {
            if let Address::Unix(path) = address {
                // The next start replaces it anyway.
                let _ = std::fs::remove_file(path);
            }
        }
        self.addresses.truncate(1);
        self.desk = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop();
        }
    }
}

/// How much leases may hold, all together. It is set aside from the memory for items: what the
/// server holds fits its limit.
struct LeaseBounds {
    clients_max: usize,
    bytes_max: usize,
    /// Where each worker puts large replies, whatever leases there are.
    reply_bytes: usize,
}

impl LeaseBounds {
    /// A sixteenth of the memory, within these bounds: 8 MiB are full windows for a dozen clients of
    /// three workers.
    const BYTES: std::ops::RangeInclusive<usize> = 8 << 20..=256 << 20;
    /// But, where there is little, no more than this part.
    const PART: usize = 8;

    fn new(config: &Config) -> Self {
        Self::within(config, config.memory_bytes)
    }

    /// What they would be if the memory were `memory_bytes`.
    fn within(config: &Config, memory_bytes: usize) -> Self {
        let Some(leases) = &config.leases else {
            return Self {
                clients_max: 0,
                bytes_max: 0,
                reply_bytes: 0,
            };
        };
        let share = (memory_bytes / 16).clamp(*Self::BYTES.start(), *Self::BYTES.end());
        Self {
            clients_max: leases.clients_max,
            bytes_max: share.min(memory_bytes / Self::PART),
            reply_bytes: ServerOptions::reply_memory(REPLY_BYTES_MAX),
        }
    }

    /// What is left for items.
    fn left(&self, memory_bytes: usize, workers: usize) -> usize {
        memory_bytes.saturating_sub(self.bytes_max + self.reply_bytes * workers)
    }

    fn office(&self, config: &Config, bells: &[Bell]) -> Result<Option<Office>, StartError> {
        let Some(leases) = &config.leases else {
            return Ok(None);
        };
        let desk = DeskConfig {
            leases_max: self.clients_max,
            reply_bytes_max: REPLY_BYTES_MAX as u32,
            bytes_max: self.bytes_max,
            lease_bytes: ways::lease_bytes,
        };
        match Office::open(&leases.directory, leases.mode, desk, bells) {
            Ok(office) => Ok(Some(office)),
            Err(source) => Err(StartError::Leases {
                directory: leases.directory.clone(),
                source,
            }),
        }
    }

    fn front(
        &self,
        worker: usize,
        workers: usize,
        end: WorkerEnd,
    ) -> Result<Box<dyn Front + Send>, StartError> {
        let config = HerdConfig {
            worker,
            workers,
            leases_max: self.clients_max,
            reply_bytes_max: REPLY_BYTES_MAX,
            end,
        };
        ways::shm(config).map_err(|error| refused("shared memory")(io::Error::other(error)))
    }
}

/// Largest reply over a fabric; clients fetch larger values over their memcached connection.
const REPLY_BYTES_MAX: usize = 4096;

/// The partitions, and the key of the hash that spreads over them.
struct Stores {
    stores: Vec<Store>,
    hash_key: HashKey,
}

fn stores(config: &Config, workers: usize) -> Result<Stores, StartError> {
    let mut seed = [0u8; 16];
    getrandom::fill(&mut seed).map_err(|error| refused("random bytes")(io::Error::other(error)))?;
    let (low, high) = seed.split_at(8);
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    let hash_key = HashKey([word(low), word(high)]);
    let store = StoreConfig {
        memory_bytes: partition_bytes(config, workers, config.memory_bytes),
        item_bytes_max: config.item_bytes_max,
        hash_key,
    };
    let stores = (0..workers)
        .map(|_| Store::new(&store))
        .collect::<Result<_, _>>()
        .map_err(|error| no_store(config, workers, error))?;
    Ok(Stores { stores, hash_key })
}

/// What each partition would have of `memory_bytes`.
fn partition_bytes(config: &Config, workers: usize, memory_bytes: usize) -> usize {
    LeaseBounds::within(config, memory_bytes).left(memory_bytes, workers) / workers
}

fn no_store(config: &Config, workers: usize, error: StoreError) -> StartError {
    let StoreError::TooSmall { needed, .. } = error else {
        return StartError::Store(error);
    };
    let least = (workers * needed) >> 20;
    let enough = |mb: &usize| partition_bytes(config, workers, mb << 20) >= needed;
    StartError::Memory {
        given: config.memory_bytes >> 20,
        // Leases take an eighth at most, and each worker half a MiB.
        needed: (least..=2 * least + workers + 1)
            .find(enough)
            .unwrap_or(2 * least),
        workers,
        item_bytes_max: config.item_bytes_max,
    }
}

fn refused(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

/// The CPUs that this process may use.
fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// Keeps this thread on one CPU. If that is refused, the scheduler decides.
fn pin(cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu);
        let _ = sched_setaffinity(None, &set);
    }
}
