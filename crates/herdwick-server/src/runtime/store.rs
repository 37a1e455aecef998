//! The store of a partition: of the engine HERD, items in segments; of the engine slab, in slabs.

use herdwick_mem::Published;
use herdwick_mica::{Counters, Hashes, StoreConfig, StoreError};
use herdwick_request::{
    Clock, Deadline, Execute, Item, KeyHash, ReadReport, Request, Second, Sink, Staged,
};
use herdwick_slab::{Growth, SlabConfig, SlabError};

/// The store of a partition.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each worker, and a box would cost each batch a load"
)]
pub(crate) enum Store {
    /// Items in segments.
    Segments(herdwick_mica::Store),
    /// Items in chunks of slabs.
    Slabs(herdwick_slab::Store),
}

/// An item that was evicted.
pub(crate) struct EvictedItem<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) deadline: Deadline,
    pub(crate) last_access: Second,
    pub(crate) value_len: usize,
    pub(crate) fetched: bool,
}

/// Calls a method that both stores have.
macro_rules! either {
    ($store:expr, $method:ident($($argument:expr),*)) => {
        match $store {
            Store::Segments(store) => store.$method($($argument),*),
            Store::Slabs(store) => store.$method($($argument),*),
        }
    };
}

/// Declares methods that both stores have.
macro_rules! of_both {
    ($($(#[doc = $doc:literal])+ fn $method:ident(($($own:tt)+) $this:ident $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)+) => {
        impl Store {
            $($(#[doc = $doc])+
            #[inline]
            pub(crate) fn $method($($own)+ $this $(, $argument: $type)*) $(-> $result)? {
                either!($this, $method($($argument),*))
            }
            )+
        }
    };
}

of_both! {
    /// Resets the event counters; items and bytes stay.
    fn reset_counters((&mut) self);
    /// Returns the seconds since the last access to the item that is next to go.
    fn age((&) self, now: Second) -> u32;
    /// Flushes at second `at` every item stored before it.
    fn flush((&mut) self, now: Second, at: Second);
    /// Refuses puts for which there is no room, from now on, instead of evicting.
    fn evict_nothing((&mut) self);
    /// Leaves so many bytes unused from now on.
    fn leave_unused((&mut) self, bytes: usize);
    /// Takes a step towards the limit; returns whether there are more to take.
    fn adjust((&mut) self) -> bool;
    /// Turns the recording of evictions on or off.
    fn record_evictions((&mut) self, on: bool);
    /// Returns the number of buckets, the range of [`Self::scan`].
    fn buckets((&) self) -> usize;
    /// Calls `visit` with key, item, and bytes in memory of each valid item in one bucket.
    fn scan((&mut) self, now: Second, bucket: usize, visit: impl FnMut(&[u8], &Item<'_>, usize));
    /// Removes the expired and flushed items of one bucket; returns how many it has checked.
    fn remove_expired((&mut) self, now: Second, bucket: usize) -> u64;
    /// Returns how many values of the maximum size may be staged at a time.
    fn staged_max((&) self) -> usize;
    /// Reserves room for a value of `value_len` bytes.
    fn stage((&mut) self, now: Second, key: &[u8], value_len: usize) -> Staged;
    /// Returns the room for the rest of a staged value.
    fn room((&mut) self, staged: Staged) -> &mut [u8];
    /// Records that the first `count` bytes of [`Self::room`] have been written.
    fn fill((&mut) self, staged: Staged, count: usize);
    /// Appends to a staged value.
    fn append((&mut) self, staged: Staged, bytes: &[u8]);
    /// Ends a reservation without storing the value.
    fn abort((&mut) self, staged: Staged);
}

impl Execute for Store {
    #[inline]
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        self.execute_hashed(clock, batch, Hashes::Claimed, sink);
    }

    fn note_reads(&mut self, clock: Clock, report: &ReadReport<'_>) {
        either!(self, note_reads(clock, report));
    }

    fn stag(&mut self, clock: Clock, hash: KeyHash, key: &[u8]) -> Option<u32> {
        either!(self, stag(clock, hash, key))
    }
}

impl Store {
    /// Creates a store with items in segments.
    pub(crate) fn new(config: &StoreConfig) -> Result<Self, StoreError> {
        herdwick_mica::Store::new(config).map(Self::Segments)
    }

    /// Returns the bytes that [`Self::leave_unused`] can take at any time, at most.
    pub(crate) fn unused_max(&self) -> usize {
        match self {
            Self::Segments(store) => store.unused_max_at_last(),
            Self::Slabs(store) => store.unused_max(),
        }
    }

    /// Ends a walk over the buckets before the last one; `next` would have come next. The index of the slabs has
    /// one size, and waits for none.
    pub(crate) fn end_walk(&mut self, next: usize) {
        if let Self::Segments(store) = self {
            store.end_walk(next);
        }
    }

    /// Creates a store with items in segments of published memory, and what clients map of it.
    pub(crate) fn published(config: &StoreConfig) -> Result<(Self, Published), StoreError> {
        let (store, published) = herdwick_mica::Store::published(config)?;
        Ok((Self::Segments(store), published))
    }

    /// Has readers of published memory count seconds by the host's clock, from so many nanoseconds on; 0: not.
    pub(crate) fn set_readers_clock(&mut self, clock: u64) {
        either!(self, set_readers_clock(clock));
    }

    /// As [`Self::published`], with items in slabs.
    pub(crate) fn published_in_slabs(
        config: &StoreConfig,
        growth: Growth,
    ) -> Result<(Self, Published), StoreError> {
        let config = slab_config(config, growth);
        let (store, publication) =
            herdwick_slab::Store::published(&config).map_err(of_slab_error)?;
        Ok((Self::Slabs(store), publication.memory))
    }

    /// Creates a store with items in slabs.
    pub(crate) fn in_slabs(config: &StoreConfig, growth: Growth) -> Result<Self, StoreError> {
        let config = slab_config(config, growth);
        let store = herdwick_slab::Store::new(&config).map_err(of_slab_error)?;
        Ok(Self::Slabs(store))
    }

    /// Returns whether a store of this configuration, with items in slabs, has enough memory.
    pub(crate) fn check_slabs(
        config: &StoreConfig,
        growth: Growth,
        is_read: bool,
    ) -> Result<(), StoreError> {
        let config = slab_config(config, growth);
        let checked = match is_read {
            true => herdwick_slab::Store::check_published(&config),
            false => herdwick_slab::Store::check(&config),
        };
        checked.map_err(of_slab_error)
    }

    /// As [`Execute::execute`], which takes hashes for [`Hashes::Claimed`].
    #[inline]
    pub(crate) fn execute_hashed(
        &mut self,
        clock: Clock,
        batch: &[Request<'_>],
        hashes: Hashes,
        sink: &mut impl Sink,
    ) {
        match self {
            Self::Segments(store) => store.execute_hashed(clock, batch, hashes, sink),
            Self::Slabs(store) => {
                let hashes = match hashes {
                    Hashes::Claimed => herdwick_slab::Hashes::Claimed,
                    Hashes::Computed => herdwick_slab::Hashes::Computed,
                };
                store.execute_hashed(clock, batch, hashes, sink);
            }
        }
    }

    /// Returns the counters, as far as the store has them. Of slabs, `refreshed` are items that were kept at
    /// the end of their list, and `kept` those that moved to another slab.
    pub(crate) fn counters(&self) -> Counters {
        match self {
            Self::Segments(store) => store.counters(),
            Self::Slabs(store) => of_slabs(&store.counters()),
        }
    }

    /// Returns the number of slots of the index, free ones included; of slabs, its lists.
    pub(crate) fn slots(&self) -> usize {
        match self {
            Self::Segments(store) => store.slots(),
            Self::Slabs(store) => store.buckets(),
        }
    }

    /// Calls `visit` for the evictions since the last call, and forgets them. Returns the number of those
    /// that were not recorded.
    pub(crate) fn take_evictions(&mut self, mut visit: impl FnMut(EvictedItem<'_>)) -> u64 {
        match self {
            Self::Segments(store) => store.take_evictions(|evicted| {
                visit(EvictedItem {
                    key: evicted.key(),
                    deadline: evicted.deadline,
                    last_access: evicted.last_access,
                    value_len: evicted.value_len,
                    fetched: evicted.fetched,
                });
            }),
            Self::Slabs(store) => store.take_evictions(|evicted| {
                visit(EvictedItem {
                    key: &evicted.key,
                    deadline: evicted.deadline,
                    last_access: evicted.last_access,
                    value_len: evicted.value_len,
                    fetched: evicted.fetched,
                });
            }),
        }
    }
}

fn slab_config(config: &StoreConfig, growth: Growth) -> SlabConfig {
    SlabConfig {
        memory_bytes: config.memory_bytes,
        item_bytes_max: config.item_bytes_max,
        hash_key: config.hash_key,
        growth,
    }
}

fn of_slab_error(error: SlabError) -> StoreError {
    match error {
        SlabError::TooSmall {
            memory_bytes,
            item_bytes_max,
            needed,
        } => StoreError::TooSmall {
            memory_bytes,
            item_bytes_max,
            needed,
        },
        SlabError::Refused {
            memory_bytes,
            source,
        } => StoreError::Refused {
            memory_bytes,
            source,
        },
    }
}

fn of_slabs(counters: &herdwick_slab::Counters) -> Counters {
    Counters {
        items: counters.items,
        bytes: counters.bytes,
        total_items: counters.total_items,
        evictions: counters.evictions,
        // Lists of the index have no bound: an item goes for its memory alone.
        index_evictions: 0,
        evicted_nonzero: counters.evicted_nonzero,
        evicted_unfetched: counters.evicted_unfetched,
        reclaimed: counters.reclaimed,
        expired_unfetched: counters.expired_unfetched,
        crawler_reclaimed: counters.crawler_reclaimed,
        crawler_items_checked: counters.crawler_items_checked,
        refreshed: counters.refreshed,
        kept: counters.moved,
        slabs_moved: counters.slabs_moved,
        bad_keys: counters.bad_keys,
        returns_failed: counters.returns_failed,
    }
}
