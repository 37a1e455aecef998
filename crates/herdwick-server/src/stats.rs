//! The output of `stats`: memcached's names and formats, so that existing tools can parse it. A
//! statistic of machinery that does not exist here is 0, as in a memcached that does not use it.
//! Everything refused or dropped follows at the end, under names of its own.

mod settings;
mod workers;

use std::sync::atomic::Ordering::Relaxed;

use herdwick_mica::Clock;

use crate::{
    context::{Context, HERDWICK_VERSION, Stats, VERSION},
    counters::Snapshot,
    unix,
};

pub(crate) use settings::settings;
pub(crate) use workers::{hot_keys, of_worker, transports, workers};

/// Bytes of one slot of the store's index.
const SLOT_BYTES: u64 = 8;

/// `stats`.
pub(crate) fn general(context: &Context, clock: Clock, sum: &Snapshot, out: &mut Stats<'_>) {
    process(context, clock, out);
    connections(context, sum, out);
    commands(sum, out);
    memory(context, sum, out);
    encryption(context, clock, sum, out);
    store(sum, out);
    refusals(context, sum, out);
}

fn process(context: &Context, clock: Clock, out: &mut Stats<'_>) {
    out.say("pid", std::process::id());
    out.say("uptime", context.uptime(clock));
    out.say("time", clock.epoch_unix + u64::from(clock.second.0));
    out.say("version", VERSION);
    out.say("herdwick_version", HERDWICK_VERSION);
    // memcached's event library; the server uses mio instead.
    out.say("libevent", "none");
    out.say("pointer_size", usize::BITS);
    let (user, system) = cpu_time();
    out.say("rusage_user", user);
    out.say("rusage_system", system);
}

/// Returns the user and system CPU time of this process in memcached's format `%ld.%06ld`, from
/// fields 14 and 15 of /proc/self/stat (proc(5)).
fn cpu_time() -> (String, String) {
    // Without /proc it is 0, because readers expect a number.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let mut fields = fields.split_whitespace().skip(11);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let mut next = || {
        let ticks: u64 = fields
            .next()
            .and_then(|ticks| ticks.parse().ok())
            .unwrap_or(0);
        let micros = ticks % per_second * 1_000_000 / per_second;
        format!("{}.{micros:06}", ticks / per_second)
    };
    (next(), next())
}

fn connections(context: &Context, sum: &Snapshot, out: &mut Stats<'_>) {
    let limits = &context.limits;
    out.say("max_connections", limits.connections_max.load(Relaxed));
    out.say("curr_connections", sum.counters.connections);
    out.say("total_connections", limits.total.load(Relaxed));
    out.say("rejected_connections", limits.rejected.load(Relaxed));
    out.say("connection_structures", sum.counters.connections);
    for (name, count) in [
        ("response_obj_oom", 0),
        ("response_obj_count", 0),
        ("response_obj_bytes", 0),
        ("read_buf_count", sum.counters.connections),
        ("read_buf_bytes", sum.counters.held_bytes),
        ("read_buf_bytes_free", 0),
        ("read_buf_oom", sum.counters.closed_stalled),
        ("reserved_fds", 0),
    ] {
        out.say(name, count);
    }
}

fn commands(sum: &Snapshot, out: &mut Stats<'_>) {
    let counters = &sum.counters;
    for (name, count) in [
        ("cmd_get", counters.cmd_get),
        ("cmd_set", counters.cmd_set),
        ("cmd_flush", counters.cmd_flush),
        ("cmd_touch", counters.cmd_touch),
        ("cmd_meta", counters.cmd_meta),
        ("get_hits", counters.get_hits),
        ("get_misses", counters.get_misses),
        ("get_expired", counters.get_expired),
        ("get_flushed", counters.get_flushed),
        ("delete_misses", counters.delete_misses),
        ("delete_hits", counters.delete_hits),
        ("incr_misses", counters.incr_misses),
        ("incr_hits", counters.incr_hits),
        ("decr_misses", counters.decr_misses),
        ("decr_hits", counters.decr_hits),
        ("cas_misses", counters.cas_misses),
        ("cas_hits", counters.cas_hits),
        ("cas_badval", counters.cas_badval),
        ("touch_hits", counters.touch_hits),
        ("touch_misses", counters.touch_misses),
        ("store_too_large", counters.store_too_large),
        ("store_no_memory", counters.store_no_memory),
        ("auth_cmds", counters.auth_cmds),
        ("auth_errors", counters.auth_errors),
        ("idle_kicks", counters.idle_kicks),
        ("bytes_read", counters.bytes_read),
        ("bytes_written", counters.bytes_written),
    ] {
        out.say(name, count);
    }
}

