//! Intake: fills a batch from the clients' slots, fairly between hot, cold and announced clients.
//! Bounded by the batch, whatever the clients write.

use herdwick_fabric::{Port, WriteReport};

use super::{
    ServerSide,
    batch::Batch,
    chunk::{Attached, Last, Verdict},
    job::{BATCH, Job, Work},
};
use crate::{
    ServerCounters,
    wire::{BadRequest, Body, Control, OpCode, ReplyStatus, imm},
};

/// Requests that each hot client may have in one batch, however many clients there are.
const QUANTUM_MIN: usize = 4;
/// Requests that a report of reads counts for: it names many keys.
const REPORT_COST: usize = 16;
/// Polls without a request after which the sweep checks a client's other slots. An earlier sweep
/// would fetch lines that the client is still writing.
const SWEEP_AFTER: u32 = 8;
/// Slots that the sweep checks in one pass, of a client whose WRITEs are reported.
const SWEEPS: usize = 16;
/// Distance from the cursor of the line to prefetch.
const AHEAD: usize = 8;

/// The context that turns a slot's line into a job.
pub(super) struct Intake<'a> {
    pub(super) worker: u8,
    pub(super) workers: usize,
    pub(super) batch: &'a mut Batch,
    pub(super) counters: &'a mut ServerCounters,
    /// Requests that may still be taken from the client.
    pub(super) left: usize,
}

/// What a check of a slot added to the batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// A new request.
    New,
    /// A retry.
    Again,
}

impl ServerSide {
    /// Fills the batch: first from announced requests and from clients whose WRITEs were reported, if
    /// there are any, then from a few cold clients, so that a flood does not starve them, then from
    /// the hot ones in turns.
    #[inline]
    pub(super) fn gather<P: Port>(&mut self, port: &mut P) {
        if self.clients.announced() > 0 {
            self.take_announced(port);
        }
        if self.clients.watched() > 0 {
            self.take_reported(port);
        }
        let quantum = self.quantum(self.clients.hot_len());
        for _ in 0..self.clients.cold_due() {
            if self.batch.is_full() {
                // Those not looked at keep their turn.
                break;
            }
            let Some(index) = self.clients.next_cold() else {
                break;
            };
            // The least quantum, however large its window: a client that was idle waits for nothing else, but
            // must not take the batch from those that are not.
            if self.poll_client(index, QUANTUM_MIN) {
                self.clients.warm_last();
            }
        }
        let (mut cooling, mut cut) = (false, false);
        let mut polled = 0;
        while polled < self.clients.hot_len() && !self.batch.is_full() {
            let (index, before) = (self.clients.hot(polled), self.batch.len());
            self.poll_client(index, quantum);
            cooling |= self.clients.is_cooling(index);
            polled += 1;
            cut = self.batch.is_full() && self.batch.len() - before < quantum;
        }
        // Resume with the client that the full batch interrupted, unless it was the only client
        // polled: cold clients would interrupt it again and keep the turn there.
        self.clients
            .turn_hot(polled - usize::from(cut && polled > 1));
        if cooling {
            self.clients.cool();
        }
    }

    /// Requests that each of so many clients may have in one batch.
    #[inline]
    fn quantum(&self, clients: usize) -> usize {
        if self.options.gso {
            // A GSO batch of few replies costs as much as one of many.
            BATCH
        } else {
            (BATCH / clients.max(1)).max(QUANTUM_MIN)
        }
    }

    /// Takes the port's reports of WRITEs, and polls their clients in turns. Leaves at least half of the
    /// batch to other polled clients, if there are any.
    #[inline(never)]
    fn take_reported<P: Port>(&mut self, port: &mut P) {
        let mut reports = [WriteReport::BLANK; BATCH];
        loop {
            let found = port.written(&mut reports);
            for report in reports.iter().take(found) {
                self.clients.note_report(report);
            }
            if found < reports.len() {
                break;
            }
        }
        let others = self.clients.hot_len() + self.clients.cold_due() > 0;
        // Of what announced requests have left.
        let (taken, left) = (self.batch.len(), BATCH - self.batch.len());
        let room = taken + if others { left / 2 } else { left };
        let quantum = self.quantum(self.clients.reported_len());
        for polled in 0..self.clients.reported_len() {
            let before = self.batch.len();
            if before >= room || self.batch.is_full() {
                break;
            }
            let Some(index) = self.clients.next_reported() else {
                break;
            };
            self.poll_reported_client(index, quantum.min(room - before));
            // As with the hot ones: one that the full batch interrupted goes on, unless it was the only one.
            let cut = self.batch.len() >= room && self.batch.len() - before < quantum;
            self.clients.put_back(index, cut && polled > 0);
        }
    }

