//! Readers of published memory, with stags that may be out of date: what they believe is what the key has.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use herdwick_check::{Rng, count};
use herdwick_layout::chunk::{HEAD_STAG, Mistrust, StoreHead, judge};
use herdwick_mem::{Span, Words};
use herdwick_request::{
    Clock, Execute, Get, HashKey, Mode, Op, Put, Reply, Request, Second, Status,
};
use herdwick_slab::{Growth, Publication, SlabConfig, Store, Tagged};

const HASH_KEY: HashKey = HashKey([1, 2]);

fn clock(second: u32) -> Clock {
    Clock {
        epoch_unix: 1_700_000_000,
        second: Second(second),
    }
}

fn store(memory_bytes: usize, item_bytes_max: usize) -> (Store, Publication) {
    Store::published(&SlabConfig {
        memory_bytes,
        item_bytes_max,
        hash_key: HASH_KEY,
        growth: Growth::default(),
    })
    .unwrap()
}

fn request<'a>(key: &'a [u8], op: Op<'a>) -> Request<'a> {
    let hash = HASH_KEY.hash(key);
    Request { hash, key, op }
}

fn run(store: &mut Store, second: u32, key: &[u8], op: Op<'_>) -> Status {
    let mut status = None;
    store.execute(clock(second), &[request(key, op)], &mut |_,
                                                            reply: &Reply<
        '_,
    >| {
        status = Some(reply.status);
    });
    status.unwrap()
}

fn tag(store: &mut Store, key: &[u8]) -> Option<Tagged> {
    store.tagged(&request(key, Op::Get(Get::default())))
}

/// Reads as a READ does: the place of the window, then the bytes there, and then the head.
struct Reader {
    words: Span,
    shift: u32,
}

impl Reader {
    fn read(&self, stag: u32, len: usize) -> Vec<u8> {
        let place = self.words.load_acquire(stag as usize) as usize;
        let mut bytes = vec![0; len.min(1 << self.shift)];
        self.words.read_bytes(place, &mut bytes);
        bytes
    }

