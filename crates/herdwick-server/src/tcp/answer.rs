use herdwick_memcache::text;
use herdwick_mica::{Reply, Request, Sink, Status};

use crate::tally::Tally;

/// Output beyond which a connection, or a parcel, takes no further values for now: what one of
/// them holds is this much and one item.
pub(crate) const OUTPUT_BYTES: usize = 64 << 10;

/// The mark of a read whose reply found no room.
pub(crate) const DEFERRED: u32 = u32::MAX;

/// How the reply to one request is said in memcached's words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) shape: Shape,
    /// Say nothing.
    pub(crate) noreply: bool,
}

/// What kind of reply it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `VALUE …`, or nothing; `END` behind the last.
    Value {
        with_cas: bool,
        touched: bool,
        last: bool,
    },
    /// `STORED` and its opposites.
    Stored,
    /// The same, of a `cas`.
    Swapped,
    /// The same, of an `append` or `prepend`.
    Extended,
    /// The removal of what a too large `set` would have replaced.
    TooLarge,
    Deleted,
    Touched,
    Number {
        decrement: bool,
    },
}

impl Answer {
    /// Whether its request may be executed again later instead, if its reply finds no room.
    pub(crate) fn is_read(self) -> bool {
        matches!(self.shape, Shape::Value { .. })
    }

    fn say(self, key: &[u8], reply: &Reply<'_>, out: &mut Vec<u8>, tally: &mut Tally) {
        let line = match self.shape {
            Shape::Value {
                with_cas,
                touched,
                last,
            } => {
                count_read(reply, touched, tally);
                if let (Status::Done, Some(item)) = (reply.status, &reply.item) {
                    let cas = with_cas.then_some(item.version);
                    text::value(out, key, item.flags, cas, item.value);
                }
                if last { text::END } else { &[] }
            }
            Shape::Stored => stored(reply.status, tally),
            Shape::Swapped => swapped(reply.status, tally),
            Shape::Extended => extended(reply.status, tally),
            Shape::TooLarge => text::TOO_LARGE,
            Shape::Deleted => deleted(reply.status, tally),
            Shape::Touched => touched(reply, tally),
            Shape::Number { decrement } => {
                let line = arith(reply.status, decrement, tally);
                if line.is_empty() && !self.noreply {
                    text::number(out, reply.number);
                }
                line
            }
        };
        if !self.noreply {
            out.extend_from_slice(line);
        }
    }
}

fn count_read(reply: &Reply<'_>, touched: bool, tally: &mut Tally) {
    if touched {
        tally.cmd_touch += 1;
    } else {
        tally.cmd_get += 1;
    }
    if reply.status == Status::Done {
        tally.get_hits += u64::from(!touched);
        tally.touch_hits += u64::from(touched);
    } else {
        tally.get_misses += u64::from(!touched);
        tally.touch_misses += u64::from(touched);
        count_absence(reply, tally);
    }
}

fn count_absence(reply: &Reply<'_>, tally: &mut Tally) {
    tally.get_expired += u64::from(reply.expired);
    tally.get_flushed += u64::from(reply.flushed);
}

fn stored(status: Status, tally: &mut Tally) -> &'static [u8] {
    tally.cmd_set += 1;
    match status {
        Status::Done => text::STORED,
        Status::NotFound => text::NOT_FOUND,
        Status::NotStored => text::NOT_STORED,
        Status::Exists => text::EXISTS,
        Status::TooLarge => {
            tally.store_too_large += 1;
            text::TOO_LARGE
        }
        Status::OutOfMemory => {
            tally.store_no_memory += 1;
            text::OUT_OF_MEMORY
        }
        Status::NonNumeric | Status::BadKey => text::ERROR,
    }
}

fn swapped(status: Status, tally: &mut Tally) -> &'static [u8] {
    match status {
        Status::Done => tally.cas_hits += 1,
        Status::NotFound => tally.cas_misses += 1,
        Status::Exists => tally.cas_badval += 1,
        _ => {}
    }
    stored(status, tally)
}

/// memcached stores nothing, and says no more, when the sum of both values exceeds the largest.
fn extended(status: Status, tally: &mut Tally) -> &'static [u8] {
    match stored(status, tally) {
        text::TOO_LARGE => text::NOT_STORED,
        line => line,
    }
}

fn deleted(status: Status, tally: &mut Tally) -> &'static [u8] {
    if status == Status::Done {
        tally.delete_hits += 1;
        text::DELETED
    } else {
        tally.delete_misses += 1;
        text::NOT_FOUND
    }
}

fn touched(reply: &Reply<'_>, tally: &mut Tally) -> &'static [u8] {
    tally.cmd_touch += 1;
    if reply.status == Status::Done {
        tally.touch_hits += 1;
        text::TOUCHED
    } else {
        tally.touch_misses += 1;
        count_absence(reply, tally);
        text::NOT_FOUND
    }
}

/// Nothing, if there is a number to say.
fn arith(status: Status, decrement: bool, tally: &mut Tally) -> &'static [u8] {
    let hit = status == Status::Done;
    let (hits, misses) = if decrement {
        (&mut tally.decr_hits, &mut tally.decr_misses)
    } else {
        (&mut tally.incr_hits, &mut tally.incr_misses)
    };
    match status {
        Status::Done => *hits += 1,
        Status::NotFound => *misses += 1,
        _ => {}
    }
    match status {
        _ if hit => &[],
        Status::NotFound => text::NOT_FOUND,
        Status::NonNumeric => text::NON_NUMERIC,
        _ => text::OUT_OF_MEMORY,
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
        let answer = self.answers[index];
        if self.out.len() >= OUTPUT_BYTES && answer.is_read() {
            self.tally.reads_deferred += 1;
            self.marks.push(DEFERRED);
            return;
        }
        answer.say(self.requests[index].key, reply, self.out, self.tally);
        // `OUTPUT_BYTES` and one item, of at most 1 GiB.
        self.marks.push(self.out.len() as u32);
    }
}
