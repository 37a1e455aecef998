//! memcached's `-o`: a list of names, some with a value.

use herdwick_server::Network;

use super::tls::{self, TlsOption};

/// An extended option that means something here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    /// `maxconns_fast`, `no_maxconns_fast`.
    RefuseAtOnce(bool),
    /// `idle_timeout=SECONDS`; 0: none.
    IdleTimeout(u32),
    /// `request_timeout=SECONDS`.
    RequestTimeout(u32),
    /// `udp_trusted=NETWORK`.
    UdpTrusted(Network),
    /// `ssl_...`.
    Tls(TlsOption),
    /// One of memcached's that tunes what is not here.
    PassedOver,
}

/// What `--help` says of them.
pub(super) const HELP: &str = "\
Extended options, NAME or NAME=VALUE, several by commas:
  maxconns_fast      close connections beyond -c at once (on)
  no_maxconns_fast   let them wait unaccepted
  idle_timeout=S     close connections without a command for S seconds (0: never)
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
memcached's options for slabs, LRU and hash table are passed over: nothing is there to tune.";

/// Of memcached, with or without `no_` and value: they tune slabs, LRU, crawler, hash table,
/// logger and privileges.
const PASSED_OVER: [&str; 29] = [
    "hashpower",
    "hash_algorithm",
    "hashexpand",
    "tail_repair_time",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "slab_reassign",
    "slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_chunk_max",
    "slab_sizes",
    "track_sizes",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "read_buf_mem_limit",
    "resp_obj_mem_limit",
    "inline_ascii_resp",
    "modern",
    "drop_privileges",
    "relaxed_privileges",
    "sock_cookie_id",
];

/// Seconds that leave room for arithmetic.
const SECONDS_MAX: u32 = 1 << 30;

/// Reads one option.
pub(super) fn parse(text: &str) -> Result<Extended, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let seconds = |least| {
        let number = value.and_then(|value| value.parse::<u32>().ok());
        number
            .filter(|seconds| (least..=SECONDS_MAX).contains(seconds))
            .ok_or_else(|| format!("give {name}=SECONDS, from {least} on"))
    };
    match name {
        "maxconns_fast" => Ok(Extended::RefuseAtOnce(true)),
        "no_maxconns_fast" => Ok(Extended::RefuseAtOnce(false)),
        "idle_timeout" => seconds(0).map(Extended::IdleTimeout),
        "request_timeout" => seconds(1).map(Extended::RequestTimeout),
        "udp_trusted" => {
            let network = value.unwrap_or_default().parse();
            network.map(Extended::UdpTrusted)
        }
        name if PASSED_OVER.contains(&name.strip_prefix("no_").unwrap_or(name)) => {
            Ok(Extended::PassedOver)
        }
        name if name.starts_with("ext_") => {
            Err("items are kept in memory only; give more memory by -m".into())
        }
        name if name.starts_with("proxy_") => {
            Err("there is no proxy here; put memcached's before the port".into())
        }
        name if name.strip_prefix("no_").unwrap_or(name).starts_with("ssl_") => {
            let option = tls::parse(name, value)?;
            Ok(option.map_or(Extended::PassedOver, Extended::Tls))
        }
        _ => Err("no such option; `herdwick serve --help` lists them".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_done_passed_over_or_refused() {
        assert_eq!(parse("maxconns_fast"), Ok(Extended::RefuseAtOnce(true)));
        assert_eq!(parse("no_maxconns_fast"), Ok(Extended::RefuseAtOnce(false)));
        assert_eq!(parse("idle_timeout=0"), Ok(Extended::IdleTimeout(0)));
        assert_eq!(parse("request_timeout=5"), Ok(Extended::RequestTimeout(5)));
        for over in ["hashpower=20", "no_lru_crawler", "modern", "no_modern"] {
            assert_eq!(parse(over), Ok(Extended::PassedOver), "{over}");
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
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
