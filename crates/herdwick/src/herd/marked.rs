//! What a session with a secondary store needs of the one with the primary.
//!
//! Circular import with the session `herd`, of which these are methods.

use std::{cell::RefCell, time::Duration};

use herdwick_fabric::Port;

use super::{Herd, MarkedReply};
use crate::{Answer, Ticket};

impl<P: Port> Herd<P> {
    /// As [`Herd::poll`], and collects what replies tell of the server's secondary store. Reads that text has
    /// answered tell nothing of it: not that it has the key.
    pub(crate) fn poll_marked(
        &mut self,
        now: Duration,
        marked: &mut Vec<MarkedReply>,
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) {
        // Two closures write to it, in turns.
        let marked = RefCell::new(marked);
        let note = &mut |reply| marked.borrow_mut().push(reply);
        self.poll_with(now, note, &mut |ticket, answer| {
            let mut replies = marked.borrow_mut();
            // `note` gets what a reply shows right before its answer comes here.
            let has_told = replies.last().is_some_and(|reply| reply.ticket == ticket);
            if !has_told && matches!(answer, Answer::Hit(_) | Answer::Miss) {
                replies.push(MarkedReply {
                    ticket,
                    is_read: true,
                    is_leased: false,
                    store: 0,
                    replicated: None,
                });
            }
            drop(replies);
            sink(ticket, answer);
        });
    }

    /// Returns the largest number of requests in flight.
    pub(crate) fn capacity(&self) -> usize {
        self.pending.capacity()
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
