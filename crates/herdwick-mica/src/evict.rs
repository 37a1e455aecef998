//! Eviction at the old end of the log: which items are released, and which are copied to the young
//! end. The work that one request pays for is bounded.

use herdwick_layout::{bucket::Offset, item::bit};
use herdwick_request::{Deadline, KeyHash};

use crate::{
    index::Place,
    log::Cursor,
    old_end::{LOOKAHEAD, Lookahead, Oldest},
    store::Store,
};

/// While live items take at most this part of the log, the log evicts none of them: live items at
/// the old end are copied to the young end, and only dead items are released. Above it the log is a
/// cache.
pub(crate) const SPARSE: (usize, usize) = (17, 20);
/// So that no single request pays for a long live stretch, the head of a sparse log runs ahead of
/// need: while less than this part of the log is free ...
const AHEAD: (usize, usize) = (1, 8);
/// ... it advances by this many times the bytes stored. While it crosses all the live items (17/20
/// of the log), 17/160 of the log is stored, less than is free at the beginning (1/8). Where dead
/// bytes lie among the live ones, less is free, and no stretch is that long.
const AHEAD_RATE: usize = 8;
/// The same for a store that evicts nothing: its live items take at most three quarters of the log.
const LOSSLESS_AHEAD: (usize, usize) = (1, 4);
const LOSSLESS_RATE: usize = 4;

/// An item that was used since it was last copied or stored gets a second chance at the old end: it
/// is copied to the young end, at the cost of one of its uses, of which two are counted. These
/// copies take at most this many times the bytes stored ...
const CHANCE_RATE: isize = 4;
/// ... of which an unused allowance accumulates up to this part of the log, but at least
/// [`CHANCES_AT_ONCE`]: a large item needs room that small ones have to be copied out of.
const SECOND_CHANCES_MAX: (usize, usize) = (1, 8);
/// No request pays for more copies than [`CHANCE_RATE`] times the bytes that it stores, this many
/// more, and one item.
const CHANCES_AT_ONCE: isize = 4 << 10;

/// Carrying a reservation along frees no room. So that no single request pays for reservations that
/// lie together, the head of a log that is a cache runs ahead, too: while less than the reserved
/// bytes divided by this is free ...
const CARRY_PART: usize = 4;
/// ... it advances by this many times the bytes stored, of which [`CHANCE_RATE`] may be second
/// chances. The bytes stored while it crosses all reservations are then no more than what was free;
/// and a put that needs more than half of that at once is at least an eighth of the reservations
/// left to cross.
pub(crate) const CARRY_RATE: usize = 8;

/// Returns `part.0 / part.1` of a window of the log, in bytes.
#[inline]
pub(crate) fn part_of(window: usize, part: (usize, usize)) -> usize {
    window / part.1 * part.0
}

/// Selects the live items that are copied to the young end when their room is released.
#[derive(Clone, Copy)]
pub(crate) enum Keep {
    None,
    /// The used ones, within the second-chance allowance ([`Chances`](crate::old_end::Chances)). The item named here is not
    /// released to make room for them.
    Used(Option<Offset>),
    /// All that are valid. One that does not fit into the free room is kept as a used one is.
    All(Option<Offset>),
}

impl Store {
    /// Grants the copying allowances for a put of `len` bytes: second chances, and reservations
    /// that may be moved.
    pub(crate) fn take_in(&mut self, len: usize) {
        let earned = len as isize * CHANCE_RATE;
        let most = (self.log.share(SECOND_CHANCES_MAX) as isize).max(CHANCES_AT_ONCE);
        self.chances.saved = (self.chances.saved + earned).min(most.max(earned));
        self.chances.at_once = earned + CHANCES_AT_ONCE;
        self.staging.may_move = len * CARRY_RATE + self.item_bytes_max;
    }

    /// Makes room for `len` bytes by releasing the oldest unused items, but neither the item at
    /// `stop` nor a younger one.
    pub(crate) fn let_go(&mut self, len: usize, stop: Option<Offset>) {
        while self.log.free() < self.log.needs(len) && !self.is_oldest(stop) {
            self.release_oldest(Keep::Used(stop));
        }
    }

    /// Returns whether the oldest item is the one at `stop`.
    fn is_oldest(&mut self, stop: Option<Offset>) -> bool {
        stop.is_some() && self.peek_oldest().map(|oldest| oldest.at) == stop
    }

