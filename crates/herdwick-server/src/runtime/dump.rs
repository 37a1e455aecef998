//! Lists all keys (`lru_crawler metadump`, `mgdump`, `stats cachedump`) and all connections (`stats
//! conns`). A dump runs in bounded steps, a few buckets at a time, no faster than its client reads.

use std::io::Write;

use herdwick_memcache::{meta::base64, text};
use herdwick_request::{Clock, Deadline, Item};

use crate::{runtime::store::Store, telemetry::uri::Uri};

/// Buckets scanned in one step: about 50 us of a worker's time.
const BUCKETS_PER_STEP: usize = 256;
/// Bytes of output after which a step ends.
const STEP_BYTES: usize = 32 << 10;
/// memcached's limit on the output of `cachedump`.
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpFormat {
    Metadump,
    Mgdump,
    Cachedump,
    /// `stats conns`: connections instead of items, in the same steps.
    Connections,
}

/// The position of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dump {
    format: DumpFormat,
    /// The current partition.
    pub(crate) worker: usize,
    /// Where the next step begins: a bucket, or a connection's index.
    bucket: usize,
    /// The current partition is complete.
    done: bool,
    items_left: u32,
    bytes_left: usize,
}

impl Dump {
    pub(crate) fn new(format: DumpFormat) -> Self {
        Self {
            format,
            worker: 0,
            bucket: 0,
            done: false,
            items_left: u32::MAX,
            bytes_left: usize::MAX,
        }
    }

    /// A dump without items.
    pub(crate) fn empty(format: DumpFormat) -> Self {
        Self {
            items_left: 0,
            ..Self::new(format)
        }
    }

    /// A `cachedump` of at most `items`; 0: as many as memcached would show.
    pub(crate) fn of_items(items: u32) -> Self {
        Self {
            items_left: if items == 0 { u32::MAX } else { items },
            bytes_left: CACHEDUMP_BYTES_MAX,
            ..Self::new(DumpFormat::Cachedump)
        }
    }

    /// Returns the output before the first item.
    pub(crate) fn opening(self) -> &'static [u8] {
        match self.format {
            DumpFormat::Metadump | DumpFormat::Mgdump => text::OK,
            DumpFormat::Cachedump | DumpFormat::Connections => &[],
        }
    }

    /// Returns the output after the last item.
    pub(crate) fn ending(self) -> &'static [u8] {
        match self.format {
            DumpFormat::Metadump | DumpFormat::Cachedump | DumpFormat::Connections => text::END,
            DumpFormat::Mgdump => b"EN\r\n",
        }
    }

    /// Lists some items of the owner's partition.
    pub(crate) fn step(&mut self, store: &mut Store, clock: Clock, out: &mut Vec<u8>) {
        let end = store.buckets().min(self.bucket + BUCKETS_PER_STEP);
        // `out` is looked at between buckets only, because a bucket that was begun has to be listed
        // whole: the dump goes on by bucket.
        while self.bucket < end && out.len() < STEP_BYTES {
            store.scan(clock.second, self.bucket, |key, item, bytes| {
                if self.is_full() {
                    return;
                }
                let from = out.len();
                show(self.format, clock, key, item, bytes, out);
                let shown = out.len() - from;
                if shown > self.bytes_left {
                    out.truncate(from);
                    self.bytes_left = 0;
                } else {
                    self.bytes_left -= shown;
                    // Some formats leave items out.
                    self.items_left -= u32::from(shown > 0);
                }
            });
            self.bucket += 1;
        }
        // The index may have shrunk.
        self.done = self.bucket >= store.buckets();
        // The other partitions are not walked any more, and the store must not wait for a walk that
        // has no next step.
        if self.is_full() {
            store.end_walk(self.bucket);
        }
    }

    /// Returns whether it has listed as much as it may.
    fn is_full(&self) -> bool {
        self.items_left == 0 || self.bytes_left == 0
    }

    /// Returns the index of the next connection, if the dump lists connections.
    pub(crate) fn connection(&self) -> Option<usize> {
        matches!(self.format, DumpFormat::Connections).then_some(self.bucket)
    }

    /// Records that the owner has listed its connections before `next`; `None`: all of them.
    pub(crate) fn showed(&mut self, next: Option<usize>) {
        self.bucket = next.unwrap_or_default();
        self.done = next.is_none();
    }

    /// Advances the dump, at the client's worker, over `workers` partitions; `None` at the end.
    pub(crate) fn onward(mut self, workers: usize) -> Option<Self> {
        if self.is_full() {
            return None;
        }
        if self.done {
            self.worker += 1;
            self.bucket = 0;
            self.done = false;
        }
        (self.worker < workers).then_some(self)
    }
}

