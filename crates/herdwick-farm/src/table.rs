//! The server's table: hopscotch hashing over slots that clients READ. One owner changes it; a key
//! that is there throughout can be found at every instant.

mod blocks;
mod lines;

use herdwick_mem::{Span, WORD, Words};
use herdwick_request::{HashKey, KeyHash};

use crate::layout::{Geometry, POINTER_WORDS, Pointer, SlotId, Terms, Values, value_lines};
use blocks::Blocks;
use lines::{Labels, Lines, Run};

/// Slots beyond a bucket in which a free one is looked for, to be brought nearer by displacement.
const PROBES_MAX: usize = 1024;
/// Most overflow slots of one bucket, and so the most further READs of a GET.
pub const CHAIN_MAX: usize = 8;
/// [`Table::distances`] of a slot without an item. A distance is below the neighbourhood's size.
const FREE: u8 = u8::MAX;

/// A PUT that the table cannot take. It is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// No slot or value block is left for the item.
    #[error("the table is full: make one with more buckets, overflow slots or value lines")]
    Full,
    /// The key is empty, or key or value are longer than the table's.
    #[error("a key or value of a length that the table does not have")]
    Length,
}

/// What the table holds, and what it took to place it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Items.
    pub items: u64,
    /// Items in overflow slots.
    pub overflowed: u64,
    /// Items that were moved to make room, since the beginning.
    pub displaced: u64,
    /// PUTs that were refused because the table is full, since the beginning.
    pub full: u64,
}

/// A table in memory that clients may READ.
pub struct Table<W = Span> {
    geometry: Geometry,
    hash_key: HashKey,
    lines: Lines<W>,
    /// Slots between each item and its bucket, or [`FREE`]; not for overflow slots.
    distances: Vec<u8>,
    /// Free overflow slots.
    overflow: Vec<SlotId>,
    blocks: Blocks,
    /// The key and value being stored, packed into words.
    item: Vec<u64>,
    /// An item that is being moved.
    moved: Vec<u64>,
    counts: TableCounts,
}

/// The slot of an item, and the slot whose link leads to it if it is in the overflow.
#[derive(Clone, Copy)]
struct Found {
    slot: SlotId,
    linked_by: Option<SlotId>,
}

impl<W: Words> Table<W> {
    /// Makes an empty table in `memory`, which is zeroed and has [`Geometry::bytes`].
    ///
    /// # Panics
    /// If the memory is shorter.
    #[must_use]
    pub fn new(memory: W, geometry: Geometry, hash_key: HashKey) -> Self {
        let bytes = memory.count() * WORD;
        assert!(bytes >= geometry.bytes(), "memory of the table");
        let overflow = geometry.slots()..geometry.slots() + geometry.terms().overflow;
        let lines = match geometry.terms().values {
            Values::Inline => 0,
            Values::OutOfTable { lines } => lines,
        };
        let Terms {
            key_bytes_max,
            value_bytes_max,
            ..
        } = *geometry.terms();
        let words = key_bytes_max.div_ceil(WORD) + value_bytes_max.div_ceil(WORD) + 1;
        Self {
            hash_key,
            lines: Lines::new(memory),
            distances: vec![FREE; geometry.slots()],
            overflow: overflow.rev().map(SlotId).collect(),
            blocks: Blocks::new(lines),
            item: Vec::with_capacity(words),
            moved: Vec::with_capacity(words),
            counts: TableCounts::default(),
            geometry,
        }
    }

    /// Returns its dimensions.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the key that locates its items.
    #[must_use]
    pub fn hash_key(&self) -> HashKey {
        self.hash_key
    }

    /// Returns what it holds.
    #[must_use]
    pub fn counts(&self) -> TableCounts {
        self.counts
    }

    /// Returns the free lines of value blocks.
    #[must_use]
    pub fn free_value_lines(&self) -> usize {
        self.blocks.free_lines()
    }

    /// Copies the value of `key` to the front of `out` and returns its length; `None` if there is no
    /// such key, or `out` is shorter than the value.
    pub fn get(&self, key: &[u8], out: &mut [u8]) -> Option<usize> {
        let found = self.find(key, self.bucket(key))?;
        let run = self.run(found.slot);
        let labels = self.lines.labels(run);
        let out = out.get_mut(..labels.value_len)?;
        let (from, first) = match self.pointer(run, key.len()) {
            None => (run, key.len().div_ceil(WORD)),
            Some(pointer) => (self.block(pointer, out.len()), 0),
        };
        for (n, bytes) in out.chunks_mut(WORD).enumerate() {
            let word = self.lines.data(from, first + n).to_le_bytes();
            herdwick_mem::copy(bytes, &word[..bytes.len()]);
        }
        Some(labels.value_len)
    }

