//! Forwarded batches: requests, steps of uploads, or one command (flush, stats, dump) for another worker,
//! and the replies on the way back. A batch is allocated once and reused; its size is bounded
//! ([`BATCH_BYTES`], [`BATCH_REQUESTS`]).

use std::{ops::Range, os::fd::RawFd};

use herdwick_memcache::Answer;
use herdwick_request::{Op, Put, Request, Second};

use crate::{
    runtime::reply_encoding::{BatchEncoder, Large, PerRequest, RUN_REQUESTS, ReplyMark},
    runtime::{
        dump::Dump,
        owned_requests::{OwnedRequests, value_of},
        partition::{NOBODY, Partition, Uploader},
        time::Warp,
        upload_steps::UploadSteps,
    },
    telemetry::{
        prefixes::Prefixes,
        snapshot::{Snapshot, WorkerCounters},
    },
};

/// A forwarded batch with this many bytes of keys and values accepts no further request. One large
/// value may exceed it.
const BATCH_BYTES: usize = 64 << 10;
/// Largest number of requests in a forwarded batch.
const BATCH_REQUESTS: usize = 1024;

/// Requests for one partition and, on the way back, their replies. Forwarded batches are allocated
/// at the start and circulate between two workers.
#[derive(Default)]
pub(crate) struct ForwardBatch {
    pub(crate) command: WorkerCommand,
    forwarded: OwnedRequests,
    /// Whether the connection of each request has room for a large reply.
    large: Vec<bool>,
    /// Steps of uploads.
    steps: UploadSteps,
    /// The encoded replies.
    replies: Vec<u8>,
    /// The [`ReplyMark`] of each reply.
    marks: Vec<u32>,
    /// The waiting connection of each reply; a barrier has one ticket.
    pub(crate) tickets: Vec<ReplyTo>,
    /// The answer to [`WorkerCommand::Count`].
    pub(crate) snapshot: Option<Box<Snapshot>>,
    /// The answer to [`WorkerCommand::Prefixes`].
    pub(crate) prefixes: Option<Box<Prefixes>>,
}

/// What the receiving worker does with the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WorkerCommand {
    /// Execute the requests.
    #[default]
    Execute,
    /// Flush: items stored before this second become invalid at it.
    Flush(Second),
    /// Return a snapshot of the counters, optionally with the hot keys.
    Count {
        /// Include the hot keys, which takes longer.
        hot: bool,
    },
    /// Reset the counters.
    Reset,
    /// Change the clock, for tests.
    Warp(Warp),
    /// List some items or connections of the receiving worker.
    Dump(Dump),
    /// Start or stop counting by prefix.
    Detail(bool),
    /// Return the counts by prefix.
    Prefixes,
}

/// The connection and position that a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    /// The connection's index at its worker.
    pub(crate) connection: u32,
    /// Distinguishes connections that have used the same index.
    pub(crate) generation: u32,
    /// The connection's descriptor.
    pub(crate) caller: RawFd,
    /// The index of the reply within its round.
    pub(crate) slot: u32,
}

impl ReplyTo {
    /// Identifies the connection, at `worker`, to the owner of the partition it uploads to.
    pub(crate) fn uploader(self, worker: usize) -> Uploader {
        Uploader {
            // Workers are numbered by 16 bits.
            worker: worker as u16,
            connection: self.connection,
            generation: self.generation,
        }
    }
}

