//! What a READ returns that no server finished writing, or would write: the GET begins again, and nothing
//! outside the table is read.

use herdwick_farm::{CHAIN_MAX, Geometry, LINE_WORDS, Probe, Table, Terms, Values, Verdict, View};
use herdwick_mem::{Span, Words};
use herdwick_request::HashKey;

const HASH_KEY: HashKey = HashKey([3, 4]);
const NEIGHBOURHOOD: usize = 2;
const TAIL: usize = LINE_WORDS - 1;
/// The first bit of a link, in the last word of a line.
const LINK: u32 = 40;

/// A table of one bucket, of lines: two slots, and overflow slots behind them.
fn table(values: Values, keys: usize) -> (Table, Span, View) {
    let (mut table, span, view) = empty(1, values);
    for n in 0..keys {
        table.put(&key(n), b"value").unwrap();
    }
    (table, span, view)
}

fn empty(buckets: usize, values: Values) -> (Table, Span, View) {
    let geometry = Geometry::new(Terms {
        buckets,
        neighbourhood: NEIGHBOURHOOD,
        overflow: 4,
        key_bytes_max: 8,
        value_bytes_max: 16,
        values,
    })
    .unwrap();
    let span = Span::anonymous(geometry.bytes()).unwrap();
    let table = Table::new(span.clone(), geometry, HASH_KEY);
    let view = View {
        geometry,
        hash_key: HASH_KEY,
        ordered_read: true,
    };
    (table, span, view)
}

fn key(n: usize) -> [u8; 8] {
    (n as u64).to_le_bytes()
}

/// READs what the probe asks for.
fn read(span: &Span, view: &View, probe: &Probe) -> Vec<u64> {
    let extent = probe.extent(view);
    let words = extent.offset / 8..(extent.offset + extent.len) / 8;
    words.map(|word| span.load(word)).collect()
}

/// Judges the first READ of a GET of `key`, after `change`.
fn judged(
    (span, view): (&Span, &View),
    key: &[u8],
    change: impl FnOnce(&mut [u64]),
) -> (Probe, Verdict) {
    let mut probe = Probe::new(view, key);
    let mut words = read(span, view, &probe);
    change(&mut words);
    let verdict = probe.judge(view, key, &|n| words[n]);
    (probe, verdict)
}

#[test]
fn a_slot_that_is_being_written_is_no_sign_of_a_miss() {
    let (_table, span, view) = table(Values::Inline, 1);
    let absent = key(9);
    assert_eq!(judged((&span, &view), &absent, |_| ()).1, Verdict::Miss);
    for slot in 0..NEIGHBOURHOOD {
        let odd = |words: &mut [u64]| words[slot * LINE_WORDS + TAIL] |= 1;
        assert_eq!(judged((&span, &view), &absent, odd).1, Verdict::Torn);
    }
}

#[test]
fn a_value_longer_than_the_tables_is_not_returned() {
    let (_table, span, view) = table(Values::Inline, 1);
    assert_eq!(judged((&span, &view), &key(0), |_| ()).1, Verdict::Hit);
    let long = |words: &mut [u64]| words[0] = words[0] & ((1 << 48) - 1) | 17 << 48;
    assert_eq!(judged((&span, &view), &key(0), long).1, Verdict::Torn);
}

#[test]
fn a_pointer_beyond_the_table_is_not_followed() {
    let (_table, span, view) = table(Values::OutOfTable { lines: 8 }, 1);
    let (probe, verdict) = judged((&span, &view), &key(0), |_| ());
    assert_eq!(verdict, Verdict::More);
    assert!(probe.extent(&view).offset < span.len());
    // The word after the head and the key.
    for block in [8, u64::from(u32::MAX)] {
        let beyond = |words: &mut [u64]| words[2] = block;
        assert_eq!(judged((&span, &view), &key(0), beyond).1, Verdict::Torn);
    }
}

#[test]
fn a_link_beyond_the_overflow_slots_is_not_followed() {
    let (_table, span, view) = table(Values::Inline, 1);
    for link in [5, 0xff_ffff] {
        let beyond = |words: &mut [u64]| words[TAIL] |= link << LINK;
        assert_eq!(judged((&span, &view), &key(9), beyond).1, Verdict::Torn);
    }
}

/// Follows the chain of a bucket for a key that is not there, with each READ changed; returns the last
/// verdict and the READs.
fn followed(change: impl Fn(&mut [u64])) -> (Verdict, usize) {
    let (_table, span, view) = table(Values::Inline, NEIGHBOURHOOD + 1);
    let (mut probe, mut verdict) = judged((&span, &view), &key(9), |_| ());
    let mut reads = 1;
    while verdict == Verdict::More && reads < 100 {
        let mut words = read(&span, &view, &probe);
        change(&mut words);
        verdict = probe.judge(&view, &key(9), &|n| words[n]);
        reads += 1;
    }
    (verdict, reads)
}

