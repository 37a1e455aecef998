//! Posting of pending lines: WRITEs or SENDs, in postlists of bounded length.

use arrayvec::ArrayVec;
use herdwick_fabric::{AddressHandle, Local, Payload, Port, PostError, Remote, SendOp, SendWr};

use super::{
    ClientOptions, Destination,
    channel::{Channel, Slot, SlotState},
    nanos,
};
use crate::{
    Announce, ClientCounters,
    path::PAUSE,
    wire::{LINE_BYTES, OVERFLOW_BYTES, REQUEST_BYTES_MAX, imm},
};

/// Most work requests in one postlist.
// `Signals` counts on it: its bound on unsignaled work requests holds for postlists of 32.
const POSTLIST: usize = 32;

impl Channel {
    /// Posts the pending lines, postlist by postlist.
    pub(super) fn flush<P: Port>(
        &mut self,
        port: &mut P,
        now: u64,
        options: &ClientOptions,
        counters: &mut ClientCounters,
    ) {
        let limit = options.postlist_max.min(POSTLIST);
        let mut sent = 0;
        // Only the first line follows the pause: it wakes the worker for all.
        let mut wakes = now.saturating_sub(self.posted_at) >= nanos(PAUSE);
        self.posted_at = now;
        self.resumed = false;
        while sent < self.pending.len() {
            let (taken, posted) = self.post(port, sent, limit, wakes);
            wakes = false;
            self.stamp(sent..sent + taken, now, options, posted.is_ok());
            match posted {
                Ok(()) => sent += taken,
                Err(error) => {
                    let counter = match error {
                        PostError::Full => &mut counters.writes_held,
                        _ => &mut counters.posts_failed,
                    };
                    *counter += 1;
                    // The rest is posted by the next flush, in its order.
                    break;
                }
            }
        }
        self.pending.drain(..sent);
    }

    /// Whether a reply is overdue and the queue pair that receives replies has failed.
    pub(super) fn is_deaf<P: Port>(&mut self, port: &mut P) -> bool {
        let overdue = self.pending.first();
        overdue.is_some_and(|index| self.slots[usize::from(*index)].attempts > 0)
            && self.post_recvs(port).is_err()
    }

    /// Posts pending lines from the `first` on, in at most `limit` work requests. Returns how many
    /// lines were taken.
    #[inline]
    fn post<P: Port>(
        &mut self,
        port: &mut P,
        first: usize,
        limit: usize,
        mut wakes: bool,
    ) -> (usize, Result<(), PostError>) {
        let mut postlist: ArrayVec<SendWr<'_>, POSTLIST> = ArrayVec::new();
        let mut taken = 0;
        for index in &self.pending[first..] {
            let index = usize::from(*index);
            let slot = &self.slots[index];
            if postlist.len() + 1 + usize::from(slot.overflow_len > 0) > limit {
                break;
            }
            taken += 1;
            // A late reply has freed the slot since its retry became pending.
            if slot.state == SlotState::Free {
                continue;
            }
            match self.spec.to {
                Destination::Slots { lines, overflow } => {
                    // The body before its line: a queue pair's WRITEs are executed in order. If the
                    // body alone is lost, its checksum does not match.
                    if slot.overflow_len > 0 {
                        let at = overflow.offset((index * OVERFLOW_BYTES) as u64);
                        postlist.push(write(self.staged_body(index), at, None));
                    }
                    let at = lines.offset((index * LINE_BYTES) as u64);
                    let told = self.announces(slot, std::mem::take(&mut wakes));
                    let imm = told.then(|| imm(self.worker, slot.sequence));
                    // Two pushes: a payload that is either kind is made elsewhere first, and copied.
                    if self.lines_inline {
                        let payload = Payload::Words(self.lines[index].words());
                        postlist.push(write(payload, at, imm));
                    } else {
                        postlist.push(write(self.staged_line(index, 0), at, imm));
                    }
                }
                Destination::UdQueue(to) => postlist.push(send(self.datagram(index), to)),
            }
        }
        let count = postlist.len();
        // All of them were answered meanwhile.
        let Some(last) = postlist.last_mut() else {
            return (taken, Ok(()));
        };
        let signaled = self.signals.due(count);
        last.signaled = signaled;
        let posted = port.post_send(self.spec.requests, &postlist);
        drop(postlist);
        if posted.is_ok() {
            self.signals.posted(count, signaled);
        }
        (taken, posted)
    }

    /// The overflowing body of the slot at `index`, in the registered memory.
    fn staged_body(&self, index: usize) -> Payload<'_> {
        Payload::Region(Local {
            region: self.spec.stage,
            offset: index * REQUEST_BYTES_MAX + LINE_BYTES,
            len: self.slots[index].overflow_len.into(),
        })
    }

    /// Whether the line of `slot` carries an immediate; `wakes`: it is the first after a pause.
    #[inline]
    fn announces(&self, slot: &Slot, wakes: bool) -> bool {
        match self.spec.announce {
            Announce::Never => false,
            Announce::AfterPause => wakes || slot.attempts > 0,
            Announce::Always => true,
        }
    }

    /// The line of the slot at `index`, inline where it fits.
    #[inline]
    fn line(&self, index: usize) -> Payload<'_> {
        if self.lines_inline {
            return Payload::Words(self.lines[index].words());
        }
        self.staged_line(index, 0)
    }

    /// The line of the slot at `index`, followed by its overflow.
    #[inline]
    fn datagram(&self, index: usize) -> Payload<'_> {
        match self.slots[index].overflow_len {
            0 => self.line(index),
            overflow_len => self.staged_line(index, overflow_len.into()),
        }
    }

    /// Copies the line of the slot at `index` to the registered memory, in front of `behind` bytes.
    fn staged_line(&self, index: usize, behind: usize) -> Payload<'_> {
        let offset = index * REQUEST_BYTES_MAX;
        let words = self.lines[index].words();
        self.stage.write_words(offset / 8, words);
        Payload::Region(Local {
            region: self.spec.stage,
            offset,
            len: LINE_BYTES + behind,
        })
    }

    /// Sets the deadlines of pending entries that were posted or tried, and the retry times of
    /// those that were posted.
    #[inline]
    fn stamp(
        &mut self,
        entries: std::ops::Range<usize>,
        now: u64,
        options: &ClientOptions,
        posted: bool,
    ) {
        let deadline = now.saturating_add(nanos(options.deadline));
        let retry_at = now.saturating_add(nanos(options.retry_after));
        for index in &self.pending[entries] {
            let slot = &mut self.slots[usize::from(*index)];
            // A retry keeps the deadline of its request.
            if slot.state == SlotState::Queued {
                // One that was held back may have got its deadline there.
                slot.deadline = slot.deadline.min(deadline);
                if posted {
                    slot.state = SlotState::InFlight;
                    slot.retry_at = retry_at;
                }
            }
        }
    }
}

#[inline]
fn write(payload: Payload<'_>, to: Remote, imm: Option<u32>) -> SendWr<'_> {
    SendWr {
        // Never looked at: a completion counts for its queue pair.
        wr_id: 0,
        op: SendOp::Write { payload, to, imm },
        signaled: false,
        solicited: false,
        fence: false,
    }
}

#[inline]
fn send(payload: Payload<'_>, to: AddressHandle) -> SendWr<'_> {
    SendWr {
        wr_id: 0,
        op: SendOp::Send {
            payload,
            imm: None,
            to: Some(to),
        },
        signaled: false,
        solicited: false,
        fence: false,
    }
}