    /// Takes up to `quantum` requests of one client. Returns whether there was any.
    #[inline]
    fn poll_client(&mut self, index: u32, quantum: usize) -> bool {
        let Some(client) = self.clients.client(index) else {
            return false;
        };
        let mut intake = Intake {
            worker: self.worker,
            workers: self.options.workers,
            batch: &mut self.batch,
            counters: &mut self.counters,
            left: quantum,
        };
        if intake.take_at_cursor(client, index) {
            client.idle = 0;
            return true;
        }
        client.idle = client.idle.saturating_add(1);
        client.idle >= SWEEP_AFTER && !intake.batch.is_full() && intake.sweep(client, index)
    }

    /// Takes up to `quantum` requests of a client whose WRITEs were reported, and accounts for these.
    #[inline(never)]
    fn poll_reported_client(&mut self, index: u32, quantum: usize) {
        let Some(client) = self.clients.client(index) else {
            return;
        };
        let before = self.batch.len();
        let mut intake = Intake {
            worker: self.worker,
            workers: self.options.workers,
            batch: &mut self.batch,
            counters: &mut self.counters,
            left: quantum,
        };
        intake.take_at_cursor(client, index);
        intake.settle(client, index, before);
    }
}

impl Intake<'_> {
    /// Takes the requests at the cursor and behind it. Returns whether there was any.
    #[inline(always)]
    fn take_at_cursor(&mut self, client: &mut Attached, index: u32) -> bool {
        let mut found = false;
        while self.left > 0 && !self.batch.is_full() {
            if self.check_next(client, index) == Found::Nothing {
                break;
            }
            client.prefetch(AHEAD);
            client.step();
            self.left = self.left.saturating_sub(1);
            found = true;
        }
        found
    }

    /// Accounts for the reported WRITEs of a client from whose cursor the requests from `before` on were
    /// taken. Where some are left when the cursor has come to a quiet slot, sweeps: they are retries, or
    /// requests that overtook a missing one. Their lines are whole, so no sweep is too early.
    #[inline]
    fn settle(&mut self, client: &mut Attached, index: u32, before: usize) {
        let has_room = self.left > 0 && !self.batch.is_full();
        if !client.account(self.batch.len() - before, has_room) {
            return;
        }
        for _ in 0..SWEEPS {
            let before = self.batch.len();
            if self.sweep(client, index) {
                client.account(self.batch.len() - before, false);
                return;
            }
            if !client.passed_over() {
                return;
            }
        }
    }

    /// Checks `slot` and takes its request.
    #[inline(never)]
    pub(super) fn check(&mut self, client: &mut Attached, index: u32, slot: usize) -> Found {
        self.check_inline(client, index, slot)
    }

    /// Checks the slot at the cursor, where nearly all requests are: compiled into the loop over them.
    #[inline(always)]
    fn check_next(&mut self, client: &mut Attached, index: u32) -> Found {
        let slot = client.cursor;
        self.check_inline(client, index, slot)
    }

    #[inline(always)]
    fn check_inline(&mut self, client: &mut Attached, index: u32, slot: usize) -> Found {
        let (control, verdict) = client.check(slot);
        match verdict {
            Verdict::Quiet => Found::Nothing,
            Verdict::New => self.admit(client, index, slot, control, true),
            odd => self.set_aside(client, index, slot, control, odd),
        }
    }

    /// Checks one slot away from the cursor: for retries, and for requests that overtook a missing
    /// one. A change there may only mean that the client has written both slots since the cursor's
    /// was checked; on a fabric that keeps order the cursor's request is then visible too, so check
    /// that one again first.
    fn sweep(&mut self, client: &mut Attached, index: u32) -> bool {
        let slot = client.sweep_slot();
        if !client.is_news(slot) {
            return false;
        }
        if self.check(client, index, client.cursor) != Found::Nothing {
            client.step();
            client.idle = 0;
            return true;
        }
        let found = self.check(client, index, slot);
        if found == Found::New {
            self.counters.out_of_order_requests += 1;
            client.overtaken_by(slot);
        }
        if found == Found::Nothing {
            return false;
        }
        client.idle = 0;
        true
    }

    /// Takes the request of `slot`. The line is copied once and judged in the copy; so is an
    /// overflowing body. A body that does not match its checksum leaves the slot as it was.
    #[inline(always)]
    fn admit(
        &mut self,
        client: &mut Attached,
        index: u32,
        slot: usize,
        control: Control,
        is_new: bool,
    ) -> Found {
        let line = self
            .batch
            .stage(|staged| client.copy_line(slot, control, staged));
        let hash = line.hash();
        let mut work = Work::Run { overflow_len: 0 };
        if control.is(OpCode::Report) {
            self.left = self.left.saturating_sub(REPORT_COST - 1);
        }
        // No other word of a CANCEL counts, so it is checked before the hash.
        if control.is(OpCode::Cancel) {
            self.counters.canceled += 1;
            work = Work::Refuse(ReplyStatus::NotFound);
        } else if hash.partition(self.workers) != usize::from(self.worker) {
            self.counters.wrong_partition += 1;
            work = Work::Refuse(ReplyStatus::WrongPartition);
        } else if control.is_of_reader() && !client.chunk.reads {
            // Hashes alone would do, to keep items that the client may not even read; and a stag is of no use.
            self.counters.count_bad(BadRequest::Opcode);
            work = Work::Refuse(ReplyStatus::BadRequest);
        } else if control.overflows() {
            let Some(overflow_len) = self.copy_overflow(client, slot) else {
                // Not taken: a retry writes the body again.
                return Found::Nothing;
            };
            work = Work::Run { overflow_len };
        }
        if let (false, true, Work::Run { overflow_len }) = (is_new, control.is(OpCode::Gat), work) {
            work = Work::Reread { overflow_len };
        }
        // From here on the same sequence is a retry.
        if is_new {
            let rerun = control.is_read();
            client.take(slot, if rerun { Last::Rerun } else { Last::Pending });
        }
        self.push(client, index, slot, control, work);
        if is_new { Found::New } else { Found::Again }
    }

    /// Takes a retry, whose request is executed again.
    #[inline(never)]
    fn admit_again(
        &mut self,
        client: &mut Attached,
        index: u32,
        slot: usize,
        control: Control,
    ) -> Found {
        self.admit(client, index, slot, control, false)
    }

    /// Copies the overflowing body of the staged line once and checks the copy. Returns its length,
    /// or `None` if it is torn; 0 for a malformed line, which has no body to copy and is refused
    /// later.
    #[inline(never)]
    fn copy_overflow(&mut self, client: &Attached, slot: usize) -> Option<u16> {
        let Ok(Body::Overflow { len, crc }) = self.batch.staged().body() else {
            return Some(0);
        };
        let body = self.batch.stage_overflow(len);
        client.copy_overflow(slot, body);
        if crc32c::crc32c(body) == crc {
            return Some(len as u16);
        }
        self.counters.torn_overflow += 1;
        None
    }

    /// Handles every verdict but a new request.
    #[cold]
    fn set_aside(
        &mut self,
        client: &mut Attached,
        index: u32,
        slot: usize,
        control: Control,
        verdict: Verdict,
    ) -> Found {
        match (verdict, client.slots[slot].last) {
            (Verdict::Retry, Last::Rerun) if control.is_read() || control.is(OpCode::Cancel) => {
                self.counters.retries_rerun += 1;
                return self.admit_again(client, index, slot, control);
            }
            // A GAT's value was not remembered, only the two words of its head: read it again.
            (Verdict::Retry, Last::Words(2)) if control.is(OpCode::Gat) => {
                self.counters.retries_remembered += 1;
                return self.admit_again(client, index, slot, control);
            }
            (Verdict::Retry, Last::Words(words)) => {
                self.counters.retries_remembered += 1;
                self.batch
                    .stage(|staged| client.copy_line(slot, control, staged));
                self.push(client, index, slot, control, Work::Repeat(words));
                return Found::Again;
            }
            (Verdict::Retry, Last::Rerun) => self.counters.retries_changed += 1,
            // Its reply is sent at the end of this pass.
            (Verdict::Retry, Last::None | Last::Pending) => {}
            (Verdict::StaleEpoch, _) => self.counters.stale_epoch += 1,
            (Verdict::OutOfWindow, _) => self.counters.out_of_window += 1,
            (Verdict::Quiet | Verdict::New, _) => {}
        }
        Found::Nothing
    }

    /// Appends the job of the staged line.
    #[inline]
    fn push(&mut self, client: &Attached, index: u32, slot: usize, control: Control, work: Work) {
        // A client that tries whether the fabric carries anything asks for no item, nor does a reader.
        let asks = !control.is(OpCode::Cancel) && !control.is_of_reader();
        self.counters.requests += u64::from(asks);
        self.batch.push(Job {
            client: index,
            reply_qp: client.chunk.reply_qp,
            slot: slot as u16,
            epoch: client.chunk.epoch,
            imm: imm(self.worker, control.stamp().sequence()),
            to: client.chunk.address,
            reply_bytes_max: client.chunk.reply_bytes_max as u32,
            work,
        });
    }
}
