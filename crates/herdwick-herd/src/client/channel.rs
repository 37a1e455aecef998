//! One channel: a client's slots, lines and RECVs at one worker, and the life of a request in it. A
//! slot holds at most one request; its sequence advances by the window when the request ends.
//!
//! Circular import with `client` and `order`: the client holds channels, which take its options and keep
//! their requests in order, and the order looks at a channel's slots.

use herdwick_fabric::{Local, Port, PostError, QpId, RecvWr, RegionId};
use herdwick_mem::Span;
use herdwick_request::{Op, Request};

use super::{
    ClientOptions, ClientSetupError, Outcome, Refused, WorkerChannel,
    order::{Held, Keys},
};
use crate::{
    ClientCounters,
    signals::Signals,
    wire::{LINE_BYTES, Line, OVERFLOW_BYTES, REQUEST_BYTES_MAX, Sequence, Stamp, encode},
};

/// A client's slots and queue pairs at one worker.
pub(super) struct Channel {
    pub(super) spec: WorkerChannel,
    pub(super) slots: Box<[Slot]>,
    /// The line in each slot, kept for retries.
    pub(super) lines: Box<[Line]>,
    /// Registered memory for overflowing bodies, one area a slot: room for the line, then the body.
    pub(super) stage: Span,
    /// Whether a line fits inline into its work request; if not, it is staged, too.
    pub(super) lines_inline: bool,
    /// The number of this channel's worker, as immediates carry it.
    pub(super) worker: u8,
    /// When lines were last posted, in nanoseconds.
    pub(super) posted_at: u64,
    /// Scratch space for encoding overflowing bodies, as long as a request's may be.
    pub(super) overflow: Box<[u8]>,
    /// First slot of the search for a free one.
    pub(super) next: usize,
    /// Requests in slots, and those held back: at most a window.
    pub(super) in_flight: usize,
    /// Slots with lines to be written: at most two entries a slot (a request and a retry), and one
    /// more for a request that was held back.
    pub(super) pending: Vec<u16>,
    /// The keys of all requests in flight.
    pub(super) keys: Keys,
    /// The requests that have no slot yet.
    pub(super) held: Held,
    /// Whether a request that was held back became pending.
    pub(super) resumed: bool,
    /// Retries that may still be sent before the next scan.
    pub(super) retries_left: usize,
    /// Memory of the RECVs' buffers.
    pub(super) receive: Span,
    /// RECVs consumed, to be posted again.
    pub(super) consumed: Vec<RecvWr>,
    pub(super) recv: RecvShape,
    pub(super) signals: Signals,
}

/// Layout of a RECV's buffer.
#[derive(Clone, Copy)]
pub(super) struct RecvShape {
    /// Bytes that precede the reply.
    pub(super) header: usize,
    /// Bytes of the whole buffer, a multiple of 8.
    pub(super) bytes: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) token: u64,
    /// When to write the line again, in nanoseconds.
    pub(super) retry_at: u64,
    /// When the request times out, in nanoseconds.
    pub(super) deadline: u64,
    /// Sequence of the slot's request, or of its next one if the slot is free.
    pub(super) sequence: Sequence,
    pub(super) overflow_len: u16,
    pub(super) attempts: u8,
    pub(super) is_read: bool,
    pub(super) state: SlotState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    Free,
    /// Pending; its line was never written.
    Queued,
    /// Its line was written at least once.
    InFlight,
    /// Given up; a cancellation under the same sequence asks for the slot back.
    Abandoned,
    /// Every cancellation went unanswered; only a late reply still frees the slot.
    Lost,
    /// The session is over; late replies are dropped.
    Closed,
}

