//! The client's machine: GETs by READs of the server's table, everything else by SEND.

use std::{collections::VecDeque, time::Duration};

use herdwick_fabric::Port;
use herdwick_read::{Begin, Outcome, ReadCounters, Reader};
use herdwick_request::HashKey;

use crate::{
    ClientCounters, Failure,
    calls::{Busy, Calls, Ended},
    judge::{Cursor, Lookups, TableView},
    layout::{CuckooHash, KEY_BYTES_MAX, VALUE_BYTES_MAX},
    message::{Op, ReplyStatus},
};

/// The answer to a request.
pub type Answer<'a> = herdwick_read::Answer<&'a [u8], Failure>;

/// Why a request cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many are in flight as there may be: poll first.
    #[error("too many requests are in flight")]
    Full,
    /// A key of no bytes, or of more than [`KEY_BYTES_MAX`].
    #[error("a key has 1 to {max} bytes, not {0}", max = KEY_BYTES_MAX)]
    Key(usize),
    /// A value of more than [`VALUE_BYTES_MAX`].
    #[error("a value has up to {max} bytes, not {0}", max = VALUE_BYTES_MAX)]
    Value(usize),
    /// The connection has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// One client of one server.
///
/// The owner calls [`Client::post`] and [`Client::poll`] in turns, and drives the port. When
/// [`Client::follows`] is false, the server's table has moved: the owner fetches the new one
/// ([`crate::ClientEnd::adopt`]). Until then, GETs go by SEND.
#[derive(Debug)]
pub struct Client {
    pub(crate) reader: Reader<Cursor>,
    lookups: Lookups,
    free: Vec<u32>,
    hash_key: HashKey,
    view: TableView,
    /// The generation that was reported to the server: it keeps the table that this names.
    reported: u32,
    /// Whether such a report is in flight.
    reporting: bool,
    /// GETs that READs did not settle, as they ended; the first is with the server if `asking`.
    unsettled: VecDeque<Cursor>,
    asking: bool,
    pub(crate) calls: Calls,
}

