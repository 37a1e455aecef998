//! A limit that is lowered: what stays, and what the store does while values on their way hold more
//! than the limit allows.

mod common;

use common::{Answer, HASH_KEY};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{
    Clock, Delete, Execute, Get, Op, Put, Reply, Request, Second, Staged, Status,
};

const MEMORY_BYTES: usize = 8 << 20;
const ITEM_BYTES_MAX: usize = 64 << 10;
/// Uploads that the lowest limit admits at a time.
const STAGED_LEAST: usize = 4;
/// Steps that no limit takes on so small a store: each walks over or returns 256 KiB.
const STEPS_MAX: usize = 128;

/// Returns the bytes that the limit for so many of the largest items leaves: three segments for each,
/// and twelve beside them.
fn left(largest: usize) -> usize {
    (largest * 3 + 12) * (32 << 10)
}

fn store() -> Store {
    Store::new(&StoreConfig {
        memory_bytes: MEMORY_BYTES,
        item_bytes_max: ITEM_BYTES_MAX,
        hash_key: HASH_KEY,
    })
    .unwrap()
}

fn run(store: &mut Store, key: &[u8], op: Op<'_>) -> Answer {
    let clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };
    let request = Request {
        hash: HASH_KEY.hash(key),
        key,
        op,
    };
    let mut answer = None;
    store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
        answer = Some(Answer::from(reply));
    });
    answer.expect("each request has a reply")
}

fn set(store: &mut Store, key: u32, len: usize) {
    let value = vec![key as u8; len];
    let put = Put {
        value: &value,
        ..Put::default()
    };
    let answer = run(store, &key.to_le_bytes(), Op::Put(put));
    assert_eq!(answer.status, Status::Done);
}

fn has(store: &mut Store, key: u32) -> bool {
    let get = Get {
        quiet_access: true,
        ..Get::default()
    };
    run(store, &key.to_le_bytes(), Op::Get(get)).status == Status::Done
}

/// Takes steps until the store has no more to do; `between` comes after each.
fn settle(store: &mut Store, mut between: impl FnMut(&mut Store)) {
    for _ in 0..STEPS_MAX {
        if !store.adjust() {
            return;
        }
        between(store);
    }
    panic!("the store never rests");
}

/// Half of the items are deleted, and nothing is read: the other half fits under the limit, also
/// while items are replaced meanwhile.
#[test]
fn lowered_limit_evicts_nothing_while_live_items_fit() {
    for replaced in [0, 40] {
        let mut store = store();
        for n in 0..5_000 {
            set(&mut store, n, 1_000);
        }
        for n in (1..5_000u32).step_by(2) {
            let delete = Op::Delete(Delete::default());
            run(&mut store, &n.to_le_bytes(), delete);
        }
        let live = store.counters().bytes as usize;
        // Live items take five sixths of the new window, about.
        store.leave_unused(store.unused_max() + left(4) - live * 6 / 5);
        let mut next = 0;
        settle(&mut store, |store| {
            for _ in 0..replaced {
                set(store, next % 5_000, 900 + next as usize % 200);
                next += 2;
            }
        });
        assert_eq!(store.counters().evictions, 0, "{replaced} replaced");
        assert!((0..5_000).step_by(2).all(|n| has(&mut store, n)));
        // The limit holds: more items than fit are evicted from now on.
        for n in 5_000..10_000 {
            set(&mut store, n, 1_000);
        }
        let counters = store.counters();
        assert!(counters.bytes as usize <= live * 6 / 5);
        assert!(counters.evictions > 4_000, "{counters:?}");
    }
}

/// Begins as many uploads of the largest value as the store admits.
fn uploads(store: &mut Store, most: usize) -> Vec<(u32, Staged)> {
    let stage = |key: u32| {
        let staged = store.stage(Second(1), &key.to_le_bytes(), ITEM_BYTES_MAX - 64);
        store.append(staged, &[b'v'; 1_000]);
        (key, staged)
    };
    (0..most as u32).map(stage).collect()
}

fn finish(store: &mut Store, (key, staged): (u32, Staged)) -> Status {
    store.append(staged, &vec![b'v'; ITEM_BYTES_MAX - 64 - 1_000]);
    let put = Put {
        staged: Some(staged),
        ..Put::default()
    };
    run(store, &key.to_le_bytes(), Op::Put(put)).status
}

