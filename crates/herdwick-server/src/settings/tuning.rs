//! The settings that may change while the server runs. All are atomics with relaxed
//! ordering, as each is read by itself and none orders other data, except those of the crawler (see
//! `crawler`).

use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use super::{
    config::{Config, Timeouts},
    crawler::Crawler,
    invalidation::Invalidation,
};

/// The settings that may change while a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Largest number of connections at a time. Lowering it closes none.
    pub connections_max: usize,
    /// Timeouts for connections that stall.
    pub timeout: Timeouts,
    /// memcached's `-v`, shown by `stats settings`.
    pub verbosity: u8,
}

impl Config {
    /// Returns the settings that may change.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        Tuning {
            connections_max: self.connections_max,
            timeout: self.timeout,
            verbosity: self.verbosity,
        }
    }
}

/// memcached's `MAX_VERBOSITY_LEVEL`.
const VERBOSITY_MAX: u32 = 2;

/// The settings that may change, as every worker reads them.
#[derive(Debug)]
pub(crate) struct Tunables {
    /// 0: no timeout.
    idle_seconds: AtomicU32,
    request_seconds: AtomicU32,
    pub(crate) verbosity: AtomicU8,
    /// Whether `stats detail` is on.
    pub(crate) detail: AtomicBool,
    /// The memory limit.
    pub(crate) memory: MemoryLimit,
    /// The crawler, and the crawl that is under way.
    pub(crate) crawler: Crawler,
    pub(crate) invalidation: Invalidation,
}

/// The memory limit in bytes (memcached's `-m`, then `cache_memlimit`). The memory is reserved at
/// the start, so the limit may be lowered, and raised again up to that.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    now: AtomicUsize,
    least: usize,
    most: usize,
}

impl MemoryLimit {
    /// The limit of a server whose partitions can leave `unused` bytes of `most` unused.
    pub(crate) fn new(most: usize, unused: usize) -> Self {
        Self {
            now: AtomicUsize::new(most),
            least: most - unused,
            most,
        }
    }

    pub(crate) fn get(&self) -> usize {
        self.now.load(Relaxed)
    }

    /// Sets the limit, for workers to reach at their next passes; returns whether they can.
    pub(crate) fn set(&self, bytes: usize) -> bool {
        let can = (self.least..=self.most).contains(&bytes);
        if can {
            self.now.store(bytes, Relaxed);
        }
        can
    }

    /// Returns the bytes that stay unused.
    pub(crate) fn unused(&self) -> usize {
        self.most - self.get()
    }
}

impl Tunables {
    pub(crate) fn new(config: &Config, memory: MemoryLimit) -> Self {
        let tunables = Self {
            idle_seconds: AtomicU32::new(0),
            request_seconds: AtomicU32::new(0),
            verbosity: AtomicU8::new(0),
            detail: AtomicBool::new(false),
            memory,
            crawler: Crawler::new(&config.crawler),
            invalidation: Invalidation::default(),
        };
        tunables.set(&config.tuning());
        tunables
    }

    pub(crate) fn set(&self, tuning: &Tuning) {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        // 0 stands for no timeout, so one of less than a second becomes a second.
        let idle = tuning.timeout.idle.map_or(0, |idle| seconds(idle).max(1));
        self.idle_seconds.store(idle, Relaxed);
        self.request_seconds
            .store(seconds(tuning.timeout.request), Relaxed);
        self.verbosity.store(tuning.verbosity, Relaxed);
    }

    /// Sets the level that a client requests (`verbosity`), up to memcached's highest.
    pub(crate) fn set_verbosity(&self, level: u32) {
        let level = level.min(VERBOSITY_MAX);
        self.verbosity.store(level as u8, Relaxed);
    }

    pub(crate) fn timeout(&self) -> Timeouts {
        let seconds = |count: u32| Duration::from_secs(u64::from(count));
        let idle = self.idle_seconds.load(Relaxed);
        Timeouts {
            idle: (idle > 0).then(|| seconds(idle)),
            request: seconds(self.request_seconds.load(Relaxed)),
        }
    }
}
