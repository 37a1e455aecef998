use herdwick_fabric::{INLINE_RECEIVE, Local, Payload, RegionId};
use herdwick_mem::Span;
use herdwick_mica::{Item, Reply, Status};
use zerocopy::IntoBytes;

use super::batch::{BATCH, Job};
use crate::{
    ServerCounters,
    wire::{Epoch, OpCode, REPLY_HEAD_BYTES, ReplyHead, ReplyStatus, VALUE},
};

/// Every reply but a value fits these: REPLY_TOO_LARGE is the longest.
pub const REPLY_BYTES_MIN: usize = REPLY_HEAD_BYTES + 8;

/// Words of a reply that travels inside a completion.
const SMALL_WORDS: usize = INLINE_RECEIVE / 8;
const _: () = assert!(REPLY_BYTES_MIN <= INLINE_RECEIVE);

/// Batches of large replies that may be on their way at once.
const LARGE_BATCHES: usize = 4;

/// The replies of one batch: small ones in private words, large ones in a registered ring.
pub(super) struct Replies {
    small: Box<[[u64; SMALL_WORDS]; BATCH]>,
    ring: Ring,
    places: [Place; BATCH],
}

#[derive(Clone, Copy)]
enum Place {
    Nowhere,
    /// So many bytes in `small`.
    Small(usize),
    /// In the ring.
    Large(Local),
}

/// Cells for replies that do not travel inside a completion. A cell is in use from its filling
/// until a completion says that it was sent.
struct Ring {
    memory: Span,
    region: RegionId,
    stride: usize,
    cells: u64,
    /// Cells ever filled.
    filled: u64,
    /// Cells ever sent.
    sent: u64,
}

impl Replies {
    /// Replies of at most `reply_bytes_max` bytes, the large ones in `memory` of `region`.
    pub(super) fn new(memory: Span, region: RegionId, reply_bytes_max: usize) -> Self {
        let stride = stride(reply_bytes_max);
        Self {
            small: Box::new([[0; SMALL_WORDS]; BATCH]),
            ring: Ring {
                cells: (memory.len() / stride) as u64,
                memory,
                region,
                stride,
                filled: 0,
                sent: 0,
            },
            places: [Place::Nowhere; BATCH],
        }
    }

    /// Bytes of memory that replies of `reply_bytes_max` need.
    pub(super) const fn bytes(reply_bytes_max: usize) -> usize {
        LARGE_BATCHES * BATCH * stride(reply_bytes_max)
    }

    #[inline]
    pub(super) fn forget(&mut self, i: usize) {
        self.places[i] = Place::Nowhere;
    }

    pub(super) fn repeat(&mut self, i: usize, words: &[u64]) {
        self.small[i][..words.len()].copy_from_slice(words);
        self.places[i] = Place::Small(words.len() * 8);
    }

    #[inline]
    pub(super) fn bare(&mut self, i: usize, status: ReplyStatus, epoch: Epoch) {
        self.small[i][0] = ReplyHead::bare(status, epoch).0;
        self.places[i] = Place::Small(8);
    }

    /// Words 0 and 1 as far as the reply has them. Of a small reply: reads are not remembered.
    #[inline]
    pub(super) fn head(&self, i: usize) -> &[u64] {
        let bytes = match self.places[i] {
            Place::Small(bytes) => bytes.min(REPLY_HEAD_BYTES),
            Place::Nowhere | Place::Large(_) => 0,
        };
        &self.small[i][..bytes / 8]
    }

    /// Writes the reply to job `i`, an `op`.
    #[inline]
    pub(super) fn write(
        &mut self,
        i: usize,
        job: &Job,
        op: Option<OpCode>,
        reply: &Reply<'_>,
        counters: &mut ServerCounters,
    ) {
        let status = ReplyStatus::from(reply.status);
        let is_number = matches!(op, Some(OpCode::Incr | OpCode::Decr));
        let number = (is_number && reply.status == Status::Done).then_some(reply.number);
        let head = match &reply.item {
            Some(item) => ReplyHead::with(status, job.epoch, item),
            None => ReplyHead::bare(status, job.epoch),
        };
        let Some(number) = number.or_else(|| reply.item.as_ref().map(|item| item.version)) else {
            return self.bare(i, status, job.epoch);
        };
        self.small[i][0] = head.0;
        self.small[i][1] = number;
        self.places[i] = Place::Small(REPLY_HEAD_BYTES);
        if let (true, Some(item)) = (op.is_some_and(OpCode::is_read), &reply.item) {
            self.write_value(i, job, item, counters);
        }
    }

    /// Adds the value to a reply whose head is written.
    #[inline]
    fn write_value(&mut self, i: usize, job: &Job, item: &Item<'_>, counters: &mut ServerCounters) {
        let small = &mut self.small[i];
        let len = REPLY_HEAD_BYTES + item.value.len();
        self.places[i] = if len <= INLINE_RECEIVE {
            copy_value(&mut small[VALUE.word()..], item.value);
            Place::Small(len)
        } else if len <= job.reply_bytes_max {
            let place = self.ring.fill([small[0], small[1]], item.value);
            counters.replies_held += u64::from(place.is_none());
            place.map_or(Place::Nowhere, Place::Large)
        } else {
            counters.replies_too_large += 1;
            small[0] = ReplyHead::with(ReplyStatus::ReplyTooLarge, job.epoch, item).0;
            small[VALUE.word()] = item.value.len() as u64;
            Place::Small(REPLY_BYTES_MIN)
        };
    }

    /// What the SEND of reply `i` carries; `None` if there is no reply.
    #[inline]
    pub(super) fn payload(&self, i: usize) -> Option<Payload<'_>> {
        let small = &self.small[i];
        match self.places[i] {
            Place::Nowhere => None,
            Place::Large(local) => Some(Payload::Region(local)),
            Place::Small(len) if len.is_multiple_of(8) => Some(Payload::Words(&small[..len / 8])),
            Place::Small(len) => Some(Payload::Inline(&small.as_bytes()[..len])),
        }
    }

    /// Cells filled so far: the `wr_id` of a signaled reply, whose completion
    /// [`Replies::sent`] is told of.
    #[inline]
    pub(super) fn filled(&self) -> u64 {
        self.ring.filled
    }

    /// Whether a completion is needed to free a cell.
    #[inline]
    pub(super) fn holds_cells(&self) -> bool {
        self.ring.filled != self.ring.sent
    }

    /// The first `cells` ever filled are free again.
    #[inline]
    pub(super) fn sent(&mut self, cells: u64) {
        self.ring.sent = cells;
    }
}

const fn stride(reply_bytes_max: usize) -> usize {
    reply_bytes_max.next_multiple_of(8)
}

impl Ring {
    fn fill(&mut self, head: [u64; 2], value: &[u8]) -> Option<Local> {
        if self.filled - self.sent >= self.cells {
            return None;
        }
        let offset = (self.filled % self.cells) as usize * self.stride;
        self.filled += 1;
        self.memory.write_words(offset / 8, &head);
        self.memory.write_bytes(offset + REPLY_HEAD_BYTES, value);
        Some(Local {
            region: self.region,
            offset,
            len: REPLY_HEAD_BYTES + value.len(),
        })
    }
}

/// Copies `value` into `out` by whole words: for these few bytes cheaper than a call to `memcpy`.
#[inline]
fn copy_value(out: &mut [u64], value: &[u8]) {
    let (words, rest) = value.as_chunks::<8>();
    for (to, from) in out.iter_mut().zip(words) {
        *to = u64::from_le_bytes(*from);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        out[words.len()] = u64::from_le_bytes(last);
    }
}