fn show(
    format: DumpFormat,
    clock: Clock,
    key: &[u8],
    item: &Item<'_>,
    bytes: usize,
    out: &mut Vec<u8>,
) {
    let unix = |second: u32| clock.epoch_unix + u64::from(second);
    let expires = (item.deadline != Deadline::NEVER).then(|| unix(item.deadline.0));
    match format {
        DumpFormat::Connections => Ok(()),
        DumpFormat::Metadump => {
            let key = Uri(key);
            match expires {
                Some(at) => write!(out, "key={key} exp={at}"),
                None => write!(out, "key={key} exp=-1"),
            }
            .expect("a Vec takes every write");
            let (used, cas) = (unix(item.last_access.0), item.version);
            let fetched = if item.fetched { "yes" } else { "no" };
            let flags = item.flags;
            // memcached ends each of these lines with a space, too.
            writeln!(
                out,
                " la={used} cas={cas} fetch={fetched} cls=1 size={bytes} flags={flags} "
            )
        }
        DumpFormat::Mgdump => {
            out.extend_from_slice(b"mg ");
            // Keys that are no word of the text protocol are in base64, which the flag `b` states.
            if key.iter().all(u8::is_ascii_graphic) {
                out.extend_from_slice(key);
                writeln!(out, "\r")
            } else {
                base64::encode(key, out);
                writeln!(out, " b\r")
            }
        }
        // memcached leaves out keys that came in base64 or in packets, and could be lines of their own.
        DumpFormat::Cachedump if !is_word(key) => Ok(()),
        DumpFormat::Cachedump => {
            out.extend_from_slice(b"ITEM ");
            out.extend_from_slice(key);
            // memcached, too, prints 0 for an item that does not expire, and -1 above.
            let (len, at) = (item.value.len(), expires.unwrap_or(0));
            writeln!(out, " [{len} b; {at} s]\r")
        }
    }
    .expect("a Vec takes every write");
}

/// Returns whether a key can be a word of a line: it may have bytes above ASCII.
fn is_word(key: &[u8]) -> bool {
    key.iter()
        .all(|byte| !byte.is_ascii_control() && *byte != b' ')
}

#[cfg(test)]
mod tests {
    use herdwick_mica::StoreConfig;
    use herdwick_request::{Delete, Execute, HashKey, Op, Put, Reply, Request, Second};

    use super::*;

    const CLOCK: Clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };

    fn store_of<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Store {
        let hash_key = HashKey([1, 2]);
        let config = StoreConfig {
            memory_bytes: 4 << 20,
            item_bytes_max: 64 << 10,
            hash_key,
        };
        let mut store = Store::new(&config).unwrap();
        for key in keys {
            let (hash, op) = (hash_key.hash(key), Op::Put(Put::default()));
            store.execute(
                CLOCK,
                &[Request { hash, key, op }],
                &mut |_, _: &Reply<'_>| {},
            );
        }
        store
    }

    /// Returns what a whole dump lists.
    fn listed(dump: Dump, store: &mut Store) -> String {
        let (mut dump, mut out) = (Some(dump), Vec::new());
        while let Some(mut going) = dump {
            going.step(store, CLOCK, &mut out);
            dump = going.onward(1);
        }
        String::from_utf8(out).unwrap()
    }

    /// Such a key comes in base64, or in the binary protocol. Seen to fail where every key was shown as it is.
    #[test]
    fn cachedump_leaves_out_keys_that_are_no_words() {
        let keys = ["a", "b\r\nEND\r\nc", "d e", "\u{7f}", "schl\u{fc}ssel"];
        let mut store = store_of(keys.map(str::as_bytes));
        let all = listed(Dump::of_items(2), &mut store);
        let mut lines: Vec<&str> = all.split("\r\n").filter(|line| !line.is_empty()).collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            ["ITEM a [0 b; 0 s]", "ITEM schl\u{fc}ssel [0 b; 0 s]"]
        );
    }

    /// Three of four lines of 19 bytes. Seen to fail where what was listed counted twice.
    #[test]
    fn cachedump_lists_as_many_bytes_as_it_may() {
        let mut store = store_of(["1", "2", "3", "4"].map(str::as_bytes));
        let mut dump = Dump::of_items(0);
        dump.bytes_left = 3 * 19;
        let all = listed(dump, &mut store);
        assert_eq!((all.len(), all.matches("ITEM").count()), (3 * 19, 3));
    }

    /// A dump that has listed as much as it may keeps the index from shrinking no longer. Seen to fail without
    /// `end_walk`.
    #[test]
    fn index_shrinks_after_a_dump_that_has_ended_in_the_middle() {
        let (hash_key, mut store) = (HashKey([1, 2]), store_of([]));
        let (least, clock) = (store.buckets(), CLOCK);
        let run = |store: &mut Store, n: u32, op| {
            let key = format!("key-{n}");
            let hash = hash_key.hash(key.as_bytes());
            let key = key.as_bytes();
            let request = Request { hash, key, op };
            store.execute(clock, &[request], &mut |_, _: &Reply<'_>| {});
        };
        (0..30_000).for_each(|n| run(&mut store, n, Op::Put(Put::default())));
        let (mut dump, mut out) = (Some(Dump::of_items(9_000)), Vec::new());
        let mut bucket = 0;
        while let Some(mut going) = dump {
            going.step(&mut store, clock, &mut out);
            bucket = going.bucket;
            assert!(out.starts_with(b"ITEM key-"));
            out.clear();
            dump = going.onward(1);
        }
        assert!(least < bucket && bucket < store.buckets() / 2, "{bucket}");
        let keys = (0..30_000).chain(0..1_000);
        keys.for_each(|n| run(&mut store, n, Op::Delete(Delete::default())));
        assert_eq!(store.buckets(), least);
    }
}
