//! The store of the schedules' server, its replies as text, and a generator of random choices.

use std::{collections::HashMap, time::Duration};

use herdwick_mica::{
    Clock, Deadline, Execute, Item, Mode, Op, Reply, Request, Second, Sink, Status,
};

/// Random numbers from a seed (splitmix64).
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(super) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    pub(super) fn micros(&mut self, most: usize) -> Duration {
        Duration::from_micros(1 + self.below(most) as u64)
    }
}

/// The items, and a record of what was done to them.
#[derive(Default)]
pub(super) struct Store {
    pub(super) items: HashMap<Vec<u8>, (Vec<u8>, u64)>,
    versions: u64,
    /// How often each mutation was executed.
    pub(super) done: HashMap<u64, usize>,
    /// The values that each key has had since the call began.
    pub(super) held: HashMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
}

impl Store {
    fn put(&mut self, key: &[u8], mode: Mode, value: &[u8]) -> bool {
        let old = self.items.get(key).map(|(value, _)| value.clone());
        let new = match (mode, old) {
            (Mode::Set, _) => value.to_vec(),
            (Mode::Append, Some(old)) => [&old, value].concat(),
            _ => return false,
        };
        let tag = value.split(|byte| *byte == b':').next().unwrap_or_default();
        self.note(std::str::from_utf8(tag).unwrap().parse().unwrap());
        self.store(key, new);
        true
    }

    fn incr(&mut self, key: &[u8], delta: u64) -> Option<u64> {
        let (old, _) = self.items.get(key)?;
        let old: u64 = std::str::from_utf8(old).unwrap().parse().unwrap();
        self.note(delta);
        self.store(key, (old + delta).to_string().into_bytes());
        Some(old + delta)
    }

    fn note(&mut self, number: u64) {
        *self.done.entry(number).or_default() += 1;
    }

    fn store(&mut self, key: &[u8], value: Vec<u8>) {
        self.versions += 1;
        let held = self.held.entry(key.to_vec());
        // A key that was never stored had no value.
        let held = held.or_insert_with(|| vec![None]);
        held.push(Some(value.clone()));
        self.items.insert(key.to_vec(), (value, self.versions));
    }

    /// Restarts as a server without persistent items.
    pub(super) fn begin(&mut self) {
        for held in self.held.values_mut() {
            held.push(None);
        }
        self.items.clear();
        self.store(b"counter", b"0".to_vec());
    }
}

impl Execute for Store {
    fn execute(&mut self, _: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        for (index, request) in batch.iter().enumerate() {
            let mut number = 0;
            let status = match &request.op {
                Op::Get(_) if self.items.contains_key(request.key) => Status::Done,
                Op::Put(put) if self.put(request.key, put.mode, put.value) => Status::Done,
                Op::Put(_) => Status::NotStored,
                Op::Arith(arith) => match self.incr(request.key, arith.delta) {
                    Some(sum) => {
                        number = sum;
                        Status::Done
                    }
                    None => Status::NotFound,
                },
                _ => Status::NotFound,
            };
            let item = self.items.get(request.key).map(|(value, version)| Item {
                value,
                flags: 0,
                version: *version,
                deadline: Deadline::NEVER,
                fetched: false,
                last_access: Second(1),
                won: false,
                stale: false,
                win_sent: false,
            });
            sink.reply(
                index,
                &Reply {
                    item: item.filter(|_| status == Status::Done),
                    number,
                    ..Reply::bare(status)
                },
            );
        }
    }
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
