//! Timers: the periodic scan of the slots for retries, deadlines and cancellations.

use super::{
    ClientOptions, ClientSide, Outcome,
    channel::{Channel, SlotState},
    nanos,
};
use crate::ClientCounters;

/// Retries of a cancellation after which its slot counts as lost. With the pauses of a session, which
/// double from 10 ms to 200 ms, they take about six seconds: longer than the heartbeat interval of a
/// lease.
const CANCELLATIONS_MAX: u8 = 32;

impl ClientSide {
    /// Scans the slots for overdue requests. Returns the number of outcomes.
    #[cold]
    pub(super) fn scan(&mut self, now: u64, sink: &mut impl FnMut(u64, Outcome<'_>)) -> usize {
        // A retry is late by half its pause at most.
        let period = (nanos(self.options.retry_after) / 2).max(1);
        self.next_scan = now.saturating_add(period);
        let mut outcomes = 0;
        for channel in &mut self.channels {
            // A retry may be answered twice, and takes a spare RECV for that.
            channel.retries_left = self.options.recv_slack;
            if channel.in_flight > 0 {
                outcomes += channel.scan(now, &self.options, &mut self.counters, sink);
            }
        }
        outcomes
    }
}

impl Channel {
    fn scan(
        &mut self,
        now: u64,
        options: &ClientOptions,
        counters: &mut ClientCounters,
        sink: &mut impl FnMut(u64, Outcome<'_>),
    ) -> usize {
        let mut outcomes = self.scan_held(now, options, counters, sink);
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            match slot.state {
                // Its line was never written, so there is nothing to cancel at the worker.
                SlotState::Queued if now >= slot.deadline => {
                    sink(slot.token, Outcome::Timeout);
                    self.unqueue(index);
                    counters.abandoned += 1;
                    outcomes += 1;
                }
                SlotState::InFlight if now >= slot.deadline => {
                    sink(slot.token, slot.given_up());
                    self.cancel(index, now);
                    counters.abandoned += 1;
                    outcomes += 1;
                    self.retry(index, now, options, counters);
                }
                SlotState::InFlight if now >= slot.retry_at => {
                    self.retry(index, now, options, counters);
                }
                SlotState::Abandoned if now >= slot.retry_at => {
                    if slot.attempts >= CANCELLATIONS_MAX {
                        self.slots[index].state = SlotState::Lost;
                        counters.slots_lost += 1;
                    } else {
                        self.retry(index, now, options, counters);
                    }
                }
                _ => {}
            }
        }
        outcomes
    }

    /// Ends the requests that were held back for too long, and returns how many.
    fn scan_held(
        &mut self,
        now: u64,
        options: &ClientOptions,
        counters: &mut ClientCounters,
        sink: &mut impl FnMut(u64, Outcome<'_>),
    ) -> usize {
        let mut outcomes = 0;
        let places = self.held.in_order();
        for place in &places {
            let Some(waiting) = self.held.get_mut(*place) else {
                // Sent, because one before it has timed out.
                continue;
            };
            if waiting.deadline == u64::MAX {
                waiting.deadline = now.saturating_add(nanos(options.deadline));
            }
            if now < waiting.deadline {
                continue;
            }
            sink(waiting.token, Outcome::Timeout);
            self.drop_held(*place);
            counters.abandoned += 1;
            outcomes += 1;
        }
        self.held.reuse(places);
        outcomes
    }

    /// Removes a request whose line was never written.
    fn unqueue(&mut self, index: usize) {
        // Otherwise the slot's next request would be posted twice.
        self.pending
            .retain(|pending| usize::from(*pending) != index);
        self.vacate(index);
    }

    /// Turns a request that timed out into its cancellation, under the same sequence. If the worker
    /// never saw the request, it will not execute it any more; if it did, it repeats the remembered
    /// answer. Either way the request cannot take effect after the answer.
    fn cancel(&mut self, index: usize, now: u64) {
        let slot = &mut self.slots[index];
        self.lines[index].cancel();
        slot.overflow_len = 0;
        slot.attempts = 0;
        // Due at once: if no RECV is free for the answer, the next scan writes the cancellation.
        slot.retry_at = now;
        slot.state = SlotState::Abandoned;
    }

    /// Writes the slot's line again, one attempt later, if a RECV is free for another reply.
    fn retry(
        &mut self,
        index: usize,
        now: u64,
        options: &ClientOptions,
        counters: &mut ClientCounters,
    ) {
        if self.retries_left == 0 || self.is_crowded() {
            counters.retries_held += 1;
            return;
        }
        self.retries_left -= 1;
        counters.retries += 1;
        let slot = &mut self.slots[index];
        slot.attempts = slot.attempts.saturating_add(1);
        let pause = nanos(options.retry_after)
            // A larger shift would overflow the word; `retry_after_max` bounds the pause.
            .saturating_mul(1 << slot.attempts.min(32))
            .min(nanos(options.retry_after_max));
        slot.retry_at = now.saturating_add(pause);
        self.lines[index].retry();
        self.pending.push(index as u16);
    }
}