    /// Advances the head by the multiple of `len` that [`Self::ahead_of_need`] returns, not past
    /// `stop`. If the last item overshoots, later puts advance the head by that much less.
    pub(crate) fn run_ahead(&mut self, len: usize, stop: Cursor) {
        let stays = self.log.next(&self.items, stop).map(|(at, _)| at);
        let Some((_, rate)) = self.ahead_of_need(len, stays) else {
            return;
        };
        self.ahead = self.ahead.min(0) + (len * rate) as isize;
        while self.ahead > 0
            && self.log.head().passed() < stop.passed()
            && let Some((keep, _)) = self.ahead_of_need(len, stays)
        {
            let from = self.log.head().passed();
            if self.lossless {
                if !self.clean_oldest() {
                    return;
                }
            } else {
                self.release_oldest(keep);
            }
            self.ahead -= (self.log.head().passed() - from) as isize;
        }
    }

    /// Returns what the walk keeps when it runs ahead for a put of `len` bytes, and by how many times
    /// the bytes stored it advances; `None` while enough is free.
    fn ahead_of_need(&self, len: usize, stays: Option<Offset>) -> Option<(Keep, usize)> {
        if self.lossless {
            let free = self.log.free();
            let needs = free < self.log.share(LOSSLESS_AHEAD);
            return needs.then_some((Keep::All(stays), LOSSLESS_RATE));
        }
        // Under a lowered limit, of the window that is still to be reached.
        let window = self.goal().min(self.log.window);
        let free = window.saturating_sub(self.log.used());
        let (ahead, carry) = (part_of(window, AHEAD), self.carry_room(window, len));
        if self.live() <= part_of(window, SPARSE).min(window - carry.min(window)) {
            (free < ahead.max(carry)).then_some((Keep::All(stays), AHEAD_RATE))
        } else {
            (free < carry).then_some((Keep::Used(stays), CARRY_RATE))
        }
    }

    /// Returns the bytes of `window` that are free before a put of `len` bytes runs ahead no
    /// longer. A window that a limit has left may be so small that one put takes what is free, and
    /// leaves nothing to the next ones, which cross the reservations: there it comes on top.
    fn carry_room(&self, window: usize, len: usize) -> usize {
        match self.staging.reserved {
            0 => 0,
            reserved if window < self.log.len() => reserved / CARRY_PART + len,
            reserved => reserved / CARRY_PART,
        }
    }

    /// Returns the bytes of live items and reservations.
    #[inline]
    pub(crate) fn live(&self) -> usize {
        self.counters.bytes as usize + self.staging.reserved
    }

    /// Releases the room of the oldest item. A live item is evicted, or copied to the young end as
    /// `keep` selects; a reservation is carried along.
    pub(crate) fn release_oldest(&mut self, keep: Keep) {
        let Some(Oldest { at, past, hash }) = self.oldest() else {
            return;
        };
        if self.items.header(at).has(bit::STAGED) {
            self.log.release(past);
            return self.carry(at, keep);
        }
        let Some((place, _)) = self.index.find(hash, |it| it == at) else {
            self.log.release(past);
            return;
        };
        // Judged before the release: that of the last item before the horizon ends the horizon, and
        // the item would be valid again.
        if self.gone(at) {
            self.index.remove(place);
            self.count_dropped(at);
            self.log.release(past);
            return;
        }
        let len = self.items.header(at).footprint();
        // Copy before release: a process killed in between leaves two copies of the item rather
        // than none. Where only the old place is free for it, a kill may lose the item; a lossless
        // store copies none before there is room for both.
        let copy_first = self.log.needs(len) <= self.log.free();
        if !copy_first {
            self.log.release(past);
        }
        let kept = match keep {
            Keep::None => false,
            Keep::Used(stop) => self.grant(hash, place, at, stop),
            // A large item may not fit at the physical end without releasing others.
            Keep::All(stop) => self.keep(hash, place, at) || self.grant(hash, place, at, stop),
        };
        if !kept {
            self.index.remove(place);
            self.count_dropped(at);
        }
        if copy_first {
            self.log.release(past);
        }
    }

