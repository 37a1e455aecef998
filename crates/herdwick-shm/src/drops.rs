//! Counters of everything that a port drops, by reason.

/// Why something was dropped, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drop {
    /// A message for an unreliable queue pair with no RECV posted.
    NoRecv,
    /// A message to an unreliable queue pair whose ring has no room, or which takes none.
    RingFull,
    /// A UC WRITE with a wrong rkey, range, right or scope.
    Refused,
    /// A message or WRITE to a queue pair that is gone, failed, or not connected.
    NoPeer,
    /// A message that this provider never sends.
    Malformed,
    /// An impossible value in a peer's ring counters.
    BadCounter,
    /// Memory of an ended domain that the system kept, for as long as its client holds it.
    NotGivenBack,
}

/// Number of drops at one port by reason; the names fit a statistics line.
#[derive(Debug)]
pub(crate) struct Drops([(&'static str, u64); 7]);

impl Drops {
    pub(crate) const fn new() -> Self {
        Self([
            ("drop_no_recv", 0),
            ("drop_ring_full", 0),
            ("drop_remote_access", 0),
            ("drop_no_peer", 0),
            ("drop_malformed", 0),
            ("drop_ring_counter", 0),
            ("memory_not_given_back", 0),
        ])
    }

    #[cold]
    pub(crate) fn count(&mut self, reason: Drop) {
        self.0[reason as usize].1 += 1;
    }

    /// All counters; to [`Drop::NotGivenBack`] are added the `kept` that were counted on other
    /// threads.
    pub(crate) fn all(&self, kept: u64) -> [(&'static str, u64); 7] {
        let mut all = self.0;
        all[Drop::NotGivenBack as usize].1 += kept;
        all
    }
}
