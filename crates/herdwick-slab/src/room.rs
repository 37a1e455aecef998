//! Room for items: free chunks, evictions, and items written to their chunks.

use herdwick_layout::chunk::{ChunkHeader, HEADER, len};
use herdwick_request::{KeyHash, Request};

use crate::{
    fresh::Fresh,
    metas::{Chunk, USES_MAX, state},
    store::Store,
};

/// Items at the end of a list that may stay because they are in use, before one that is in use goes.
const TURNS: usize = 32;
/// Attempts at a free chunk.
const ATTEMPTS: usize = 100;
/// Attempts after which the slab that is being emptied is emptied at once: the items that were evicted may
/// all have been in it.
const ATTEMPTS_BEFORE_EMPTYING: usize = 16;
/// Chunks of the slab that is being emptied that each put looks at, at least.
const PACE: usize = 16;

/// Chunks.
impl Store {
    /// Takes a chunk of `class`: a free one, one of a new slab, an evicted item's, or one of a slab that
    /// another class has to give up.
    pub(crate) fn allocate(&mut self, class: usize) -> Option<Chunk> {
        // First: what is emptied in time spares this put an eviction.
        self.empty_step(self.pace(class));
        for attempt in 0..ATTEMPTS {
            if let Some(chunk) = self.take_free(class) {
                return Some(chunk);
            }
            if attempt == ATTEMPTS_BEFORE_EMPTYING {
                self.empty_step(usize::MAX);
            }
            // From what costs nothing to what costs most: a slab that no class has, one of which
            // nothing is lost, an item of the class, a slab of another class.
            let has_room = self.cut(class)
                || self.take_spare(class)
                || self.evict(class)
                || self.take_slab(class);
            if !has_room {
                return None;
            }
        }
        None
    }

    /// Returns how many chunks of the slab that is being emptied a put of `class` looks at: as many as one
    /// chunk of the class has bytes for, so that the slab is there when the class has stored a slab's worth.
    #[inline]
    fn pace(&self, class: usize) -> usize {
        self.emptying.map_or(PACE, |emptying| {
            let source = self.slabs.class_of_slab(emptying.slab);
            let per_slab = self.classes[source].per_slab;
            per_slab.div_ceil(self.classes[class].per_slab).max(PACE)
        })
    }

    /// Takes a free chunk, unless those of the class are all of the slab that is being emptied.
    pub(crate) fn take_free(&mut self, class: usize) -> Option<Chunk> {
        while let Some(chunk) = self.classes[class].free.pop(&mut self.metas) {
            // A chunk of the slab that is being emptied drops out of the list so, and stays out.
            self.metas.get_mut(chunk).state = state::NONE;
            if !self.is_emptied(chunk) {
                return Some(chunk);
            }
        }
        None
    }

    /// Gives a chunk back that has no item any more.
    pub(crate) fn free(&mut self, chunk: Chunk) {
        let emptied = self.is_emptied(chunk);
        let meta = self.metas.get_mut(chunk);
        meta.state = if emptied { state::NONE } else { state::FREE };
        if !emptied {
            let class = self.slabs.class_of(chunk);
            self.classes[class].free.push(&mut self.metas, chunk);
        }
    }

    /// Makes room in a class: looks at its items from the end, and removes the first that has expired,
    /// was flushed, or was not used since the last look. Returns whether it removed one.
    fn evict(&mut self, class: usize) -> bool {
        // Once more than `TURNS` says: the item that must stay may be the one that its turn has come to.
        for turn in 0..=TURNS + 1 {
            let Some(tail) = self.classes[class].items.tail.some() else {
                return false;
            };
            let chosen = if self.protected == Some(tail) {
                None
            } else if self.gone(tail) {
                Some(tail)
            } else if self.lossless {
                None
            } else {
                (turn >= TURNS || self.metas.get(tail).uses == 0).then_some(tail)
            };
            if let Some(chunk) = chosen {
                self.drop_for_room(class, chunk);
                return true;
            }
            // The item may not go, and is the only one.
            if self.classes[class].items.len == 1 {
                return false;
            }
            let meta = self.metas.get_mut(tail);
            self.counters.refreshed += u64::from(meta.uses > 0);
            // CLOCK: a use buys a turn around the list.
            meta.uses = meta.uses.saturating_sub(1);
            self.classes[class].items.renew(&mut self.metas, tail);
        }
        false
    }

    fn drop_for_room(&mut self, class: usize, chunk: Chunk) {
        // An item that had expired is no eviction, and no reason to ask another class for a slab.
        let evictions = self.counters.evictions;
        self.count_dropped(chunk);
        if self.counters.evictions > evictions {
            self.classes[class].evicted += 1;
        }
        self.remove(chunk);
        // A slab's worth of evictions: another class may have to give a slab up.
        let Self { classes, .. } = self;
        if classes[class].evicted >= classes[class].per_slab {
            classes[class].evicted = 0;
            self.balance(class);
        }
    }
}

/// Items.
impl Store {
    /// Removes the item of a request's key.
    pub(crate) fn unlink(&mut self, request: &Request<'_>, chunk: Chunk) {
        self.unlink_hashed(request.hash, chunk);
    }

    /// Removes an item.
    pub(crate) fn remove(&mut self, chunk: Chunk) {
        let hash = self.hash_key.hash(self.key(chunk));
        self.unlink_hashed(hash, chunk);
    }

    fn unlink_hashed(&mut self, hash: KeyHash, chunk: Chunk) {
        self.index
            .replace(&mut self.metas, hash, chunk, Chunk::NONE);
        let class = self.slabs.class_of(chunk);
        self.classes[class].items.remove(&mut self.metas, chunk);
        self.counters.items -= 1;
        self.counters.bytes -= footprint(&self.header(chunk));
        self.bury(chunk);
        self.free(chunk);
    }

