//! What a client may find: values that contain their key and version, and which versions may have
//! been written.

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    common::{is_whole, value},
    stage::{Stage, Visit},
    transports::{Kind, Transport},
};

/// A server counts whole seconds, so an item may expire this much early ...
const EARLY: Duration = Duration::from_secs(1);
/// ... and stay this much longer, on a busy host.
const LATE: Duration = Duration::from_secs(4);
/// More than the number of requests in flight.
const BEFORE_MAX: usize = 1024;

/// Returns the bytes of a version. Fewer than eight bytes are only a sample of it.
pub(crate) fn content(key: &str, version: u64, len: usize) -> Vec<u8> {
    let mut bytes = value(key, version, len);
    bytes.truncate(len);
    bytes
}

/// What a read of a key should find.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// Unknown: an earlier client may have left something.
    Anything,
    Nothing,
    Stored {
        version: u64,
        len: usize,
        /// When it may expire at the earliest, and when it must have expired.
        expires: Option<(Duration, Duration)>,
    },
}

/// Keys that only one client uses, in order, so the expected result is known exactly.
pub(crate) struct Own {
    prefix: String,
    version: u64,
    expected: Vec<Expected>,
    /// Recent expectations, oldest first.
    before: Vec<VecDeque<Expected>>,
}

impl Own {
    pub(crate) fn new(visit: &Visit<'_>, kind: Kind, count: usize) -> Self {
        Self {
            prefix: format!("own:{kind:?}:{}:{}", visit.channel, visit.name),
            version: (visit.number + 1) << 24,
            expected: vec![Expected::Anything; count],
            before: vec![VecDeque::new(); count],
        }
    }

    /// Uses other names from now on, because requests that ended as unknown may be executed at any
    /// time.
    pub(crate) fn rename(&mut self, number: u64) {
        let base = self.prefix.split('/').next().unwrap_or_default();
        self.prefix = format!("{base}/{number}");
        self.expected.fill(Expected::Anything);
        self.before.iter_mut().for_each(VecDeque::clear);
    }

    pub(crate) fn len(&self) -> usize {
        self.expected.len()
    }

    pub(crate) fn key(&self, index: usize) -> String {
        format!("{}:{index}", self.prefix)
    }

    pub(crate) fn expected(&self, index: usize) -> Expected {
        self.expected[index]
    }

    /// Returns the value of the next version of a key, which is expected from now on.
    pub(crate) fn store(&mut self, index: usize, len: usize) -> Vec<u8> {
        self.version += 1;
        let version = self.version;
        let stored = Expected::Stored {
            version,
            len,
            expires: None,
        };
        self.expect(index, stored);
        content(&self.key(index), version, len)
    }

    /// Sets the time to live, in seconds, of the value stored last, between these two instants.
    pub(crate) fn expire(&mut self, index: usize, stored: [Duration; 2], seconds: u32) {
        let ttl = Duration::from_secs(seconds.into());
        if let Expected::Stored { expires, .. } = &mut self.expected[index] {
            *expires = Some((
                (stored[0] + ttl).saturating_sub(EARLY),
                stored[1] + ttl + LATE,
            ));
        }
    }

    /// Returns the value that [`Own::store`] will return.
    pub(crate) fn peek(&self, index: usize, len: usize) -> Vec<u8> {
        content(&self.key(index), self.version + 1, len)
    }

    pub(crate) fn delete(&mut self, index: usize) {
        self.expect(index, Expected::Nothing);
    }

    fn expect(&mut self, index: usize, expected: Expected) {
        self.expected[index] = expected;
        let before = &mut self.before[index];
        before.push_back(expected);
        if before.len() > BEFORE_MAX {
            before.pop_front();
        }
    }

    /// Checks an answer that may be of any instant from its request until now.
    pub(crate) fn check_late(
        &self,
        stage: &Stage,
        index: usize,
        (asked, found): (Expected, Option<&[u8]>),
    ) {
        let Expected::Stored { version, len, .. } = asked else {
            panic!("only what was stored can be too large");
        };
        let key = self.key(index);
        let is_asked =
            |at: &&Expected| matches!(at, Expected::Stored { version: v, .. } if *v >= version);
        let before = &self.before[index];
        let first = before
            .iter()
            .position(|at| is_asked(&at))
            .expect("the model has the key");
        let fits = before.iter().skip(first).any(|at| match (at, found) {
            (Expected::Stored { version, len, .. }, Some(found)) => {
                *len == found.len() && content(&key, *version, *len) == found
            }
            (Expected::Nothing, None) => true,
            _ => false,
        });
        if !fits && found.is_none() {
            return stage.missed(&format!("{key} of {len} bytes"), version);
        }
        assert!(fits, "{key}: neither version {version:#x} nor a later one");
    }

