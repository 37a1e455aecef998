//! A claim over the memcached port: a worker passes the connection that began with it to the lease manager.
//! It remains one of the `-c` connections until it is closed.

use std::sync::Arc;

use crate::{context::Context, net::stream::Stream};

/// A connection to the memcached port that began with a claim.
pub(crate) struct LeaseArrival {
    pub(crate) stream: Stream,
    /// The bytes received so far.
    pub(crate) input: Vec<u8>,
    pub(crate) slot: CountedConnection,
}

/// One of the `-c` connections; released when dropped.
pub(crate) struct CountedConnection(pub(crate) Arc<Context>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.limits.leave();
    }
}
