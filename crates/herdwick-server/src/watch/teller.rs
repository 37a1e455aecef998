use std::{
    io::{ErrorKind, Read, Write},
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use herdwick_mem::spsc::Consumer;
use herdwick_memcache::text;

use super::{Event, Shared, words::Line};
use crate::{facts::Facts, tcp::Stream};

/// Most watchers (memcached's `WATCHER_LIMIT`).
const WATCHERS_MAX: usize = 20;
/// What may wait for one watcher to read (memcached's `watcher_logbuf_size`).
const BUFFER_BYTES: usize = 256 << 10;
/// While anybody watches, journals are looked at so often.
const TICK: Duration = Duration::from_millis(50);
/// A watcher that reads nothing for so many ticks (30 s) is given up.
const STALLED_TICKS: u32 = 600;

/// A connection that wants to watch these topics.
pub(crate) struct Asking {
    pub(crate) stream: Stream,
    pub(crate) topics: u32,
}

/// The thread that words what workers note, for those who watch. It sleeps while nobody does, and
/// ends with the workers.
pub(crate) struct Teller {
    /// The workers' journals.
    pub(crate) journals: Vec<Consumer<Event>>,
    pub(crate) arrivals: Receiver<Asking>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) facts: Arc<Facts>,
    pub(crate) started_unix: u64,
}

struct Watcher {
    stream: Stream,
    topics: u32,
    buffer: Vec<u8>,
    skipped: u64,
    stalled: u32,
}

impl Teller {
    pub(crate) fn run(mut self) {
        let mut watchers: Vec<Watcher> = Vec::new();
        let mut told = 0;
        loop {
            let arrival = if watchers.is_empty() {
                self.arrivals
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.arrivals.recv_timeout(TICK)
            };
            match arrival {
                Ok(asking) => self.admit(asking, &mut watchers),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.tell(&mut watchers, &mut told);
            watchers.retain_mut(|watcher| {
                let stays = watcher.serve(&self.shared);
                if !stays {
                    self.facts.limits.leave();
                }
                stays
            });
            self.announce(&watchers);
        }
    }

    fn admit(&self, asking: Asking, watchers: &mut Vec<Watcher>) {
        let mut stream = asking.stream;
        if watchers.len() >= WATCHERS_MAX {
            // Best effort: the connection ends either way.
            let _ = stream.write(b"WATCHER_TOO_MANY log watcher limit reached\r\n");
            self.facts.limits.leave();
            return;
        }
        watchers.push(Watcher {
            stream,
            topics: asking.topics,
            buffer: text::OK.to_vec(),
            skipped: 0,
            stalled: 0,
        });
        // Before its OK leaves, so that nothing which comes after that is missed.
        self.announce(watchers);
    }

    /// Lets the workers know what is watched.
    fn announce(&self, watchers: &[Watcher]) {
        let topics = watchers.iter().fold(0, |all, watcher| all | watcher.topics);
        self.shared.topics.store(topics, Relaxed);
        // There are at most twenty.
        self.shared.watchers.store(watchers.len() as u32, Relaxed);
    }

    fn tell(&mut self, watchers: &mut [Watcher], told: &mut u64) {
        for journal in &mut self.journals {
            while let Some(event) = journal.pop() {
                *told += 1;
                let line = Line {
                    event: &event,
                    started_unix: self.started_unix,
                    number: *told,
                };
                let topic = event.what.topic();
                for watcher in watchers.iter_mut().filter(|w| w.topics & topic != 0) {
                    watcher.hear(&line, &self.shared);
                }
            }
        }
    }
}

impl Watcher {
    fn hear(&mut self, line: &Line<'_>, shared: &Shared) {
        if self.buffer.len() >= BUFFER_BYTES {
            self.skipped += 1;
            shared.skipped.fetch_add(1, Relaxed);
            return;
        }
        if self.skipped > 0 {
            let skipped = std::mem::take(&mut self.skipped);
            writeln!(self.buffer, "[skipped={skipped}]").expect("a Vec takes every write");
        }
        write!(self.buffer, "{line}").expect("a Vec takes every write");
        shared.sent.fetch_add(1, Relaxed);
    }

    /// Writes what there is; `false`: it has gone, or is given up.
    fn serve(&mut self, shared: &Shared) -> bool {
        // Whatever it says now is not understood; its end is.
        let mut said = [0; 64];
        match self.stream.read(&mut said) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        if self.buffer.is_empty() {
            self.stalled = 0;
            return true;
        }
        match self.stream.write(&self.buffer) {
            Ok(count) => {
                self.buffer.drain(..count);
                self.stalled = 0;
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.stalled += 1;
                if self.stalled > STALLED_TICKS {
                    shared.skipped.fetch_add(1, Relaxed);
                }
                self.stalled <= STALLED_TICKS
            }
            Err(_) => false,
        }
    }
}
