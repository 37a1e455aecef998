//! Executes requests of one kind on a store, in chunks, for tests/bench/store.sh, which counts the instructions.
//!
//!     requests KIND COUNT VALUE_BYTES
//!
//! The store has room for all items, and is filled before; for `evict` it has not. Keys are of 16 bytes. With `restart`
//! as kind it lies in a file, and COUNT items are found there again.

#![forbid(unsafe_code)]

#[path = "../tests/common/file.rs"]
mod test_file;

use std::fs::File;

use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{
    Clock, Delete, Execute, Get, HashKey, KeyHash, Op, Put, Reply, Request, Second, Status,
};
use test_file::nameless_file;

const HASH_KEY: HashKey = HashKey([1, 2]);
const CLOCK: Clock = Clock {
    epoch_unix: 1_700_000_000,
    second: Second(100),
};
const KEYS: usize = 100_000;
/// As many as a pass of a worker executes together.
const CHUNK: usize = 32;

/// A key with its hash: what computes hashes is not counted.
#[derive(Clone)]
struct Key([u8; 16], KeyHash);

impl Key {
    fn new(n: usize) -> Self {
        let mut key = [b'k'; 16];
        key[..8].copy_from_slice(&(n as u64).to_le_bytes());
        Self(key, HASH_KEY.hash(&key))
    }
}

/// Executes requests in chunks; returns how many were done. Callgrind counts what is called from here.
#[inline(never)]
fn execute_all(store: &mut Store, requests: &[Request<'_>]) -> usize {
    let mut done = 0;
    for chunk in requests.chunks(CHUNK) {
        store.execute(CLOCK, chunk, &mut |_, reply: &Reply<'_>| {
            done += usize::from(reply.status == Status::Done);
        });
    }
    done
}

/// Returns a request with an operation for each key.
fn requests<'a>(keys: &'a [Key], op: &Op<'a>) -> Vec<Request<'a>> {
    let request = |Key(key, hash): &'a Key| Request {
        hash: *hash,
        key,
        op: *op,
    };
    keys.iter().map(request).collect()
}

/// Recovers the items of a store in a file; returns how many.
#[inline(never)]
fn execute_all_again(config: &StoreConfig, file: &File) -> u64 {
    let (_, recovered) = Store::in_file(config, file, 0, true).expect("a store");
    recovered.expect("items").items
}

/// Fills a store in a file, and recovers its items.
fn restart(count: usize, value: &[u8]) {
    let config = StoreConfig {
        memory_bytes: count * (value.len() + 32) * 100 / 84,
        item_bytes_max: 64 << 10,
        hash_key: HASH_KEY,
    };
    let file = nameless_file(Store::file_bytes(&config).expect("bytes"));
    let (mut store, _) = Store::in_file(&config, &file, 0, false).expect("a store");
    let op = Op::Put(Put {
        value,
        ..Put::default()
    });
    for first in (0..count).step_by(KEYS) {
        let keys: Vec<Key> = (first..count.min(first + KEYS)).map(Key::new).collect();
        for chunk in requests(&keys, &op).chunks(CHUNK) {
            store.execute(CLOCK, chunk, &mut |_, _: &Reply<'_>| {});
        }
    }
    drop(store);
    let items = execute_all_again(&config, &file);
    println!("{items} of {count} found");
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, count, value_bytes] = &args[..] else {
        panic!("requests KIND COUNT VALUE_BYTES");
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (count, value) = (number(count), vec![b'v'; number(value_bytes)]);
    if kind == "restart" {
        return restart(count, &value);
    }
    // Just more than the part of it that live items take before any is evicted: the index is as full as in a store
    // that is nearly full.
    let room = KEYS * (value.len() + 32) * 100 / 84;
    let memory_bytes = if kind == "evict" { room / 4 } else { room };
    let mut store = Store::new(&StoreConfig {
        memory_bytes,
        item_bytes_max: 64 << 10,
        hash_key: HASH_KEY,
    })
    .expect("a store");
    let put = Op::Put(Put {
        value: &value,
        ..Put::default()
    });
    // In an order that is not that of the keys, the same each time.
    let order = |n: usize| n * 7_919 % KEYS;
    let keys: Vec<Key> = (0..KEYS).map(Key::new).collect();
    for request in requests(&keys, &put) {
        store.execute(CLOCK, &[request], &mut |_, _: &Reply<'_>| {});
    }
    let shuffled: Vec<Key> = (0..count).map(|n| keys[order(n)].clone()).collect();
    let (keys, op) = match kind.as_str() {
        "get" => (shuffled, Op::Get(Get::default())),
        "miss" => (
            (KEYS..KEYS + count).map(Key::new).collect(),
            Op::Get(Get::default()),
        ),
        "put" => (shuffled, put),
        "evict" => ((KEYS..KEYS + count).map(Key::new).collect(), put),
        "touch" => (
            shuffled,
            Op::Get(Get {
                touch: Some(10_000),
                ..Get::default()
            }),
        ),
        "delete" => (shuffled, Op::Delete(Delete::default())),
        _ => panic!("no kind of request: {kind}"),
    };
    let done = execute_all(&mut store, &requests(&keys, &op));
    println!("{done} of {count} done");
}
