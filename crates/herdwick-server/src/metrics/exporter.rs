//! The metrics of memcached_exporter 0.16, under its names, so that dashboards and alerts made for
//! it keep working.

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

use Kind::{Counter, Gauge};

/// A family of metrics: its name without `memcached_`, type and help text, and for each metric the
/// labels and the statistic that supplies its value.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) metrics: &'static [(Labels, &'static str)],
}

/// Label names and values.
pub(super) type Labels = &'static [(&'static str, &'static str)];

const fn family(
    name: &'static str,
    kind: Kind,
    metrics: &'static [(Labels, &'static str)],
    help: &'static str,
) -> Family {
    Family {
        name,
        kind,
        help,
        metrics,
    }
}

/// A family of one metric without labels.
macro_rules! plain {
    ($name:literal, $kind:expr, $stat:literal, $help:literal) => {
        family($name, $kind, &[(&[], $stat)], $help)
    };
}

/// A family of one metric of the log, which is the only class in `stats items` and `stats slabs`.
macro_rules! class {
    ($name:literal, $kind:expr, $stat:literal, $help:literal) => {
        family(
            concat!("slab_", $name),
            $kind,
            &[(&[("slab", "1")], $stat)],
            $help,
        )
    };
}

/// A computed statistic: sets without compare-and-swap. `stats` has only the sum.
pub(super) const SETS: &str = "sets without cas";
/// The same for the class.
pub(super) const CLASS_SETS: &str = "sets without cas of the class";

/// Metrics from `stats` and `stats settings`.
pub(super) const GENERAL: &[Family] = &[
    plain!(
        "uptime_seconds",
        Counter,
        "uptime",
        "Seconds since the server started."
    ),
    plain!(
        "time_seconds",
        Gauge,
        "time",
        "Unix time by the server's clock."
    ),
    plain!(
        "process_user_cpu_seconds_total",
        Counter,
        "rusage_user",
        "CPU time in user mode."
    ),
    plain!(
        "process_system_cpu_seconds_total",
        Counter,
        "rusage_system",
        "CPU time in the kernel."
    ),
    plain!(
        "read_bytes_total",
        Counter,
        "bytes_read",
        "Bytes read from connections."
    ),
    plain!(
        "written_bytes_total",
        Counter,
        "bytes_written",
        "Bytes written to connections."
    ),
    plain!(
        "current_connections",
        Gauge,
        "curr_connections",
        "Open connections."
    ),
    plain!(
        "max_connections",
        Gauge,
        "maxconns",
        "Most connections at a time (-c)."
    ),
    plain!(
        "connections_total",
        Counter,
        "total_connections",
        "Connections ever accepted."
    ),
    plain!(
        "connections_rejected_total",
        Counter,
        "rejected_connections",
        "Connections closed because there were too many."
    ),
    plain!(
        "connections_yielded_total",
        Counter,
        "conn_yields",
        "Times that a connection had more to do than one turn allows (-R)."
    ),
    plain!(
        "connections_listener_disabled_total",
        Counter,
        "listen_disabled_num",
        "Times that accepting paused for want of descriptors or room."
    ),
    plain!(
        "accepting_connections",
        Gauge,
        "accepting_conns",
        "Whether connections are accepted now."
    ),
    plain!(
        "current_bytes",
        Gauge,
        "bytes",
        "Bytes of the items that are stored now."
    ),
    plain!(
        "limit_bytes",
        Gauge,
        "limit_maxbytes",
        "Bytes that the server may hold (-m)."
    ),
    plain!(
        "malloced_bytes",
        Gauge,
        "total_malloced",
        "Bytes taken for items and index."
    ),
    family(
        "commands_total",
        Counter,
        COMMANDS,
        "Requests by command and outcome.",
    ),
    plain!("current_items", Gauge, "curr_items", "Items stored now."),
    plain!("items_total", Counter, "total_items", "Items ever stored."),
    plain!(
        "items_evicted_total",
        Counter,
        "evictions",
        "Valid items that made room for others."
    ),
    plain!(
        "items_reclaimed_total",
        Counter,
        "reclaimed",
        "Expired items whose room was used again."
    ),
    plain!(
        "item_too_large_total",
        Counter,
        "store_too_large",
        "Items refused because they exceed the largest item (-I)."
    ),
    plain!(
        "item_no_memory_total",
        Counter,
        "store_no_memory",
        "Items refused for want of memory."
    ),
    plain!(
        "direct_reclaims_total",
        Counter,
        "direct_reclaims",
        "Of memcached's LRU; 0 here."
    ),
    plain!(
        "lru_crawler_starts_total",
        Counter,
        "lru_crawler_starts",
        "Of memcached's LRU crawler; 0 here."
    ),
    plain!(
        "lru_crawler_reclaimed_total",
        Counter,
        "crawler_reclaimed",
        "Of memcached's LRU crawler; 0 here."
    ),
    plain!(
        "lru_crawler_items_checked_total",
        Counter,
        "crawler_items_checked",
        "Of memcached's LRU crawler; 0 here."
    ),
    plain!(
        "lru_crawler_moves_to_cold_total",
        Counter,
        "moves_to_cold",
        "Of memcached's LRU; 0 here."
    ),
    plain!(
        "lru_crawler_moves_to_warm_total",
        Counter,
        "moves_to_warm",
        "Of memcached's LRU; 0 here."
    ),
    plain!(
        "lru_crawler_moves_within_lru_total",
        Counter,
        "moves_within_lru",
        "Items written again because they were in use when the log came round."
    ),
];

