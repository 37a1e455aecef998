//! `stats settings`: memcached's names, in memcached's order, then this server's own.

use std::{path::Path, sync::atomic::Ordering::Relaxed};

use super::output::Stats;
use crate::{
    context::Context,
    net::{
        auth::Auth,
        tls::{self, Certificates},
    },
    settings::{listen::Listen, tls::Tls},
};

/// `stats settings`.
pub(crate) fn settings(context: &Context, out: &mut Stats<'_>) {
    let settings = &context.settings;
    out.say("maxbytes", context.tunables.memory.get());
    let connections_max = context.limits.connections_max.load(Relaxed);
    out.say("maxconns", connections_max);
    listening(context, out);
    out.say("verbosity", context.tunables.verbosity.load(Relaxed));
    out.say("oldest", 0);
    out.say("evictions", if settings.lossless { "off" } else { "on" });
    out.say("shutdown_command", yes(settings.shutdown.is_some()));
    out.say("num_threads", settings.workers);
    out.say("num_threads_per_udp", settings.workers);
    out.say("stat_key_prefix", ":");
    let detail = context.tunables.detail.load(Relaxed);
    out.say("detail_enabled", yes(detail));
    out.say("reqs_per_event", settings.turn_requests);
    out.say("cas_enabled", "yes");
    out.say("tcp_backlog", settings.backlog);
    let sasl = context.auth.as_ref().is_some_and(Auth::is_sasl);
    out.say("auth_enabled_sasl", yes(sasl));
    match &context.auth {
        Some(auth) if !sasl => out.say("auth_enabled_ascii", auth.path().display()),
        _ => out.say("auth_enabled_ascii", "no"),
    }
    out.say("item_size_max", settings.item_bytes_max);
    out.say("maxconns_fast", yes(settings.refuse_at_once));
    out.say("flush_enabled", yes(settings.offers.flush));
    out.say("dump_enabled", yes(settings.offers.dump));
    out.say("hash_algorithm", "siphash13");
    let timeout = context.tunables.timeout();
    let idle = timeout.idle.unwrap_or_default();
    out.say("idle_timeout", idle.as_secs());
    out.say("client_flags_size", size_of::<u32>());
    out.say("binding_protocol", settings.protocol.name());
    let crawler = &context.tunables.crawler;
    out.say("lru_crawler", yes(crawler.is_enabled()));
    out.say("lru_crawler_sleep", crawler.sleep_us());
    out.say("lru_crawler_tocrawl", crawler.items_max());
    for (name, value) in OF_THE_SLABS {
        out.say(name, value);
    }
    tls_settings(context, out);
    let request = timeout.request.as_secs();
    out.say("request_timeout", request);
    out.say("spin_us", settings.spin.as_micros());
    out.say("hot_keys", settings.hot_keys);
    match &settings.memory_file {
        Some(path) => out.say("memory_file", path.display()),
        None => out.say("memory_file", "(null)"),
    }
}

/// TLS settings; memcached shows them with or without TLS.
fn tls_settings(context: &Context, out: &mut Stats<'_>) {
    let tls = context.certificates.as_ref().map(Certificates::files);
    let path = |of: fn(&Tls) -> &Path| {
        tls.map_or_else(|| "(null)".into(), |tls| of(tls).to_string_lossy())
    };
    let authorities = tls.and_then(|tls| tls.authorities.as_deref());
    out.say("ssl_enabled", yes(tls.is_some()));
    out.say("ssl_chain_cert", path(|tls| &tls.chain));
    out.say("ssl_key", path(|tls| &tls.key));
    out.say("ssl_verify_mode", tls.map_or(0, |tls| tls.clients as u8));
    out.say("ssl_keyformat", tls.map_or(1, |tls| tls.key_format as u8));
    out.say("ssl_ciphers", "NULL");
    match authorities {
        Some(path) => out.say("ssl_ca_cert", path.display()),
        None => out.say("ssl_ca_cert", "NULL"),
    }
    out.say("ssl_wbuf_size", tls::SENDING_BYTES);
    out.say(
        "ssl_session_cache",
        yes(tls.is_some_and(|tls| tls.session_cache)),
    );
    out.say("ssl_kernel_tls", "no");
    let only_1_3 = tls.is_some_and(|tls| tls.only_1_3);
    out.say(
        "ssl_min_version",
        if only_1_3 { "tlsv1.3" } else { "tlsv1.2" },
    );
}

fn listening(context: &Context, out: &mut Stats<'_>) {
    out.say("tcpport", context.settings.port);
    out.say("udpport", context.settings.udp_port);
    match &context.settings.listen {
        Listen::Tcp(interfaces) => {
            let hosts: Vec<String> = interfaces
                .iter()
                .flat_map(|interface| &interface.addresses)
                .map(|address| address.ip().to_string())
                .collect();
            out.say("inter", hosts.join(","));
            out.say("domain_socket", "NULL");
            out.say("umask", "700");
        }
        Listen::Unix { path, mode } => {
            out.say("inter", "NULL");
            out.say("domain_socket", path.display());
            out.say("umask", format_args!("{mode:o}"));
        }
    }
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

/// Settings of memcached's machinery that does not exist here, with the values that memcached shows
/// when it is off.
const OF_THE_SLABS: [(&str, &str); 35] = [
    ("growth_factor", "1.00"),
    ("chunk_size", "8"),
    ("hashpower_init", "0"),
    ("slab_reassign", "no"),
    ("slab_automove", "0"),
    ("slab_automove_ratio", "0.00"),
    ("slab_automove_window", "0"),
    ("slab_chunk_max", "0"),
    ("tail_repair_time", "0"),
    ("lru_maintainer_thread", "no"),
    ("lru_segmented", "no"),
    ("hot_lru_pct", "0"),
    ("warm_lru_pct", "0"),
    ("hot_max_factor", "0.00"),
    ("warm_max_factor", "0.00"),
    ("temp_lru", "no"),
    ("temporary_ttl", "0"),
    ("read_buf_mem_limit", "0"),
    ("track_sizes", "no"),
    ("inline_ascii_response", "no"),
    ("drop_privileges", "no"),
    ("watcher_logbuf_size", "0"),
    ("worker_logbuf_size", "0"),
    ("ext_item_size", "0"),
    ("ext_item_age", "0"),
    ("ext_low_ttl", "0"),
    ("ext_recache_rate", "0"),
    ("ext_wbuf_size", "0"),
    ("ext_compact_under", "0"),
    ("ext_drop_under", "0"),
    ("ext_max_sleep", "0"),
    ("ext_max_frag", "0.00"),
    ("ext_drop_unread", "no"),
    ("slab_automove_freeratio", "0.000"),
    ("num_napi_ids", "0"),
];
