//! Who sends a queue pair wrong packets, and how many of them a pass looks into.

use core::net::{IpAddr, Ipv4Addr};

/// Wrong packets from one source to one queue pair that a pass looks into. To look into one costs as
/// much as to serve a right one, so whoever sends nothing else would have the pass to himself.
const WRONG_MAX: u32 = 32;

/// Wrong packets of one pass from one source: the last, where there are several.
pub(crate) struct Blame {
    /// The pass.
    pub(crate) turn: u64,
    source: IpAddr,
    count: u32,
}

impl Blame {
    /// Of a pass that there is not.
    pub(crate) const NONE: Self = Self {
        turn: 0,
        source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        count: 0,
    };

    /// Whether no more of `source` is looked into.
    pub(crate) fn is_full(&self, source: IpAddr) -> bool {
        self.count >= WRONG_MAX && self.source == source
    }

    pub(crate) fn add(&mut self, turn: u64, source: IpAddr) {
        let same = self.turn == turn && self.source == source;
        *self = Self {
            turn,
            source,
            count: if same { self.count + 1 } else { 1 },
        };
    }
}
