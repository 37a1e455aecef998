//! Encoding of a batch's replies, and what each slot remembers of them for retries. Large replies
//! go through a registered ring whose cells are reused only once sent.

use herdwick_fabric::{INLINE_RECEIVE, Local, Payload, RegionId};
use herdwick_mem::Span;
use herdwick_request::{Item, Reply, Status};
use zerocopy::IntoBytes;

use super::{
    chunk::Last,
    client_table::ClientTable,
    job::{BATCH, Instead, Job, Work},
    options::ServerOptions,
};
use crate::{
    ServerCounters,
    wire::{Control, Line, OpCode, REPLY_HEAD_BYTES, ReplyHead, ReplyStatus, VALUE},
};

/// Least limit of a reply. Every reply without a value fits; REPLY_TOO_LARGE is the longest.
pub const REPLY_BYTES_MIN: usize = REPLY_HEAD_BYTES + 8;
/// Bytes that the RECVs of every client hold at least. A reply of up to so many bytes is sent
/// without a look at the client's limit.
pub const RECV_BYTES_MIN: usize = INLINE_RECEIVE;

/// Words of a reply that fits inside a completion.
const SMALL_WORDS: usize = INLINE_RECEIVE / 8;
const _: () = assert!(REPLY_BYTES_MIN <= INLINE_RECEIVE);

/// Batches of large replies that may be in flight at once.
const LARGE_BATCHES: usize = 4;

/// The replies of one batch: small ones in private words, large ones in a registered ring.
pub(super) struct Replies {
    small: Box<[[u64; SMALL_WORDS]; BATCH]>,
    ring: ReplyRing,
    /// Bytes of each reply; 0: no reply.
    lens: [u32; BATCH],
    /// Most inline bytes of a work request, at most those of `small`: longer replies use the ring.
    small_max: usize,
    /// Offset in the ring of each longer reply.
    offsets: [usize; BATCH],
    pads: bool,
    /// Bytes of the last reply with a value that fits `small`: the length that others are padded
    /// to.
    usual: u32,
}

/// Cells for replies that do not fit inside a completion. A cell is in use from when it is filled
/// until a completion reports that its reply was sent.
struct ReplyRing {
    memory: Span,
    region: RegionId,
    stride: usize,
    cells: u64,
    /// Number of cells ever filled.
    filled: u64,
    /// Number of cells ever sent.
    sent: u64,
}

impl Replies {
    /// Makes the replies for `options`; the large ones lie in `memory`, that of its region.
    pub(super) fn new(memory: Span, options: &ServerOptions) -> Self {
        let (region, stride) = (options.reply_region, stride(options.reply_bytes_max));
        Self {
            small: Box::new([[0; SMALL_WORDS]; BATCH]),
            ring: ReplyRing {
                cells: (memory.len() / stride) as u64,
                memory,
                region,
                stride,
                filled: 0,
                sent: 0,
            },
            lens: [0; BATCH],
            small_max: options
                .inline_bytes_max
                .min(options.reply_bytes_max)
                .min(INLINE_RECEIVE),
            offsets: [0; BATCH],
            pads: options.gso,
            usual: 0,
        }
    }

    /// Bytes of memory that replies of at most `reply_bytes_max` bytes need.
    pub(super) const fn bytes(reply_bytes_max: usize) -> usize {
        LARGE_BATCHES * BATCH * stride(reply_bytes_max)
    }

    #[inline]
    pub(super) fn forget(&mut self, i: usize) {
        self.lens[i] = 0;
    }

