//! The client's judge: what the READs of a GET returned, and where to look next.
//!
//! A GET reads the key's buckets one after the other, until one has an entry with the key's tag; then
//! the extent. A key that is displaced meanwhile may leave a bucket that is still to be read for one
//! that was read before. So a miss counts only if a second look at all three buckets, in one step,
//! finds them as before: each bucket has a version, so all three were so at one time.

use herdwick_fabric::Remote;
use herdwick_mem::crc64;
use herdwick_read::{Fetch, Fetched, Judge, Step, Verdict};

use crate::{
    ClientCounters,
    layout::{BadEntry, CuckooHash, ENTRY_BYTES, ENTRY_WORDS, Entry, KEY_BYTES_MAX, PLACES, State},
};

/// The table as a client READs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableView {
    /// The first bucket.
    pub table: Remote,
    /// Number of buckets.
    pub buckets: u64,
    /// How often the table had moved.
    pub generation: u32,
}

/// The memory of extents as a client READs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentsView {
    /// Its first byte.
    pub extents: Remote,
    /// Its length.
    pub bytes: u64,
}

/// Names a GET in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) slot: u32,
    pub(crate) user: u64,
}

/// The GETs in flight.
#[derive(Debug)]
pub(crate) struct Lookups {
    gets: Vec<Get>,
    keys: Vec<u8>,
    extents: ExtentsView,
    /// Longest value that is READ.
    read_value_max: usize,
    /// Whether an entry said that its table has moved, and which.
    pub(crate) moved: Option<u32>,
    pub(crate) counters: ClientCounters,
}

#[derive(Clone, Copy, Debug)]
struct Get {
    hash: CuckooHash,
    key_len: usize,
    view: TableView,
    places: [u64; PLACES],
    stage: Stage,
    /// What was read of each bucket and is not the key's.
    seen: [[u64; ENTRY_WORDS]; PLACES],
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// One bucket is being read.
    Probe(usize),
    /// The extent of an entry in a bucket is being read; `all`: after a second look.
    Extent {
        place: usize,
        entry: Entry,
        all: bool,
    },
    /// All buckets are being read once more.
    Again,
}

/// The meaning of an entry for a key.
enum Says {
    ItsExtent(Entry),
    Otherwise,
    Stop(Verdict),
}

impl Lookups {
    pub(crate) fn new(
        (lookups, read_value_max): (usize, usize),
        view: TableView,
        extents: ExtentsView,
    ) -> Self {
        let get = Get {
            hash: CuckooHash::default(),
            key_len: 0,
            view,
            places: [0; PLACES],
            stage: Stage::Again,
            seen: [[0; ENTRY_WORDS]; PLACES],
        };
        Self {
            gets: vec![get; lookups],
            keys: vec![0; lookups * KEY_BYTES_MAX],
            extents,
            read_value_max,
            moved: None,
            counters: ClientCounters::default(),
        }
    }

    /// Remembers a key of at most [`KEY_BYTES_MAX`] bytes; returns the first step of its GET.
    pub(crate) fn begin(
        &mut self,
        slot: u32,
        key: &[u8],
        hash: CuckooHash,
        view: TableView,
    ) -> Step {
        let index = slot as usize;
        let place = &mut self.keys[index * KEY_BYTES_MAX..][..key.len()];
        herdwick_mem::copy(place, key);
        let get = &mut self.gets[index];
        *get = Get {
            hash,
            key_len: key.len(),
            view,
            places: hash.places(view.buckets),
            stage: Stage::Probe(0),
            seen: [[0; ENTRY_WORDS]; PLACES],
        };
        get.probe(0)
    }

    /// Returns how many GETs there may be.
    pub(crate) fn len(&self) -> usize {
        self.gets.len()
    }

    /// Returns the key of a GET.
    pub(crate) fn key(&self, slot: u32) -> &[u8] {
        let index = slot as usize;
        &self.keys[index * KEY_BYTES_MAX..][..self.gets[index].key_len]
    }

    /// Returns the generation of the table that a GET reads.
    pub(crate) fn generation(&self, slot: u32) -> u32 {
        self.gets[slot as usize].view.generation
    }

