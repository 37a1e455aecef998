//! Recovery of damaged files: flipped bits and bytes never revive or alter an item, and cost few of the
//! others.

mod common;

use std::{collections::HashMap, fs::File, os::unix::fs::FileExt};

use common::{Answer, HASH_KEY, nameless_file};
use herdwick_check::Rng;
use herdwick_mica::{Recovered, Store, StoreConfig};
use herdwick_request::{Clock, Delete, Execute, Get, Op, Put, Reply, Request, Second};

/// Where the items begin in the file, behind two pages for the superblock and the words of segments.
const ITEMS: u64 = 8192;

const CONFIG: StoreConfig = StoreConfig {
    memory_bytes: 128 << 10,
    item_bytes_max: 12 << 10,
    hash_key: HASH_KEY,
};

fn run(store: &mut Store, second: u32, key: &[u8], op: Op<'_>) -> Answer {
    let request = Request {
        hash: HASH_KEY.hash(key),
        key,
        op,
    };
    let clock = Clock {
        epoch_unix: 0,
        second: Second(second),
    };
    let mut answer = None;
    store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
        answer = Some(Answer::from(reply));
    });
    answer.unwrap()
}

fn put(store: &mut Store, second: u32, key: &[u8], value: &[u8], exptime: u32) {
    let put = Put {
        value,
        exptime,
        ..Put::default()
    };
    run(store, second, key, Op::Put(put));
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Returns a value that contains complete old items, as bait for a walk that resumes in the middle
/// of a value.
fn value(n: u32, version: u32, old_items: &[u8]) -> Vec<u8> {
    let mut value = format!("value {version} of {n} ").into_bytes();
    let len = (n * 37 + version * 11) % 400;
    value.resize(value.len() + len as usize, b'v');
    value.resize(value.len().next_multiple_of(8), b'.');
    if n.is_multiple_of(10) {
        value.extend_from_slice(old_items);
    }
    value
}

/// The file that a store leaves behind, and the items that may be read from it at second 50.
struct Image {
    bytes: Vec<u8>,
    live: HashMap<Vec<u8>, Vec<u8>>,
}

const KEYS: u32 = 450;

impl Image {
    fn new() -> Self {
        let len = Store::file_bytes(&CONFIG).unwrap();
        let file = nameless_file(len);
        let (mut store, _) = Store::in_file(&CONFIG, &file, 0, false).unwrap();
        put(
            &mut store,
            1,
            &key(1),
            b"an old value, planted in others",
            0,
        );
        let mut old_items = [0; 80];
        file.read_exact_at(&mut old_items, ITEMS).unwrap();
        for n in 0..KEYS {
            put(&mut store, 2, &key(n), b"flushed", 0);
        }
        store.flush(Second(3), Second(3));
        for version in 0..8 {
            for n in 0..KEYS {
                let exptime = if n % 7 == 0 { 10 } else { 0 };
                let value = value(n, version, &old_items);
                put(&mut store, 4, &key(n), &value, exptime);
                if n % 5 == 0 {
                    run(&mut store, 4, &key(n), Op::Delete(Delete::default()));
                }
            }
        }
        let mut live = HashMap::new();
        for n in 0..KEYS {
            let get = Op::Get(Get::default());
            if let Some(value) = run(&mut store, 50, &key(n), get).value {
                live.insert(key(n), value);
            }
        }
        assert!(live.len() > 50 && store.counters().evictions > 100);
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        Self { bytes, live }
    }

    /// Asserts that a store recovered from `bytes` holds only valid items, and works. Returns how
    /// many items it has, if it found a store at all.
    fn judge(&self, file: &File, bytes: &[u8], what: &str) -> Option<(usize, Recovered)> {
        file.write_all_at(bytes, 0).unwrap();
        // One to three threads recover it.
        let threads = 1 + bytes.iter().map(|&byte| usize::from(byte)).sum::<usize>() % 3;
        let store = Store::in_file_by(&CONFIG, file, 0, true, threads);
        let (mut store, recovered) = store.unwrap();
        let mut found = 0;
        for n in 0..KEYS {
            let get = Op::Get(Get::default());
            let answer = run(&mut store, 50, &key(n), get);
            if answer.value.is_some() {
                found += 1;
                assert_eq!(answer.value.as_ref(), self.live.get(&key(n)), "{what}: {n}");
            }
        }
        for n in 0..500 {
            put(&mut store, 51, &key(n), &[b'x'; 300], 0);
            let get = Op::Get(Get::default());
            let answer = run(&mut store, 51, &key(n), get);
            assert_eq!(answer.value.as_deref(), Some(&[b'x'; 300][..]), "{what}");
        }
        Some((found, recovered?))
    }
}

/// Returns `HERDWICK_FLIPS`, or a count that takes a second.
#[expect(clippy::disallowed_methods, reason = "how long a test is to take")]
fn flips() -> u64 {
    let asked = std::env::var("HERDWICK_FLIPS").ok();
    asked.map_or(1000, |flips| {
        flips.parse().expect("HERDWICK_FLIPS is a count")
    })
}

#[test]
fn flipped_bit_returns_no_wrong_value() {
    let image = Image::new();
    let file = nameless_file(image.bytes.len() as u64);
    let whole = image.judge(&file, &image.bytes, "whole").unwrap();
    assert_eq!((whole.0, whole.1.damaged), (image.live.len(), 0));
    let (mut random, mut cold, mut lost) = (Rng::new(7), 0, 0);
    for _ in 0..flips() {
        let bit = random.bits() as usize % (image.bytes.len() * 8);
        let mut bytes = image.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match image.judge(&file, &bytes, &format!("bit {bit}")) {
            Some((found, _)) => lost += image.live.len() - found,
            None => cold += 1,
        }
    }
    // The marks are 40 of 120,000 bytes. A damaged item also loses the items behind it up to the
    // next 4 KiB, and a word of a segment all of that: at most a tenth of all, half of that on average.
    assert!(cold <= flips() / 100, "{cold} cold starts");
    let worst = flips() * image.live.len() as u64 / 10;
    assert!(
        (lost as u64) < worst,
        "{lost} items lost, {worst} were expected at worst"
    );
}

#[test]
fn damaged_range_returns_no_wrong_value() {
    let image = Image::new();
    let file = nameless_file(image.bytes.len() as u64);
    let mut random = Rng::new(9);
    for round in 0..flips() / 5 {
        let mut bytes = image.bytes.clone();
        let len = 1 + random.bits() as usize % 20_000;
        let at = random.bits() as usize % (bytes.len() - len);
        if round % 2 == 0 {
            bytes[at..at + len].fill(0);
        } else {
            bytes[at..at + len].fill_with(|| random.bits() as u8);
        }
        image.judge(&file, &bytes, &format!("{len} bytes at {at}, {round}"));
    }
}

fn config_of_large_items() -> StoreConfig {
    StoreConfig {
        memory_bytes: 4 << 20,
        item_bytes_max: 200 << 10,
        hash_key: HASH_KEY,
    }
}

/// A GET that changes nothing.
fn quiet() -> Op<'static> {
    Op::Get(Get {
        quiet_access: true,
        unaware: true,
        ..Get::default()
    })
}