    /// Replies to job `i` without execution.
    #[cold]
    pub(super) fn instead(
        &mut self,
        i: usize,
        job: &Job,
        line: &Line,
        instead: Instead,
        clients: &mut ClientTable,
        counters: &mut ServerCounters,
    ) {
        let mut words = 1;
        let status = match instead {
            Instead::Refuse(status) => status,
            Instead::Stag(stag) => {
                (self.small[i][1], words) = (stag.into(), 2);
                ReplyStatus::Done
            }
            Instead::Repeat(words) => {
                self.small[i][..2].copy_from_slice(&clients.slot(job).reply);
                self.lens[i] = u32::from(words) * 8;
                return;
            }
            Instead::Bad(bad) => {
                counters.count_bad(bad);
                ReplyStatus::BadRequest
            }
        };
        self.small[i][0] = ReplyHead::bare(status, job.epoch).0;
        self.lens[i] = words * 8;
        // Remembered although it was not executed: a delayed line of the same request must not be
        // executed later, for instance after a CANCEL.
        if !line.control().is_read() && !matches!(job.work, Work::Reread { .. }) {
            self.remember(i, job, clients);
        }
    }

    /// Writes the reply to job `i`, and remembers it if the request must not run twice.
    #[inline]
    pub(super) fn write(
        &mut self,
        i: usize,
        job: &Job,
        control: Control,
        reply: &Reply<'_>,
        clients: &mut ClientTable,
        counters: &mut ServerCounters,
    ) {
        let small = &mut self.small[i];
        let status = ReplyStatus::from(reply.status);
        self.lens[i] = match &reply.item {
            Some(item) => {
                small[0] = ReplyHead::with(status, job.epoch, item)
                    .marked(reply.marks)
                    .0;
                small[1] = item.version;
                REPLY_HEAD_BYTES as u32
            }
            None => {
                small[0] = ReplyHead::bare(status, job.epoch).marked(reply.marks).0;
                8
            }
        };
        if control.is_read() {
            match &reply.item {
                Some(item) => self.write_value(i, job, item, counters),
                None => self.pad(i),
            }
            return;
        }
        if control.is(OpCode::Gat) {
            return self.write_touched(i, job, reply, clients, counters);
        }
        if control.is_arith() && reply.status == Status::Done {
            small[1] = reply.number;
            self.lens[i] = REPLY_HEAD_BYTES as u32;
        }
        // Before it is padded: what is remembered is as long as the reply was without that.
        self.remember(i, job, clients);
        self.pad(i);
    }

    /// Completes the reply to a GAT, whose head is written. Its status and version are remembered;
    /// its value is read again for each retry, as long as the item is unchanged.
    #[cold]
    fn write_touched(
        &mut self,
        i: usize,
        job: &Job,
        reply: &Reply<'_>,
        clients: &mut ClientTable,
        counters: &mut ServerCounters,
    ) {
        if !matches!(job.work, Work::Reread { .. }) {
            self.remember(i, job, clients);
            return match &reply.item {
                Some(item) => self.write_value(i, job, item, counters),
                None => self.pad(i),
            };
        }
        let [head, version] = clients.slot(job).reply;
        match &reply.item {
            Some(item) if item.version == version => self.write_value(i, job, item, counters),
            _ => {
                let head = ReplyHead(head).restated(ReplyStatus::ReplyTooLarge);
                self.small[i][..3].copy_from_slice(&[head.0, version, 0]);
                self.lens[i] = REPLY_BYTES_MIN as u32;
            }
        }
    }

    /// Pads a reply without value to the length of those with one, where GSO needs equal lengths.
    #[inline]
    fn pad(&mut self, i: usize) {
        let len = self.lens[i];
        // `usual` is 0 until a reply had a value.
        if !self.pads || len >= self.usual {
            return;
        }
        let small = &mut self.small[i];
        let words = len as usize / 8;
        small[words..].fill(0);
        small[0] = ReplyHead(small[0]).padded(words).0;
        self.lens[i] = self.usual;
    }

