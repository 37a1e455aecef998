use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

use herdwick_mem::spsc;
use herdwick_mica::{HashKey, Store, StoreConfig};
use mio::{Events, Poll, Waker};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{
    accept::{self, Acceptor, WAKE},
    config::{Address, Config, StartError},
    crossing::Crossing,
    facts::Facts,
    front::{Front, Tokens},
    parking::Bell,
    stopping::Stopping,
    tally::Tally,
    tcp::{Owners, Stream, TcpFront},
    time::Timer,
    worker::{EVENTS, Worker},
};

/// A running server. Dropping it shuts it down.
pub struct Server {
    addresses: Vec<Address>,
    workers: usize,
    stopping: Arc<Stopping>,
    acceptor: Arc<Waker>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts a server; when this returns, it accepts connections.
///
/// # Errors
/// [`StartError`]: nothing is left running.
pub fn spawn(config: Config) -> Result<Server, StartError> {
    let cpus = allowed_cpus();
    let workers = config.settle(cpus.len())?;
    let stores = stores(&config, workers)?;
    let opened = accept::open(&config.listen)?;
    let (listeners, addresses): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    let port = addresses.iter().find_map(Address::port).unwrap_or(0);
    let facts = Arc::new(Facts::new(&config, workers, port));

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
    let stopping = Arc::new(Stopping::new(bells.clone()));
    let accept_poll = Poll::new().map_err(refused("a poll"))?;
    let acceptor = Waker::new(accept_poll.registry(), WAKE).map_err(refused("a waker"))?;

    let mut server = Server {
        addresses,
        workers,
        stopping: Arc::clone(&stopping),
        acceptor: Arc::new(acceptor),
        threads: Vec::new(),
    };
    let timer = Timer::start();
    let mut intakes = Vec::new();
    let crossings = Crossing::connect(&bells);
    let parts = stores.stores.into_iter().zip(crossings).zip(polls);
    for (index, ((store, crossing), poll)) in parts.enumerate() {
        let (intake, taken) = spsc::channel::<Stream>(config.connections_max);
        intakes.push((intake, bells[index].clone()));
        let owners = Owners {
            hash_key: stores.hash_key,
            workers,
            own: index,
        };
        let mut fronts: Vec<Box<dyn Front + Send>> =
            vec![Box::new(TcpFront::new(Arc::clone(&facts), owners, taken))];
        for (number, front) in fronts.iter_mut().enumerate() {
            front
                .register(poll.registry(), Tokens::of_front(number))
                .map_err(refused("a front's sources"))?;
        }
        let worker = Worker {
            store,
            fronts,
            crossing,
            poll,
            events: Events::with_capacity(EVENTS),
            bell: bells[index].clone(),
            timer,
            spin: config.spin,
            stopping: Arc::clone(&stopping),
            tally: Tally::default(),
            drain_end: None,
            drained: false,
        };
        let cpu = (cpus.len() > workers).then(|| cpus[index]);
        server.start(format!("worker-{index}"), move || {
            pin(cpu);
            worker.run();
        })?;
    }
    let mut acceptor = Acceptor {
        poll: accept_poll,
        listeners,
        intakes,
        facts,
        stopping,
        next: 0,
    };
    acceptor
        .register()
        .map_err(refused("the listeners' events"))?;
    server.start("accept".into(), move || acceptor.run())?;
    Ok(server)
}

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

    /// Accepts no more, answers what has arrived, and ends: within seconds, even if a client does
    /// not read its replies.
    pub fn shutdown(mut self) {
        self.stop();
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
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop();
        }
    }
}

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
        memory_bytes: config.memory_bytes / workers,
        item_bytes_max: config.item_bytes_max,
        hash_key,
    };
    let stores = (0..workers)
        .map(|_| Store::new(&store))
        .collect::<Result<_, _>>()?;
    Ok(Stores { stores, hash_key })
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
