use herdwick_fabric::Port;

use super::{
    ServerSide,
    batch::{BATCH, Batch, Job, Work},
    chunk::{Attached, Last, Verdict},
};
use crate::{
    ServerCounters,
    wire::{Body, Control, OpCode, ReplyStatus, imm},
};

/// Requests that each hot client may have in one batch, however many clients there are.
const QUANTUM_MIN: usize = 4;
/// Polls without a request after which the sweep looks at a client's other slots: sooner, it would
/// take lines from under the client's pen.
const SWEEP_AFTER: u32 = 8;
/// How many lines ahead of the cursor are asked for.
const AHEAD: usize = 8;

/// What it takes to turn a slot's line into a job.
pub(super) struct Desk<'a> {
    pub(super) worker: u8,
    pub(super) workers: usize,
    pub(super) batch: &'a mut Batch,
    pub(super) counters: &'a mut ServerCounters,
}

/// What a look at a slot gave the batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// A new request.
    New,
    /// A retry.
    Again,
}

impl ServerSide {
    /// Fills the batch: first from what is announced, if anything is, then from a few cold clients,
    /// so that a flood does not hide them, then from the hot ones in turns.
    #[inline]
    pub(super) fn gather<P: Port>(&mut self, port: &mut P) {
        if self.roster.announced() > 0 {
            self.take_announced(port);
        }
        let quantum = if self.options.trains {
            // A train of few replies costs as much as one of many.
            BATCH
        } else {
            (BATCH / self.roster.hot_len().max(1)).max(QUANTUM_MIN)
        };
        for _ in 0..self.roster.cold_due() {
            if self.batch.is_full() {
                // Those not looked at keep their turn.
                break;
            }
            let Some(index) = self.roster.next_cold() else {
                break;
            };
            if self.poll_client(index, QUANTUM_MIN) {
                self.roster.warm_last();
            }
        }
        let (mut cooling, mut cut) = (false, false);
        let mut polled = 0;
        while polled < self.roster.hot_len() && !self.batch.is_full() {
            let (index, before) = (self.roster.hot(polled), self.batch.len());
            self.poll_client(index, quantum);
            cooling |= self.roster.is_cooling(index);
            polled += 1;
            cut = self.batch.is_full() && self.batch.len() - before < quantum;
        }
        // Whom the end of the batch cut short comes first in the next, unless it was the only one:
        // cold clients would keep it there.
        self.roster
            .turn_hot(polled - usize::from(cut && polled > 1));
        if cooling {
            self.roster.cool();
        }
    }

    /// Takes up to `quantum` requests of one client; whether there was any.
    #[inline]
    fn poll_client(&mut self, index: u32, quantum: usize) -> bool {
        let Some(client) = self.roster.client(index) else {
            return false;
        };
        let mut desk = Desk {
            worker: self.worker,
            workers: self.options.workers,
            batch: &mut self.batch,
            counters: &mut self.counters,
        };
        let mut found = 0;
        while found < quantum && !desk.batch.is_full() {
            if desk.look(client, index, client.cursor) == Found::Nothing {
                break;
            }
            client.prefetch(AHEAD);
            client.step();
            found += 1;
        }
        if found > 0 {
            client.idle = 0;
            return true;
        }
        client.idle = client.idle.saturating_add(1);
        client.idle >= SWEEP_AFTER && !desk.batch.is_full() && desk.sweep(client, index)
    }
}

