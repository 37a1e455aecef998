//! Counters of a reader. Each lookup that ended is counted under its outcome.

use herdwick_fabric::counters;

use crate::Doubt;

counters! {
    /// Counters of one [`Reader`](crate::Reader): `reads` over the sum of outcomes is the mean number
    /// of READs for each lookup.
    pub struct ReadCounters {
        /// READs posted.
        reads,
        /// Bytes that they asked for.
        read_bytes,
        /// Lookups that found their key.
        found,
        /// Lookups whose key is not stored.
        missing,
        /// Steps repeated because a writer was changing the bytes.
        torn,
        /// Lookups begun again because what they had read before was out of date.
        stale,
        /// Lookups given up because the judge could not tell.
        unsure_judge,
        /// Lookups given up after too many repetitions.
        unsure_retries,
        /// Lookups given up after too many steps.
        unsure_steps,
        /// Lookups given up because a READ was too long.
        unsure_length,
        /// Lookups that the failure of the queue pair ended.
        failed,
        /// Postlists that found the send queue full; they were posted later.
        posts_held,
        /// Completions that belong to no step on the way: dropped.
        unexpected,
    }
}

impl ReadCounters {
    pub(crate) fn count_doubt(&mut self, doubt: Doubt) {
        *match doubt {
            Doubt::Judge => &mut self.unsure_judge,
            Doubt::Retries => &mut self.unsure_retries,
            Doubt::Steps => &mut self.unsure_steps,
            Doubt::Length => &mut self.unsure_length,
        } += 1;
    }
}