const COMMANDS: &[(Labels, &str)] = &[
    (&[("command", "get"), ("status", "hit")], "get_hits"),
    (&[("command", "get"), ("status", "miss")], "get_misses"),
    (&[("command", "delete"), ("status", "hit")], "delete_hits"),
    (
        &[("command", "delete"), ("status", "miss")],
        "delete_misses",
    ),
    (&[("command", "incr"), ("status", "hit")], "incr_hits"),
    (&[("command", "incr"), ("status", "miss")], "incr_misses"),
    (&[("command", "decr"), ("status", "hit")], "decr_hits"),
    (&[("command", "decr"), ("status", "miss")], "decr_misses"),
    (&[("command", "cas"), ("status", "hit")], "cas_hits"),
    (&[("command", "cas"), ("status", "miss")], "cas_misses"),
    (&[("command", "cas"), ("status", "badval")], "cas_badval"),
    (&[("command", "touch"), ("status", "hit")], "touch_hits"),
    (&[("command", "touch"), ("status", "miss")], "touch_misses"),
    (&[("command", "flush"), ("status", "hit")], "cmd_flush"),
    (&[("command", "set"), ("status", "hit")], SETS),
];

/// Metrics from `stats items` and `stats slabs`.
pub(super) const OF_THE_CLASS: &[Family] = &[
    class!(
        "current_items",
        Gauge,
        "items:1:number",
        "Items in the class."
    ),
    class!(
        "items_age_seconds",
        Gauge,
        "items:1:age",
        "Seconds since the oldest item was used."
    ),
    class!(
        "items_crawler_reclaimed_total",
        Counter,
        "items:1:crawler_reclaimed",
        "Of memcached's LRU crawler; 0 here."
    ),
    class!(
        "items_evicted_total",
        Counter,
        "items:1:evicted",
        "Valid items that made room for others."
    ),
    class!(
        "items_evicted_nonzero_total",
        Counter,
        "items:1:evicted_nonzero",
        "Those among them that had an expiry time."
    ),
    class!(
        "items_evicted_time_seconds",
        Counter,
        "items:1:evicted_time",
        "Of memcached's LRU; 0 here."
    ),
    class!(
        "items_evicted_unfetched_total",
        Counter,
        "items:1:evicted_unfetched",
        "Items evicted that were never read."
    ),
    class!(
        "items_expired_unfetched_total",
        Counter,
        "items:1:expired_unfetched",
        "Items expired that were never read."
    ),
    class!(
        "items_outofmemory_total",
        Counter,
        "items:1:outofmemory",
        "Items refused for want of memory."
    ),
    class!(
        "items_reclaimed_total",
        Counter,
        "items:1:reclaimed",
        "Expired items whose room was used again."
    ),
    class!(
        "items_tailrepairs_total",
        Counter,
        "items:1:tailrepairs",
        "Of memcached's LRU; 0 here."
    ),
    class!(
        "mem_requested_bytes",
        Counter,
        "items:1:mem_requested",
        "Bytes of the items that are stored now."
    ),
    class!(
        "items_moves_to_cold",
        Counter,
        "items:1:moves_to_cold",
        "Of memcached's LRU; 0 here."
    ),
    class!(
        "items_moves_to_warm",
        Counter,
        "items:1:moves_to_warm",
        "Of memcached's LRU; 0 here."
    ),
    class!(
        "items_moves_within_lru",
        Counter,
        "items:1:moves_within_lru",
        "Items written again because they were in use when the log came round."
    ),
    class!(
        "hot_items",
        Gauge,
        "items:1:number_hot",
        "Of memcached's LRU; 0 here."
    ),
    class!(
        "warm_items",
        Gauge,
        "items:1:number_warm",
        "Of memcached's LRU; 0 here."
    ),
    class!(
        "cold_items",
        Gauge,
        "items:1:number_cold",
        "Items in the class."
    ),
    class!(
        "temporary_items",
        Gauge,
        "items:1:number_temp",
        "Of memcached's LRU; 0 here."
    ),
    class!(
        "hot_age_seconds",
        Gauge,
        "items:1:age_hot",
        "Of memcached's LRU; 0 here."
    ),
    class!(
        "warm_age_seconds",
        Gauge,
        "items:1:age_warm",
        "Of memcached's LRU; 0 here."
    ),
    family(
        "slab_lru_hits_total",
        Counter,
        LRU_HITS,
        "Reads that found an item, by memcached's segment.",
    ),
    class!(
        "chunk_size_bytes",
        Gauge,
        "1:chunk_size",
        "Bytes of a chunk."
    ),
    class!(
        "chunks_per_page",
        Gauge,
        "1:chunks_per_page",
        "Chunks of a page."
    ),
    class!(
        "current_pages",
        Gauge,
        "1:total_pages",
        "Pages: one, the log."
    ),
    class!(
        "current_chunks",
        Gauge,
        "1:total_chunks",
        "Chunks of the log."
    ),
    class!(
        "chunks_used",
        Gauge,
        "1:used_chunks",
        "Chunks that items take."
    ),
    class!(
        "chunks_free",
        Gauge,
        "1:free_chunks",
        "Chunks that items do not take."
    ),
    class!(
        "chunks_free_end",
        Gauge,
        "1:free_chunks_end",
        "Of memcached's slabs; 0 here."
    ),
    family(
        "slab_commands_total",
        Counter,
        CLASS_COMMANDS,
        "Requests by command and outcome.",
    ),
];

const LRU_HITS: &[(Labels, &str)] = &[
    (&[("slab", "1"), ("lru", "hot")], "items:1:hits_to_hot"),
    (&[("slab", "1"), ("lru", "warm")], "items:1:hits_to_warm"),
    (&[("slab", "1"), ("lru", "cold")], "items:1:hits_to_cold"),
    (
        &[("slab", "1"), ("lru", "temporary")],
        "items:1:hits_to_temp",
    ),
];

macro_rules! class_command {
    ($command:literal, $status:literal, $stat:expr) => {
        (
            &[("slab", "1"), ("command", $command), ("status", $status)],
            $stat,
        )
    };
}

const CLASS_COMMANDS: &[(Labels, &str)] = &[
    class_command!("get", "hit", "1:get_hits"),
    class_command!("delete", "hit", "1:delete_hits"),
    class_command!("incr", "hit", "1:incr_hits"),
    class_command!("decr", "hit", "1:decr_hits"),
    class_command!("cas", "hit", "1:cas_hits"),
    class_command!("cas", "badval", "1:cas_badval"),
    class_command!("touch", "hit", "1:touch_hits"),
    class_command!("set", "hit", CLASS_SETS),
];