    /// Copies the oldest item to the young end if it was used, at the cost of one use; returns
    /// whether it did.
    fn grant(&mut self, hash: KeyHash, place: Place, at: Offset, stop: Option<Offset>) -> bool {
        let header = self.items.header(at);
        let len = header.footprint();
        if !header.has(bit::USES) || self.chances.spent() || self.gone(at) {
            return false;
        }
        // The copy needs no more than the item has released, except that bytes are skipped at the
        // physical end.
        while self.log.free() < self.log.needs(len) && !self.is_oldest(stop) {
            self.release_oldest(Keep::None);
        }
        let Some(to) = self.copy_oldest(hash, place, at) else {
            return false;
        };
        self.items.header_mut(to).bits -= bit::USE;
        self.chances.spend(len);
        self.counters.refreshed += 1;
        true
    }

    fn keep(&mut self, hash: KeyHash, place: Place, at: Offset) -> bool {
        let kept = self.copy_oldest(hash, place, at).is_some();
        self.counters.kept += u64::from(kept);
        kept
    }

    /// Copies the oldest item to the young end, if it is valid and there is room without evicting
    /// another.
    fn copy_oldest(&mut self, hash: KeyHash, place: Place, at: Offset) -> Option<Offset> {
        let len = self.items.header(at).footprint();
        if self.gone(at) || self.log.needs(len) > self.log.free() {
            return None;
        }
        let to = self.log.reserve(&mut self.items, len);
        self.items.copy(at, len, to);
        self.log.commit();
        self.index.point(place, hash, to);
        Some(to)
    }

    fn oldest(&mut self) -> Option<Oldest> {
        let oldest = self.peek_oldest()?;
        self.lookahead.next += 1;
        Some(oldest)
    }

    pub(crate) fn peek_oldest(&mut self) -> Option<Oldest> {
        if self.lookahead.next == self.lookahead.len {
            self.fill_lookahead();
        }
        let Lookahead { items, next, len } = &self.lookahead;
        (*next < *len).then(|| items[*next])
    }

    fn fill_lookahead(&mut self) {
        let mut len = 0;
        let mut cursor = self.log.head();
        while len < LOOKAHEAD
            && let Some((at, past)) = self.log.next(&self.items, cursor)
        {
            let hash = self.hash_key.hash(self.items.key(at));
            self.index.prefetch_first(hash);
            self.lookahead.items[len] = Oldest { at, past, hash };
            len += 1;
            cursor = past;
        }
        self.lookahead.next = 0;
        self.lookahead.len = len;
    }

    pub(crate) fn count_dropped(&mut self, at: Offset) {
        let gone = self.gone(at);
        let header = self.items.header(at);
        let unfetched = u64::from(!header.has(bit::FETCHED));
        let counters = &mut self.counters;
        counters.items -= 1;
        counters.bytes -= header.footprint() as u64;
        if gone {
            counters.reclaimed += 1;
            counters.expired_unfetched += unfetched;
        } else {
            counters.evictions += 1;
            counters.evicted_unfetched += unfetched;
            counters.evicted_nonzero += u64::from(header.deadline() != Deadline::NEVER);
            self.record_eviction(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashMap,
        os::unix::fs::FileExt,
        sync::{Arc, Mutex},
    };

    use crate::{Store, StoreConfig, StoreKind, test_file::nameless_file};
    use herdwick_layout::item::{HEADER, checksum};
    use herdwick_request::{Clock, Execute, Get, HashKey, Mode, Op, Put, Reply, Request, Second};

    const HASH_KEY: HashKey = HashKey([5, 6]);

    fn run(store: &mut Store, key: &[u8], op: Op<'_>) -> bool {
        deadline(store, key, op).is_some()
    }

    fn deadline(store: &mut Store, key: &[u8], op: Op<'_>) -> Option<u32> {
        let request = Request {
            hash: HASH_KEY.hash(key),
            key,
            op,
        };
        let clock = Clock {
            epoch_unix: 0,
            second: Second(1),
        };
        let mut deadline = None;
        store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
            deadline = reply.item.map(|item| item.deadline.0);
        });
        deadline
    }

    fn store(memory_bytes: usize) -> Store {
        Store::new(&StoreConfig {
            memory_bytes,
            item_bytes_max: memory_bytes / 5,
            hash_key: HASH_KEY,
            kind: StoreKind::Log,
        })
        .unwrap()
    }

    /// Sets, appends and reads over keys and sizes that a counter spreads.
    fn work(store: &mut Store, count: usize) {
        let value = [b'v'; 500];
        for n in 0..count {
            let key = format!("key {}", n * n % 97);
            let (mode, len) = match n % 5 {
                0 => (Mode::Append, n % 20),
                _ => (Mode::Set, n * 7 % 500),
            };
            let put = Put {
                mode,
                value: &value[..len],
                ..Put::default()
            };
            run(store, key.as_bytes(), Op::Put(put));
            let other = format!("key {}", n % 97);
            run(store, other.as_bytes(), Op::Get(Get::default()));
        }
    }

