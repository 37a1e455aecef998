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
    let geometry = Geometry::new(Terms {
        buckets: 1,
        neighbourhood: NEIGHBOURHOOD,
        overflow: 4,
        key_bytes_max: 8,
        value_bytes_max: 16,
        values,
    })
    .unwrap();
    let span = Span::anonymous(geometry.bytes()).unwrap();
    let mut table = Table::new(span.clone(), geometry, HASH_KEY);
    for n in 0..keys {
        table.put(&key(n), b"value").unwrap();
    }
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