impl Client {
    pub(crate) fn new(
        reader: Reader<Cursor>,
        lookups: Lookups,
        (view, hash_key): (TableView, HashKey),
        calls: Calls,
    ) -> Self {
        Self {
            reader,
            free: (0..lookups.len() as u32).rev().collect(),
            hash_key,
            view,
            reported: view.generation,
            reporting: false,
            unsettled: VecDeque::with_capacity(lookups.len()),
            asking: false,
            lookups,
            calls,
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &ClientCounters {
        &self.lookups.counters
    }

    /// Returns the counters of READs.
    #[must_use]
    pub fn read_counters(&self) -> &ReadCounters {
        self.reader.counters()
    }

    /// Returns the number of requests that have begun and not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        // Calls of the client's own, of which its user knows nothing.
        let internal = usize::from(self.asking) + usize::from(self.reporting);
        let gets = self.lookups_max() - self.free.len();
        gets + self.calls.in_flight().saturating_sub(internal)
    }

    fn lookups_max(&self) -> usize {
        self.lookups.len()
    }

    /// Returns whether the table that this client READs is the server's, as far as it knows.
    #[must_use]
    pub fn follows(&self) -> bool {
        let current = self.view.generation;
        let other = self
            .calls
            .generation()
            .filter(|generation| *generation != current);
        self.lookups.moved != Some(current) && other.is_none()
    }

    /// Returns why the connection failed, if it did.
    #[must_use]
    pub fn failed(&self) -> Option<Failure> {
        let read = self.reader.failed().map(Failure::Link);
        self.calls.failed().or(read)
    }

    /// READs another table from now on.
    pub(crate) fn follow(&mut self, view: TableView) {
        self.view = view;
        self.calls.know(view.generation);
    }

    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        if let Some(failure) = self.failed() {
            return Err(failure.into());
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Refused::Key(key.len()));
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Refused::Value(value.len()));
        }
        Ok(())
    }

    /// Begins a GET. `user` comes back with the answer.
    ///
    /// # Errors
    /// [`Refused`].
    #[inline]
    pub fn get(&mut self, key: &[u8], user: u64) -> Result<(), Refused> {
        self.check(key, &[])?;
        let slot = *self.free.last().ok_or(Refused::Full)?;
        let hash = CuckooHash::of(&self.hash_key, key);
        let step = self.lookups.begin(slot, key, hash, self.view);
        let cursor = Cursor { slot, user };
        if !self.follows() {
            self.unsettled.push_back(cursor);
        } else if let Err(refused) = self.reader.begin(cursor, step) {
            return Err(match refused {
                Begin::Failed(_, status) => Failure::Link(status).into(),
                Begin::Full(_) | Begin::TooLong(_) => Refused::Full,
            });
        }
        // Only now: a GET that was refused has no slot.
        self.free.pop();
        self.lookups.counters.gets += 1;
        Ok(())
    }

    /// Begins a PUT.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn put(&mut self, key: &[u8], value: &[u8], user: u64) -> Result<(), Refused> {
        self.mutate(Op::Put, key, value, user)
    }

    /// Begins a DELETE.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn delete(&mut self, key: &[u8], user: u64) -> Result<(), Refused> {
        self.mutate(Op::Delete, key, &[], user)
    }

    fn mutate(&mut self, op: Op, key: &[u8], value: &[u8], user: u64) -> Result<(), Refused> {
        self.check(key, value)?;
        let begun = self.calls.begin((op, self.reported), key, value, user);
        begun.map_err(|Busy| Refused::Full)?;
        self.lookups.counters.mutations += 1;
        Ok(())
    }

    /// Posts what has begun.
    pub fn post<P: Port>(&mut self, port: &mut P, now: Duration) {
        self.report_adopted();
        self.ask();
        self.calls.post(port, now);
        self.reader.post(port);
    }

    /// Reports to the server that no READ of an older table is on the way.
    fn report_adopted(&mut self) {
        let current = self.view.generation;
        if self.reported == current || self.reporting || self.reads_another(current) {
            return;
        }
        let begun = self.calls.begin((Op::Adopted, current), &[0], &[], 0);
        if begun.is_ok() {
            // Later messages are behind this one.
            (self.reporting, self.reported) = (true, current);
        }
    }

    /// Whether a GET may still READ another table. One that READs did not settle does not.
    fn reads_another(&self, generation: u32) -> bool {
        let mut slots = 0..self.lookups_max() as u32;
        slots.any(|slot| {
            let reads = !self.free.contains(&slot)
                && self.unsettled.iter().all(|cursor| cursor.slot != slot);
            reads && self.lookups.generation(slot) != generation
        })
    }

    /// Asks the server for the first GET that READs did not settle.
    fn ask(&mut self) {
        if let (Some(cursor), false) = (self.unsettled.front(), self.asking) {
            let key = self.lookups.key(cursor.slot);
            let begun = self
                .calls
                .begin((Op::Get, self.reported), key, &[], cursor.user);
            self.asking = begun.is_ok();
        }
    }

    /// Takes what has arrived; hands every answer to `sink`. Returns how many there were.
    pub fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, Answer<'_>),
    ) -> usize {
        let Self {
            reader,
            lookups,
            free,
            unsettled,
            calls,
            ..
        } = self;
        let mut answers = 0;
        reader.poll(port, lookups, &mut |cursor, outcome| {
            let answer = match outcome {
                Outcome::Unsure(_) => return unsettled.push_back(cursor),
                Outcome::Found(value) => Answer::Value(value),
                Outcome::Missing => Answer::Missing,
                Outcome::Failed(status) => Answer::Failed(Failure::Link(status)),
            };
            free.push(cursor.slot);
            answers += 1;
            sink(cursor.user, answer);
        });
        if reader.has_fallen_silent(calls.timeout(), now) {
            calls.fail(Failure::Silent);
        }
        if let Some(status) = reader.failed() {
            calls.fail(Failure::Link(status));
        }
        let (asking, reporting) = (&mut self.asking, &mut self.reporting);
        let mut settled = 0;
        let unexpected = calls.poll(port, now, &mut |ended| {
            match ended.op {
                Op::Adopted => {
                    *reporting = false;
                    return;
                }
                Op::Get => {
                    *asking = false;
                    free.extend(unsettled.pop_front().map(|cursor| cursor.slot));
                    settled += 1;
                }
                Op::Put | Op::Delete => {}
            }
            answers += 1;
            sink(ended.user, answer(&ended));
        });
        lookups.counters.fallbacks += settled;
        lookups.counters.unexpected_replies += unexpected;
        if let Some(failure) = calls.failed() {
            for cursor in unsettled.drain(..) {
                free.push(cursor.slot);
                answers += 1;
                sink(cursor.user, Answer::Failed(failure));
            }
        }
        answers
    }
}

fn answer<'a>(ended: &Ended<'a>) -> Answer<'a> {
    match ended.result {
        Err(failure) => Answer::Failed(failure),
        Ok((ReplyStatus::Done, value)) if ended.op == Op::Get => Answer::Value(value),
        Ok((ReplyStatus::Done, _)) => Answer::Done,
        Ok((ReplyStatus::NotFound, _)) => Answer::Missing,
        Ok((ReplyStatus::Full, _)) => Answer::Full,
        Ok((ReplyStatus::Malformed | ReplyStatus::Moved, _)) => Answer::Refused,
    }
}
