//! The faults of the seeded fabric, and how often each had an effect.

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
    /// Packets of which a bit flips on the link, per thousand: their receiver drops them, since the
    /// ICRC does not match.
    pub corrupt_per_mille: u16,
    /// Messages that find no RECV although there is one, per thousand, as when an RNIC has not fetched
    /// it yet.
    pub not_ready_per_mille: u16,
    /// Longest pause between two words of one WRITE becoming visible; zero: all in one step. Words
    /// appear in any order; the last one appears last if `ordered_write` is promised.
    pub tear: Duration,
    /// Longest pause between two words that one READ loads; zero: all in one step. Words are loaded in
    /// rising order if `ordered_read` is promised, else in any order.
    pub tear_reads: Duration,
}

impl Faults {
    /// Returns loss, delay, reordering, and READs and WRITEs whose words are accessed at different
    /// times.
    #[must_use]
    pub fn storm() -> Self {
        Self {
            drop_per_mille: 30,
            duplicate_per_mille: 30,
            reorder_per_mille: 100,
            reorder_window: Duration::from_micros(4),
            delay_min: Duration::from_nanos(200),
            delay_max: Duration::from_micros(3),
            tear: Duration::from_nanos(100),
            tear_reads: Duration::from_nanos(900),
            ..Self::default()
        }
    }
}

/// How often faults had an effect since the network was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets lost at random.
    pub dropped: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that overtook earlier ones.
    pub reordered: u64,
    /// Packets that travelled longer than the link takes.
    pub delayed: u64,
    /// Packets dropped because their ICRC did not match.
    pub corrupted: u64,
    /// Messages that were made to find no RECV.
    pub not_ready: u64,
    /// WRITEs and READs that were executed word by word.
    pub torn: u64,
    /// Packets lost between parties that a cut separates.
    pub cut: u64,
    /// Queue pairs that ended with their device, or with a completion queue that was overrun.
    pub failed_qps: u64,
}
