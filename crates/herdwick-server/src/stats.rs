//! What `stats` says: memcached's names and formats, so that the tools that read them go on
//! reading. A name whose machinery does not exist here says 0, as it does in a memcached that does
//! not use it; everything refused or dropped has a name of its own at the end.

use std::sync::atomic::Ordering::Relaxed;

use herdwick_mica::Clock;

use crate::{
    config::Listen,
    facts::{Facts, Stats, VERSION},
    tally::Snapshot,
    time::uptime,
};

/// Bytes of one slot of the store's index.
const SLOT_BYTES: u64 = 8;

/// `stats`.
pub(crate) fn general(facts: &Facts, clock: Clock, sum: &Snapshot, out: &mut Stats<'_>) {
    process(clock, out);
    connections(facts, sum, out);
    commands(sum, out);
    memory(facts, sum, out);
    store(sum, out);
    refusals(sum, out);
}

fn process(clock: Clock, out: &mut Stats<'_>) {
    out.say("pid", std::process::id());
    out.say("uptime", uptime(clock));
    out.say("time", clock.epoch_unix + u64::from(clock.second.0));
    out.say("version", VERSION);
    out.say("pointer_size", usize::BITS);
    let (user, system) = cpu_time();
    out.say("rusage_user", user);
    out.say("rusage_system", system);
}

