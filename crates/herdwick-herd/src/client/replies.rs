//! Replies: completions in, outcomes out. A reply counts only for the request in its slot under the
//! lease's epoch; others are counted and dropped.

use std::time::Duration;

use herdwick_fabric::{Completion, InlineData, Port, Status};
use zerocopy::IntoBytes;

use super::{
    Answer, ClientSide, Outcome,
    channel::{Channel, SlotState},
};
use crate::wire::{REPLY_HEAD_BYTES, ReplyHead, ReplyStatus, Sequence, Window, split_imm};

impl ClientSide {
    /// Polls once, passes the outcomes on, reposts the consumed RECVs, and writes the requests that
    /// were held back behind the answered ones.
    #[inline]
    pub(super) fn take_replies<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, Outcome<'_>),
    ) -> usize {
        let found = port.poll(self.options.reply_cq, &mut self.completions[..]);
        let mut outcomes = 0;
        for i in 0..found {
            outcomes += usize::from(self.handle_completion(i, sink));
        }
        let mut resumed = false;
        if found > 0 {
            for channel in &mut self.channels {
                if !channel.consumed.is_empty() && channel.post_recvs(port).is_err() {
                    self.counters.recvs_short += channel.consumed.len() as u64;
                }
                resumed |= channel.resumed;
            }
        }
        // After the RECVs are posted, since the replies to these requests need them.
        if resumed {
            self.flush(port, now);
        }
        outcomes
    }

    /// Frees the send queues' entries and counts failed WRITEs and SENDs. Their requests are
    /// retried like any other without a reply. Returns whether there was a completion.
    #[cold]
    pub(super) fn take_completions<P: Port>(&mut self, port: &mut P) -> bool {
        let found = port.poll(self.options.request_cq, &mut self.completions[..]);
        for done in self.completions.iter().take(found) {
            if done.status != Status::Success {
                self.counters.failed_completions += 1;
            }
            let mut channels = self.channels.iter_mut();
            if let Some(channel) = channels.find(|channel| channel.spec.requests == done.qp) {
                channel.signals.arrived();
            }
        }
        found > 0
    }

    /// Matches one completion to its request. Returns whether that gave an outcome.
    #[inline]
    fn handle_completion(&mut self, i: usize, sink: &mut impl FnMut(u64, Outcome<'_>)) -> bool {
        let Self {
            channels,
            options,
            completions,
            large,
            counters,
            ..
        } = self;
        let completion = &completions[i];
        if completion.status != Status::Success {
            counters.failed_completions += 1;
            return_recv(channels, completion);
            return false;
        }
        // A missing immediate reads as worker 255, which no lease has, and counts as malformed.
        let (worker, sequence) = split_imm(completion.imm.unwrap_or(u32::MAX));
        let channel = channels.get_mut(usize::from(worker));
        let Some(channel) = channel.filter(|channel| channel.receives_at(completion.qp)) else {
            counters.malformed_replies += 1;
            return_recv(channels, completion);
            return false;
        };
        let bytes = payload(channel, completion, large);
        // The reply was copied, so its buffer may receive another.
        channel.recv_consumed(completion.wr_id);
        let Some(answer) = Answer::read(bytes) else {
            counters.malformed_replies += 1;
            return false;
        };
        if answer.head.epoch() != channel.spec.epoch.get() {
            counters.stale_epoch += 1;
            return false;
        }
        match channel.settle(options.window, sequence) {
            Settled::Now(token) => {
                counters.answers += 1;
                sink(token, Outcome::Answered(answer));
                true
            }
            Settled::Reclaimed => {
                counters.reclaimed += 1;
                false
            }
            Settled::Before => {
                counters.stale_replies += 1;
                false
            }
        }
    }
}

/// The effect of a reply on its slot.
enum Settled {
    /// It answered the request of this token.
    Now(u64),
    /// The request had timed out; the slot is free again.
    Reclaimed,
    /// The slot had its answer already.
    Before,
}

impl Channel {
    #[inline]
    fn settle(&mut self, window: Window, sequence: Sequence) -> Settled {
        let index = window.slot(sequence);
        let slot = &self.slots[index];
        let token = slot.token;
        if slot.sequence != sequence {
            return Settled::Before;
        }
        let settled = match slot.state {
            SlotState::InFlight => Settled::Now(token),
            SlotState::Abandoned | SlotState::Lost => Settled::Reclaimed,
            // `Queued`: nothing was written under this sequence, so nothing can have answered it.
            SlotState::Free | SlotState::Queued | SlotState::Closed => {
                return Settled::Before;
            }
        };
        self.release(index);
        settled
    }
}

/// Returns the RECV of a completion that is no valid reply to its queue pair. Not a flushed one: it
/// would only be flushed again.
#[cold]
fn return_recv(channels: &mut [Channel], completion: &Completion) {
    if completion.status == Status::Flushed {
        return;
    }
    let mut channels = channels.iter_mut();
    if let Some(channel) = channels.find(|channel| channel.receives_at(completion.qp)) {
        channel.recv_consumed(completion.wr_id);
    }
}

/// The bytes of a reply: those in the completion, or copied from the RECV's buffer into `large`.
#[inline]
fn payload<'a>(channel: &Channel, completion: &'a Completion, large: &'a mut [u64]) -> &'a [u8] {
    if let Some(inline) = &completion.inline {
        return inline_bytes(inline);
    }
    // The length is the provider's; the reply itself is a peer's and may exceed what was agreed.
    let len = (completion.byte_len as usize).min(size_of_val(large));
    // The number is the provider's: a wrong one is out of bounds, and does not wrap into another
    // buffer.
    let at = (completion.wr_id as usize).saturating_mul(channel.recv.bytes);
    let bytes = &mut large.as_mut_bytes()[..len];
    match channel
        .receive
        .slice(at..at.saturating_add(channel.recv.bytes))
    {
        Ok(buffer) => buffer.read_bytes(channel.recv.header, bytes),
        Err(_) => return &[],
    }
    bytes
}

#[inline]
fn inline_bytes(inline: &InlineData) -> &[u8] {
    &inline.words().as_bytes()[..inline.len()]
}

impl<'a> Answer<'a> {
    /// Decodes a reply; `None` if it is malformed.
    #[inline]
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let head = ReplyHead(u64::from_le_bytes(*bytes.first_chunk()?));
        // The worker may have padded the message to the length of others (docs/wire.md, Reply).
        let bytes = match head.words() {
            Some(words) => bytes.get(..8 * words)?,
            None => bytes,
        };
        let rest = &bytes[8..];
        let status = head.status()?;
        let (number, value) = match rest.split_first_chunk() {
            Some((number, value)) => (Some(u64::from_le_bytes(*number)), value),
            None => (None, rest),
        };
        let (value, value_len) = match status {
            ReplyStatus::ReplyTooLarge => (&[][..], u64::from_le_bytes(value.try_into().ok()?)),
            _ => (value, value.len() as u64),
        };
        // Without a number a reply ends after its flags; any length in between is malformed.
        let whole = number.is_some() || bytes.len() + 8 == REPLY_HEAD_BYTES;
        whole.then_some(Self {
            head,
            status,
            number,
            value,
            value_len,
        })
    }
}
