//! How many packets for a connection a pass looks into while more come than it can take.

use herdwick_fabric::Transport;

/// Packets for one connection that a pass looks into while packets are rationed. Over UC as many as
/// requests of a client with the default window are under way; over RC as many as a sender has
/// unacknowledged at most, for each that is dropped has those behind it sent again.
const fn share(transport: Transport) -> u32 {
    match transport {
        Transport::Rc => 256,
        Transport::Uc | Transport::Ud => 64,
    }
}

/// Packets of one pass that were looked into.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    /// The pass.
    turn: u64,
    taken: u32,
}

impl Share {
    /// Of a pass that there is not.
    pub(crate) const NONE: Self = Self { turn: 0, taken: 0 };

    /// Whether no more is looked into in pass `turn`.
    pub(crate) fn is_used_up(self, transport: Transport, turn: u64) -> bool {
        self.turn == turn && self.taken >= share(transport)
    }

    /// Counts one more; whether it is the first of the pass.
    #[inline]
    pub(crate) fn take(&mut self, turn: u64) -> bool {
        let first = self.turn != turn;
        self.taken = if first {
            1
        } else {
            self.taken.saturating_add(1)
        };
        self.turn = turn;
        first
    }
}
