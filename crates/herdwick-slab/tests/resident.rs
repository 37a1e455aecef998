//! The memory that the kernel counts for a store stays within its limit when slabs go from small to large
//! chunks. The only test of its process.

use std::fs;

use herdwick_request::{Clock, Execute, HashKey, Op, Put, Reply, Request, Second, Status};
use herdwick_slab::{Growth, SlabConfig, Store};

const HASH_KEY: HashKey = HashKey([3, 4]);
const MEMORY_BYTES: usize = 64 << 20;

/// Returns the resident bytes of the process, as the kernel counts them.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kibibytes = line.unwrap().split_whitespace().nth(1).unwrap();
    kibibytes.parse::<usize>().unwrap() << 10
}

fn set(store: &mut Store, second: u32, key: u32, value: &[u8]) {
    let key = key.to_le_bytes();
    let clock = Clock {
        epoch_unix: 1_700_000_000,
        second: Second(second),
    };
    let request = Request {
        hash: HASH_KEY.hash(&key),
        key: &key,
        op: Op::Put(Put {
            value,
            ..Put::default()
        }),
    };
    store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
        assert_eq!(reply.status, Status::Done);
    });
}

#[test]
fn slabs_of_large_items_keep_nothing_of_the_small_ones_before() {
    stays_within_its_memory(|config| Store::new(config).unwrap());
    // The memory that clients READ, too.
    stays_within_its_memory(|config| Store::published(config).unwrap().0);
}

fn stays_within_its_memory(make: impl Fn(&SlabConfig) -> Store) {
    let before = resident();
    let mut store = make(&SlabConfig {
        memory_bytes: MEMORY_BYTES,
        item_bytes_max: 1 << 20,
        hash_key: HASH_KEY,
        growth: Growth {
            smallest: 8,
            ..Growth::default()
        },
    });
    let within = |what: &str| {
        let grown = resident() - before;
        // Beside the store: the value, and the pages of the test.
        assert!(grown < MEMORY_BYTES + (4 << 20), "{what}: {grown} bytes");
    };
    let mut key = 0;
    while store.counters().evictions == 0 {
        set(&mut store, 1, key, b"v");
        key += 1;
    }
    within("small items");
    let large = vec![b'v'; 700_000];
    for n in 0..300 {
        set(&mut store, 1000 + n, key + n, &large);
    }
    let counters = store.counters();
    assert!(counters.bytes > MEMORY_BYTES as u64 / 2, "{counters:?}");
    within("large items");
    assert_eq!(counters.returns_failed, 0);
}
