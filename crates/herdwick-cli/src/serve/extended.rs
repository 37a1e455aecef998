//! memcached's `-o`: extended options, a list of names, some with a value.

use herdwick_server::Network;

use crate::units;

use super::tls::{self, TlsOption};

/// An extended option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    /// `maxconns_fast`, `no_maxconns_fast`.
    RefuseAtOnce(bool),
    /// `idle_timeout=SECONDS`; 0: no timeout.
    IdleTimeout(u32),
    /// `request_timeout=SECONDS`.
    RequestTimeout(u32),
    /// `udp_trusted=NETWORK`.
    UdpTrusted(Network),
    /// `ssl_...`.
    Tls(TlsOption),
    /// An option of memcached without a function here, and why nothing is lost without it.
    PassedOver(String, &'static str),
}

/// Their text in `--help`.
pub(super) const HELP: &str = "\
Extended options, NAME or NAME=VALUE, several by commas:
  maxconns_fast      close connections beyond -c at once (on)
  no_maxconns_fast   let them wait unaccepted
  idle_timeout=S     close connections without a command for S seconds, or 15m, 1h (0: never)
  request_timeout=S  close connections in the middle of a command for S seconds (30)
  udp_trusted=NET    whole answers over UDP (-U) to addresses of NET, such as 10.0.0.0/8, as to
                     loopback; nobody outside may be able to forge them
  ssl_chain_cert=F   the server's certificate and its authorities', in PEM (for -Z)
  ssl_key=F          its private key, if not in the same file
  ssl_keyformat=K    PEM or DER (PEM)
  ssl_ca_cert=F      the authorities of clients' certificates, in PEM
  ssl_verify_mode=N  clients need no certificate (0), a right one or none (1), a right one (2)
  ssl_min_version=V  tlsv1.2 or tlsv1.3 (tlsv1.2)
  ssl_session_cache  let clients resume sessions
memcached's options for slabs, LRU, hash table and the sizes of buffers are passed over, with a word.";

const SLABS: &str = "there are no slab classes";
const LRU: &str = "there is no LRU; recency is two bits in each item";
const HASH: &str = "the index is sized by -m, once";
const LOG: &str = "the queues of watchers have fixed sizes";
const BUFFERS: &str = "buffers of connections have a bound of their own, see docs/operating.md";
const DEFAULT: &str = "it is so in any case";

/// Options of memcached (with or without `no_`, with or without a value) that tune something this
/// server does not have, and why nothing is lost without them.
const PASSED_OVER: [(&str, &str); 27] = [
    ("hashpower", HASH),
    ("hash_algorithm", HASH),
    ("hashexpand", HASH),
    ("tail_repair_time", LRU),
    ("lru_crawler", LRU),
    ("lru_crawler_sleep", LRU),
    ("lru_crawler_tocrawl", LRU),
    ("lru_maintainer", LRU),
    ("hot_lru_pct", LRU),
    ("warm_lru_pct", LRU),
    ("hot_max_factor", LRU),
    ("warm_max_factor", LRU),
    ("temporary_ttl", LRU),
    ("slab_reassign", SLABS),
    ("slab_automove", SLABS),
    ("slab_automove_ratio", SLABS),
    ("slab_automove_window", SLABS),
    ("slab_automove_freeratio", SLABS),
    ("slab_chunk_max", SLABS),
    ("slab_sizes", SLABS),
    ("track_sizes", "`stats sizes` is disabled"),
    ("watcher_logbuf_size", LOG),
    ("worker_logbuf_size", LOG),
    ("read_buf_mem_limit", BUFFERS),
    ("resp_obj_mem_limit", BUFFERS),
    ("inline_ascii_resp", DEFAULT),
    ("modern", DEFAULT),
];

/// Options of memcached that users rely on and that this server does not implement.
const REFUSED: [(&str, &str); 3] = [
    (
        "drop_privileges",
        "there is no seccomp filter in here; use the unit file's (SystemCallFilter=), or leave it out",
    ),
    (
        "relaxed_privileges",
        "there is no seccomp filter in here to relax; leave it out",
    ),
    (
        "sock_cookie_id",
        "sockets are not marked for packet filters; leave it out",
    ),
];

