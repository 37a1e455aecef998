//! `watch`: a live log of events for clients that request it.
//!
//! A worker records watched events in a bounded queue of its own; a thread takes them out, formats
//! them, and writes them to the watchers' sockets. Workers never wait for a watcher: events that do
//! not fit are dropped and counted.

pub(crate) mod format;

use std::{
    net::SocketAddr,
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use herdwick_mem::spsc::{self, Consumer, Producer};
use herdwick_request::{KEY_BYTES_MAX, Mode, Status};

/// Events that a worker's queue holds: 576 KiB, which are not touched before the first event.
pub(crate) const EVENTS: usize = 2048;

/// Topics, as bits.
pub(crate) mod topic {
    pub(crate) const FETCHERS: u32 = 1;
    pub(crate) const MUTATIONS: u32 = 2;
    pub(crate) const EVICTIONS: u32 = 4;
    pub(crate) const CONNEVENTS: u32 = 8;
    pub(crate) const DELETIONS: u32 = 16;
    /// Ours; memcached has no such topic.
    pub(crate) const SLOW: u32 = 32;
    /// The topics of requests, which a partition records.
    pub(crate) const OF_REQUESTS: u32 = FETCHERS | MUTATIONS | DELETIONS;
}

/// Parses the arguments of `watch` into topics; `None`: one is unknown. As in memcached, any prefix
/// of a name matches, and no argument means `fetchers`.
pub(crate) fn topics<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<u32> {
    const NAMES: [(&[u8], u32); 6] = [
        (b"evictions", topic::EVICTIONS),
        (b"fetchers", topic::FETCHERS),
        (b"mutations", topic::MUTATIONS),
        (b"connevents", topic::CONNEVENTS),
        (b"deletions", topic::DELETIONS),
        (b"slow", topic::SLOW),
    ];
    let mut all = 0;
    for word in words {
        let (_, bit) = NAMES.iter().find(|(name, _)| name.starts_with(word))?;
        all |= bit;
    }
    Some(if all == 0 { topic::FETCHERS } else { all })
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A read: its outcome, the value's length, and the connection's descriptor.
    Get {
        found: LookupOutcome,
        size: usize,
        caller: RawFd,
    },
    /// A store: its mode and outcome, seconds to live (0: unlimited), the value's length, and the
    /// connection's descriptor.
    Store {
        mode: Mode,
        compared: bool,
        status: Status,
        ttl: u32,
        size: usize,
        caller: RawFd,
    },
    /// A deletion of a value of this length.
    Deleted { size: usize },
    /// An eviction: whether the item had been read, seconds left to live (-1: unlimited), seconds
    /// since its last use, and the value's length.
    Evicted {
        fetched: bool,
        ttl: i64,
        idle: u32,
        size: usize,
    },
    /// Requests that were served together, and took as long as the slow log wants: the first one's command, how
    /// many they were, their time, their transport's name, and the connection's descriptor.
    Slow {
        command: &'static str,
        requests: u64,
        time: Duration,
        transport: &'static str,
        caller: RawFd,
    },
    /// A new connection: descriptor and peer address; `None`: a unix socket.
    Opened(i32, Option<SocketAddr>),
    /// The end of a connection, and its reason.
    Closed(i32, Option<SocketAddr>, &'static str),
}

/// The outcome of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupOutcome {
    Yes,
    No,
    Flushed,
    Expired,
}

impl What {
    pub(crate) fn topic(&self) -> u32 {
        match self {
            Self::Get { .. } => topic::FETCHERS,
            Self::Store { .. } => topic::MUTATIONS,
            Self::Deleted { .. } => topic::DELETIONS,
            Self::Evicted { .. } => topic::EVICTIONS,
            Self::Slow { .. } => topic::SLOW,
            Self::Opened(..) | Self::Closed(..) => topic::CONNEVENTS,
        }
    }
}

/// An event with its time, and its key or none.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    now: Duration,
    pub(crate) what: What,
    key: [u8; KEY_BYTES_MAX],
    key_len: u8,
}

impl Event {
    fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.key_len)]
    }
}

/// State shared between the workers and the event writer.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The topics of all watchers.
    pub(crate) topics: AtomicU32,
    pub(crate) watchers: AtomicU32,
    pub(crate) sent: AtomicU64,
    pub(crate) skipped: AtomicU64,
}

impl Shared {
    /// Returns whether one of these topics is watched now.
    pub(crate) fn wants(&self, topics: u32) -> bool {
        self.topics.load(Relaxed) & topics != 0
    }

    /// Zeroes what is counted since the start.
    pub(crate) fn reset(&self) {
        self.sent.store(0, Relaxed);
        self.skipped.store(0, Relaxed);
    }
}

/// Where one worker records events: a bounded queue to the event writer. A full queue drops and counts.
pub(crate) struct EventQueue {
    queue: Producer<Event>,
    shared: Arc<Shared>,
    /// The watched topics at the beginning of this pass.
    topics: u32,
    now: Duration,
    pub(crate) written: u64,
    pub(crate) dropped: u64,
}

impl EventQueue {
    /// Creates an event queue, and the end that the event writer reads.
    pub(crate) fn new(shared: Arc<Shared>) -> (Self, Consumer<Event>) {
        let (queue, read) = spsc::channel(EVENTS);
        let event_queue = Self {
            queue,
            shared,
            topics: 0,
            now: Duration::ZERO,
            written: 0,
            dropped: 0,
        };
        (event_queue, read)
    }

    /// Begins a pass: reads the clock value and the topics once for all its events.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.now = now;
        self.topics = self.shared.topics.load(Relaxed);
    }

    /// Returns whether one of these topics is watched.
    #[inline]
    pub(crate) fn wants(&self, topics: u32) -> bool {
        self.topics & topics != 0
    }

    /// Records an event, if its topic is watched.
    pub(crate) fn note(&mut self, what: What, key: &[u8]) {
        if !self.wants(what.topic()) {
            return;
        }
        // A key that was refused may be longer.
        let len = key.len().min(KEY_BYTES_MAX);
        let mut event = Event {
            now: self.now,
            what,
            key: [0; KEY_BYTES_MAX],
            // At most 250.
            key_len: len as u8,
        };
        event.key[..len].copy_from_slice(&key[..len]);
        match self.queue.push(event) {
            Ok(()) => self.written += 1,
            Err(_) => self.dropped += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_topics_match_by_prefix() {
        let of = |line: &'static str| topics(line.split_whitespace().map(str::as_bytes));
        assert_eq!(of(""), Some(topic::FETCHERS));
        assert_eq!(of("mut evict"), Some(topic::MUTATIONS | topic::EVICTIONS));
        assert_eq!(of("fetchers nothing"), None);
    }

    #[test]
    fn a_full_event_queue_drops_and_counts() {
        let shared = Arc::new(Shared::default());
        let (mut event_queue, mut read) = EventQueue::new(Arc::clone(&shared));
        event_queue.note(What::Deleted { size: 0 }, b"unwatched");
        shared.topics.store(topic::DELETIONS, Relaxed);
        event_queue.begin(Duration::from_secs(1));
        for _ in 0..EVENTS + 5 {
            event_queue.note(What::Deleted { size: 0 }, b"key");
        }
        assert_eq!(
            (event_queue.written, event_queue.dropped),
            (EVENTS as u64, 5)
        );
        assert_eq!(read.pop().unwrap().key(), b"key");
    }
}
