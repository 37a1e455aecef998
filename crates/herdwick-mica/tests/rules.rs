//! memcached's rules for each operation, one test each.

mod common;

use common::{Answer, HASH_KEY};
use herdwick_mica::{Store, StoreConfig, StoreError};
use herdwick_request::{
    Arith, Clock, Deadline, Delete, EXPTIME_PAST, Execute, Get, Mode, Op, Put, Reply, Request,
    Second, Sink, Status,
};

/// A store and its current second.
struct Bed {
    store: Store,
    second: u32,
}

impl Bed {
    fn new() -> Self {
        let config = StoreConfig {
            memory_bytes: 1 << 20,
            item_bytes_max: 100_000,
            hash_key: HASH_KEY,
        };
        Self {
            store: Store::new(&config).unwrap(),
            second: 100,
        }
    }

    fn clock(&self) -> Clock {
        Clock {
            epoch_unix: 1_700_000_000,
            second: Second(self.second),
        }
    }

    fn run(&mut self, key: &str, op: Op<'_>) -> Answer {
        let request = Request {
            hash: HASH_KEY.hash(key.as_bytes()),
            key: key.as_bytes(),
            op,
        };
        let mut answer = None;
        let clock = self.clock();
        self.store
            .execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
                answer = Some(Answer::from(reply));
            });
        answer.expect("one reply a request")
    }

    fn get(&mut self, key: &str) -> Answer {
        self.run(key, Op::Get(Get::default()))
    }

    fn put(&mut self, key: &str, put: Put<'_>) -> Answer {
        self.run(key, Op::Put(put))
    }

    fn set(&mut self, key: &str, value: &str) -> Answer {
        self.put(key, set(value))
    }
}

fn set(value: &str) -> Put<'_> {
    Put {
        value: value.as_bytes(),
        ..Put::default()
    }
}

fn with_mode(mode: Mode, value: &str) -> Put<'_> {
    Put { mode, ..set(value) }
}

#[test]
fn set_value_is_read_with_flags_and_version() {
    let mut bed = Bed::new();
    let put = Put {
        flags: 7,
        ..set("value")
    };
    let stored = bed.put("key", put);
    let read = bed.get("key");
    assert_eq!((stored.status, read.status), (Status::Done, Status::Done));
    assert_eq!(read.value.as_deref(), Some(&b"value"[..]));
    assert_eq!((read.flags, read.version), (7, stored.version));
    assert_eq!(bed.get("other").status, Status::NotFound);
}

#[test]
fn storage_modes_depend_on_the_existing_item() {
    let mut bed = Bed::new();
    for mode in [Mode::Replace, Mode::Append, Mode::Prepend] {
        assert_eq!(
            bed.put("key", with_mode(mode, "x")).status,
            Status::NotStored
        );
    }
    assert_eq!(
        bed.put("key", with_mode(Mode::Add, "b")).status,
        Status::Done
    );
    assert_eq!(
        bed.put("key", with_mode(Mode::Add, "c")).status,
        Status::NotStored
    );
    bed.put("key", with_mode(Mode::Append, "c"));
    bed.put("key", with_mode(Mode::Prepend, "a"));
    assert_eq!(bed.get("key").value.as_deref(), Some(&b"abc"[..]));
    bed.put("key", with_mode(Mode::Replace, "z"));
    assert_eq!(bed.get("key").value.as_deref(), Some(&b"z"[..]));
}

#[test]
fn append_keeps_flags_and_deadline() {
    let mut bed = Bed::new();
    let put = Put {
        flags: 9,
        exptime: 50,
        ..set("a")
    };
    bed.put("key", put);
    let put = Put {
        flags: 1,
        exptime: 7,
        ..with_mode(Mode::Append, "b")
    };
    let joined = bed.put("key", put);
    assert_eq!((joined.flags, joined.deadline), (9, Deadline(150)));
}

#[test]
fn append_vivifies_on_a_miss() {
    let mut bed = Bed::new();
    let put = Put {
        vivify: Some(30),
        ..with_mode(Mode::Append, "b")
    };
    assert_eq!(bed.put("key", put).deadline, Deadline(130));
    assert_eq!(bed.put("key", put).value.as_deref(), Some(&b"bb"[..]));
}

