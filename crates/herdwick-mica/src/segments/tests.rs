//! Tests of what one request may cost in a store of many segments, and of stores whose limits changed.

use std::sync::atomic::Ordering;

use herdwick_request::{
    Arith, Clock, Deadline, Delete, Execute, Get, HashKey, Op, Put, Reply, Request, Second, Status,
};

use super::{Segments, clean::Survivors, table::Kind};
use crate::{
    Store, StoreConfig,
    test_file::nameless_file,
    uses::{is_unread_copy, is_unused, weight},
};
use herdwick_layout::{
    bucket::{BLOCK, Offset},
    item::bit,
};

const HASH_KEY: HashKey = HashKey([5, 6]);

fn config(memory_bytes: usize, item_bytes_max: usize) -> StoreConfig {
    StoreConfig {
        memory_bytes,
        item_bytes_max,
        hash_key: HASH_KEY,
    }
}

/// Returns a store of so many segments of so many bytes.
fn store_of(count: usize, bytes: usize, item_bytes_max: usize) -> Store {
    let memory_bytes = (count * bytes * 5 / 4).max(1 << 20);
    let mut store = Store::new(&config(memory_bytes, item_bytes_max)).unwrap();
    assert!(count * bytes <= store.items.len());
    store.segments = Segments::new(count, bytes);
    // None of these segments is ceded.
    store.index_room = store.index.bytes_most();
    store
}

fn run(store: &mut Store, key: u32, op: Op<'_>) -> Status {
    let key = key.to_le_bytes();
    let request = Request {
        hash: HASH_KEY.hash(&key),
        key: &key,
        op,
    };
    let clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };
    let mut status = None;
    store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
        if let (Op::Get(_), Some(item)) = (&op, &reply.item) {
            assert!(item.value.iter().all(|byte| *byte == key[0]), "{key:?}");
        }
        status = Some(reply.status);
    });
    status.unwrap()
}

fn set(store: &mut Store, key: u32, len: usize) -> Status {
    let put = Put {
        value: &vec![key as u8; len],
        ..Put::default()
    };
    run(store, key, Op::Put(put))
}

fn get(store: &mut Store, key: u32) -> Status {
    run(store, key, Op::Get(Get::default()))
}

fn delete(store: &mut Store, key: u32) -> Status {
    run(store, key, Op::Delete(Delete::default()))
}

/// Numbers that look random.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// Checks the table, segment by segment, and the counters against the items that the index holds.
fn audit(store: &Store) {
    let (mut live, mut items) = (vec![0; store.segments.heads.len()], 0);
    for bucket in 0..store.index.buckets() {
        for at in store.index.entries(bucket) {
            let key = store.items.key(at);
            let found = store.index.find(HASH_KEY.hash(key), |it| it == at);
            assert!(found.is_some(), "an entry of another key");
            let number = store.segments.number(at);
            live[number] += store.items.header(at).footprint();
            items += 1;
        }
    }
    let heads = store.segments.heads.iter().map(|head| head.live);
    assert!(heads.eq(live.iter().copied()), "live bytes of segments");
    let bytes = live.iter().sum::<usize>() as u64;
    let counters = store.counters();
    assert_eq!((counters.items, counters.bytes), (items, bytes));
    let (free, withheld) = store.segments.recount();
    assert_eq!(
        (store.segments.free, store.segments.withheld),
        (free, withheld)
    );
}

/// In a table of two thousand segments, few of which are free, an item of many segments moves as many
/// bytes as in a small one.
#[test]
fn gathering_moves_no_more_in_a_large_store() {
    const SEGMENT: usize = 4 << 10;
    const SPAN: usize = 4;
    for lossless in [false, true] {
        let mut store = store_of(2000, SEGMENT, SPAN * SEGMENT);
        if lossless {
            store.evict_nothing();
        }
        let (mut draw, mut lens) = (Draw(3), vec![0; 40_000]);
        let (mut live, mut most, mut refused) = (0, 0, 0);
        for n in 0..60_000 {
            let len = match n % 200 {
                0 => (SPAN - 1) * SEGMENT + draw.below(SEGMENT - 100),
                n if n % 20 == 0 => SEGMENT + draw.below(SEGMENT),
                _ => 100 + draw.below(300),
            };
            let key = draw.below(lens.len());
            if lossless && live - lens[key] + len > 2000 * SEGMENT / 100 * 80 {
                continue;
            }
            let before = store.copies.gathered;
            let done = set(&mut store, key as u32, len) == Status::Done;
            most = most.max(store.copies.gathered - before);
            refused += usize::from(!done);
            live = live - lens[key] + len + 40;
            lens[key] = len + 40;
        }
        audit(&store);
        assert_eq!(refused, 0);
        assert_eq!(store.counters().evictions == 0, lossless);
        assert!(store.copies.gathered > 0);
        assert!(most <= 16 * SPAN * SEGMENT, "{most}");
    }
}