impl Channel {
    pub(super) fn new<P: Port>(
        port: &mut P,
        options: &ClientOptions,
        worker: usize,
        spec: WorkerChannel,
    ) -> Result<Self, ClientSetupError> {
        let window = options.window.slots();
        let recv = RecvShape {
            header: options.reply_header_bytes,
            bytes: options.reply_buffer_bytes(),
        };
        let recvs = window + options.recv_slack;
        let needed = recvs * recv.bytes;
        let receive = memory(port, worker, "receive", spec.receive, needed)?;
        let needed = options.window.stage_bytes();
        let stage = memory(port, worker, "stage", spec.stage, needed)?;
        // A datagram holds line and overflow together.
        let overflow_max = (options.request_bytes_max - LINE_BYTES).min(OVERFLOW_BYTES);
        let slots = (0..window).map(|slot| Slot {
            token: 0,
            retry_at: 0,
            deadline: 0,
            sequence: Sequence::default().plus(slot),
            overflow_len: 0,
            attempts: 0,
            is_read: true,
            state: SlotState::Free,
        });
        let mut channel = Self {
            slots: slots.collect(),
            lines: vec![Line::default(); window].into(),
            stage,
            lines_inline: options.inline_bytes_max >= LINE_BYTES,
            // Below `WORKERS_MAX`, which `check` has compared.
            worker: worker as u8,
            posted_at: 0,
            held: Held::new(window, overflow_max),
            overflow: vec![0; overflow_max].into(),
            signals: Signals::default(),
            next: 0,
            in_flight: 0,
            pending: Vec::with_capacity(3 * window),
            keys: Keys::new(window),
            resumed: false,
            retries_left: options.recv_slack,
            receive,
            consumed: Vec::with_capacity(recvs),
            recv,
            spec,
        };
        channel
            .consumed
            .extend((0..recvs).map(|i| recv.wr(&channel.spec, i)));
        channel.post_recvs(port)?;
        Ok(channel)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Records that RECV number `index` was consumed.
    #[inline]
    pub(super) fn recv_consumed(&mut self, index: u64) {
        let count = self.consumed.capacity() as u64;
        // The number is the provider's: a wrong one, or one twice, must not post more RECVs than
        // there are.
        if index < count && self.consumed.len() < self.consumed.capacity() {
            self.consumed.push(self.recv.wr(&self.spec, index as usize));
        }
    }

    #[inline]
    pub(super) fn post_recvs<P: Port>(&mut self, port: &mut P) -> Result<(), PostError> {
        port.post_recv(self.spec.replies, &self.consumed)?;
        self.consumed.clear();
        Ok(())
    }

    #[inline]
    pub(super) fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        if !self.has_room() {
            return Err(Refused::Full);
        }
        // A GAT changes the item's deadline, so it is kept in order like a mutation.
        let is_read = matches!(&request.op, Op::Get(get) if get.touch.is_none());
        let bucket = self.keys.bucket(request.hash);
        // The bucket's count decides most submissions, without a look at the slots.
        if self.keys.may_conflict(bucket, is_read) {
            let waits_for = self.conflicts(bucket, request.hash, is_read);
            if waits_for > 0 {
                return Ok(self.hold(request, token, is_read, waits_for)?);
            }
        }
        let index = self.next_free();
        let slot = &mut self.slots[index];
        let stamp = Stamp::new(self.spec.epoch, slot.sequence);
        let body = &mut self.overflow[..];
        let overflow_len = encode(request, stamp, &mut self.lines[index], body)?;
        if overflow_len > 0 {
            // Behind the place of the line: a datagram of both is sent from one piece of memory.
            let at = index * REQUEST_BYTES_MAX + LINE_BYTES;
            self.stage.write_bytes(at, &body[..overflow_len]);
        }
        // Nothing was changed so far: a request that cannot be encoded leaves the slot free.
        slot.token = token;
        slot.overflow_len = overflow_len as u16;
        slot.attempts = 0;
        slot.is_read = is_read;
        // The first post sets the deadline (`stamp`).
        slot.deadline = u64::MAX;
        slot.state = SlotState::Queued;
        self.keys.take_slot(index, bucket, is_read);
        self.in_flight += 1;
        self.enqueue(index);
        Ok(())
    }

    /// Marks the line of the slot at `index` as pending.
    #[inline]
    pub(super) fn enqueue(&mut self, index: usize) {
        // The worker looks for the next request in the slot behind this one.
        self.next = (index + 1) & (self.slots.len() - 1);
        self.pending.push(index as u16);
    }

