//! The state of RC requests: which are unacknowledged, what may be sent, and until when to wait.

use core::time::Duration;

use crate::{Retry, packet::Psn24};

/// Maximum unacknowledged packets of one queue pair: the most that a loss causes to be sent again.
pub(super) const WINDOW: i32 = 256;
/// A READ is requested in pieces of this many packets, counted from its first packet.
pub(super) const READ_PACKETS: u32 = 16;
/// Initial window for response packets in flight; the minimum is one piece. Like a congestion
/// window, it grows by a packet for each piece up to [`WINDOW`], and halves when responses are
/// lost: only the requester knows what its receive buffer holds.
const READ_WINDOW_FIRST: i32 = 32;
// Less than a piece would never permit one to be requested.
const READ_WINDOW_MIN: i32 = READ_PACKETS as i32;

/// The requester. Its work requests are the entries of the send queue's ring, from the oldest
/// unacknowledged one. `sends.next` is the next packet to send; it moves back when one is lost.
pub(crate) struct Requester {
    /// The oldest unacknowledged packet.
    pub(super) oldest: Psn24,
    /// One past the furthest packet ever sent.
    pub(super) furthest: Psn24,
    /// Index in the ring of the entry that `sends.next` belongs to.
    pub(super) cursor: usize,
    /// Pieces of READs, and atomics, sent since `sends.next` last moved back and not yet answered.
    pub(super) reading: usize,
    /// Maximum response packets in flight.
    pub(super) read_window: i32,
    /// Packets sent since the last one that requested an acknowledgement.
    pub(super) unasked: u32,
    pub(super) retries: u8,
    pub(super) not_ready_retries: u8,
    pub(super) timer: Timer,
    /// Waiting, after an RNR NAK, for the peer to post a RECV.
    pub(super) resting: bool,
    /// `sends.next` has moved back for a gap that further responses may report again.
    pub(super) recovering: bool,
    /// After a timeout: only the oldest packet is sent until a response arrives.
    pub(super) probing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// No packet is outstanding.
    Off,
    /// A packet was sent while posting, when the time was unknown; the next round sets the timer.
    Unarmed,
    At(Duration),
}

impl Requester {
    pub(crate) fn new(first: Psn24, retry: &Retry) -> Self {
        Self {
            oldest: first,
            furthest: first,
            cursor: 0,
            reading: 0,
            read_window: READ_WINDOW_FIRST,
            unasked: 0,
            retries: retry.count,
            not_ready_retries: retry.rnr_count,
            timer: Timer::Off,
            resting: false,
            recovering: false,
            probing: false,
        }
    }

    pub(super) fn is_unarmed(&self) -> bool {
        self.timer == Timer::Unarmed
    }

    pub(super) fn read_less(&mut self) {
        self.read_window = (self.read_window / 2).max(READ_WINDOW_MIN);
    }
}
