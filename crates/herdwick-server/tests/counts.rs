//! What `stats` counts, whatever way a request came in.

mod common;

use common::{Memcached, ours, tcp};
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

/// Something of everything.
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

/// Text, shared memory, and memcached's text count the same work the same.
#[test]
fn every_way_in_is_counted_as_memcached_counts() {
    let text = Options {
        fabric: false,
        ..Options::default()
    };
    let server = ours(2);
    let address = tcp(&server).to_string();
    let mut client = Client::connect_with(&address, text).unwrap();
    work(&mut client);
    let by_text = counts(&mut client);

    let server = ours(2);
    let mut client = Client::connect(&tcp(&server).to_string()).unwrap();
    work(&mut client);
    assert_eq!(counts(&mut client), by_text, "by shared memory");

    if let Some(oracle) = Memcached::start() {
        let mut client = Client::connect_with(&oracle.address(), text).unwrap();
        work(&mut client);
        assert_eq!(by_text, counts(&mut client), "memcached");
    }
}

/// What has happened is forgotten, and what is there is not.
#[test]
fn a_reset_keeps_what_is_there() {
    let server = ours(2);
    let mut client = Client::connect(&tcp(&server).to_string()).unwrap();
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