#[test]
fn a_set_with_a_version_stores_only_over_that_version() {
    let mut bed = Bed::new();
    let versioned = |version| Put {
        compare: Some(version),
        ..set("new")
    };
    assert_eq!(bed.put("key", versioned(1)).status, Status::NotFound);
    let version = bed.set("key", "old").version;
    assert_eq!(
        bed.put("key", versioned(version + 1)).status,
        Status::Exists
    );
    assert_eq!(bed.put("key", versioned(0)).status, Status::Exists);
    assert_eq!(bed.put("key", versioned(version)).status, Status::Done);
    assert_eq!(bed.put("key", versioned(version)).status, Status::Exists);
}

#[test]
fn append_with_version_zero_ignores_the_version() {
    let mut bed = Bed::new();
    let version = bed.set("key", "a").version;
    let append = |version| Put {
        compare: Some(version),
        ..with_mode(Mode::Append, "b")
    };
    assert_eq!(bed.put("key", append(0)).status, Status::Done);
    assert_eq!(bed.put("key", append(version)).status, Status::Exists);
}

#[test]
fn older_set_with_invalidate_is_stored_stale_with_the_old_deadline() {
    let mut bed = Bed::new();
    let put = Put {
        version: Some(10),
        exptime: 60,
        ..set("new")
    };
    bed.put("key", put);
    let put = Put {
        compare: Some(5),
        invalidate: true,
        exptime: 1000,
        ..set("older")
    };
    let stored = bed.put("key", put);
    assert_eq!(
        (stored.status, stored.stale, stored.deadline),
        (Status::Done, true, Deadline(160))
    );
    let newer = Put {
        compare: Some(u64::MAX),
        ..put
    };
    assert_eq!(bed.put("key", newer).status, Status::Exists);
}

#[test]
fn explicit_version_becomes_the_items_version() {
    let mut bed = Bed::new();
    let put = Put {
        version: Some(4711),
        ..set("x")
    };
    assert_eq!(bed.put("key", put).version, 4711);
    assert_eq!(bed.get("key").version, 4711);
}

#[test]
fn items_expire_at_their_deadline() {
    let mut bed = Bed::new();
    let put = Put {
        exptime: 10,
        ..set("x")
    };
    bed.put("key", put);
    bed.second += 9;
    assert_eq!(bed.get("key").status, Status::Done);
    bed.second += 1;
    let miss = bed.get("key");
    assert_eq!((miss.status, miss.expired), (Status::NotFound, true));
    assert!(!bed.get("key").expired, "the first read removed it");
    assert_eq!(bed.store.counters().items, 0);
    bed.put(
        "key",
        Put {
            exptime: EXPTIME_PAST,
            ..put
        },
    );
    assert_eq!(bed.get("key").status, Status::NotFound);
}

#[test]
fn touch_changes_the_deadline_and_not_the_version() {
    let mut bed = Bed::new();
    let version = bed.set("key", "x").version;
    let touch = Get {
        touch: Some(20),
        ..Get::default()
    };
    let touched = bed.run("key", Op::Get(touch));
    assert_eq!(
        (touched.deadline, touched.version),
        (Deadline::NEVER, version),
        "unchanged"
    );
    assert_eq!(bed.get("key").deadline, Deadline(120));
    bed.second += 20;
    assert!(bed.get("key").expired);
}

#[test]
fn request_without_room_for_its_reply_is_not_executed() {
    struct Full(usize);
    impl Sink for Full {
        fn reply(&mut self, index: usize, reply: &Reply<'_>) {
            assert_eq!((index, reply.status), (0, Status::Done));
            self.0 += 1;
        }
        fn has_room(&mut self, index: usize) -> bool {
            index == 0
        }
    }
    let mut bed = Bed::new();
    let request = |op| Request {
        hash: HASH_KEY.hash(b"key"),
        key: b"key",
        op,
    };
    let batch = [
        request(Op::Put(set("x"))),
        request(Op::Delete(Delete::default())),
    ];
    let mut full = Full(0);
    let clock = bed.clock();
    bed.store.execute(clock, &batch, &mut full);
    assert_eq!(full.0, 1);
    assert_eq!(bed.get("key").value, Some(b"x".to_vec()));
}