    /// Appends the value to a reply whose head is written.
    #[inline]
    fn write_value(&mut self, i: usize, job: &Job, item: &Item<'_>, counters: &mut ServerCounters) {
        let small = &mut self.small[i];
        let len = REPLY_HEAD_BYTES + item.value.len();
        if len <= self.small_max {
            if let Some(room) = small.last_chunk_mut() {
                copy_value(room, item.value);
            }
            self.lens[i] = len as u32;
            self.usual = len as u32;
        } else if len <= job.reply_bytes_max as usize {
            let place = self.ring.fill([small[0], small[1]], item.value);
            counters.replies_held += u64::from(place.is_none());
            self.offsets[i] = place.unwrap_or_default();
            self.lens[i] = place.map_or(0, |_| len as u32);
        } else {
            counters.replies_too_large += 1;
            small[0] = ReplyHead::with(ReplyStatus::ReplyTooLarge, job.epoch, item).0;
            small[VALUE.word()] = item.value.len() as u64;
            self.lens[i] = REPLY_BYTES_MIN as u32;
        }
    }

    /// Remembers the reply to a request that must not run twice: one or two words.
    fn remember(&self, i: usize, job: &Job, clients: &mut ClientTable) {
        let slot = clients.slot(job);
        slot.reply.copy_from_slice(&self.small[i][..2]);
        slot.last = Last::Words((self.lens[i] / 8) as u8);
    }

    /// Returns the payload of reply `i`; `None` if there is no reply.
    #[inline]
    pub(super) fn payload(&self, i: usize) -> Option<Payload<'_>> {
        let len = self.lens[i] as usize;
        if len > self.small_max {
            return Some(Payload::Region(Local {
                region: self.ring.region,
                offset: self.offsets[i],
                len,
            }));
        }
        let small = &self.small[i];
        match len {
            0 => None,
            _ if len.is_multiple_of(8) => Some(Payload::Words(&small[..len / 8])),
            _ => Some(Payload::Inline(&small.as_bytes()[..len])),
        }
    }

    /// Number of cells filled so far: the `wr_id` of a signaled reply, from whose completion
    /// [`Replies::sent`] is called.
    #[inline]
    pub(super) fn filled(&self) -> u64 {
        self.ring.filled
    }

    /// Whether a completion is needed to free a cell.
    #[inline]
    pub(super) fn holds_cells(&self) -> bool {
        self.ring.filled != self.ring.sent
    }

    /// Frees the first `cells` cells ever filled.
    #[inline]
    pub(super) fn sent(&mut self, cells: u64) {
        self.ring.sent = cells;
    }
}

const fn stride(reply_bytes_max: usize) -> usize {
    reply_bytes_max.next_multiple_of(8)
}

impl ReplyRing {
    /// Writes a reply to the next cell and returns its offset; `None` if every cell is in use.
    fn fill(&mut self, head: [u64; 2], value: &[u8]) -> Option<usize> {
        if self.filled - self.sent >= self.cells {
            return None;
        }
        let offset = (self.filled % self.cells) as usize * self.stride;
        self.filled += 1;
        self.memory.write_words(offset / 8, &head);
        self.memory.write_bytes(offset + REPLY_HEAD_BYTES, value);
        Some(offset)
    }
}

/// Copies `value`, which fits, into `out`. The compiler would turn a loop over so few words into a
/// call to `memcpy`, which costs more than the copy.
#[inline]
fn copy_value(out: &mut [u64; SMALL_WORDS - VALUE.word()], value: &[u8]) {
    let mut from = value;
    let mut at = 0;
    if let Some((words, rest)) = from.split_first_chunk::<32>() {
        let (words, _) = words.as_chunks::<8>();
        out[..4].copy_from_slice(&[0, 1, 2, 3].map(|i| u64::from_le_bytes(words[i])));
        (from, at) = (rest, 4);
    }
    if let Some((words, rest)) = from.split_first_chunk::<16>() {
        let (words, _) = words.as_chunks::<8>();
        out[at..at + 2].copy_from_slice(&[0, 1].map(|i| u64::from_le_bytes(words[i])));
        (from, at) = (rest, at + 2);
    }
    if let Some((word, rest)) = from.split_first_chunk::<8>() {
        out[at] = u64::from_le_bytes(*word);
        (from, at) = (rest, at + 1);
    }
    if !from.is_empty() {
        let mut last = [0; 8];
        herdwick_mem::copy(&mut last[..from.len()], from);
        out[at] = u64::from_le_bytes(last);
    }
}
