use crate::wire::BadRequest;

/// Declares a struct of `u64` counters that can name themselves.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)+
        }

        impl $name {
            /// Every counter with its name, in the order of their declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),+].into_iter()
            }
        }
    };
}

counters! {
    /// What one worker's server side has seen. Whatever is not a plain request is counted under
    /// its reason.
    ServerCounters {
        /// Requests taken from lines: executed, refused or answered from memory. Cancellations are
        /// none.
        requests,
        /// Datagrams among which they came, where clients send and do not write.
        datagrams,
        /// WRITEs that were announced by an immediate.
        announcements,
        /// Passes that found at least one request: `requests / batches` is the mean batch.
        batches,
        /// Retries of mutations, answered from memory.
        retries_remembered,
        /// Retries of reads, run again.
        retries_rerun,
        /// CANCELs that had no answer to repeat: of requests that were not seen before, and are not
        /// executed, of GETs, and those that a client tries the fabric with.
        canceled,
        /// Retries whose operation is not the one remembered: dropped.
        retries_changed,
        /// Lines of another lease: dropped.
        stale_epoch,
        /// Lines whose sequence is neither their slot's next nor its last: dropped.
        out_of_window,
        /// Overflowing bodies that do not match their checksum: dropped, for a retry to mend.
        torn_overflow,
        /// Datagrams that are no line, or more than one: dropped.
        malformed_datagrams,
        /// Datagrams from another queue pair than their client's: dropped.
        foreign_datagrams,
        /// RECVs that the port did not take back: each may cost a request.
        recvs_short,
        /// Requests for another worker's keys: refused.
        wrong_partition,
        /// Refused: unknown operation.
        bad_opcode,
        /// Refused: reserved bit set.
        bad_reserved,
        /// Refused: key length.
        bad_key_length,
        /// Refused: body length.
        bad_body_length,
        /// Refused: attributes that the operation does not take, or lacks.
        bad_attributes,
        /// Refused: body shorter than its parts.
        bad_truncated,
        /// Refused: value length.
        bad_value,
        /// Replies not sent because too many large ones were on their way: for a retry to fetch.
        replies_held,
        /// Replies that said REPLY_TOO_LARGE.
        replies_too_large,
        /// Replies that the port did not take: lost, for a retry to fetch.
        replies_refused,
        /// Replies that the port took and then reported as failed.
        replies_failed,
        /// New requests found by the sweep: they overtook one that is missing.
        overtaking,
    }
}

counters! {
    /// What one client side has seen.
    ClientCounters {
        /// Requests submitted.
        requests,
        /// Requests answered.
        answers,
        /// Lines written again because no reply came in time.
        retries,
        /// Retries put off because their replies might have found no RECV.
        retries_held,
        /// Requests given up at their deadline; mutations among them have an unknown outcome.
        abandoned,
        /// Slots of abandoned requests that a late reply, or a cancellation, gave back.
        reclaimed,
        /// Slots that stayed silent through every cancellation: lost until the session ends.
        slots_lost,
        /// Replies to a request that has its answer already, or is none of ours: dropped.
        stale_replies,
        /// Replies of another lease: dropped.
        stale_epoch,
        /// Replies that make no sense: dropped.
        malformed_replies,
        /// Completions other than success.
        failed_completions,
        /// RECVs that the port did not take back: each may cost a reply.
        recvs_short,
        /// Postlists of requests that the port will never take: the connection has failed.
        posts_failed,
        /// Postlists of requests that the port did not take at once; they were posted later.
        writes_held,
    }
}

impl ServerCounters {
    pub(crate) fn count_bad(&mut self, bad: BadRequest) {
        *match bad {
            BadRequest::Opcode => &mut self.bad_opcode,
            BadRequest::Reserved => &mut self.bad_reserved,
            BadRequest::KeyLength => &mut self.bad_key_length,
            BadRequest::BodyLength => &mut self.bad_body_length,
            BadRequest::Attributes => &mut self.bad_attributes,
            BadRequest::Truncated => &mut self.bad_truncated,
            BadRequest::Value => &mut self.bad_value,
        } += 1;
    }
}
