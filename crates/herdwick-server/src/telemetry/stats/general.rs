//! The table of `stats`: memcached's names in memcached's order, then this server's own. A worker's
//! counter is declared here, where it is shown; its row makes the field that it counts in.
//!
//! Circular import with `snapshot` and `workers`: a row declares a counter, and reads it from a snapshot
//! of all counters.

use std::sync::atomic::Ordering::Relaxed;

use super::statistic::{SLOT_BYTES, Value, ZERO, counted};
use crate::{
    context::{HERDWICK_VERSION, VERSION},
    net::unix,
    telemetry::snapshot::StatsView,
};

counted! {
    view v: StatsView<'_>;
    fields v.sum.counters;
    /// Counters of one worker, outside its store.
    #[derive(Clone, Copy, Debug, Default)]
    struct WorkerCounters of u64;
    /// The names in `stats`, without those of the transports and of the leases.
    names GeneralNames;
    /// `stats`.
    static GENERAL;

    /// The process id.
    Gauge pid = { std::process::id() };
    /// Seconds since the server started.
    Counter(Seconds) uptime = { v.context.uptime(v.clock) } => "memcached_uptime_seconds";
    /// Unix time by the server's clock.
    Gauge(Seconds) time = { v.clock.epoch_unix + u64::from(v.clock.second.0) }
        => "memcached_time_seconds";
    /// The memcached version whose protocols are spoken; a label of `memcached_version`.
    Text version = { VERSION };
    /// The version of this server.
    Text herdwick_version = { HERDWICK_VERSION };
    /// memcached's event library; the server uses mio instead.
    Text libevent = { "none" };
    /// Bits of an address.
    Gauge pointer_size = { usize::BITS };
    /// CPU time in user mode.
    Counter(Seconds) rusage_user = { Value::Micros(v.cpu_micros().0) }
        => "memcached_process_user_cpu_seconds_total";
    /// CPU time in the kernel.
    Counter(Seconds) rusage_system = { Value::Micros(v.cpu_micros().1) }
        => "memcached_process_system_cpu_seconds_total";
    /// Most connections at a time (-c).
    Gauge max_connections = { &v.context.limits.connections_max } => "memcached_max_connections";
    /// Open connections.
    Gauge curr_connections = fields.connections => "memcached_current_connections";
    /// Connections ever accepted.
    Counter total_connections = { &v.context.limits.total } => "memcached_connections_total";
    /// Connections closed because there were too many.
    Counter rejected_connections = { &v.context.limits.rejected }
        => "memcached_connections_rejected_total";
    /// Open connections: a connection has one structure.
    Gauge connection_structures = { v.sum.counters.connections };
    Counter response_obj_oom = { ZERO };
    Gauge response_obj_count = { ZERO };
    Gauge response_obj_bytes = { ZERO };
    /// Open connections: a connection has one buffer.
    Gauge read_buf_count = { v.sum.counters.connections };
    /// Bytes of the connections' buffers.
    Gauge(Bytes) read_buf_bytes = fields.held_bytes => "herdwick_buffer_bytes";
    Gauge read_buf_bytes_free = { ZERO };
    /// The same as `closed_stalled`.
    Counter read_buf_oom = { v.sum.counters.closed_stalled };
    Gauge reserved_fds = { ZERO };

    /// Keys read.
    Counter cmd_get = fields.cmd_get;
    /// Requests that store, except those refused for their size or for want of memory.
    Counter cmd_set = fields.cmd_set;
    /// `flush_all` commands.
    Counter cmd_flush = fields.cmd_flush in COMMANDS(command = "flush", status = "hit");
    /// Keys touched, by `touch` and by `gat`.
    Counter cmd_touch = fields.cmd_touch;
    /// Meta commands.
    Counter cmd_meta = fields.cmd_meta;
    /// Reads that found an item.
    Counter get_hits = fields.get_hits in COMMANDS(command = "get", status = "hit");
    /// Reads that found none.
    Counter get_misses = fields.get_misses in COMMANDS(command = "get", status = "miss");
    /// Reads that found an expired item.
    Counter get_expired = fields.get_expired;
    /// Reads that found a flushed item.
    Counter get_flushed = fields.get_flushed;
    /// Deletes that found no item.
    Counter delete_misses = fields.delete_misses in COMMANDS(command = "delete", status = "miss");
    /// Deletes that found an item.
    Counter delete_hits = fields.delete_hits in COMMANDS(command = "delete", status = "hit");
    /// Increments that found no item.
    Counter incr_misses = fields.incr_misses in COMMANDS(command = "incr", status = "miss");
    /// Increments that found an item.
    Counter incr_hits = fields.incr_hits in COMMANDS(command = "incr", status = "hit");
    /// Decrements that found no item.
    Counter decr_misses = fields.decr_misses in COMMANDS(command = "decr", status = "miss");
    /// Decrements that found an item.
    Counter decr_hits = fields.decr_hits in COMMANDS(command = "decr", status = "hit");
    /// Compare-and-swaps that found no item.
    Counter cas_misses = fields.cas_misses in COMMANDS(command = "cas", status = "miss");
    /// Compare-and-swaps that stored.
    Counter cas_hits = fields.cas_hits in COMMANDS(command = "cas", status = "hit");
    /// Compare-and-swaps that found an item of another version.
    Counter cas_badval = fields.cas_badval in COMMANDS(command = "cas", status = "badval");
    /// Touches that found an item.
    Counter touch_hits = fields.touch_hits in COMMANDS(command = "touch", status = "hit");
    /// Touches that found none.
    Counter touch_misses = fields.touch_misses in COMMANDS(command = "touch", status = "miss");
    /// Items refused because they exceed the largest item (-I).
    Counter store_too_large = fields.store_too_large => "memcached_item_too_large_total";
    /// Items refused for want of memory.
    Counter store_no_memory = fields.store_no_memory => "memcached_item_no_memory_total";
    /// Authentication attempts.
    Counter auth_cmds = fields.auth_cmds;
    /// Authentication attempts that failed.
    Counter auth_errors = fields.auth_errors;
    /// Connections closed: no command for `idle_timeout`.
    Counter idle_kicks = fields.idle_kicks in DROPS(fabric = "tcp", reason = "idle_kicks");
    /// Bytes read from connections.
    Counter(Bytes) bytes_read = fields.bytes_read => "memcached_read_bytes_total";
    /// Bytes written to connections.
    Counter(Bytes) bytes_written = fields.bytes_written => "memcached_written_bytes_total";

    /// Bytes that the server may hold (-m).
    Gauge(Bytes) limit_maxbytes = { v.context.tunables.memory.get() } => "memcached_limit_bytes";
    /// Whether connections are accepted now.
    Gauge accepting_conns = { !v.context.limits.is_resting() }
        => "memcached_accepting_connections";
    /// Times that accepting paused for want of descriptors or room.
    Counter listen_disabled_num = { &v.context.limits.paused }
        => "memcached_connections_listener_disabled_total";
    /// How long accepting has paused, without the current pause.
    Counter(Microseconds) time_in_listen_disabled_us = { &v.context.limits.paused_us };
    /// Workers (-t).
    Gauge threads = { v.context.settings.workers };
    /// Times that a connection had more to do than one turn allows (-R).
    Counter conn_yields = fields.conn_yields => "memcached_connections_yielded_total";
    /// The binary logarithm of the index's slots, rounded down.
    Gauge hash_power_level = { v.sum.slots.checked_ilog2().unwrap_or(0) };
    /// Bytes of the index.
    Gauge(Bytes) hash_bytes = { v.sum.slots * SLOT_BYTES };
    Gauge hash_is_expanding = { ZERO };
    Text slab_reassign_last_busy_status = { "none" };
    Counter slab_reassign_rescues = { ZERO };
    Counter slab_reassign_chunk_rescues = { ZERO };
    Counter slab_reassign_evictions_nomem = { ZERO };
    Counter slab_reassign_inline_reclaim = { ZERO };
    Counter slab_reassign_busy_items = { ZERO };
    Counter slab_reassign_busy_deletes = { ZERO };
    Counter slab_reassign_busy_nomem = { ZERO };
    Gauge slab_reassign_running = { ZERO };
    Stored slabs_moved = store.slabs_moved => "herdwick_slabs_moved_total";
    /// Whether a crawl (`lru_crawler crawl`) is under way: 0 or 1.
    Gauge lru_crawler_running = { u64::from(v.context.tunables.crawler.is_running()) };
    /// Crawls that were started.
    Counter lru_crawler_starts = { u64::from(v.context.tunables.crawler.starts()) }
        => "memcached_lru_crawler_starts_total";
    Counter lru_maintainer_juggles = { ZERO };
    Counter malloc_fails = { ZERO };
    Counter unexpected_napi_ids = { ZERO };
    Counter round_robin_fallback = { ZERO };
    /// Events of `watch` dropped because a worker's event queue was full.
    Counter log_worker_dropped = fields.log_worker_dropped
        in DROPS(fabric = "tcp", reason = "log_worker_dropped");
    /// Events of `watch` written to the workers' event queues.
    Counter log_worker_written = fields.log_worker_written;
    /// Events that a watcher missed because it did not read.
    Counter log_watcher_skipped = { &v.context.watch.skipped };
    /// Events sent to watchers.
    Counter log_watcher_sent = { &v.context.watch.sent };
    /// Watchers now.
    Gauge log_watchers = { &v.context.watch.watchers };

    /// TLS handshakes that began a session and resumed none; only with `ssl_session_cache`.
    Counter ssl_new_sessions = {
        let cached = v.tls().filter(|tls| tls.files().session_cache);
        cached.map(|tls| &tls.counters.new_sessions)
    };
    /// TLS handshakes that failed: errors, refused clients, disconnects.
    Counter ssl_handshake_errors = { v.tls().map(|tls| &tls.counters.failed) };
    /// TLS handshakes that timed out.
    Counter ssl_handshake_timeouts = { v.tls().map(|tls| &tls.counters.timeouts) };
    /// TLS handshakes ended as the largest, when all together held too many bytes.
    Counter ssl_handshakes_over_memory = { v.tls().map(|tls| &tls.counters.over_memory) };
    /// Connections closed: an invalid TLS record. `closed_errors` counts them too.
    Counter ssl_proto_errors = fields.ssl_proto_errors if { v.tls().is_some() };
    /// Time since the certificates were read.
    Gauge(Seconds) time_since_server_cert_refresh = {
        v.tls().map(|tls| v.clock.second.0.saturating_sub(tls.read_at.load(Relaxed)))
    };

    Stored(Bytes) bytes = store.bytes => "memcached_current_bytes";
    Stored curr_items = store.items => "memcached_current_items";
    Stored total_items = store.total_items => "memcached_items_total";
    Gauge slab_global_page_pool = { ZERO };
    Stored expired_unfetched = store.expired_unfetched;
    Stored evicted_unfetched = store.evicted_unfetched;
    Counter evicted_active = { ZERO };
    Stored evictions = store.evictions => "memcached_items_evicted_total";
    Stored reclaimed = store.reclaimed => "memcached_items_reclaimed_total";
    Stored crawler_reclaimed = store.crawler_reclaimed
        => "memcached_lru_crawler_reclaimed_total";
    Stored crawler_items_checked = store.crawler_items_checked
        => "memcached_lru_crawler_items_checked_total";
    Counter lrutail_reflocked = { ZERO };
    /// Of memcached's LRU; 0 here.
    Counter moves_to_cold = { ZERO } => "memcached_lru_crawler_moves_to_cold_total";
    /// Of memcached's LRU; 0 here.
    Counter moves_to_warm = { ZERO } => "memcached_lru_crawler_moves_to_warm_total";
    Stored moves_within_lru = store.refreshed
        => "memcached_lru_crawler_moves_within_lru_total";
    /// Of memcached's LRU; 0 here.
    Counter direct_reclaims = { ZERO } => "memcached_direct_reclaims_total";
    Counter lru_bumps_dropped = { ZERO };

    Stored index_evictions = store.index_evictions => "herdwick_index_evictions_total";
    Stored items_kept = store.kept => "herdwick_items_kept_total";
    Stored bad_keys = store.bad_keys;
    Stored memory_limit_failures = store.returns_failed;
    /// Requests that took as long as --slow-log says, or were served with one that did.
    Counter slow_requests = fields.slow_requests if { v.context.settings.latency.slow.is_some() }
        => "herdwick_slow_requests_total";
    /// Lines and packets answered with an error message.
    Counter refused_lines = fields.refused_lines in DROPS(fabric = "tcp", reason = "refused_lines");
    /// Data blocks discarded unread because they exceed the largest item.
    Counter refused_blocks = fields.refused_blocks
        in DROPS(fabric = "tcp", reason = "refused_blocks");
    /// Connections closed: an endless line, or HTTP.
    Counter closed_not_memcached = fields.closed_not_memcached
        in DROPS(fabric = "tcp", reason = "closed_not_memcached");
    /// Connections closed: an invalid binary packet.
    Counter closed_binary = fields.closed_binary in DROPS(fabric = "tcp", reason = "closed_binary");
    /// Connections closed: a read or write error.
    Counter closed_errors = fields.closed_errors in DROPS(fabric = "tcp", reason = "closed_errors");
    /// Connections closed: the rest of a command did not arrive in time.
    Counter closed_half_sent = fields.closed_half_sent
        in DROPS(fabric = "tcp", reason = "closed_half_sent");
    /// Connections closed because connections held too much memory: the one that had stalled
    /// longest, or had waited least.
    Counter closed_stalled = fields.closed_stalled
        in DROPS(fabric = "tcp", reason = "closed_stalled");
    /// Unix connections closed because descriptors were sent over them.
    Counter unix_descriptors_refused = { unix::counts().descriptors_refused }
        in DROPS(fabric = "unix", reason = "descriptors_refused");
    /// Unix connections refused because too many of the same user's wait to be closed.
    Counter unix_users_refused = { unix::counts().users_refused }
        in DROPS(fabric = "unix", reason = "users_refused");
    /// Unix sockets with descriptors in them that wait to be closed, or are being closed.
    Gauge unix_sockets_closing = { unix::counts().sockets_closing }
        => "herdwick_unix_sockets_closing";
    /// Threads that have been closing the same unix socket for more than 100 ms.
    Gauge unix_closers_stuck = { unix::counts().closers_stuck } => "herdwick_unix_closers_stuck";
    /// Datagrams dropped: too short, a part of a longer request, or a reply.
    Counter udp_malformed = { &v.context.udp.malformed }
        in DROPS(fabric = "udp", reason = "malformed");
    /// Datagrams dropped because too many requests were being answered.
    Counter udp_over_limit = { &v.context.udp.over_limit } in DROPS(fabric = "udp", reason = "over_limit");
    /// UDP replies not sent because they exceed the amplification limit.
    Counter udp_amplification_refused = fields.udp_amplification_refused in DROPS(fabric = "udp", reason = "amplification_refused");
    /// UDP replies that the kernel refused.
    Counter udp_unsent = fields.udp_unsent in DROPS(fabric = "udp", reason = "unsent");
    /// Reads that clients made in the memory of the stores themselves, as they report them. `get_hits` and
    /// `cmd_get` count them, too.
    Counter one_sided_hits = fields.one_sided_hits => "herdwick_one_sided_hits_total";
    /// Bytes of keys and values in requests over fabrics.
    Counter(Bytes) fabric_bytes_read = fields.fabric_bytes_read
        => "herdwick_fabric_read_bytes_total";
    /// Bytes of values in replies over fabrics.
    Counter(Bytes) fabric_bytes_written = fields.fabric_bytes_written
        => "herdwick_fabric_written_bytes_total";
    /// Requests received over sockets.
    Counter tcp_requests = fields.tcp_requests;
    /// Batches that these requests were executed in.
    Counter tcp_batches = fields.tcp_batches;
    /// Requests executed for the connections of other workers.
    Counter forwarded = fields.forwarded;
    /// Requests that a connection's worker executed in another worker's partition.
    Counter executed_in_place = fields.executed_in_place;
    /// Rounds put off because all forwarded batches to another worker were under way.
    Counter forward_batches_exhausted = fields.forward_batches_exhausted;
    /// Reads put off because the output of a connection or of a forwarded batch was full.
    Counter reads_deferred = fields.reads_deferred;
    /// Large values read directly into the store.
    Counter uploads = fields.uploads;
    /// Large values that waited for room.
    Counter uploads_queued = fields.uploads_queued;
    /// Connections that waited for room for a large reply or a long line.
    Counter replies_queued = fields.replies_queued;
}
