//! READs for each GET, beside what the theory of cuckoo hashing says.

use std::collections::HashMap;

use herdwick_pilaf::{ClientOptions, layout::CuckooHash};
use herdwick_request::HashKey;

use crate::fixture::{Kept, join, key, seeded, server_options, shm};

/// Fills a table to 75 % and reads every key once.
#[test]
fn a_get_at_three_quarters_load_takes_2_6_reads() {
    const BUCKETS: u64 = 1 << 16;
    let mut world = shm(
        1,
        herdwick_pilaf::ServerOptions {
            load_percent: 76,
            extent_bytes: 16 << 20,
            ..server_options(BUCKETS)
        },
    );
    let keys = BUCKETS * 3 / 4;
    for n in 0..keys {
        world
            .server
            .store_mut()
            .put(&key(n), &[n as u8; 32])
            .unwrap();
    }
    let (mut next, mut found) = (0, 0);
    while found < keys {
        while next < keys && world.clients[0].1.client.get(&key(next), next).is_ok() {
            next += 1;
        }
        for (_, n, answer) in world.pass() {
            assert_eq!(answer, Kept::Value(vec![n as u8; 32]));
            found += 1;
        }
    }
    let counters = world.clients[0].1.client.read_counters();
    let reads = counters.reads as f64 / keys as f64;
    let bytes = counters.read_bytes as f64 / keys as f64;
    println!("{reads:.3} READs and {bytes:.1} bytes for each GET");
    // The paper: 1.6 probes and the extent; of 32 bytes each, and of key and value.
    assert!((2.6 * 0.97..2.6 * 1.03).contains(&reads), "{reads}");
    assert!(
        (bytes - (32.0 * (reads - 1.0) + 48.0)).abs() < 0.5,
        "{bytes}"
    );
}

#[test]
fn a_miss_takes_two_looks_at_three_places() {
    let (_, mut world) = seeded(1, 1, server_options(64));
    assert_eq!(world.get(0, &key(1)), Kept::Missing);
    assert_eq!(world.clients[0].1.client.read_counters().reads, 6);
}

#[test]
fn values_longer_than_a_client_reads_are_asked_for() {
    for read_value_max in [0, 100] {
        let (network, mut world) = seeded(1, 0, server_options(64));
        let options = ClientOptions {
            read_value_max,
            ..ClientOptions::default()
        };
        let client = join(&mut world.server, network.device(), &options);
        world.clients.push(client);
        for (len, asked) in [(read_value_max, 0), (read_value_max + 1, 1)] {
            let value = vec![7; len];
            assert_eq!(world.put(0, &key(1), &value), Kept::Done);
            assert_eq!(world.get(0, &key(1)), Kept::Value(value));
            let counters = world.clients[0].1.client.counters();
            assert_eq!(counters.fallbacks, asked, "{len} bytes");
        }
    }
}

/// Returns two keys with one tag, of which the second may be where the first one is stored.
fn same_tag(buckets: u64) -> [Vec<u8>; 2] {
    let hash = |n: u64| CuckooHash::of(&HashKey([3, 4]), &key(n));
    let mut seen = HashMap::new();
    let pairs = (0..1_000_000).filter_map(|n| Some((seen.insert(hash(n).tag(), n)?, n)));
    let mut meeting = pairs.filter(|(a, b)| {
        let [first, ..] = hash(*a).places(buckets);
        hash(*b).places(buckets).contains(&first)
    });
    let (a, b) = meeting.next().expect("some of a hundred pairs");
    [key(a), key(b)]
}

#[test]
fn keys_with_the_same_tag_are_two_keys() {
    let (_, mut world) = seeded(1, 1, server_options(8));
    let [a, b] = same_tag(8);
    assert_eq!(world.put(0, &a, b"of a"), Kept::Done);
    assert_eq!(world.get(0, &b), Kept::Missing);
    assert!(world.clients[0].1.client.counters().other_keys > 0);
    assert_eq!(world.put(0, &b, b"of b"), Kept::Done);
    assert_eq!(world.get(0, &a), Kept::Value(b"of a".to_vec()));
    assert_eq!(world.get(0, &b), Kept::Value(b"of b".to_vec()));
}
