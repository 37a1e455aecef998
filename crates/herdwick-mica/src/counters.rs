//! The store's counters, each declared once: its kind, its name, and what it counts. A server's statistics take
//! kind and text from here.

/// What a counter of a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterDescription {
    /// It grows and shrinks, and [`Store::reset_counters`](crate::Store::reset_counters) leaves it. Others
    /// count events.
    pub is_gauge: bool,
    /// What it counts.
    pub help: &'static str,
}

/// Declares the counters of a store, each an event or a gauge, with their sum, their reset, and a struct of
/// the same fields that describes them.
macro_rules! counters {
    (
        $(#[$doc:meta])* $Counters:ident, described by
        $(#[$described_doc:meta])* $Described:ident
        { $($(#[doc = $help:literal])+ $kind:ident $field:ident,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $Counters {
            $($(#[doc = $help])+ pub $field: u64,)+
        }

        $(#[$described_doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $Described {
            $($(#[doc = $help])+ pub $field: CounterDescription,)+
        }

        impl std::ops::AddAssign for $Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)+
            }
        }

        impl $Counters {
            /// What each counter is.
            pub const DESCRIBED: $Described = $Described {
                $($field: CounterDescription {
                    is_gauge: counters!(@is_gauge $kind),
                    help: concat!($($help),+).trim_ascii(),
                },)+
            };

            /// Resets the events but not the gauges, as memcached's `stats reset` does.
            pub(crate) fn reset(&mut self) {
                $(counters!(@reset $kind self.$field);)+
            }
        }
    };
    (@reset event $counter:expr) => { $counter = 0 };
    (@reset gauge $counter:expr) => {};
    (@is_gauge event) => { false };
    (@is_gauge gauge) => { true };
}

counters! {
    /// Counters of a store.
    Counters, described by
    /// What each of the [`Counters`] is.
    CounterDescriptions {
        /// Items stored now, those included that are expired or flushed and not removed yet.
        gauge items,
        /// Bytes of the items that are stored now: header, key, value, padding to 8.
        gauge bytes,
        /// Items ever stored, each update counted.
        event total_items,
        /// Valid items that made room for others, or for which the index had no slot.
        event evictions,
        /// Items evicted because both their buckets of the index were full.
        event index_evictions,
        /// Items evicted that had an expiry time.
        event evicted_nonzero,
        /// Items evicted that were never read.
        event evicted_unfetched,
        /// Expired or flushed items whose room was used again.
        event reclaimed,
        /// Expired or flushed items that were never read, among those whose room was used again or that a
        /// crawl removed.
        event expired_unfetched,
        /// Expired or flushed items that a crawl removed.
        event crawler_reclaimed,
        /// Items that crawls checked.
        event crawler_items_checked,
        /// Items copied out of a segment that was cleaned, because they were in use.
        event refreshed,
        /// Items copied out of a segment that was cleaned, in use or not, because none had to be evicted, or
        /// none may be.
        event kept,
        /// Slabs that another size class took (the engine slab).
        event slabs_moved,
        /// Requests with a hash that does not belong to the key, or with a key of invalid length.
        event bad_keys,
        /// Times that the system did not take back memory under a limit.
        event returns_failed,
    }
}
