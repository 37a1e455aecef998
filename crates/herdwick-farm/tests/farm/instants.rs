//! READs beside every store of a change: the memory logs the stores of the table, and a search looks for the
//! instants at which a READ would miss an item that is there, or mix two versions of a line.

use std::collections::BTreeMap;

use herdwick_check::Rng;
use herdwick_conformance::StoreLog;
use herdwick_farm::{Geometry, LINE_WORDS, Probe, Table, Terms, Values, Verdict, View};
use herdwick_mem::{WORD, Words};
use herdwick_request::HashKey;

const HASH_KEY: HashKey = HashKey([3, 4]);
const NEIGHBOURHOOD: usize = 6;
const BUCKETS: usize = 16;
const TAIL: usize = LINE_WORDS - 1;
/// Bits of a version in the first and the last word of a line.
const VERSION: u64 = (1 << 40) - 1;
/// Keys that are there throughout.
const STAY: u64 = 8;
/// All keys: more than fit, so that items are displaced all the time.
const KEYS: u64 = 40;

/// The content of each line, and from which store on it was so. Instant `n` is before store `n`.
struct History {
    lines: Vec<Vec<(usize, [u64; LINE_WORDS])>>,
    end: usize,
}

impl History {
    fn of(log: &StoreLog, from: usize) -> Self {
        let stores = log.stores();
        let mut lines = vec![vec![(0, [0; LINE_WORDS])]; log.count() / LINE_WORDS];
        for (instant, (word, value)) in (1..).zip(&stores) {
            let states = &mut lines[word / LINE_WORDS];
            let mut line = states.last().unwrap().1;
            line[word % LINE_WORDS] = *value;
            states.push((instant, line));
        }
        for states in &mut lines {
            // What was before the READs begin does not concern them.
            let first = states.partition_point(|(since, _)| *since <= from) - 1;
            states.drain(..first);
        }
        let end = stores.len();
        Self { lines, end }
    }

    /// Returns the states of a line, each with its first instant and the one after its last.
    fn states(&self, line: usize) -> impl Iterator<Item = (usize, usize, &[u64; LINE_WORDS])> {
        let states = &self.lines[line];
        let ends = states[1..].iter().map(|(since, _)| *since);
        let ends = ends.chain([self.end + 1]);
        states
            .iter()
            .zip(ends)
            .map(|((since, line), end)| (*since, end, line))
    }

    /// Returns the first instant from `from` on at which a line is as `good` says, and the line.
    fn first(
        &self,
        (line, from): (usize, usize),
        good: impl Fn(&[u64; LINE_WORDS]) -> bool,
    ) -> Option<(usize, [u64; LINE_WORDS])> {
        self.states(line)
            .find(|(_, end, line)| *end > from && good(line))
            .map(|(since, _, line)| (since.max(from), *line))
    }
}

