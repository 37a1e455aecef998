//! The tables of `stats items` and `stats slabs`, in which the store is shown as one class, and what the
//! metrics page has beyond `stats`.

use super::statistic::{SLOT_BYTES, ZERO, table};
use crate::telemetry::snapshot::StatsView;

/// Returns the chunks of the store, which are of 8 bytes.
fn chunks(v: &StatsView<'_>) -> u64 {
    (v.context.tunables.memory.get() as u64).saturating_sub(v.sum.slots * SLOT_BYTES) / CHUNK_BYTES
}

fn used_chunks(v: &StatsView<'_>) -> u64 {
    v.sum.store.bytes / CHUNK_BYTES
}

/// The store aligns items to this, so it stands for memcached's chunk.
const CHUNK_BYTES: u64 = 8;

table! {
    view v: StatsView<'_>;
    fields ();
    /// `stats items`, each name after `items:1:`. It is empty while the store is.
    static ITEMS;

    Stored number = store.items => "memcached_slab_current_items" slab "1";
    /// Of memcached's LRU; 0 here.
    Gauge number_hot = { ZERO } => "memcached_slab_hot_items" slab "1";
    /// Of memcached's LRU; 0 here.
    Gauge number_warm = { ZERO } => "memcached_slab_warm_items" slab "1";
    Stored number_cold = store.items => "memcached_slab_cold_items" slab "1";
    /// Of memcached's LRU; 0 here.
    Gauge(Seconds) age_hot = { ZERO } => "memcached_slab_hot_age_seconds" slab "1";
    /// Of memcached's LRU; 0 here.
    Gauge(Seconds) age_warm = { ZERO } => "memcached_slab_warm_age_seconds" slab "1";
    /// Seconds since the first item of the oldest segment was used.
    Gauge(Seconds) age = { v.sum.age } => "memcached_slab_items_age_seconds" slab "1";
    /// Bytes of the items that are stored now; a counter in name only, because memcached_exporter has one.
    Counter(Bytes) mem_requested = { v.sum.store.bytes }
        => "memcached_slab_mem_requested_bytes" slab "1";
    Stored evicted = store.evictions => "memcached_slab_items_evicted_total" slab "1";
    Stored evicted_nonzero = store.evicted_nonzero
        => "memcached_slab_items_evicted_nonzero_total" slab "1";
    /// Of memcached's LRU; 0 here.
    Counter(Seconds) evicted_time = { ZERO }
        => "memcached_slab_items_evicted_time_seconds" slab "1";
    /// Items refused for want of memory.
    Counter outofmemory = { v.sum.counters.store_no_memory }
        => "memcached_slab_items_outofmemory_total" slab "1";
    /// Of memcached's LRU; 0 here.
    Counter tailrepairs = { ZERO } => "memcached_slab_items_tailrepairs_total" slab "1";
    Stored reclaimed = store.reclaimed
        => "memcached_slab_items_reclaimed_total" slab "1";
    Stored expired_unfetched = store.expired_unfetched
        => "memcached_slab_items_expired_unfetched_total" slab "1";
    Stored evicted_unfetched = store.evicted_unfetched
        => "memcached_slab_items_evicted_unfetched_total" slab "1";
    Counter evicted_active = { ZERO };
    Stored crawler_reclaimed = store.crawler_reclaimed
        => "memcached_slab_items_crawler_reclaimed_total" slab "1";
    Stored crawler_items_checked = store.crawler_items_checked;
    Counter lrutail_reflocked = { ZERO };
    /// Of memcached's LRU; 0 here.
    Counter moves_to_cold = { ZERO } => "memcached_slab_items_moves_to_cold" slab "1";
    /// Of memcached's LRU; 0 here.
    Counter moves_to_warm = { ZERO } => "memcached_slab_items_moves_to_warm" slab "1";
    Stored moves_within_lru = store.refreshed
        => "memcached_slab_items_moves_within_lru" slab "1";
    Counter direct_reclaims = { ZERO };
    /// Of memcached's LRU; 0 here.
    Counter hits_to_hot = { ZERO } in LRU_HITS(slab = "1", lru = "hot");
    /// Of memcached's LRU; 0 here.
    Counter hits_to_warm = { ZERO } in LRU_HITS(slab = "1", lru = "warm");
    /// Reads that found an item.
    Counter hits_to_cold = { v.sum.counters.get_hits } in LRU_HITS(slab = "1", lru = "cold");
    /// Of memcached's LRU; 0 here.
    Counter hits_to_temp = { ZERO } in LRU_HITS(slab = "1", lru = "temporary");
}