#[test]
fn read_returns_the_previous_access() {
    let mut bed = Bed::new();
    bed.set("key", "x");
    bed.second += 5;
    let quiet = Get {
        quiet_access: true,
        ..Get::default()
    };
    assert!(!bed.run("key", Op::Get(quiet)).fetched);
    let first = bed.get("key");
    assert_eq!((first.fetched, first.last_access), (false, Second(100)));
    bed.second += 5;
    let second = bed.get("key");
    assert_eq!((second.fetched, second.last_access), (true, Second(105)));
}

#[test]
fn vivified_miss_is_won_once() {
    let mut bed = Bed::new();
    let lease = Op::Get(Get {
        vivify: Some(30),
        ..Get::default()
    });
    let first = bed.run("key", lease);
    assert_eq!(
        (first.status, first.won, first.win_sent, first.deadline),
        (Status::Done, true, false, Deadline(130))
    );
    assert_eq!(first.value.as_deref(), Some(&b""[..]));
    let second = bed.run("key", lease);
    assert_eq!((second.won, second.win_sent), (false, true));
    bed.set("key", "x");
    let third = bed.run("key", lease);
    assert_eq!((third.won, third.win_sent), (false, false));
}

#[test]
fn first_reader_near_the_deadline_wins_the_recache() {
    let mut bed = Bed::new();
    let put = Put {
        exptime: 60,
        ..set("x")
    };
    bed.put("key", put);
    let read = Op::Get(Get {
        recache: Some(30),
        ..Get::default()
    });
    bed.second += 30;
    assert!(!bed.run("key", read).won);
    bed.second += 1;
    assert!(bed.run("key", read).won);
    let next = bed.run("key", read);
    assert_eq!((next.won, next.win_sent), (false, true));
    bed.set("key", "for ever");
    assert!(!bed.run("key", read).won);
}

#[test]
fn invalidating_delete_lets_the_next_reader_win() {
    let mut bed = Bed::new();
    let version = bed.set("key", "x").version;
    let delete = Delete {
        invalidate: true,
        exptime: Some(30),
        ..Delete::default()
    };
    let deleted = bed.run("key", Op::Delete(delete));
    assert!(deleted.version > version);
    assert_eq!((deleted.stale, deleted.deadline), (true, Deadline(130)));
    let first = bed.get("key");
    assert_eq!((first.stale, first.won), (true, true));
    let second = bed.get("key");
    assert_eq!(
        (second.stale, second.won, second.win_sent),
        (true, false, true)
    );
}

#[test]
fn delete_can_remove_only_the_value() {
    let mut bed = Bed::new();
    let put = Put {
        flags: 3,
        exptime: 60,
        ..set("value")
    };
    let version = bed.put("key", put).version;
    let delete = Delete {
        drop_value: true,
        ..Delete::default()
    };
    bed.run("key", Op::Delete(delete));
    let read = bed.get("key");
    assert_eq!(read.value.as_deref(), Some(&b""[..]));
    assert_eq!(
        (read.flags, read.version, read.deadline),
        (0, version, Deadline::NEVER)
    );
}

#[test]
fn a_delete_with_a_version_deletes_only_that_version() {
    let mut bed = Bed::new();
    let version = bed.set("key", "x").version;
    let delete = |version| {
        Op::Delete(Delete {
            compare: Some(version),
            ..Delete::default()
        })
    };
    assert_eq!(bed.run("key", delete(version + 1)).status, Status::Exists);
    assert_eq!(bed.run("key", delete(version)).status, Status::Done);
    assert_eq!(bed.run("key", delete(version)).status, Status::NotFound);
}

fn by(delta: u64, decrement: bool) -> Op<'static> {
    Op::Arith(Arith {
        decrement,
        delta,
        ..Arith::default()
    })
}

#[test]
fn increment_wraps_and_decrement_stops_at_zero() {
    let mut bed = Bed::new();
    bed.set("key", "18446744073709551615");
    assert_eq!(bed.run("key", by(2, false)).number, 1);
    assert_eq!(bed.run("key", by(5, true)).number, 0);
    assert_eq!(bed.run("none", by(1, false)).status, Status::NotFound);
}

