//! The faults of the seeded fabric.

use std::time::Duration;

/// Virtual time for which RC tries to reach a silent peer.
pub const RETRY_DEADLINE: Duration = Duration::from_millis(20);

/// The faults of messages. All zero: none, and a posted message arrives at the next progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets lost, per thousand.
    pub drop_per_mille: u16,
    /// Packets that arrive twice, per thousand.
    pub duplicate_per_mille: u16,
    /// Packets that later ones may overtake, per thousand.
    pub reorder_per_mille: u16,
    /// Longest additional travel time of such a packet.
    pub reorder_window: Duration,
    /// Shortest travel time.
    pub delay_min: Duration,
    /// Longest travel time.
    pub delay_max: Duration,
    /// Longest pause between two words of one WRITE becoming visible; zero: all in one step. Words
    /// appear in any order; the last one appears last if `ordered_write` is promised.
    pub tear: Duration,
    /// Longest pause between two words that one READ loads; zero: all in one step. Words are loaded in
    /// rising order if `ordered_read` is promised, else in any order.
    pub tear_reads: Duration,
}