    fn get(&self, tagged: Tagged, key: &[u8], now: Option<Second>) -> Result<Vec<u8>, Mistrust> {
        let mut len = tagged.len;
        loop {
            let chunk = self.read(tagged.stag, len);
            std::sync::atomic::fence(Ordering::Acquire);
            let head = StoreHead::read(&self.read(HEAD_STAG, StoreHead::BYTES)).unwrap();
            match judge(&chunk, head, tagged.stag, key, now) {
                Ok(header) => return Ok(chunk[header.front()..header.end()].to_vec()),
                Err(Mistrust::Longer(longer)) if longer > len => len = longer,
                Err(unsure) => return Err(unsure),
            }
        }
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// With all kinds of changes between READs, of items that come, change, move, expire and go.
#[test]
fn stale_stags_show_what_the_key_has_or_nothing() {
    const KEYS: u64 = 600;
    let (mut store, publication) = store(1 << 20, 8 << 10);
    let reader = Reader {
        words: publication.memory.words,
        shift: publication.shift,
    };
    let mut rng = Rng::new(7);
    let mut model: HashMap<u64, (Vec<u8>, u32)> = HashMap::new();
    // With the key's births: a stag is a key's from one birth to the next.
    let mut tags: HashMap<u64, Tagged> = HashMap::new();
    let (mut second, mut hits, mut others) = (1, 0, 0);
    for _ in 0..count("HERDWICK_SLAB_READS", 60_000) {
        let n = rng.below(KEYS);
        match rng.below(20) {
            0 => {
                run(&mut store, second, &key(n), Op::Delete(Default::default()));
                model.remove(&n);
            }
            1 if rng.below(50) == 0 => {
                store.flush(Second(second), Second(second));
                model.clear();
            }
            2 => second += rng.below(2) as u32,
            3 => {
                let put = Put {
                    mode: Mode::Append,
                    value: b"more",
                    ..Put::default()
                };
                let before = store.counters().evictions;
                if run(&mut store, second, &key(n), Op::Put(put)) == Status::Done
                    && store.counters().evictions == before
                    && let Some((value, _)) = model.get_mut(&n)
                {
                    value.extend_from_slice(b"more");
                } else {
                    run(&mut store, second, &key(n), Op::Delete(Default::default()));
                    model.remove(&n);
                }
            }
            4..10 => {
                let most = [16, 200, 7000][rng.index(3)];
                let value: Vec<u8> = (0..rng.below(most)).map(|i| (i * n) as u8).collect();
                let exptime = if rng.below(4) == 0 { 5 } else { 0 };
                let put = Put {
                    value: &value,
                    exptime,
                    ..Put::default()
                };
                run(&mut store, second, &key(n), Op::Put(put));
                let expires = if exptime > 0 {
                    second + exptime
                } else {
                    u32::MAX
                };
                model.insert(n, (value, expires));
            }
            _ => {
                let Some(tagged) = tags.get(&n).copied() else {
                    if let Some(tagged) = tag(&mut store, &key(n)) {
                        tags.insert(n, tagged);
                    }
                    continue;
                };
                match reader.get(tagged, &key(n), Some(Second(second))) {
                    Ok(value) => {
                        let (due, expires) = model.get(&n).expect("a key that is stored");
                        assert!(*expires > second);
                        assert_eq!(&value, due);
                        hits += 1;
                    }
                    Err(_) => {
                        others += 1;
                        tags.remove(&n);
                    }
                }
                // The clock that is not known.
                if model
                    .get(&n)
                    .is_some_and(|(_, expires)| *expires < u32::MAX)
                {
                    assert!(reader.get(tagged, &key(n), None).is_err());
                }
            }
        }
    }
    assert!(hits > 1_500 && others > 500, "{hits} {others}");
    assert!(store.counters().slabs_moved > 0, "{:?}", store.counters());
}

/// A key has one stag from its first SET to its deletion, whatever is stored and whatever slab it moves to.
#[test]
fn key_keeps_its_stag_while_it_is_stored() {
    let (mut store, publication) = store(64 << 20, 100 << 10);
    let reader = Reader {
        words: publication.memory.words,
        shift: publication.shift,
    };
    let mut rng = Rng::new(1);
    for n in 0..50 {
        run(&mut store, 1, &key(n), Op::Put(Put::default()));
    }
    let tags: Vec<Tagged> = (0..50).map(|n| tag(&mut store, &key(n)).unwrap()).collect();
    for turn in 0..2000 {
        let (n, len) = (rng.below(50), rng.below(50_000) as usize);
        let value = vec![turn as u8; len];
        let put = Put {
            value: &value,
            ..Put::default()
        };
        assert_eq!(run(&mut store, 1, &key(n), Op::Put(put)), Status::Done);
        let read = reader.get(tags[n as usize], &key(n), None);
        assert_eq!(read.map(|read| read == value), Ok(true), "turn {turn}");
    }
    assert_eq!(store.counters().evictions, 0);
}

/// A reader on another thread, beside a writer: values are whole, the key's, and no older than what was
/// acknowledged before the READ.
#[test]
fn readers_beside_a_writer_find_whole_values_no_older_than_acknowledged() {
    const KEYS: u64 = 8;
    let (mut store, publication) = store(2 << 20, 64 << 10);
    let reader = Reader {
        words: publication.memory.words,
        shift: publication.shift,
    };
    let value = |n: u64, version: u64| -> Vec<u8> {
        let words = 1 + (version * 37 + n) % 900;
        (0..words)
            .flat_map(|_| (version * KEYS + n).to_le_bytes())
            .collect()
    };
    let put = |store: &mut Store, n: u64, version: u64| {
        let value = value(n, version);
        let put = Put {
            value: &value,
            ..Put::default()
        };
        assert_eq!(run(store, 1, &key(n), Op::Put(put)), Status::Done);
    };
    (0..KEYS).for_each(|n| put(&mut store, n, 0));
    let tags: Vec<Tagged> = (0..KEYS)
        .map(|n| tag(&mut store, &key(n)).unwrap())
        .collect();
    let acknowledged: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, acknowledged, over) = (&mut store, &acknowledged, &over);
        scope.spawn(move || {
            let mut version = 0;
            while !over.load(Ordering::Relaxed) {
                version += 1;
                for n in 0..KEYS {
                    put(store, n, version);
                    acknowledged[n as usize].store(version, Ordering::Release);
                }
            }
        });
        let (mut rng, mut hits, mut last) = (Rng::new(3), 0, vec![0; KEYS as usize]);
        for _ in 0..count("HERDWICK_SLAB_READS", 60_000) {
            let n = rng.below(KEYS);
            let least = acknowledged[n as usize].load(Ordering::Acquire);
            let Ok(read) = reader.get(tags[n as usize], &key(n), None) else {
                continue;
            };
            hits += 1;
            let word = u64::from_le_bytes(*read.first_chunk().unwrap());
            let version = word / KEYS;
            assert_eq!(word % KEYS, n);
            assert!(version >= least, "{version} is older than {least}");
            assert!(version >= last[n as usize]);
            assert_eq!(read, value(n, version));
            last[n as usize] = version;
        }
        over.store(true, Ordering::Relaxed);
        assert!(hits > 1000, "{hits}");
    });
}