#[test]
fn shorter_number_is_padded_with_spaces() {
    let mut bed = Bed::new();
    let version = bed.set("key", "10").version;
    let nine = bed.run("key", by(1, true));
    assert_eq!(nine.value.as_deref(), Some(&b"9 "[..]));
    assert!(nine.version > version);
    assert_eq!(
        bed.run("key", by(90, false)).value.as_deref(),
        Some(&b"99"[..])
    );
    let longer = bed.run("key", by(1, false));
    assert_eq!(longer.value.as_deref(), Some(&b"100"[..]));
}

#[test]
fn arithmetic_keeps_flags_and_refuses_non_numbers() {
    let mut bed = Bed::new();
    let put = Put {
        flags: 5,
        exptime: 60,
        ..set("9")
    };
    bed.put("key", put);
    let ten = bed.run("key", by(1, false));
    assert_eq!((ten.flags, ten.deadline), (5, Deadline(160)));
    for word in ["", "x", "-1", "18446744073709551616"] {
        bed.set("key", word);
        assert_eq!(bed.run("key", by(1, false)).status, Status::NonNumeric);
    }
}

#[test]
fn arithmetic_vivifies_with_its_initial_number() {
    let mut bed = Bed::new();
    let op = Op::Arith(Arith {
        delta: 5,
        initial: 40,
        vivify: Some(30),
        ..Arith::default()
    });
    let first = bed.run("key", op);
    assert_eq!((first.number, first.deadline), (40, Deadline(130)));
    assert_eq!(bed.run("key", op).number, 45);
}

#[test]
fn only_a_set_too_large_removes_the_old_value() {
    let mut bed = Bed::new();
    let huge = "x".repeat(100_001 - 32 - 3);
    bed.set("key", "small");
    for mode in [Mode::Add, Mode::Replace, Mode::Append, Mode::Prepend] {
        assert_eq!(
            bed.put("key", with_mode(mode, &huge)).status,
            Status::TooLarge
        );
    }
    assert_eq!(bed.get("key").status, Status::Done);
    assert_eq!(bed.set("key", &huge).status, Status::TooLarge);
    assert_eq!(bed.get("key").status, Status::NotFound);
    assert_eq!(bed.set("key", &huge[1..]).status, Status::Done);
    let appended = bed.put("key", with_mode(Mode::Append, "y"));
    assert_eq!(appended.status, Status::NotStored, "as in memcached");
}

#[test]
fn flush_removes_only_items_stored_before_it() {
    let mut bed = Bed::new();
    bed.set("old", "x");
    bed.store.flush(Second(100), Second(100));
    bed.set("new", "x");
    let old = bed.get("old");
    assert_eq!(
        (old.status, old.flushed, old.expired),
        (Status::NotFound, true, false)
    );
    assert_eq!(bed.get("new").status, Status::Done);
}

#[test]
fn flush_may_be_delayed() {
    let mut bed = Bed::new();
    bed.set("old", "x");
    bed.store.flush(Second(100), Second(110));
    bed.second = 109;
    assert_eq!(bed.get("old").status, Status::Done);
    bed.set("between", "x");
    bed.second = 110;
    bed.set("new", "x");
    assert!(bed.get("old").flushed && bed.get("between").flushed);
    assert_eq!(bed.get("new").status, Status::Done);
}

#[test]
fn delayed_flush_is_canceled_by_a_flush_that_never_takes_effect() {
    let mut bed = Bed::new();
    bed.set("old", "x");
    bed.store.flush(Second(100), Second(110));
    bed.store.flush(Second(100), Second(0));
    bed.second = 111;
    assert_eq!(bed.get("old").status, Status::Done);
}

#[test]
fn items_stay_flushed_after_further_flushes() {
    let mut bed = Bed::new();
    bed.set("old", "x");
    for _ in 0..1_000 {
        bed.store.flush(Second(100), Second(100));
    }
    assert_eq!(bed.get("old").status, Status::NotFound);
    assert_eq!(bed.store.counters().items, 0);
}

/// The last item stored before a flush stays flushed when the store, which is full, has cleaned every
/// segment.
#[test]
fn flushed_item_stays_flushed_when_its_room_is_needed() {
    let mut bed = Bed::new();
    let (large, small) = ("l".repeat(90_000), "s".repeat(3_000));
    for n in 0..30 {
        bed.set(&format!("old {n}"), &large);
    }
    bed.set("last", &large);
    for _ in 0..3 {
        assert_eq!(bed.get("last").status, Status::Done);
    }
    for _ in 0..1_000 {
        bed.store.flush(Second(100), Second(100));
    }
    // The bytes of the store and some more; a read of the item meanwhile would remove it.
    for n in 0..360 {
        bed.set(&format!("new {n}"), &small);
    }
    assert_eq!(bed.get("last").status, Status::NotFound);
}