#[test]
fn limit_below_the_reservations_is_postponed_until_they_end() {
    let mut store = store();
    let most = store.staged_max();
    let held = uploads(&mut store, most);
    assert!(held.len() > 20, "{}", held.len());
    for n in 1_000..3_000 {
        set(&mut store, n, 1_000);
    }
    let unused = store.unused_max();
    store.leave_unused(unused);
    settle(&mut store, |_| {});
    assert!(!store.adjust(), "nothing to do until an upload ends");

    // The lower limit counts for the admission of new ones at once.
    assert_eq!(store.staged_max(), STAGED_LEAST);

    for upload in held {
        assert_eq!(finish(&mut store, upload), Status::Done);
        settle(&mut store, |_| {});
    }
    let bytes = store.counters().bytes as usize;
    assert!(bytes <= left(4), "{bytes} bytes of items");
    let upload = uploads(&mut store, 1);
    assert_eq!(finish(&mut store, upload[0]), Status::Done);

    store.leave_unused(0);
    assert_eq!(store.staged_max(), most, "as before");
}

#[test]
fn evictions_by_the_limit_are_recorded() {
    let mut store = store();
    for n in 0..3_000 {
        set(&mut store, n, 1_000);
    }
    store.record_evictions(true);
    store.leave_unused(store.unused_max());
    let (mut recorded, mut missed) = (0, 0);
    loop {
        let more = store.adjust();
        missed += store.take_evictions(|_| recorded += 1);
        if !more {
            break;
        }
    }
    assert!(recorded > 2_000, "{recorded}");
    assert_eq!((recorded, missed), (store.counters().evictions, 0));

    // Values that displace more items than the record holds.
    store.leave_unused(0);
    store.adjust();
    for n in 0..40_000 {
        set(&mut store, n, 200);
    }
    store.take_evictions(|_| {});
    let before = store.counters().evictions;
    for n in 0..1_000 {
        set(&mut store, 50_000 + n, 1_000);
    }
    let (mut recorded, evicted) = (0, store.counters().evictions - before);
    let missed = store.take_evictions(|_| recorded += 1);
    assert!(missed > 0 && recorded + missed == evicted, "{evicted}");
}

/// Leaves `largest` times the room of the largest item to the store, and what it keeps beside that.
/// Returns the bytes that are left.
fn leave_room_for(store: &mut Store, largest: usize) -> usize {
    store.leave_unused(store.unused_max() + left(4) - left(largest));
    left(largest)
}

/// Admitted by the number that the higher limit allowed; each begins when the lower one is reached.
#[test]
fn uploads_admitted_before_the_limit_was_lowered_begin_after_it() {
    let mut store = store();
    let most = store.staged_max();
    for n in 1_000..9_000 {
        set(&mut store, n, 1_000);
    }
    for largest in [4, 5, 9, 20] {
        let left = leave_room_for(&mut store, largest);
        settle(&mut store, |_| {});
        let held = uploads(&mut store, most);
        for n in 1_000..9_000 {
            set(&mut store, n, 1_000);
        }
        for upload in held {
            assert_eq!(finish(&mut store, upload), Status::Done, "{largest}");
            settle(&mut store, |_| {});
        }
        let bytes = store.counters().bytes as usize;
        assert!(bytes <= left, "the limit holds");
    }
}

/// As many uploads as a limit admits lie side by side, and stay while small items fill the store.
#[test]
fn small_sets_give_up_no_upload_under_a_limit() {
    for (largest, len) in [(24, 100), (30, 1_000), (36, 5_000), (42, 20_000)] {
        let mut store = Store::new(&StoreConfig {
            memory_bytes: 16 << 20,
            item_bytes_max: ITEM_BYTES_MAX,
            hash_key: HASH_KEY,
        })
        .unwrap();
        leave_room_for(&mut store, largest);
        settle(&mut store, |_| {});
        let most = store.staged_max();
        assert!(most > 10, "{most}");
        let held = uploads(&mut store, most);
        for n in 0..(24 << 20) / len as u32 {
            set(&mut store, 1_000 + n, len);
        }
        for upload in held {
            let done = finish(&mut store, upload);
            assert_eq!(done, Status::Done, "{largest} {len}");
        }
    }
}

