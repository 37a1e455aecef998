//! Composes memcached text requests from the steps of a trace.

use std::collections::VecDeque;

use herdwick_mem::append;

use crate::{target::Load, workload::KeySpace};

/// Turns steps of a trace into request bytes by patching templates.
#[derive(Debug)]
pub(super) struct Composer {
    space: KeySpace,
    /// Template ` KEY`.
    key: Vec<u8>,
    /// Template `set KEY 0 0 LENGTH\r\nVALUE\r\n`.
    put: Vec<u8>,
    value_at: usize,
    multiget: usize,
    /// Keys collected for one `get`.
    group: Vec<u32>,
    /// Writes that the trace has between the reads of a group; sent after the group.
    deferred: VecDeque<u32>,
}

/// One composed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Composed {
    /// Keys that it reads; 0 for a write.
    pub(super) reads: usize,
}

const SET: &[u8] = b"set ";

impl Composer {
    pub(super) fn new(space: KeySpace, multiget: usize) -> Self {
        let filler = space.key_filler();
        let header = format!(" 0 0 {}\r\n", space.value_size());
        let value = vec![0; space.value_size()];
        let put = [SET, &filler, header.as_bytes(), &value, b"\r\n"].concat();
        Self {
            key: [b" ", &filler[..]].concat(),
            value_at: SET.len() + filler.len() + header.len(),
            put,
            space,
            multiget,
            group: Vec::with_capacity(multiget),
            deferred: VecDeque::with_capacity(multiget),
        }
    }

    /// Returns whether any request is left.
    pub(super) fn has_more(&self, load: &mut Load<'_>) -> bool {
        !self.deferred.is_empty() || load.trace.peek().is_some()
    }

    /// Appends the next request to `out`, and the keys that it reads to `wanted`. There must be a
    /// request left ([`Composer::has_more`]).
    pub(super) fn compose(
        &mut self,
        load: &mut Load<'_>,
        out: &mut Vec<u8>,
        wanted: &mut VecDeque<u32>,
    ) -> Composed {
        if let Some(key) = self.deferred.pop_front() {
            return self.put(key, load, out);
        }
        // A group also ends when `multiget` writes are deferred, which bounds the queue of deferred
        // writes.
        while self.group.len() < self.multiget && self.deferred.len() < self.multiget {
            match load.trace.take() {
                Some(step) if !step.is_put() => self.group.push(step.key()),
                Some(step) if self.group.is_empty() => return self.put(step.key(), load, out),
                Some(step) => self.deferred.push_back(step.key()),
                None => break,
            }
        }
        self.get(out, wanted)
    }

    fn put(&mut self, key: u32, load: &mut Load<'_>, out: &mut Vec<u8>) -> Composed {
        let key_end = SET.len() + self.space.key_size();
        let value_end = self.value_at + self.space.value_size();
        load.version = load.version.wrapping_add(1);
        self.space
            .key_digits(key, &mut self.put[SET.len()..key_end]);
        self.space
            .value(key, load.version, &mut self.put[self.value_at..value_end]);
        append(out, &self.put);
        Composed { reads: 0 }
    }

    fn get(&mut self, out: &mut Vec<u8>, wanted: &mut VecDeque<u32>) -> Composed {
        out.extend_from_slice(b"get");
        for key in &self.group {
            self.space.key_digits(*key, &mut self.key[1..]);
            append(out, &self.key);
        }
        out.extend_from_slice(b"\r\n");
        let reads = self.group.len();
        wanted.extend(self.group.drain(..));
        Composed { reads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        counters::RunCounters,
        pace::Pace,
        workload::{Dist, Mix, Trace},
    };

    /// Composes the first `requests` requests of a trace.
    fn composed(mix: Mix, multiget: usize, requests: usize) -> (String, Vec<Composed>) {
        let space = KeySpace::new(100, 3, 4).unwrap();
        let mut trace = Trace::new(mix, Dist::Uniform, 100, 1000, 3);
        let (mut pace, mut counters) = (Pace::closed(), RunCounters::new());
        let mut load = Load {
            trace: &mut trace,
            pace: &mut pace,
            counters: &mut counters,
            version: 0,
        };
        let mut composer = Composer::new(space, multiget);
        let (mut out, mut wanted) = (Vec::new(), VecDeque::new());
        let shapes = (0..requests)
            .map(|_| composer.compose(&mut load, &mut out, &mut wanted))
            .collect();
        assert!(composer.deferred.len() <= multiget);
        (String::from_utf8_lossy(&out).into_owned(), shapes)
    }

    #[test]
    fn reads_are_composed_into_multigets() {
        let (text, shapes) = composed(Mix::GetShare(1.0), 3, 2);
        assert_eq!(shapes, [Composed { reads: 3 }; 2]);
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 2);
        for line in lines {
            assert!(line.starts_with("get 0"), "{line}");
            assert_eq!(line.len(), "get 000 000 000".len());
        }
    }

    #[test]
    fn sets_contain_their_value() {
        let (text, shapes) = composed(Mix::GetShare(0.0), 100, 1);
        assert_eq!(shapes, [Composed { reads: 0 }]);
        assert!(text.starts_with("set 0"), "{text}");
        assert!(text.contains(" 0 0 4\r\n"), "{text}");
        assert!(text.ends_with("\r\n"));
    }

    #[test]
    fn mix_keeps_its_shares_at_any_multiget_size() {
        for multiget in [1, 4, 100] {
            let (_, shapes) = composed(Mix::GetShare(0.5), multiget, 2000);
            let gets: usize = shapes.iter().map(|shape| shape.reads).sum();
            let puts = shapes.iter().filter(|shape| shape.reads == 0).count();
            let share = gets as f64 / (gets + puts) as f64;
            assert!((0.44..0.56).contains(&share), "{multiget}: {share}");
        }
    }
}
