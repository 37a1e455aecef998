//! The client's requests by SEND, and their replies: PUT, DELETE, and GETs that READs did not settle.

use std::{collections::VecDeque, time::Duration};

use arrayvec::ArrayVec;
use herdwick_fabric::{
    Completion, CqId, Local, Payload, Port, PostError, QpId, RegionId, SendOp, SendWr, Status,
};
use herdwick_mem::Span;
use herdwick_read::{RecvBuffers, drain};

use crate::{
    Failure,
    layout::VALUE_BYTES_MAX,
    message::{
        self, CALLS_MAX, CREDITS, HEAD_BYTES, MESSAGE_BYTES_MAX, Op, PART_BYTES, PARTS_MAX, Reply,
        ReplyStatus, Request,
    },
};

/// RECVs for replies: one for each call, the parts of one value, and announcements of moves, of which
/// there is one until the client has followed the one before, or is dropped.
pub(crate) const REPLY_RECVS: usize = CALLS_MAX + PARTS_MAX + 8;
/// Depth of the send queue to the server.
pub(crate) const CALL_DEPTH: usize = 64;
/// One of so many messages is signaled.
const SIGNALED_EVERY: u32 = 8;
const _: () = assert!(CREDITS + 2 * SIGNALED_EVERY as usize <= CALL_DEPTH);
const POLLED: usize = 32;
/// Calls, and messages, that PUTs and DELETEs leave free: for a GET, and for [`Op::Adopted`].
const RESERVE: usize = 2;
const _: () = assert!(PARTS_MAX + RESERVE <= CREDITS);

/// What the machine uses of a port.
#[derive(Debug)]
pub(crate) struct CallObjects {
    pub(crate) qp: QpId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    /// [`PARTS_MAX`] buffers for each of [`CALLS_MAX`] requests.
    pub(crate) requests: (RegionId, Span),
    /// [`REPLY_RECVS`] buffers.
    pub(crate) replies: RecvBuffers,
}

/// Calls in flight over one queue pair.
#[derive(Debug)]
pub(crate) struct Calls {
    objects: CallObjects,
    calls: [Option<Call>; CALLS_MAX],
    /// Calls whose messages wait to be posted.
    due: VecDeque<usize>,
    /// Messages that may still be sent.
    credits: usize,
    sent: u32,
    serial: u64,
    message: Vec<u8>,
    value: Vec<u8>,
    /// Room for what a poll takes.
    completions: Vec<Completion>,
    /// A server that does not answer for so long is given up.
    timeout: Duration,
    /// The generation of the server's table, as of the last reply.
    generation: Option<u32>,
    failed: Option<Failure>,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    request: Request,
    user: u64,
    /// When it was posted.
    since: Option<Duration>,
    /// Parts of the reply that have arrived.
    arrived: u32,
}

/// A call that ended.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) user: u64,
    pub(crate) op: Op,
    pub(crate) result: Result<(ReplyStatus, &'a [u8]), Failure>,
}

/// As many calls as there may be are in flight.
#[derive(Debug)]
pub(crate) struct Busy;

impl Calls {
    /// Posts the RECVs for replies.
    pub(crate) fn new<P: Port>(
        port: &mut P,
        objects: CallObjects,
        timeout: Duration,
    ) -> Result<Self, PostError> {
        let replies = &objects.replies;
        replies.post_all(port, REPLY_RECVS as u32, u64::from)?;
        Ok(Self {
            objects,
            calls: [None; CALLS_MAX],
            due: VecDeque::with_capacity(CALLS_MAX),
            credits: CREDITS,
            sent: 0,
            serial: 0,
            completions: vec![Completion::BLANK; POLLED],
            message: vec![0; MESSAGE_BYTES_MAX],
            value: vec![0; VALUE_BYTES_MAX + PART_BYTES],
            timeout,
            generation: None,
            failed: None,
        })
    }

