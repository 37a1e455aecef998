//! The load generator over HERD: requests come from a trace laid out beforehand; one loop fills
//! slots and checks answers, and reads the clock once per pass.

use std::time::Duration;

use herdwick::Direct;
use herdwick_fabric::Port;
use herdwick_herd::{
    Outcome, Refused,
    wire::{ReplyStatus, Unencodable},
};
use herdwick_read::Answer;
use herdwick_request::{Get, Op, Put, Request};

use super::slots::Slots;
use crate::{
    counters::RunCounters,
    target::{DriveError, Load},
    workload::{KeySpace, Step},
};

/// HERD's client as the driver uses it.
pub(super) trait Lines {
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused>;
    fn flush(&mut self, now: Duration);
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize;
}

/// The parts of an answer that the driver uses.
#[derive(Clone, Copy)]
pub(super) struct Reply<'a> {
    pub(super) status: ReplyStatus,
    pub(super) value: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Returns `None` if the request timed out or its outcome is unknown.
    #[inline]
    pub(super) fn of(outcome: &Outcome<'a>) -> Option<Self> {
        match outcome {
            Outcome::Answered(answer) => Some(Self {
                status: answer.status,
                value: answer.value,
            }),
            Outcome::Timeout | Outcome::Unknown => None,
        }
    }

    /// The same for the answer of a system whose clients READ.
    #[inline]
    pub(super) fn of_answer<F>(answer: Answer<&'a [u8], F>) -> Option<Self> {
        let (status, value) = match answer {
            Answer::Value(value) => (ReplyStatus::Done, value),
            Answer::Done => (ReplyStatus::Done, &[][..]),
            Answer::Missing => (ReplyStatus::NotFound, &[][..]),
            // Nothing is stored either way, which counts as an error.
            Answer::Full | Answer::Contended => (ReplyStatus::OutOfMemory, &[][..]),
            Answer::Refused | Answer::Failed(_) => return None,
        };
        Some(Self { status, value })
    }
}

impl<P: Port> Lines for Direct<'_, P> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        Direct::submit(self, request, token)
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        Direct::flush(self, now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        Direct::poll(self, now, &mut |token, outcome| {
            sink(token, Reply::of(&outcome));
        })
    }
}

/// In a closed loop, polls without an answer between two readings of the clock: a reading takes as
/// long as several polls, and delays an answer that arrives meanwhile.
const IDLE_PASSES: u32 = 32;

/// Drives the requests and answers of one thread over any [`Lines`].
pub(super) struct Driver {
    space: KeySpace,
    key: Vec<u8>,
    value: Vec<u8>,
    pub(super) slots: Slots,
    /// Due times of the requests that the last poll answered.
    answered: Vec<u64>,
    /// Whether answers carry the stored values; those of an echo carry arbitrary ones.
    stored: bool,
}

impl Driver {
    pub(super) fn new(space: KeySpace, stored: bool) -> Self {
        Self {
            key: space.key_filler(),
            value: vec![0; space.value_size()],
            slots: Slots::default(),
            answered: Vec::new(),
            space,
            stored,
        }
    }

    pub(super) fn drive(
        &mut self,
        lines: &mut impl Lines,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        let (closed, mut now_ns, mut idle) = (load.pace.next_due_ns().is_none(), clock(), 0_u32);
        loop {
            let answers = self.answers(lines, load.counters, Duration::from_nanos(now_ns));
            // A closed loop that received no answer has nothing to send: poll again before reading
            // the clock.
            idle = if answers == 0 { idle + 1 } else { 0 };
            if closed && !self.slots.is_empty() && !idle.is_multiple_of(IDLE_PASSES) {
                continue;
            }
            now_ns = clock();
            self.record(load.counters, now_ns);
            let ended = load.trace.peek().is_none() && self.slots.is_empty();
            if ended || now_ns >= until_ns {
                return Ok(());
            }
            if self.requests(lines, load, now_ns)? {
                lines.flush(Duration::from_nanos(now_ns));
            }
        }
    }

    #[inline]
    fn answers(
        &mut self,
        lines: &mut impl Lines,
        counters: &mut RunCounters,
        now: Duration,
    ) -> usize {
        let Self {
            slots,
            space,
            stored,
            answered,
            ..
        } = self;
        lines.poll(now, &mut |token, reply| {
            let Some((step, start_ns)) = slots.release(token) else {
                return;
            };
            answered.push(start_ns);
            match reply {
                Some(reply) => count(space, *stored, step, reply, counters),
                None => counters.errors += 1,
            }
        })
    }

    /// Records the latencies of the requests just answered. The clock is read after the answers, so
    /// a latency is never too short.
    #[inline]
    fn record(&mut self, counters: &mut RunCounters, now_ns: u64) {
        for start_ns in self.answered.drain(..) {
            counters.latency(start_ns, now_ns);
        }
    }

    /// Submits the requests that are due, as far as slots are free; returns whether there were any.
    #[inline]
    fn requests(
        &mut self,
        lines: &mut impl Lines,
        load: &mut Load<'_>,
        now_ns: u64,
    ) -> Result<bool, DriveError> {
        let mut any = false;
        while load.pace.is_due(now_ns) {
            let Some((step, hash)) = load.trace.peek_hashed() else {
                break;
            };
            self.space.key_digits(step.key(), &mut self.key);
            let op = if step.is_put() {
                self.space.value(step.key(), load.version, &mut self.value);
                Op::Put(Put {
                    value: &self.value,
                    ..Put::default()
                })
            } else {
                Op::Get(Get::default())
            };
            let request = Request {
                hash,
                key: &self.key,
                op,
            };
            match lines.submit(&request, self.slots.next()) {
                Ok(()) => {}
                // The trace has not moved on: the request is made anew.
                Err(Refused::Full) => break,
                Err(Refused::Unencodable(Unencodable::Option)) => {
                    return Err(DriveError::Operation);
                }
                Err(Refused::Unencodable(Unencodable::Key | Unencodable::TooLarge)) => {
                    return Err(DriveError::TooLarge(self.space.value_size()));
                }
            }
            self.slots.take(step, load.pace.take(1, now_ns));
            load.trace.advance();
            load.version = load.version.wrapping_add(u32::from(step.is_put()));
            any = true;
        }
        Ok(any)
    }
}

#[inline]
fn count(space: &KeySpace, stored: bool, step: Step, reply: Reply<'_>, counters: &mut RunCounters) {
    match reply.status {
        // An echo stores nothing and answers a PUT with NotFound.
        ReplyStatus::NotFound if !stored && step.is_put() => counters.puts += 1,
        ReplyStatus::Done if step.is_put() => counters.puts += 1,
        ReplyStatus::Done if !stored || space.check(step.key(), reply.value) => counters.hits += 1,
        ReplyStatus::Done => counters.wrong_values += 1,
        ReplyStatus::NotFound if !step.is_put() => counters.misses += 1,
        _ => counters.errors += 1,
    }
}
