//! The counters of both sides of HERD. Every request, reply and drop is counted under one reason.

use herdwick_fabric::counters;

use crate::wire::BadRequest;

counters! {
    /// Counters of one worker's server side. Whatever is not a plain request is counted under its
    /// reason.
    pub struct ServerCounters {
        /// Requests taken from lines: executed, refused or answered from memory. Cancellations are
        /// none.
        requests as event,
        /// Datagrams that carried requests, where clients send and do not write.
        datagrams as event,
        /// WRITEs announced by an immediate.
        announcements as event,
        /// Passes that found at least one request: `requests / batches` is the mean batch.
        batches as event,
        /// Retries of mutations, answered from memory; a GAT's value is read again.
        retries_remembered as event,
        /// Retries of reads, executed again.
        retries_rerun as event,
        /// CANCELs that had no answer to repeat: of requests that were not seen before, and are not
        /// executed, of GETs, and those that a client tries the fabric with.
        canceled as event,
        /// Reports of reads that clients made in the store's memory themselves.
        read_reports as event,
        /// Retries with another operation than the remembered one: dropped.
        retries_changed,
        /// Lines of another lease: dropped.
        stale_epoch,
        /// Lines whose sequence is neither their slot's next nor its last, and announcements of a
        /// request that its slot no longer holds: dropped.
        out_of_window,
        /// Overflowing bodies that do not match their checksum: dropped; a retry repairs it.
        torn_overflow,
        /// Datagrams that hold no line or more than one, and failed announcements: dropped.
        malformed_datagrams,
        /// Datagrams from another queue pair than the client's: dropped.
        foreign_datagrams,
        /// RECVs that the port refused when they were posted again: each may cost a request.
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
        /// Replies not sent because too many large ones were in flight: a retry fetches them.
        replies_held,
        /// Replies with the status REPLY_TOO_LARGE.
        replies_too_large as event,
        /// Replies that the port refused: lost; a retry fetches them.
        replies_refused,
        /// Replies that the port accepted and then completed with an error.
        replies_failed,
        /// New requests that the sweep found ahead of a missing one.
        out_of_order_requests as event,
    }
}

counters! {
    /// Counters of one client side.
    pub struct ClientCounters {
        /// Requests submitted.
        requests as event,
        /// Requests answered.
        answers as event,
        /// Lines written again because no reply came in time.
        retries as event,
        /// Retries postponed because no RECV might be free for their replies.
        retries_held as event,
        /// Requests that timed out; mutations among them have an unknown outcome.
        abandoned,
        /// Slots of abandoned requests that a late reply or an answered cancellation freed.
        reclaimed as event,
        /// Slots without a reply to any cancellation: lost until the session ends.
        slots_lost,
        /// Replies to a request that was answered already or never made: dropped.
        stale_replies,
        /// Replies of another lease: dropped.
        stale_epoch,
        /// Malformed replies: dropped.
        malformed_replies,
        /// Completions with an error.
        failed_completions,
        /// RECVs that the port refused when they were posted again: each may cost a reply.
        recvs_short,
        /// Postlists of requests that the port will never accept: the connection has failed.
        posts_failed,
        /// Postlists of requests that found the send queue full; they were posted later.
        writes_held as event,
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
