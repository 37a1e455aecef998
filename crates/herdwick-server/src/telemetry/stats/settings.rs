//! The table of `stats settings`: memcached's names, in memcached's order, then this server's own.

use std::{path::Path, sync::atomic::Ordering::Relaxed};

use herdwick_slab::Growth;

use super::output::Stats;
use crate::{
    context::Context,
    net::{
        auth::Auth,
        tls::{self, Certificates},
    },
    settings::{config::Engine, listen_address::Listen, tls::Tls},
};

/// A setting: its name, and its value as text.
struct Setting {
    name: &'static str,
    read: fn(&Context) -> String,
}

/// Declares a table of [`Setting`]s, each a name and an expression of the context.
macro_rules! settings {
    (static $TABLE:ident; context $context:ident; $($name:ident = { $($value:tt)+ };)+) => {
        static $TABLE: &[Setting] = &[$(Setting {
            name: stringify!($name),
            read: |$context| {
                let _ = $context;
                { $($value)+ }.to_string()
            },
        }),+];
    };
}

settings! {
    static SETTINGS;
    context context;

    maxbytes = { context.tunables.memory.get() };
    maxconns = { context.limits.connections_max.load(Relaxed) };
    tcpport = { context.settings.port };
    udpport = { context.settings.udp_port };
    inter = { interfaces(&context.settings.listen) };
    domain_socket = { path_or(unix_path(&context.settings.listen), "NULL") };
    umask = { umask(&context.settings.listen) };
    verbosity = { context.tunables.verbosity.load(Relaxed) };
    oldest = { 0 };
    evictions = { if context.settings.lossless { "off" } else { "on" } };
    shutdown_command = { yes(context.settings.shutdown.is_some()) };
    num_threads = { context.settings.workers };
    num_threads_per_udp = { context.settings.workers };
    stat_key_prefix = { ":" };
    detail_enabled = { yes(context.tunables.detail.load(Relaxed)) };
    reqs_per_event = { context.settings.turn_requests };
    cas_enabled = { "yes" };
    tcp_backlog = { context.settings.backlog };
    auth_enabled_sasl = { yes(context.auth.as_ref().is_some_and(Auth::is_sasl)) };
    auth_enabled_ascii = { path_or(users_file(context), "no") };
    item_size_max = { context.settings.item_bytes_max };
    maxconns_fast = { yes(context.settings.refuse_at_once) };
    flush_enabled = { yes(context.settings.offers.flush) };
    dump_enabled = { yes(context.settings.offers.dump) };
    hash_algorithm = { "siphash13" };
    idle_timeout = { context.tunables.timeout().idle.unwrap_or_default().as_secs() };
    client_flags_size = { size_of::<u32>() };
    binding_protocol = { context.settings.protocol.name() };
    lru_crawler = { yes(context.tunables.crawler.is_enabled()) };
    lru_crawler_sleep = { context.tunables.crawler.sleep_us() };
    lru_crawler_tocrawl = { context.tunables.crawler.items_max() };

    // Of an engine without slabs: chunks of 8 bytes.
    growth_factor = { format!("{:.2}", growth(context).map_or(1.0, |growth| growth.factor)) };
    chunk_size = { growth(context).map_or(8, |growth| growth.smallest) };

    // Of memcached's machinery that does not exist here, with the values that memcached shows when it
    // is off.
    hashpower_init = { "0" };
    slab_reassign = { "no" };
    slab_automove = { "0" };
    slab_automove_ratio = { "0.00" };
    slab_automove_window = { "0" };
    slab_chunk_max = { "0" };
    tail_repair_time = { "0" };
    lru_maintainer_thread = { "no" };
    lru_segmented = { "no" };
    hot_lru_pct = { "0" };
    warm_lru_pct = { "0" };
    hot_max_factor = { "0.00" };
    warm_max_factor = { "0.00" };
    temp_lru = { "no" };
    temporary_ttl = { "0" };
    read_buf_mem_limit = { "0" };
    track_sizes = { "no" };
    inline_ascii_response = { "no" };
    drop_privileges = { "no" };
    watcher_logbuf_size = { "0" };
    worker_logbuf_size = { "0" };
    ext_item_size = { "0" };
    ext_item_age = { "0" };
    ext_low_ttl = { "0" };
    ext_recache_rate = { "0" };
    ext_wbuf_size = { "0" };
    ext_compact_under = { "0" };
    ext_drop_under = { "0" };
    ext_max_sleep = { "0" };
    ext_max_frag = { "0.00" };
    ext_drop_unread = { "no" };
    slab_automove_freeratio = { "0.000" };
    num_napi_ids = { "0" };

    // TLS; memcached shows them with or without it.
    ssl_enabled = { yes(tls(context).is_some()) };
    // "(null)" is what printf(3) makes of a null pointer: memcached checks some settings for one.
    ssl_chain_cert = { path_or(tls(context).map(|tls| &*tls.chain), "(null)") };
    ssl_key = { path_or(tls(context).map(|tls| &*tls.key), "(null)") };
    ssl_verify_mode = { tls(context).map_or(0, |tls| tls.clients as u8) };
    ssl_keyformat = { tls(context).map_or(1, |tls| tls.key_format as u8) };
    ssl_ciphers = { "NULL" };
    ssl_ca_cert = { path_or(tls(context).and_then(|tls| tls.authorities.as_deref()), "NULL") };
    ssl_wbuf_size = { tls::SENDING_BYTES };
    ssl_session_cache = { yes(tls(context).is_some_and(|tls| tls.session_cache)) };
    ssl_kernel_tls = { "no" };
    ssl_min_version = {
        let only_1_3 = tls(context).is_some_and(|tls| tls.only_1_3);
        if only_1_3 { "tlsv1.3" } else { "tlsv1.2" }
    };

    // This server's own.
    request_timeout = { context.tunables.timeout().request.as_secs() };
    spin_us = { context.settings.spin.as_micros() };
    hot_keys = { context.settings.hot_keys };
    latency = { yes(context.settings.latency.histograms) };
    slow_log_us = {
        let slow = context.settings.latency.slow;
        slow.map_or_else(|| "off".to_owned(), |slow| slow.as_micros().to_string())
    };
    memory_file = { path_or(context.settings.memory_file.as_deref(), "(null)") };
    one_sided_reads = { context.settings.one_sided_reads.name() };
}