/// Live items take four fifths of a store that evicts nothing, and dead ones lie together in a small
/// part of its table: they are found.
#[test]
fn dead_bytes_are_found_wherever_they_are() {
    const SEGMENT: usize = 512;
    let mut store = store_of(40_000, SEGMENT, SEGMENT);
    // As many items as fit: four a segment, of which one stays in a quarter of the segments.
    let mut stored = 0;
    while store.segments.free > 5 {
        set(&mut store, stored, 92);
        stored += 1;
    }
    store.evict_nothing();
    for key in stored * 6 / 10..stored * 85 / 100 {
        if !key.is_multiple_of(4) {
            delete(&mut store, key);
        }
    }
    assert!(store.segments.free < 10, "{}", store.segments.free);
    audit(&store);
    let part = store.live() as f64 / store.segments.usable() as f64;
    assert!((0.75..0.85).contains(&part), "{part}");
    for key in 0..500 {
        assert_eq!(set(&mut store, stored + key, 92), Status::Done, "{key}");
    }
    assert_eq!(store.counters().evictions, 0);
}

/// A put of a small item into a store that evicts nothing does not search the table for a free
/// segment, as long as enough are free.
#[test]
fn small_items_are_stored_without_a_search() {
    let mut store = store_of(40_000, 512, 512);
    store.evict_nothing();
    let before = store.segments.looked.load(Ordering::Relaxed);
    for key in 0..100_000 {
        assert_eq!(set(&mut store, key, 92), Status::Done);
    }
    let looked = store.segments.looked.load(Ordering::Relaxed) - before;
    assert!(looked <= 64 * 100_000, "{looked}");
}

/// A window for few segments is searched for behind the last place of one for many.
#[test]
fn windows_of_any_span_are_searched_for_after_one_another() {
    for count in [2049, 2050, 4099, 6144] {
        let mut segments = Segments::new(count, 4 << 10);
        for span in [2, 5, 1, 8, 2, 5] {
            assert!(segments.choose_window(span, false).is_some(), "{count}");
        }
    }
}

/// Returns a store of runs of items of five segments, of which every second is dead.
fn store_of_half_dead_runs() -> Store {
    const SEGMENT: usize = 4 << 10;
    let mut store = store_of(1600, SEGMENT, 5 * SEGMENT);
    for key in 0..300 {
        assert_eq!(set(&mut store, key, 5 * SEGMENT - 200), Status::Done);
    }
    (0..300).filter(|key| key % 2 == 1).for_each(|key| {
        delete(&mut store, key);
    });
    store
}

/// A limit is reached in a store whose dead bytes lie between large items.
#[test]
fn limit_is_reached_between_large_items() {
    for lossless in [false, true] {
        let mut store = store_of_half_dead_runs();
        if lossless {
            store.evict_nothing();
        }
        let third = store.segments.count() / 3 * store.segments.size();
        store.leave_unused(third);
        let steps = (0..10_000).take_while(|_| store.adjust()).count();
        assert!(steps < 10_000);
        assert_eq!(store.segments.withheld, store.segments.withhold);
        assert_eq!(store.counters().evictions, 0);
        audit(&store);
    }
}

/// Under a limit that was set while the store was empty, values of many segments are stored without
/// the memory that the limit withholds.
#[test]
fn runs_leave_the_memory_that_a_limit_withholds() {
    const SEGMENT: usize = 4 << 10;
    let mut store = store_of(6000, SEGMENT, 4 * SEGMENT);
    store.leave_unused(5000 * SEGMENT);
    while store.adjust() {}
    let taken = |store: &Store| store.segments.withheld_since(0);
    assert_eq!(taken(&store), 5000);
    let mut draw = Draw(9);
    for n in 0..100_000 {
        let len = match n % 500 {
            0 => 3 * SEGMENT + draw.below(SEGMENT / 2),
            _ => 100 + draw.below(300),
        };
        assert_eq!(
            set(&mut store, draw.below(40_000) as u32, len),
            Status::Done
        );
        assert_eq!(taken(&store), 5000);
    }
    audit(&store);
}

