//! Opens the partitions: in memory, or in the memory file (`-e`) with the items of the previous server.

use std::{num::NonZero, path::Path, sync::Arc, thread, time::Duration};

use herdwick_fabric::{SharedMemory, Sharing};
use herdwick_mica::StoreConfig;
use herdwick_request::{HashKey, Second};

use crate::{
    memory::{
        file::{MemoryFile, Parts},
        offload::OffloadParts,
        recovery::Restart,
        split::{partition_bytes, random_bytes},
    },
    runtime::{offload::OffloadLink, store::Store, time::ServerClock},
    settings::{
        config::{Config, Engine, OneSidedReads},
        error::StartError,
        file_error::MemoryFileError,
        tuning::MemoryLimit,
    },
};

/// The partitions and what belongs to them.
pub(crate) struct Stores {
    pub(crate) stores: Vec<Store>,
    /// The key of the hash that distributes keys over partitions and index.
    pub(crate) hash_key: HashKey,
    /// The clock of their items.
    pub(crate) timer: ServerClock,
    /// The file of the items, if there is one, and what was recovered from it.
    pub(crate) lasting: Option<(MemoryFile, Restart)>,
    /// The memory of each store, where clients read it.
    pub(crate) published: Vec<SharedMemory>,
    /// The replication of popular keys.
    pub(crate) offload: OffloadParts,
}

impl Stores {
    /// Returns what hellos tell of them and of the secondary store, and the clock of tokens.
    pub(crate) fn of_hellos(&self) -> (HashKey, ServerClock, Option<Arc<OffloadLink>>) {
        (self.hash_key, self.timer, self.offload.link.clone())
    }

    /// Returns the limit that `cache_memlimit` can lower.
    pub(crate) fn memory_limit(&self, config: &Config) -> MemoryLimit {
        let unused_max = self.stores.iter().map(Store::unused_max).sum();
        MemoryLimit::new(config.memory_bytes, unused_max)
    }
}

pub(crate) fn stores(config: &Config, workers: usize) -> Result<Stores, StartError> {
    let mut stores = evicting_stores(config, workers)?;
    if config.lossless {
        // After the stores are opened, since items may have been recovered.
        stores.stores.iter_mut().for_each(Store::evict_nothing);
    }
    stores.offload = OffloadParts::open(config, workers, (stores.hash_key, stores.timer))?;
    Ok(stores)
}

fn evicting_stores(config: &Config, workers: usize) -> Result<Stores, StartError> {
    let store = StoreConfig {
        memory_bytes: partition_bytes(config, workers, config.memory_bytes),
        item_bytes_max: config.item_bytes_max,
        hash_key: random_key()?,
    };
    if let Some(path) = &config.memory_file {
        return lasting_stores(workers, store, path);
    }
    if config.one_sided_reads != OneSidedReads::Off {
        return published_stores(config, workers, &store);
    }
    let make = || match config.engine {
        Engine::Herd | Engine::Clover => Store::new(&store),
        Engine::Slab => Store::in_slabs(&store, config.growth),
    };
    let stores = (0..workers)
        .map(|_| make())
        .collect::<Result<_, _>>()
        .map_err(StartError::Store)?;
    Ok(Stores {
        stores,
        hash_key: store.hash_key,
        timer: ServerClock::start(),
        lasting: None,
        published: Vec::new(),
        offload: OffloadParts::default(),
    })
}

/// As [`evicting_stores`], in memory that clients map to read.
fn published_stores(
    of: &Config,
    workers: usize,
    config: &StoreConfig,
) -> Result<Stores, StartError> {
    let timer = ServerClock::start();
    let (mut stores, mut memories) = (Vec::new(), Vec::new());
    for _ in 0..workers {
        let published = match of.engine {
            Engine::Herd | Engine::Clover => Store::published(config),
            Engine::Slab => Store::published_in_slabs(config, of.growth),
        };
        let (mut store, published) = published.map_err(StartError::Store)?;
        store.set_readers_clock(timer.second_zero());
        let (words, file) = (published.words, Some(published.fd));
        memories.push(SharedMemory::new(words, file, Sharing::ReadOnly));
        stores.push(store);
    }
    Ok(Stores {
        stores,
        hash_key: config.hash_key,
        timer,
        lasting: None,
        published: memories,
        offload: OffloadParts::default(),
    })
}

/// As [`evicting_stores`], with the items in a file. Recovers the items of the previous server.
fn lasting_stores(
    workers: usize,
    mut store: StoreConfig,
    path: &Path,
) -> Result<Stores, StartError> {
    let bytes = herdwick_mica::Store::file_bytes(&store).map_err(StartError::Store)?;
    let parts = Parts { workers, bytes };
    let (file, cold) = MemoryFile::open(path, parts)?;
    let keep = file.left.is_some();
    if let Some(left) = file.left {
        // Items lie in the partition and the bucket of the hash under the old key.
        store.hash_key = left.hash_key;
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get) / workers;
    let opened = open_all(workers, |worker| {
        let offset = parts.offset(worker);
        herdwick_mica::Store::in_file_by(&store, &file.file, offset, keep, threads)
    });
    let mut restart = Restart::new(path, cold);
    let (mut stores, mut second) = (Vec::new(), Second(0));
    for opened in opened {
        let (store, recovered) = opened.map_err(StartError::Store)?;
        stores.push(Store::Segments(store));
        if keep {
            restart.add(recovered);
            // The latest of all workers: no partition's time may go back.
            second = second.max(recovered.map_or(second, |recovered| recovered.second));
        }
    }
    let timer = ServerClock::resume(file.left.map(|left| (left.epoch_unix, second)));
    let epoch_unix = timer.clock(Duration::ZERO).epoch_unix;
    // Only now: until all parts are open, the file is as its last server left it.
    file.begin(store.hash_key, epoch_unix)
        .map_err(|source| MemoryFileError::Refused {
            path: path.to_owned(),
            source,
        })?;
    Ok(Stores {
        stores,
        hash_key: store.hash_key,
        timer,
        lasting: Some((file, restart)),
        published: Vec::new(),
        offload: OffloadParts::default(),
    })
}

/// Opens all workers' stores in parallel: most of the time is spent reading them.
fn open_all<T: Send>(workers: usize, open: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let open = &open;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|worker| scope.spawn(move || open(worker)))
            .collect();
        let opened = threads.into_iter().map(|thread| thread.join());
        opened
            .map(|opened| opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn random_key() -> Result<HashKey, StartError> {
    let seed = random_bytes()?;
    let (low, high) = seed.split_at(8);
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    Ok(HashKey([word(low), word(high)]))
}