    /// Checks an answer that was requested after the first instant and arrived before the second.
    pub(crate) fn check(
        &self,
        stage: &Stage,
        index: usize,
        (expected, found): (Expected, Option<&[u8]>),
        [asked, answered]: [Duration; 2],
    ) {
        let key = self.key(index);
        let Expected::Stored {
            version,
            len,
            expires,
        } = expected
        else {
            let empty = found.is_none() || matches!(expected, Expected::Anything);
            assert!(empty, "{key}: found, but it was deleted");
            return;
        };
        let Some(found) = found else {
            if expires.is_none_or(|(may, _)| answered < may) {
                stage.missed(&format!("{key} of {len} bytes"), version);
            }
            return;
        };
        let late = expires.is_some_and(|(_, must)| asked > must);
        assert!(!late, "{key}: found, but its time to live is over");
        assert!(
            found == content(&key, version, len),
            "{key}: not version {version:#x} of {len} bytes, but {} bytes of {:?}",
            found.len(),
            found.first_chunk().map(|word| u64::from_le_bytes(*word)),
        );
    }
}

/// A key that one client at a time writes, over any transport, and all clients read meanwhile.
pub(crate) struct Register {
    pub(crate) key: String,
    /// The last version that was sent.
    issued: AtomicU64,
    /// The last version that was acknowledged.
    acknowledged: AtomicU64,
    writer: Mutex<()>,
}

impl Register {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            key: format!("register:{number}"),
            issued: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            writer: Mutex::new(()),
        }
    }

    /// Stores the next version, unless another client is writing.
    pub(crate) fn write(&self, transport: &mut dyn Transport, len: usize) {
        let Ok(_writer) = self.writer.try_lock() else {
            return;
        };
        let version = self.issued.fetch_add(1, Ordering::SeqCst) + 1;
        transport.set(&self.key, &value(&self.key, version, len), 0);
        self.acknowledged.store(version, Ordering::SeqCst);
    }

    /// Reads the key and checks that the version is not older than the last one acknowledged
    /// before, and was sent.
    pub(crate) fn read(&self, stage: &Stage, transport: &mut dyn Transport) {
        let oldest = self.acknowledged.load(Ordering::SeqCst);
        let found = transport.get(&self.key);
        let newest = self.issued.load(Ordering::SeqCst);
        let Some(found) = found else {
            if oldest > 0 {
                stage.missed(&self.key, oldest);
            }
            return;
        };
        assert!(is_whole(&self.key, &found), "{} is torn", self.key);
        let version = found.first_chunk().map(|word| u64::from_le_bytes(*word));
        assert!(
            version.is_some_and(|version| (oldest..=newest).contains(&version)),
            "{}: found version {version:?}, while {oldest} was acknowledged and {newest} sent",
            self.key
        );
    }
}

/// A number that clients over every transport increment.
#[derive(Default)]
pub(crate) struct Counter {
    issued: AtomicU64,
    acknowledged: AtomicU64,
}

impl Counter {
    pub(crate) const KEY: &'static str = "soak:count";

    /// Adds one, and checks the result: more than all additions acknowledged before, no more than
    /// all sent.
    pub(crate) fn add(&self, stage: &Stage, transport: &mut dyn Transport) {
        let least = self.acknowledged.load(Ordering::SeqCst);
        self.issued.fetch_add(1, Ordering::SeqCst);
        let found = transport.incr(Self::KEY);
        let most = self.issued.load(Ordering::SeqCst);
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
        match found {
            None => stage.missed(Self::KEY, 0),
            Some(number) => assert!(
                (least + 1..=most).contains(&number),
                "counted {number}, between {least} and {most}"
            ),
        }
    }

    /// The number of acknowledged additions.
    pub(crate) fn total(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }
}
