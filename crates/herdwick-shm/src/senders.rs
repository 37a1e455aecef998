//! The datagram senders of this side of a domain. A message in a ring names its sender by an index
//! of five bits, which the receiver looks up when it polls the message: an index is not given to
//! another queue pair while a message of the first may be unread.

use herdwick_fabric::{Qpn, Slab};

use crate::{
    layout::{QPS, SENDERS},
    outbound::Outbound,
};

/// The table of senders, as this side keeps it; the peer reads the numbers in the control area.
#[derive(Debug)]
pub(crate) struct Senders {
    /// The queue pair of each index; 0 where there is none.
    qpns: [u32; SENDERS],
    /// Messages of removed senders that may be unread.
    unread: Vec<UnreadRings>,
}

/// What the rings held when the sender of `index` was removed.
#[derive(Debug)]
struct UnreadRings {
    index: usize,
    ring: u32,
    /// The messages sent into that ring by then.
    sent: u64,
}

impl Senders {
    pub(crate) fn new() -> Self {
        Self {
            qpns: [0; SENDERS],
            unread: Vec::new(),
        }
    }

    /// Returns the index of `qpn`, which gets a free one if it has none; `None` if all are in use,
    /// or were when messages were sent that are still unread.
    pub(crate) fn add(&mut self, qpn: Qpn, rings: &mut Slab<Outbound>) -> Option<usize> {
        // A queue pair with several addresses in a domain has one number.
        if let Some(known) = self.qpns.iter().position(|sender| *sender == qpn.0) {
            return Some(known);
        }
        // A ring that is gone belonged to a queue pair that is gone: nothing reads it.
        self.unread.retain(|unread| {
            let ring = rings.get_mut(unread.ring);
            ring.is_some_and(|outbound| outbound.ring.received() < unread.sent)
        });
        let is_free = |index: &usize| {
            self.qpns[*index] == 0 && self.unread.iter().all(|unread| unread.index != *index)
        };
        let index = (0..SENDERS).find(is_free)?;
        self.qpns[index] = qpn.0;
        Some(index)
    }

    /// Removes a sender. `rings` are those to the peer's queue pairs.
    pub(crate) fn remove(
        &mut self,
        qpn: Qpn,
        rings: &[Option<u32>; QPS],
        outbounds: &mut Slab<Outbound>,
    ) {
        let Some(index) = self.qpns.iter().position(|sender| *sender == qpn.0) else {
            return;
        };
        self.qpns[index] = 0;
        for ring in rings.iter().flatten().copied() {
            let Some(outbound) = outbounds.get_mut(ring) else {
                continue;
            };
            // The ring does not tell senders apart, so every message up to here counts as this one's.
            let sent = outbound.ring.sent();
            // The peer writes this counter: with a false one it confuses its own senders alone.
            if outbound.ring.received() < sent {
                self.unread.push(UnreadRings { index, ring, sent });
            }
        }
    }
}
