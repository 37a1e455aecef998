//! Recovery of segments in a file: the runs that were left are walked over, several at a time, and their live
//! items are entered in the index. Threads do both, each with runs of its own, then with a part of the index of its
//! own: what they find of other runs, or that an item is dead, is carried out when all have ended.

mod fill;
mod walk;

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

use fill::{Filled, fill};
use herdwick_layout::bucket::Offset;
use walk::{Walked, WalkedRun, Walker};

use super::book::RunLeft;
use crate::store::Store;

/// Bytes of segments that a thread walks over before the items in them are entered: they are remembered, in 16 bytes
/// for each.
const ROUND: usize = if cfg!(test) { 128 << 10 } else { 8 << 20 };

impl Store {
    /// Recovers the items of all runs, by so many threads. Returns the damaged bytes.
    pub(crate) fn rebuild_segments(&mut self, threads: usize) -> u64 {
        self.resume_move();
        let (runs, mut damaged) = self.runs_left();
        for run in &runs {
            self.segments.reopen(run);
        }
        let mut walked: Vec<Walked> = Vec::new();
        walked.resize_with(threads, Walked::default);
        for runs in runs.chunks(threads * (ROUND / self.segments.size()).max(1)) {
            self.walk_runs(runs, &mut walked);
            damaged += self.restore_runs(&walked);
            // Only when all are counted: what is found twice is subtracted here.
            self.enter_items(&walked);
            for run in runs {
                self.segments.close(run.number);
            }
        }
        damaged
    }

    /// Returns the runs whose items may be live, the last one first, and the bytes of segments with damaged words.
    fn runs_left(&mut self) -> (Vec<RunLeft>, u64) {
        let (count, size) = (self.segments.count(), self.segments.size());
        let (mut runs, mut damaged, mut end) = (Vec::new(), 0, count);
        // From the last on, so that it is known where the next run begins.
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
                Ok(Some(run)) if run.first <= run.written => runs.push(run),
                _ => {
                    damaged += size as u64;
                    self.segments.book.cross_out(number);
                }
            }
            end = number;
        }
        (runs, damaged)
    }

    /// Walks over runs, each of `walked` over a few of them.
    fn walk_runs(&self, runs: &[RunLeft], walked: &mut [Walked]) {
        let walker = Walker {
            items: &self.items,
            book: &self.segments.book,
            segment_bytes: self.segments.size(),
            hash_key: self.hash_key,
            now: self.now,
            division: self.index.division(walked.len()),
        };
        let mut shares = runs.chunks(runs.len().div_ceil(walked.len()));
        let jobs = walked.iter_mut().map(|walked| {
            // Of fewer runs than threads some have none, and forget those of the last round.
            let runs = shares.next().unwrap_or_default();
            move || walker.walk_all(runs, walked)
        });
        in_threads(jobs.collect());
    }

    /// Counts what was found in runs, and turns damaged bytes into gaps, or ends the run where they begin. Returns
    /// the damaged bytes.
    fn restore_runs(&mut self, walked: &[Walked]) -> u64 {
        let mut damaged = 0;
        for run in walked.iter().flat_map(|walked| &walked.runs) {
            let WalkedRun {
                number,
                contents,
                damage,
                lost,
            } = run;
            for bytes in damage {
                damaged += bytes.len() as u64;
                self.items.put_gaps(bytes.clone());
            }
            if let Some(bytes) = lost {
                damaged += bytes.len() as u64;
                self.segments.shorten(*number, bytes.start);
            }
            self.counters.items += contents.items;
            self.counters.bytes += contents.bytes as u64;
            self.segments.restore(*number, contents);
        }
        damaged
    }

    /// Enters the items that were found.
    fn enter_items(&mut self, walked: &[Walked]) {
        let (items, segments) = (&self.items, &self.segments);
        // That of the walk, which has a list for each of its parts.
        let division = self.index.division(walked.len());
        let parts = self.index.parts(division).enumerate();
        let jobs = parts.map(|(n, part)| {
            let found = walked.iter().map(move |walked| walked.items_of(n));
            move || fill(part, found, items, |at| segments.age(at))
        });
        let filled = in_threads(jobs.collect());
        for Filled {
            added,
            dead,
            replaced,
        } in filled
        {
            self.index.count_added(added);
            for at in dead {
                self.drop_double(at);
            }
            for at in replaced {
                self.drop_loser(at);
            }
        }
    }

    /// Marks an item dead of which a later one, or a copy, was found.
    fn drop_double(&mut self, at: Offset) {
        let header = self.items.header(at);
        self.counters.items -= 1;
        self.counters.bytes -= header.footprint() as u64;
        self.bury(at, &header);
    }
}

