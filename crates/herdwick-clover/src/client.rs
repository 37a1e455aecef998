//! The client's machine: GETs by READs of the first data node, PUTs and DELETEs by WRITE and CAS on all
//! of them, and calls to the metadata server for what it does not know.

mod arrivals;

use std::{collections::VecDeque, time::Duration};

use herdwick_fabric::Port;
use herdwick_mem::WORD;
use herdwick_read::{Doubt, ReadCounters, Reader};
use herdwick_request::HashKey;

use crate::{
    ClientCounters, Failure, Right,
    answer::{Delays, Refused},
    calls::{Asks, Caller, Calls},
    cursors::{Cursor, Cursors},
    epochs::{Epochs, Stay},
    judge::{GetId, Lookups},
    layout::{KEY_BYTES_MAX, KeyHash},
    message::{CALLS_MAX, CallOp, NUMBERS_MAX, Reply},
    mutations::{Mutations, Needs, Shared},
};

/// One client. The owner calls [`Client::post`] and [`Client::poll`] in turns, at least once in the
/// time after which the server takes clients for dead, and drives the port.
///
/// Requests in flight at the same time are in no order, those of one key neither.
#[derive(Debug)]
pub struct Client {
    pub(crate) reader: Reader<GetId>,
    lookups: Lookups,
    gets: Vec<GetState>,
    free: Vec<u32>,
    /// GETs whose chain is to be asked for.
    finding: VecDeque<u32>,
    /// GETs whose READs ended in one poll, and why they did not settle it.
    settled: Vec<(GetId, Option<Doubt>)>,
    replies: Vec<(Caller, CallOp, Reply)>,
    mutations: Mutations,
    calls: Calls,
    cursors: Cursors,
    epochs: Epochs,
    hash_key: HashKey,
    right: Right,
    body_max: usize,
    delays: Delays,
}

#[derive(Clone, Copy, Debug, Default)]
struct GetState {
    user: u64,
    rounds: u32,
    stay: Option<Stay>,
}

/// What a client is made of.
#[derive(Debug)]
pub(crate) struct ClientParts {
    pub(crate) reader: Reader<GetId>,
    pub(crate) lookups: (Lookups, usize),
    pub(crate) mutations: Mutations,
    pub(crate) calls: Calls,
    pub(crate) cursors: usize,
    pub(crate) hash_key: HashKey,
    pub(crate) right: Right,
    /// Longest key and value together.
    pub(crate) body_max: usize,
    pub(crate) delays: Delays,
}

