//! Slabs that change their class: cut, emptied a few chunks at a time, and given to the class that needs
//! them, or under a lower limit to the system.

use crate::{
    emptying::Emptying,
    metas::{Chunk, state},
    store::{Class, Store},
};

/// Slabs that are emptied in vain for one chunk, at most.
const SLABS_PER_CHUNK: usize = 4;
/// Items of a class that are looked at for a slab in which no value is arriving.
const LOOKS: usize = 64;
/// Chunks that a step towards the memory limit looks at.
const CHUNKS_PER_STEP: usize = 1024;
/// A slab moves between classes if what its class would evict next has been unused for so many times as
/// long as what the other evicts: numerator and denominator, memcached's `slab_automove_ratio` of 0.8.
const AGES: (u64, u64) = (5, 4);
/// The only slab of a class moves if it has been unused for so many times as long, and so many seconds more:
/// a class in use would take it back at once.
const AGES_OF_LAST: (u64, u64) = (4, 10);
/// The least number of slabs that a limit leaves.
const SLABS_MIN: usize = 4;

impl Store {
    /// Cuts a slab for a class, if there is one, and memory for what is kept of its chunks.
    pub(crate) fn cut(&mut self, class: usize) -> bool {
        self.cut_within(class, self.budget - self.unused)
    }

    /// As [`Self::cut`], where slabs may take `most` bytes.
    fn cut_within(&mut self, class: usize, most: usize) -> bool {
        let taken = self.classes[class].taken;
        if self.taken + taken > most {
            return false;
        }
        let Some(slab) = self.slabs.cut(class) else {
            return false;
        };
        self.taken += taken;
        self.classes[class].slabs += 1;
        // The first chunk comes to the head, so that memory is touched in its order.
        for chunk in self.slabs.chunks(slab, class).rev() {
            self.metas.get_mut(chunk).state = state::FREE;
            if let Some(stags) = &mut self.stags {
                self.metas.get_mut(chunk).stag = stags.take();
                self.bind(chunk);
            }
            self.classes[class].free.push(&mut self.metas, chunk);
        }
        true
    }

    /// Returns whether a chunk is in the slab that is being emptied.
    #[inline]
    pub(crate) fn is_emptied(&self, chunk: Chunk) -> bool {
        self.emptying
            .is_some_and(|emptying| emptying.slab == self.slabs.slab_of(chunk))
    }

    /// Looks at up to `count` chunks of the slab that is being emptied.
    #[inline]
    pub(crate) fn empty_step(&mut self, count: usize) {
        if self.emptying.is_some() {
            self.empty(count);
        }
    }

    #[cold]
    fn empty(&mut self, count: usize) {
        let Some(Emptying { slab, done }) = self.emptying else {
            return;
        };
        // The first chunk of a slab has the same number for each class.
        let Some(first) = self.slabs.chunks(slab, 0).next() else {
            return;
        };
        let class = self.slabs.class_of_slab(slab);
        let per_slab = self.classes[class].per_slab;
        let end = per_slab.min(done.saturating_add(count));
        for index in done..end {
            self.clear(class, Chunk(first.0 + index as u32));
        }
        self.emptying = Some(Emptying { slab, done: end });
        if end == per_slab {
            self.emptying = None;
            if let Some(stags) = &mut self.stags {
                for chunk in self.slabs.chunks(slab, class) {
                    stags.give_back(self.metas.get(chunk).stag);
                }
            }
            self.slabs.vacate(slab);
            // The slab may be cut for fewer chunks, and `taken` counts what is kept of those only.
            if self.metas.give_back(self.slabs.numbers(slab)).is_err() {
                self.counters.returns_failed += 1;
            }
            self.classes[class].slabs -= 1;
            self.taken -= self.classes[class].taken;
            self.counters.slabs_moved += 1;
        }
    }

    /// Has nothing left in a chunk of the slab that is being emptied.
    fn clear(&mut self, class: usize, chunk: Chunk) {
        match self.metas.get(chunk).state {
            state::FREE => self.classes[class].free.remove(&mut self.metas, chunk),
            state::ITEM if self.gone(chunk) => {
                self.count_dropped(chunk);
                self.remove(chunk);
            }
            state::ITEM => match self.room_beside(class, chunk) {
                Some(to) => self.move_item(class, chunk, to),
                None => {
                    self.count_dropped(chunk);
                    self.remove(chunk);
                }
            },
            // NONE: it has dropped out of the free list. No value arrives in a slab that is
            // emptied.
            _ => {}
        }
        // Neither free nor an item: it is not handed out until its slab is cut anew.
        self.metas.get_mut(chunk).state = state::NONE;
    }