/// A limit that is lifted gives segments back in steps, each of which looks at few of them.
#[test]
fn lifting_a_limit_takes_bounded_steps() {
    const COUNT: usize = 1 << 16;
    let mut segments = Segments::new(COUNT, 4 << 10);
    segments.withhold_all_but(100);
    let (mut looked, mut most) = (0, 0);
    while segments.withheld > 0 {
        let at_once = segments.restore_one();
        (looked, most) = (looked + at_once, most.max(at_once));
    }
    assert!(looked <= 3 * COUNT, "{looked}");
    let mut store = store_of(8000, 512, 512);
    store.leave_unused(7000 * 512);
    while store.adjust() {}
    store.leave_unused(0);
    let (mut steps, mut before) = (0, store.segments.withheld);
    while store.adjust() {
        steps += 1;
        assert!(before - store.segments.withheld <= 1024, "one step");
        before = store.segments.withheld;
    }
    assert!(steps >= 6 && store.segments.withheld == 0, "{steps}");
    audit(&store);
}

/// The file of a full cache is opened by a store that evicts nothing, of which most small items are
/// deleted then. What is left of the memory is found, although few segments are free and values of
/// many segments lie between the small ones.
#[test]
fn full_cache_goes_on_as_a_store_that_evicts_nothing() {
    let config = config(1 << 20, 52 << 10);
    let file = nameless_file(Store::file_bytes(&config).unwrap());
    let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
    let mut draw = Draw(7);
    // Three values of many segments at a time lie in one run; of these, the first is used.
    let large = |n: u32| (1 << 20) + n;
    let mut stored = 0;
    while store.counters().evictions == 0 || store.segments.free > 6 {
        set(&mut store, stored, 150 + draw.below(200));
        if stored.is_multiple_of(400) {
            (0..3).for_each(|k| _ = set(&mut store, large(stored + k), 51_000));
            (0..4).for_each(|_| _ = get(&mut store, large(stored)));
        }
        stored += 1;
    }
    drop(store);
    let (mut store, recovered) = Store::in_file(&config, &file, 0, true).unwrap();
    assert_eq!(recovered.unwrap().without_slot, 0);
    store.evict_nothing();
    let found = |store: &mut Store| {
        (0..stored)
            .filter(|n| get(store, large(*n)) == Status::Done)
            .count()
    };
    let before = found(&mut store);
    for n in 0..stored {
        if !n.is_multiple_of(400) && get(&mut store, large(n / 400 * 400)) == Status::Done {
            delete(&mut store, large(n));
        }
        if draw.below(10) < 3 {
            delete(&mut store, n);
        }
    }
    let after = found(&mut store);
    assert!(after > 0 && before > after, "{before} {after}");
    let part = store.live() as f64 / store.segments.usable() as f64;
    assert!(part < 0.7, "{part}");
    // No run of many segments is free but for a few small items.
    for n in 0..stored {
        let hash = HASH_KEY.hash(&n.to_le_bytes());
        let items = &store.items;
        let found = store.index.find(hash, |at| items.is(at, &n.to_le_bytes()));
        let head = found.map(|(_, at)| store.segments.heads[store.segments.number(at)]);
        if head.is_some_and(|head| head.span > 9 && head.live < 50_000) {
            delete(&mut store, n);
        }
    }
    while store.segments.free > 2 {
        let number = store.segments.find_free().unwrap();
        store.segments.hold(number, 1);
    }
    let refused = (0..1000).filter(|n| set(&mut store, 10_000 + n % 50, 300) != Status::Done);
    let refused = refused.count();
    assert!(refused < 100, "{refused}");
    assert_eq!(set(&mut store, 20_000, 300), Status::Done);
    store.segments.let_go(0, store.segments.count());
    assert_eq!(store.counters().evictions, 0);
    audit(&store);
}

