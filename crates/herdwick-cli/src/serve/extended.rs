//! memcached's `-o`: extended options, a list of names, some with a value.

use std::time::Duration;

use herdwick_server::{Config, Network};

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
    /// `lru_crawler`, `no_lru_crawler`.
    Crawler(bool),
    /// `lru_crawler_sleep=MICROSECONDS`.
    CrawlerSleep(u32),
    /// `lru_crawler_tocrawl=ITEMS`; 0: all.
    CrawlerItems(u32),
    /// `no_modern`: memcached's defaults of old for the options that have an effect here.
    NoModern,
    /// `ssl_...`.
    Tls(TlsOption),
    /// An empty word, as in `-o idle_timeout=5,`.
    Empty,
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
                     loopback; no host outside may be able to forge them
  no_lru_crawler     refuse `lru_crawler crawl` and dumps of keys until `lru_crawler enable`
  lru_crawler_sleep=US    pause of a crawl after 1,000 items, in microseconds (100)
  lru_crawler_tocrawl=N   most items that a crawl checks (0: all)
  no_modern          no_maxconns_fast and no_lru_crawler
  ssl_chain_cert=F   the server's certificate and its authorities', in PEM (for -Z)
  ssl_key=F          its private key, if not in the same file
  ssl_keyformat=K    PEM or DER (PEM)
  ssl_ca_cert=F      the authorities of clients' certificates, in PEM
  ssl_verify_mode=N  clients need no certificate (0), a right one or none (1), a right one (2)
  ssl_min_version=V  tlsv1.2 or tlsv1.3 (tlsv1.2)
  ssl_session_cache  let clients resume sessions
memcached's options for slabs, LRU, hash table and the sizes of buffers are ignored, with a
warning; values that memcached refuses are refused.";

const SLABS: &str = "there are no slab classes, and those of --engine slab are not tuned by it";
const LRU: &str = "there is no LRU; each item has a few bits for how often it is used";
const HASH: &str = "the index grows with what it holds";
const LOG: &str = "the queues of watchers have fixed sizes";
const BUFFERS: &str = "buffers of connections have a bound of their own, see docs/operating.md";
const DEFAULT: &str = "it is so in any case";

/// The value that memcached takes for an option.
#[derive(Clone, Copy)]
enum Value {
    /// None; a given one is ignored.
    None,
    /// A whole number of this range.
    Number(i64, i64),
    /// As `Number`, or none.
    MaybeNumber(i64, i64),
    /// A number above 0 and up to this one.
    Share(f64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
}

const ANY_U32: Value = Value::Number(0, u32::MAX as i64);

/// Options of memcached (with or without `no_`) that tune something this server does not have, the
/// values that memcached takes, and why nothing is lost without them.
const PASSED_OVER: [(&str, Value, &str); 25] = [
    ("hashpower", Value::Number(12, 32), HASH),
    (
        "hash_algorithm",
        Value::Word(&["jenkins", "murmur3", "xxh3"]),
        HASH,
    ),
    ("hashexpand", Value::None, HASH),
    ("tail_repair_time", Value::Number(10, i32::MAX as i64), LRU),
    ("lru_maintainer", Value::None, LRU),
    ("hot_lru_pct", Value::Number(1, 79), LRU),
    ("warm_lru_pct", Value::Number(1, 79), LRU),
    ("hot_max_factor", Value::Share(f64::INFINITY), LRU),
    ("warm_max_factor", Value::Share(f64::INFINITY), LRU),
    (
        "temporary_ttl",
        Value::Number(i32::MIN as i64, i32::MAX as i64),
        LRU,
    ),
    ("slab_reassign", Value::None, SLABS),
    ("slab_automove", Value::MaybeNumber(0, 2), SLABS),
    ("slab_automove_ratio", Value::Share(1.0), SLABS),
    ("slab_automove_window", Value::Number(3, 1800), SLABS),
    ("slab_automove_freeratio", Value::Share(1.0), SLABS),
    ("slab_chunk_max", Value::Number(1, 1024), SLABS),
    ("slab_sizes", Value::Text, SLABS),
    ("chunked_items", Value::None, SLABS),
    ("track_sizes", Value::None, "`stats sizes` is disabled"),
    ("watcher_logbuf_size", ANY_U32, LOG),
    ("worker_logbuf_size", ANY_U32, LOG),
    ("read_buf_mem_limit", ANY_U32, BUFFERS),
    ("resp_obj_mem_limit", Value::None, BUFFERS),
    ("inline_ascii_resp", Value::None, DEFAULT),
    ("modern", Value::None, DEFAULT),
];

impl Value {
    /// Checks a value as memcached does; the error states what `name` takes.
    fn check(self, name: &str, value: Option<&str>) -> Result<(), String> {
        let number = value.and_then(|text| text.parse::<i64>().ok());
        let share = value.and_then(|text| text.parse::<f64>().ok());
        let (fits, wanted) = match self {
            Self::None => return Ok(()),
            Self::MaybeNumber(..) if value.is_none() => return Ok(()),
            Self::Number(least, most) | Self::MaybeNumber(least, most) => (
                number.is_some_and(|number| (least..=most).contains(&number)),
                format!("a number from {least} to {most}"),
            ),
            Self::Share(most) => (
                share.is_some_and(|share| share > 0.0 && share <= most),
                match most.is_finite() {
                    true => format!("a number above 0, up to {most}"),
                    false => "a number above 0".into(),
                },
            ),
            Self::Word(words) => (
                value.is_some_and(|word| words.contains(&word)),
                words.join(", "),
            ),
            Self::Text => (value.is_some(), "a value".into()),
        };
        match fits {
            true => Ok(()),
            false => Err(format!(
                "{name} takes {wanted} in memcached, and has no effect here; leave it out"
            )),
        }
    }
}

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

/// Returns those of `options` that are ignored, each name once, with the reason.
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

/// Longest pause of a crawl, in microseconds, as in memcached.
const SLEEP_US_MAX: u32 = 1_000_000;
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
    let number = |most| {
        let number = value.and_then(|value| value.parse().ok());
        number
            .filter(|number| *number <= most)
            .ok_or_else(|| format!("give {name}=NUMBER, from 0 to {most}"))
    };
    let over = |reason| Extended::PassedOver(name.to_owned(), reason);
    match name {
        "" if value.is_none() => Ok(Extended::Empty),
        "lru_crawler" => Ok(Extended::Crawler(true)),
        "no_lru_crawler" => Ok(Extended::Crawler(false)),
        "lru_crawler_sleep" => number(SLEEP_US_MAX).map(Extended::CrawlerSleep),
        "lru_crawler_tocrawl" => number(u32::MAX).map(Extended::CrawlerItems),
        "no_modern" => Ok(Extended::NoModern),
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
            let reason = match name {
                "ssl_wbuf_size" => "the sizes of TLS buffers are fixed",
                _ => DEFAULT,
            };
            Ok(option.map_or_else(|| over(reason), Extended::Tls))
        }
        // Ahead of `plain`, which would take it for the option without `no_`.
        "no_drop_privileges" => Ok(over(DEFAULT)),
        name => plain(name, value),
    }
}

