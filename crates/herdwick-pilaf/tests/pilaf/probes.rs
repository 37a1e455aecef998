//! READs for each GET, beside what the theory of cuckoo hashing says.

use crate::fixture::{Kept, key, seeded, server_options, shm};

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
