//! Replies of a batch, each encoded in the protocol of its request, and replies to commands that are
//! no requests.

use std::fmt::Display;

use arrayvec::ArrayVec;
use herdwick_memcache::{
    Answer,
    binary::{Body, Echo, Status},
    text,
};
use herdwick_request::{Clock, Reply, Request, Sink};

use crate::telemetry::snapshot::WorkerCounters;

/// Output size in bytes from which a connection or a forwarded batch takes no further values. So
/// each holds at most this much and one item.
pub(crate) const OUTPUT_BYTES: usize = 64 << 10;

/// Maximum number of requests in a run; a `get` of 100 keys is one batch of the store.
pub(crate) const RUN_REQUESTS: usize = 128;

/// Something of each request of a batch, on the stack.
pub(crate) type PerRequest<T> = ArrayVec<T, RUN_REQUESTS>;

/// The mark of a read without room for its reply behind others.
// Marks are numbers and no `ReplyMark`s: 4 bytes for each reply instead of 16.
const DEFERRED: u32 = u32::MAX;
/// The mark of a read of a large value, for which its connection has to wait for room.
const DEFERRED_LARGE: u32 = DEFERRED - 1;

/// The position of a reply in the output, decoded from its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMark {
    /// The offset of the reply's end.
    End(usize),
    /// There is no reply; the request is to be executed again.
    Deferred {
        /// As soon as there is room for a large value.
        large: bool,
    },
}

impl ReplyMark {
    pub(crate) fn of(mark: u32) -> Self {
        match mark {
            DEFERRED => Self::Deferred { large: false },
            DEFERRED_LARGE => Self::Deferred { large: true },
            end => Self::End(end as usize),
        }
    }

    pub(crate) fn is_deferred_large(self) -> bool {
        self == Self::Deferred { large: true }
    }

    pub(crate) fn is_deferred(self) -> bool {
        matches!(self, Self::Deferred { .. })
    }
}

/// The encoding of a reply to a command that is not a request to one partition.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Encoder {
    /// Text.
    Text {
        /// Suppress the reply unless it is an error.
        noreply: bool,
    },
    /// Packets.
    Packet(Echo),
}

impl Encoder {
    /// Text without `noreply`.
    pub(crate) const TEXT: Self = Self::Text { noreply: false };

    /// Returns whether it is text; some statistics do not exist in packets.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Text { .. })
    }

    /// Appends the reply of a command without a result.
    pub(crate) fn done(self, out: &mut Vec<u8>) {
        match self {
            Self::Text { noreply: false } => out.extend_from_slice(text::OK),
            Self::Text { noreply: true } => {}
            Self::Packet(echo) => echo.done(out, &Body::default()),
        }
    }

    /// Appends one statistic.
    pub(crate) fn stat(self, out: &mut Vec<u8>, name: &str, value: impl Display) {
        match self {
            Self::Text { .. } => text::stat(out, name, value),
            Self::Packet(echo) => echo.stat(out, name, value),
        }
    }

    /// Appends the counts by prefix, which are `lines` of text in either protocol.
    pub(crate) fn detailed(self, out: &mut Vec<u8>, lines: &[u8]) {
        match self {
            Self::Text { .. } => out.extend_from_slice(lines),
            // memcached sends all lines as the value of one statistic named `detailed`, then the
            // packet that ends the statistics.
            Self::Packet(echo) => {
                echo.stat(out, "detailed", String::from_utf8_lossy(lines));
                echo.stat(out, "", "");
            }
        }
    }

    /// Appends the end of the statistics.
    pub(crate) fn end(self, out: &mut Vec<u8>) {
        match self {
            Self::Text { .. } => out.extend_from_slice(text::END),
            Self::Packet(echo) => echo.stat(out, "", ""),
        }
    }

    /// Appends the reply to `stats reset`.
    pub(crate) fn reset(self, out: &mut Vec<u8>) {
        match self {
            Self::Text { .. } => out.extend_from_slice(text::RESET),
            // In packets memcached has no `RESET`: the empty statistic, which ends each topic, is
            // all.
            Self::Packet(_) => self.end(out),
        }
    }

    /// Appends the error for an unknown topic.
    pub(crate) fn no_topic(self, out: &mut Vec<u8>) {
        match self {
            Self::Text { .. } => out.extend_from_slice(text::ERROR),
            // memcached answers an unknown topic with KEY_ENOENT.
            Self::Packet(echo) => echo.error(out, Status::NotFound),
        }
    }
}

/// A sink that encodes the replies of a batch, each in its protocol, into one buffer.
pub(crate) struct BatchEncoder<'a> {
    pub(crate) clock: Clock,
    pub(crate) requests: &'a [Request<'a>],
    pub(crate) answers: &'a [Answer<'a>],
    pub(crate) out: &'a mut Vec<u8>,
    /// The [`ReplyMark`] of each reply in `out`.
    pub(crate) marks: &'a mut Vec<u32>,
    /// Whether large values are accepted.
    pub(crate) large: Large<'a>,
    /// A large value was deferred.
    pub(crate) refused_large: bool,
    pub(crate) counters: &'a mut WorkerCounters,
}

/// The replies that may be large.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Large<'a> {
    /// All or none of one connection's. After a deferred one no other read is answered, to keep the
    /// order of replies.
    All(bool),
    /// A flag for each request.
    Some(&'a [bool]),
}

impl BatchEncoder<'_> {
    /// Returns whether a reply was deferred that requires those behind it to be deferred, too.
    #[inline]
    fn is_held_up(&self) -> bool {
        self.refused_large && matches!(self.large, Large::All(_))
    }
}

impl Sink for BatchEncoder<'_> {
    #[inline]
    fn has_room(&mut self, index: usize) -> bool {
        let full =
            // Only reads are deferred. A mutation has a short reply, and may not take effect after
            // what follows it.
            (self.out.len() >= OUTPUT_BYTES || self.is_held_up()) && self.answers[index].is_read();
        if full {
            self.counters.reads_deferred += 1;
            self.marks.push(DEFERRED);
        }
        !full
    }

    #[cold]
    fn has_room_for(&mut self, index: usize, _value_len: usize) -> bool {
        let may = match self.large {
            Large::All(all) => all,
            Large::Some(some) => some.get(index).is_some_and(|may| *may),
        };
        let refused = !may && self.answers[index].is_read();
        if refused {
            self.refused_large = true;
            self.counters.reads_deferred += 1;
            self.marks.push(DEFERRED_LARGE);
        }
        !refused
    }

    #[inline]
    fn reply(&mut self, index: usize, reply: &Reply<'_>) {
        let (request, answer) = (&self.requests[index], &self.answers[index]);
        self.counters.tcp_requests += 1;
        if answer.is_refusal() {
            self.counters.store_too_large += 1;
        } else if answer.is_debug() {
            self.counters.cmd_meta += 1;
        } else {
            self.counters.count(&request.op, reply);
        }
        answer.encode(self.clock, request, reply, self.out);
        // At most `OUTPUT_BYTES` and one item of 1 GiB, so no end collides with a deferral's mark.
        self.marks.push(self.out.len() as u32);
    }
}
