//! The sending ends of the rings to the peer's queue pairs.

use herdwick_fabric::Qpn;
use herdwick_mem::Span;

use crate::ring::RingProducer;

/// The ring to one queue pair of the peer, shared by all senders on this side.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) qpn: Qpn,
    /// The domain that it lies in.
    pub(crate) pd: u32,
    /// Number of the last batch that put something here.
    pub(crate) touched: u64,
    pub(crate) ring: RingProducer<Span>,
}
