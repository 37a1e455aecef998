//! A map that executes requests: as much of a store as the client's tests need.

use std::collections::HashMap;

use herdwick_request::{
    Clock, EXPTIME_PAST, Execute, Item, Mode, Op, Reply, Request, Sink, Status,
};

/// What is written down of each mutation, as it is carried out.
pub(crate) trait Record {
    /// `sent` was stored under `key`, which holds `now` by it.
    fn stored(&mut self, _key: &[u8], _sent: &[u8], _now: &[u8]) {}

    /// `delta` was added to what `key` holds, which is `now` by it.
    fn added(&mut self, _key: &[u8], _delta: u64, _now: &[u8]) {}
}

impl Record for () {}

/// Values with their versions.
#[derive(Default)]
pub(crate) struct Map<R = ()> {
    pub(crate) items: HashMap<Vec<u8>, (Vec<u8>, u64)>,
    versions: u64,
    /// Requests, of whatever kind.
    pub(crate) executed: u64,
    pub(crate) record: R,
}

impl<R: Record> Map<R> {
    /// Stores `value` if `mode` does so; whether it did.
    pub(crate) fn put(&mut self, key: &[u8], mode: Mode, value: &[u8]) -> bool {
        let old = self.items.get(key).map(|(old, _)| old);
        let new = match (mode, old) {
            (Mode::Set, _) => value.to_vec(),
            (Mode::Append, Some(old)) => [old, value].concat(),
            _ => return false,
        };
        self.record.stored(key, value, &new);
        self.hold(key, new);
        true
    }

    /// The sum, if there is anything to add to.
    pub(crate) fn incr(&mut self, key: &[u8], delta: u64) -> Option<u64> {
        let (old, _) = self.items.get(key)?;
        let old: u64 = std::str::from_utf8(old).unwrap().parse().unwrap();
        let new = (old + delta).to_string().into_bytes();
        self.record.added(key, delta, &new);
        self.hold(key, new);
        Some(old + delta)
    }

    fn hold(&mut self, key: &[u8], value: Vec<u8>) {
        self.versions += 1;
        self.items.insert(key.to_vec(), (value, self.versions));
    }

    /// What became of it, and the number that a reply shows.
    fn carry_out(&mut self, request: &Request<'_>) -> (Status, u64) {
        let (key, is_there) = (request.key, self.items.contains_key(request.key));
        match &request.op {
            Op::Get(_) | Op::Delete(_) if is_there => (Status::Done, 0),
            Op::Get(_) | Op::Delete(_) => (Status::NotFound, 0),
            Op::Put(put) if self.put(key, put.mode, put.value) => (Status::Done, 0),
            Op::Put(_) => (Status::NotStored, 0),
            Op::Arith(arith) => match self.incr(key, arith.delta) {
                Some(sum) => (Status::Done, sum),
                None => (Status::NotFound, 0),
            },
        }
    }
}

impl<R: Record> Execute for Map<R> {
    fn execute(&mut self, _: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        for (index, request) in batch.iter().enumerate() {
            self.executed += 1;
            let (status, number) = self.carry_out(request);
            let held = self.items.get(request.key);
            let item = held.map(|(value, version)| Item::plain(value, *version));
            let reply = Reply {
                item: item.filter(|_| status == Status::Done),
                number,
                ..Reply::bare(status)
            };
            sink.reply(index, &reply);
            let goes = match &request.op {
                Op::Get(get) => get.touch == Some(EXPTIME_PAST),
                op => matches!(op, Op::Delete(_)),
            };
            if goes {
                self.items.remove(request.key);
            }
        }
    }
}