/// Items are longer than a store in a file allows since it was opened again. Each can be invalidated,
/// or is refused.
#[test]
fn items_beyond_a_lowered_size_are_invalidated_or_refused() {
    let before = config(1 << 20, 64 << 10);
    let file = nameless_file(Store::file_bytes(&before).unwrap());
    let (mut store, _) = Store::in_file(&before, &file, 0, false).unwrap();
    for n in 0..200 {
        let len = if n % 4 == 0 { 60_000 } else { 1_500 };
        set(&mut store, n, len);
    }
    drop(store);
    let (mut store, _) = Store::in_file(&config(1 << 20, 4 << 10), &file, 0, true).unwrap();
    store.evict_nothing();
    let (mut done, mut refused) = (0, 0);
    for n in 0..200 {
        if n % 5 == 0 {
            delete(&mut store, n);
        }
        let invalidate = Delete {
            invalidate: true,
            ..Delete::default()
        };
        match run(&mut store, n, Op::Delete(invalidate)) {
            Status::Done => done += 1,
            Status::OutOfMemory => refused += 1,
            status => assert_eq!(status, Status::NotFound),
        }
    }
    assert!(done > 0 && refused > 0, "{done} {refused}");
    audit(&store);
}

/// A store of small items is filled until hardly a slot of its index is free, and opened again: each
/// item is there, although the index is filled in another order than before.
#[test]
fn full_index_is_recovered_whole() {
    let config = config(1 << 20, 4 << 10);
    let file = nameless_file(Store::file_bytes(&config).unwrap());
    let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
    let slots = store.slots() as u32;
    let mut keys = 0;
    while store.counters().items <= u64::from(slots * 95 / 100) {
        set(&mut store, keys, 8);
        keys += 1;
    }
    let counters = store.counters();
    assert_eq!(counters.evictions, counters.index_evictions);
    let kept = (0..keys).filter(|&key| get(&mut store, key) == Status::Done);
    let kept: Vec<_> = kept.collect();
    assert!(
        kept.len() as u32 > slots * 95 / 100,
        "{} of {slots}",
        kept.len()
    );
    drop(store);
    let (mut store, recovered) = Store::in_file(&config, &file, 0, true).unwrap();
    assert_eq!(recovered.unwrap().without_slot, 0);
    assert_eq!(store.counters().evictions, 0);
    for key in kept {
        assert_eq!(get(&mut store, key), Status::Done, "{key}");
    }
    audit(&store);
}

/// A run whose cleaning was given up, and of which nearly all is dead now, comes before one that is nearly
/// full.
#[test]
fn segment_given_up_once_is_chosen_when_most_of_it_is_dead() {
    let mut segments = Segments::new(100, 4096);
    for number in 0..3 {
        segments.open(Kind::YOUNG, number, 1, 0);
        let (at, _) = segments.append(Kind::YOUNG, 3_900).unwrap();
        segments.note(at, Deadline::NEVER, 0, 0);
    }
    segments.begin_cleaning(0);
    segments.leave(0);
    assert_eq!(
        segments.choose(Second(1), true, 1.0),
        Some(1),
        "alike otherwise"
    );
    segments.release(Offset(0), 3_860);
    assert_eq!(segments.choose(Second(1), true, 1.0), Some(0));
}

/// The cleaning of the run to be ceded is given up: others go first until a segment was stored.
#[test]
fn run_to_be_ceded_that_was_given_up_waits() {
    let mut segments = Segments::new(3, 4096);
    segments.open(Kind::YOUNG, 2, 1, 0);
    segments.append(Kind::YOUNG, 3_000).unwrap();
    segments.cede();
    assert_eq!(segments.ceding_run(), Some(2));
    segments.begin_cleaning(2);
    segments.leave(2);
    segments.tick(4095);
    assert_eq!(segments.ceding_run(), None);
    segments.tick(1);
    assert_eq!(segments.ceding_run(), Some(2));
}

