//! Classes that come late, or of large items, get memory that other classes do not use.

use herdwick_request::{Clock, Execute, HashKey, Op, Put, Reply, Request, Second, Status};
use herdwick_slab::{Growth, SlabConfig, Store};

const HASH_KEY: HashKey = HashKey([3, 4]);

fn store(memory_bytes: usize, item_bytes_max: usize) -> Store {
    Store::new(&SlabConfig {
        memory_bytes,
        item_bytes_max,
        hash_key: HASH_KEY,
        growth: Growth::default(),
    })
    .unwrap()
}

fn set(store: &mut Store, second: u32, key: &str, len: usize) -> Status {
    let clock = Clock {
        epoch_unix: 1_700_000_000,
        second: Second(second),
    };
    let value = vec![b'v'; len];
    let request = Request {
        hash: HASH_KEY.hash(key.as_bytes()),
        key: key.as_bytes(),
        op: Op::Put(Put {
            value: &value,
            ..Put::default()
        }),
    };
    let mut status = None;
    store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
        status = Some(reply.status);
    });
    status.expect("a reply")
}

/// Stores `count` items of one length, a thousand a second from second `from` on.
fn fill(store: &mut Store, from: u32, name: &str, (count, len): (usize, usize)) {
    for n in 0..count {
        let second = from + (n / 1000) as u32;
        assert_eq!(
            set(store, second, &format!("{name} {n}"), len),
            Status::Done
        );
    }
}

/// There are more classes than slabs: each slab has a class of its own before one class is busy.
#[test]
fn busy_class_gets_the_only_slabs_of_idle_ones() {
    let mut store = store(16 << 20, 1 << 20);
    let mut len = 20;
    while len < 400_000 {
        set(&mut store, 1, &format!("idle {len}"), len);
        len += len / 5;
    }
    fill(&mut store, 1000, "busy", (60_000, 1000));
    let counters = store.counters();
    assert!(counters.bytes > (16 << 20) / 2, "of 16 MB: {counters:?}");
}

/// A flushed item makes room for one of another class before an item that is live.
#[test]
fn flushed_items_of_another_class_go_before_live_ones() {
    for lossless in [false, true] {
        let mut store = store(16 << 20, 1 << 20);
        fill(&mut store, 1, "large", (20, 4000));
        let mut n = 0;
        while store.counters().evictions == 0 && n < 100_000 {
            set(&mut store, 1, &format!("small {n}"), 100);
            n += 1;
        }
        if lossless {
            store.evict_nothing();
        }
        let evictions = store.counters().evictions;
        store.flush(Second(2), Second(2));
        fill(&mut store, 2, "new", (2000, 4000));
        assert_eq!(store.counters().evictions, evictions, "{lossless}");
    }
}

/// A slab of small items becomes one of large items by the time that the large class has stored a slab.
#[test]
fn class_of_large_items_does_not_wait_for_a_slab() {
    let mut store = store(16 << 20, 1 << 20);
    fill(&mut store, 1, "large", (2, 300_000));
    fill(&mut store, 1, "small", (160_000, 20));
    let before = store.counters().slabs_moved;
    for n in 0..60 {
        set(&mut store, 10_000 + n, &format!("large {n}"), 300_000);
    }
    let moved = store.counters().slabs_moved - before;
    assert!(moved >= 5, "{moved} slabs for 60 items");
}