/// Does the first job in this thread, and each other one in a thread of its own, or here where the system
/// starts no more threads. Returns their results in the same order.
fn in_threads<T: Send>(jobs: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
    // A thread that does not start drops what it was to run, so each job is taken from here.
    let jobs: Vec<_> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    thread::scope(|scope| {
        let start = |job| {
            thread::Builder::new()
                .spawn_scoped(scope, move || run_job(job))
                .ok()
        };
        let threads: Vec<_> = jobs.iter().skip(1).map(start).collect();
        let first = jobs.first().and_then(run_job);
        let others = threads.into_iter().zip(jobs.iter().skip(1));
        let others = others.filter_map(|(thread, job)| match thread {
            Some(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => run_job(job),
        });
        first.into_iter().chain(others).collect()
    })
}

/// Does a job that is not done yet.
fn run_job<T>(job: &Mutex<Option<impl FnOnce() -> T>>) -> Option<T> {
    let job = job.lock().unwrap_or_else(PoisonError::into_inner).take();
    job.map(|job| job())
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
    use herdwick_check::Rng;
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
            // By one thread, or by three.
            let threads = 1 + self.kills % 2 * 2;
            let again = Store::in_file_by(&CONFIG, &self.image, 0, true, threads);
            let (mut again, recovered) = again.unwrap();
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

    /// Returns the runs of a store, what the table knows of them, and the entries of the index.
    fn contents(store: &Store) -> (String, Vec<Vec<Offset>>) {
        let index = &store.index;
        let entries = (0..index.buckets()).map(|bucket| index.entries(bucket).collect());
        (format!("{:?}", store.segments.heads), entries.collect())
    }

    /// In several rounds, with items of all sizes and uses, copies, dead ones, expired ones, and damage. Seen to fail
    /// with threads that leave out a share of the runs, and with parts that are counted from a wrong bucket.
    #[test]
    fn several_threads_recover_what_one_does() {
        let config = StoreConfig {
            memory_bytes: 8 << 20,
            item_bytes_max: 400_000,
            ..CONFIG
        };
        let len = Store::file_bytes(&config).unwrap();
        let file = nameless_file(len);
        let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
        let value = vec![b'v'; 300_000];
        let mut rng = Rng::new(1);
        for n in 0..120_000 {
            let key = name(rng.index(40_000));
            let len = match rng.index(1_000) {
                0 => rng.index(300_000),
                1..=99 => rng.index(9_000),
                _ => rng.index(200),
            };
            let put = Put {
                value: &value[..len],
                exptime: if n % 5 == 0 { 100 } else { 0 },
                ..Put::default()
            };
            let op = match n % 7 {
                0 => Op::Delete(Delete::default()),
                1 | 2 => Op::Get(Get::default()),
                _ => Op::Put(put),
            };
            run(&mut store, &key, op);
        }
        assert!(store.counters().evictions > 0 && store.segments.count() > 200);
        store.tick(Second(101));
        drop(store);
        let mut image = vec![0; len as usize];
        file.read_exact_at(&mut image, 0).unwrap();
        for _ in 0..40 {
            image[rng.index(len as usize - (1 << 20)) + (1 << 20)] ^= 1;
        }
        let recover = |threads| {
            file.write_all_at(&image, 0).unwrap();
            let again = Store::in_file_by(&config, &file, 0, true, threads).unwrap();
            let mut after = vec![0; len as usize];
            file.read_exact_at(&mut after, 0).unwrap();
            (again, after)
        };
        let ((one, recovered), file_by_one) = recover(1);
        let (items, damaged) = recovered.map(|it| (it.items, it.damaged)).unwrap();
        assert!(items > 10_000 && damaged > 0, "{recovered:?}");
        let live: usize = one.segments.heads.iter().map(|head| head.live).sum();
        assert_eq!(live as u64, one.counters().bytes);
        for threads in 2..=9 {
            let ((several, by_several), file_by_several) = recover(threads);
            assert_eq!(by_several, recovered, "{threads}");
            assert_eq!(several.counters(), one.counters(), "{threads}");
            assert!(contents(&several) == contents(&one), "{threads}");
            assert!(file_by_several == file_by_one, "{threads}");
        }
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
