//! Translation between the client's operations and answers and those of the store.

use herdwick_herd::{Outcome, wire::ReplyStatus};
use herdwick_request::{self as request, Arith, Delete, Get};

use crate::{Answer, Cause, Hit, Lost, Op, Put, Refusal, Ticket};

/// The part of a request that the meaning of its answer depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Get,
    Touch,
    Arith,
    Other,
}

impl OpKind {
    /// Whether the caller needs a value that the reply withholds.
    pub(super) fn wants_value(self) -> bool {
        self == Self::Get
    }
}

impl From<&Op<'_>> for OpKind {
    fn from(op: &Op<'_>) -> Self {
        match op {
            Op::Get => Self::Get,
            Op::Touch(_) => Self::Touch,
            Op::Incr(_) | Op::Decr(_) => Self::Arith,
            Op::Store(..) | Op::Cas(..) | Op::Delete => Self::Other,
        }
    }
}

/// Returns `op` in the request language; `unix` is the current time in seconds.
pub(super) fn store_op<'a>(op: &Op<'a>, unix: u64) -> request::Op<'a> {
    let put = |mode, put: &Put<'a>, compare| {
        // Taken apart whole: a new option has to be encoded here.
        let Put { value, flags, ttl } = *put;
        request::Op::Put(request::Put {
            mode,
            value,
            flags,
            exptime: ttl.exptime(unix),
            compare,
            ..request::Put::default()
        })
    };
    match op {
        Op::Get => request::Op::Get(Get::default()),
        // HERD has no touch: a GAT, whose value is not looked at.
        Op::Touch(ttl) => request::Op::Get(Get {
            touch: Some(ttl.exptime(unix)),
            ..Get::default()
        }),
        Op::Store(mode, value) => put(*mode, value, None),
        Op::Cas(version, value) => put(request::Mode::Set, value, Some(*version)),
        Op::Delete => request::Op::Delete(Delete::default()),
        Op::Incr(delta) => request::Op::Arith(Arith {
            delta: *delta,
            ..Arith::default()
        }),
        Op::Decr(delta) => request::Op::Arith(Arith {
            delta: *delta,
            decrement: true,
            ..Arith::default()
        }),
    }
}

/// Returns the answer to a request of `kind` that ended with `outcome`.
pub(super) fn answer<'a>(kind: OpKind, outcome: &Outcome<'a>) -> Answer<'a> {
    let Outcome::Answered(reply) = outcome else {
        return lost(Cause::Timeout, outcome);
    };
    match reply.status {
        ReplyStatus::Done => match (kind, reply.number) {
            (OpKind::Get, Some(version)) => Answer::Hit(Hit {
                value: reply.value,
                flags: reply.flags(),
                version,
            }),
            (OpKind::Arith, Some(number)) => Answer::Number(number),
            _ => Answer::Done,
        },
        ReplyStatus::NotFound => Answer::Miss,
        ReplyStatus::NotStored => Answer::NotStored,
        ReplyStatus::Exists => Answer::Exists,
        ReplyStatus::TooLargeItem => Answer::Refused(Refusal::TooLarge),
        ReplyStatus::NonNumeric => Answer::Refused(Refusal::NotNumeric),
        ReplyStatus::OutOfMemory => Answer::Refused(Refusal::Other(b"out of memory")),
        // A touch has been executed; its value was not requested.
        ReplyStatus::ReplyTooLarge => Answer::Done,
        ReplyStatus::BadKey => Answer::Refused(Refusal::Other(b"the hash is not the key's")),
        ReplyStatus::WrongPartition => Answer::Refused(Refusal::Other(b"not this worker's key")),
        ReplyStatus::BadRequest => Answer::Refused(Refusal::Other(b"malformed request line")),
    }
}

/// What a reply tells of the server's secondary store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkedReply {
    pub(crate) ticket: Ticket,
    pub(crate) is_read: bool,
    /// The client may read the secondary store.
    pub(crate) is_leased: bool,
    /// Which one that is.
    pub(crate) store: u8,
    /// The version of the item that was read, if the secondary store has the key.
    pub(crate) replicated: Option<u64>,
}

/// Returns what the reply to a request of `kind` tells of the server's secondary store.
pub(super) fn marked(ticket: Ticket, kind: OpKind, outcome: &Outcome<'_>) -> Option<MarkedReply> {
    let Outcome::Answered(reply) = outcome else {
        return None;
    };
    let marks = reply.marks();
    let is_read = kind == OpKind::Get;
    Some(MarkedReply {
        ticket,
        is_read,
        is_leased: marks.leased,
        store: marks.store,
        replicated: reply.number.filter(|_| marks.replicated && is_read),
    })
}

/// Returns the answer to a request that will get no reply.
pub(super) fn lost<'a>(cause: Cause, outcome: &Outcome<'_>) -> Answer<'a> {
    Answer::Lost(Lost {
        cause,
        perhaps_done: matches!(outcome, Outcome::Unknown),
    })
}
