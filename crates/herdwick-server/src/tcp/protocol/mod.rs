//! What is said in each protocol: which request a command is, and how its reply is worded.

pub(super) mod classic;

use herdwick_memcache::Command;
use herdwick_mica::{Op, Reply, Request, Sink};

use crate::tally::Tally;

/// Output beyond which a connection, or a parcel, takes no further values for now: what one of
/// them holds is this much and one item.
pub(crate) const OUTPUT_BYTES: usize = 64 << 10;

/// The mark of a read whose reply found no room.
pub(crate) const DEFERRED: u32 = u32::MAX;

/// A request, and how its reply is to be said.
pub(crate) struct Asked<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) op: Op<'a>,
    pub(crate) answer: Answer,
}

/// The request that a command other than `get` is, if it is one.
pub(super) fn request<'a>(command: &Command<'a>) -> Option<Asked<'a>> {
    classic::request(command)
}

/// How the reply to one request is said in the words of its protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Classic(classic::Answer),
}

impl Answer {
    /// Whether its request may be executed later instead, if its reply finds no room.
    pub(crate) fn is_read(&self) -> bool {
        match self {
            Self::Classic(answer) => matches!(answer.shape, classic::Shape::Value { .. }),
        }
    }

    /// Whether it is a refusal, and its request only removes what would have been replaced.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Classic(answer) => answer.shape == classic::Shape::TooLarge,
        }
    }

    fn say(&self, request: &Request<'_>, reply: &Reply<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Classic(answer) => answer.say(request.key, reply, out),
        }
    }
}

/// Says the replies of a batch, each in its shape, into one buffer.
pub(crate) struct Speaker<'a> {
    pub(crate) requests: &'a [Request<'a>],
    pub(crate) answers: &'a [Answer],
    pub(crate) out: &'a mut Vec<u8>,
    /// Where each reply ends in `out`, or [`DEFERRED`].
    pub(crate) marks: &'a mut Vec<u32>,
    pub(crate) tally: &'a mut Tally,
}

impl Sink for Speaker<'_> {
    #[inline]
    fn reply(&mut self, index: usize, reply: &Reply<'_>) {
        let (request, answer) = (&self.requests[index], &self.answers[index]);
        if self.out.len() >= OUTPUT_BYTES && answer.is_read() {
            self.tally.reads_deferred += 1;
            self.marks.push(DEFERRED);
            return;
        }
        if answer.is_refusal() {
            self.tally.store_too_large += 1;
        } else {
            self.tally.count(&request.op, reply);
        }
        answer.say(request, reply, self.out);
        // `OUTPUT_BYTES` and one item, of at most 1 GiB.
        self.marks.push(self.out.len() as u32);
    }
}
