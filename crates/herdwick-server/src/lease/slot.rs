use std::sync::Arc;

use crate::{context::Context, tcp::Stream};

/// A connection that came to the memcached port and began with a claim.
pub(crate) struct Arrival {
    pub(crate) stream: Stream,
    /// What it has said so far.
    pub(crate) input: Vec<u8>,
    pub(crate) slot: ConnectionSlot,
}

/// One of the connections that there may be; given back when dropped.
pub(crate) struct ConnectionSlot(pub(crate) Arc<Context>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.limits.leave();
    }
}
