use std::{
    io::{ErrorKind, Read, Write},
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use herdwick_mem::spsc::Consumer;
use herdwick_memcache::text;

use super::{EVENTS, Event, Shared, format::Line};
use crate::{context::Context, tcp::Stream, time::Timer};

/// Most watchers (memcached's `WATCHER_LIMIT`).
const WATCHERS_MAX: usize = 20;
/// What may wait for one watcher to read (memcached's `watcher_logbuf_size`).
const BUFFER_BYTES: usize = 256 << 10;
/// While anybody watches, journals are looked at after so long: the less the more there is in them.
const TICK: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(50);
/// A watcher that reads nothing for so long is given up.
const STALLED_MAX: Duration = Duration::from_secs(30);

/// A connection that wants to watch these topics.
pub(crate) struct Asking {
    pub(crate) stream: Stream,
    pub(crate) topics: u32,
}

/// The thread that words what workers note, for those who watch. It sleeps while nobody does, and
/// ends with the workers.
pub(crate) struct EventWriter {
    /// The workers' journals.
    pub(crate) journals: Vec<Consumer<Event>>,
    pub(crate) arrivals: Receiver<Asking>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) context: Arc<Context>,
    pub(crate) timer: Timer,
}

struct Watcher {
    stream: Stream,
    topics: u32,
    buffer: Vec<u8>,
    skipped: u64,
    stalled: Duration,
}

/// What was found in a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Haul {
    Nothing,
    Some,
    /// There may be more: the watchers had their turn in between.
    Full,
}

/// How long to sleep after `haul`, having slept for `tick` before it.
fn next_tick(tick: Duration, haul: Haul) -> Duration {
    match haul {
        Haul::Nothing => (tick * 2).clamp(*TICK.start(), *TICK.end()),
        Haul::Some => (tick / 2).clamp(*TICK.start(), *TICK.end()),
        Haul::Full => Duration::ZERO,
    }
}

impl EventWriter {
    pub(crate) fn run(mut self) {
        let mut watchers: Vec<Watcher> = Vec::new();
        let (mut told, mut tick, mut last) = (0, *TICK.end(), self.timer.now());
        loop {
            let arrival = if watchers.is_empty() {
                self.arrivals
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.arrivals.recv_timeout(tick)
            };
            match arrival {
                Ok(asking) => {
                    if watchers.is_empty() {
                        last = self.timer.now();
                    }
                    self.admit(asking, &mut watchers);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let haul = self.tell(&mut watchers, &mut told);
            // A full journal leaves no time to sleep: what has passed is not the tick.
            let now = self.timer.now();
            let passed = now.saturating_sub(std::mem::replace(&mut last, now));
            watchers.retain_mut(|watcher| {
                let stays = watcher.serve(&self.shared, passed);
                if !stays {
                    self.context.limits.leave();
                }
                stays
            });
            self.announce(&watchers);
            tick = next_tick(tick, haul);
        }
    }

    fn admit(&self, asking: Asking, watchers: &mut Vec<Watcher>) {
        let mut stream = asking.stream;
        if watchers.len() >= WATCHERS_MAX {
            // Best effort: the connection ends either way.
            let _ = stream.write(b"WATCHER_TOO_MANY log watcher limit reached\r\n");
            self.context.limits.leave();
            return;
        }
        watchers.push(Watcher {
            stream,
            topics: asking.topics,
            buffer: text::OK.to_vec(),
            skipped: 0,
            stalled: Duration::ZERO,
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

    /// Words what the journals hold, of each as much as fits into it.
    fn tell(&mut self, watchers: &mut [Watcher], told: &mut u64) -> Haul {
        let mut haul = Haul::Nothing;
        for journal in &mut self.journals {
            let mut count = 0;
            while count < EVENTS
                && let Some(event) = journal.pop()
            {
                count += 1;
                *told += 1;
                let line = Line {
                    event: &event,
                    started_unix: self.timer.started_unix(),
                    number: *told,
                };
                let topic = event.what.topic();
                for watcher in watchers.iter_mut().filter(|w| w.topics & topic != 0) {
                    watcher.hear(&line, &self.shared);
                }
            }
            haul = haul.max(match count {
                0 => Haul::Nothing,
                EVENTS => Haul::Full,
                _ => Haul::Some,
            });
        }
        haul
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

    /// Writes what there is, `passed` after it last did; `false`: it has gone, or is given up.
    fn serve(&mut self, shared: &Shared, passed: Duration) -> bool {
        // Whatever it says now is not understood; its end is.
        let mut said = [0; 64];
        match self.stream.read(&mut said) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        if self.buffer.is_empty() {
            self.stalled = Duration::ZERO;
            return true;
        }
        match self.stream.write(&self.buffer) {
            Ok(count) => {
                self.buffer.drain(..count);
                self.stalled = Duration::ZERO;
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.stalled += passed;
                let stays = self.stalled <= STALLED_MAX;
                if !stays {
                    shared.skipped.fetch_add(1, Relaxed);
                }
                stays
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_journals_are_looked_at_often_and_idle_ones_seldom() {
        let [mut tick, end] = [*TICK.end(); 2];
        for _ in 0..10 {
            tick = next_tick(tick, Haul::Some);
        }
        assert_eq!(tick, *TICK.start());
        assert_eq!(next_tick(tick, Haul::Full), Duration::ZERO);
        tick = Duration::ZERO;
        for _ in 0..10 {
            tick = next_tick(tick, Haul::Nothing);
        }
        assert_eq!(tick, end);
    }
}
