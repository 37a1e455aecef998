//! A GET by READs alone: what to READ next, and what the words that came back say.

use herdwick_mem::{LINE, WORD};
use herdwick_request::{HashKey, KEY_BYTES_MAX};

use crate::{
    layout::{
        Geometry, Head, LINE_WORDS, Pointer, SlotId, TAIL_WORD, Tail, Version, common_version,
        data_word, value_lines,
    },
    table::{CHAIN_MAX, word_of},
};

/// READs of a neighbourhood, one after the other, in which a bucket has to stay as it is for a miss to
/// count where the lines of a READ are not loaded in rising order: an item that moved meanwhile may
/// be seen in neither place, but then its bucket's version changed between the first READ and the
/// last.
const MISSES_UNORDERED: u8 = 3;

/// Where a client finds a table, and how its provider READs.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The table's dimensions.
    pub geometry: Geometry,
    /// The key that locates items.
    pub hash_key: HashKey,
    /// [`herdwick_fabric::Capabilities::ordered_read`] of the provider.
    pub ordered_read: bool,
}

/// A READ, within the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: usize,
    /// Bytes, whole lines.
    pub len: usize,
}

/// What a READ said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The value is in what the READ returned: [`Probe::copy_value`].
    Hit,
    /// There is no such key.
    Miss,
    /// The next READ will say: of an overflow slot, of the value, or of the neighbourhood again to be
    /// sure of a miss.
    More,
    /// The READ met a change; the GET begins again.
    Torn,
}

/// One GET.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    bucket: SlotId,
    at: At,
    /// Times in a row that the key was not there, with `home` as the version of its bucket's slot.
    misses: u8,
    home: Version,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Neighbourhood,
    Chain {
        slot: SlotId,
        hops: usize,
    },
    Value {
        pointer: Pointer,
        len: usize,
    },
    /// The slot or block at word `first` of the last READ has the value, from its data word `data` on.
    Found {
        first: usize,
        data: usize,
        len: usize,
    },
}

impl Probe {
    /// Begins a GET of `key`.
    #[must_use]
    pub fn new(view: &View, key: &[u8]) -> Self {
        Self {
            bucket: view.geometry.bucket(view.hash_key.hash(key)),
            at: At::Neighbourhood,
            misses: 0,
            home: Version::default(),
        }
    }

    /// Returns what to READ next.
    #[inline]
    #[must_use]
    pub fn extent(&self, view: &View) -> Extent {
        let geometry = &view.geometry;
        let (offset, len) = match self.at {
            At::Neighbourhood | At::Found { .. } => (
                geometry.slot_offset(self.bucket),
                geometry.neighbourhood_bytes(),
            ),
            At::Chain { slot, .. } => (geometry.slot_offset(slot), geometry.slot_bytes()),
            At::Value { pointer, len } => (
                geometry.block_offset(pointer.block),
                value_lines(len) * LINE,
            ),
        };
        Extent { offset, len }
    }

    /// Judges what the READ of [`Probe::extent`] returned, as words that `load` returns.
    #[inline]
    pub fn judge(&mut self, view: &View, key: &[u8], load: &impl Fn(usize) -> u64) -> Verdict {
        match self.at {
            At::Neighbourhood | At::Found { .. } => self.neighbourhood(view, key, load),
            At::Chain { hops, .. } => self.chain(view, key, hops, load),
            At::Value { pointer, len } => self.value(pointer, len, load),
        }
    }

    /// Returns the length of the value after [`Verdict::Hit`], else 0.
    #[must_use]
    pub fn value_len(&self) -> usize {
        match self.at {
            At::Found { len, .. } => len,
            _ => 0,
        }
    }

    /// Copies the value of a [`Verdict::Hit`] to the front of `out`, from the words that `load` returned
    /// to [`Probe::judge`]; as much as there is room for.
    #[inline]
    pub fn copy_value(&self, load: &impl Fn(usize) -> u64, out: &mut [u8]) {
        let At::Found { first, data, len } = self.at else {
            return;
        };
        let len = len.min(out.len());
        for (index, bytes) in out[..len].chunks_mut(WORD).enumerate() {
            let word = load(first + data_word(data + index)).to_le_bytes();
            herdwick_mem::copy(bytes, &word[..bytes.len()]);
        }
    }

