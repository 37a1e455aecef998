//! A store that evicts nothing: what it has room for, and the work that one request pays for.

mod common;

use common::{Answer, HASH_KEY};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{
    Arith, Clock, Delete, Execute, Get, Op, Put, Reply, Request, Second, Status,
};

const ITEM_BYTES_MAX: usize = 256 << 10;
/// Random histories of one test.
const SEEDS: u64 = 8;

fn set(store: &mut Store, key: u32, len: usize) -> Status {
    let clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };
    let value = vec![key as u8; len];
    let key = key.to_le_bytes();
    let put = Put {
        value: &value,
        ..Put::default()
    };
    let request = Request {
        hash: HASH_KEY.hash(&key),
        key: &key,
        op: Op::Put(put),
    };
    let mut status = None;
    store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
        status = Some(Answer::from(reply).status);
    });
    status.expect("each request has a reply")
}

/// A store that is full of its largest items copies a few of them at most for a small one.
#[test]
fn refused_put_copies_a_few_large_items_at_most() {
    let mut store = Store::new(&StoreConfig {
        memory_bytes: 32 << 20,
        item_bytes_max: ITEM_BYTES_MAX,
        hash_key: HASH_KEY,
    })
    .unwrap();
    store.evict_nothing();
    // Down to the last bytes, with ever smaller items.
    let (mut n, mut smaller, mut len) = (0, 0, ITEM_BYTES_MAX - 64);
    while len > 0 {
        n += 1;
        match set(&mut store, n, len) {
            Status::Done if len < ITEM_BYTES_MAX / 2 => smaller += 1,
            Status::Done => {}
            _ => len /= 2,
        }
    }
    assert!((1..=24).contains(&smaller), "{smaller} of {n}");
    for n in 10_000..10_100 {
        let before = store.counters().kept;
        assert_eq!(set(&mut store, n, 64), Status::OutOfMemory);
        let copied = store.counters().kept - before;
        assert!(
            copied <= smaller + 2,
            "{copied} copies, {smaller} of small items"
        );
    }
}

/// Values of up to many segments are replaced by others of any size: while the live ones leave 15 %
/// of the memory beside the index, none is refused or evicted, in a store that evicts nothing and in
/// one that may. Of items that are large for the memory, two have to fit beside the live ones.
#[test]
fn live_items_of_any_size_have_room() {
    const MEMORY_BYTES: usize = 16 << 20;
    let sizes = [(12, 73), (18, 73), (20, 68)];
    for (lossless, (bits, percent)) in [true, false]
        .into_iter()
        .flat_map(|lossless| sizes.map(|size| (lossless, size)))
    {
        let mut store = Store::new(&StoreConfig {
            memory_bytes: MEMORY_BYTES,
            item_bytes_max: 1 << bits,
            hash_key: HASH_KEY,
        })
        .unwrap();
        if lossless {
            store.evict_nothing();
        }
        let mut random = 1;
        let mut draw = |below: usize| {
            random = u64::wrapping_mul(random, 0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize % below
        };
        let (mut lens, mut live) = (std::collections::HashMap::new(), 0);
        for n in 0..if bits == 12 { 40_000 } else { 15_000 } {
            // Each of the largest magnitudes is as frequent.
            let most = 1 << (bits - 4 + draw(5));
            let len = most / 2 + draw(most / 2) - 64;
            let key = draw(MEMORY_BYTES >> (bits - 2)) as u32;
            let old = lens.get(&key).copied().unwrap_or(0);
            if live - old + len + 40 > MEMORY_BYTES / 100 * percent {
                continue;
            }
            live = live - old + len + 40;
            lens.insert(key, len + 40);
            assert_eq!(
                set(&mut store, key, len),
                Status::Done,
                "{bits}: {n}: {live}"
            );
            assert_eq!(store.counters().evictions, 0, "{bits}: {n}: {live}");
        }
        assert!(live > MEMORY_BYTES / 100 * (percent - 3), "{bits}: {live}");
    }
}

/// A cache holds more than fits, in values of up to many segments, of which those that are read
/// survive: each that is found is the one stored last under its key.
#[test]
fn values_of_many_segments_give_way_to_each_other_whole() {
    for seed in 1..=SEEDS {
        let mut store = Store::new(&StoreConfig {
            memory_bytes: 16 << 20,
            item_bytes_max: 1 << 20,
            hash_key: HASH_KEY,
        })
        .unwrap();
        let mut random = seed;
        let mut draw = |below: usize| {
            random = u64::wrapping_mul(random, 0x5851_f42d_4c95_7f2d).wrapping_add(seed);
            (random >> 33) as usize % below
        };
        let mut lens = std::collections::HashMap::new();
        for _ in 0..1500 {
            let most = 1 << (16 + draw(5));
            let len = most / 2 + draw(most / 2) - 64;
            let key = draw(150) as u32;
            assert_eq!(set(&mut store, key, len), Status::Done);
            lens.insert(key, len);
            for _ in 0..draw(6) {
                let key = draw(150) as u32;
                if let Some(found) = get(&mut store, key) {
                    assert_eq!(Some(found.len()), lens.get(&key).copied(), "seed {seed}");
                    assert!(found.iter().all(|byte| *byte == key as u8), "seed {seed}");
                }
            }
        }
    }
}

fn get(store: &mut Store, key: u32) -> Option<Vec<u8>> {
    let key = key.to_le_bytes();
    let clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };
    let request = Request {
        hash: HASH_KEY.hash(&key),
        key: &key,
        op: Op::Get(Get::default()),
    };
    let mut value = None;
    store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
        value = Answer::from(reply).value;
    });
    value
}

