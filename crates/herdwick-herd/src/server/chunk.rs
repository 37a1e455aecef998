use herdwick_fabric::{AddressHandle, QpId, RegionId, Source};
use herdwick_mem::{Span, Words};

use super::mail::OpenMailbox;
use crate::wire::{
    CONTROL_WORD, Control, Epoch, LINE_WORDS, Line, OVERFLOW_BYTES, Sequence, Stamp, Window,
};

/// One client's slots at one worker, and where its replies go.
#[derive(Debug)]
pub struct Chunk {
    /// The request lines, [`Window::line_bytes`] long; the client writes them at any instant, or
    /// the worker does, with what comes by the mailbox.
    pub lines: Span,
    /// The overflow areas, [`Window::overflow_bytes`] long; likewise.
    pub overflow: Span,
    /// Where its datagrams arrive, if it does not write.
    pub mailbox: Option<Mailbox>,
    /// Where its WRITEs are announced, if they are.
    pub bell: Option<Bell>,
    /// How many slots there are.
    pub window: Window,
    /// The lease's epoch; lines of any other are refused.
    pub epoch: Epoch,
    /// By which of [`ServerOptions::replies`](crate::ServerOptions::replies), counted from 0, its
    /// replies leave.
    pub outlet: u8,
    /// The client's UD queue pair, as it is named there.
    pub address: AddressHandle,
    /// Bytes of the RECVs that the client posts, at least
    /// [`RECV_BYTES_MIN`](crate::RECV_BYTES_MIN). The server's own limit may be lower.
    pub reply_bytes_max: usize,
}

/// Where one client's datagrams arrive: at a queue pair of its own, so that nobody else's use up
/// its RECVs.
#[derive(Clone, Debug)]
pub struct Mailbox {
    /// The UD queue pair; its RECVs complete at
    /// [`ServerOptions::request_cq`](crate::ServerOptions::request_cq).
    pub qp: QpId,
    /// Whom the client's datagrams name; those of anybody else are dropped.
    pub source: Source,
    /// How many RECVs there are: the client's window, and some for its retries.
    pub recvs: usize,
    /// Local memory for them, `recvs` x [`Mailbox::recv_bytes`], in the domain of `qp`.
    pub memory: RegionId,
    /// Where in it they begin.
    pub offset: usize,
}

/// Where one client's WRITEs are announced: at the connection that they come by.
#[derive(Clone, Debug)]
pub struct Bell {
    /// The connected queue pair; its RECVs complete at
    /// [`ServerOptions::request_cq`](crate::ServerOptions::request_cq).
    pub qp: QpId,
    /// How many RECVs there are. They have no buffers.
    pub recvs: usize,
    /// A region in the domain of `qp`, for what has no buffer lies somewhere too.
    pub memory: RegionId,
    /// Whether every WRITE is announced. Then no line is looked at before it is.
    pub always: bool,
}

/// A [`Chunk`] in service: what the server knows of each slot, and where it looks next.
pub(super) struct Attached {
    pub(super) chunk: Chunk,
    pub(super) slots: Box<[Slot]>,
    pub(super) mailbox: Option<OpenMailbox>,
    /// The slot whose request is expected next.
    pub(super) cursor: usize,
    /// How far ahead of the cursor the sweep looks next.
    sweep: usize,
    /// Polls since a request was last found.
    pub(super) idle: u32,
}

/// What the server remembers of one slot. The client cannot reach it.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// The control word last judged; the slot is quiet while it stays.
    seen: Control,
    /// The next new request.
    next: Stamp,
    pub(super) last: Last,
    /// Words 0 and 1 of the last reply, where `last` says so.
    pub(super) reply: [u64; 2],
}

/// How to answer a retry of a slot's last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// There was none.
    None,
    /// It was a read: run it again.
    Rerun,
    /// It waits in this pass's batch; its reply is on the way.
    Pending,
    /// So many words of reply are remembered. What a GAT has read is not: its retries read again.
    Words(u8),
}

/// What a control word means to its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing has changed.
    Quiet,
    /// The next request.
    New,
    /// The last request again.
    Retry,
    /// Of another lease.
    StaleEpoch,
    /// Neither the next nor the last.
    OutOfWindow,
}

impl Attached {
    /// Whether its lines are looked at without being told to.
    pub(super) fn is_polled(&self) -> bool {
        let always = self.chunk.bell.as_ref().is_some_and(|bell| bell.always);
        self.chunk.mailbox.is_none() && !always
    }

    /// Whether completions tell of its requests.
    pub(super) fn is_announced(&self) -> bool {
        self.chunk.mailbox.is_some() || self.chunk.bell.is_some()
    }

    pub(super) fn new(chunk: Chunk) -> Self {
        let slots = (0..chunk.window.slots()).map(|slot| Slot {
            seen: Control::default(),
            next: Stamp::new(chunk.epoch, Sequence::default()).plus(slot),
            last: Last::None,
            reply: [0; 2],
        });
        Self {
            slots: slots.collect(),
            mailbox: None,
            chunk,
            cursor: 0,
            sweep: 1,
            idle: 0,
        }
    }

    /// The control word of `slot`; what was written before it can be read after.
    #[inline]
    fn control(&self, slot: usize) -> Control {
        let word = slot * LINE_WORDS + CONTROL_WORD;
        Control(self.chunk.lines.load_acquire(word))
    }

    /// Loads and judges the control word of `slot`. Each is judged once, whatever comes of it.
    #[inline]
    pub(super) fn look(&mut self, slot: usize) -> (Control, Verdict) {
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
            Verdict::Retry
        } else {
            Verdict::OutOfWindow
        };
        (control, verdict)
    }

    /// Asks for the line that the cursor will reach in `ahead` steps.
    #[inline]
    pub(super) fn prefetch(&self, ahead: usize) {
        let slot = (self.cursor + ahead) & (self.slots.len() - 1);
        self.chunk.lines.prefetch(slot * LINE_WORDS);
    }

    /// The line of `slot`, copied once, under the control word that was judged.
    #[inline]
    pub(super) fn copy_line(&self, slot: usize, control: Control) -> Line {
        Line::copied(&self.chunk.lines, slot * LINE_WORDS, control)
    }

    /// Copies the overflowing body of `slot` into `out`.
    pub(super) fn copy_overflow(&self, slot: usize, out: &mut [u8]) {
        self.chunk.overflow.read_bytes(slot * OVERFLOW_BYTES, out);
    }

    /// The slot's next request was taken; `last` says how to answer its retries.
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

    /// The slot the sweep looks at now: nearest behind the cursor first, then ever further.
    pub(super) fn sweep_slot(&mut self) -> usize {
        let slot = (self.cursor + self.sweep) & (self.slots.len() - 1);
        self.sweep += 1;
        if self.sweep >= self.slots.len() {
            self.sweep = 1;
        }
        slot
    }

    /// A new request overtook the one at the cursor: the cursor follows it, and leaves what is
    /// missing to the sweep. A late arrival, more than half a window back, moves nothing.
    pub(super) fn overtaken_by(&mut self, slot: usize) {
        let mask = self.slots.len() - 1;
        if slot.wrapping_sub(self.cursor) & mask <= mask / 2 {
            self.cursor = slot;
            self.step();
        }
    }

    /// Whether `slot` holds a word not judged yet.
    pub(super) fn is_news(&self, slot: usize) -> bool {
        self.control(slot) != self.slots[slot].seen
    }

    /// Whether any slot that is polled holds a word not judged yet.
    pub(super) fn has_news(&self) -> bool {
        self.is_polled() && (0..self.slots.len()).any(|slot| self.is_news(slot))
    }
}
