//! Recovery of segments in a file: each run that was left is walked, and its live items are entered
//! in the index.

use herdwick_layout::{
    bucket::Offset,
    item::{ALIGN, Found, LINE, examine},
};
use herdwick_request::KeyHash;

use super::book::RunLeft;
use crate::store::Store;

/// Items with buckets that are prefetched together.
const TOGETHER: usize = 32;

impl Store {
    /// Recovers the items of all runs. Returns the damaged bytes.
    pub(crate) fn rebuild_segments(&mut self) -> u64 {
        self.resume_move();
        let (count, size) = (self.segments.count(), self.segments.size());
        let (mut damaged, mut end) = (0, count);
        for number in (0..count).rev() {
            match self.segments.book.run(number) {
                Ok(None) => continue,
                // A run in which another begins was being cut: what is before that is dead.
                Ok(Some(run)) if run.written > (end - number) * size => {
                    self.segments.book.cross_out(number);
                }
                // All of it is flushed.
                Ok(Some(run)) if run.sequence < self.segments.flushed() => {
                    self.segments.book.cross_out(number);
                }
                Ok(Some(run)) if run.first <= run.written => damaged += self.rebuild_run(&run),
                _ => {
                    damaged += size as u64;
                    self.segments.book.cross_out(number);
                }
            }
            end = number;
        }
        damaged
    }

    fn rebuild_run(&mut self, run: &RunLeft) -> u64 {
        let start = self.segments.start(run.number);
        self.segments.reopen(run);
        let (mut damaged, mut at) = (0, start + run.first);
        let end = start + run.written;
        let mut items = [(Offset::default(), KeyHash::default()); TOGETHER];
        while at < end {
            let mut count = 0;
            while count < TOGETHER && at < end {
                match examine(self.items.bytes(Offset(at), end - at)) {
                    Found::Item(len) => {
                        if !self.gone(Offset(at)) {
                            let hash = self.hash_key.hash(self.items.key(Offset(at)));
                            self.index.prefetch_first(hash);
                            items[count] = (Offset(at), hash);
                            count += 1;
                        }
                        at += len;
                    }
                    Found::Dead(len) => {
                        // A longer one was damage once: cleaning regains it.
                        if len < LINE && self.items.is_gap(Offset(at)) {
                            self.segments.restore_gap(run.number, len);
                        }
                        at += len;
                    }
                    Found::Damaged => at = self.mend(run.number, at, end, &mut damaged),
                }
            }
            for &(_, hash) in &items[..count] {
                self.index.prefetch_other_to_insert(hash);
            }
            for &(at, hash) in &items[..count] {
                self.enter_in_segment(at, hash);
            }
        }
        self.segments.close(run.number);
        damaged
    }

    /// Makes the damaged bytes at `at` a gap, up to the next beginning that was noted, or ends
    /// the run there. Returns where the walk continues.
    fn mend(&mut self, number: usize, at: usize, end: usize, damaged: &mut u64) -> usize {
        let next = self.segments.book.next_beginning(at, end);
        let next = next.filter(|next| next.is_multiple_of(ALIGN));
        *damaged += (next.unwrap_or(end) - at) as u64;
        match next {
            Some(next) => {
                self.items.put_gaps(at..next);
                next
            }
            None => {
                self.segments.shorten(number, at);
                end
            }
        }
    }

    /// Enters a live item. A kill between the copy of an item and the end of the old one leaves two;
    /// so does one while an item is replaced in a store that evicts nothing.
    fn enter_in_segment(&mut self, at: Offset, hash: KeyHash) {
        let items = &self.items;
        let other = self.index.find(hash, |it| items.is(it, items.key(at)));
        let header = self.items.header(at);
        let len = header.footprint();
        if let Some((place, other)) = other {
            let before = self.items.header(other);
            if before.version > header.version {
                return self.items.bury(at);
            }
            self.index.remove(place);
            self.counters.items -= 1;
            self.counters.bytes -= before.footprint() as u64;
            self.bury(other, before.footprint());
        }
        self.counters.items += 1;
        self.counters.bytes += len as u64;
        self.segments.restore(at, len);
        self.segments.note(at, header.deadline, header.bits, 0);
        // No request waits: it evicts only where nothing else helps.
        self.insert_by_chain(hash, at);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashMap,
        fs::File,
        os::unix::fs::FileExt,
        sync::{Arc, Mutex},
    };

    use crate::{Store, StoreConfig, test_file::nameless_file};
    use herdwick_layout::bucket::Offset;
    use herdwick_request::{
        Arith, Clock, Delete, Execute, Get, HashKey, Mode, Op, Put, Reply, Request, Second, Status,
    };

    const HASH_KEY: HashKey = HashKey([5, 6]);
    const CONFIG: StoreConfig = StoreConfig {
        memory_bytes: 184 << 10,
        item_bytes_max: 20 << 10,
        hash_key: HASH_KEY,
    };