/// Returns those of `options` that are passed over, each name once, with the reason.
pub(super) fn passed_over(options: &[Extended]) -> impl Iterator<Item = (&str, &'static str)> {
    let over = |option| match option {
        &Extended::PassedOver(ref name, reason) => Some((name.as_str(), reason)),
        _ => None,
    };
    let earlier = move |at: usize, name: &str| {
        let mut before = options[..at].iter().filter_map(over);
        before.any(|(other, _)| other == name)
    };
    let all = options.iter().enumerate();
    all.filter_map(move |(at, option)| over(option).filter(|(name, _)| !earlier(at, name)))
}

/// Largest time, in seconds; leaves room for arithmetic.
const SECONDS_MAX: u32 = 1 << 30;

/// Parses one option.
pub(super) fn parse(text: &str) -> Result<Extended, String> {
    let text = text.trim();
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let seconds = |least| {
        let number = value.and_then(|value| units::seconds(value).ok());
        number
            .filter(|seconds| (least..=SECONDS_MAX).contains(seconds))
            .ok_or_else(|| format!("give {name}=SECONDS, from {least} on"))
    };
    let over = |reason| Extended::PassedOver(name.to_owned(), reason);
    match name {
        "maxconns_fast" => Ok(Extended::RefuseAtOnce(true)),
        "no_maxconns_fast" => Ok(Extended::RefuseAtOnce(false)),
        "idle_timeout" => seconds(0).map(Extended::IdleTimeout),
        "request_timeout" => seconds(1).map(Extended::RequestTimeout),
        "udp_trusted" => {
            let network = value.unwrap_or_default().parse();
            network.map(Extended::UdpTrusted)
        }
        name if name.starts_with("ext_") => {
            Err("items are kept in memory only; give more memory by -m".into())
        }
        name if name.starts_with("proxy_") => {
            Err("there is no proxy here; put memcached's before the port".into())
        }
        name if bare(name).starts_with("ssl_") => {
            let option = tls::parse(name, value)?;
            Ok(option.map_or_else(|| over(DEFAULT), Extended::Tls))
        }
        "no_drop_privileges" => Ok(over(DEFAULT)),
        name => match known(&REFUSED, name) {
            Some(reason) => Err(reason.into()),
            None => known(&PASSED_OVER, name)
                .map(over)
                .ok_or_else(|| "no such option; `herdwick serve --help` lists them".into()),
        },
    }
}

/// Returns the name without memcached's prefix `no_`.
fn bare(name: &str) -> &str {
    name.strip_prefix("no_").unwrap_or(name)
}

/// Returns the reason beside `name` in `table`.
fn known(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let mut rows = table.iter();
    rows.find_map(|(known, reason)| (*known == bare(name)).then_some(*reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_options_are_applied_ignored_or_refused() {
        assert_eq!(parse("maxconns_fast"), Ok(Extended::RefuseAtOnce(true)));
        assert_eq!(parse("no_maxconns_fast"), Ok(Extended::RefuseAtOnce(false)));
        assert_eq!(parse("idle_timeout=0"), Ok(Extended::IdleTimeout(0)));
        assert_eq!(parse("request_timeout=5"), Ok(Extended::RequestTimeout(5)));
        for over in ["hashpower=20", "no_lru_crawler", "modern", "no_modern"] {
            let parsed = parse(over);
            assert!(matches!(parsed, Ok(Extended::PassedOver(..))), "{over}");
        }
        for wrong in [
            "",
            "x",
            "idle_timeout",
            "idle_timeout=-1",
            "idle_timeout=4294967295",
            "request_timeout=0",
            "ext_path=/x:1G",
            "proxy_config=x",
            "udp_trusted",
            "udp_trusted=10.0.0.0/33",
            "ssl_ciphers=ALL",
            "drop_privileges",
            "relaxed_privileges",
            "sock_cookie_id=7",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