    fn neighbourhood(&mut self, view: &View, key: &[u8], load: &impl Fn(usize) -> u64) -> Verdict {
        let lines = view.geometry.slot_lines();
        let mut slots = (0..view.geometry.terms().neighbourhood).map(|n| n * lines * LINE_WORDS);
        // The key is looked for before versions are compared: a change in a slot that does not have
        // it costs nothing.
        if let Some(first) = slots.clone().find(|first| holds(*first, key, load)) {
            return self.item(view, first, key, load);
        }
        // The key may be in a slot that was being written, and is nowhere else then.
        if !slots.all(|first| common_version(first, lines, load).is_some()) {
            return self.torn();
        }
        let home = Head::of(load(0)).version;
        if self.home != home {
            (self.misses, self.home) = (0, home);
        }
        self.follow(view, Tail::of(load(TAIL_WORD)).link, 0)
    }

    fn chain(
        &mut self,
        view: &View,
        key: &[u8],
        hops: usize,
        load: &impl Fn(usize) -> u64,
    ) -> Verdict {
        if holds(0, key, load) {
            return self.item(view, 0, key, load);
        }
        if common_version(0, view.geometry.slot_lines(), load).is_none() {
            return self.torn();
        }
        // A slot that left the chain meanwhile is empty, or has an item of another bucket.
        if self.bucket_at(view, load) != Some(self.bucket) {
            return self.torn();
        }
        self.follow(view, Tail::of(load(TAIL_WORD)).link, hops + 1)
    }

    fn value(&mut self, pointer: Pointer, len: usize, load: &impl Fn(usize) -> u64) -> Verdict {
        // Any other value that was stored there has another version.
        if common_version(0, value_lines(len), load) != Some(pointer.version) {
            return self.torn();
        }
        self.found(0, 0, len)
    }

    /// Judges the slot at word `first`, which seems to have the key.
    fn item(
        &mut self,
        view: &View,
        first: usize,
        key: &[u8],
        load: &impl Fn(usize) -> u64,
    ) -> Verdict {
        let len = Head::of(load(first)).value_len;
        let finished = common_version(first, view.geometry.slot_lines(), load).is_some();
        if !finished || !view.geometry.admits(key.len(), len) {
            return self.torn();
        }
        let after_key = key.len().div_ceil(WORD);
        if view.geometry.is_inline() {
            return self.found(first, after_key, len);
        }
        let pointer = [0, 1].map(|n| load(first + data_word(after_key + n)));
        let pointer = Pointer::of(pointer);
        if !view.geometry.block_fits(pointer.block, len) {
            return self.torn();
        }
        self.at = At::Value { pointer, len };
        Verdict::More
    }

    fn found(&mut self, first: usize, data: usize, len: usize) -> Verdict {
        self.at = At::Found { first, data, len };
        Verdict::Hit
    }

    /// Goes on to the slot that `link` names, or ends with a miss.
    fn follow(&mut self, view: &View, link: u32, hops: usize) -> Verdict {
        if link == 0 {
            return self.missed(view);
        }
        match view.geometry.linked(link) {
            // A longer chain than the server makes has changed on the way.
            Some(slot) if hops < CHAIN_MAX => {
                self.at = At::Chain { slot, hops };
                Verdict::More
            }
            _ => self.torn(),
        }
    }

    fn missed(&mut self, view: &View) -> Verdict {
        self.misses += 1;
        self.at = At::Neighbourhood;
        let enough = view.ordered_read || self.misses == MISSES_UNORDERED;
        if enough { Verdict::Miss } else { Verdict::More }
    }

    fn torn(&mut self) -> Verdict {
        (self.at, self.misses) = (At::Neighbourhood, 0);
        Verdict::Torn
    }

    /// Returns the bucket of the item in the slot at word 0, whose lines have one version; `None`
    /// without one.
    fn bucket_at(&self, view: &View, load: &impl Fn(usize) -> u64) -> Option<SlotId> {
        let len = Head::of(load(0)).key_len;
        if len == 0 || !view.geometry.admits(len, 0) {
            return None;
        }
        let mut key = [0; KEY_BYTES_MAX];
        for (n, bytes) in key[..len].chunks_mut(WORD).enumerate() {
            let word = load(data_word(n)).to_le_bytes();
            herdwick_mem::copy(bytes, &word[..bytes.len()]);
        }
        Some(view.geometry.bucket(view.hash_key.hash(&key[..len])))
    }
}

/// Returns whether the slot at word `first` has `key`, if its lines are of one version.
#[inline]
fn holds(first: usize, key: &[u8], load: &impl Fn(usize) -> u64) -> bool {
    Head::of(load(first)).key_len == key.len()
        && key
            .chunks(WORD)
            .enumerate()
            .all(|(n, bytes)| word_of(bytes) == load(first + data_word(n)))
}