    fn run(store: &mut Store, key: &[u8], op: Op<'_>) -> (Status, Option<Vec<u8>>) {
        let request = Request {
            hash: HASH_KEY.hash(key),
            key,
            op,
        };
        let clock = Clock {
            epoch_unix: 0,
            second: Second(1),
        };
        let mut answer = None;
        store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
            answer = Some((reply.status, reply.item.map(|item| item.value.to_vec())));
        });
        answer.unwrap()
    }

    type Model = HashMap<Vec<u8>, Vec<u8>>;

    /// A store in a file, of which each image that a kill may leave is kept.
    struct Watched {
        store: Store,
        model: Model,
        images: Arc<Mutex<Vec<Vec<u8>>>>,
        image: File,
        kills: usize,
    }

    impl Watched {
        fn new(lossless: bool) -> Self {
            let len = Store::file_bytes(&CONFIG).unwrap();
            let file = nameless_file(len);
            let (mut store, _) = Store::in_file(&CONFIG, &file, 0, false).unwrap();
            if lossless {
                store.evict_nothing();
            }
            let images = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&images);
            let file = Arc::new(file);
            let witness = move || {
                let mut image = vec![0; len as usize];
                file.read_exact_at(&mut image, 0).unwrap();
                seen.lock().unwrap().push(image);
            };
            store.items.witness = Some(Box::new(witness.clone()));
            store.segments.book.witness = Some(Box::new(witness));
            Self {
                store,
                model: Model::new(),
                images,
                image: nameless_file(len),
                kills: 0,
            }
        }

        /// Executes an operation, and recovers from each image that a kill in it may leave: the value
        /// of its key is the one before or the one after it, that of each other key as it was.
        fn step(&mut self, key: &[u8], op: Op<'_>) {
            let before = self.model.get(key).cloned();
            let (status, value) = run(&mut self.store, key, op);
            let after = match (&op, status) {
                (
                    Op::Delete(Delete {
                        invalidate: false, ..
                    }),
                    _,
                ) => None,
                (_, Status::Done) => value,
                // A plain Set that is refused removes the old value.
                (
                    Op::Put(Put {
                        mode: Mode::Set, ..
                    }),
                    _,
                ) => None,
                _ => before.clone(),
            };
            self.judge_all(key, [&before, &after]);
            match after {
                Some(value) => self.model.insert(key.to_vec(), value),
                None => self.model.remove(key),
            };
        }

        /// Stores a value that arrives in two pieces.
        fn step_staged(&mut self, key: &[u8], value: &[u8]) {
            let before = self.model.get(key).cloned();
            let staged = self.store.stage(Second(1), key, value.len());
            let (front, back) = value.split_at(value.len() / 2);
            self.store.append(staged, front);
            self.judge_all(key, [&before, &before]);
            self.store.append(staged, back);
            let put = Put {
                staged: Some(staged),
                ..Put::default()
            };
            self.step(key, Op::Put(put));
        }

        fn judge_all(&mut self, key: &[u8], either: [&Option<Vec<u8>>; 2]) {
            let images = std::mem::take(&mut *self.images.lock().unwrap());
            for bytes in images {
                self.image.write_all_at(&bytes, 0).unwrap();
                self.judge(key, either);
            }
        }

        fn judge(&mut self, key: &[u8], either: [&Option<Vec<u8>>; 2]) {
            self.kills += 1;
            let (mut again, recovered) = Store::in_file(&CONFIG, &self.image, 0, true).unwrap();
            assert_eq!(recovered.unwrap().damaged, 0);
            let mut items = 0;
            for n in 0..KEYS {
                let name = name(n);
                let found = run(&mut again, &name, Op::Get(Get::default())).1;
                items += u64::from(found.is_some());
                if found.is_none() && !self.store.lossless {
                    continue;
                }
                if name == key {
                    assert!(either.contains(&&found), "{n}: {found:?}");
                } else {
                    assert_eq!(found.as_ref(), self.model.get(&name), "{n}");
                }
            }
            assert_eq!(items, again.counters().items);
        }
    }

    const KEYS: usize = 70;

    fn name(n: usize) -> Vec<u8> {
        format!("key {n}").into_bytes()
    }

    /// Requests of each kind, on items of up to five segments; a third of the keys is left alone.
    fn kill_at_every_step(lossless: bool) -> Watched {
        let mut watched = Watched::new(lossless);
        let value = vec![b'v'; 20 << 10];
        let mut random = 7u64;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize % below
        };
        for n in 0..900 {
            let key = if n < KEYS {
                n
            } else {
                draw(KEYS / 3) * 3 + draw(2)
            };
            let len = match draw(8) {
                1..=4 if !lossless => 200 + draw(12_000),
                0 => 2_000 + draw(17_000),
                1..=4 => 200 + draw(1_800),
                _ => 300,
            };
            // A byte of the value shows which request stored it.
            let mut value = value[..len].to_vec();
            value[..8].copy_from_slice(&(n as u64).to_le_bytes());
            let put = Put {
                value: &value,
                ..Put::default()
            };
            let (delete, key) = (Delete::default(), name(key));
            let op = match draw(16) {
                0 => Op::Delete(delete),
                1 => Op::Put(Put {
                    mode: Mode::Append,
                    value: b"more",
                    ..put
                }),
                2 => Op::Get(Get {
                    touch: Some(1_000 + n as u32),
                    ..Get::default()
                }),
                3 => Op::Delete(Delete {
                    invalidate: true,
                    exptime: Some(2_000),
                    ..delete
                }),
                4 | 5 => Op::Put(Put {
                    value: if n % 2 == 0 { b"99" } else { b"41" },
                    ..put
                }),
                6..=8 => Op::Arith(Arith {
                    delta: 1,
                    ..Arith::default()
                }),
                9 | 10 => {
                    watched.step_staged(&key, &value);
                    continue;
                }
                _ => Op::Put(put),
            };
            watched.step(&key, op);
        }
        watched
    }

    /// Each image that a kill at any store of a word leaves. Seen to fail with an old item that ends
    /// before the new one is complete, a segment that is not crossed out when it is free, and an end
    /// that is moved before a copy is complete.
    #[test]
    fn kill_at_any_instant_loses_and_revives_nothing_in_a_store_that_evicts_nothing() {
        let watched = kill_at_every_step(true);
        let counters = watched.store.counters();
        assert!(
            counters.kept > 100 && watched.kills > 1_000,
            "{}",
            watched.kills
        );
        assert_eq!(counters.evictions, 0);
    }

    #[test]
    fn kill_at_any_instant_revives_nothing_in_a_cache() {
        let watched = kill_at_every_step(false);
        let counters = watched.store.counters();
        assert!(
            counters.evictions > 10 && watched.kills > 1_000,
            "{counters:?}"
        );
    }

    /// An item is deleted while the segment that it was copied from is not free yet. Seen to fail
    /// with an item that is not marked dead where it was copied from.
    #[test]
    fn item_that_was_copied_and_deleted_does_not_return() {
        let config = StoreConfig {
            memory_bytes: 4 << 20,
            ..CONFIG
        };
        let len = Store::file_bytes(&config).unwrap();
        let (file, image) = (nameless_file(len), nameless_file(len));
        let mut bytes = vec![0; len as usize];
        let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
        let (value, mut deleted) = ([b'v'; 300], 0);
        for n in 0..200_000 {
            let put = Put {
                value: &value[..100 + n * 7 % 200],
                ..Put::default()
            };
            run(&mut store, &name(n * 7_919 % 20_011), Op::Put(put));
            let Some(from) = store.cleaner.map(|walk| store.segments.start(walk.number)) else {
                continue;
            };
            let copied = store.items.key(Offset(from)).to_vec();
            if run(&mut store, &copied, Op::Delete(Delete::default())).0 != Status::Done {
                continue;
            }
            deleted += 1;
            file.read_exact_at(&mut bytes, 0).unwrap();
            image.write_all_at(&bytes, 0).unwrap();
            let (mut again, _) = Store::in_file(&config, &image, 0, true).unwrap();
            assert_eq!(run(&mut again, &copied, Op::Get(Get::default())).1, None);
            if deleted == 40 {
                break;
            }
        }
        assert_eq!(deleted, 40);
    }

    /// What is regained by cleaning is not room that is missing.
    #[test]
    fn damage_counts_as_a_gap_after_no_restart() {
        // Segments of 16 KiB: damage in one ends where the next 4 KiB begin.
        let config = StoreConfig {
            memory_bytes: 4 << 20,
            ..CONFIG
        };
        let file = nameless_file(Store::file_bytes(&config).unwrap());
        let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
        for n in 0..300 {
            let put = Put {
                value: &[b'v'; 100],
                ..Put::default()
            };
            run(&mut store, &name(n), Op::Put(put));
        }
        let first = store.segments.oldest().unwrap();
        let second = Offset(first.0 + store.items.step(first));
        store.items.value_mut(second)[0] ^= 1;
        drop(store);
        let reopen = || Store::in_file(&config, &file, 0, true).unwrap();
        let (store, recovered) = reopen();
        assert!(recovered.unwrap().damaged >= 100);
        let gaps = store.segments.gaps;
        drop(store);
        for _ in 0..2 {
            let (store, recovered) = reopen();
            assert_eq!((store.segments.gaps, recovered.unwrap().damaged), (gaps, 0));
        }
    }
}
