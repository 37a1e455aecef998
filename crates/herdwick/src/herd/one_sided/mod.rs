//! One-sided GETs: a session's reads that are looked up in the server's memory, a window of them at a time.
//! What cannot be judged there is requested from the server, as any read.

mod choice;
mod stags;
mod stores;
mod uses;

use std::time::Duration;

use herdwick_herd::{ClientSide, Outcome, Refused, wire::ReplyStatus};
use herdwick_request::{self as request, Get, HashKey, KeyHash, Request};

pub use self::stores::OneSidedCounters;
use self::{
    choice::{Choice, Way},
    stores::Place,
    uses::Uses,
};
pub(crate) use self::{
    stores::{Stores, monotonic},
    uses::REPORT,
};
use super::{Pending, translate::OpKind};
use crate::{Answer, Hit, OneSidedReads, Ticket};

/// Keys that are looked up together, where there is no window: their cache misses overlap.
const TOGETHER: usize = 32;

/// A read in the window.
#[derive(Clone, Copy, Debug)]
struct Lookup {
    /// Of the session's request.
    token: u64,
    hash: KeyHash,
    /// Where its item may be, once that was looked up.
    place: Option<Place>,
}

/// The stores, and the reads that are being looked up in them. Each goes three steps, so that the cache misses
/// of all overlap: its bucket is prefetched when it is submitted, its item when the window is flushed, and
/// read when the window is polled.
#[derive(Debug)]
pub(crate) struct OneSided {
    stores: Stores,
    uses: Uses,
    choice: Choice,
    window: Vec<Lookup>,
    /// Those of the window whose items are prefetched.
    located: usize,
    /// Reads that the server has to be asked for, and has not been: it had no room.
    unread: Vec<Lookup>,
}

impl OneSided {
    pub(crate) fn new(stores: Stores, mode: OneSidedReads) -> Self {
        Self {
            uses: Uses::new(stores.workers()),
            choice: Choice::new(mode),
            stores,
            window: Vec::new(),
            located: 0,
            unread: Vec::new(),
        }
    }

    pub(crate) fn counters(&self) -> OneSidedCounters {
        self.stores.counters
    }

    /// Whether the next read goes into the window, and is not requested from the server.
    #[inline]
    pub(crate) fn is_chosen(&mut self) -> bool {
        self.choice.way() == Way::Memory
    }

    /// Notes a request that is no read.
    #[inline]
    pub(crate) fn note_other(&mut self) {
        self.choice.note_other();
    }

    /// Notes an answer of the server to a request.
    #[inline]
    pub(crate) fn note_answer(&mut self, answer: &Answer<'_>) {
        if let Answer::Hit(hit) = answer {
            self.choice.note_value(hit.value.len());
        }
    }

