//! The store of the schedules' server, its replies as text, and a generator of random choices.

use std::{collections::HashMap, time::Duration};

use herdwick_check::Rng;
use herdwick_request::Mode;

use crate::map::{Map, Record};

/// Random numbers from a seed, and choices by them.
pub(super) struct Chance(Rng);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0.index(bound)
    }

    pub(super) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    pub(super) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    pub(super) fn micros(&mut self, most: usize) -> Duration {
        Duration::from_micros(1 + self.below(most) as u64)
    }
}

/// The items, and what was done to them.
pub(super) type Store = Map<Done>;

/// What was done to the items.
#[derive(Default)]
pub(super) struct Done {
    /// How often each mutation was carried out.
    pub(super) times: HashMap<u64, usize>,
    /// What each key held at any time since the call began.
    pub(super) held: HashMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
}

impl Done {
    fn note(&mut self, number: u64, key: &[u8], now: &[u8]) {
        *self.times.entry(number).or_default() += 1;
        self.holds(key, now);
    }

    fn holds(&mut self, key: &[u8], now: &[u8]) {
        let held = self.held.entry(key.to_vec());
        // A key that was never stored had no value.
        let held = held.or_insert_with(|| vec![None]);
        held.push(Some(now.to_vec()));
    }
}

impl Record for Done {
    /// A value begins with the number of its mutation, but for that of the counter.
    fn stored(&mut self, key: &[u8], sent: &[u8], now: &[u8]) {
        let tag = sent.split(|byte| *byte == b':').next().unwrap_or_default();
        let number = std::str::from_utf8(tag).unwrap().parse().unwrap();
        self.note(number, key, now);
    }

    fn added(&mut self, key: &[u8], delta: u64, now: &[u8]) {
        self.note(delta, key, now);
    }
}

/// As a server begins that keeps nothing. Mutations are numbered from 1.
pub(super) fn begin(store: &mut Store) {
    for held in store.record.held.values_mut() {
        held.push(None);
    }
    store.items.clear();
    store.put(b"counter", Mode::Set, b"0");
}

/// Returns the reply to the first command of `inbox` and the bytes of that command, once it is
/// complete.
pub(super) fn answered(inbox: &[u8], store: &mut Store) -> Option<(Vec<u8>, usize)> {
    let end = inbox.windows(2).position(|two| two == b"\r\n")? + 2;
    let line = std::str::from_utf8(&inbox[..end - 2]).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let reply = match words[..] {
        ["gets", ref keys @ ..] => {
            let mut reply = Vec::new();
            for key in keys {
                if let Some((value, version)) = store.items.get(key.as_bytes()) {
                    let head = format!("VALUE {key} 0 {} {version}\r\n", value.len());
                    reply.extend_from_slice(head.as_bytes());
                    reply.extend_from_slice(value);
                    reply.extend_from_slice(b"\r\n");
                }
            }
            [&reply[..], b"END\r\n"].concat()
        }
        [verb @ ("set" | "append"), key, _, _, len] => {
            let len: usize = len.parse().unwrap();
            let value = inbox.get(end..end + len)?;
            inbox.get(end + len..end + len + 2)?;
            let mode = if verb == "set" {
                Mode::Set
            } else {
                Mode::Append
            };
            let stored = store.put(key.as_bytes(), mode, value);
            let reply: &[u8] = if stored {
                b"STORED\r\n"
            } else {
                b"NOT_STORED\r\n"
            };
            return Some((reply.to_vec(), end + len + 2));
        }
        ["incr", key, delta] => match store.incr(key.as_bytes(), delta.parse().unwrap()) {
            Some(sum) => format!("{sum}\r\n").into_bytes(),
            None => b"NOT_FOUND\r\n".to_vec(),
        },
        ["version"] => b"VERSION 1\r\n".to_vec(),
        _ => panic!("{line}"),
    };
    Some((reply, end))
}
