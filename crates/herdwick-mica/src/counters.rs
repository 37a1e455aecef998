//! The store's counters, as memcached's `stats` reports them.

/// Declares the counters of a store, each an event or a gauge, with their sum and their reset.
macro_rules! counters {
    ($(#[$doc:meta])* $Counters:ident { $($(#[$field_doc:meta])* $kind:ident $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $Counters {
            $($(#[$field_doc])* pub $field: u64,)+
        }

        impl std::ops::AddAssign for $Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)+
            }
        }

        impl $Counters {
            /// Resets the events but not the gauges, as memcached's `stats reset` does.
            pub(crate) fn reset(&mut self) {
                $(counters!(@reset $kind self.$field);)+
            }
        }
    };
    (@reset event $counter:expr) => { $counter = 0 };
    (@reset gauge $counter:expr) => {};
}

counters! {
    /// Counters of a store. The name of memcached's own counter follows in parentheses where there
    /// is one.
    Counters {
        /// Items in the index, expired or flushed ones that have not been removed yet included
        /// (`curr_items`).
        gauge items,
        /// Bytes of those items: header, key, value, padding to 8 (`bytes`).
        gauge bytes,
        /// Items stored since the start, each update counted (`total_items`).
        event total_items,
        /// Valid items evicted for want of room or of a slot of the index (`evictions`).
        event evictions,
        /// The part of `evictions` for which the index had no slot.
        event index_evictions,
        /// Evicted items that had a deadline (`evicted_nonzero`).
        event evicted_nonzero,
        /// Evicted items never read (`evicted_unfetched`).
        event evicted_unfetched,
        /// Expired or flushed items with their room reused (`reclaimed`).
        event reclaimed,
        /// The part of `reclaimed` and `crawler_reclaimed` that was never read
        /// (`expired_unfetched`).
        event expired_unfetched,
        /// Expired or flushed items that [`Store::remove_expired`](crate::Store::remove_expired)
        /// removed (`crawler_reclaimed`).
        event crawler_reclaimed,
        /// Items that it has checked (`crawler_items_checked`).
        event crawler_items_checked,
        /// Items copied out of a segment that was cleaned because of their uses.
        event refreshed,
        /// Items copied out of a segment that was cleaned because the store was sparse, or because it
        /// evicts nothing.
        event kept,
        /// Requests with a hash that does not belong to the key, or with a key of invalid length.
        event bad_keys,
        /// Times that the system did not take back memory under a limit.
        event returns_failed,
    }
}