    /// Notes the outcome of a request: where it has read an item, the next reads of its key are to find that in the
    /// memory.
    #[inline]
    pub(crate) fn note_outcome(
        &mut self,
        (kind, outcome): (OpKind, &Outcome<'_>),
        key: Option<&[u8]>,
        hash_key: HashKey,
    ) {
        let is_read = kind.wants_value() && self.stores.learns();
        if let (true, Some(key), Outcome::Answered(reply)) = (is_read, key, outcome)
            && matches!(reply.status, ReplyStatus::Done | ReplyStatus::ReplyTooLarge)
        {
            self.stores.want(hash_key.hash(key), key);
        }
    }

    /// Takes the outcome of what was sent to learn where items lie. Returns whether `token` is of that.
    #[inline]
    pub(crate) fn learn(&mut self, token: u64, outcome: &Outcome<'_>) -> bool {
        self.stores.answer(token, outcome)
    }

    /// Submits the questions where items lie, for which there is room; requests come before them.
    #[inline]
    pub(crate) fn ask(&mut self, side: &mut ClientSide) {
        self.stores.ask(side);
    }

    /// Ends a poll, after which nothing may be in flight: submits the report of reads that is due, and sees
    /// which way was faster.
    #[inline]
    pub(crate) fn end_poll(&mut self, now: Duration, is_idle: bool, side: &mut ClientSide) {
        self.uses.report(now, side);
        self.choice.settle(is_idle);
    }

    /// Reads `count` keys at once, and passes each to `sink` by its place, with `None` for what the server has
    /// to be asked for.
    #[inline]
    pub(crate) fn read_all<'k>(
        &mut self,
        count: usize,
        key_of: impl Fn(usize) -> (KeyHash, &'k [u8]),
        sink: &mut impl FnMut(usize, Option<Hit<'_>>),
    ) {
        let mut located = [None; TOGETHER];
        for first in (0..count).step_by(TOGETHER) {
            let places = first..count.min(first + TOGETHER);
            // Three rounds, so that the cache misses of each are under way together.
            for n in places.clone() {
                self.stores.prefetch(key_of(n).0);
            }
            for (n, place) in places.clone().zip(&mut located) {
                *place = self.stores.locate(key_of(n).0);
            }
            for (n, place) in places.zip(located) {
                let (hash, key) = key_of(n);
                let hit = self.stores.read(hash, key, place);
                let is_hit = hit.is_some();
                sink(n, hit);
                match is_hit {
                    true => self.uses.note(hash),
                    // The caller requests it; whether there is such an item is not seen here.
                    false => self.stores.want(hash, key),
                }
            }
        }
    }

    /// Adds a read to the window.
    #[inline]
    pub(crate) fn begin(&mut self, token: u64, hash: KeyHash) {
        self.stores.prefetch(hash);
        self.window.push(Lookup {
            token,
            hash,
            place: None,
        });
    }

    /// Looks the window's keys up in the index.
    #[inline]
    pub(crate) fn locate(&mut self) {
        for lookup in &mut self.window[self.located..] {
            lookup.place = self.stores.locate(lookup.hash);
        }
        self.located = self.window.len();
    }

    /// Reads the items of the window, and answers the reads that have one; [`Self::request_unread`] is for the
    /// others. Returns how many were answered.
    pub(crate) fn poll(
        &mut self,
        pending: &mut Pending,
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) -> usize {
        self.locate();
        self.located = 0;
        let mut answered = 0;
        for lookup in self.window.drain(..) {
            let (Some(entry), Some(key)) = (pending.entry(lookup.token), pending.key(lookup.token))
            else {
                continue;
            };
            let ticket = entry.ticket;
            match self.stores.read(lookup.hash, key, lookup.place) {
                Some(hit) => {
                    self.uses.note(lookup.hash);
                    self.choice.note_value(hit.value.len());
                    pending.release(lookup.token);
                    sink(ticket, Answer::Hit(hit));
                    answered += 1;
                }
                None => self.unread.push(lookup),
            }
        }
        answered
    }

    /// Has `side` request what it has room for of the reads that the memory did not answer. Returns whether there
    /// was any.
    #[inline]
    pub(crate) fn request_unread(&mut self, pending: &Pending, side: &mut ClientSide) -> bool {
        let before = self.unread.len();
        self.unread.retain(|lookup| {
            let key = pending.key(lookup.token).unwrap_or_default();
            let request = Request {
                hash: lookup.hash,
                key,
                op: request::Op::Get(Get::default()),
            };
            side.submit(&request, lookup.token) == Err(Refused::Full)
        });
        self.unread.len() < before
    }

    /// Whether the window is empty.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.window.is_empty()
    }

    /// Whether the worker of this hash has no room for a read that came before: the next room is that read's.
    #[inline]
    pub(crate) fn waits_for_room(&self, hash: KeyHash) -> bool {
        let workers = self.stores.workers();
        let worker = |hash: KeyHash| hash.partition(workers);
        let mut unread = self.unread.iter();
        unread.any(|lookup| worker(lookup.hash) == worker(hash))
    }

    /// Whether a read of a key with this hash has not been answered nor requested from the server.
    #[inline]
    pub(crate) fn holds(&self, hash: KeyHash) -> bool {
        let mut all = self.window.iter().chain(&self.unread);
        all.any(|lookup| lookup.hash == hash)
    }

    /// Returns the tokens of all reads.
    pub(crate) fn tokens(self) -> impl Iterator<Item = u64> {
        let all = self.window.into_iter().chain(self.unread);
        all.map(|lookup| lookup.token)
    }
}