/// `stats settings`.
pub(crate) fn settings(context: &Context, out: &mut Stats<'_>) {
    for setting in SETTINGS {
        out.add(setting.name, (setting.read)(context));
    }
}

/// Returns how the chunks of slabs grow, if the engine has slabs.
fn growth(context: &Context) -> Option<Growth> {
    let settings = &context.settings;
    (settings.engine == Engine::Slab).then_some(settings.growth)
}

fn tls(context: &Context) -> Option<&Tls> {
    context.certificates.as_ref().map(Certificates::files)
}

/// Returns the file of the users of the text protocol.
fn users_file(context: &Context) -> Option<&Path> {
    let auth = context.auth.as_ref().filter(|auth| !auth.is_sasl());
    auth.map(Auth::path)
}

fn interfaces(listen: &Listen) -> String {
    let Listen::Tcp(interfaces) = listen else {
        return "NULL".to_owned();
    };
    let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
    let hosts: Vec<String> = addresses.map(|it| it.ip().to_string()).collect();
    hosts.join(",")
}

fn unix_path(listen: &Listen) -> Option<&Path> {
    match listen {
        Listen::Tcp(_) => None,
        Listen::Unix { path, .. } => Some(path),
    }
}

fn umask(listen: &Listen) -> String {
    match listen {
        // memcached shows the default of `-a` without a unix socket, too.
        Listen::Tcp(_) => "700".to_owned(),
        Listen::Unix { mode, .. } => format!("{mode:o}"),
    }
}

fn path_or(path: Option<&Path>, none: &str) -> String {
    path.map_or_else(|| none.to_owned(), |path| path.display().to_string())
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        names.sort_unstable();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }
}
