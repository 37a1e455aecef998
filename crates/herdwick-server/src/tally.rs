use herdwick_mica::Counters;

/// Declares [`Tally`] and its sum in one place, so that no counter can be left out.
macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one worker has counted outside its store.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Tally {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl std::ops::AddAssign<&Self> for Tally {
            fn add_assign(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

tally! {
    cmd_get, cmd_set, cmd_flush, cmd_touch,
    get_hits, get_misses, get_expired, get_flushed,
    delete_hits, delete_misses,
    incr_hits, incr_misses, decr_hits, decr_misses,
    cas_hits, cas_misses, cas_badval,
    touch_hits, touch_misses,
    store_too_large, store_no_memory,
    bytes_read, bytes_written,
    /// A connection had more to do than one pass allows.
    conn_yields,
    /// Connections of this worker now.
    connections,
    /// Lines answered with an error message.
    refused_lines,
    /// Data blocks dropped unread because they exceed the largest item.
    refused_blocks,
    /// Hang-ups: a line without an end, or a browser.
    closed_not_memcached,
    /// Hang-ups: memcached's binary protocol.
    closed_binary,
    /// Hang-ups: a read or write error.
    closed_errors,
    /// Requests executed for other workers.
    crossed,
    /// Rounds put off because all parcels to a worker were under way.
    parcels_exhausted,
    /// Reads put off because a connection's or parcel's output was full.
    reads_deferred,
}

/// All that one worker has counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) tally: Tally,
    pub(crate) store: Counters,
    /// Slots of the store's index.
    pub(crate) slots: u64,
    /// Drops at the worker's fronts, by reason.
    pub(crate) drops: Vec<(&'static str, u64)>,
}

impl Tally {
    /// Forgets everything but what is there now.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            connections: self.connections,
            ..Self::default()
        };
    }
}

impl Snapshot {
    /// Adds another worker's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.tally += &other.tally;
        add_store(&mut self.store, &other.store);
        self.slots += other.slots;
        for &(reason, count) in &other.drops {
            match self.drops.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, sum)) => *sum += count,
                None => self.drops.push((reason, count)),
            }
        }
    }
}

fn add_store(sum: &mut Counters, other: &Counters) {
    sum.items += other.items;
    sum.bytes += other.bytes;
    sum.total_items += other.total_items;
    sum.evictions += other.evictions;
    sum.index_evictions += other.index_evictions;
    sum.evicted_nonzero += other.evicted_nonzero;
    sum.evicted_unfetched += other.evicted_unfetched;
    sum.reclaimed += other.reclaimed;
    sum.expired_unfetched += other.expired_unfetched;
    sum.refreshed += other.refreshed;
    sum.kept += other.kept;
    sum.bad_keys += other.bad_keys;
}