    /// Makes the item in a chunk the item of its key, in place of `old`.
    pub(crate) fn link(&mut self, hash: KeyHash, old: Option<Chunk>, chunk: Chunk, bits: u8) {
        let class = self.slabs.class_of(chunk);
        let uses = old.map_or(0, |old| self.metas.get(old).uses);
        if let Some(old) = old {
            // The key keeps its stag.
            self.swap_stags(old, chunk);
            self.unlink_hashed(hash, old);
        }
        self.index.insert(&mut self.metas, hash, chunk);
        self.classes[class].items.push(&mut self.metas, chunk);
        let (now, flushes) = (self.now.0, self.flushes);
        let meta = self.metas.get_mut(chunk);
        (meta.state, meta.bits, meta.uses) = (state::ITEM, bits, uses);
        (meta.accessed, meta.flushes) = (now, flushes);
        // The item is complete before its stag shows it. The stag of the old chunk is bound last:
        // that one is free, and buried.
        self.seal(chunk);
        self.bind(chunk);
        if let Some(old) = old {
            self.bind(old);
        }
        self.counters.items += 1;
        self.counters.total_items += 1;
        self.counters.bytes += footprint(&self.header(chunk));
    }

    /// Counts a use of an item, for evictions.
    #[inline]
    pub(crate) fn count_use(&mut self, chunk: Chunk) {
        let meta = self.metas.get_mut(chunk);
        // Stored only on a change: a dirty line has to be written back to memory.
        if meta.uses < USES_MAX {
            meta.uses += 1;
        }
    }

    /// Stores an item with the concatenation of `parts` as value, in place of `old`. `None`: there is no
    /// room, and `old` is as it was, if the store evicts nothing, and else gone.
    pub(crate) fn store(
        &mut self,
        request: &Request<'_>,
        old: Option<Chunk>,
        value: &[u8],
        fresh: &Fresh,
    ) -> Option<Chunk> {
        let class = self.slabs.class_for(len(request.key, value.len()))?;
        let chunk = self.room_for(request, old, class)?;
        let header = self.new_header(request.key, value.len(), fresh);
        let bytes = self.slabs.bytes_mut(chunk);
        header.write(bytes);
        herdwick_mem::copy(&mut bytes[HEADER..header.front()], request.key);
        herdwick_mem::copy(&mut bytes[header.front()..header.end()], value);
        // It may have moved, or be gone.
        let old = old.and_then(|_| self.lookup(request).ok());
        self.link(request.hash, old, chunk, fresh.bits);
        Some(chunk)
    }

    /// As [`Self::store`], with `front`, the value of `old`, `back` as value. `None`: there was no room to
    /// keep `old` until the new item was there.
    pub(crate) fn store_around(
        &mut self,
        request: &Request<'_>,
        old: Chunk,
        (front, back): (&[u8], &[u8]),
        fresh: &Fresh,
    ) -> Option<Chunk> {
        let middle = self.header(old).value_len as usize;
        let value_len = front.len() + middle + back.len();
        let class = self.slabs.class_for(len(request.key, value_len))?;
        let chunk = self.allocate_beside(class, old)?;
        let Ok(old) = self.lookup(request) else {
            self.free(chunk);
            return None;
        };
        let header = self.new_header(request.key, value_len, fresh);
        let from = self.header(old).front();
        let value = header.front() + front.len();
        self.slabs.copy((old, from..from + middle), (chunk, value));
        let bytes = self.slabs.bytes_mut(chunk);
        header.write(bytes);
        bytes[HEADER..header.front()].copy_from_slice(request.key);
        bytes[header.front()..value].copy_from_slice(front);
        bytes[value + middle..header.end()].copy_from_slice(back);
        self.link(request.hash, Some(old), chunk, fresh.bits);
        Some(chunk)
    }

    fn room_for(
        &mut self,
        request: &Request<'_>,
        old: Option<Chunk>,
        class: usize,
    ) -> Option<Chunk> {
        let Some(old) = old else {
            return self.allocate(class);
        };
        // Beside the old item at first, so that the key has a value if there is no room.
        let beside = self.allocate_beside(class, old);
        if beside.is_some() || self.lossless {
            return beside;
        }
        // In a cache the old item gives its room up: the put succeeds more often so.
        if let Ok(old) = self.lookup(request) {
            self.count_dropped(old);
            self.unlink(request, old);
        }
        self.allocate(class)
    }

    /// Takes a chunk without evicting the item in `old`, as far as that is possible.
    fn allocate_beside(&mut self, class: usize, old: Chunk) -> Option<Chunk> {
        self.protected = Some(old);
        let chunk = self.allocate(class);
        self.protected = None;
        chunk
    }

    pub(crate) fn new_header(
        &mut self,
        key: &[u8],
        value_len: usize,
        fresh: &Fresh,
    ) -> ChunkHeader {
        debug_assert!(len(key, value_len) <= self.item_bytes_max);
        ChunkHeader {
            key_len: key.len() as u8,
            value_len: value_len as u32,
            version: fresh.version.unwrap_or_else(|| self.next_version()),
            flags: fresh.flags,
            deadline: fresh.deadline,
            ..ChunkHeader::default()
        }
    }

    /// Changes the header of an item, but not its lengths.
    pub(crate) fn set_header(&mut self, chunk: Chunk, header: &ChunkHeader) {
        self.seal_header(chunk, *header);
    }
}

/// Returns the bytes of an item, as counted.
fn footprint(header: &ChunkHeader) -> u64 {
    header.end().next_multiple_of(8) as u64
}