    /// A scan of the log alone reproduces the index: the checksum of an item shows whether it has
    /// an entry.
    #[test]
    fn log_scan_reproduces_the_index() {
        let mut store = store(16 << 10);
        store.items.sums = true;
        work(&mut store, 10_000);
        let (mut items, mut bytes) = (0, 0);
        let mut cursor = store.log.head();
        while let Some((at, past)) = store.log.next(&store.items, cursor) {
            let header = store.items.header(at);
            let item = store.items.bytes(at, HEADER + header.payload());
            let hash = HASH_KEY.hash(store.items.key(at));
            let live = store.index.find(hash, |it| it == at).is_some();
            let sum = checksum(item);
            assert_eq!(header.crc(), if live { sum } else { !sum });
            if live {
                items += 1;
                bytes += header.footprint() as u64;
            }
            cursor = past;
        }
        let counters = store.counters();
        assert!(counters.evictions > 0 && counters.refreshed > 0);
        assert_eq!((items, bytes), (counters.items, counters.bytes));
    }

    #[test]
    fn sparse_log_keeps_untouched_items() {
        let mut store = store(64 << 10);
        for n in 0..300 {
            let key = format!("quiet {n}");
            run(&mut store, key.as_bytes(), Op::Put(Put::default()));
        }
        work(&mut store, 20_000);
        let counters = store.counters();
        assert!(
            counters.kept > 300,
            "each of them, lap after lap: {counters:?}"
        );
        for n in 0..300 {
            let key = format!("quiet {n}");
            assert!(
                run(&mut store, key.as_bytes(), Op::Get(Get::default())),
                "{n}"
            );
        }
    }

    /// Each item is read again before the head comes to it, so that it would be kept.
    #[test]
    fn memory_limit_is_reached_while_every_item_is_read() {
        const KEYS: u64 = 6_000;
        let mut store = Store::new(&StoreConfig {
            memory_bytes: 8 << 20,
            item_bytes_max: 10_000,
            hash_key: HASH_KEY,
            kind: StoreKind::Log,
        })
        .unwrap();
        let value = [b'v'; 1_000];
        let put = Op::Put(Put {
            value: &value,
            ..Put::default()
        });
        for n in 0..KEYS {
            run(&mut store, &n.to_le_bytes(), put);
        }
        store.leave_unused(4 << 20);
        let mut steps = 0;
        while store.adjust() {
            // Each moves the head by 256 KiB, of which half at least is free then.
            steps += 1;
            assert!(steps < 64, "the limit is not reached");
            for n in 0..KEYS {
                run(&mut store, &n.to_le_bytes(), Op::Get(Get::default()));
            }
        }
        assert!(store.log.used() <= 4 << 20, "{}", store.log.used());
    }