    /// Takes a free chunk for the item in `chunk`, or that of an item nearer to the end of their list.
    fn room_beside(&mut self, class: usize, chunk: Chunk) -> Option<Chunk> {
        loop {
            let free = self.take_free(class);
            if free.is_some() {
                return free;
            }
            let tail = self.classes[class].items.tail.some()?;
            // The item itself is next to go, or may not: there is no item that is worth less.
            if tail == chunk || self.protected == Some(tail) || self.lossless && !self.gone(tail) {
                return None;
            }
            self.count_dropped(tail);
            self.remove(tail);
        }
    }

    fn move_item(&mut self, class: usize, from: Chunk, to: Chunk) {
        let hash = self.hash_key.hash(self.key(from));
        let end = self.header(from).end();
        self.slabs.copy((from, 0..end), (to, 0));
        // In this order a reader finds the item at one of the two places, or at neither: the copy
        // is complete, the old chunk is dead, then the stag moves.
        self.swap_stags(from, to);
        self.bury(from);
        self.bind(to);
        self.bind(from);
        self.index.replace(&mut self.metas, hash, from, to);
        // It keeps its place in the list, so that a move is no use.
        let before = self.metas.before(from);
        self.classes[class].items.remove(&mut self.metas, from);
        let meta = *self.metas.get(from);
        self.classes[class]
            .items
            .insert(&mut self.metas, before, to);
        let moved = self.metas.get_mut(to);
        (moved.state, moved.bits, moved.uses) = (meta.state, meta.bits, meta.uses);
        (moved.accessed, moved.flushes) = (meta.accessed, meta.flushes);
        if self.protected == Some(from) {
            self.protected = Some(to);
        }
        self.counters.moved += 1;
    }

    /// Empties slabs of other classes until one can be cut for `class`. Returns whether it was. They may
    /// take what they took before, although a limit leaves less.
    #[cold]
    pub(crate) fn take_slab(&mut self, class: usize) -> bool {
        // A lower limit is reached by steps of its own (`shrink`): until then a slab may change
        // hands.
        let most = self.taken.max(self.budget - self.unused);
        for _ in 0..SLABS_PER_CHUNK {
            // First the one that is being emptied, for whichever class.
            self.empty(usize::MAX);
            if self.cut_within(class, most) {
                return true;
            }
            let Some(slab) = self.donor(Some(class)) else {
                // Values are arriving in all others: more of them than a lower limit leaves room for.
                return self.cut_within(class, self.budget);
            };
            self.emptying = Some(Emptying { slab, done: 0 });
        }
        false
    }

    /// Takes a slab of another class of which nothing is lost, unless the item that `class` would evict has
    /// expired or was flushed. Returns whether there was one and could be cut.
    pub(crate) fn take_spare(&mut self, class: usize) -> bool {
        // The search walks over lists. In vain it is not repeated until the second or the count of
        // flushes changes: nothing else ends items that no request meets.
        let at = Some((self.now, self.flushes));
        let tail = self.classes[class].items.tail.some();
        if self.none_to_spare == at || tail.is_some_and(|tail| self.gone(tail)) {
            return false;
        }
        if self.spare(Some(class)).is_none() {
            self.none_to_spare = at;
            return false;
        }
        let most = self.taken.max(self.budget - self.unused);
        self.empty_step(usize::MAX);
        if self.cut_within(class, most) {
            return true;
        }
        // It may be the one that was being emptied.
        let Some(slab) = self.spare(Some(class)) else {
            return false;
        };
        self.emptying = Some(Emptying { slab, done: 0 });
        self.empty(usize::MAX);
        self.cut_within(class, most)
    }

    /// Returns a slab of a class other than `class` that is emptied without loss: the class has as many
    /// chunks that are free, or that have the expired and flushed items at the end of its list.
    fn spare(&self, class: Option<usize>) -> Option<u32> {
        let others = self.classes.iter().enumerate();
        let others = others.filter(|(n, other)| Some(*n) != class && other.slabs > 0);
        let mut slabs = others.filter_map(|(_, other)| {
            let lacking = other.per_slab.saturating_sub(other.free.len);
            let tail = other.items.tail.some();
            let items = std::iter::successors(tail, |chunk| self.metas.before(*chunk));
            let gone = items.take(lacking).take_while(|chunk| self.gone(*chunk));
            let is_spare = gone.count() == lacking;
            is_spare.then(|| self.slab_to_spare(other)).flatten()
        });
        slabs.next()
    }