impl Client {
    pub(crate) fn new(parts: ClientParts) -> Self {
        let (lookups, window) = parts.lookups;
        Self {
            reader: parts.reader,
            lookups,
            gets: vec![GetState::default(); window],
            free: (0..window as u32).rev().collect(),
            finding: VecDeque::with_capacity(window),
            settled: Vec::with_capacity(window),
            replies: Vec::with_capacity(CALLS_MAX),
            mutations: parts.mutations,
            calls: parts.calls,
            cursors: Cursors::new(parts.cursors),
            epochs: Epochs::default(),
            hash_key: parts.hash_key,
            right: parts.right,
            body_max: parts.body_max,
            delays: parts.delays,
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> ClientCounters {
        ClientCounters {
            unexpected_replies: self.calls.unexpected,
            ..self.lookups.counters
        }
    }

    /// Returns the counters of READs.
    #[must_use]
    pub fn read_counters(&self) -> &ReadCounters {
        self.reader.counters()
    }

    /// Returns what the client may do.
    #[must_use]
    pub fn right(&self) -> Right {
        self.right
    }

    /// Returns the number of requests that have begun and not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.gets.len() - self.free.len() + self.mutations.in_flight()
    }

    /// Returns why the connection failed, if it did.
    #[must_use]
    pub fn failed(&self) -> Option<Failure> {
        let node = self
            .reader
            .failed()
            .or_else(|| self.mutations.nodes.failed());
        self.calls.failed().or_else(|| node.map(Failure::Node))
    }

    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        if let Some(failure) = self.failed() {
            return Err(failure.into());
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Refused::Key(key.len()));
        }
        let (len, max) = (key.len() + value.len(), self.body_max);
        if len > max {
            return Err(Refused::Value { len, max });
        }
        Ok(())
    }

    /// Begins a GET. `user` comes back with the answer.
    ///
    /// # Errors
    /// [`Refused`].
    #[inline]
    pub fn get(&mut self, key: &[u8], user: u64) -> Result<(), Refused> {
        self.check(key, &[])?;
        let slot = self.free.pop().ok_or(Refused::Full)?;
        let hash = KeyHash::of(&self.hash_key, key);
        self.lookups.remember(slot, key, hash);
        self.lookups.counters.gets += 1;
        self.gets[slot as usize] = GetState {
            user,
            rounds: 0,
            stay: Some(self.epochs.begin()),
        };
        match self.cursors.get(&hash) {
            Some(cursor) => {
                self.lookups.counters.cursor_hits += 1;
                self.read(slot, cursor);
            }
            None => self.finding.push_back(slot),
        }
        Ok(())
    }

    /// Begins the READs of a GET.
    #[inline]
    fn read(&mut self, slot: u32, cursor: Cursor) {
        let user = self.gets[slot as usize].user;
        let step = self.lookups.start(slot, cursor);
        let begun = step.map(|step| self.reader.begin(GetId { slot, user }, step));
        // There is a lookup for each GET: only a reader that failed refuses, and ends all at the next
        // poll.
        if !matches!(begun, Some(Ok(()))) {
            self.finding.push_back(slot);
        }
    }

    /// Begins a PUT.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        user: u64,
        now: Duration,
    ) -> Result<(), Refused> {
        self.mutate(key, Some(value), user, now)
    }

    /// Begins a DELETE.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn delete(&mut self, key: &[u8], user: u64, now: Duration) -> Result<(), Refused> {
        self.mutate(key, None, user, now)
    }

    fn mutate(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        user: u64,
        now: Duration,
    ) -> Result<(), Refused> {
        self.check(key, value.unwrap_or_default())?;
        // Refused here: the node would refuse the WRITE, and the queue pair would fail.
        if self.right == Right::Read {
            return Err(Refused::ReadOnly);
        }
        let hash = KeyHash::of(&self.hash_key, key);
        if !self.mutations.begin((hash, user), key, value, now) {
            return Err(Refused::Full);
        }
        self.lookups.counters.mutations += 1;
        Ok(())
    }

    /// Returns the mutations, and what of the client they use.
    fn mutations(&mut self, now: Duration) -> (&mut Mutations, Shared<'_>) {
        let shared = Shared {
            cursors: &mut self.cursors,
            epochs: &mut self.epochs,
            counters: &mut self.lookups.counters,
            now,
        };
        (&mut self.mutations, shared)
    }

    /// Posts the requests that have begun, and the reports to the server that are due.
    pub fn post<P: Port>(&mut self, port: &mut P, now: Duration) {
        if self.failed().is_some() {
            return;
        }
        let entry_wait = self.delays.entry_wait;
        let (mutations, mut shared) = self.mutations(now);
        // Before `take`, which asks for what those want that still wait.
        mutations.equip(port, entry_wait, &mut shared);
        // Before the calls, which carry the epoch that may be published.
        if self.epochs.advance() {
            self.lookups.counters.flushes += 1;
            self.cursors.clear();
        }
        self.take(port, now);
        self.give(port, now);
        self.report_epoch(port, now);
        self.ask(port, now);
        self.reader.post(port);
    }

    fn call<P: Port>(&mut self, port: &mut P, now: Duration, asks: Asks<'_>) -> bool {
        let published = self.epochs.published();
        self.calls.post(port, now, (asks, published))
    }

    /// Asks for entries.
    fn take<P: Port>(&mut self, port: &mut P, now: Duration) {
        while let Some(class) = self.mutations.wanting(now) {
            let asks = Asks {
                op: CallOp::Take,
                class,
                entry: 0,
                body: &[],
                caller: Caller::FreeList(class),
            };
            if !self.call(port, now, asks) {
                return;
            }
            self.lookups.counters.takes += 1;
            self.mutations.free_list.asked(class);
        }
    }

    /// Gives entries back that are not needed.
    fn give<P: Port>(&mut self, port: &mut P, now: Duration) {
        // One call at a time, so that a surplus does not take the calls of requests.
        if self.calls.is_calling(CallOp::Give) {
            return;
        }
        let Some((class, places)) = self.mutations.free_list.surplus(now) else {
            return;
        };
        let (mut body, count) = ([0; NUMBERS_MAX * WORD], places.len());
        let body = numbers(&mut body, places.iter().map(|place| place.word()));
        let asks = Asks {
            op: CallOp::Give,
            class: 0,
            entry: 0,
            body,
            caller: Caller::None,
        };
        if self.call(port, now, asks) {
            self.lookups.counters.gives += 1;
            self.mutations.free_list.given(class, count);
        }
    }

    /// Reports superseded entries to the server, and the epoch if no other call has done so lately.
    fn report_epoch<P: Port>(&mut self, port: &mut P, now: Duration) {
        let due = now.saturating_sub(self.calls.last()) >= self.delays.publish;
        let hints = &self.mutations.superseded;
        // At half of what one call holds: requests that end before the next call find room, too.
        let full = hints.len() >= NUMBERS_MAX / 2;
        if full || due && !hints.is_empty() {
            let mut body = [0; NUMBERS_MAX * WORD];
            let body = numbers(&mut body, hints.iter().map(|slot| (*slot).into()));
            let asks = Asks {
                op: CallOp::Superseded,
                class: 0,
                entry: 0,
                body,
                caller: Caller::None,
            };
            if self.call(port, now, asks) {
                self.mutations.superseded.clear();
            }
            // Every call carries the epoch: one that only publishes is needed when no other was
            // made.
        } else if due && !self.calls.is_calling(CallOp::Publish) {
            let asks = Asks {
                op: CallOp::Publish,
                class: 0,
                entry: 0,
                body: &[],
                caller: Caller::None,
            };
            self.call(port, now, asks);
        }
    }

    /// Asks for chains that are not known.
    fn ask<P: Port>(&mut self, port: &mut P, now: Duration) {
        let published = self.epochs.published();
        while let Some(slot) = self.finding.front().copied() {
            let (key, _) = self.lookups.key(slot);
            let asks = Asks {
                op: CallOp::Find,
                class: 0,
                entry: 0,
                body: key,
                caller: Caller::Get(slot),
            };
            if !self.calls.post(port, now, (asks, published)) {
                break;
            }
            self.lookups.counters.finds += 1;
            self.finding.pop_front();
        }
        while let Some(needs) = self.mutations.needs.front().copied() {
            let (op, index) = match needs {
                Needs::Find(index) => (CallOp::Find, index),
                Needs::Create(index) => (CallOp::Create, index),
                Needs::Delete(index) => (CallOp::Delete, index),
            };
            let (key, entry) = self.mutations.key(index);
            let asks = Asks {
                op,
                class: 0,
                entry: if op == CallOp::Create {
                    entry.word()
                } else {
                    0
                },
                body: key,
                caller: needs.caller(),
            };
            if !self.calls.post(port, now, (asks, published)) {
                break;
            }
            match op {
                CallOp::Create => self.lookups.counters.creates += 1,
                CallOp::Delete => self.lookups.counters.deletes += 1,
                _ => self.lookups.counters.finds += 1,
            }
            self.mutations.needs.pop_front();
        }
    }
}

/// Puts numbers into the body of a call, at most [`NUMBERS_MAX`].
fn numbers(
    body: &mut [u8; NUMBERS_MAX * WORD],
    numbers: impl ExactSizeIterator<Item = u64>,
) -> &[u8] {
    let body = &mut body[..numbers.len() * WORD];
    for (bytes, number) in body.chunks_exact_mut(WORD).zip(numbers) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    body
}