    /// Checks an entry that was read; `words` are those of a bucket.
    fn says(&mut self, slot: usize, words: [u64; ENTRY_WORDS]) -> Says {
        let get = &self.gets[slot];
        let entry = match Entry::verified(words) {
            Ok(entry) => entry,
            Err(BadEntry::Torn) => return Says::Stop(Verdict::Torn),
            Err(BadEntry::Absurd) => return self.absurd(),
        };
        match entry.state {
            State::Moved => {
                self.counters.moved += 1;
                self.moved = Some(get.view.generation);
                Says::Stop(Verdict::Unsure)
            }
            State::Used if entry.tag == get.hash.tag() => {
                // The sum may overflow: the offset is the peer's.
                let end = entry.offset.checked_add(entry.extent_len() as u64);
                if end.is_some_and(|end| end <= self.extents.bytes) {
                    Says::ItsExtent(entry)
                } else {
                    self.absurd()
                }
            }
            State::Used | State::Empty => Says::Otherwise,
        }
    }

    #[cold]
    fn absurd(&mut self) -> Says {
        self.counters.absurd_entries += 1;
        Says::Stop(Verdict::Unsure)
    }

    fn probed(&mut self, slot: usize, place: usize, words: [u64; ENTRY_WORDS]) -> Verdict {
        match self.says(slot, words) {
            Says::ItsExtent(entry) => self.follow(slot, (place, words), entry, false),
            Says::Otherwise => {
                self.gets[slot].seen[place] = words;
                self.gets[slot].next(place + 1)
            }
            Says::Stop(verdict) => verdict,
        }
    }

    /// Goes on with the extent of an entry, unless its value is one that the server is asked for.
    fn follow(
        &mut self,
        slot: usize,
        (place, words): (usize, [u64; ENTRY_WORDS]),
        entry: Entry,
        all: bool,
    ) -> Verdict {
        if entry.value_len > self.read_value_max {
            return Verdict::Unsure;
        }
        let from = self.extents.extents.offset(entry.offset);
        let get = &mut self.gets[slot];
        // For a second look, if the extent is another key's.
        get.seen[place] = words;
        get.stage = Stage::Extent { place, entry, all };
        let len = entry.extent_len();
        Verdict::Follow(Step::one(Fetch { from, len }))
    }

    fn extent(&mut self, slot: usize, read: &Fetched<'_>) -> Verdict {
        let Stage::Extent { place, entry, all } = self.gets[slot].stage else {
            return Verdict::Unsure;
        };
        let bytes = read.part(0);
        // From the first place again: the extent has another use, so the entry that led here is gone
        // too.
        if bytes.len() != entry.extent_len() || crc64(0, bytes) != entry.extent_crc {
            self.counters.stale_extents += 1;
            return Verdict::Stale(self.gets[slot].probe(0));
        }
        if herdwick_mem::same(&bytes[..entry.key_len], self.key(slot as u32)) {
            return Verdict::Found(read.within(0, entry.key_len..bytes.len()));
        }
        self.counters.other_keys += 1;
        let get = &mut self.gets[slot];
        // After a second look the places behind this one have been looked at, too.
        if all {
            get.look_again()
        } else {
            get.next(place + 1)
        }
    }

    /// Compares a second look at all places with the first.
    fn compared(&mut self, slot: usize, look: [[u64; ENTRY_WORDS]; PLACES]) -> Verdict {
        let mut changed = false;
        for (place, words) in look.into_iter().enumerate() {
            if words == self.gets[slot].seen[place] {
                continue;
            }
            match self.says(slot, words) {
                // The key may have come here since the first look.
                Says::ItsExtent(entry) => return self.follow(slot, (place, words), entry, true),
                Says::Otherwise => self.gets[slot].seen[place] = words,
                Says::Stop(verdict) => return verdict,
            }
            changed = true;
        }
        if !changed {
            return Verdict::Missing;
        }
        self.counters.misses_changed += 1;
        // The same READs once more, as after a torn one.
        Verdict::Torn
    }
}

impl Judge for Lookups {
    type Lookup = Cursor;

    #[inline]
    fn judge(&mut self, cursor: &mut Cursor, read: &Fetched<'_>) -> Verdict {
        let slot = cursor.slot as usize;
        match self.gets[slot].stage {
            Stage::Probe(place) => self.probed(slot, place, entry_words(read.part(0))),
            Stage::Extent { .. } => self.extent(slot, read),
            Stage::Again => {
                let look = std::array::from_fn(|place| entry_words(read.part(place)));
                self.compared(slot, look)
            }
        }
    }
}

impl Get {
    fn fetch(&self, place: usize) -> Fetch {
        let at = self.places[place] * ENTRY_BYTES as u64;
        Fetch {
            from: self.view.table.offset(at),
            len: ENTRY_BYTES,
        }
    }