    /// Whether one more request may be submitted.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.slots.len() && !self.is_crowded()
    }

    /// Returns the next free slot, of which there is one: fewer requests are in slots than there are
    /// slots. Skips busy ones, so that a stalled request stalls no other.
    #[inline]
    pub(super) fn next_free(&self) -> usize {
        let mask = self.slots.len() - 1;
        let mut index = self.next;
        while self.slots[index].state != SlotState::Free {
            index = (index + 1) & mask;
        }
        index
    }

    /// Whether as many lines are pending as may be, apart from those that were held back.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.pending.len() >= 2 * self.slots.len()
    }

    /// Advances the slot at `index` to its next sequence and frees it.
    #[inline]
    pub(super) fn release(&mut self, index: usize) {
        let window = self.slots.len();
        let slot = &mut self.slots[index];
        slot.sequence = slot.sequence.plus(window);
        self.vacate(index);
    }

    /// Frees the slot at `index`, whose request has ended, and sends the requests held back behind
    /// it.
    #[inline]
    pub(super) fn vacate(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.state = SlotState::Free;
        let is_read = slot.is_read;
        let bucket = self.keys.leave_slot(index, is_read);
        self.in_flight -= 1;
        // Probes, reports and questions have no place in the order of keys.
        let Some(bucket) = bucket else {
            return;
        };
        if self.held.has(bucket) {
            self.resume_behind(index, bucket);
        }
    }

    #[inline]
    pub(super) fn awaits_completion(&self) -> bool {
        self.signals.awaited()
    }

    /// Ends every request. Cancels those in flight, as far as one last WRITE still can.
    pub(super) fn close<P: Port>(
        &mut self,
        port: &mut P,
        now: u64,
        (options, counters): (&ClientOptions, &mut ClientCounters),
        sink: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        // What was never written is not written any more; what was is canceled by new entries.
        self.pending.clear();
        for index in 0..self.slots.len() {
            let state = self.slots[index].state;
            if state == SlotState::InFlight {
                self.lines[index].cancel();
            }
            // The cancellation of a request that timed out earlier may not have been posted yet.
            if matches!(
                state,
                SlotState::InFlight | SlotState::Abandoned | SlotState::Lost
            ) {
                // Another attempt is another control word: the worker would take the same one for a
                // line that it has seen.
                self.lines[index].retry();
                // A CANCEL needs no body; the count of attempts has it announced, as a retry is.
                self.slots[index].overflow_len = 0;
                self.slots[index].attempts = 1;
                self.pending.push(index as u16);
            }
        }
        self.flush(port, now, options, counters);
        self.forget(sink);
    }

    /// Ends every request without posting anything.
    pub(super) fn forget(&mut self, sink: &mut impl FnMut(u64, Outcome<'_>)) {
        self.pending.clear();
        for waiting in self.held.drain() {
            sink(waiting.token, Outcome::Timeout);
        }
        for slot in &mut self.slots {
            match slot.state {
                SlotState::Queued => sink(slot.token, Outcome::Timeout),
                SlotState::InFlight => sink(slot.token, slot.given_up()),
                SlotState::Free | SlotState::Abandoned | SlotState::Lost | SlotState::Closed => {}
            }
            slot.state = SlotState::Closed;
        }
        // A full count makes `has_room` refuse every later request.
        self.in_flight = self.slots.len();
    }

    /// Whether `qp` is the queue pair that receives this channel's replies.
    #[inline]
    pub(super) fn receives_at(&self, qp: QpId) -> bool {
        self.spec.replies == qp
    }
}

impl Slot {
    /// The outcome of a request that was sent and got no reply.
    pub(super) fn given_up(&self) -> Outcome<'static> {
        if self.is_read {
            Outcome::Timeout
        } else {
            Outcome::Unknown
        }
    }
}

/// Returns the local memory of `region` if it has at least `needed` bytes.
fn memory<P: Port>(
    port: &P,
    worker: usize,
    what: &'static str,
    region: RegionId,
    needed: usize,
) -> Result<Span, ClientSetupError> {
    let span = port.region(region).cloned();
    let len = span.as_ref().map_or(0, Span::len);
    span.filter(|span| span.len() >= needed)
        .ok_or(ClientSetupError::Memory {
            worker,
            what,
            len,
            needed,
        })
}

impl RecvShape {
    /// Builds RECV number `index`.
    fn wr(self, spec: &WorkerChannel, index: usize) -> RecvWr {
        RecvWr {
            wr_id: index as u64,
            into: Local {
                region: spec.receive,
                offset: index * self.bytes,
                len: self.bytes,
            },
        }
    }
}
