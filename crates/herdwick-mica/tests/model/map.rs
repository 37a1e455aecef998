//! The model: a map that never evicts, with memcached's rules implemented a second time, from
//! memcached's sources.

use std::collections::HashMap;

use herdwick_request::{
    Arith, Clock, Deadline, Delete, Get, Item, Mode, Op, Put, Reply, Second, Status,
};

use crate::common::Answer;

/// The item of a key.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    value: Vec<u8>,
    flags: u32,
    version: u64,
    deadline: Deadline,
    last_access: Second,
    fetched: bool,
    stale: bool,
    win_sent: bool,
}

/// The map.
#[derive(Clone, Default)]
pub(crate) struct Model {
    entries: HashMap<Vec<u8>, Entry>,
    sequence: u64,
    flush_at: Option<Second>,
}

impl Model {
    pub(crate) fn flush(&mut self, now: Second, at: Second) {
        self.flush_at = Some(at);
        self.tick(now);
    }

    /// Continues versions at the next multiple of 2^20, as a recovered store does.
    pub(crate) fn restart(&mut self) {
        self.sequence = self.sequence.next_multiple_of(1 << 20);
    }

    pub(crate) fn tick(&mut self, now: Second) {
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.entries.clear();
        }
        self.entries.retain(|_, entry| !entry.deadline.passed(now));
    }

    pub(crate) fn holds(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    /// Returns the bytes of its value, 0 without one.
    pub(crate) fn value_len(&self, key: &[u8]) -> usize {
        self.entries.get(key).map_or(0, |entry| entry.value.len())
    }

    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.entries.keys().cloned().collect()
    }

    /// Returns the bytes that its items would take in a store, at most.
    pub(crate) fn bytes(&self) -> usize {
        self.entries
            .iter()
            .map(|(key, entry)| {
                (32 + key.len() + entry.value.len())
                    .next_multiple_of(8)
                    .max(64)
            })
            .sum()
    }

    pub(crate) fn lose(&mut self, key: &[u8]) {
        self.entries.remove(key);
    }

    pub(crate) fn run(&mut self, clock: Clock, key: &[u8], op: &Op<'_>) -> Answer {
        let now = clock.second;
        let answer = match op {
            Op::Get(get) => self.get(clock, key, get),
            Op::Put(put) => self.put(clock, key, put),
            Op::Delete(delete) => self.delete(clock, key, delete),
            Op::Arith(arith) => self.arith(clock, key, arith),
        };
        self.tick(now);
        answer
    }

    fn version(&mut self, explicit: Option<u64>) -> u64 {
        explicit.unwrap_or_else(|| {
            self.sequence += 1;
            self.sequence
        })
    }

    fn get(&mut self, clock: Clock, key: &[u8], get: &Get) -> Answer {
        let now = clock.second;
        let Some(entry) = self.entries.get_mut(key) else {
            let Some(exptime) = get.vivify else {
                return bare(Status::NotFound);
            };
            let mut entry = Entry {
                version: self.version(get.version),
                deadline: clock.deadline(exptime),
                ..Entry::new(b"", now)
            };
            let mut answer = entry.answer();
            answer.won = true;
            entry.win_sent = true;
            entry.fetched = !get.quiet_access;
            self.entries.insert(key.to_vec(), entry);
            return answer;
        };
        let mut answer = entry.answer();
        let before = entry.deadline;
        if let Some(exptime) = get.touch {
            entry.deadline = clock.deadline(exptime);
        }
        let judged = if get.touch_first {
            entry.deadline
        } else {
            before
        };
        let soon = get.recache.is_some_and(|exptime| {
            judged != Deadline::NEVER && judged.0 < clock.deadline(exptime).0
        });
        answer.won = !entry.win_sent && (entry.stale && !get.unaware || soon);
        entry.win_sent |= answer.won;
        if !get.quiet_access {
            entry.fetched = true;
            entry.last_access = now;
        }
        answer
    }

    fn put(&mut self, clock: Clock, key: &[u8], put: &Put<'_>) -> Answer {
        let mut new = Entry {
            flags: put.flags,
            deadline: clock.deadline(put.exptime),
            ..Entry::new(put.value, clock.second)
        };
        let cas = put.compare.is_some();
        let join = matches!(put.mode, Mode::Append | Mode::Prepend);
        match self.entries.get(key) {
            None if join => match put.vivify {
                None => return bare(Status::NotStored),
                Some(exptime) => new.deadline = clock.deadline(exptime),
            },
            None if put.mode == Mode::Add => {}
            None if cas => return bare(Status::NotFound),
            None if put.mode == Mode::Replace => return bare(Status::NotStored),
            None => {}
            Some(_) if put.mode == Mode::Add => return bare(Status::NotStored),
            Some(old) if join => {
                if cas && put.compare != Some(0) && put.compare != Some(old.version) {
                    return bare(Status::Exists);
                }
                let (front, back) = match put.mode {
                    Mode::Append => (&old.value[..], put.value),
                    _ => (put.value, &old.value[..]),
                };
                new.value = [front, back].concat();
                new.flags = old.flags;
                new.deadline = old.deadline;
            }
            Some(old) => match put.compare {
                None => {}
                Some(version) if version == old.version => {}
                Some(version) if put.invalidate && version != 0 && version < old.version => {
                    new.deadline = old.deadline;
                    new.stale = true;
                    new.win_sent = old.win_sent;
                }
                Some(_) => return bare(Status::Exists),
            },
        }
        new.version = self.version(put.version);
        self.keep(key, new)
    }

    fn delete(&mut self, clock: Clock, key: &[u8], delete: &Delete) -> Answer {
        let Some(mut entry) = self.entries.get(key).cloned() else {
            return bare(Status::NotFound);
        };
        if delete
            .compare
            .is_some_and(|version| version != entry.version)
        {
            return bare(Status::Exists);
        }
        let deadline = delete.exptime.map(|exptime| clock.deadline(exptime));
        if delete.drop_value {
            entry = Entry {
                version: delete.version.unwrap_or(entry.version),
                deadline: deadline.unwrap_or(Deadline::NEVER),
                flags: delete.flags,
                ..Entry::new(b"", clock.second)
            };
        }
        if delete.invalidate {
            entry.stale = true;
            entry.win_sent = false;
            entry.deadline = deadline.unwrap_or(entry.deadline);
            entry.version = self.version(delete.version);
        }
        if !delete.drop_value && !delete.invalidate {
            self.entries.remove(key);
            return bare(Status::Done);
        }
        self.keep(key, entry)
    }

    fn arith(&mut self, clock: Clock, key: &[u8], arith: &Arith) -> Answer {
        let Some(old) = self.entries.get(key).cloned() else {
            let Some(exptime) = arith.vivify else {
                return bare(Status::NotFound);
            };
            let initial = arith.initial;
            let entry = Entry {
                version: self.version(arith.version),
                deadline: clock.deadline(exptime),
                ..Entry::new(initial.to_string().as_bytes(), clock.second)
            };
            let answer = self.keep(key, entry);
            return Answer {
                number: initial,
                ..answer
            };
        };
        let text = String::from_utf8_lossy(&old.value).into_owned();
        if text.is_empty() {
            return bare(Status::NonNumeric);
        }
        if arith
            .compare
            .is_some_and(|version| version != 0 && version != old.version)
        {
            return bare(Status::Exists);
        }
        let is_space = |c: char| " \t\n\x0b\x0c\r".contains(c);
        let ends = |c: char| is_space(c) || c == '\0';
        let word = text.trim_start_matches(is_space).split(ends).next();
        let Ok(number) = word.unwrap_or_default().parse::<u64>() else {
            return bare(Status::NonNumeric);
        };
        let number = match arith.decrement {
            true => number.saturating_sub(arith.delta),
            false => number.wrapping_add(arith.delta),
        };
        let digits = number.to_string();
        let fits = digits.len() <= old.value.len();
        let mut new = if fits {
            // A width in `format!` has 16 bits.
            let mut value = digits.into_bytes();
            value.resize(old.value.len(), b' ');
            Entry {
                value,
                last_access: clock.second,
                ..old
            }
        } else {
            Entry {
                flags: old.flags,
                deadline: old.deadline,
                ..Entry::new(digits.as_bytes(), clock.second)
            }
        };
        new.version = self.version(arith.version);
        let before = new.deadline;
        if let Some(exptime) = arith.touch.filter(|_| fits) {
            new.deadline = clock.deadline(exptime);
        }
        let answer = self.keep(key, new);
        Answer {
            number,
            deadline: before,
            ..answer
        }
    }

    fn keep(&mut self, key: &[u8], entry: Entry) -> Answer {
        let answer = entry.answer();
        self.entries.insert(key.to_vec(), entry);
        answer
    }
}

impl Entry {
    fn new(value: &[u8], now: Second) -> Self {
        Self {
            value: value.to_vec(),
            flags: 0,
            version: 0,
            deadline: Deadline::NEVER,
            last_access: now,
            fetched: false,
            stale: false,
            win_sent: false,
        }
    }

    fn answer(&self) -> Answer {
        let item = Item {
            value: &self.value,
            flags: self.flags,
            version: self.version,
            deadline: self.deadline,
            fetched: self.fetched,
            last_access: self.last_access,
            won: false,
            stale: self.stale,
            win_sent: self.win_sent,
        };
        Answer::from(&Reply::with(Status::Done, item))
    }
}

fn bare(status: Status) -> Answer {
    Answer::from(&Reply::bare(status))
}