/// CPU time of this process in memcached's `%ld.%06ld`, from the 14th and 15th field of its stat
/// file (proc(5)).
fn cpu_time() -> (String, String) {
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

fn connections(facts: &Facts, sum: &Snapshot, out: &mut Stats<'_>) {
    let limits = &facts.limits;
    out.say("max_connections", limits.connections_max);
    out.say("curr_connections", sum.tally.connections);
    out.say("total_connections", limits.total.load(Relaxed));
    out.say("rejected_connections", limits.rejected.load(Relaxed));
    out.say("connection_structures", sum.tally.connections);
}

fn commands(sum: &Snapshot, out: &mut Stats<'_>) {
    let tally = &sum.tally;
    for (name, count) in [
        ("cmd_get", tally.cmd_get),
        ("cmd_set", tally.cmd_set),
        ("cmd_flush", tally.cmd_flush),
        ("cmd_touch", tally.cmd_touch),
        ("cmd_meta", 0),
        ("get_hits", tally.get_hits),
        ("get_misses", tally.get_misses),
        ("get_expired", tally.get_expired),
        ("get_flushed", tally.get_flushed),
        ("delete_misses", tally.delete_misses),
        ("delete_hits", tally.delete_hits),
        ("incr_misses", tally.incr_misses),
        ("incr_hits", tally.incr_hits),
        ("decr_misses", tally.decr_misses),
        ("decr_hits", tally.decr_hits),
        ("cas_misses", tally.cas_misses),
        ("cas_hits", tally.cas_hits),
        ("cas_badval", tally.cas_badval),
        ("touch_hits", tally.touch_hits),
        ("touch_misses", tally.touch_misses),
        ("store_too_large", tally.store_too_large),
        ("store_no_memory", tally.store_no_memory),
        ("auth_cmds", 0),
        ("auth_errors", 0),
        ("bytes_read", tally.bytes_read),
        ("bytes_written", tally.bytes_written),
    ] {
        out.say(name, count);
    }
}

fn memory(facts: &Facts, sum: &Snapshot, out: &mut Stats<'_>) {
    out.say("limit_maxbytes", facts.settings.memory_bytes);
    out.say("accepting_conns", 1);
    out.say("listen_disabled_num", facts.limits.paused.load(Relaxed));
    out.say("time_in_listen_disabled_us", 0);
    out.say("threads", facts.settings.workers);
    out.say("conn_yields", sum.tally.conn_yields);
    out.say("hash_power_level", sum.slots.checked_ilog2().unwrap_or(0));
    out.say("hash_bytes", sum.slots * SLOT_BYTES);
    out.say("hash_is_expanding", 0);
    for idle in [
        "slab_reassign_rescues",
        "slab_reassign_running",
        "slabs_moved",
        "lru_crawler_running",
        "lru_crawler_starts",
        "lru_maintainer_juggles",
        "malloc_fails",
        "log_worker_dropped",
        "log_worker_written",
        "log_watcher_skipped",
        "log_watcher_sent",
        "log_watchers",
    ] {
        out.say(idle, 0);
    }
}

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

/// What memcached has no name for: every drop and refusal, by reason.
fn refusals(sum: &Snapshot, out: &mut Stats<'_>) {
    let tally = &sum.tally;
    for (name, count) in [
        ("index_evictions", sum.store.index_evictions),
        ("items_kept", sum.store.kept),
        ("bad_keys", sum.store.bad_keys),
        ("refused_lines", tally.refused_lines),
        ("refused_blocks", tally.refused_blocks),
        ("closed_not_memcached", tally.closed_not_memcached),
        ("closed_binary", tally.closed_binary),
        ("closed_errors", tally.closed_errors),
        ("crossed", tally.crossed),
        ("parcels_exhausted", tally.parcels_exhausted),
        ("reads_deferred", tally.reads_deferred),
    ] {
        out.say(name, count);
    }
    for (reason, count) in &sum.drops {
        out.say(reason, count);
    }
}

/// `stats items`: the log is one class.
pub(crate) fn items(sum: &Snapshot, out: &mut Stats<'_>) {
    let store = &sum.store;
    if store.items == 0 {
        return;
    }
    for (name, count) in [
        ("items:1:number", store.items),
        ("items:1:mem_requested", store.bytes),
        ("items:1:evicted", store.evictions),
        ("items:1:evicted_nonzero", store.evicted_nonzero),
        ("items:1:outofmemory", sum.tally.store_no_memory),
        ("items:1:reclaimed", store.reclaimed),
        ("items:1:expired_unfetched", store.expired_unfetched),
        ("items:1:evicted_unfetched", store.evicted_unfetched),
        ("items:1:moves_within_lru", store.refreshed),
    ] {
        out.say(name, count);
    }
}

/// `stats slabs`: the log is one class of 8-byte chunks.
pub(crate) fn slabs(facts: &Facts, sum: &Snapshot, out: &mut Stats<'_>) {
    let tally = &sum.tally;
    let chunks = (facts.settings.memory_bytes as u64).saturating_sub(sum.slots * SLOT_BYTES) / 8;
    let used = sum.store.bytes / 8;
    for (name, count) in [
        ("1:chunk_size", 8),
        ("1:chunks_per_page", chunks),
        ("1:total_pages", 1),
        ("1:total_chunks", chunks),
        ("1:used_chunks", used),
        ("1:free_chunks", chunks.saturating_sub(used)),
        ("1:free_chunks_end", 0),
        ("1:get_hits", tally.get_hits),
        ("1:cmd_set", tally.cmd_set),
        ("1:delete_hits", tally.delete_hits),
        ("1:incr_hits", tally.incr_hits),
        ("1:decr_hits", tally.decr_hits),
        ("1:cas_hits", tally.cas_hits),
        ("1:cas_badval", tally.cas_badval),
        ("1:touch_hits", tally.touch_hits),
        ("active_slabs", 1),
        ("total_malloced", facts.settings.memory_bytes as u64),
    ] {
        out.say(name, count);
    }
}

/// `stats settings`.
pub(crate) fn settings(facts: &Facts, out: &mut Stats<'_>) {
    let settings = &facts.settings;
    out.say("maxbytes", settings.memory_bytes);
    out.say("maxconns", facts.limits.connections_max);
    out.say("tcpport", settings.port);
    out.say("udpport", 0);
    match &settings.listen {
        Listen::Tcp(addresses) => {
            let hosts: Vec<String> = addresses.iter().map(|a| a.ip().to_string()).collect();
            out.say("inter", hosts.join(","));
            out.say("domain_socket", "NULL");
        }
        Listen::Unix { path, mode } => {
            out.say("inter", "NULL");
            out.say("domain_socket", path.display());
            out.say("umask", format_args!("{mode:o}"));
        }
    }
    out.say("verbosity", settings.verbosity);
    out.say("evictions", "on");
    out.say("num_threads", settings.workers);
    out.say("cas_enabled", "yes");
    out.say("binding_protocol", "ascii");
    out.say("auth_enabled_sasl", "no");
    out.say("auth_enabled_ascii", "no");
    out.say("item_size_max", settings.item_bytes_max);
    out.say("maxconns_fast", "yes");
    out.say("flush_enabled", "yes");
    out.say("dump_enabled", "no");
    out.say("hash_algorithm", "siphash13");
    out.say("idle_timeout", 0);
    out.say("spin_us", settings.spin_us);
}