/// Parses an option without an effect here.
fn plain(name: &str, value: Option<&str>) -> Result<Extended, String> {
    let is = |known: &str| known == bare(name);
    if let Some((_, reason)) = REFUSED.iter().find(|(known, _)| is(known)) {
        return Err((*reason).into());
    }
    let Some((_, takes, reason)) = PASSED_OVER.iter().find(|(known, ..)| is(known)) else {
        return Err("no such option; `herdwick serve --help` lists them".into());
    };
    if bare(name) == name {
        takes.check(name, value)?;
    }
    Ok(Extended::PassedOver(name.to_owned(), reason))
}

/// Returns the name without memcached's prefix `no_`.
fn bare(name: &str) -> &str {
    name.strip_prefix("no_").unwrap_or(name)
}

/// Returns the options of TLS.
pub(super) fn tls(options: &[Extended]) -> impl Iterator<Item = &TlsOption> {
    options.iter().filter_map(|option| match option {
        Extended::Tls(option) => Some(option),
        _ => None,
    })
}

/// Writes an option into the configuration.
pub(super) fn extend(config: &mut Config, option: &Extended) {
    let seconds = |count| Duration::from_secs(u64::from(count));
    match *option {
        Extended::RefuseAtOnce(refuse) => config.refuse_at_once = refuse,
        Extended::IdleTimeout(count) => {
            config.timeout.idle = (count > 0).then(|| seconds(count));
        }
        Extended::RequestTimeout(count) => config.timeout.request = seconds(count),
        Extended::Crawler(enabled) => config.crawler.enabled = enabled,
        Extended::CrawlerSleep(us) => {
            config.crawler.sleep = Duration::from_micros(u64::from(us));
        }
        Extended::CrawlerItems(items) => config.crawler.items_max = items,
        Extended::NoModern => {
            config.refuse_at_once = false;
            config.crawler.enabled = false;
        }
        Extended::Tls(_) | Extended::UdpTrusted(_) | Extended::Empty | Extended::PassedOver(..) => {
        }
    }
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
        assert_eq!(parse("no_lru_crawler"), Ok(Extended::Crawler(false)));
        assert_eq!(parse("lru_crawler_sleep=7"), Ok(Extended::CrawlerSleep(7)));
        assert_eq!(parse("no_modern"), Ok(Extended::NoModern));
        assert_eq!(parse(""), Ok(Extended::Empty));
        for over in [
            "hashpower=20",
            "no_lru_maintainer",
            "modern",
            "slab_automove",
        ] {
            let parsed = parse(over);
            assert!(matches!(parsed, Ok(Extended::PassedOver(..))), "{over}");
        }
        let Ok(Extended::PassedOver(_, reason)) = parse("ssl_wbuf_size=32") else {
            panic!("ignored");
        };
        assert!(reason.contains("fixed"), "{reason}");
        for wrong in [
            "=",
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
            "lru_crawler_sleep=1000001",
            "lru_crawler_tocrawl=-1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
