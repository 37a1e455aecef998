//! A system as faults see it: the machine of a client, and servers that can be lost and started again.

use std::time::Duration;

use herdwick_read::Answer;
use herdwick_sim::{PartyId, Process, SeededDevice};

use crate::run::RunError;

/// What a client asks for, of one key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask<'a> {
    Get,
    Put(&'a [u8]),
    Add(&'a [u8]),
    Delete,
    Increment(u64),
}

/// The outcome of a request, as the client learns it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told<'a> {
    /// A GET found this.
    Value(&'a [u8]),
    /// A mutation is done.
    Done,
    /// It is, and this is the sum of an increment, or else the item's version.
    DoneWith(u64),
    /// It is not: there is no such key, or there is one already.
    NotDone,
    /// A PUT is not: the store, which may be full, has no room.
    NoRoom,
    /// The request had no effect.
    Nothing,
    /// Whether it had is not known.
    Unknown,
    /// A reply that no correct server sends.
    Odd(&'static str),
}

impl<'a> Told<'a> {
    /// Returns what an answer of a system whose clients READ means.
    pub(super) fn of<F>(answer: Answer<&'a [u8], F>) -> Self {
        match answer {
            Answer::Value(value) => Self::Value(value),
            Answer::Done => Self::Done,
            Answer::Missing => Self::NotDone,
            Answer::Contended => Self::Nothing,
            Answer::Full => Self::Odd("a store that is full"),
            Answer::Failed(_) => Self::Unknown,
            Answer::Refused => Self::Odd("a refusal"),
        }
    }
}

/// A client's machine and its port.
pub(super) trait Machine {
    fn party(&self) -> PartyId;

    /// Begins a request. Whether there was room.
    fn submit(&mut self, now: Duration, key: &[u8], ask: Ask<'_>, token: u64) -> bool;

    /// Sends what was begun.
    fn flush(&mut self, now: Duration);

    /// Passes every request that has ended to `sink`.
    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Told<'_>));

    /// When to poll at the latest.
    fn deadline(&self) -> Option<Duration>;

    /// Whether only another lease helps.
    fn is_broken(&self) -> bool;

    /// Ends the requests under way as far as the machine does that itself.
    fn close(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Told<'_>));
}

/// What a system's clients may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asks {
    /// ADD and INCREMENT, beside GET, PUT and DELETE.
    pub(super) conditional: bool,
    /// Sizes of values.
    pub(super) sizes: &'static [usize],
    /// Bytes of the longest key.
    pub(super) key_bytes_max: usize,
}

/// A server process.
pub(super) trait Servers {
    /// What the server has of a client.
    type Lease;

    const ASKS: Asks;

    /// Whether the items are there after the server process is killed.
    const ITEMS_OUTLIVE: bool = false;

    /// Its workers.
    fn workers(&mut self) -> Vec<&mut dyn Process>;

    /// The ports that end with the server process.
    fn killed(&mut self) -> Vec<PartyId> {
        let workers = self.workers().into_iter();
        workers.map(|worker| worker.party()).collect()
    }

    /// Whether a client can join now.
    fn takes_clients(&self) -> bool {
        true
    }

    /// Takes a client into service, under an epoch that none had for long.
    ///
    /// # Errors
    /// [`RunError`]: a mistake of ours.
    fn join(
        &mut self,
        device: &SeededDevice,
        epoch: u16,
    ) -> Result<(Box<dyn Machine>, Self::Lease), RunError>;

    /// Ends a lease.
    fn dismiss(&mut self, lease: Self::Lease);

    /// Whether requests under a lease can arrive.
    fn hears(&self, lease: &Self::Lease) -> bool;

    /// Whether the server's device has failed, so that it needs another end.
    fn is_lost(&self) -> bool;

    /// Opens other ends, without clients, with the items if `keeps`. Returns whether the items are
    /// there.
    ///
    /// # Errors
    /// [`RunError`]: a mistake of ours.
    fn restart(&mut self, keeps: bool) -> Result<bool, RunError>;

    /// Steps the clock by which items expire.
    fn step_clock(&mut self, seconds: u32);
}
