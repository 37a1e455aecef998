//! The thread that formats the events in the workers' event queues for watchers. Each watcher has a
//! bounded buffer; events that do not fit are skipped and counted.

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

use crate::{
    context::Context,
    net::stream::Stream,
    runtime::time::ServerClock,
    telemetry::watch::{EVENTS, Event, Shared, format::Line},
};

/// Largest number of watchers (memcached's `WATCHER_LIMIT`).
const WATCHERS_MAX: usize = 20;
/// Bytes that may wait for one watcher to read (memcached's `watcher_logbuf_size`).
const BUFFER_BYTES: usize = 256 << 10;
/// Interval between reads of the event queues while there are watchers: shorter the more events they
/// hold.
const TICK: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(50);
/// A watcher that reads nothing for this long is disconnected.
const STALLED_MAX: Duration = Duration::from_secs(30);

/// A connection that requests these topics.
pub(crate) struct Asking {
    pub(crate) stream: Stream,
    pub(crate) topics: u32,
}

/// The thread that formats the workers' events for watchers. It sleeps while there are no watchers,
/// and ends when the workers do.
pub(crate) struct EventWriter {
    /// The workers' event queues.
    pub(crate) event_queues: Vec<Consumer<Event>>,
    pub(crate) arrivals: Receiver<Asking>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) context: Arc<Context>,
    pub(crate) timer: ServerClock,
}

struct Watcher {
    stream: Stream,
    topics: u32,
    buffer: Vec<u8>,
    skipped: u64,
    stalled: Duration,
}

/// The number of events found in an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventsRead {
    Nothing,
    Some,
    /// The event queue was full, and there may be more: the watchers are served in between.
    Full,
}

/// Returns how long to sleep after `read`, given the previous sleep `tick`.
fn next_tick(tick: Duration, read: EventsRead) -> Duration {
    match read {
        // Twice as long while there is nothing, half as long while there is something: few wakeups
        // when idle, few lost events when busy.
        EventsRead::Nothing => (tick * 2).clamp(*TICK.start(), *TICK.end()),
        EventsRead::Some => (tick / 2).clamp(*TICK.start(), *TICK.end()),
        EventsRead::Full => Duration::ZERO,
    }
}

impl EventWriter {
    pub(crate) fn run(mut self) {
        let mut watchers: Vec<Watcher> = Vec::new();
        let (mut formatted, mut tick, mut last) = (0, *TICK.end(), self.timer.now());
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
                        // Otherwise the time without watchers would count as a stall of this one.
                        last = self.timer.now();
                    }
                    self.admit(asking, &mut watchers);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let read = self.format_events(&mut watchers, &mut formatted);
            // After a full event queue there is no sleep, so the elapsed time is measured, not taken to
            // be the tick.
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
            tick = next_tick(tick, read);
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
        // Before the OK is sent: of the events after it, a worker misses at most those of the pass
        // that it is in.
        self.announce(watchers);
    }

    /// Publishes the watched topics to the workers.
    fn announce(&self, watchers: &[Watcher]) {
        let topics = watchers.iter().fold(0, |all, watcher| all | watcher.topics);
        // Topics order nothing: a worker that sees them late records an event less.
        self.shared.topics.store(topics, Relaxed);
        // At most `WATCHERS_MAX`, so the cast is exact.
        self.shared.watchers.store(watchers.len() as u32, Relaxed);
    }

    /// Formats the event queues' events, at most one event queue's capacity of each.
    fn format_events(&mut self, watchers: &mut [Watcher], formatted: &mut u64) -> EventsRead {
        let mut read = EventsRead::Nothing;
        for event_queue in &mut self.event_queues {
            let mut count = 0;
            while count < EVENTS
                && let Some(event) = event_queue.pop()
            {
                count += 1;
                *formatted += 1;
                let line = Line {
                    event: &event,
                    started_unix: self.timer.started_unix(),
                    number: *formatted,
                };
                let topic = event.what.topic();
                for watcher in watchers.iter_mut().filter(|w| w.topics & topic != 0) {
                    watcher.receive(&line, &self.shared);
                }
            }
            read = read.max(match count {
                0 => EventsRead::Nothing,
                EVENTS => EventsRead::Full,
                _ => EventsRead::Some,
            });
        }
        read
    }
}

impl Watcher {
    fn receive(&mut self, line: &Line<'_>, shared: &Shared) {
        // Looked at before a line is added: the buffer may exceed its bound by one line.
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

    /// Writes the buffer, `passed` after the previous call; `false`: the watcher has disconnected
    /// or timed out.
    fn serve(&mut self, shared: &Shared, passed: Duration) -> bool {
        // A watcher's input is discarded; only its end matters.
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
    fn busy_event_queues_are_polled_often_and_idle_ones_rarely() {
        let [mut tick, end] = [*TICK.end(); 2];
        for _ in 0..10 {
            tick = next_tick(tick, EventsRead::Some);
        }
        assert_eq!(tick, *TICK.start());
        assert_eq!(next_tick(tick, EventsRead::Full), Duration::ZERO);
        tick = Duration::ZERO;
        for _ in 0..10 {
            tick = next_tick(tick, EventsRead::Nothing);
        }
        assert_eq!(tick, end);
    }
}
