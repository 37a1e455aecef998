//! The client's calls to the metadata server, and their replies.

use std::time::Duration;

use herdwick_fabric::{
    Completion, CqId, Local, Payload, Port, PostError, QpId, RegionId, SendOp, SendWr, Status,
};
use herdwick_mem::{Span, WORD};
use herdwick_read::{RecvBuffers, drain};

use crate::{
    Failure,
    message::{
        CALL_BYTES_MAX, CALLS_MAX, Call, CallOp, MESSAGE_HEAD_BYTES, REPLY_BYTES_MAX, Reply,
    },
};

/// Depth of the send queue to the server: calls, and those whose completion was not polled yet.
pub(crate) const CALL_DEPTH: usize = 2 * CALLS_MAX;
/// Calls that only [`CallOp::Take`] and [`CallOp::Publish`] use: others wait for entries.
const RESERVE: usize = 4;
/// Completions taken in one poll: all calls and all replies that can be in flight.
const POLLED: usize = 2 * CALLS_MAX;

/// What the calls use of a port.
#[derive(Debug)]
pub(crate) struct CallObjects {
    pub(crate) qp: QpId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    /// A buffer for each call.
    pub(crate) calls: (RegionId, Span),
    /// A buffer for each reply.
    pub(crate) replies: RecvBuffers,
}

/// Who waits for a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The GET of this slot.
    Get(u32),
    /// The PUT or DELETE of this slot.
    Mutation(usize),
    /// The free list of a size class.
    FreeList(usize),
    /// No request: the reply is not waited for.
    None,
}

/// What a call asks for, without what all calls have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asks<'a> {
    pub(crate) op: CallOp,
    pub(crate) class: usize,
    pub(crate) entry: u64,
    pub(crate) body: &'a [u8],
    pub(crate) caller: Caller,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    token: u64,
    op: CallOp,
    caller: Caller,
    since: Duration,
}

/// Calls in flight over one queue pair.
#[derive(Debug)]
pub(crate) struct Calls {
    objects: CallObjects,
    pending: [Option<Pending>; CALLS_MAX],
    serial: u64,
    /// When the last call was posted.
    last: Duration,
    timeout: Duration,
    completions: Vec<Completion>,
    failed: Option<Failure>,
    pub(crate) unexpected: u64,
}

impl Calls {
    /// Posts the RECVs for replies.
    pub(crate) fn new<P: Port>(
        port: &mut P,
        objects: CallObjects,
        timeout: Duration,
    ) -> Result<Self, PostError> {
        let replies = &objects.replies;
        replies.post_all(port, CALLS_MAX as u32, u64::from)?;
        Ok(Self {
            objects,
            pending: [None; CALLS_MAX],
            serial: 0,
            last: Duration::ZERO,
            timeout,
            completions: vec![Completion::BLANK; POLLED],
            failed: None,
            unexpected: 0,
        })
    }

    pub(crate) fn failed(&self) -> Option<Failure> {
        self.failed
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failed = self.failed.or(Some(failure));
    }

    /// Returns when the last call was posted.
    pub(crate) fn last(&self) -> Duration {
        self.last
    }

    /// Returns whether a call of this operation is in flight.
    pub(crate) fn is_calling(&self, op: CallOp) -> bool {
        self.pending
            .iter()
            .flatten()
            .any(|pending| pending.op == op)
    }

    /// Posts a call; `false`: later.
    pub(crate) fn post<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        (asks, published): (Asks<'_>, u64),
    ) -> bool {
        let free = self
            .pending
            .iter()
            .filter(|pending| pending.is_none())
            .count();
        let reserve = match asks.op {
            CallOp::Take | CallOp::Publish => 0,
            CallOp::Find | CallOp::Create | CallOp::Superseded | CallOp::Give | CallOp::Delete => {
                RESERVE
            }
        };
        let index = self.pending.iter().position(Option::is_none);
        let Some(index) = index.filter(|_| free > reserve && self.failed.is_none()) else {
            return false;
        };
        self.serial += 1;
        let call = Call {
            op: asks.op,
            len: asks.body.len(),
            class: asks.class,
            // The low part is the place of the call, the high part distinguishes its successive
            // users.
            token: self.serial * CALLS_MAX as u64 + index as u64,
            published,
            entry: asks.entry,
        };
        let at = index * CALL_BYTES_MAX;
        let span = &self.objects.calls.1;
        span.write_words(at / WORD, &call.words());
        span.write_bytes(at + MESSAGE_HEAD_BYTES, asks.body);
        let payload = Payload::Region(Local {
            region: self.objects.calls.0,
            offset: at,
            len: MESSAGE_HEAD_BYTES + call.len.next_multiple_of(WORD),
        });
        let op = SendOp::Send {
            payload,
            imm: None,
            to: None,
        };
        let wr = SendWr {
            wr_id: call.token,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        };
        match port.post_send(self.objects.qp, &[wr]) {
            Ok(()) => {}
            // Completions of earlier calls were not polled yet: the next post tries again.
            Err(PostError::Full) => return false,
            // The call counts as posted: the failure ends its request.
            Err(_) => self.fail(Failure::Server(Status::Flushed)),
        }
        self.last = now;
        self.pending[index] = Some(Pending {
            token: call.token,
            op: call.op,
            caller: asks.caller,
            since: now,
        });
        true
    }

    /// Takes completions; hands every reply to `sink`.
    pub(crate) fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        mut sink: impl FnMut(Caller, CallOp, Reply),
    ) {
        let mut done = std::mem::take(&mut self.completions);
        for cq in [self.objects.send_cq, self.objects.recv_cq] {
            drain(port, cq, &mut done, |port, completion| {
                if completion.status != Status::Success {
                    self.fail(Failure::Server(completion.status));
                } else if cq == self.objects.recv_cq {
                    self.received(port, completion, &mut sink);
                }
            });
        }
        self.completions = done;
        let oldest = self
            .pending
            .iter()
            .flatten()
            .map(|pending| pending.since)
            .min();
        if oldest.is_some_and(|since| now.saturating_sub(since) > self.timeout) {
            self.fail(Failure::Silent);
        }
    }

    fn received<P: Port>(
        &mut self,
        port: &mut P,
        completion: &Completion,
        sink: &mut impl FnMut(Caller, CallOp, Reply),
    ) {
        let (replies, buffer) = (&self.objects.replies, completion.wr_id as u32);
        let mut message = [0; REPLY_BYTES_MAX];
        let len = replies.take(completion, buffer, &mut message);
        let message = &message[..len];
        // The buffer is posted again before the reply is acted on: the server may send as many
        // replies as calls were made.
        if replies.post(port, completion.wr_id, buffer).is_err() {
            self.fail(Failure::Server(Status::Flushed));
        }
        let Ok(reply) = Reply::parse(message) else {
            return self.fail(Failure::Protocol);
        };
        let pending = &mut self.pending[(reply.token % CALLS_MAX as u64) as usize];
        // A reply to a call that is not in flight is dropped.
        match pending.take_if(|pending| pending.token == reply.token) {
            Some(pending) => sink(pending.caller, pending.op, reply),
            None => self.unexpected += 1,
        }
    }
}