/// Also where the new window has room for few of the largest items.
#[test]
fn small_window_keeps_live_items_while_they_fit() {
    for largest in [4, 5, 8, 12] {
        let mut store = store();
        let live = largest * ITEM_BYTES_MAX / 5 * 4 / 1_040;
        for n in 0..live as u32 {
            set(&mut store, n, 1_000);
        }
        for n in 0..2_000 {
            set(&mut store, 10_000 + n, 1_000);
        }
        for n in 0..2_000u32 {
            let key = (10_000 + n).to_le_bytes();
            run(&mut store, &key, Op::Delete(Delete::default()));
        }
        let left = leave_room_for(&mut store, largest);
        settle(&mut store, |_| {});
        assert_eq!(store.counters().evictions, 0, "{largest} of the largest");
        assert!((0..live as u32).all(|n| has(&mut store, n)));
        // The limit is reached: what is stored beyond it evicts.
        for n in 0..2_000 {
            set(&mut store, 20_000 + n, 1_000);
        }
        let bytes = store.counters().bytes as usize;
        assert!(bytes <= left, "{bytes}");
    }
}

/// Random sequences of uploads of all sizes, sets, and limits.
#[test]
fn moving_limit_gives_up_no_upload() {
    // In the last three a small put meets reservations after a large one took all that was free.
    for seed in (1..=20).chain([56, 96, 119u64]) {
        let mut state = seed * 0x9e37_79b9;
        let mut roll = |sides: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as usize % sides
        };
        let mut store = store();
        let mut held: Vec<(u32, Staged, usize)> = Vec::new();
        for key in 0..1_500 {
            match roll(14) {
                0..4 if held.len() < store.staged_max() => {
                    let len = [2_000, 20_000, ITEM_BYTES_MAX - 64][roll(3)];
                    let staged = store.stage(Second(1), &u32::to_le_bytes(key), len);
                    held.push((key, staged, len));
                }
                4..7 if !held.is_empty() => {
                    let (key, staged, len) = held.swap_remove(roll(held.len()));
                    store.append(staged, &vec![b'v'; len]);
                    let put = Put {
                        staged: Some(staged),
                        ..Put::default()
                    };
                    let answer = run(&mut store, &key.to_le_bytes(), Op::Put(put));
                    assert_eq!(answer.status, Status::Done, "seed {seed}");
                }
                7 => {
                    let unused = roll(store.unused_max() + 1);
                    store.leave_unused([store.unused_max(), unused, 0][roll(3)]);
                }
                _ => {
                    let len = [100, 5_000, 40_000, ITEM_BYTES_MAX - 100][roll(4)];
                    set(&mut store, 10_000 + roll(400) as u32, len);
                    let other = 10_000 + roll(400) as u32;
                    run(&mut store, &other.to_le_bytes(), Op::Get(Get::default()));
                }
            }
            store.adjust();
        }
        settle(&mut store, |_| {});
    }
}

/// The index takes segments until it has its largest size: a limit that is possible then is accepted before.
#[test]
fn least_limit_holds_when_the_index_has_grown() {
    let mut store = store();
    let least = store.unused_max_at_last();
    assert!(least + MEMORY_BYTES / 16 < store.unused_max());
    for n in 0..100_000 {
        set(&mut store, n, 16);
    }
    assert_eq!(store.unused_max(), least);
    assert_eq!(store.unused_max_at_last(), least);
}

/// A store whose limit is lowered before it has items: small ones fill what the limit leaves, since the
/// index grows under it, too.
#[test]
fn index_grows_under_a_limit() {
    let mut store = store();
    let unused = MEMORY_BYTES / 2;
    store.leave_unused(unused);
    settle(&mut store, |_| {});
    for n in 0..100_000 {
        set(&mut store, n, 16);
        store.adjust();
    }
    settle(&mut store, |_| {});
    let counters = store.counters();
    let left = (MEMORY_BYTES - unused) as u64;
    let held = counters.bytes + store.buckets() as u64 * 64;
    assert!(
        (left * 3 / 4..=left).contains(&held),
        "{held} of {left}: {counters:?}"
    );
    store.leave_unused(0);
    settle(&mut store, |_| {});
    assert!(store.unused_max() >= store.unused_max_at_last());
}
