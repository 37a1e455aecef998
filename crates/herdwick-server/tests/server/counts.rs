//! The counters of `stats`, which are the same whichever transport a request uses.

use crate::common::{Memcached, Peer, client, ours, patient, tcp};
use herdwick::{Client, Options, Ttl};

const COUNTED: [&str; 18] = [
    "cmd_get",
    "cmd_set",
    "cmd_touch",
    "get_hits",
    "get_misses",
    "delete_hits",
    "delete_misses",
    "incr_hits",
    "incr_misses",
    "decr_hits",
    "decr_misses",
    "cas_hits",
    "cas_misses",
    "cas_badval",
    "touch_hits",
    "touch_misses",
    "curr_items",
    "total_items",
];

fn counts(client: &mut Client) -> Vec<(&'static str, u64)> {
    let stats = client.stats("").unwrap();
    let value = |name: &str| {
        let (_, value) = stats.iter().find(|(other, _)| other == name).unwrap();
        value.parse().unwrap()
    };
    COUNTED.map(|name| (name, value(name))).into()
}

/// Runs commands of every kind.
fn work(client: &mut Client) {
    for n in 0..20 {
        client.set(format!("k{n}"), &b"1"[..]).unwrap();
        client.get(format!("k{}", 2 * n)).unwrap();
    }
    client.add("k1", &b"2"[..]).unwrap();
    client.append("k1", b"2").unwrap();
    client.append("none", b"2").unwrap();
    client.incr("k2", 1).unwrap();
    client.incr("none", 1).unwrap();
    client.decr("k3", 1).unwrap();
    client.decr("none", 1).unwrap();
    client.touch("k4", Ttl::Never).unwrap();
    client.touch("none", Ttl::Never).unwrap();
    client.delete("k5").unwrap();
    client.delete("k5").unwrap();
    let version = client.gets("k6").unwrap().unwrap().version;
    client.cas("k6", &b"3"[..], version).unwrap();
    client.cas("k6", &b"3"[..], version).unwrap();
    client.cas("none", &b"3"[..], version).unwrap();
}

/// Text, shared memory, and a stock memcached count the same commands alike.
#[test]
fn every_protocol_counts_as_memcached_does() {
    let text = Options {
        fabric: false,
        ..patient()
    };
    let server = ours(2);
    let address = tcp(&server).to_string();
    let mut client = Client::connect_with(&address, text.clone()).unwrap();
    work(&mut client);
    let by_text = counts(&mut client);

    let server = ours(2);
    let mut client = crate::common::client(&server);
    work(&mut client);
    assert_eq!(counts(&mut client), by_text, "by shared memory");

    if let Some(oracle) = Memcached::start() {
        let mut client = Client::connect_with(&oracle.address(), text).unwrap();
        work(&mut client);
        assert_eq!(by_text, counts(&mut client), "memcached");
    }
}

/// `mg` counts as a read; `me` does not.
#[test]
fn meta_commands_count_as_memcached_does() {
    let input =
        b"ms a 1\r\n1\r\nmg a v\r\nmg b v\r\nmg a T0\r\nma a\r\nmd b\r\nme a\r\nme b\r\nmn\r\n";
    let counts = |peer: &dyn Peer| {
        peer.say(&[input]);
        let stats = table(peer, "stats");
        // This server changes a number in place; the oracle does so only if no reply in flight
        // shows the old one, and otherwise stores a new item.
        let names = COUNTED.into_iter().filter(|name| *name != "total_items");
        let count = |name: &str| stats.iter().find(|(other, _)| other == name).cloned();
        let names = names.chain(["cmd_meta"]);
        names.map(|name| count(name).unwrap()).collect::<Vec<_>>()
    };
    let own = counts(&ours(2));
    let meta = own.iter().find(|(name, _)| name == "cmd_meta").unwrap();
    assert_eq!(meta.1, "2");
    if let Some(oracle) = Memcached::start() {
        assert_eq!(own, counts(&oracle));
    }
}

/// A reset zeroes the event counters and keeps the gauges.
#[test]
fn stats_reset_keeps_gauges() {
    let server = ours(2);
    let mut client = client(&server);
    work(&mut client);
    let before = client.stats("").unwrap();
    client.stats("reset").unwrap();
    for (name, count) in counts(&mut client) {
        let kept = name == "curr_items";
        let expected = before.iter().find(|(other, _)| kept && other == name);
        let expected = expected.map_or(0, |(_, value)| value.parse().unwrap());
        assert_eq!(count, expected, "{name}");
    }
}

/// A reset also zeroes the connections ever accepted, which no worker counts.
#[test]
fn stats_reset_zeroes_the_connections_accepted() {
    let text = Options {
        fabric: false,
        ..patient()
    };
    let after_reset = |address: &str| {
        let connect = |_| Client::connect_with(address, text.clone()).unwrap();
        let mut clients: Vec<_> = (0..3).map(connect).collect();
        for client in &mut clients {
            client.version().unwrap();
        }
        let total = |client: &mut Client| {
            let stats = client.stats("").unwrap();
            let found = stats.iter().find(|(name, _)| name == "total_connections");
            found.unwrap().1.parse::<u64>().unwrap()
        };
        assert!(total(&mut clients[0]) >= 3);
        clients[0].stats("reset").unwrap();
        total(&mut clients[0])
    };
    let own = after_reset(&tcp(&ours(2)).to_string());
    assert_eq!(own, 0);
    if let Some(oracle) = Memcached::start() {
        assert_eq!(own, after_reset(&oracle.address()));
    }
}

/// Every name in a stock memcached's `stats` exists here, with a value of the same type.
#[test]
fn stats_have_every_memcached_name() {
    let Some(oracle) = Memcached::start() else {
        return;
    };
    let server = ours(2);
    for peer in [&server as &dyn Peer, &oracle] {
        let said = peer.say(&[b"set a 0 0 1\r\n1\r\nget a\r\n"]);
        assert!(said.starts_with(b"STORED"));
    }
    for ask in ["stats", "stats items", "stats slabs", "stats settings"] {
        let (theirs, own) = (table(&oracle, ask), table(&server, ask));
        for (name, value) in theirs {
            if name.starts_with("ext_") || name.starts_with("ssl_") || ABSENT.contains(&&*name) {
                continue;
            }
            let found = own.iter().find(|(other, _)| *other == name);
            let (_, found) = found.unwrap_or_else(|| panic!("{ask}: no {name}"));
            let number = |text: &str| text.parse::<f64>().is_ok();
            let texts = ["version", "libevent", "inter", "domain_socket"];
            let same = number(&value) == number(found) || texts.contains(&&*name);
            assert!(same, "{ask}: {name} {found}, not {value}");
        }
    }
}

/// Names of memcached's own memory management, which does not exist here.
const ABSENT: [&str; 6] = [
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "slab_automove_freeratio",
    "num_napi_ids",
    "memory_file",
    "umask",
];

fn table(peer: &dyn Peer, ask: &str) -> Vec<(String, String)> {
    let said = String::from_utf8(peer.say(&[ask.as_bytes(), b"\r\n"])).unwrap();
    let rest = said.strip_suffix("END\r\n").unwrap();
    let line = |line: &str| {
        let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
        Some((name.to_owned(), value.to_owned()))
    };
    rest.lines().map(|text| line(text).unwrap()).collect()
}
