//! memcached's LRU crawler (`lru_crawler crawl`): removes expired items from the index without
//! waiting for the log to come around to them. Each worker walks its own partition, in bounded steps
//! between requests.

use std::{
    sync::atomic::{
        AtomicBool, AtomicU32, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use herdwick_mica::Store;
use herdwick_request::Second;

use crate::settings::config::CrawlerConfig;

/// Buckets checked in one step: about 50 us of a worker's time, as each item is a cache miss.
const BUCKETS_PER_STEP: usize = 64;
/// Items that are checked between two pauses, as in memcached.
const ITEMS_PER_PAUSE: u64 = 1000;
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
        self.walking.load(Relaxed) > 0
    }

    /// Starts a crawl by all `workers`, which begin with it at their next passes.
    pub(crate) fn start(&self, workers: usize) -> Result<(), NotStarted> {
        if !self.is_enabled() {
            return Err(NotStarted::Disabled);
        }
        let claim = self.walking.compare_exchange(0, workers, Acquire, Relaxed);
        claim.map_err(|_| NotStarted::Busy)?;
        // Release: a worker that sees this start counts down from `workers`, not from 0.
        self.starts.fetch_add(1, Release);
        Ok(())
    }
}

/// One worker's part of the crawls.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// The last start that this worker has seen.
    start: u32,
    /// The next bucket. A crawl begins where the one before it ended, so that crawls limited to
    /// some items come around.
    bucket: usize,
    /// Buckets left of the crawl under way; `None`: there is none.
    left: Option<usize>,
    /// Items that it may still check.
    items_left: u64,
    /// Items that it may check until the next pause.
    until_pause: u64,
    /// When the pause is over.
    due: Duration,
}

impl Walk {
    /// Takes a step of the crawl under way; returns whether there is more to do at once.
    #[inline]
    pub(crate) fn step(
        &mut self,
        crawler: &Crawler,
        store: &mut Store,
        (second, now): (Second, Duration),
        workers: usize,
    ) -> bool {
        if self.left.is_none() && crawler.starts.load(Relaxed) == self.start {
            return false;
        }
        self.go_on(crawler, store, (second, now), workers)
    }

    #[cold]
    fn go_on(
        &mut self,
        crawler: &Crawler,
        store: &mut Store,
        (second, now): (Second, Duration),
        workers: usize,
    ) -> bool {
        let left = match self.left {
            Some(_) if now < self.due => return false,
            Some(left) => left,
            None => self.begin(crawler, store, workers),
        };
        let buckets = left.min(BUCKETS_PER_STEP);
        let mut walked = 0;
        while walked < buckets && self.items_left > 0 && self.until_pause > 0 {
            let checked = store.remove_expired(second, self.bucket);
            self.items_left = self.items_left.saturating_sub(checked);
            self.until_pause = self.until_pause.saturating_sub(checked);
            self.bucket = (self.bucket + 1) % store.buckets();
            walked += 1;
        }
        let left = left - walked;
        if left == 0 || self.items_left == 0 || !crawler.is_enabled() {
            self.left = None;
            crawler.walking.fetch_sub(1, Release);
            return false;
        }
        self.left = Some(left);
        if self.until_pause > 0 {
            return true;
        }
        self.until_pause = ITEMS_PER_PAUSE;
        self.due = now + pause(crawler);
        self.due <= now
    }

    /// Begins the crawl that was started last; returns the buckets that it takes.
    fn begin(&mut self, crawler: &Crawler, store: &Store, workers: usize) -> usize {
        // Acquire: see `Crawler::start`.
        self.start = crawler.starts.load(Acquire);
        let items_max = u64::from(crawler.items_max());
        self.items_left = match items_max {
            0 => u64::MAX,
            _ => items_max.div_ceil(workers as u64),
        };
        self.until_pause = ITEMS_PER_PAUSE;
        store.buckets()
    }

    /// Returns how long the worker may sleep for the crawl's sake.
    pub(crate) fn longest_sleep(&self, crawler: &Crawler) -> Option<Duration> {
        self.left.map(|_| pause(crawler))
    }
}

fn pause(crawler: &Crawler) -> Duration {
    Duration::from_micros(u64::from(crawler.sleep_us()))
}
