//! Numbers that queue pairs and regions are named by on the network: random, and never used again, so
//! that what is late finds nothing of a successor.

use herdwick_fabric::{Qpn, Rkey};

use super::world::World;

impl World {
    pub(super) fn fresh_qpn(&mut self) -> Qpn {
        loop {
            // A queue pair number has 24 bits.
            let qpn = Qpn(self.rng.next_u32() >> 8);
            if self.qpns.insert(qpn) {
                return qpn;
            }
        }
    }

    pub(super) fn fresh_rkey(&mut self) -> Rkey {
        loop {
            let rkey = Rkey(self.rng.next_u32());
            if self.rkeys.insert(rkey) {
                return rkey;
            }
        }
    }

    /// Draws a base address that cannot be mistaken for an offset.
    pub(super) fn fresh_base(&mut self) -> u64 {
        (self.rng.next() >> 20) & !0xfff
    }
}