fn memory(context: &Context, sum: &Snapshot, out: &mut Stats<'_>) {
    out.say("limit_maxbytes", context.settings.memory_bytes);
    let accepting = !context.limits.is_resting();
    out.say("accepting_conns", u8::from(accepting));
    out.say("listen_disabled_num", context.limits.paused.load(Relaxed));
    let paused_us = context.limits.paused_us.load(Relaxed);
    out.say("time_in_listen_disabled_us", paused_us);
    out.say("threads", context.settings.workers);
    out.say("conn_yields", sum.counters.conn_yields);
    out.say("hash_power_level", sum.slots.checked_ilog2().unwrap_or(0));
    out.say("hash_bytes", sum.slots * SLOT_BYTES);
    out.say("hash_is_expanding", 0);
    out.say("slab_reassign_last_busy_status", "none");
    for idle in IDLE {
        out.say(idle, 0);
    }
    let watch = &context.watch;
    out.say("log_worker_dropped", sum.counters.log_worker_dropped);
    out.say("log_worker_written", sum.counters.log_worker_written);
    out.say("log_watcher_skipped", watch.skipped.load(Relaxed));
    out.say("log_watcher_sent", watch.sent.load(Relaxed));
    out.say("log_watchers", watch.watchers.load(Relaxed));
}

fn encryption(context: &Context, clock: Clock, sum: &Snapshot, out: &mut Stats<'_>) {
    let Some(certificates) = &context.certificates else {
        return;
    };
    let counters = &certificates.counters;
    if certificates.files().session_cache {
        out.say("ssl_new_sessions", counters.new_sessions.load(Relaxed));
    }
    out.say("ssl_handshake_errors", counters.failed.load(Relaxed));
    out.say("ssl_handshakes_late", counters.late.load(Relaxed));
    out.say("ssl_handshakes_crowded", counters.crowded.load(Relaxed));
    out.say("ssl_proto_errors", sum.counters.ssl_proto_errors);
    let read_at = certificates.read_at.load(Relaxed);
    let since = clock.second.0.saturating_sub(read_at);
    out.say("time_since_server_cert_refresh", since);
}

/// Statistics of memcached's machinery that does not exist here: always 0.
const IDLE: [&str; 15] = [
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_busy_nomem",
    "slab_reassign_running",
    "slabs_moved",
    "lru_crawler_running",
    "lru_crawler_starts",
    "lru_maintainer_juggles",
    "malloc_fails",
    "unexpected_napi_ids",
    "round_robin_fallback",
];

fn store(sum: &Snapshot, out: &mut Stats<'_>) {
    let store = &sum.store;
    for (name, count) in [
        ("bytes", store.bytes),
        ("curr_items", store.items),
        ("total_items", store.total_items),
        ("slab_global_page_pool", 0),
        ("expired_unfetched", store.expired_unfetched),
        ("evicted_unfetched", store.evicted_unfetched),
        ("evicted_active", 0),
        ("evictions", store.evictions),
        ("reclaimed", store.reclaimed),
        ("crawler_reclaimed", 0),
        ("crawler_items_checked", 0),
        ("lrutail_reflocked", 0),
        ("moves_to_cold", 0),
        ("moves_to_warm", 0),
        ("moves_within_lru", store.refreshed),
        ("direct_reclaims", 0),
        ("lru_bumps_dropped", 0),
    ] {
        out.say(name, count);
    }
}