    /// Returns the newest generation of the server's table that a reply had.
    pub(crate) fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// Notes a generation of the server's table. It does not go back: a reply may have been made before
    /// what the client learned of by a READ.
    pub(crate) fn know(&mut self, generation: u32) {
        let known = self.generation;
        self.generation = Some(known.map_or(generation, |known| newest(known, generation)));
    }

    /// Returns how long the server may be silent.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn failed(&self) -> Option<Failure> {
        self.failed
    }

    /// Ends every call at the next poll.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failed = self.failed.or(Some(failure));
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.calls.iter().flatten().count()
    }

    /// Begins a call. Key and value are within their limits.
    pub(crate) fn begin(
        &mut self,
        (op, generation): (Op, u32),
        key: &[u8],
        value: &[u8],
        user: u64,
    ) -> Result<(), Busy> {
        let parts = message::parts(key.len() + value.len());
        // PUTs may wait for a larger table; what a client has to say of the old one must not wait for
        // them.
        let reserve = match op {
            Op::Put | Op::Delete => RESERVE,
            Op::Get | Op::Adopted => 0,
        };
        let free = self.calls.iter().position(Option::is_none);
        let room = parts + reserve <= self.credits && self.in_flight() + reserve < CALLS_MAX;
        let Some(index) = free.filter(|_| room) else {
            return Err(Busy);
        };
        self.serial += 1;
        let request = Request {
            op,
            key_len: key.len(),
            value_len: value.len(),
            // Its remainder is the call's place; the serial number distinguishes it from earlier
            // calls there.
            token: self.serial * CALLS_MAX as u64 + index as u64,
            generation,
            part: 0,
        };
        self.lay_out(index, &request, key, value);
        self.calls[index] = Some(Call {
            request,
            user,
            since: None,
            arrived: 0,
        });
        self.credits -= parts;
        self.due.push_back(index);
        Ok(())
    }

    /// Stores the messages of a request in its buffers.
    fn lay_out(&mut self, index: usize, request: &Request, key: &[u8], value: &[u8]) {
        let span = &self.objects.requests.1;
        for part in 0..message::parts(request.body_len()) {
            let head = Request {
                part: part as u32,
                ..*request
            }
            .words();
            let start = part * PART_BYTES;
            let end = request.body_len().min(start + PART_BYTES);
            let bytes = &mut self.message[..HEAD_BYTES + end - start];
            message::store_head(head, &mut bytes[..HEAD_BYTES]);
            for (to, at) in bytes[HEAD_BYTES..].iter_mut().zip(start..) {
                // The body is the value behind the key; a part may begin in either.
                *to = match at.checked_sub(key.len()) {
                    None => key[at],
                    Some(at) => value[at],
                };
            }
            span.write_bytes((index * PARTS_MAX + part) * MESSAGE_BYTES_MAX, bytes);
        }
    }

    /// Posts the calls that are due.
    pub(crate) fn post<P: Port>(&mut self, port: &mut P, now: Duration) {
        while let (Some(index), None) = (self.due.front().copied(), self.failed) {
            let Some(call) = &mut self.calls[index] else {
                self.due.pop_front();
                continue;
            };
            let body = call.request.body_len();
            let mut batch = ArrayVec::<SendWr<'_>, PARTS_MAX>::new();
            for part in 0..message::parts(body) {
                let number = self.sent.wrapping_add(1 + part as u32);
                let len = message::part_len(body, part as u32).unwrap_or(0);
                let payload = Payload::Region(Local {
                    region: self.objects.requests.0,
                    offset: (index * PARTS_MAX + part) * MESSAGE_BYTES_MAX,
                    len: HEAD_BYTES + len,
                });
                batch.push(SendWr {
                    wr_id: number.into(),
                    op: SendOp::Send {
                        payload,
                        imm: None,
                        to: None,
                    },
                    signaled: number.is_multiple_of(SIGNALED_EVERY),
                    solicited: false,
                    fence: false,
                });
            }
            match port.post_send(self.objects.qp, &batch) {
                Ok(()) => {
                    self.sent = self.sent.wrapping_add(batch.len() as u32);
                    call.since = Some(now);
                    self.due.pop_front();
                }
                Err(PostError::Full) => return,
                Err(_) => self.failed = Some(Failure::Link(Status::Flushed)),
            }
        }
    }

    /// Takes completions; hands every call that ended to `sink`. Returns the number of replies that
    /// belong to no call.
    pub(crate) fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(Ended<'_>),
    ) -> u64 {
        // Taken out: what a completion does needs all of `self`.
        let (mut done, mut unexpected) = (std::mem::take(&mut self.completions), 0);
        for cq in [self.objects.send_cq, self.objects.recv_cq] {
            drain(port, cq, &mut done, |port, completion| {
                if completion.status != Status::Success {
                    self.fail(Failure::Link(completion.status));
                } else if cq == self.objects.recv_cq {
                    unexpected += u64::from(!self.received(port, completion, sink));
                }
            });
        }
        self.completions = done;
        self.check_time(now);
        if let Some(failure) = self.failed {
            self.due.clear();
            for call in self.calls.iter_mut().filter_map(Option::take) {
                let Call { user, request, .. } = call;
                sink(Ended {
                    user,
                    op: request.op,
                    result: Err(failure),
                });
            }
        }
        unexpected
    }

    fn check_time(&mut self, now: Duration) {
        let posted = self.calls.iter().flatten().filter_map(|call| call.since);
        let oldest = posted.min();
        if oldest.is_some_and(|since| now.saturating_sub(since) > self.timeout) {
            self.fail(Failure::Silent);
        }
    }

    /// Takes one message of a reply; `false` if it belongs to no call.
    fn received<P: Port>(
        &mut self,
        port: &mut P,
        completion: &Completion,
        sink: &mut impl FnMut(Ended<'_>),
    ) -> bool {
        let (replies, buffer) = (&self.objects.replies, completion.wr_id as u32);
        // Copied and posted again before it is looked at: no message keeps a buffer.
        let len = replies.take(completion, buffer, &mut self.message);
        if replies.post(port, completion.wr_id, buffer).is_err() {
            self.fail(Failure::Link(Status::Flushed));
        }
        let Ok(reply) = Reply::parse(message::head_of(&self.message[..len]), len) else {
            self.fail(Failure::Protocol);
            return true;
        };
        self.know(reply.generation);
        // An announcement, which `know` has noted.
        if reply.status == ReplyStatus::Moved {
            return true;
        }
        let index = (reply.token % CALLS_MAX as u64) as usize;
        let call = self.calls[index].as_mut();
        let Some(call) = call.filter(|call| call.request.token == reply.token) else {
            return false;
        };
        if reply.part != call.arrived {
            self.fail(Failure::Protocol);
            return true;
        }
        call.arrived += 1;
        let at = reply.part as usize * PART_BYTES;
        let part = &self.message[HEAD_BYTES..len];
        herdwick_mem::copy(&mut self.value[at..at + part.len()], part);
        if at + part.len() >= reply.value_len {
            let Call { user, request, .. } = *call;
            self.calls[index] = None;
            // A request that is answered has no message left at the server.
            self.credits += message::parts(request.body_len());
            let value = &self.value[..reply.value_len];
            let (op, result) = (request.op, Ok((reply.status, value)));
            sink(Ended { user, op, result });
        }
        true
    }
}

/// Returns the later one of two generations, which wrap.
fn newest(a: u32, b: u32) -> u32 {
    if b.wrapping_sub(a).cast_signed() > 0 {
        b
    } else {
        a
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_made_before_a_move_does_not_take_a_client_back() {
        assert_eq!((newest(4, 5), newest(5, 4), newest(5, 5)), (5, 5, 5));
        assert_eq!((newest(u32::MAX, 0), newest(0, u32::MAX)), (0, 0));
    }
}
