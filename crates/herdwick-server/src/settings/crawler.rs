//! The settings of memcached's LRU crawler, which its commands change, and the crawl that is under way.

use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use super::config::CrawlerConfig;

/// Longest pause, in microseconds, as in memcached.
pub(crate) const SLEEP_US_MAX: u32 = 1_000_000;

/// The crawler's settings, and the crawl that is under way, shared by all workers.
#[derive(Debug)]
pub(crate) struct Crawler {
    enabled: AtomicBool,
    /// Length of a pause, in microseconds.
    sleep_us: AtomicU32,
    /// Most items that a crawl checks, in all partitions together; 0: all.
    items_max: AtomicU32,
    /// The crawls that were started.
    starts: AtomicU32,
    /// The workers that have not finished the last of them.
    walking: AtomicUsize,
}

/// Why no crawl was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotStarted {
    Disabled,
    /// Another is under way.
    Busy,
}

impl Crawler {
    pub(crate) fn new(config: &CrawlerConfig) -> Self {
        let sleep_us = u32::try_from(config.sleep.as_micros()).unwrap_or(u32::MAX);
        Self {
            enabled: AtomicBool::new(config.enabled),
            sleep_us: AtomicU32::new(sleep_us.min(SLEEP_US_MAX)),
            items_max: AtomicU32::new(config.items_max),
            starts: AtomicU32::new(0),
            walking: AtomicUsize::new(0),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    /// Enables or disables crawls. Disabling ends the one that is under way.
    pub(crate) fn enable(&self, enabled: bool) {
        self.enabled.store(enabled, Relaxed);
    }

    pub(crate) fn sleep_us(&self) -> u32 {
        self.sleep_us.load(Relaxed)
    }

    /// Sets the length of the pauses; returns whether it is not too long.
    pub(crate) fn set_sleep_us(&self, us: u32) -> bool {
        let can = us <= SLEEP_US_MAX;
        if can {
            self.sleep_us.store(us, Relaxed);
        }
        can
    }

    pub(crate) fn items_max(&self) -> u32 {
        self.items_max.load(Relaxed)
    }

    pub(crate) fn set_items_max(&self, items: u32) {
        self.items_max.store(items, Relaxed);
    }

    pub(crate) fn starts(&self) -> u32 {
        self.starts.load(Relaxed)
    }

    pub(crate) fn is_running(&self) -> bool {
        // Relaxed: for `stats` alone.
        self.walking.load(Relaxed) > 0
    }

    /// Starts a crawl by all `workers`, which begin with it at their next passes.
    pub(crate) fn start(&self, workers: usize) -> Result<(), NotStarted> {
        if !self.is_enabled() {
            return Err(NotStarted::Disabled);
        }
        // One crawl at a time. Acquire: pairs with the Release of the last `leave`.
        let claim = self.walking.compare_exchange(0, workers, Acquire, Relaxed);
        claim.map_err(|_| NotStarted::Busy)?;
        // Release: a worker that sees this start counts down from `workers`, not from 0.
        self.starts.fetch_add(1, Release);
        Ok(())
    }

    /// Returns the number of the crawl that a worker begins its part of.
    pub(crate) fn join(&self) -> u32 {
        // Acquire: see `start`.
        self.starts.load(Acquire)
    }

    /// A worker has finished its part of the crawl.
    pub(crate) fn leave(&self) {
        // Release: the next crawl, whose start acquires this, finds no part of the last under way.
        self.walking.fetch_sub(1, Release);
    }
}