impl ForwardBatch {
    /// Returns whether the batch carries a command rather than requests.
    pub(crate) fn is_command(&self) -> bool {
        self.command != WorkerCommand::Execute
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_command() && self.forwarded.is_empty() && self.steps.count() == 0
    }

    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        self.forwarded.len()
    }

    pub(crate) fn has_room(&self, request: &Request<'_>) -> bool {
        // Keys and values bound the batch. Opaques have at most 32 bytes, so the number of requests
        // bounds those.
        let more = request.key.len() + value_of(&request.op).len();
        self.forwarded.len() < BATCH_REQUESTS && more <= self.room()
    }

    fn room(&self) -> usize {
        BATCH_BYTES.saturating_sub(self.forwarded.bytes() + self.steps.len())
    }

    /// Returns how many bytes of values an upload may add.
    pub(crate) fn upload_steps_room(&self) -> usize {
        if self.steps.count() < BATCH_REQUESTS {
            self.room()
        } else {
            0
        }
    }

    /// Returns the upload steps, to append to them.
    pub(crate) fn steps(&mut self) -> &mut UploadSteps {
        &mut self.steps
    }

    pub(crate) fn add(
        &mut self,
        request: &Request<'_>,
        answer: &Answer<'_>,
        ticket: ReplyTo,
        large: bool,
    ) {
        self.forwarded.add(request, answer);
        self.large.push(large);
        self.tickets.push(ticket);
    }

    /// Executes the requests and upload steps of worker `peer`.
    pub(crate) fn execute(
        &mut self,
        peer: usize,
        store: &mut Partition,
        counters: &mut WorkerCounters,
    ) {
        let clock = store.clock();
        self.steps.unload(store, clock);
        if self.forwarded.is_empty() {
            return;
        }
        counters.tcp_batches += 1;
        let mut from = 0;
        // As many at a time as a run has, so that both need as much of the stack.
        let parts = self.tickets.chunks(RUN_REQUESTS);
        for (tickets, large) in parts.zip(self.large.chunks(RUN_REQUESTS)) {
            let (mut requests, mut answers) = (PerRequest::new(), PerRequest::new());
            for ticket in tickets {
                let (mut request, answer) = self.forwarded.get(from);
                from += 1;
                if let Op::Put(Put {
                    staged: staged @ Some(_),
                    ..
                }) = &mut request.op
                {
                    // The reservation that this worker knows.
                    *staged = store.end_upload(ticket.uploader(peer)).or(*staged);
                }
                requests.push(request);
                answers.push(answer);
            }
            let mut batch_encoder = BatchEncoder {
                clock,
                requests: &requests,
                answers: &answers,
                out: &mut self.replies,
                marks: &mut self.marks,
                large: Large::Some(large),
                refused_large: false,
                counters,
            };
            let caller = |index: usize| tickets.get(index).map_or(NOBODY, |ticket| ticket.caller);
            store.execute_for(clock, &requests, caller, &mut batch_encoder);
        }
    }

    /// Returns the replies in order: the ticket, and the reply's range in [`text`](Self::text), or
    /// `Err(large)` if the reply was deferred; `large`: for being large.
    pub(crate) fn replies(&self) -> impl Iterator<Item = (ReplyTo, Result<Range<usize>, bool>)> {
        // A deferred request has no reply in the text, so its mark moves no offset.
        let mut from = 0;
        let replies = self.tickets.iter().zip(&self.marks);
        replies.map(move |(&ticket, &mark)| match ReplyMark::of(mark) {
            ReplyMark::Deferred { large } => (ticket, Err(large)),
            ReplyMark::End(end) => {
                let range = from..end;
                from = end;
                (ticket, Ok(range))
            }
        })
    }

    /// Returns request `index` and its answer.
    pub(crate) fn request(&self, index: usize) -> (Request<'_>, Answer<'_>) {
        self.forwarded.get(index)
    }

    /// Returns the buffer for a command's output.
    pub(crate) fn text_mut(&mut self) -> &mut Vec<u8> {
        &mut self.replies
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.replies
    }

    /// Returns the text of a batch that one large value has filled, if all of it belongs to one
    /// connection. The connection takes the buffer over instead of copying it.
    pub(crate) fn large_text(&mut self) -> Option<(ReplyTo, &mut Vec<u8>)> {
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

    /// Empties the forwarded batch and releases what a large value added to its capacity.
    pub(crate) fn clear(&mut self) {
        self.command = WorkerCommand::Execute;
        self.forwarded.clear(BATCH_BYTES);
        self.large.clear();
        self.steps.clear(BATCH_BYTES);
        self.replies.clear();
        self.replies.shrink_to(BATCH_BYTES);
        self.marks.clear();
        self.tickets.clear();
        self.snapshot = None;
        self.prefixes = None;
    }
}
