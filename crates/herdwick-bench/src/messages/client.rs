//! The client of an ECHO: keeps a window of messages in flight, and compares each answer with what was
//! sent.

use std::time::Duration;

use herdwick_fabric::{Device, Port, PostError};

use super::{asker::Asker, port::MessagePort};
use crate::target::{DriveError, Load, Target};

/// One client thread.
pub(crate) struct EchoClient<D: Device>(Asker<D>);

impl<D: Device> EchoClient<D> {
    /// Posts the first RECVs.
    ///
    /// # Errors
    /// [`PostError`].
    pub(crate) fn new(
        channels: MessagePort<D>,
        window: usize,
        lossless: bool,
    ) -> Result<Self, PostError> {
        Ok(Self(Asker::new(channels, window, lossless)?))
    }
}

impl<D: Device> Target for EchoClient<D> {
    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        let Self(asker) = self;
        let mut now_ns = clock();
        loop {
            let mut answered_ns = None;
            let replies =
                asker.replies(Duration::from_nanos(now_ns), &mut |due_ns, sent, reply| {
                    let here_ns = *answered_ns.get_or_insert_with(&mut *clock);
                    load.counters.latency(due_ns, here_ns);
                    match reply == sent {
                        true => load.counters.hits += 1,
                        false => load.counters.wrong_values += 1,
                    }
                });
            replies.map_err(DriveError::Verb)?;
            now_ns = answered_ns.unwrap_or_else(&mut *clock);
            if now_ns >= until_ns {
                return Ok(());
            }
            while asker.has_room() && load.pace.is_due(now_ns) {
                let due_ns = load.pace.take(1, now_ns);
                asker.ask((due_ns, now_ns), fill);
            }
            asker.send(now_ns)?;
            asker.channels.port.flush(Duration::from_nanos(now_ns));
        }
    }

    fn in_flight(&self) -> impl Iterator<Item = u64> {
        self.0.in_flight()
    }
}

/// Fills a message with words that differ from message to message and within one.
fn fill(number: u64, message: &mut [u64]) {
    let value = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = message.iter_mut().enumerate();
    words.for_each(|(index, word)| *word = value.rotate_left(index as u32));
}
