use std::{ops::Range, os::fd::RawFd};

use herdwick_mica::{Clock, KeyHash, Op, Put, Request, Second, Staged};

use crate::{
    counters::{Snapshot, WorkerCounters},
    dump::Dump,
    partition::{NOBODY, Partition},
    prefixes::Prefixes,
    recycle,
    tcp::{Answer, BatchEncoder, Large, Mark},
    time::Warp,
    upload_steps::{UploadSteps, Uploader},
};

/// A forwarded batch with this many bytes of keys and values takes no further request. One large
/// value may exceed it.
const BATCH_BYTES: usize = 64 << 10;
/// Most requests in a forwarded batch.
const BATCH_REQUESTS: usize = 1024;

/// Requests for one partition and, on the way back, their replies. Forwarded batches are made at
/// the start and travel to and fro for ever.
#[derive(Default)]
pub(crate) struct ForwardBatch {
    pub(crate) order: Order,
    forwarded: Vec<ForwardedRequest>,
    /// Steps of uploads.
    steps: UploadSteps,
    /// Keys, values and opaques, in the order of the forwarded requests.
    bytes: Vec<u8>,
    /// The replies' text.
    replies: Vec<u8>,
    /// The [`Mark`] of each reply.
    marks: Vec<u32>,
    /// Who waits for each reply; a barrier has one.
    pub(crate) tickets: Vec<Ticket>,
    /// The answer to [`Order::Count`].
    pub(crate) snapshot: Option<Box<Snapshot>>,
    /// The answer to [`Order::Prefixes`].
    pub(crate) prefixes: Option<Box<Prefixes>>,
}

/// What the owner of the partition is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Execute the requests.
    #[default]
    Execute,
    /// Make everything stored before this second go at it.
    Flush(Second),
    /// Say what was counted, and which keys are hot, if that is wanted.
    Count {
        /// It takes longer.
        hot: bool,
    },
    /// Forget what was counted.
    Reset,
    /// Move the clock: for tests.
    Warp(Warp),
    /// Show some items, or connections; only those of the worker that it has come to.
    Dump(Dump),
    /// Begin to count by prefix, or end.
    Detail(bool),
    /// Say what was counted by prefix.
    Prefixes,
}

/// Whom a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The connection's place.
    pub(crate) connection: u32,
    /// Which of the connections that have had this place.
    pub(crate) generation: u32,
    /// The connection's descriptor.
    pub(crate) caller: RawFd,
    /// Which reply of its round.
    pub(crate) slot: u32,
}

impl Ticket {
    /// The connection, for the owner of what it uploads; `worker` is where it is.
    pub(crate) fn uploader(self, worker: usize) -> Uploader {
        Uploader {
            // Workers are numbered by 16 bits.
            worker: worker as u16,
            connection: self.connection,
            generation: self.generation,
        }
    }
}

/// A request without its bytes.
struct ForwardedRequest {
    hash: KeyHash,
    op: Op<'static>,
    key_len: usize,
    value_len: usize,
    opaque_len: usize,
    answer: Answer<'static>,
    /// Whether the connection has room for a large value.
    large: bool,
}

/// Lists that each execution fills anew.
#[derive(Default)]
pub(crate) struct Scratch {
    requests: Vec<Request<'static>>,
    answers: Vec<Answer<'static>>,
    large: Vec<bool>,
}

impl ForwardBatch {
    /// Whether it carries an order for a worker rather than requests for its store.
    pub(crate) fn is_barrier(&self) -> bool {
        self.order != Order::Execute
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_barrier() && self.forwarded.is_empty() && self.steps.count() == 0
    }

    pub(crate) fn has_room(&self, request: &Request<'_>) -> bool {
        let more = request.key.len() + value_of(&request.op).len();
        self.forwarded.len() < BATCH_REQUESTS && more <= self.room()
    }

    fn room(&self) -> usize {
        BATCH_BYTES.saturating_sub(self.bytes.len() + self.steps.len())
    }

    /// Bytes of values that an upload may add.
    pub(crate) fn upload_steps_room(&self) -> usize {
        if self.steps.count() < BATCH_REQUESTS {
            self.room()
        } else {
            0
        }
    }

    /// Where the steps of uploads go.
    pub(crate) fn steps(&mut self) -> &mut UploadSteps {
        &mut self.steps
    }

    pub(crate) fn add(
        &mut self,
        request: &Request<'_>,
        answer: &Answer<'_>,
        ticket: Ticket,
        large: bool,
    ) {
        let value = value_of(&request.op);
        let opaque = answer.opaque();
        self.forwarded.push(ForwardedRequest {
            hash: request.hash,
            op: without_value(&request.op),
            key_len: request.key.len(),
            value_len: value.len(),
            opaque_len: opaque.len(),
            answer: answer.with_opaque(&[]),
            large,
        });
        self.bytes.extend_from_slice(request.key);
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(opaque);
        self.tickets.push(ticket);
    }

