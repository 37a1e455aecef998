//! A plain map as the store: the reference for the answers of both state machines.

use std::collections::HashMap;

use herdwick_request::{
    Arith, Clock, Delete, EXPTIME_PAST, Execute, Item, KeyHash, Mode, Op, Put, ReadReport, Reply,
    Request, Sink, Status,
};

use crate::fixture::HASH_KEY;

/// The stag of an item is its version, and so much.
pub(crate) const STAGS: u32 = 1000;

/// The simplest possible store, against which the machines' answers are checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) items: HashMap<Vec<u8>, Stored>,
    pub(crate) versions: u64,
    /// Requests executed.
    pub(crate) executed: u64,
    /// Reads that were reported, and the hashes in the reports.
    pub(crate) reported: (u64, Vec<u64>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) value: Vec<u8>,
    pub(crate) flags: u32,
    pub(crate) version: u64,
}

impl Execute for Model {
    fn note_reads(&mut self, _: Clock, report: &ReadReport<'_>) {
        self.reported.0 += u64::from(report.hits);
        self.reported.1.extend(report.hashes().map(|hash| hash.0));
    }

    fn stag(&mut self, _: Clock, _: KeyHash, key: &[u8]) -> Option<u32> {
        let stored = self.items.get(key)?;
        Some(stored.version as u32 + STAGS)
    }

    fn execute(&mut self, _: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        for (index, request) in batch.iter().enumerate() {
            self.executed += 1;
            let (status, number) = self.run(request);
            // An item that a touch expires is shown once more.
            let touched = matches!(request.op, Op::Get(get) if get.touch == Some(EXPTIME_PAST));
            let ended = (touched && status == Status::Done)
                .then(|| self.items.remove(request.key))
                .flatten();
            let stored = ended.as_ref().or_else(|| self.items.get(request.key));
            let shown = stored.filter(|_| status == Status::Done || status == Status::Exists);
            sink.reply(
                index,
                &Reply {
                    item: shown.map(Stored::shown),
                    number,
                    ..Reply::bare(status)
                },
            );
        }
    }
}

impl Stored {
    fn shown(&self) -> Item<'_> {
        Item {
            flags: self.flags,
            ..Item::plain(&self.value, self.version)
        }
    }
}

impl Model {
    fn run(&mut self, request: &Request<'_>) -> (Status, u64) {
        let known = self.items.contains_key(request.key);
        let honest = HASH_KEY.hash(request.key) == request.hash;
        match &request.op {
            Op::Get(_) if known && honest => (Status::Done, 0),
            Op::Get(_) => (Status::NotFound, 0),
            _ if !honest => (Status::BadKey, 0),
            Op::Put(put) => (self.put(request.key, put), 0),
            Op::Delete(delete) => (self.delete(request.key, delete), 0),
            Op::Arith(arith) => self.arith(request.key, arith),
        }
    }

    /// The status of a failed comparison; `None` if it holds.
    fn compare(&self, key: &[u8], compare: Option<u64>) -> Option<Status> {
        match (self.items.get(key), compare) {
            (None, Some(_)) => Some(Status::NotFound),
            (Some(stored), Some(version)) if stored.version != version => Some(Status::Exists),
            _ => None,
        }
    }

    fn put(&mut self, key: &[u8], put: &Put<'_>) -> Status {
        if let Some(status) = self.compare(key, put.compare) {
            return status;
        }
        let old = self.items.get(key).cloned();
        let (value, flags) = match (put.mode, old) {
            (Mode::Set, _) | (Mode::Add, None) | (Mode::Replace, Some(_)) => {
                (put.value.to_vec(), put.flags)
            }
            (Mode::Append, Some(old)) => ([&old.value, put.value].concat(), old.flags),
            (Mode::Prepend, Some(old)) => ([put.value, &old.value].concat(), old.flags),
            _ => return Status::NotStored,
        };
        self.store(key, value, flags);
        Status::Done
    }

    /// Stores something under `key`, as another client would.
    pub(crate) fn overwrite(&mut self, key: &[u8]) {
        self.store(key, b"somebody else's".to_vec(), 0);
    }

    fn store(&mut self, key: &[u8], value: Vec<u8>, flags: u32) {
        self.versions += 1;
        let version = self.versions;
        let stored = Stored {
            value,
            flags,
            version,
        };
        self.items.insert(key.to_vec(), stored);
    }

    fn delete(&mut self, key: &[u8], delete: &Delete) -> Status {
        if let Some(status) = self.compare(key, delete.compare) {
            return status;
        }
        match self.items.remove(key) {
            Some(_) => Status::Done,
            None => Status::NotFound,
        }
    }

    fn arith(&mut self, key: &[u8], arith: &Arith) -> (Status, u64) {
        if let Some(status) = self.compare(key, arith.compare) {
            return (status, 0);
        }
        let Some(old) = self.items.get(key).cloned() else {
            return match arith.vivify {
                Some(_) => {
                    self.store(key, arith.initial.to_string().into_bytes(), 0);
                    (Status::Done, arith.initial)
                }
                None => (Status::NotFound, 0),
            };
        };
        let Some(number) = std::str::from_utf8(&old.value)
            .ok()
            .and_then(|n| n.parse().ok())
        else {
            return (Status::NonNumeric, 0);
        };
        let new = if arith.decrement {
            u64::saturating_sub(number, arith.delta)
        } else {
            number.wrapping_add(arith.delta)
        };
        self.store(key, new.to_string().into_bytes(), old.flags);
        (Status::Done, new)
    }

    /// The number under `key`.
    pub(crate) fn number(&self, key: &[u8]) -> Option<u64> {
        std::str::from_utf8(&self.items.get(key)?.value)
            .ok()?
            .parse()
            .ok()
    }
}
