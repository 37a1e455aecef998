//! Probes: cancellations of nothing that show whether requests and replies travel.

use std::time::Duration;

use herdwick_fabric::Port;

use super::{
    ClientSide,
    channel::{Channel, SlotState},
    nanos,
};
use crate::wire::{Line, Stamp};

impl ClientSide {
    /// Sends every worker a cancellation of nothing. It changes nothing, and is answered and
    /// retried like any request: once [`ClientSide::in_flight`] is back at 0, requests and replies
    /// travel. Call it while nothing else is in flight.
    pub fn probe<P: Port>(&mut self, port: &mut P, now: Duration) {
        let retry_at = nanos(now).saturating_add(nanos(self.options.retry_after));
        for channel in &mut self.channels {
            channel.probe(retry_at);
        }
        self.flush(port, now);
    }
}

impl Channel {
    fn probe(&mut self, retry_at: u64) {
        if !self.has_room() {
            return;
        }
        let index = self.next_free();
        let slot = &mut self.slots[index];
        let stamp = Stamp::new(self.spec.epoch, slot.sequence);
        self.lines[index] = Line::cancellation(stamp);
        slot.overflow_len = 0;
        slot.attempts = 0;
        slot.retry_at = retry_at;
        slot.state = SlotState::Abandoned;
        // It conflicts with no request, as a read of an unused key would not.
        slot.is_read = true;
        self.keys.take_slot(index, 0, true);
        self.in_flight += 1;
        self.enqueue(index);
    }
}