    /// Begins with a place.
    fn probe(&mut self, place: usize) -> Step {
        self.stage = Stage::Probe(place);
        Step::one(self.fetch(place))
    }

    /// Goes on with a place, or, behind the last, with a second look at all.
    fn next(&mut self, place: usize) -> Verdict {
        if place < PLACES {
            return Verdict::Follow(self.probe(place));
        }
        self.look_again()
    }

    fn look_again(&mut self) -> Verdict {
        self.stage = Stage::Again;
        let others = (1..PLACES).map(|place| self.fetch(place));
        Verdict::Follow(others.fold(Step::one(self.fetch(0)), Step::and))
    }
}

fn entry_words(bytes: &[u8]) -> [u64; ENTRY_WORDS] {
    let mut words = [0; ENTRY_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use herdwick_request::HashKey;

    use super::*;

    const KEY: &[u8] = b"a key";
    const EXTENT_BYTES: u64 = 4096;

    fn hash() -> CuckooHash {
        CuckooHash::of(&HashKey([3, 4]), KEY)
    }

    /// A GET of [`KEY`], in slot 0.
    fn begun() -> Lookups {
        let at = |addr| Remote {
            addr,
            rkey: herdwick_fabric::Rkey(1),
        };
        let view = TableView {
            table: at(0),
            buckets: 64,
            generation: 7,
        };
        let extents = ExtentsView {
            extents: at(1 << 20),
            bytes: EXTENT_BYTES,
        };
        let mut lookups = Lookups::new((1, 1024), view, extents);
        lookups.begin(0, KEY, hash(), view);
        lookups
    }

    /// The words of a bucket without a key that was changed so often.
    fn vacant(version: u32) -> [u64; ENTRY_WORDS] {
        Entry::vacant(State::Empty, version).words()
    }

    /// The words of an entry with the key's tag.
    fn used(offset: u64, value_len: usize) -> [u64; ENTRY_WORDS] {
        Entry {
            tag: hash().tag(),
            offset,
            key_len: KEY.len(),
            value_len,
            ..Entry::vacant(State::Used, 1)
        }
        .words()
    }

    /// Looks at three buckets that do not have the key.
    fn first_look(lookups: &mut Lookups, look: [[u64; ENTRY_WORDS]; PLACES]) {
        for (place, words) in look.into_iter().enumerate() {
            assert!(matches!(
                lookups.probed(0, place, words),
                Verdict::Follow(_)
            ));
        }
        assert!(matches!(lookups.gets[0].stage, Stage::Again));
    }

    #[test]
    fn a_miss_counts_if_no_bucket_has_changed_between_two_looks() {
        let look = [vacant(3), vacant(1 << 19), vacant(0)];
        for place in 0..PLACES {
            let mut lookups = begun();
            first_look(&mut lookups, look);
            // It changed, and changed back.
            let mut changed = look;
            changed[place] = vacant(5);
            assert_eq!(lookups.compared(0, changed), Verdict::Torn, "place {place}");
            assert_eq!(lookups.counters.misses_changed, 1);
            assert_eq!(lookups.compared(0, changed), Verdict::Missing);
        }
        let mut lookups = begun();
        first_look(&mut lookups, look);
        assert_eq!(lookups.compared(0, look), Verdict::Missing);
    }

    #[test]
    fn a_key_that_the_second_look_finds_is_followed() {
        let mut lookups = begun();
        let look = [vacant(3), vacant(4), vacant(5)];
        first_look(&mut lookups, look);
        let verdict = lookups.compared(0, [look[0], look[1], used(64, 8)]);
        assert!(matches!(verdict, Verdict::Follow(_)), "{verdict:?}");
    }

    #[test]
    fn an_extent_beyond_the_memory_of_extents_is_not_read() {
        let last = EXTENT_BYTES - 64;
        let fits = 64 - KEY.len();
        for (offset, value_len, absurd) in [(last, fits, 0), (last, fits + 1, 1), (1 << 39, 0, 1)] {
            let mut lookups = begun();
            let verdict = lookups.probed(0, 0, used(offset, value_len));
            assert_eq!(verdict == Verdict::Unsure, absurd > 0, "{verdict:?}");
            assert_eq!(lookups.counters.absurd_entries, absurd);
        }
    }

    #[test]
    fn a_bucket_that_says_that_the_table_has_moved_is_no_miss() {
        let mut lookups = begun();
        let moved = Entry::vacant(State::Moved, 0).words();
        assert_eq!(lookups.probed(0, 0, moved), Verdict::Unsure);
        assert_eq!(lookups.moved, Some(7));
    }
}