/// The segment to be ceded holds a reservation. Mutations that find the index crowded clean no others.
#[test]
fn reservation_in_the_segment_to_be_ceded_makes_no_mutation_clean_others() {
    let mut store = Store::new(&config(4 << 20, 64 << 10)).unwrap();
    let mut key = 0;
    let len = store.segments.size() - 200;
    while store.segments.free > 8 {
        set(&mut store, key, len);
        key += 1;
    }
    store.stage(Second(1), b"upload", len);
    while store.segments.is_free(store.segments.count() - 1) {
        store.segments.cede();
    }
    let last = store.segments.count() - 1;
    assert_eq!(store.segments.heads[last].staged, 1);
    (0..key).for_each(|key| assert_eq!(delete(&mut store, key), Status::Done));
    while store.segments.ceding().is_none() {
        assert!(key < 100_000);
        set(&mut store, key, 30);
        key += 1;
    }
    // Each segment is worth cleaning, but the index does not shrink.
    let half = (key / 2..key).step_by(2);
    half.for_each(|key| assert_eq!(delete(&mut store, key), Status::Done));
    while store.segments.ceding().is_some() && !store.index.is_crowded() {
        assert!(key < 100_000);
        set(&mut store, key, 30);
        key += 1;
    }
    assert_eq!(store.segments.ceding(), Some(last));
    assert!(store.finish_cleaning(Survivors::All));
    for _ in 0..1_000 {
        assert_eq!(delete(&mut store, u32::MAX), Status::NotFound);
        assert!(store.cleaner.is_none());
    }
    assert!(store.index.is_crowded());
}

/// Checks that the table counts the uses of each segment's items, none of which have faded.
fn audit_uses(store: &Store) {
    let mut counts = vec![(0, 0, 0); store.segments.heads.len()];
    for bucket in 0..store.index.buckets() {
        for at in store.index.entries(bucket) {
            let bits = store.items.header(at).bits;
            let (uses, unused, unread) = &mut counts[store.segments.number(at)];
            *uses += weight(bits);
            *unused += u32::from(is_unused(bits));
            *unread += u32::from(is_unread_copy(bits));
        }
    }
    let heads = store.segments.heads.iter();
    assert!(
        heads
            .map(|head| (head.uses, head.unused, head.unread))
            .eq(counts)
    );
}

/// Items whose form changes: by a touch, and by a number, a mark and a deadline.
#[test]
fn another_form_keeps_the_uses_and_the_table_counts_them() {
    let mut store = Store::new(&config(4 << 20, 64 << 10)).unwrap();
    for key in 0..4_000 {
        let put = Put {
            value: b"1",
            ..Put::default()
        };
        run_any(&mut store, key, Op::Put(put));
        for _ in 0..key % 4 {
            run_any(&mut store, key, Op::Get(Get::default()));
        }
    }
    audit_uses(&store);
    let bits = |store: &Store, key: u32| {
        let key = key.to_le_bytes();
        let is_it = |at| store.items.is(at, &key);
        let (_, at) = store.index.find(HASH_KEY.hash(&key), is_it).unwrap();
        store.items.header(at).bits
    };
    for key in 0..4_000 {
        let before = bits(&store, key);
        let touch = Get {
            touch: Some(1_000),
            quiet_access: true,
            ..Get::default()
        };
        let used = Get {
            quiet_access: false,
            ..touch
        };
        let mark = Delete {
            invalidate: true,
            exptime: Some(1_000),
            ..Delete::default()
        };
        let add = Arith {
            delta: 1,
            touch: Some(1_000),
            ..Arith::default()
        };
        match key / 4 % 4 {
            0 => run_any(&mut store, key, Op::Get(touch)),
            1 => run_any(&mut store, key, Op::Get(used)),
            2 => run_any(&mut store, key, Op::Delete(mark)),
            _ => run_any(&mut store, key, Op::Arith(add)),
        }
        let uses = bit::LEVEL | bit::USED;
        if matches!(key / 4 % 4, 0 | 2) {
            assert_eq!(bits(&store, key) & uses, before & uses, "{key}");
        }
    }
    audit_uses(&store);
}

fn run_any(store: &mut Store, key: u32, op: Op<'_>) {
    run_at(store, Second(1), key, op);
}

fn run_at(store: &mut Store, second: Second, key: u32, op: Op<'_>) {
    let key = &key.to_le_bytes();
    let hash = HASH_KEY.hash(key);
    let clock = Clock {
        epoch_unix: 0,
        second,
    };
    store.execute(clock, &[Request { hash, key, op }], &mut |_,
                                                             reply: &Reply<
        '_,
    >| {
        assert_eq!(reply.status, Status::Done);
    });
}

