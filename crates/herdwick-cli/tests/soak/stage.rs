//! What the clients of one server share: its addresses, how long the soak lasts, what they have
//! seen.

use std::{
    any::Any,
    collections::{BTreeMap, HashSet, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{
    common::{Chance, Clock},
    model::{Counter, Register},
    transports::{Kind, Places},
};

/// Keys that clients over every transport write in turn, and all read.
const REGISTERS: usize = 48;

/// Time after which the server has executed or dropped what a client left in flight, on a busy host
/// as well: a killed client's requests were seen to be executed a second later. A longer time would
/// fill the store with values that no client reads, and evict others.
const RESTING: Duration = Duration::from_secs(10);

/// Longest rest of a client before it checks whether the soak has failed.
const GRAIN: Duration = Duration::from_millis(50);

/// One server's soak.
pub(crate) struct Stage {
    pub(crate) places: Places,
    /// The transports of this server.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) seed: u64,
    /// Whether every stored value must be found, because there is room for all of them.
    pub(crate) strict: bool,
    pub(crate) clock: Clock,
    pub(crate) until: Duration,
    over: AtomicBool,
    fault: Mutex<Option<String>>,
    counters: Mutex<BTreeMap<String, u64>>,
    missing: Mutex<HashSet<(String, u64)>>,
    pub(crate) registers: Vec<Register>,
    pub(crate) counter: Counter,
}

impl Stage {
    pub(crate) fn new(
        places: Places,
        kinds: Vec<Kind>,
        seed: u64,
        length: Duration,
        strict: bool,
    ) -> Self {
        Self {
            places,
            kinds,
            seed,
            strict,
            clock: Clock::start(),
            until: length,
            over: AtomicBool::new(false),
            fault: Mutex::default(),
            counters: Mutex::default(),
            missing: Mutex::default(),
            registers: (0..REGISTERS).map(Register::new).collect(),
            counter: Counter::default(),
        }
    }

    /// Whether there is time left, and nothing has failed.
    pub(crate) fn lasts(&self) -> bool {
        !self.over.load(Ordering::Relaxed) && self.clock.now() < self.until
    }

    /// The time left.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_sub(self.clock.now())
    }

    /// Rests for `span`, unless something fails.
    pub(crate) fn rest(&self, span: Duration) {
        let end = self.clock.now() + span;
        while !self.over.load(Ordering::Relaxed) && self.clock.now() < end {
            rest(end.saturating_sub(self.clock.now()).min(GRAIN));
        }
    }

    /// Counts an event.
    pub(crate) fn count(&self, what: &str, times: u64) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        *counters.entry(what.to_owned()).or_default() += times;
    }

    /// Returns the sum of the counters with names that begin with `what`.
    pub(crate) fn counted(&self, what: &str) -> u64 {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let named = counters.iter().filter(|(name, _)| name.starts_with(what));
        named.map(|(_, count)| count).sum()
    }

    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.clone()
    }

    /// Records that a value stored under `key` was not found: an eviction has to explain it. The
    /// same value is recorded once.
    pub(crate) fn missed(&self, key: &str, version: u64) {
        assert!(!self.strict, "{key}: version {version:#x} is not there");
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.insert((key.to_owned(), version));
    }

    pub(crate) fn missing(&self) -> HashSet<(String, u64)> {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.clone()
    }

    /// Ends the soak as failed; the first reason is kept.
    pub(crate) fn fail(&self, reason: String) {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.clock.now();
        fault.get_or_insert_with(|| format!("after {at:.1?}: {reason}"));
        self.over.store(true, Ordering::Relaxed);
    }

    /// Why the soak has failed, if it has.
    pub(crate) fn fault(&self) -> Option<String> {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.clone()
    }

    /// Runs `work`; a panic fails the soak.
    pub(crate) fn guard(&self, what: &str, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.fail(format!("{what}: {}", message(&*panic)));
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}

/// One client, from its connection to its end.
pub(crate) struct Visit<'a> {
    pub(crate) stage: &'a Stage,
    /// Number of the thread that runs it.
    pub(crate) channel: usize,
    /// Its number on that thread.
    pub(crate) number: u64,
    /// Part of the names of its keys. No other visit on that thread has it now.
    pub(crate) name: u64,
    /// Whether it has left requests in flight: the server may execute them later.
    pub(crate) in_doubt: bool,
    pub(crate) chance: Chance,
}

impl<'a> Visit<'a> {
    /// Makes a visit; its choices follow from the seed, the channel and the number.
    pub(crate) fn new(stage: &'a Stage, channel: usize, number: u64, name: u64) -> Self {
        let seed = stage.seed ^ ((channel as u64 + 1) << 48) ^ (number << 16);
        Self {
            stage,
            channel,
            number,
            name,
            in_doubt: false,
            chance: Chance::new(seed),
        }
    }

    /// Chooses one of the server's transports that `suits`.
    pub(crate) fn kind(&mut self, suits: impl Fn(Kind) -> bool) -> Kind {
        let kinds: Vec<Kind> = self
            .stage
            .kinds
            .iter()
            .copied()
            .filter(|k| suits(*k))
            .collect();
        kinds[self.chance.below(kinds.len())]
    }

    /// Returns a number from `least` to `most`, uniformly distributed.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.chance.below((most - least + 1) as usize) as u64
    }

    /// Returns true in `share` of a hundred cases.
    pub(crate) fn percent(&mut self, share: usize) -> bool {
        self.chance.below(100) < share
    }

    /// Rests for at most `most` milliseconds.
    pub(crate) fn rest(&mut self, most: u64) {
        let millis = self.between(0, most);
        self.stage
            .rest(Duration::from_millis(millis).min(self.stage.left()));
    }

    /// Returns the length of a value: from 1 to `most`, short ones more often.
    pub(crate) fn length(&mut self, most: usize) -> usize {
        let limit = match self.chance.below(32) {
            0..8 => 32,
            8..16 => 1024,
            16..24 => 4100,
            24..29 => 16 << 10,
            29..31 => 100_000,
            _ => 1_000_000,
        };
        1 + self.chance.below(limit.min(most))
    }
}

/// The names that the visits of one thread give their keys. They are reused, so that all values
/// have room.
#[derive(Default)]
pub(crate) struct Names {
    made: u64,
    free: Vec<u64>,
    /// Names of visits that left requests in flight, and since when.
    resting: VecDeque<(Duration, u64)>,
}

impl Names {
    /// Returns a name that no request in flight uses. Where memory is scarce, each is new: uploads
    /// wait for others there, and so do requests behind them, with no bound that matters here.
    pub(crate) fn take(&mut self, stage: &Stage) -> u64 {
        let rested = |&(since, _): &(Duration, u64)| stage.clock.now() > since + RESTING;
        if self.resting.front().is_some_and(rested) {
            self.free
                .extend(self.resting.pop_front().map(|(_, name)| name));
        }
        let free = if stage.strict { self.free.pop() } else { None };
        free.unwrap_or_else(|| {
            self.made += 1;
            self.made
        })
    }

    /// Takes the name of a visit back.
    pub(crate) fn give_back(&mut self, visit: &Visit<'_>) {
        match visit.in_doubt {
            true => self
                .resting
                .push_back((visit.stage.clock.now(), visit.name)),
            false => self.free.push(visit.name),
        }
    }
}

/// Makes a client idle: part of its behaviour, and not a means to wait for something.
#[expect(
    clippy::disallowed_methods,
    reason = "a slow client is slow by the clock"
)]
pub(crate) fn rest(span: Duration) {
    if !span.is_zero() {
        thread::sleep(span);
    }
}
