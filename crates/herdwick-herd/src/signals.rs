//! Selective signaling: which work requests of a send queue ask for a completion.

/// Length of a run of unsignaled work requests after which one is signaled.
const QUIET_MAX: usize = 64;

/// Requests a completion now and then: the entries of a send queue become free only when a later
/// completion is polled.
///
/// With postlists of at most 32, at most 63 + 31 requests are posted before a signaled one: a send
/// queue of [`SEND_DEPTH_MIN`] never fills up for want of a completion.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    quiet: usize,
    outstanding: usize,
}

/// Least depth of the send queues for requests and for replies.
pub const SEND_DEPTH_MIN: usize = 2 * QUIET_MAX;

impl Signals {
    /// Whether the last of `count` requests to be posted is to be signaled.
    #[inline]
    pub(crate) fn due(&self, count: usize) -> bool {
        self.quiet + count >= QUIET_MAX
    }

    /// Records that `count` requests were posted.
    #[inline]
    pub(crate) fn posted(&mut self, count: usize, signaled: bool) {
        if signaled {
            self.quiet = 0;
            self.outstanding += 1;
        } else {
            self.quiet += count;
        }
    }

    /// Whether a completion is outstanding.
    #[inline]
    pub(crate) fn awaited(&self) -> bool {
        self.outstanding > 0
    }

    /// Records that a completion arrived.
    #[inline]
    pub(crate) fn arrived(&mut self) {
        // Work requests that fail complete although they were not signaled: more may arrive than
        // were asked for.
        self.outstanding = self.outstanding.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Postlists of each length, in random order: the bound of rdma.md on those in flight holds.
    #[test]
    fn at_most_94_requests_are_posted_before_a_signaled_one() {
        let (mut signals, mut chance) = (Signals::default(), 1_u32);
        let (mut unsignaled, mut most) = (0, 0);
        for _ in 0..100_000 {
            chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let count = 1 + (chance >> 16) as usize % 32;
            let due = signals.due(count);
            signals.posted(count, due);
            // The last of a postlist is the one that is signaled.
            most = most.max(unsignaled + count - usize::from(due));
            unsignaled = if due { 0 } else { unsignaled + count };
        }
        assert_eq!(most, 94);
        assert!(most + 32 <= SEND_DEPTH_MIN, "a postlist fits behind them");
    }
}