fn key(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

fn version(line: &[u64; LINE_WORDS]) -> u64 {
    line[0] & VERSION
}

/// Returns whether a line is complete and does not hold a key.
fn lacks(line: &[u64; LINE_WORDS], n: u64) -> bool {
    let finished = version(line) == line[TAIL] & VERSION;
    finished && (line[0] >> 40 & 0xff == 0 || line[1] != n)
}

/// Makes an empty table of slots of one line.
fn empty(ordered_read: bool) -> (Table<StoreLog>, StoreLog, View) {
    let geometry = Geometry::new(Terms {
        buckets: BUCKETS,
        neighbourhood: NEIGHBOURHOOD,
        // Without chains a GET is one READ after the other of the neighbourhood.
        overflow: 0,
        key_bytes_max: 8,
        value_bytes_max: 40,
        values: Values::Inline,
    })
    .unwrap();
    let log = StoreLog::new(geometry.bytes() / WORD);
    let table = Table::new(log.clone(), geometry, HASH_KEY);
    let hash_key = HASH_KEY;
    let view = View {
        geometry,
        hash_key,
        ordered_read,
    };
    (table, log, view)
}

/// Changes a table at random; returns the history of its lines since all keys that stay are there.
fn changed(seed: u64) -> (History, View) {
    let (mut table, log, view) = empty(true);
    (0..STAY).for_each(|n| table.put(&key(n), &[0; 40]).unwrap());
    let from = log.logged();
    let mut rng = Rng::new(seed);
    for round in 0..600 {
        let n = STAY + rng.below(KEYS - STAY);
        if rng.below(2) == 0 {
            table.delete(&key(n));
        } else {
            // A full table refuses.
            let _ = table.put(&key(n), &[round as u8; 40]);
        }
        if rng.below(8) == 0 {
            let n = rng.below(STAY);
            table.put(&key(n), &[round as u8; 40]).unwrap();
        }
    }
    (History::of(&log, from), view)
}

/// Has an item displaced from each slot of its neighbourhood to the next; returns its key, and the history of all
/// lines since it is there.
fn moved_slot_by_slot() -> (u64, History, View) {
    let (mut table, log, view) = empty(false);
    let home = 8;
    let mut keys: Vec<_> = (0..1000).collect();
    let mut in_bucket = |wanted: usize| {
        let found = keys.iter().position(|n| bucket(&view, *n) == wanted);
        keys.swap_remove(found.unwrap())
    };
    let mut put = |n: u64| table.put(&key(n), &[0; 40]).unwrap();
    // As far from their bucket as they may be, once a slot becomes free beyond that of the item.
    let before = home + 1 - NEIGHBOURHOOD;
    (before..home).for_each(|_| put(in_bucket(before)));
    let n = in_bucket(home);
    put(n);
    let from = log.logged();
    (before..home).for_each(|bucket| put(in_bucket(bucket)));
    (n, History::of(&log, from), view)
}

/// Returns the first line of a key's neighbourhood.
fn bucket(view: &View, n: u64) -> usize {
    Probe::new(view, &key(n)).extent(view).offset / (WORD * LINE_WORDS)
}

/// Judges a READ of these lines.
fn judge(probe: &mut Probe, view: &View, n: u64, lines: &[[u64; LINE_WORDS]]) -> Verdict {
    probe.judge(view, &key(n), &|word| {
        lines[word / LINE_WORDS][word % LINE_WORDS]
    })
}

/// Returns the distances at which a key was, without repetitions, one after the other.
fn distances(history: &History, view: &View, n: u64) -> Vec<usize> {
    let lines = bucket(view, n)..bucket(view, n) + NEIGHBOURHOOD;
    let mut since = BTreeMap::new();
    for (distance, line) in lines.enumerate() {
        if let Some((instant, _)) = history.first((line, 0), |line| {
            !lacks(line, n) && version(line) == line[TAIL] & VERSION
        }) {
            since.insert(instant, distance);
        }
    }
    since.into_values().collect()
}

/// A READ in rising order, of a line at once, that begins and ends at any time, does not miss a key that is there
/// throughout, however often it is displaced.
#[test]
fn an_item_that_moves_is_found_by_a_read_in_rising_order() {
    let mut displaced = 0;
    for seed in 0..60 {
        let (history, view) = changed(seed);
        for n in 0..STAY {
            displaced += distances(&history, &view, n).len() - 1;
            // As early as possible leaves the most for the lines behind.
            let mut now = 0;
            let lines = bucket(&view, n)..bucket(&view, n) + NEIGHBOURHOOD;
            let read: Option<Vec<_>> = lines
                .map(|line| {
                    let (instant, line) = history.first((line, now), |line| lacks(line, n))?;
                    now = instant;
                    Some(line)
                })
                .collect();
            if let Some(read) = read {
                let verdict = judge(&mut Probe::new(&view, &key(n)), &view, n, &read);
                assert_ne!(verdict, Verdict::Miss, "seed {seed}: key {n}");
            }
        }
    }
    assert!(displaced > 100, "{displaced}");
}

/// Looks for READs, one after the other, of lines in any order, of which each misses key `n` while its bucket's slot
/// has one version; returns the most of them, as their lines.
fn misses(history: &History, view: &View, n: u64) -> Vec<Vec<[u64; LINE_WORDS]>> {
    let home = bucket(view, n);
    let versions: Vec<_> = history
        .states(home)
        .filter(|(.., line)| lacks(line, n))
        .collect();
    let mut most = Vec::new();
    for (.., at) in versions {
        let same = |line: &[u64; LINE_WORDS]| lacks(line, n) && version(line) == version(at);
        let (mut now, mut reads) = (0, Vec::new());
        loop {
            let mut ended = now;
            let lines: Option<Vec<_>> = (home..home + NEIGHBOURHOOD)
                .map(|line| {
                    let (instant, content) = history.first((line, now), |it| {
                        if line == home { same(it) } else { lacks(it, n) }
                    })?;
                    ended = ended.max(instant);
                    Some(content)
                })
                .collect();
            // The table at rest has every key: a READ that needs no time finds it.
            let Some(lines) = lines.filter(|_| ended > now || reads.is_empty()) else {
                break;
            };
            reads.push(lines);
            now = ended;
        }
        if reads.len() > most.len() {
            most = reads;
        }
    }
    most
}

/// Where lines may be loaded in any order, one READ can miss a key that is there throughout, and so can the next; but
/// not as many as a miss takes.
#[test]
fn an_item_that_moves_is_not_missed_by_reads_without_order() {
    let (n, history, view) = moved_slot_by_slot();
    assert_eq!(
        distances(&history, &view, n),
        Vec::from_iter(0..NEIGHBOURHOOD)
    );
    let reads = misses(&history, &view, n);
    assert!(!reads.is_empty());
    let mut probe = Probe::new(&view, &key(n));
    let verdicts = reads.iter().map(|lines| judge(&mut probe, &view, n, lines));
    assert_eq!(Vec::from_iter(verdicts), vec![Verdict::More; reads.len()]);
}

/// Words of a line that are loaded in rising order, at any times, between two of one version, are those of
/// that version.
#[test]
fn a_line_with_twice_the_same_version_has_the_words_of_that_version() {
    let mut lines = 0;
    for seed in 0..4 {
        let (history, view) = changed(seed);
        for line in 0..view.geometry.slots() {
            let states: Vec<_> = history.states(line).collect();
            for (.., at) in states
                .iter()
                .filter(|(.., it)| version(it) == it[TAIL] & VERSION)
            {
                let is = |word: &u64| word & VERSION == version(at);
                let first = states.iter().position(|(.., line)| is(&line[0]));
                let last = states.iter().rposition(|(.., line)| is(&line[TAIL]));
                for (.., line) in &states[first.unwrap()..=last.unwrap()] {
                    assert_eq!(
                        line[1..TAIL],
                        at[1..TAIL],
                        "seed {seed}: version {}",
                        version(at)
                    );
                }
                lines += 1;
            }
        }
    }
    assert!(lines > 1000, "{lines}");
}