#[test]
fn a_chain_is_followed_through_finished_items_of_its_bucket_alone_and_ends() {
    assert_eq!(followed(|_| ()), (Verdict::Miss, 2));
    assert_eq!(followed(|words| words[TAIL] |= 1), (Verdict::Torn, 2));
    // It leads to itself.
    let circle = |words: &mut [u64]| words[TAIL] |= 1 << LINK;
    assert_eq!(followed(circle), (Verdict::Torn, CHAIN_MAX + 1));
    // No item is there any more.
    let empty = |words: &mut [u64]| words[0] &= (1 << 40) - 1;
    assert_eq!(followed(empty), (Verdict::Torn, 2));
    // A key longer than any.
    let long = |words: &mut [u64]| words[0] |= 0xff << 40;
    assert_eq!(followed(long), (Verdict::Torn, 2));
}

/// An overflow slot that left its chain while the link to it was followed, and has an item of another bucket
/// now: what its own link leads to is not this bucket's.
#[test]
fn an_item_of_another_bucket_does_not_end_a_chain() {
    let (mut table, span, view) = empty(2, Values::Inline);
    let in_bucket = |n: &usize| Probe::new(&view, &key(*n)).extent(&view).offset / 64;
    let [mut here, mut there] = [0, 1].map(|bucket| (0..).filter(move |n| in_bucket(n) == bucket));
    let absent = key(here.next().unwrap());
    // More than the three slots of both neighbourhoods.
    for n in here.by_ref().take(4) {
        table.put(&key(n), b"value").unwrap();
    }
    let look = |other: Option<[u8; 8]>| {
        let (mut probe, verdict) = judged((&span, &view), &absent, |_| ());
        assert_eq!(verdict, Verdict::More);
        let mut words = read(&span, &view, &probe);
        // It is the last one of the chain.
        words[TAIL] &= (1 << LINK) - 1;
        if let Some(other) = other {
            words[1] = u64::from_le_bytes(other);
        }
        probe.judge(&view, &absent, &|n| words[n])
    };
    assert_eq!(look(None), Verdict::Miss);
    assert_eq!(look(Some(key(there.next().unwrap()))), Verdict::Torn);
}

/// Keys are padded with zeros to words: their lengths are compared too, by clients and by the server.
#[test]
fn keys_that_differ_by_a_zero_at_their_end_are_two() {
    let (mut table, span, view) = empty(1, Values::Inline);
    let [short, long] = [&b"abc"[..], b"abc\0"];
    table.put(short, b"short").unwrap();
    assert_eq!(judged((&span, &view), long, |_| ()).1, Verdict::Miss);
    assert_eq!(table.get(long, &mut [0; 16]), None);
    assert!(!table.delete(long));
    table.put(long, b"a long one").unwrap();
    assert_eq!(table.counts().items, 2);
    for (key, len) in [(short, 5), (long, 10)] {
        let (probe, verdict) = judged((&span, &view), key, |_| ());
        assert_eq!((verdict, probe.value_len()), (Verdict::Hit, len));
        assert_eq!(table.get(key, &mut [0; 16]), Some(len));
    }
}

/// Where the lines of a READ may be loaded in any order, a miss counts after three READs in a row in which
/// the bucket's slot has one version.
#[test]
fn a_miss_without_order_needs_a_bucket_that_stays_as_it_is() {
    let (mut table, span, view) = table(Values::Inline, 1);
    let view = View {
        ordered_read: false,
        ..view
    };
    let mut probe = Probe::new(&view, &key(9));
    let mut next = |table: &mut Table, changes: bool| {
        if changes {
            table.put(&key(0), b"other").unwrap();
        }
        let words = read(&span, &view, &probe);
        probe.judge(&view, &key(9), &|n| words[n])
    };
    let looks = [false, false, true, false, false].map(|changes| next(&mut table, changes));
    let more = Verdict::More;
    assert_eq!(looks, [more, more, more, more, Verdict::Miss]);
}

/// Of READs before and after a torn one it is not known that nothing changed between them.
#[test]
fn a_torn_read_begins_the_count_of_misses_again() {
    let (_table, span, view) = table(Values::Inline, 1);
    let view = View {
        ordered_read: false,
        ..view
    };
    let mut probe = Probe::new(&view, &key(9));
    let looks = [false, false, true, false, false, false].map(|torn| {
        let mut words = read(&span, &view, &probe);
        words[TAIL] |= u64::from(torn);
        probe.judge(&view, &key(9), &|n| words[n])
    });
    let more = Verdict::More;
    let expected = [more, more, Verdict::Torn, more, more, Verdict::Miss];
    assert_eq!(looks, expected);
}
