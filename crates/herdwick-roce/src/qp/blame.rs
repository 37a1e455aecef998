//! The bound on wrong packets that one source can have processed in a pass.

use core::net::{IpAddr, Ipv4Addr};

/// Maximum wrong packets that a pass processes from one source for one queue pair. A wrong packet
/// costs as much to process as a correct one, so a flood of them would otherwise take up the whole
/// pass.
const WRONG_MAX: u32 = 32;

/// The count of wrong packets from one source in one pass; with several sources, only the latest is
/// counted.
pub(crate) struct Blame {
    /// The pass.
    pub(crate) turn: u64,
    source: IpAddr,
    count: u32,
}

impl Blame {
    /// No pass; the engine counts passes from 1.
    pub(crate) const NONE: Self = Self {
        turn: 0,
        source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        count: 0,
    };

    /// Returns whether packets from `source` are dropped unseen for the rest of the pass.
    pub(crate) fn is_full(&self, source: IpAddr) -> bool {
        self.count >= WRONG_MAX && self.source == source
    }

    pub(crate) fn add(&mut self, turn: u64, source: IpAddr) {
        // Sources that alternate are not bounded: this is for one faulty or hostile client, not for
        // a forger of addresses.
        let same = self.turn == turn && self.source == source;
        *self = Self {
            turn,
            source,
            count: if same { self.count + 1 } else { 1 },
        };
    }
}
