use super::{
    ServerSide,
    batch::{BATCH, Batch, Job, Work},
    chunk::{Attached, Last, Verdict},
};
use crate::{
    ServerCounters,
    wire::{Body, Control, Line, OpCode, ReplyStatus, imm},
};

/// Requests that each hot client may have in one batch, however many clients there are.
const QUANTUM_MIN: usize = 4;
/// Polls without a request after which the sweep looks at a client's other slots: sooner, it would
/// take lines from under the client's pen.
const SWEEP_AFTER: u32 = 8;
/// How many lines ahead of the cursor are asked for.
const AHEAD: usize = 8;

/// What it takes to turn a slot's line into a job.
struct Desk<'a> {
    worker: u8,
    workers: usize,
    batch: &'a mut Batch,
    counters: &'a mut ServerCounters,
}

impl ServerSide {
    /// Fills the batch: first from a few cold clients, so that a flood does not hide them, then
    /// from the hot ones in turns.
    #[inline]
    pub(super) fn gather(&mut self) {
        let quantum = (BATCH / self.roster.hot_len().max(1)).max(QUANTUM_MIN);
        for _ in 0..self.roster.cold_due() {
            let Some(index) = self.roster.next_cold() else {
                break;
            };
            if self.poll_client(index, QUANTUM_MIN) {
                self.roster.warm_last();
            }
        }
        let mut cooling = false;
        let mut polled = 0;
        while polled < self.roster.hot_len() && !self.batch.is_full() {
            let index = self.roster.hot(polled);
            self.poll_client(index, quantum);
            cooling |= self.roster.is_cooling(index);
            polled += 1;
        }
        self.roster.turn_hot(polled);
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
            if !desk.look(client, index, client.cursor) {
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
    /// Judges what `slot` holds now; whether it became a job.
    #[inline]
    fn look(&mut self, client: &mut Attached, index: u32, slot: usize) -> bool {
        let control = client.control(slot);
        match client.judge(slot, control) {
            Verdict::Quiet => false,
            Verdict::New => self.admit(client, index, slot, control, true),
            Verdict::Retry => self.retry(client, index, slot, control),
            Verdict::StaleEpoch => {
                client.mark_seen(slot, control);
                self.counters.stale_epoch += 1;
                false
            }
            Verdict::OutOfWindow => {
                client.mark_seen(slot, control);
                self.counters.out_of_window += 1;
                false
            }
        }
    }

    /// Looks at one slot away from the cursor: for retries, and for requests that overtook a
    /// missing one.
    fn sweep(&mut self, client: &mut Attached, index: u32) -> bool {
        let slot = client.sweep_slot();
        let control = client.control(slot);
        let new = client.judge(slot, control) == Verdict::New;
        let found = self.look(client, index, slot);
        if found && new {
            self.counters.overtaking += 1;
            client.overtaken_by(slot);
        }
        if found {
            client.idle = 0;
        }
        found
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
    ) -> bool {
        client.mark_seen(slot, control);
        let line = client.copy_line(slot, control);
        if control.op() == Some(OpCode::Cancel) {
            return self.cancel(client, index, slot, line, is_new);
        }
        let mut overflow_len = 0;
        if let Ok(Body::Overflow { len, crc }) = line.body() {
            let body = self.batch.next_overflow(len);
            client.copy_overflow(slot, body);
            if crc32c::crc32c(body) != crc {
                self.counters.torn_overflow += 1;
                return false;
            }
            overflow_len = len;
        }
        let remember = !control.op().is_some_and(OpCode::is_read);
        if is_new {
            client.take(slot, if remember { Last::Pending } else { Last::Rerun });
        }
        let work = if line.hash().partition(self.workers) == usize::from(self.worker) {
            Work::Run { overflow_len }
        } else {
            self.counters.wrong_partition += 1;
            Work::Refuse(ReplyStatus::WrongPartition)
        };
        self.batch
            .push(line, self.job(client, index, slot, control, work));
        true
    }

    /// Closes a slot whose request the client gave up before it was seen here, or that was a read.
    #[cold]
    fn cancel(
        &mut self,
        client: &mut Attached,
        index: u32,
        slot: usize,
        line: Line,
        is_new: bool,
    ) -> bool {
        if is_new {
            client.take(slot, Last::Pending);
        }
        self.counters.canceled += 1;
        let work = Work::Refuse(ReplyStatus::NotFound);
        let job = self.job(client, index, slot, line.control(), work);
        self.batch.push(line, job);
        true
    }

    /// Answers a request that was taken before: reads run again, the rest is remembered.
    #[cold]
    fn retry(&mut self, client: &mut Attached, index: u32, slot: usize, control: Control) -> bool {
        match client.slots[slot].last {
            Last::None | Last::Pending => false,
            Last::Rerun if control.op().is_some_and(OpCode::may_rerun) => {
                self.counters.retries_rerun += 1;
                self.admit(client, index, slot, control, false)
            }
            Last::Rerun => {
                client.mark_seen(slot, control);
                self.counters.retries_changed += 1;
                false
            }
            Last::Words(words) => {
                client.mark_seen(slot, control);
                self.counters.retries_remembered += 1;
                let line = client.copy_line(slot, control);
                let work = Work::Repeat(words);
                self.batch
                    .push(line, self.job(client, index, slot, control, work));
                true
            }
        }
    }

    #[inline]
    fn job(&self, client: &Attached, index: u32, slot: usize, control: Control, work: Work) -> Job {
        Job {
            client: index,
            slot,
            epoch: client.chunk.epoch,
            imm: imm(self.worker, control.stamp().sequence()),
            to: client.chunk.address,
            reply_bytes_max: client.chunk.reply_bytes_max,
            work,
        }
    }
}