/// A cache's items have short headers. A store that evicts nothing, over the same file, is asked to give
/// each a deadline: it does, or says that it has no room, and keeps the item as it was.
#[test]
fn touches_of_a_cache_that_became_lossless_lose_nothing() {
    const KEYS: u32 = 45_000;
    let config = StoreConfig {
        memory_bytes: 4 << 20,
        item_bytes_max: 64 << 10,
        hash_key: HASH_KEY,
    };
    let file = common::nameless_file(Store::file_bytes(&config).unwrap());
    let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
    for key in 0..KEYS {
        assert_eq!(set(&mut store, key, 40), Status::Done);
    }
    let items = store.counters().items;
    drop(store);
    let (mut store, _) = Store::in_file(&config, &file, 0, true).unwrap();
    store.evict_nothing();
    assert_eq!(store.counters().items, items);
    let clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };
    let (mut done, mut refused) = (0, 0);
    for (n, touch) in (0..2 * KEYS).map(|n| (n % KEYS, (n < KEYS).then_some(1_000))) {
        let key = n.to_le_bytes();
        let request = Request {
            hash: HASH_KEY.hash(&key),
            key: &key,
            op: Op::Get(Get {
                touch,
                ..Get::default()
            }),
        };
        store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
            let answer = Answer::from(reply);
            match (answer.status, touch) {
                (Status::Done, Some(_)) => done += 1,
                (Status::OutOfMemory, Some(_)) => refused += 1,
                (Status::Done, None) => assert_eq!(answer.value, Some(vec![n as u8; 40])),
                (status, _) => assert_eq!(status, Status::NotFound),
            }
        });
    }
    let counters = store.counters();
    assert_eq!((counters.items, counters.evictions), (items, 0));
    assert!(done > 1_000 && refused > 1_000, "{done}, {refused}");
    assert_eq!(done + refused, items);
}

/// A store that evicts nothing, over a cache's file, is asked to add to counters with short headers, and
/// to give them a deadline at once: it does both or neither.
#[test]
fn refused_increment_with_a_deadline_changes_nothing() {
    const KEYS: u32 = 20_000;
    const OTHERS: u32 = 1 << 20;
    let config = StoreConfig {
        memory_bytes: 4 << 20,
        // So many segments are kept free for it that puts are refused for want of free ones.
        item_bytes_max: 800 << 10,
        hash_key: HASH_KEY,
    };
    let file = common::nameless_file(Store::file_bytes(&config).unwrap());
    let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
    let clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };
    let counter = |store: &mut Store, key: u32, op: Op<'_>| {
        let key = key.to_le_bytes();
        let hash = HASH_KEY.hash(&key);
        let mut answer = None;
        let request = [Request {
            hash,
            key: &key,
            op,
        }];
        store.execute(clock, &request, &mut |_, reply: &Reply<'_>| {
            answer = Some(Answer::from(reply));
        });
        answer.unwrap()
    };
    for key in 0..KEYS {
        let put = Put {
            value: b"5",
            ..Put::default()
        };
        counter(&mut store, key, Op::Put(put));
    }
    drop(store);
    let (mut store, _) = Store::in_file(&config, &file, 0, true).unwrap();
    store.evict_nothing();
    // Other items take the rest; one of them goes for each refusal.
    let mut others = OTHERS..OTHERS;
    while set(&mut store, others.end, 300) == Status::Done {
        others.end += 1;
    }
    let (mut done, mut refused) = (0, 0);
    for key in 0..KEYS {
        let arith = Arith {
            delta: 1,
            touch: Some(1_000),
            ..Arith::default()
        };
        let value = match counter(&mut store, key, Op::Arith(arith)).status {
            Status::Done => b"6",
            Status::OutOfMemory => b"5",
            status => {
                assert_eq!(status, Status::NotFound);
                continue;
            }
        };
        done += u32::from(value == b"6");
        if value == b"5" {
            let other = others.next().unwrap();
            counter(&mut store, other, Op::Delete(Delete::default()));
            refused += 1;
        }
        let found = counter(&mut store, key, Op::Get(Get::default())).value;
        assert_eq!(found.as_deref(), Some(&value[..]), "{key}");
    }
    assert!(done > 1_000 && refused > 50, "{done}, {refused}");
}
