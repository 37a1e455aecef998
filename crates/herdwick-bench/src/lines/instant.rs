//! HERD's driver over lines that answer at once: measures the cost of the driver itself.

use std::time::Duration;

use herdwick_herd::{Refused, wire::ReplyStatus};
use herdwick_request::{HashKey, Op, Request};

use super::driver::{Driver, Lines, Reply};
use crate::{
    cost::{Answers, block, ns_per_op},
    counters::RunCounters,
    pace::Pace,
    target::{DriveError, Load},
    workload::{KeySpace, Trace},
};

/// An arbitrary hash key: the hashes are computed beforehand.
const HASH_KEY: HashKey = HashKey([1, 2]);

/// Accepts `window` requests and answers all of them at the next poll.
struct InstantLines<'a> {
    answers: &'a Answers,
    window: usize,
    /// Tokens to answer, each with whether it is a write.
    pending: Vec<(u64, bool)>,
    answered: usize,
}

impl Lines for InstantLines<'_> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        if self.pending.len() == self.window {
            return Err(Refused::Full);
        }
        self.pending.push((token, matches!(request.op, Op::Put(_))));
        Ok(())
    }

    #[inline]
    fn flush(&mut self, _: Duration) {}

    #[inline]
    fn poll(&mut self, _: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        let count = self.pending.len();
        for (token, is_put) in self.pending.drain(..) {
            let value = if is_put {
                &[]
            } else {
                self.answers.value(self.answered)
            };
            self.answered += 1;
            let status = ReplyStatus::Done;
            sink(token, Some(Reply { status, value }));
        }
        count
    }
}

/// Returns nanoseconds per operation of `trace` for generator and check of HERD's driver, with
/// `window` requests in flight.
///
/// # Errors
/// A value does not fit a request.
pub(crate) fn generator_ns(
    trace: &mut Trace,
    space: KeySpace,
    window: usize,
) -> Result<f64, DriveError> {
    let mut driver = Driver::new(space, true);
    let (mut pace, mut counters) = (Pace::closed(), RunCounters::new());
    let (mut answers, mut failed) = (Answers::new(space), None);
    let ns = ns_per_op(|clock| {
        let mut piece = trace.piece(block(&space), &HASH_KEY, &space);
        answers.lay_out(piece.steps().iter().copied());
        let operations = piece.len() as u64;
        let mut load = Load {
            trace: &mut piece,
            pace: &mut pace,
            counters: &mut counters,
            version: 0,
        };
        let mut lines = InstantLines {
            answers: &answers,
            window,
            pending: Vec::with_capacity(window),
            answered: 0,
        };
        let start_ns = clock.ns();
        // It ends with the trace, and not by the time.
        let driven = driver.drive(&mut lines, &mut load, u64::MAX, &mut || clock.ns());
        failed = driven.err().or_else(|| failed.take());
        (clock.ns() - start_ns, operations)
    });
    debug_assert_eq!((counters.wrong_values, counters.errors), (0, 0));
    failed.map_or(Ok(ns), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Dist, Mix, Step};

    /// Every operation passes the driver's loop and its check: the operations of a whole trace are
    /// counted, and a value of another key would be noticed.
    #[test]
    fn every_reply_is_checked_and_counted() {
        let space = KeySpace::new(1000, 16, 32).unwrap();
        let mut trace = Trace::new(Mix::GetShare(0.5), Dist::Uniform, 1000, 200, 1);
        let piece = trace.piece(200, &HASH_KEY, &space);
        let puts = piece.steps().iter().filter(|step| step.is_put()).count() as u64;
        let mut answers = Answers::new(space);
        answers.lay_out(piece.steps().iter().copied());
        for (wrong, window) in [(false, 1), (false, 16), (true, 16)] {
            if wrong {
                let steps = piece.steps().iter();
                answers.lay_out(steps.map(|step| Step::get(step.key() ^ 1)));
            }
            let (mut pace, mut counters) = (Pace::closed(), RunCounters::new());
            let mut lines = InstantLines {
                answers: &answers,
                window,
                pending: Vec::new(),
                answered: 0,
            };
            let mut fresh = piece.clone();
            let mut load = Load {
                trace: &mut fresh,
                pace: &mut pace,
                counters: &mut counters,
                version: 0,
            };
            let mut driver = Driver::new(space, true);
            let driven = driver.drive(&mut lines, &mut load, u64::MAX, &mut || 0);
            driven.unwrap();
            let gets = 200 - puts;
            let expected = if wrong { (0, gets) } else { (gets, 0) };
            assert_eq!(
                (counters.hits, counters.wrong_values, counters.puts),
                (expected.0, expected.1, puts)
            );
        }
    }
}