    /// Returns a slab that a class other than `class` can spare best: of one with a slab's worth of free
    /// chunks, of which nothing is lost, else of the one with the most slabs.
    fn donor(&self, class: Option<usize>) -> Option<u32> {
        let others = self.classes.iter().enumerate();
        let others = others.filter(|(n, other)| Some(*n) != class && other.slabs > 0);
        let others = others.map(|(_, other)| other);
        let has_spare = |other: &&Class| other.free.len >= other.per_slab;
        let spare = others.clone().filter(has_spare);
        let spare = spare.filter_map(|other| self.slab_to_spare(other)).next();
        // Where nothing may be evicted, only a slab without loss changes hands.
        if spare.is_some() || self.lossless {
            return spare;
        }
        let slabs = others.filter_map(|other| Some((other.slabs, self.slab_to_spare(other)?)));
        slabs.max_by_key(|(count, _)| *count).map(|(_, slab)| slab)
    }

    /// Returns the slab with the items of a class that are next to go, in which no value is arriving.
    fn slab_to_spare(&self, class: &Class) -> Option<u32> {
        let tail = class.items.tail.some();
        let items = std::iter::successors(tail, |chunk| self.metas.before(*chunk));
        // The free chunks last: where no item is looked at, they name a slab, too.
        let chunks = items.take(LOOKS).chain(class.free.tail.some());
        let mut slabs = chunks.map(|chunk| self.slabs.slab_of(chunk));
        slabs.find(|slab| !self.slabs.has_staged(*slab))
    }

    /// Has a slab of another class emptied if what is next to go there has been unused for longer than
    /// what this class evicts, or if it has as many free chunks.
    pub(crate) fn balance(&mut self, class: usize) {
        if self.emptying.is_some() {
            return;
        }
        let age = u64::from(self.tail_age(&self.classes[class], self.now));
        let mut chosen = None;
        for (n, other) in self.classes.iter().enumerate() {
            if n == class || other.slabs == 0 {
                continue;
            }
            // Nothing is lost: no need to compare ages.
            if other.free.len >= other.per_slab {
                chosen = Some((u64::MAX, other));
                break;
            }
            let older = u64::from(self.tail_age(other, self.now));
            let best = chosen.map_or(0, |(best, _)| best);
            let is_older = match other.slabs {
                1 => older > age * AGES_OF_LAST.0 + AGES_OF_LAST.1,
                _ => older * AGES.1 > age * AGES.0,
            };
            if !self.lossless && is_older && older > best {
                chosen = Some((older, other));
            }
        }
        let slab = chosen.and_then(|(_, other)| self.slab_to_spare(other));
        self.emptying = slab.map(|slab| Emptying { slab, done: 0 });
    }
}

/// The memory limit.
impl Store {
    /// Returns the bytes that [`Self::leave_unused`] can take from the store, at most: none from one that
    /// evicts nothing, and none from published memory, whose pages do not return to the system.
    #[must_use]
    pub fn unused_max(&self) -> usize {
        if self.lossless || self.stags.is_some() {
            return 0;
        }
        let least = SLABS_MIN * self.classes.last().map_or(0, |class| class.taken);
        self.budget.saturating_sub(least)
    }

    /// Leaves so many bytes unused from now on; [`Self::adjust`] takes the steps.
    pub fn leave_unused(&mut self, bytes: usize) {
        self.unused = bytes.min(self.unused_max());
    }

    /// Takes a step towards the limit; returns whether there are more to take.
    #[inline]
    pub fn adjust(&mut self) -> bool {
        self.unused > 0 && self.shrink()
    }

    #[cold]
    fn shrink(&mut self) -> bool {
        let resident = self.slabs.resident_vacant() * self.slabs.slab_bytes();
        let limit = self.budget - self.unused;
        if self.taken + resident <= limit {
            return false;
        }
        // First what is not used at all.
        match self.slabs.give_back() {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => self.counters.returns_failed += 1,
        }
        if self.emptying.is_none() {
            let slab = self.spare(None).or_else(|| self.donor(None));
            self.emptying = slab.map(|slab| Emptying { slab, done: 0 });
        }
        let goes_on = self.emptying.is_some();
        self.empty_step(CHUNKS_PER_STEP);
        goes_on
    }
}