#[test]
fn mutation_with_wrong_hash_has_no_effect() {
    let mut bed = Bed::new();
    bed.set("key", "x");
    let long = "k".repeat(251);
    let lease = Get {
        vivify: Some(0),
        ..Get::default()
    };
    let ops = [
        Op::Put(set("y")),
        Op::Delete(Delete::default()),
        by(1, false),
        Op::Get(lease),
    ];
    for op in ops {
        for (key, hashed) in [("key", "other"), ("", ""), (&long, &long)] {
            let request = Request {
                hash: HASH_KEY.hash(hashed.as_bytes()),
                key: key.as_bytes(),
                op,
            };
            let clock = bed.clock();
            bed.store
                .execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
                    assert_eq!(reply.status, Status::BadKey);
                });
        }
    }
    assert_eq!(bed.store.counters().bad_keys, 12);
    assert_eq!(bed.get("key").value.as_deref(), Some(&b"x"[..]));
}

#[test]
fn store_too_small_is_refused_with_the_minimum() {
    let with = |memory_bytes| {
        Store::new(&StoreConfig {
            memory_bytes,
            item_bytes_max: 1 << 20,
            hash_key: HASH_KEY,
        })
    };
    let Err(StoreError::TooSmall { needed, .. }) = with(1 << 20) else {
        panic!("four of the largest items do not fit a megabyte");
    };
    assert!(with(needed).is_ok());
    assert!(with(needed - 4096).is_err());
}

/// An item without flags and deadline is as short as can be; what it gets later makes it longer, and
/// changes nothing else.
#[test]
fn item_grows_by_a_deadline_and_by_a_wide_version() {
    let mut bed = Bed::new();
    let before = bed.set("key", "a value");
    let bytes = |bed: &Bed| (bed.store.counters().items, bed.store.counters().bytes);
    assert_eq!(bytes(&bed), (1, 32));
    let touch = Get {
        touch: Some(20),
        ..Get::default()
    };
    bed.run("key", Op::Get(touch));
    assert_eq!(bytes(&bed), (1, 64), "a header of 24 bytes");
    let version = 1 << 40;
    let invalidate = Delete {
        invalidate: true,
        version: Some(version),
        ..Delete::default()
    };
    assert_eq!(bed.run("key", Op::Delete(invalidate)).status, Status::Done);
    assert_eq!(bytes(&bed), (1, 48), "the full form has no gaps");
    let found = bed.get("key");
    assert_eq!(
        (found.value.as_deref(), found.version, found.flags),
        (Some(&b"a value"[..]), version, before.flags)
    );
    assert_eq!(found.deadline, Deadline(120));
    let compare = |compare| Put {
        compare: Some(compare),
        ..set("another")
    };
    assert_eq!(
        bed.put("key", compare(before.version)).status,
        Status::Exists
    );
    assert_eq!(bed.put("key", compare(version)).status, Status::Done);
    bed.set("last", "a value");
    bed.run("last", Op::Get(touch));
    bed.second = 119;
    assert_eq!(bed.get("last").status, Status::Done, "a second before");
    bed.second = 120;
    assert_eq!(bed.get("last").status, Status::NotFound);
}

/// A number whose version no longer fits its header is counted on in a longer one.
#[test]
fn counter_takes_a_wide_version() {
    let mut bed = Bed::new();
    bed.set("counter", "99");
    let add = |version| {
        Op::Arith(Arith {
            delta: 1,
            version,
            ..Arith::default()
        })
    };
    let wide = u64::MAX >> 1;
    let replies = [add(None), add(Some(wide)), add(None)].map(|op| bed.run("counter", op));
    assert_eq!(
        replies.each_ref().map(|reply| reply.number),
        [100, 101, 102]
    );
    assert_eq!(replies[1].version, wide);
    assert_eq!(bed.get("counter").value.as_deref(), Some(&b"102"[..]));
    assert_eq!(bed.store.counters().items, 1);
}
