//! One client's slots as the worker sees them: what each slot remembers, and the verdict on each
//! control word. Only words copied out of the client's memory are judged.

use herdwick_fabric::AddressHandle;
use herdwick_mem::{Span, Words};

use super::recv_queue::{LineWatch, OpenUdQueue, UdQueue, WriteNotify};
use crate::wire::{
    CONTROL_WORD, Control, Epoch, LINE_WORDS, Line, OVERFLOW_BYTES, Sequence, Stamp, Window,
};

/// One client's slots at one worker, and the address of its replies.
#[derive(Debug)]
pub struct Chunk {
    /// The request lines, [`Window::line_bytes`] long. The client may write them at any instant;
    /// with a UD receive queue the worker writes them.
    pub lines: Span,
    /// The overflow areas, [`Window::overflow_bytes`] long; likewise.
    pub overflow: Span,
    /// The receive queue for its datagrams, if it sends and does not write.
    pub ud_queue: Option<UdQueue>,
    /// The receive queue for announcements of its WRITEs, if they are announced.
    pub notify: Option<WriteNotify>,
    /// Where its WRITEs can be watched; not looked at where the port has no reports of them.
    pub watch: Option<LineWatch>,
    /// Number of slots.
    pub window: Window,
    /// The lease's epoch; lines with any other are dropped.
    pub epoch: Epoch,
    /// Index in [`ServerOptions::replies`](crate::ServerOptions::replies) of the queue pair that
    /// sends its replies.
    pub reply_qp: u8,
    /// The client's UD queue pair, as an address of that queue pair.
    pub address: AddressHandle,
    /// Bytes of the RECVs that the client posts, at least
    /// [`RECV_BYTES_MIN`](crate::RECV_BYTES_MIN). The server's own limit may be lower.
    pub reply_bytes_max: usize,
    /// Whether it reads the store's memory, and may report that.
    pub reads: bool,
}

/// A [`Chunk`] in service: what the server knows of each slot, and which slot it polls next.
pub(super) struct Attached {
    pub(super) chunk: Chunk,
    pub(super) slots: Box<[SlotRecord]>,
    pub(super) ud_queue: Option<OpenUdQueue>,
    /// The slot of the next expected request.
    pub(super) cursor: usize,
    /// Distance from the cursor of the slot that the sweep checks next.
    sweep: usize,
    /// Polls since the last request was found.
    pub(super) idle: u32,
    /// Its reported WRITEs, where the port reports them: it is polled after a report, and not otherwise.
    pub(super) writes: Option<ReportedWrites>,
}

/// The reported WRITEs to one client's lines, and how many of them no request was found for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedWrites {
    /// WRITEs whose request is still to be found. Those of lines that are dropped have none.
    owed: u32,
    /// Slots that the sweep has to check before it is known that the WRITEs owed have no request.
    unchecked: usize,
    /// Whether the slot at the cursor was quiet when it was last checked.
    quiet: bool,
    /// Whether it is listed for polling.
    is_listed: bool,
}

impl ReportedWrites {
    /// Those of a new client with `slots`, which may have written before it was watched.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            owed: 1,
            unchecked: slots,
            quiet: false,
            is_listed: true,
        }
    }
}

/// What the server remembers of one slot. It lies outside the client's memory.
#[derive(Clone, Copy)]
pub(super) struct SlotRecord {
    /// The control word last judged; the slot is quiet while it stays the same.
    seen: Control,
    /// Stamp of the next new request.
    next: Stamp,
    pub(super) last: Last,
    /// Words 0 and 1 of the last reply, where `last` is `Words`.
    pub(super) reply: [u64; 2],
}

/// How to answer a retry of a slot's last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// The slot has had no request.
    None,
    /// It was a read: execute it again.
    Rerun,
    /// It is in this pass's batch, which sends its reply.
    Pending,
    /// This many words of the reply are remembered. A GAT's value is not: its retries read it
    /// again.
    Words(u8),
}

/// The meaning of a slot's control word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The word has not changed.
    Quiet,
    /// The slot's next request.
    New,
    /// The slot's last request again.
    Retry,
    /// A request of another lease.
    StaleEpoch,
    /// Neither the next request nor the last.
    OutOfWindow,
}

impl Attached {
    /// Whether its lines are polled, and not only checked when a completion names them.
    pub(super) fn is_polled(&self) -> bool {
        let always = self
            .chunk
            .notify
            .as_ref()
            .is_some_and(|notify| notify.always);
        self.chunk.ud_queue.is_none() && !always
    }

    /// Whether completions announce its requests.
    pub(super) fn is_announced(&self) -> bool {
        self.chunk.ud_queue.is_some() || self.chunk.notify.is_some()
    }

    pub(super) fn new(chunk: Chunk) -> Self {
        let slots = (0..chunk.window.slots()).map(|slot| SlotRecord {
            // Lines are zero at first, and a zero word is no news.
            seen: Control::default(),
            next: Stamp::new(chunk.epoch, Sequence::default()).plus(slot),
            last: Last::None,
            reply: [0; 2],
        });
        Self {
            slots: slots.collect(),
            ud_queue: None,
            chunk,
            cursor: 0,
            sweep: 1,
            idle: 0,
            writes: None,
        }
    }

    /// Loads the control word of `slot` with acquire: words written before it can be read after.
    #[inline]
    pub(super) fn control(&self, slot: usize) -> Control {
        let word = slot * LINE_WORDS + CONTROL_WORD;
        Control(self.chunk.lines.load_acquire(word))
    }