impl Desk<'_> {
    /// Looks at `slot` and takes what is there.
    #[inline]
    pub(super) fn look(&mut self, client: &mut Attached, index: u32, slot: usize) -> Found {
        let (control, verdict) = client.look(slot);
        match verdict {
            Verdict::Quiet => Found::Nothing,
            Verdict::New => self.admit(client, index, slot, control, true),
            odd => self.set_aside(client, index, slot, control, odd),
        }
    }

    /// Looks at one slot away from the cursor: for retries, and for requests that overtook a
    /// missing one. News there may only mean that the client has written both since the cursor's
    /// slot was looked at: then, on a fabric that keeps order, that one is visible too.
    fn sweep(&mut self, client: &mut Attached, index: u32) -> bool {
        let slot = client.sweep_slot();
        if !client.is_news(slot) {
            return false;
        }
        if self.look(client, index, client.cursor) != Found::Nothing {
            client.step();
            client.idle = 0;
            return true;
        }
        let found = self.look(client, index, slot);
        if found == Found::New {
            self.counters.overtaking += 1;
            client.overtaken_by(slot);
        }
        if found == Found::Nothing {
            return false;
        }
        client.idle = 0;
        true
    }

    /// Takes the request of `slot`. The line is copied once and judged in the copy; an overflowing
    /// body likewise. A body that does not match its checksum leaves the slot as it was.
    #[inline]
    fn admit(
        &mut self,
        client: &mut Attached,
        index: u32,
        slot: usize,
        control: Control,
        is_new: bool,
    ) -> Found {
        let line = self.batch.stage(client.copy_line(slot, control));
        let hash = line.hash();
        let mut work = Work::Run { overflow_len: 0 };
        if control.is(OpCode::Cancel) {
            self.counters.canceled += 1;
            work = Work::Refuse(ReplyStatus::NotFound);
        } else if hash.partition(self.workers) != usize::from(self.worker) {
            self.counters.wrong_partition += 1;
            work = Work::Refuse(ReplyStatus::WrongPartition);
        } else if control.overflows() {
            let Some(overflow_len) = self.copy_overflow(client, slot) else {
                return Found::Nothing;
            };
            work = Work::Run { overflow_len };
        }
        if let (false, true, Work::Run { overflow_len }) = (is_new, control.is(OpCode::Gat), work) {
            work = Work::Reread { overflow_len };
        }
        if is_new {
            let rerun = control.is_read();
            client.take(slot, if rerun { Last::Rerun } else { Last::Pending });
        }
        self.push(client, index, slot, control, work);
        if is_new { Found::New } else { Found::Again }
    }

    /// Copies the body that the staged line says overflows, once, and checks the copy; its length,
    /// or `None` if it is torn. A line that makes no sense has none to copy.
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

    /// Sees to what is not the slot's next request.
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
                return self.admit(client, index, slot, control, false);
            }
            // Its value was not kept.
            (Verdict::Retry, Last::Words(2)) if control.is(OpCode::Gat) => {
                self.counters.retries_remembered += 1;
                return self.admit(client, index, slot, control, false);
            }
            (Verdict::Retry, Last::Words(words)) => {
                self.counters.retries_remembered += 1;
                self.batch.stage(client.copy_line(slot, control));
                self.push(client, index, slot, control, Work::Repeat(words));
                return Found::Again;
            }
            (Verdict::Retry, Last::Rerun) => self.counters.retries_changed += 1,
            // Its reply leaves with this pass.
            (Verdict::Retry, Last::None | Last::Pending) => {}
            (Verdict::StaleEpoch, _) => self.counters.stale_epoch += 1,
            (Verdict::OutOfWindow, _) => self.counters.out_of_window += 1,
            (Verdict::Quiet | Verdict::New, _) => {}
        }
        Found::Nothing
    }

    /// Makes a job of the line that was staged.
    #[inline]
    fn push(&mut self, client: &Attached, index: u32, slot: usize, control: Control, work: Work) {
        // Who tries whether the fabric carries anything asks for nothing.
        self.counters.requests += u64::from(!control.is(OpCode::Cancel));
        self.batch.push(Job {
            client: index,
            outlet: client.chunk.outlet,
            slot: slot as u16,
            epoch: client.chunk.epoch,
            imm: imm(self.worker, control.stamp().sequence()),
            to: client.chunk.address,
            reply_bytes_max: client.chunk.reply_bytes_max as u32,
            work,
        });
    }
}