/// What is recovered was stored before: it teaches nothing of what is stored now.
#[test]
fn recovered_items_do_not_count_as_stored_and_not_read() {
    let config = config(4 << 20, 64 << 10);
    let file = nameless_file(Store::file_bytes(&config).unwrap());
    let (mut store, _) = Store::in_file(&config, &file, 0, false).unwrap();
    (0..4_000).for_each(|key| assert_eq!(set(&mut store, key, 100), Status::Done));
    drop(store);
    let (mut store, _) = Store::in_file(&config, &file, 0, true).unwrap();
    let before = store.segments.reuse.expected(Kind::YOUNG);
    assert!((before - 0.5).abs() < f64::EPSILON, "{before}");
    (0..4_000).for_each(|key| assert_eq!(get(&mut store, key), Status::Done));
    let after = store.segments.reuse.expected(Kind::YOUNG);
    assert!((after - 0.5).abs() < f64::EPSILON, "{after}");
}

/// Items that expire share a segment with their copies, so a copy's first use tells of what is stored.
#[test]
fn first_use_of_a_copy_that_expires_is_learnt() {
    let mut store = Store::new(&config(4 << 20, 64 << 10)).unwrap();
    let put = Put {
        value: &[b'v'; 100],
        exptime: 1_000,
        ..Put::default()
    };
    let mut keys = 0;
    let marked = |store: &Store| -> Vec<(Kind, u32)> {
        (0..store.index.buckets())
            .flat_map(|bucket| store.index.entries(bucket))
            .filter(|&at| is_unread_copy(store.items.header(at).bits))
            .map(|at| {
                let key = store.items.key(at).try_into().unwrap();
                (
                    store.segments.heads[store.segments.number(at)].kind,
                    u32::from_le_bytes(key),
                )
            })
            .collect()
    };
    while marked(&store).len() < 500 {
        assert!(keys < 200_000);
        for key in keys..keys + 1_000 {
            run_any(&mut store, key, Op::Put(put));
            // Segments become worth cleaning.
            if key % 3 != 0 {
                delete(&mut store, key);
            }
        }
        keys += 1_000;
    }
    let copies = marked(&store);
    let kind = copies[0].0;
    assert!(kind.is_mortal());
    let before = store.segments.reuse.expected(kind);
    for (_, key) in copies {
        run_any(&mut store, key, Op::Get(Get::default()));
    }
    assert!(store.segments.reuse.expected(kind) > before + 0.02);
}

/// An item is copied among those that expire sooner when it does, and counts as one of them from then on.
/// Seen to fail with a copy that stays counted in the kind that it was stored in.
#[test]
fn copy_is_counted_in_the_kind_that_it_is_read_in() {
    let mut store = Store::new(&config(4 << 20, 64 << 10)).unwrap();
    let put = |exptime| Put {
        value: &[b'v'; 100],
        exptime,
        ..Put::default()
    };
    let of = |exptime, now| {
        let deadline = Deadline(exptime);
        store.segments.kind(deadline, now, 128, Kind::OLD)
    };
    let (later, soon) = (of(1_000, Second(1)), of(1_000, Second(990)));
    assert!(later != soon && soon.is_mortal());
    const KEYS: u32 = 9_000;
    for key in 0..KEYS {
        run_any(&mut store, key, Op::Put(put(999)));
        // Their segments are cleaned first.
        if key % 4 != 0 {
            delete(&mut store, key);
        }
    }
    let in_soon = |store: &Store| -> Vec<u32> {
        (0..store.index.buckets())
            .flat_map(|bucket| store.index.entries(bucket))
            .filter(|&at| store.segments.heads[store.segments.number(at)].kind == soon)
            .map(|at| u32::from_le_bytes(store.items.key(at).try_into().unwrap()))
            .collect()
    };
    let mut key = KEYS;
    while in_soon(&store).len() < 500 {
        assert!(key < 200_000);
        for _ in 0..500 {
            run_at(&mut store, Second(990), key, Op::Put(put(0)));
            key += 1;
        }
    }
    let (copies, before) = (in_soon(&store), store.segments.reuse.expected(later));
    assert!(store.segments.reuse.expected(soon) < 0.1, "none was read");
    for key in copies {
        run_at(&mut store, Second(990), key, Op::Get(Get::default()));
    }
    assert!(store.segments.reuse.expected(soon) > 0.9, "all were read");
    // Those that are left in the kind are as few to be read as before.
    assert_eq!(store.segments.reuse.expected(later), before);
}