/// Touched and stale items of several sizes are recovered as they were.
#[test]
fn touched_and_stale_items_are_recovered() {
    let config = config_of_large_items();
    let file = nameless_file(Store::file_bytes(&config).unwrap());
    let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
    let sizes = [0, 1, 100, 4000, 4100, 5000, 65_536, 150_001];
    let value = |n: usize| vec![n as u8; sizes[n]];
    let mut expected = Vec::new();
    for n in 0..sizes.len() {
        put(&mut store, 1, &key(n as u32), &value(n), 0);
        let touch = Get {
            touch: Some(100 + n as u32),
            ..Get::default()
        };
        run(&mut store, 2, &key(n as u32), Op::Get(touch));
        if n % 2 == 0 {
            let stale = Delete {
                invalidate: true,
                exptime: Some(50 + n as u32),
                ..Delete::default()
            };
            run(&mut store, 3, &key(n as u32), Op::Delete(stale));
        }
        expected.push(run(&mut store, 3, &key(n as u32), quiet()));
    }
    drop(store);
    let (mut store, recovered) = Store::in_file(&config, &file, 0, true).unwrap();
    let recovered = recovered.unwrap();
    assert_eq!(
        (recovered.items, recovered.damaged),
        (sizes.len() as u64, 0)
    );
    for (n, before) in expected.iter().enumerate() {
        let after = run(&mut store, 3, &key(n as u32), quiet());
        assert_eq!(&after, before, "{n}");
        assert_eq!((after.value, after.stale), (Some(value(n)), n % 2 == 0));
    }
}

/// A touch updates the checksum without reading the value, so earlier damage is still detected.
#[test]
fn touch_updates_the_checksum_without_reading_the_value() {
    let config = config_of_large_items();
    let file = nameless_file(Store::file_bytes(&config).unwrap());
    let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
    put(&mut store, 1, &key(1), &vec![7; 150_000], 0);
    file.write_all_at(&[8], ITEMS + 100_000).unwrap();
    let touch = Get {
        touch: Some(100),
        ..Get::default()
    };
    run(&mut store, 2, &key(1), Op::Get(touch));
    drop(store);
    let (mut store, recovered) = Store::in_file(&config, &file, 0, true).unwrap();
    assert!(recovered.unwrap().damaged >= 150_000);
    assert_eq!(
        run(&mut store, 2, &key(1), Op::Get(Get::default())).value,
        None
    );
}
