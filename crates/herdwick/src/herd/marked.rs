//! What a session with a secondary store needs of the one with the primary.
//!
//! Circular import with the session `herd`, of which these are methods.

use std::time::Duration;

use herdwick_fabric::Port;

use super::{Herd, MarkedReply};
use crate::{Answer, Ticket};

impl<P: Port> Herd<P> {
    /// As [`Herd::poll`], and collects what replies tell of the server's secondary store.
    pub(crate) fn poll_marked(
        &mut self,
        now: Duration,
        marked: &mut Vec<MarkedReply>,
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) {
        self.poll_with(now, &mut |reply| marked.push(reply), sink);
    }

    /// Returns the number of requests in flight on the fabric.
    pub(crate) fn in_flight(&self) -> usize {
        self.side.in_flight()
    }

    /// Posts what was submitted since the last flush.
    pub(crate) fn post(&mut self, now: Duration) {
        let inside = self.inside(now);
        self.side.flush(&mut *self.port, inside);
        self.port.flush(inside);
    }
}
