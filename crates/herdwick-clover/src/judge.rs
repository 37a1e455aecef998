//! The client's judge: what the READs of a GET returned, and where to look next.
//!
//! A GET READs the entry of the key's cursor and the key's shortcut at once. If the entry is the last one
//! of its chain, that is the answer. If it has a successor, the next step READs the successor and the
//! entry that the shortcut names, and so on along the chain. An entry counts if its version is that of
//! the word that led to it, and its checksum is right; else its memory has another use by now.

use herdwick_fabric::Remote;
use herdwick_mem::WORD;
use herdwick_read::{Fetch, Fetched, Judge, Step, Verdict};

use crate::{
    ClientCounters,
    cursors::Cursor,
    layout::{Entry, Geometry, KEY_BYTES_MAX, KeyHash, Next, Place, UNIT},
    message::words_of,
};

/// What the judge knows of the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) memory: Remote,
    pub(crate) geometry: Geometry,
}

/// The GETs in flight.
#[derive(Debug)]
pub(crate) struct Lookups {
    gets: Vec<Get>,
    keys: Vec<u8>,
    view: View,
    pub(crate) counters: ClientCounters,
}

#[derive(Clone, Copy, Debug, Default)]
struct Get {
    hash: KeyHash,
    key_len: usize,
    slot: u32,
    /// The entries that are being READ.
    first: Place,
    second: Option<Place>,
    /// Whether the second READ is the shortcut.
    shortcut: bool,
}

/// The meaning of what a READ returned.
enum Says {
    /// The last entry of the chain.
    Last(Verdict),
    Then(Place),
    /// The memory has another use, or the chain has ended.
    Nothing,
}

impl Lookups {
    pub(crate) fn new(count: usize, view: View) -> Self {
        Self {
            gets: vec![Get::default(); count],
            keys: vec![0; count * KEY_BYTES_MAX],
            view,
            counters: ClientCounters::default(),
        }
    }

    /// Remembers a key of at most [`KEY_BYTES_MAX`] bytes.
    pub(crate) fn remember(&mut self, slot: u32, key: &[u8], hash: KeyHash) {
        let index = slot as usize;
        let place = &mut self.keys[index * KEY_BYTES_MAX..][..key.len()];
        herdwick_mem::copy(place, key);
        let get = &mut self.gets[index];
        (get.hash, get.key_len) = (hash, key.len());
    }

    /// Returns the key of a GET, and its hash.
    pub(crate) fn key(&self, slot: u32) -> (&[u8], KeyHash) {
        let (index, get) = (slot as usize, &self.gets[slot as usize]);
        (&self.keys[index * KEY_BYTES_MAX..][..get.key_len], get.hash)
    }

    /// Returns the cursor to be remembered of a GET that ended.
    pub(crate) fn cursor(&self, slot: u32) -> Cursor {
        let Get { slot, first, .. } = self.gets[slot as usize];
        Cursor { slot, place: first }
    }

    /// Returns whether a cursor names a slot and an entry.
    pub(crate) fn knows(&self, cursor: Cursor) -> bool {
        let View { geometry, .. } = &self.view;
        cursor.slot < geometry.slots && geometry.class_at(cursor.place.target).is_some()
    }

    /// Returns the first step from a cursor; `None` if that makes no sense.
    pub(crate) fn start(&mut self, slot: u32, cursor: Cursor) -> Option<Step> {
        let get = &mut self.gets[slot as usize];
        (get.slot, get.first) = (cursor.slot, cursor.place);
        (get.second, get.shortcut) = (None, true);
        let shortcut = Fetch {
            from: self
                .view
                .memory
                .offset(self.view.geometry.shortcut(cursor.slot)),
            len: WORD,
        };
        let known = cursor.slot < self.view.geometry.slots;
        let first = self.view.fetch(cursor.place).filter(|_| known)?;
        Some(Step::one(first).and(shortcut))
    }

    fn says(&mut self, slot: usize, place: Place, read: &Fetched<'_>, part: usize) -> Says {
        let bytes = read.part(part);
        let (key, _) = self.key(slot as u32);
        let entry = Entry::verified(place, bytes);
        let Some(entry) = entry.filter(|entry| herdwick_mem::same(entry.key, key)) else {
            self.counters.recycled += 1;
            return Says::Nothing;
        };
        match entry.link.successor() {
            None if place.tombstone => Says::Last(Verdict::Missing),
            None => Says::Last(Verdict::Found(read.within(part, entry.value()))),
            Some(Next::Entry(next)) => Says::Then(next),
            Some(Next::Closed) => Says::Nothing,
        }
    }

    /// The entries that a step READ, in the order in which they are looked at: what the shortcut
    /// named is as good as the other, and often later.
    fn weigh(&mut self, slot: usize, read: &Fetched<'_>) -> Verdict {
        let Get {
            first,
            second,
            shortcut,
            ..
        } = self.gets[slot];
        let (mut next, mut jump) = (None, None);
        if shortcut {
            let word = words_of::<1>(read.part(1)).map_or(0, |[word]| word);
            // Where the shortcut names the entry that was READ with it, there is nothing to skip.
            jump = Place::of(word).filter(|place| *place != first);
        } else if let Some(second) = second {
            match self.says(slot, second, read, 1) {
                Says::Last(verdict) => {
                    // The entry that the answer is from becomes the cursor.
                    self.gets[slot].first = second;
                    return verdict;
                }
                Says::Then(place) => next = Some(place),
                Says::Nothing => {}
            }
        }
        match self.says(slot, first, read, 0) {
            Says::Last(verdict) => return verdict,
            Says::Then(place) => match next {
                None => next = Some(place),
                Some(_) => jump = Some(place),
            },
            Says::Nothing => {}
        }
        let mut places = [next, jump].into_iter().flatten();
        let Some(first) = places.next() else {
            return Verdict::Unsure;
        };
        self.follow(slot, first, places.next().filter(|second| *second != first))
    }

    fn follow(&mut self, slot: usize, first: Place, second: Option<Place>) -> Verdict {
        let get = &mut self.gets[slot];
        (get.first, get.second, get.shortcut) = (first, second, false);
        // A link names a place where no entry begins: the memory was overwritten.
        let Some(fetch) = self.view.fetch(first) else {
            return Verdict::Unsure;
        };
        let step = Step::one(fetch);
        Verdict::Follow(match second.and_then(|place| self.view.fetch(place)) {
            Some(second) => step.and(second),
            None => {
                get.second = None;
                step
            }
        })
    }
}

impl View {
    /// Returns the READ of an entry: all of its class, since its length is not known.
    fn fetch(&self, place: Place) -> Option<Fetch> {
        let class = self.geometry.class_at(place.target)?;
        Some(Fetch {
            from: self.memory.offset(place.offset()),
            len: UNIT << class,
        })
    }
}

/// Names a GET in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GetId {
    pub(crate) slot: u32,
    pub(crate) user: u64,
}

impl Judge for Lookups {
    type Lookup = GetId;

    #[inline]
    fn judge(&mut self, get: &mut GetId, read: &Fetched<'_>) -> Verdict {
        self.weigh(get.slot as usize, read)
    }
}