    /// Does, at its owner, what `peer` has put in.
    pub(crate) fn execute(
        &mut self,
        peer: usize,
        store: &mut Partition,
        clock: Clock,
        counters: &mut WorkerCounters,
        scratch: &mut Scratch,
    ) {
        self.steps.unload(store, clock);
        if self.forwarded.is_empty() {
            return;
        }
        scratch.large.clear();
        let mut requests = recycle(std::mem::take(&mut scratch.requests));
        let mut answers = recycle(std::mem::take(&mut scratch.answers));
        let mut bytes = &self.bytes[..];
        for (forwarded, ticket) in self.forwarded.iter().zip(&self.tickets) {
            let (key, rest) = bytes.split_at(forwarded.key_len);
            let (value, rest) = rest.split_at(forwarded.value_len);
            let (opaque, rest) = rest.split_at(forwarded.opaque_len);
            bytes = rest;
            requests.push(Request {
                hash: forwarded.hash,
                key,
                op: with_value(&forwarded.op, value, || {
                    store.end_upload(ticket.uploader(peer))
                }),
            });
            scratch.large.push(forwarded.large);
            answers.push(forwarded.answer.with_opaque(opaque));
        }
        counters.forwarded += requests.len() as u64;
        counters.tcp_batches += 1;
        let mut batch_encoder = BatchEncoder {
            clock,
            requests: &requests,
            answers: &answers,
            out: &mut self.replies,
            marks: &mut self.marks,
            large: Large::Some(&scratch.large),
            refused_large: false,
            counters,
        };
        let tickets = &self.tickets;
        let caller = |index: usize| tickets.get(index).map_or(NOBODY, |ticket| ticket.caller);
        store.execute_for(clock, &requests, caller, &mut batch_encoder);
        scratch.requests = recycle(requests);
        scratch.answers = recycle(answers);
    }

    /// The replies in order: each with its ticket, and where in [`text`](Self::text) it is unless
    /// it was deferred, perhaps for being large.
    pub(crate) fn replies(&self) -> impl Iterator<Item = (Ticket, Result<Range<usize>, bool>)> {
        let mut from = 0;
        let replies = self.tickets.iter().zip(&self.marks);
        replies.map(move |(&ticket, &mark)| match Mark::of(mark) {
            Mark::Deferred { large } => (ticket, Err(large)),
            Mark::End(end) => {
                let range = from..end;
                from = end;
                (ticket, Ok(range))
            }
        })
    }

    /// Where an order's answer goes.
    pub(crate) fn text_mut(&mut self) -> &mut Vec<u8> {
        &mut self.replies
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.replies
    }

    /// The text of a forwarded batch that a large value fills, if one connection gets all of it: to
    /// be kept by it rather than copied.
    pub(crate) fn large_text(&mut self) -> Option<(Ticket, &mut Vec<u8>)> {
        if self.replies.len() <= BATCH_BYTES {
            return None;
        }
        let (first, sole) = {
            let mut said = self.replies().filter(|(_, range)| range.is_ok());
            let (first, _) = said.next()?;
            let sole = said.all(|(other, _)| other.connection == first.connection);
            (first, sole)
        };
        sole.then_some((first, &mut self.replies))
    }

    /// Empties the forwarded batch; what one large value made it grow to is given back.
    pub(crate) fn clear(&mut self) {
        self.order = Order::Execute;
        self.forwarded.clear();
        self.bytes.clear();
        self.bytes.shrink_to(BATCH_BYTES);
        self.steps.clear(BATCH_BYTES);
        self.replies.clear();
        self.replies.shrink_to(BATCH_BYTES);
        self.marks.clear();
        self.tickets.clear();
        self.snapshot = None;
        self.prefixes = None;
    }
}

fn value_of<'a>(op: &Op<'a>) -> &'a [u8] {
    match op {
        Op::Put(put) => put.value,
        _ => &[],
    }
}

fn without_value(op: &Op<'_>) -> Op<'static> {
    match *op {
        Op::Get(get) => Op::Get(get),
        Op::Delete(delete) => Op::Delete(delete),
        Op::Arith(arith) => Op::Arith(arith),
        Op::Put(put) => Op::Put(Put { value: &[], ..put }),
    }
}

/// The operation with its value; or, if that has been uploaded, with what `upload` says it is.
fn with_value<'a>(
    op: &Op<'static>,
    value: &'a [u8],
    upload: impl FnOnce() -> Option<Staged>,
) -> Op<'a> {
    match *op {
        Op::Put(put) if put.staged.is_some() => Op::Put(Put {
            staged: upload().or(put.staged),
            ..put
        }),
        Op::Put(put) => Op::Put(Put { value, ..put }),
        other => other,
    }
}
