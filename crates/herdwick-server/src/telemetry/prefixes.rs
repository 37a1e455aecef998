//! `stats detail`: counts of requests by key prefix, the part of the key before its first colon.

use std::{collections::HashMap, io::Write};

use herdwick_request::{Op, Request, Status};

/// Largest number of prefixes that one worker counts; further prefixes are ignored. With the
/// longest, of 250 bytes, this is 2 MiB a worker.
const PREFIXES_MAX: usize = 4096;
/// The delimiter (memcached's `-D`).
const DELIMITER: u8 = b':';

/// Counts by prefix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes(HashMap<Box<[u8]>, PrefixCounts>);

#[derive(Clone, Copy, Debug, Default)]
struct PrefixCounts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

impl Prefixes {
    /// Counts one request. Allocates for a new prefix.
    pub(crate) fn count(&mut self, request: &Request<'_>, status: Status) {
        // As in memcached, a key without the delimiter has no prefix, and is not counted.
        let Some(end) = memchr::memchr(DELIMITER, request.key) else {
            return;
        };
        let Some(counts) = self.counts(&request.key[..end]) else {
            return;
        };
        match request.op {
            Op::Get(_) => {
                counts.gets += 1;
                counts.hits += u64::from(status == Status::Done);
            }
            Op::Put(_) => counts.sets += 1,
            Op::Delete(_) => counts.deletes += 1,
            // memcached counts `incr` and `decr` of no prefix.
            Op::Arith(_) => {}
        }
    }

    fn counts(&mut self, prefix: &[u8]) -> Option<&mut PrefixCounts> {
        if !self.0.contains_key(prefix) {
            if self.0.len() >= PREFIXES_MAX {
                return None;
            }
            self.0.insert(prefix.into(), PrefixCounts::default());
        }
        self.0.get_mut(prefix)
    }

    /// Adds another worker's counts.
    pub(crate) fn add(&mut self, other: &Self) {
        for (prefix, counts) in &other.0 {
            let sum = self.0.entry(prefix.clone()).or_default();
            sum.gets += counts.gets;
            sum.hits += counts.hits;
            sum.sets += counts.sets;
            sum.deletes += counts.deletes;
        }
    }

    /// Writes the counts in memcached's format.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for (prefix, counts) in &self.0 {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            let PrefixCounts {
                gets,
                hits,
                sets,
                deletes,
            } = counts;
            let line = write!(out, " get {gets} hit {hits} set {sets} del {deletes}\r\n");
            line.expect("a Vec takes every write");
        }
    }
}
