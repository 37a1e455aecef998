//! Counters of everything that a port drops, by reason.

use herdwick_fabric::{Counter, counted_reasons};

counted_reasons! {
    /// Why something was dropped, or failed.
    pub(crate) enum DropReason counted by
    /// Number of drops at one port by reason.
    Drops {
        /// A message for an unreliable queue pair with no RECV posted.
        NoRecv = "drop_no_recv",
        /// A message to an unreliable queue pair whose ring has no room, or which takes none.
        RingFull = "drop_ring_full",
        /// A UC WRITE with a wrong rkey, range, right or scope.
        Refused = "drop_remote_access",
        /// A message or WRITE to a queue pair that is gone, failed, or not connected.
        NoPeer = "drop_no_peer",
        /// A message that this provider never sends.
        Malformed = "drop_malformed",
        /// An impossible value in a peer's ring counters.
        BadCounter = "drop_ring_counter",
        /// Memory of an ended domain that the system kept, for as long as its client holds it.
        Unreleased = "memory_unreleased",
    }
}

/// Returns the counters that a port reports, in the order of its report.
pub fn counters() -> impl Iterator<Item = &'static Counter> {
    DropReason::COUNTERS.iter()
}