    /// Stores `value` under `key`.
    ///
    /// # Errors
    /// [`PutError`]; the table is as before.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PutError> {
        if key.is_empty() || !self.geometry.admits(key.len(), value.len()) {
            return Err(PutError::Length);
        }
        let bucket = self.bucket(key);
        let found = self.find(key, bucket);
        // Ahead of every change: a PUT that fails leaves the table as it was.
        let block = self.pack(key, value)?;
        let stored = match found {
            Some(found) => {
                self.replace(found, key.len(), value.len());
                Ok(())
            }
            None => self.insert(bucket, key.len(), value.len()),
        };
        if stored.is_err() {
            self.counts.full += 1;
            if let Some(block) = block {
                self.blocks.give(block, value_lines(value.len()));
            }
        }
        stored
    }

    /// Removes `key`; returns whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let Some(Found { slot, linked_by }) = self.find(key, self.bucket(key)) else {
            return false;
        };
        let run = self.run(slot);
        let labels = self.lines.labels(run);
        let pointer = self.pointer(run, key.len());
        match linked_by {
            Some(before) => {
                // Out of its chain first, so that clients soon follow no link to the empty slot.
                self.set_link(before, labels.link);
                self.lines.publish(run, Labels::default(), []);
                self.overflow.push(slot);
                self.counts.overflowed -= 1;
            }
            None => self.clear(slot),
        }
        self.give_block(pointer, labels.value_len);
        self.counts.items -= 1;
        true
    }

    /// Packs the item into words, and its value into a block where values have blocks of their own.
    fn pack(&mut self, key: &[u8], value: &[u8]) -> Result<Option<u32>, PutError> {
        self.item.clear();
        push_words(&mut self.item, key);
        if self.geometry.is_inline() {
            push_words(&mut self.item, value);
            return Ok(None);
        }
        let Some(block) = self.blocks.take(value_lines(value.len())) else {
            self.counts.full += 1;
            return Err(PutError::Full);
        };
        let key_words = self.item.len();
        // The value first: a slot points only to blocks that are complete.
        push_words(&mut self.item, value);
        let pointer = Pointer {
            block,
            ..Pointer::default()
        };
        let run = self.block(pointer, value.len());
        let value = self.item[key_words..].iter().copied();
        let version = self.lines.publish(run, Labels::default(), value);
        self.item.truncate(key_words);
        self.item.extend(Pointer { block, version }.words());
        Ok(Some(block))
    }

    fn replace(&mut self, found: Found, key_len: usize, value_len: usize) {
        let run = self.run(found.slot);
        let labels = self.lines.labels(run);
        let pointer = self.pointer(run, key_len);
        let new = Labels {
            value_len,
            ..labels
        };
        self.lines.publish(run, new, self.item.iter().copied());
        // A reader that still has the old pointer finds another version in the block.
        self.give_block(pointer, labels.value_len);
    }

    /// Stores the packed item in a free slot of the neighbourhood, or else of the overflow.
    fn insert(&mut self, bucket: SlotId, key_len: usize, value_len: usize) -> Result<(), PutError> {
        let labels = Labels {
            key_len,
            value_len,
            link: 0,
        };
        if let Some(slot) = self.make_room(bucket) {
            let run = self.run(slot);
            let link = self.lines.labels(run).link;
            let item = self.item.iter().copied();
            self.lines.publish(run, Labels { link, ..labels }, item);
            // Below the neighbourhood's size, at most 32.
            self.distances[slot.0] = (slot.0 - bucket.0) as u8;
        } else {
            self.insert_in_overflow(bucket, labels)?;
        }
        self.counts.items += 1;
        Ok(())
    }

    /// Puts the packed item in front of its bucket's chain. A slot that is used again so leads to
    /// everything that the chain had before: a reader that still follows an old link misses nothing.
    fn insert_in_overflow(&mut self, bucket: SlotId, labels: Labels) -> Result<(), PutError> {
        let link = self.lines.labels(self.run(bucket)).link;
        if self.chain(link).count() >= CHAIN_MAX {
            return Err(PutError::Full);
        }
        let slot = self.overflow.pop().ok_or(PutError::Full)?;
        let run = self.run(slot);
        let item = self.item.iter().copied();
        self.lines.publish(run, Labels { link, ..labels }, item);
        // The link last: a reader that follows it finds the item.
        self.set_link(bucket, self.geometry.link_to(slot));
        self.counts.overflowed += 1;
        Ok(())
    }

    /// Returns a free slot of the neighbourhood of `bucket`, after items in the way were moved to
    /// later slots of their own neighbourhoods. `None` if that cannot be done.
    fn make_room(&mut self, bucket: SlotId) -> Option<SlotId> {
        let reach = self.geometry.terms().neighbourhood;
        let end = (bucket.0 + PROBES_MAX).min(self.distances.len());
        let mut free = (bucket.0..end).find(|slot| self.distances[*slot] == FREE)?;
        while free - bucket.0 >= reach {
            let movable = |slot: &usize| {
                let distance = usize::from(self.distances[*slot]);
                free - slot + distance < reach
            };
            // The farthest item first, as in hopscotch hashing: fewest moves.
            let from = (free + 1 - reach..free).find(movable)?;
            self.displace(from, free);
            free = from;
        }
        Some(SlotId(free))
    }

    /// Moves the item of slot `from` to the free slot `to`, further from its bucket. It is stored at
    /// `to` before it is cleared at `from`, so a READ in rising order finds it; and the version of its
    /// bucket's slot changes, which shows the move to any other.
    fn displace(&mut self, from: usize, to: usize) {
        let distance = self.distances[from];
        let home = self.run(SlotId(from - usize::from(distance)));
        let (source, target) = (self.run(SlotId(from)), self.run(SlotId(to)));
        self.lines.mark(home);
        let labels = self.lines.labels(source);
        let link = self.lines.labels(target).link;
        let words = self.item_words(labels);
        self.moved.clear();
        self.moved
            .extend((0..words).map(|n| self.lines.data(source, n)));
        let item = self.moved.iter().copied();
        self.lines.publish(target, Labels { link, ..labels }, item);
        self.distances[to] = distance + (to - from) as u8;
        self.clear(SlotId(from));
        if home != source {
            self.lines.touch(home);
        }
        self.counts.displaced += 1;
    }

    /// Removes the item of a slot; the slot keeps its bucket's link.
    fn clear(&mut self, slot: SlotId) {
        let run = self.run(slot);
        let link = self.lines.labels(run).link;
        let empty = Labels {
            link,
            ..Labels::default()
        };
        self.lines.publish(run, empty, []);
        self.distances[slot.0] = FREE;
    }

    fn set_link(&mut self, slot: SlotId, link: u32) {
        let run = self.run(slot);
        let labels = self.lines.labels(run);
        self.lines.publish(run, Labels { link, ..labels }, []);
    }

    fn find(&self, key: &[u8], bucket: SlotId) -> Option<Found> {
        let near = (bucket.0..bucket.0 + self.geometry.terms().neighbourhood).map(SlotId);
        if let Some(slot) = near.into_iter().find(|slot| self.holds(*slot, key)) {
            let linked_by = None;
            return Some(Found { slot, linked_by });
        }
        let mut before = bucket;
        for slot in self.chain(self.lines.labels(self.run(bucket)).link) {
            if self.holds(slot, key) {
                let linked_by = Some(before);
                return Some(Found { slot, linked_by });
            }
            before = slot;
        }
        None
    }

    fn chain(&self, link: u32) -> impl Iterator<Item = SlotId> + use<'_, W> {
        let next = |slot: &SlotId| {
            let link = self.lines.labels(self.run(*slot)).link;
            self.geometry.linked(link)
        };
        std::iter::successors(self.geometry.linked(link), next)
    }

    fn holds(&self, slot: SlotId, key: &[u8]) -> bool {
        let run = self.run(slot);
        debug_assert!(self.lines.is_finished(run));
        self.lines.labels(run).key_len == key.len()
            && key
                .chunks(WORD)
                .enumerate()
                .all(|(n, bytes)| word_of(bytes) == self.lines.data(run, n))
    }

    fn bucket(&self, key: &[u8]) -> SlotId {
        self.geometry.bucket(self.hash(key))
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        self.hash_key.hash(key)
    }

    /// Returns where the value of a key of `key_len` bytes is; `None`: in the slot, which may end
    /// before a pointer would.
    fn pointer(&self, run: Run, key_len: usize) -> Option<Pointer> {
        let first = key_len.div_ceil(WORD);
        let words = || [0, 1].map(|n| self.lines.data(run, first + n));
        (!self.geometry.is_inline()).then(|| Pointer::of(words()))
    }

    fn give_block(&mut self, pointer: Option<Pointer>, value_len: usize) {
        if let Some(pointer) = pointer {
            self.blocks.give(pointer.block, value_lines(value_len));
        }
    }

    /// Returns the words of an item in a slot.
    fn item_words(&self, labels: Labels) -> usize {
        let value = if self.geometry.is_inline() {
            labels.value_len.div_ceil(WORD)
        } else {
            POINTER_WORDS
        };
        labels.key_len.div_ceil(WORD) + value
    }

    fn run(&self, slot: SlotId) -> Run {
        Run {
            first: self.geometry.slot_offset(slot) / WORD,
            lines: self.geometry.slot_lines(),
        }
    }

    fn block(&self, pointer: Pointer, value_len: usize) -> Run {
        Run {
            first: self.geometry.block_offset(pointer.block) / WORD,
            lines: value_lines(value_len),
        }
    }
}

/// Returns up to 8 bytes as a little-endian word, padded with zeros.
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    herdwick_mem::copy(&mut word[..bytes.len()], bytes);
    u64::from_le_bytes(word)
}

/// Appends bytes as words, the last one padded with zeros.
pub(crate) fn push_words(words: &mut Vec<u64>, bytes: &[u8]) {
    words.extend(bytes.chunks(WORD).map(word_of));
}