/// An index that grows and shrinks leaves the segments as many as there were, each time.
#[test]
fn index_that_shrinks_returns_the_memory_of_segments() {
    let mut store = Store::new(&config(4 << 20, 64 << 10)).unwrap();
    let before = (
        store.segments.count(),
        store.index_room,
        store.index.bytes(),
    );
    for round in 0..3 {
        let keys = round * 100_000..round * 100_000 + 30_000;
        for key in keys.clone() {
            run_any(&mut store, key, Op::Put(Put::default()));
        }
        assert!(store.segments.count() < before.0 && store.index.bytes() > before.2);
        for key in keys {
            run(&mut store, key, Op::Delete(Delete::default()));
        }
        audit(&store);
        let after = (
            store.segments.count(),
            store.index_room,
            store.index.bytes(),
        );
        assert_eq!(after, before);
        assert_eq!(store.segments.ceding(), None);
    }
    assert_eq!(store.counters().returns_failed, 0);
}

/// All items are flushed and removed at once, so that many blocks of the index are to be merged: one at each of a few
/// mutations, however few items there are. Seen to fail with a merge at each mutation.
#[test]
fn blocks_to_be_merged_wait_for_each_other() {
    let mut store = Store::new(&config(8 << 20, 64 << 10)).unwrap();
    let least = store.buckets();
    (0..60_000).for_each(|key| run_any(&mut store, key, Op::Put(Put::default())));
    store.flush(Second(1), Second(1));
    let most = store.buckets();
    (0..most).for_each(|bucket| {
        store.remove_expired(Second(1), bucket);
    });
    assert_eq!(store.counters().items, 0);
    let blocks = (most - least) / BLOCK;
    assert!(blocks >= 60, "{blocks}");
    let (mut mutations, mut merged_at) = (0, None);
    while store.buckets() > least {
        let before = store.buckets();
        run_any(&mut store, mutations % 100, Op::Put(Put::default()));
        mutations += 1;
        if store.buckets() < before {
            assert_eq!(before - store.buckets(), BLOCK);
            let since = merged_at.replace(mutations).map(|last| mutations - last);
            assert!(since.is_none_or(|since| since == 16), "{since:?}");
        }
        assert!(mutations <= 16 * blocks as u32);
    }
}

/// Segments that the index has returned may lie in huge pages again. Seen to fail where they may not.
#[test]
fn segments_that_come_back_may_have_huge_pages() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let mut store = Store::new(&config(16 << 20, 64 << 10)).unwrap();
    assert!(!any_small(&store));
    (0..100_000).for_each(|key| run_any(&mut store, key, Op::Put(Put::default())));
    assert!(store.ceded > 0 && any_small(&store));
    (0..100_000).for_each(|key| {
        run(&mut store, key, Op::Delete(Delete::default()));
    });
    assert!(store.ceded == 0 && !any_small(&store));
    // Not while a limit withholds some.
    store.leave_unused(4 << 20);
    while store.adjust() {}
    (0..100_000).for_each(|key| run_any(&mut store, key, Op::Put(Put::default())));
    assert!(store.ceded > 0);
    (0..100_000).for_each(|key| {
        run(&mut store, key, Op::Delete(Delete::default()));
    });
    assert!(store.ceded == 0 && any_small(&store));
}

/// Returns whether the kernel must not use huge pages for some of the items (proc(5), smaps: `nh`).
fn any_small(store: &Store) -> bool {
    let bytes = store.items.bytes(Offset(0), store.items.len());
    let bytes = bytes.as_ptr_range();
    let (start, end) = (bytes.start.addr(), bytes.end.addr());
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut overlaps = false;
    maps.lines().any(|line| {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let [from, to] = range.map_or([None; 2], |(from, to)| {
            [from, to].map(|at| usize::from_str_radix(at, 16).ok())
        });
        if let (Some(from), Some(to)) = (from, to) {
            overlaps = from < end && start < to;
        }
        overlaps && line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "nh")
    })
}