table! {
    view v: StatsView<'_>;
    fields ();
    /// `stats slabs`, each name after `1:`.
    static SLAB;

    /// Bytes of a chunk.
    Gauge(Bytes) chunk_size = { CHUNK_BYTES } => "memcached_slab_chunk_size_bytes" slab "1";
    /// Chunks of a page.
    Gauge chunks_per_page = { chunks(v) } => "memcached_slab_chunks_per_page" slab "1";
    /// Pages: one, the store.
    Gauge total_pages = { 1_u64 } => "memcached_slab_current_pages" slab "1";
    /// Chunks of the store.
    Gauge total_chunks = { chunks(v) } => "memcached_slab_current_chunks" slab "1";
    /// Chunks that items take.
    Gauge used_chunks = { used_chunks(v) } => "memcached_slab_chunks_used" slab "1";
    /// Chunks that items do not take.
    Gauge free_chunks = { chunks(v).saturating_sub(used_chunks(v)) }
        => "memcached_slab_chunks_free" slab "1";
    /// Of memcached's slabs; 0 here.
    Gauge free_chunks_end = { ZERO } => "memcached_slab_chunks_free_end" slab "1";
    /// As in `stats`.
    Counter get_hits = { v.sum.counters.get_hits }
        in CLASS_COMMANDS(slab = "1", command = "get", status = "hit");
    /// As in `stats`.
    Counter cmd_set = { v.sum.counters.cmd_set };
    /// As in `stats`.
    Counter delete_hits = { v.sum.counters.delete_hits }
        in CLASS_COMMANDS(slab = "1", command = "delete", status = "hit");
    /// As in `stats`.
    Counter incr_hits = { v.sum.counters.incr_hits }
        in CLASS_COMMANDS(slab = "1", command = "incr", status = "hit");
    /// As in `stats`.
    Counter decr_hits = { v.sum.counters.decr_hits }
        in CLASS_COMMANDS(slab = "1", command = "decr", status = "hit");
    /// As in `stats`.
    Counter cas_hits = { v.sum.counters.cas_hits }
        in CLASS_COMMANDS(slab = "1", command = "cas", status = "hit");
    /// As in `stats`.
    Counter cas_badval = { v.sum.counters.cas_badval }
        in CLASS_COMMANDS(slab = "1", command = "cas", status = "badval");
    /// As in `stats`.
    Counter touch_hits = { v.sum.counters.touch_hits }
        in CLASS_COMMANDS(slab = "1", command = "touch", status = "hit");
}

table! {
    view v: StatsView<'_>;
    fields ();
    /// The end of `stats slabs`, of all classes.
    static SLABS;

    /// Classes: one, the store.
    Gauge active_slabs = { 1_u64 };
    /// Bytes taken for items and index.
    Gauge(Bytes) total_malloced = { v.context.tunables.memory.get() }
        => "memcached_malloced_bytes";
}

/// Returns the sets without compare-and-swaps, of which `compared` were counted: memcached counts
/// these among the sets, memcached_exporter does not.
fn sets_without(v: &StatsView<'_>, compared: u64) -> u64 {
    v.sum.counters.cmd_set.saturating_sub(compared)
}

table! {
    view v: StatsView<'_>;
    fields ();
    /// Computed for metrics alone.
    static PAGE_ONLY;

    Counter sets = {
        let counters = &v.sum.counters;
        sets_without(v, counters.cas_hits + counters.cas_badval + counters.cas_misses)
    } in COMMANDS(command = "set", status = "hit");
    Counter slab_sets = {
        sets_without(v, v.sum.counters.cas_hits + v.sum.counters.cas_badval)
    } in CLASS_COMMANDS(slab = "1", command = "set", status = "hit");
}
