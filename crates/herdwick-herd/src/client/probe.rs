//! What is no request: probes, cancellations of nothing that show whether requests and replies travel; and what a
//! client sends that reads the store's memory: reports of its reads, and questions for the stags of keys.

use std::time::Duration;

use herdwick_fabric::Port;
use herdwick_request::KeyHash;

use super::{
    ClientSide,
    channel::{Channel, SlotState},
    nanos,
};
use crate::wire::{LINE_BYTES, Line, REQUEST_BYTES_MAX, Stamp, encode_locate, encode_report};

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

impl ClientSide {
    /// Reports to a worker `hits` reads in its store's memory, and the hashes of the keys of some of them, at
    /// least one. Returns whether the report was accepted: it leaves room for a request. Its outcome carries
    /// `token`.
    pub fn report(&mut self, worker: usize, hits: u32, hashes: &[KeyHash], token: u64) -> bool {
        let channel = self.channels.get_mut(worker);
        channel.is_some_and(|channel| channel.report(hits, hashes, token))
    }

    /// Asks the key's worker for its stag. Returns whether the question was accepted: it leaves room for a request.
    /// Its outcome carries `token`, and the stag as number.
    pub fn locate(&mut self, hash: KeyHash, key: &[u8], token: u64) -> bool {
        let worker = hash.partition(self.channels.len());
        self.channels[worker].locate(hash, key, token)
    }
}

impl Channel {
    fn report(&mut self, hits: u32, hashes: &[KeyHash], token: u64) -> bool {
        !hashes.is_empty()
            && self.aside(token, |stamp, line, body| {
                Some(encode_report(hits, hashes, stamp, line, body))
            })
    }

    fn locate(&mut self, hash: KeyHash, key: &[u8], token: u64) -> bool {
        self.aside(token, |stamp, line, body| {
            encode_locate(hash, key, stamp, line, body).ok()
        })
    }

    /// Takes a slot, beside which one is free, for a line that `encode` writes; it returns the bytes of its
    /// overflowing body.
    fn aside(
        &mut self,
        token: u64,
        encode: impl FnOnce(Stamp, &mut Line, &mut [u8]) -> Option<usize>,
    ) -> bool {
        if self.in_flight + 1 >= self.slots.len() || !self.has_room() {
            return false;
        }
        let index = self.next_free();
        let slot = &mut self.slots[index];
        let stamp = Stamp::new(self.spec.epoch, slot.sequence);
        let body = &mut self.overflow[..];
        let Some(len) = encode(stamp, &mut self.lines[index], body) else {
            return false;
        };
        if len > 0 {
            let at = index * REQUEST_BYTES_MAX + LINE_BYTES;
            self.stage.write_bytes(at, &body[..len]);
        }
        slot.token = token;
        slot.overflow_len = len as u16;
        slot.attempts = 0;
        // It changes nothing that a request would see: it has no place in the order of its keys.
        slot.is_read = true;
        slot.deadline = u64::MAX;
        slot.state = SlotState::Queued;
        self.in_flight += 1;
        self.enqueue(index);
        true
    }

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
        // Like the cancellation of a request that timed out: its answer frees the slot, and is no
        // outcome.
        slot.state = SlotState::Abandoned;
        slot.is_read = true;
        self.in_flight += 1;
        self.enqueue(index);
    }
}