    /// A store that rewrites values with other sizes keeps every item while the live ones take up to
    /// 0.84 of the log.
    #[test]
    fn nothing_is_evicted_while_live_items_take_five_sixths_of_the_log() {
        const KEYS: usize = 4_000;
        // 32 bytes of header, 8 of key, 500 to 1,500 of value, 1,000 on average.
        let live = KEYS * (32 + 8 + 1_000);
        let mut store = store(live * 9 / 8 * 100 / 82);
        let value = [b'v'; 1_500];
        let mut random = 1u64;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize % below
        };
        for n in 0..20 * KEYS {
            let key = if n < KEYS { n } else { draw(KEYS) };
            let put = Put {
                value: &value[..500 + draw(1_001)],
                ..Put::default()
            };
            run(&mut store, format!("key {key:4}").as_bytes(), Op::Put(put));
        }
        let counters = store.counters();
        let live = counters.bytes as f64 / store.log.len() as f64;
        assert!((0.81..0.84).contains(&live), "{live}");
        assert_eq!((counters.items, counters.evictions), (KEYS as u64, 0));
    }

    /// Large values that are read are kept, as small ones are: a cache of 60 values of 10 KB, with
    /// as many that are read only once passing through it.
    #[test]
    fn a_large_value_that_is_read_outlives_those_that_are_not() {
        let mut store = store(1 << 20);
        let value = [b'v'; 10_000];
        let put = Op::Put(Put {
            value: &value,
            ..Put::default()
        });
        let mut misses = 0;
        for n in 0..3_000 {
            run(&mut store, format!("once {n}").as_bytes(), put);
            for key in [n % 60, (n + 30) % 60] {
                let key = format!("often {key}");
                if !run(&mut store, key.as_bytes(), Op::Get(Get::default())) {
                    misses += u32::from(n > 100);
                    run(&mut store, key.as_bytes(), put);
                }
            }
        }
        assert!(misses < 60, "{misses} of 5,798");
    }

    #[test]
    fn read_items_outlive_unread_items() {
        let mut store = store(64 << 10);
        let value = [0; 100];
        let put = Op::Put(Put {
            value: &value,
            ..Put::default()
        });
        let mut read = HashMap::new();
        for n in 0..50 {
            run(&mut store, format!("read {n}").as_bytes(), put);
            run(&mut store, format!("unread {n}").as_bytes(), put);
        }
        for n in 0..2_000 {
            run(&mut store, format!("new {n}").as_bytes(), put);
            let key = format!("read {}", n % 50);
            *read
                .entry(run(&mut store, key.as_bytes(), Op::Get(Get::default())))
                .or_insert(0) += 1;
        }
        assert_eq!(read, HashMap::from([(true, 2_000)]));
        for n in 0..50 {
            let key = format!("unread {n}");
            assert!(!run(&mut store, key.as_bytes(), Op::Get(Get::default())));
        }
    }

    #[test]
    fn item_of_a_fifth_of_the_log_is_kept_while_used() {
        let mut store = store(16 << 10);
        let value = [b'v'; 3 << 10];
        let put = |len| {
            Op::Put(Put {
                value: &value[..len],
                ..Put::default()
            })
        };
        run(&mut store, b"large", put(value.len()));
        for n in 10..10_000 {
            let small = format!("small {}", n % 100);
            run(&mut store, small.as_bytes(), put(n as usize % 200));
            let touch = Get {
                touch: Some(n),
                ..Get::default()
            };
            run(&mut store, b"large", Op::Get(touch));
            let read = deadline(&mut store, b"large", Op::Get(Get::default()));
            assert_eq!(read, Some(n + 1));
        }
        assert!(store.counters().refreshed > 10);
    }

    /// In a store that evicts nothing, untouched items are copied along the log lap after lap:
    /// after a kill at any step of that, recovery finds each of them.
    #[test]
    fn kill_while_items_are_copied_loses_no_item() {
        let config = StoreConfig {
            memory_bytes: 24 << 10,
            item_bytes_max: 1 << 10,
            hash_key: HASH_KEY,
            kind: StoreKind::Log,
        };
        let len = Store::file_bytes(&config).unwrap();
        let (file, image) = (nameless_file(len), nameless_file(len));
        let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
        store.evict_nothing();
        let quiet = |n: usize| format!("quiet {n}").into_bytes();
        for n in 0..50 {
            let value = [n as u8; 100];
            let put = Put {
                value: &value[..20 + n],
                ..Put::default()
            };
            assert!(run(&mut store, &quiet(n), Op::Put(put)));
        }
        let images = Arc::new(Mutex::new(Vec::new()));
        let (seen, watched) = (Arc::clone(&images), file.try_clone().unwrap());
        store.log.superblock.witness = Some(Box::new(move || {
            let mut image = vec![0; len as usize];
            watched.read_exact_at(&mut image, 0).unwrap();
            seen.lock().unwrap().push(image);
        }));
        let mut kills = 0;
        for n in 0..400 {
            let value = [b'v'; 300];
            let put = Put {
                value: &value[..n * 7 % 300],
                ..Put::default()
            };
            run(
                &mut store,
                format!("busy {}", n % 9).as_bytes(),
                Op::Put(put),
            );
            for bytes in images.lock().unwrap().drain(..) {
                kills += 1;
                image.write_all_at(&bytes, 0).unwrap();
                let (mut again, recovered) = Store::in_file(&config, &image, 0, true).unwrap();
                assert_eq!(recovered.unwrap().damaged, 0);
                assert_eq!(again.counters().evictions, 0);
                let mut found = 0;
                for n in 0..50 {
                    let get = Op::Get(Get::default());
                    found += usize::from(run(&mut again, &quiet(n), get));
                }
                assert_eq!(found, 50, "after {n} stores");
            }
        }
        assert!(store.counters().kept > 100 && kills > 1000, "{kills}");
    }
}
