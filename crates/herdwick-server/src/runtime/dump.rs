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
        while self.bucket < end && out.len() < STEP_BYTES {
            store.scan(clock.second, self.bucket, |key, item, bytes| {
                let from = out.len();
                if self.items_left > 0 && out.len() < self.bytes_left {
                    self.items_left -= 1;
                    show(self.format, clock, key, item, bytes, out);
                }
                self.bytes_left -= (out.len() - from).min(self.bytes_left);
            });
            self.bucket += 1;
        }
        self.done = self.bucket == store.buckets();
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
        if self.items_left == 0 || self.bytes_left == 0 {
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
            writeln!(
                out,
                " la={used} cas={cas} fetch={fetched} cls=1 size={bytes} flags={flags} "
            )
        }
        DumpFormat::Mgdump => {
            out.extend_from_slice(b"mg ");
            if key.iter().all(u8::is_ascii_graphic) {
                out.extend_from_slice(key);
                writeln!(out, "\r")
            } else {
                base64::encode(key, out);
                writeln!(out, " b\r")
            }
        }
        DumpFormat::Cachedump => {
            out.extend_from_slice(b"ITEM ");
            out.extend_from_slice(key);
            let (len, at) = (item.value.len(), expires.unwrap_or(0));
            writeln!(out, " [{len} b; {at} s]\r")
        }
    }
    .expect("a Vec takes every write");
}
