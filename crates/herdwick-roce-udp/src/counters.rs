//! The counters that a port reports: those of its sockets, and those of its engine.

use herdwick_fabric::{Counter, counters};
use herdwick_roce::{ConnectionCounters, Drop};

counters! {
    /// Counters of the sockets under an engine.
    pub(crate) struct ShellCounters {
        /// Packets longer than the buffers of the socket: dropped.
        truncated = "roce_truncated",
        /// Packets for another port of this process whose queue was full: dropped.
        misrouted_lost = "roce_misrouted_lost",
        /// Packets for another port of this process, passed to it.
        misrouted_forwarded = "roce_misrouted_forwarded" as event,
        /// Packets that the kernel refused to send.
        send_refused = "roce_send_refused",
        /// Packets longer than the path takes: lost.
        send_too_long = "roce_send_too_long",
        /// System calls to receive that failed.
        receive_failed = "roce_receive_failed",
        /// Packets that the capture file may lack.
        capture_failed = "roce_capture_failed",
        /// Packets that the kernel dropped because the receive buffer of the socket was full.
        socket_overflow = "roce_socket_overflow",
    }
}

/// Returns the counters that a port reports: those of its drops, then those of its connections,
/// each in the order of its report.
pub fn counters() -> impl Iterator<Item = &'static Counter> {
    let drops = ShellCounters::COUNTERS.iter().chain(Drop::COUNTERS);
    drops.chain(ConnectionCounters::COUNTERS)
}
