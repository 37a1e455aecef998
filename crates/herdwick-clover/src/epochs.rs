//! When a client may report that it has left an epoch.
//!
//! The metadata server's epoch grows when it takes entries out of chains. Requests that began before a
//! client learned of an epoch may still use such an entry; later ones may not. So a client publishes
//! an epoch when the last request has ended that began before it learned of it, and the server gives
//! an entry its next use when all clients have published a later epoch than that of its removal.

/// The epochs of a client.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The newest that the server named, and the last one at which cursors have to go.
    known: u64,
    flush: u64,
    /// The one that is to be published when `older` requests have ended; at its beginning cursors went.
    leaving: u64,
    published: u64,
    /// Requests in flight: those that began before `leaving` was known, and the others.
    older: usize,
    newer: usize,
    /// The last flush that was done.
    flushed: u64,
    /// Requests begin under this mark, which changes with `leaving`.
    mark: bool,
}

/// A request in flight; to be given back when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay(bool);

impl Epochs {
    /// Notes the server's epoch.
    pub(crate) fn learn(&mut self, epoch: u64, flush: u64) {
        self.known = self.known.max(epoch);
        // A flush beyond the epoch makes no sense, and would never be done.
        self.flush = self.flush.max(flush.min(epoch));
    }

    /// A request begins.
    #[inline]
    pub(crate) fn begin(&mut self) -> Stay {
        self.newer += 1;
        Stay(self.mark)
    }

    /// A request ended.
    #[inline]
    pub(crate) fn end(&mut self, stay: Stay) {
        match stay.0 == self.mark {
            true => self.newer -= 1,
            false => self.older -= 1,
        }
    }

    /// Goes on as far as possible. Returns whether all cursors have to go now, before another request
    /// begins.
    ///
    /// They go when an epoch begins to be left, not when it is published: so every request that takes one
    /// of them has ended by then. What older requests remember from now on was in use when they began, so
    /// its memory does not even wait for the flush that this one is.
    #[inline]
    pub(crate) fn advance(&mut self) -> bool {
        if self.older == 0 {
            self.published = self.leaving;
        }
        if self.published < self.leaving || self.known == self.leaving {
            return false;
        }
        self.leaving = self.known;
        // The requests in flight are the older ones from here on, and the mark tells them from
        // those that begin.
        self.older = std::mem::take(&mut self.newer);
        self.mark = !self.mark;
        if self.older == 0 {
            self.published = self.leaving;
        }
        let flush = self.flush > self.flushed;
        self.flushed = self.flush;
        flush
    }

    /// Returns the epoch that may be reported to the server.
    pub(crate) fn published(&self) -> u64 {
        self.published
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_published_when_what_began_before_has_ended() {
        let mut epochs = Epochs::default();
        let before = epochs.begin();
        epochs.learn(5, 0);
        assert!(!epochs.advance());
        let after = epochs.begin();
        epochs.learn(6, 6);
        assert!(!epochs.advance());
        assert_eq!(epochs.published(), 0);
        epochs.end(before);
        assert!(epochs.advance(), "6 begins to be left");
        assert_eq!(epochs.published(), 5);
        let last = epochs.begin();
        epochs.end(after);
        assert!(!epochs.advance(), "the cursors went before");
        assert_eq!(epochs.published(), 6);
        epochs.end(last);
        epochs.learn(7, 6);
        assert!(!epochs.advance(), "no flush since");
        assert_eq!(epochs.published(), 7);
    }

    /// A request that begins while older ones keep the epoch from being published must not take a cursor
    /// from before.
    #[test]
    fn cursors_go_before_another_request_begins() {
        let mut epochs = Epochs::default();
        let one = epochs.begin();
        epochs.learn(9, 9);
        assert!(epochs.advance());
        let other = epochs.begin();
        epochs.learn(12, 12);
        assert!(!epochs.advance(), "9 is not left yet");
        epochs.end(one);
        assert!(epochs.advance());
        assert_eq!(epochs.published(), 9);
        epochs.end(other);
        assert!(!epochs.advance());
        assert_eq!(epochs.published(), 12);
    }
}
