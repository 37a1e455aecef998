//! The faults that a port counts.

use herdwick_fabric::{Counter, counted_reasons};

counted_reasons! {
    /// The kinds of faults that are counted.
    pub(crate) enum Fault counted by
    /// Counters of the faults of one port.
    Faults {
        /// A work request failed with another status than flushed.
        Completion = "verbs_completion_errors",
        /// A completion queue failed: it overran, or its memory is lost.
        Cq = "verbs_cq_failures",
        /// A queue pair failed.
        Qp = "verbs_qp_failures",
        /// The driver refused a valid post.
        Post = "verbs_post_refusals",
        /// The port went down.
        PortDown = "verbs_port_down",
        /// The device is lost.
        Device = "verbs_device_lost",
        /// The port's address or partition changed.
        Moved = "verbs_address_lost",
    }
}

impl Faults {
    /// Returns the number of faults that ended queue pairs, or an upper bound: one failure may
    /// count twice.
    pub(crate) fn of_queue_pairs(&self) -> u64 {
        let faults = [Fault::Completion, Fault::Qp, Fault::Post];
        faults.iter().map(|fault| self.get(*fault)).sum()
    }
}

/// Returns the counters that a port reports, in the order of its report.
pub fn counters() -> impl Iterator<Item = &'static Counter> {
    Fault::COUNTERS.iter()
}
