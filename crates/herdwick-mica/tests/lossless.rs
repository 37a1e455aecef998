//! A store that evicts nothing: the work that one request pays for.

mod common;

use common::{Answer, HASH_KEY};
use herdwick_mica::{Store, StoreConfig, StoreKind};
use herdwick_request::{Clock, Execute, Op, Put, Reply, Request, Second, Status};

const ITEM_BYTES_MAX: usize = 256 << 10;

fn set(store: &mut Store, key: u32, len: usize) -> Status {
    let clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };
    let key = key.to_le_bytes();
    let value = vec![b'v'; len];
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
        kind: StoreKind::Log,
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