/// Everything refused or dropped, by reason; memcached has no names for these.
fn refusals(context: &Context, sum: &Snapshot, out: &mut Stats<'_>) {
    let (counters, unix) = (&sum.counters, unix::counts());
    for (name, count) in [
        ("index_evictions", sum.store.index_evictions),
        ("items_kept", sum.store.kept),
        ("bad_keys", sum.store.bad_keys),
        ("refused_lines", counters.refused_lines),
        ("refused_blocks", counters.refused_blocks),
        ("closed_not_memcached", counters.closed_not_memcached),
        ("closed_binary", counters.closed_binary),
        ("closed_errors", counters.closed_errors),
        ("closed_half_sent", counters.closed_half_sent),
        ("closed_stalled", counters.closed_stalled),
        ("unix_descriptors_refused", unix.descriptors_refused),
        ("unix_users_refused", unix.users_refused),
        ("unix_sockets_closing", unix.sockets_closing),
        ("unix_closers_stuck", unix.closers_stuck),
        ("udp_malformed", context.udp.malformed.load(Relaxed)),
        ("udp_crowded", context.udp.crowded.load(Relaxed)),
        ("udp_withheld", counters.udp_withheld),
        ("udp_unsent", counters.udp_unsent),
        ("fabric_bytes_read", counters.fabric_bytes_read),
        ("fabric_bytes_written", counters.fabric_bytes_written),
        ("tcp_requests", counters.tcp_requests),
        ("tcp_batches", counters.tcp_batches),
        ("forwarded", counters.forwarded),
        (
            "forward_batches_exhausted",
            counters.forward_batches_exhausted,
        ),
        ("reads_deferred", counters.reads_deferred),
        ("uploads", counters.uploads),
        ("uploads_queued", counters.uploads_queued),
        ("replies_queued", counters.replies_queued),
    ] {
        out.say(name, count);
    }
    let mut by_what: Vec<(&str, u64)> = Vec::new();
    for part in &sum.transports {
        match by_what.iter_mut().find(|(what, _)| *what == part.what) {
            Some((_, count)) => *count += part.count,
            None => by_what.push((part.what, part.count)),
        }
    }
    for (what, count) in by_what {
        out.say(what, count);
    }
}

/// `stats items`. The log is a single class.
pub(crate) fn items(sum: &Snapshot, out: &mut Stats<'_>) {
    let store = &sum.store;
    if store.items == 0 {
        return;
    }
    let zero = 0;
    for (name, count) in [
        ("number", store.items),
        ("number_hot", zero),
        ("number_warm", zero),
        ("number_cold", store.items),
        ("age_hot", zero),
        ("age_warm", zero),
        ("age", u64::from(sum.age)),
        ("mem_requested", store.bytes),
        ("evicted", store.evictions),
        ("evicted_nonzero", store.evicted_nonzero),
        ("evicted_time", zero),
        ("outofmemory", sum.counters.store_no_memory),
        ("tailrepairs", zero),
        ("reclaimed", store.reclaimed),
        ("expired_unfetched", store.expired_unfetched),
        ("evicted_unfetched", store.evicted_unfetched),
        ("evicted_active", zero),
        ("crawler_reclaimed", zero),
        ("crawler_items_checked", zero),
        ("lrutail_reflocked", zero),
        ("moves_to_cold", zero),
        ("moves_to_warm", zero),
        ("moves_within_lru", store.refreshed),
        ("direct_reclaims", zero),
        ("hits_to_hot", zero),
        ("hits_to_warm", zero),
        ("hits_to_cold", sum.counters.get_hits),
        ("hits_to_temp", zero),
    ] {
        out.say(&format!("items:1:{name}"), count);
    }
}

/// `stats slabs`. The log is a single class of 8-byte chunks.
pub(crate) fn slabs(context: &Context, sum: &Snapshot, out: &mut Stats<'_>) {
    let counters = &sum.counters;
    let chunks = (context.settings.memory_bytes as u64).saturating_sub(sum.slots * SLOT_BYTES) / 8;
    let used = sum.store.bytes / 8;
    for (name, count) in [
        ("1:chunk_size", 8),
        ("1:chunks_per_page", chunks),
        ("1:total_pages", 1),
        ("1:total_chunks", chunks),
        ("1:used_chunks", used),
        ("1:free_chunks", chunks.saturating_sub(used)),
        ("1:free_chunks_end", 0),
        ("1:get_hits", counters.get_hits),
        ("1:cmd_set", counters.cmd_set),
        ("1:delete_hits", counters.delete_hits),
        ("1:incr_hits", counters.incr_hits),
        ("1:decr_hits", counters.decr_hits),
        ("1:cas_hits", counters.cas_hits),
        ("1:cas_badval", counters.cas_badval),
        ("1:touch_hits", counters.touch_hits),
        ("active_slabs", 1),
        ("total_malloced", context.settings.memory_bytes as u64),
    ] {
        out.say(name, count);
    }
}
