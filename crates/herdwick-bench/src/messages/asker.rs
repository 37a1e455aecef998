//! A client's side of an exchange: messages in flight, each of which is sent again if it is not answered.

use std::time::Duration;

use herdwick_fabric::{Device, PostError, Status};

use super::port::{Arrived, MessagePort, mark, number_of};

/// A message without an answer for so long is sent again, on a fabric that may lose it.
const RETRY_AFTER_NS: u64 = 5_000_000;

/// A message in flight.
#[derive(Clone, Default)]
struct InFlight {
    /// 0: none.
    number: u64,
    attempt: u8,
    tag: u64,
    sent_ns: u64,
}

/// A window of messages to a server.
pub(crate) struct Asker<D: Device> {
    pub(crate) channels: MessagePort<D>,
    slots: Vec<InFlight>,
    /// Words of the messages in flight, by slot.
    messages: Vec<u64>,
    /// The number of the next message.
    next: u64,
    arrived: Arrived,
    /// Words of the messages to send next.
    pending: Vec<u64>,
    lossless: bool,
}

impl<D: Device> Asker<D> {
    /// Posts the first RECVs.
    ///
    /// # Errors
    /// [`PostError`].
    pub(crate) fn new(
        mut channels: MessagePort<D>,
        window: usize,
        lossless: bool,
    ) -> Result<Self, PostError> {
        channels.start()?;
        let words = channels.words.out;
        Ok(Self {
            slots: vec![InFlight::default(); window],
            messages: vec![0; words * window],
            next: 1,
            arrived: channels.arrived(),
            pending: Vec::with_capacity(words * window),
            lossless,
            channels,
        })
    }

    /// Returns whether another message may begin.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.slots[self.slot(self.next)].number == 0
    }

    #[inline]
    fn slot(&self, number: u64) -> usize {
        (number % self.slots.len() as u64) as usize
    }

    /// Begins a message that [`Asker::send`] sends: `fill` gets its number, and writes its words; the
    /// last one is overwritten. There has to be room.
    #[inline]
    pub(crate) fn ask(&mut self, (tag, now_ns): (u64, u64), fill: impl FnOnce(u64, &mut [u64])) {
        let (slot, words) = (self.slot(self.next), self.channels.words.out);
        self.slots[slot] = InFlight {
            number: self.next,
            attempt: 0,
            tag,
            sent_ns: now_ns,
        };
        let message = &mut self.messages[slot * words..][..words];
        fill(self.next, message);
        message[words - 1] = mark(self.next, 0);
        self.pending.extend_from_slice(message);
        self.next += 1;
    }

    /// Takes the replies that have arrived; `sink` gets the tag of each, what was asked and what was
    /// replied, without their last words. Returns how many.
    ///
    /// # Errors
    /// The status of a work request that failed.
    #[inline]
    pub(crate) fn replies(
        &mut self,
        now: Duration,
        sink: &mut impl FnMut(u64, &[u64], &[u64]),
    ) -> Result<usize, Status> {
        self.arrived.clear();
        self.channels.receive(now, &mut self.arrived)?;
        let (asked, replied) = (self.channels.words.out, self.channels.words.inward);
        let mut count = 0;
        for reply in self.arrived.chunks_exact(1 + replied) {
            let number = number_of(reply[replied]);
            let slot = (number % self.slots.len() as u64) as usize;
            let in_flight = &mut self.slots[slot];
            // A reply to an earlier attempt may come after the one that was counted.
            if number == 0 || in_flight.number != number {
                continue;
            }
            in_flight.number = 0;
            let message = &self.messages[slot * asked..][..asked - 1];
            sink(in_flight.tag, message, &reply[1..replied]);
            count += 1;
        }
        Ok(count)
    }

    /// Sends what is pending, and what was not answered in time; what finds the queue full stays pending.
    ///
    /// # Errors
    /// [`PostError`].
    #[inline]
    pub(crate) fn send(&mut self, now_ns: u64) -> Result<(), PostError> {
        // What is pending was not sent yet, and is not late.
        if !self.lossless && self.pending.is_empty() {
            self.ask_again(now_ns);
        }
        let sent = self.channels.send(0, &self.pending)?;
        self.pending.drain(..sent);
        Ok(())
    }

    /// Appends the messages that were not answered in time.
    fn ask_again(&mut self, now_ns: u64) {
        let words = self.channels.words.out;
        for (slot, in_flight) in self.slots.iter_mut().enumerate() {
            if in_flight.number == 0 || now_ns < in_flight.sent_ns + RETRY_AFTER_NS {
                continue;
            }
            in_flight.attempt = in_flight.attempt.wrapping_add(1);
            in_flight.sent_ns = now_ns;
            let message = &mut self.messages[slot * words..][..words];
            message[words - 1] = mark(in_flight.number, in_flight.attempt);
            self.pending.extend_from_slice(message);
        }
    }

    /// Returns the tags of the messages in flight.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = u64> {
        let slots = self.slots.iter().filter(|slot| slot.number != 0);
        slots.map(|slot| slot.tag)
    }
}
