//! Changes on their way from a worker to the thread that brings the secondary store up to date, and back: a
//! fixed number of them, in buffers that are made once.

use std::time::Duration;

use herdwick_mem::spsc;
use herdwick_request::KEY_BYTES_MAX;

use crate::record::{RECORD_HEAD_BYTES, VALUE_BYTES_MAX};

/// Most changes of a worker that are under way: the paper's limit.
pub const CHANGES_MAX: usize = 128;

/// What has to become of a slot in the secondary store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Act {
    /// It holds this item. What it held before, if that is another key's, goes.
    #[default]
    Put,
    /// It holds nothing.
    Remove,
    /// No slot holds anything.
    Clear,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    #[default]
    Done,
    /// The secondary store has no room: the slot holds nothing.
    Refused,
    /// The connection was lost.
    Lost,
}

/// One change.
#[derive(Debug, Default)]
pub struct Change {
    /// What is to be done.
    pub act: Act,
    /// The slot.
    pub slot: u32,
    /// The key of [`Act::Put`].
    pub key: Vec<u8>,
    /// Its record ([`crate::Record`]).
    pub record: Vec<u8>,
    /// Set on the way back.
    pub outcome: Outcome,
    /// The connection that it is for.
    pub(crate) epoch: u64,
    /// Its number among the worker's changes.
    pub(crate) serial: u64,
    /// The number of the change with which the slot became this key's.
    pub(crate) admission: u64,
    pub(crate) since: Duration,
}

impl Change {
    /// Returns the time since the request that made it.
    #[must_use]
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }
}

/// A worker's end of the queues.
pub struct WorkerEnd {
    pub(crate) changes: spsc::Producer<Change>,
    pub(crate) back: spsc::Consumer<Change>,
    pub(crate) free: Vec<Change>,
}

/// The other end.
pub struct SyncEnd {
    /// Changes, in the order in which they were made.
    pub changes: spsc::Consumer<Change>,
    /// Those that have ended, in any order. There is room for all.
    pub back: spsc::Producer<Change>,
}

/// Makes the queues between a worker and the thread, and the changes that go through them.
#[must_use]
pub fn channel() -> (WorkerEnd, SyncEnd) {
    let (there, changes) = spsc::channel(CHANGES_MAX);
    // Each direction has room for every change there is: a push cannot fail.
    let (back, here) = spsc::channel(CHANGES_MAX);
    let change = || Change {
        // At full length once, so that no request allocates.
        key: Vec::with_capacity(KEY_BYTES_MAX),
        record: Vec::with_capacity(RECORD_HEAD_BYTES + VALUE_BYTES_MAX),
        ..Change::default()
    };
    let worker = WorkerEnd {
        changes: there,
        back: here,
        free: (0..CHANGES_MAX).map(|_| change()).collect(),
    };
    (worker, SyncEnd { changes, back })
}

/// Returns the bytes of the changes of one worker.
#[must_use]
pub fn channel_bytes() -> usize {
    let buffers = KEY_BYTES_MAX + RECORD_HEAD_BYTES + VALUE_BYTES_MAX;
    CHANGES_MAX * (buffers + size_of::<Change>())
}