    /// Loads and judges the control word of `slot`. Each word is judged once, whatever the verdict.
    #[inline]
    pub(super) fn check(&mut self, slot: usize) -> (Control, Verdict) {
        let control = self.control(slot);
        let window = self.slots.len();
        let known = &mut self.slots[slot];
        if control == known.seen {
            return (control, Verdict::Quiet);
        }
        known.seen = control;
        let stamp = control.stamp();
        let verdict = if stamp == known.next {
            Verdict::New
        } else if stamp.epoch() != self.chunk.epoch.get() {
            Verdict::StaleEpoch
        } else if stamp.plus(window) == known.next && known.last != Last::None {
            // Without a request so far there is no last one, though some sequence is a window before
            // `next`.
            Verdict::Retry
        } else {
            Verdict::OutOfWindow
        };
        (control, verdict)
    }

    /// Prefetches the line that the cursor will reach in `ahead` steps.
    #[inline]
    pub(super) fn prefetch(&self, ahead: usize) {
        let slot = (self.cursor + ahead) & (self.slots.len() - 1);
        self.chunk.lines.prefetch(slot * LINE_WORDS);
    }

    /// Copies the line of `slot` to `to` once, under the control word that was judged.
    #[inline]
    pub(super) fn copy_line(&self, slot: usize, control: Control, to: &mut Line) {
        to.copy_from(&self.chunk.lines, slot * LINE_WORDS, control);
    }

    /// Copies the overflowing body of `slot` into `out`.
    pub(super) fn copy_overflow(&self, slot: usize, out: &mut [u8]) {
        self.chunk.overflow.read_bytes(slot * OVERFLOW_BYTES, out);
    }

    /// Marks the slot's next request as taken; `last` is how to answer its retries.
    #[inline]
    pub(super) fn take(&mut self, slot: usize, last: Last) {
        let window = self.slots.len();
        let known = &mut self.slots[slot];
        known.next = known.next.plus(window);
        known.last = last;
    }

    #[inline]
    pub(super) fn step(&mut self) {
        self.cursor = (self.cursor + 1) & (self.slots.len() - 1);
        self.sweep = 1;
    }

    /// Returns the slot that the sweep checks now: the one after the cursor first, then farther
    /// ones.
    pub(super) fn sweep_slot(&mut self) -> usize {
        let slot = (self.cursor + self.sweep) & (self.slots.len() - 1);
        self.sweep += 1;
        // Distance 0 is the cursor, which each poll checks.
        if self.sweep >= self.slots.len() {
            self.sweep = 1;
        }
        slot
    }

    /// Moves the cursor behind a new request that overtook the one at the cursor, and leaves the
    /// missing one to the sweep. A late request, more than half a window back, does not move the
    /// cursor.
    pub(super) fn overtaken_by(&mut self, slot: usize) {
        let mask = self.slots.len() - 1;
        if slot.wrapping_sub(self.cursor) & mask <= mask / 2 {
            self.cursor = slot;
            self.step();
        }
    }

    /// Whether `slot` holds a control word not judged yet.
    pub(super) fn is_news(&self, slot: usize) -> bool {
        self.control(slot) != self.slots[slot].seen
    }

    /// Accounts for so many requests that were taken, and notes whether the slot at the cursor is quiet.
    /// Returns whether the sweep has to look for more: of a client whose WRITEs are reported.
    #[inline]
    pub(super) fn account(&mut self, requests: usize, quiet: bool) -> bool {
        let slots = self.slots.len();
        let Some(writes) = &mut self.writes else {
            return false;
        };
        if requests > 0 {
            // The sweep begins anew behind the cursor.
            writes.unchecked = slots;
            writes.owed = writes.owed.saturating_sub(requests as u32);
        }
        writes.quiet = quiet;
        quiet && writes.owed > 0
    }

    /// Notes that the sweep found nothing in one more slot. Returns whether it has to go on.
    pub(super) fn passed_over(&mut self) -> bool {
        let Some(writes) = &mut self.writes else {
            return false;
        };
        writes.unchecked = writes.unchecked.saturating_sub(1);
        if writes.unchecked == 0 {
            writes.owed = 0;
        }
        writes.owed > 0
    }

    /// Adds reported WRITEs. Returns whether it has to be listed for polling.
    #[inline]
    pub(super) fn note_writes(&mut self, count: u32) -> bool {
        let slots = self.slots.len();
        let Some(writes) = &mut self.writes else {
            return false;
        };
        writes.owed = writes.owed.saturating_add(count);
        writes.unchecked = slots;
        !std::mem::replace(&mut writes.is_listed, true)
    }

    /// Whether nothing is to be found before the next report, so that it is not listed any more.
    #[inline]
    pub(super) fn rests(&mut self) -> bool {
        let Some(writes) = &mut self.writes else {
            return true;
        };
        writes.is_listed = writes.owed > 0 || !writes.quiet;
        !writes.is_listed
    }

    /// Whether any slot holds a control word not judged yet, if the client is polled. The port holds the
    /// news of one that is polled after a report.
    pub(super) fn has_news(&self) -> bool {
        let polled = match &self.writes {
            Some(writes) => writes.is_listed,
            None => self.is_polled(),
        };
        polled && (0..self.slots.len()).any(|slot| self.is_news(slot))
    }
}
