//! A client process: keeps its window full, and measures how long each request takes.

use std::time::Duration;

use herdwick_read::Answer;
use herdwick_sim::{Cpu, PartyId, Process, Step};

use crate::{
    ends::Measured,
    keys::{self, Draws},
    run::{Answered, Run},
};

/// How a request ended.
pub(crate) enum Ended<'a> {
    /// A GET found this.
    Value(&'a [u8]),
    /// A PUT is done.
    Done,
    /// Neither.
    Failed,
}

impl<'a> Ended<'a> {
    /// Returns what an answer of a system whose clients READ means.
    pub(crate) fn of<F>(answer: Answer<&'a [u8], F>) -> Self {
        match answer {
            Answer::Value(value) => Self::Value(value),
            Answer::Done => Self::Done,
            _ => Self::Failed,
        }
    }
}

/// A system's client machine and its port.
pub(crate) trait SystemClient {
    fn party(&self) -> PartyId;

    /// Begins a GET, or a PUT of a value. Whether there was room.
    fn call(&mut self, now: Duration, key: &[u8], put: Option<&[u8]>, token: u64) -> bool;

    /// Sends what was begun.
    fn flush(&mut self, now: Duration);

    /// Passes every request that has ended to `sink`, by its token.
    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Ended<'_>));

    /// When to poll at the latest.
    fn deadline(&self) -> Option<Duration>;
}

/// Passes that find nothing before a process counts as idle: a machine may leave completions to its
/// next pass.
pub(crate) const SPINS: u32 = 2;

/// The client process of a system.
pub(crate) struct Client<C> {
    caller: C,
    draws: Draws,
    keys: u32,
    put_percent: u8,
    /// Whether the request that found no room is a PUT: the next one is of its kind, so that the mix stays as it is
    /// asked for where there is less room for PUTs than for GETs.
    refused: Option<bool>,
    cpu: Cpu,
    value: Vec<u8>,
    /// The requests under way, by their tokens.
    calls: Vec<Call>,
    free: Vec<u64>,
    answers: Vec<Answered>,
    /// Answers from then on are late, and how many there were.
    late_from: Duration,
    late: u64,
    failed: u64,
    spins: u32,
}

#[derive(Clone, Copy, Default)]
struct Call {
    index: u32,
    put: bool,
    at: Duration,
}

impl<C: SystemClient> Client<C> {
    pub(crate) fn new(run: &Run, number: usize, caller: C, cpu: &Cpu) -> Self {
        // Each client draws numbers of its own.
        let seed = run.seed ^ (number as u64 + 1) << 32;
        Self {
            caller,
            draws: Draws::new(seed),
            keys: run.keys,
            put_percent: run.put_percent,
            refused: None,
            cpu: cpu.clone(),
            value: vec![0; run.value_bytes],
            calls: vec![Call::default(); run.window],
            free: (0..run.window as u64).collect(),
            answers: Vec::new(),
            late_from: Duration::MAX,
            late: 0,
            failed: 0,
            spins: 0,
        }
    }

    fn finish(&mut self, now: Duration) -> u32 {
        let Self {
            caller,
            calls,
            free,
            answers,
            late_from,
            late,
            failed,
            ..
        } = self;
        let before = free.len();
        caller.poll(now, &mut |token, ended| {
            let Some(call) = usize::try_from(token)
                .ok()
                .and_then(|token| calls.get(token))
            else {
                *failed += 1;
                return;
            };
            free.push(token);
            let good = match ended {
                Ended::Value(value) => !call.put && keys::belongs(call.index, value),
                Ended::Done => call.put,
                Ended::Failed => false,
            };
            if good {
                let took = now.saturating_sub(call.at).as_nanos();
                answers.push(Answered {
                    at: now,
                    took_ns: u64::try_from(took).unwrap_or(u64::MAX),
                });
                *late += u64::from(now >= *late_from);
            } else {
                *failed += 1;
            }
        });
        u32::try_from(self.free.len() - before).unwrap_or(u32::MAX)
    }

    fn begin(&mut self, now: Duration) -> u32 {
        let mut begun = 0;
        while let Some(token) = self.free.pop() {
            let index = self.draws.below(self.keys);
            let drawn = || self.draws.below(100) < self.put_percent.into();
            let put = self.refused.take().unwrap_or_else(drawn);
            if put {
                keys::fill(index, &mut self.value);
            }
            let value = put.then_some(&self.value[..]);
            if !self.caller.call(now, &keys::key(index), value, token) {
                self.free.push(token);
                self.refused = Some(put);
                break;
            }
            let at = now;
            if let Ok(token) = usize::try_from(token) {
                self.calls[token] = Call { index, put, at };
            }
            begun += 1;
        }
        begun
    }
}

impl<C: SystemClient> Process for Client<C> {
    fn party(&self) -> PartyId {
        self.caller.party()
    }

    fn step(&mut self, now: Duration) -> Step {
        let moved = self.finish(now) + self.begin(now);
        self.caller.flush(now);
        self.spins = if moved > 0 { 0 } else { self.spins + 1 };
        Step {
            moved: self.spins <= SPINS,
            cost_ns: self.cpu.pass_ns + f64::from(moved) * self.cpu.request_ns,
            deadline: self.caller.deadline(),
        }
    }
}

impl<C: SystemClient> Measured for Client<C> {
    fn forget(&mut self, late: Duration) {
        self.answers.clear();
        (self.late_from, self.late) = (late, 0);
    }

    fn answers(&mut self) -> Vec<Answered> {
        std::mem::take(&mut self.answers)
    }

    fn late(&self) -> u64 {
        self.late
    }

    fn failed(&self) -> u64 {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use herdwick_sim::Profile;

    use super::*;

    /// A system with room for one PUT; every second poll answers what is under way.
    #[derive(Default)]
    struct OnePut {
        calls: Vec<(u64, bool)>,
        puts: u64,
        polls: u64,
    }

    impl SystemClient for OnePut {
        fn party(&self) -> PartyId {
            unreachable!("the test runs it without a scheduler")
        }
        fn call(&mut self, _: Duration, _: &[u8], put: Option<&[u8]>, token: u64) -> bool {
            let put = put.is_some();
            let has_room = !put || self.calls.iter().all(|(_, put)| !put);
            if has_room {
                self.puts += u64::from(put);
                self.calls.push((token, put));
            }
            has_room
        }
        fn flush(&mut self, _: Duration) {}
        fn poll(&mut self, _: Duration, sink: &mut dyn FnMut(u64, Ended<'_>)) {
            self.polls += 1;
            if self.polls.is_multiple_of(2) {
                for (token, _) in self.calls.drain(..) {
                    sink(token, Ended::Done);
                }
            }
        }
        fn deadline(&self) -> Option<Duration> {
            None
        }
    }

    #[test]
    fn mix_is_as_asked_for_where_there_is_less_room_for_puts() {
        let run = Run {
            put_percent: 50,
            window: 8,
            ..Run::default()
        };
        let cpu = Profile::named("apt").unwrap().cpu;
        let mut client = Client::new(&run, 0, OnePut::default(), &cpu);
        let mut begun = 0;
        for _ in 0..10_000 {
            begun += client.begin(Duration::ZERO);
            client.finish(Duration::ZERO);
        }
        let share = client.caller.puts as f64 / f64::from(begun);
        assert!((share - 0.5).abs() < 0.02, "{share}");
    }
}
