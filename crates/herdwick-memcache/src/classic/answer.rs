//! Replies to classic text commands.

use herdwick_request::{Reply, Status};

use crate::text;

/// How to encode the reply to one request in classic text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassicAnswer {
    pub(crate) shape: Shape,
    /// Suppress the reply.
    pub(crate) noreply: bool,
}

/// The kind of reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `VALUE …`, or nothing on a miss; followed by `END` if `last`.
    Value {
        with_cas: bool,
        last: bool,
    },
    /// `STORED` or the reason against it.
    Stored,
    /// The same, for `append` and `prepend`.
    Extended,
    /// The removal of the item that a too large `set` would have replaced.
    TooLarge,
    Deleted,
    Touched,
    Number,
}

impl ClassicAnswer {
    /// Returns the answer to one key of a `get`.
    #[inline]
    pub(crate) fn value(with_cas: bool, last: bool) -> Self {
        Self {
            shape: Shape::Value { with_cas, last },
            noreply: false,
        }
    }

    #[inline]
    pub(crate) fn is_read(self) -> bool {
        matches!(self.shape, Shape::Value { .. })
    }

    #[inline]
    pub(crate) fn is_refusal(self) -> bool {
        self.shape == Shape::TooLarge
    }

    #[inline]
    pub(crate) fn encode(self, key: &[u8], reply: &Reply<'_>, out: &mut Vec<u8>) {
        let line = match self.shape {
            Shape::Value { with_cas, last } => {
                // A key that was not found is omitted.
                if let (Status::Done, Some(item)) = (reply.status, &reply.item) {
                    let cas = with_cas.then_some(item.version);
                    text::value(out, key, item.flags, cas, item.value);
                }
                match reply.status {
                    // A touch that had no room.
                    Status::OutOfMemory if last => text::OUT_OF_MEMORY,
                    _ if last => text::END,
                    _ => &[],
                }
            }
            // The only success whose line is not fixed.
            Shape::Number if reply.status == Status::Done => {
                if !self.noreply {
                    text::number(out, reply.number);
                }
                &[]
            }
            shape => line(shape, reply.status),
        };
        // It suppresses errors, too.
        if !self.noreply {
            herdwick_mem::append(out, line);
        }
    }
}

/// Returns the reply line of a mutation.
fn line(shape: Shape, status: Status) -> &'static [u8] {
    match (shape, status) {
        (Shape::Deleted, Status::Done) => text::DELETED,
        (Shape::Touched, Status::Done) => text::TOUCHED,
        (Shape::Deleted | Shape::Touched, Status::OutOfMemory) => text::OUT_OF_MEMORY,
        (Shape::Deleted | Shape::Touched, _) => text::NOT_FOUND,
        // Whether there was an old item to remove does not matter: the value was refused.
        (Shape::TooLarge, _) => text::TOO_LARGE,
        (Shape::Number, Status::TooLarge) => text::OUT_OF_MEMORY,
        // memcached gives no other reason when the joined value is too large.
        (Shape::Extended, Status::TooLarge) => text::NOT_STORED,
        (_, Status::Done) => text::STORED,
        (_, Status::NotFound) => text::NOT_FOUND,
        (_, Status::NotStored) => text::NOT_STORED,
        (_, Status::Exists) => text::EXISTS,
        (_, Status::TooLarge) => text::TOO_LARGE,
        (_, Status::OutOfMemory) => text::OUT_OF_MEMORY,
        (_, Status::NonNumeric) => text::NON_NUMERIC,
        // Keys were checked when they were decoded.
        (_, Status::BadKey) => text::ERROR,
    }
}
