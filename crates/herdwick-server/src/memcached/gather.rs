//! Collection of the replies of several workers for one connection: in any order of arrival, sent
//! in the order of the requests.

use std::ops::Range;

use herdwick_memcache::{Answer, Keys};
use herdwick_request::{Clock, Request};

use super::{buffer::surplus, owners::Owners, run::Run};
use crate::{
    runtime::reply_encoding::{Encoder, OUTPUT_BYTES},
    runtime::{
        dump::Dump,
        forward::{ForwardBatch, WorkerCommand},
        owned_requests::OwnedRequests,
    },
    telemetry::{prefixes::Prefixes, snapshot::Snapshot},
};

/// A round of one connection in which other workers take part, until the last reply has arrived.
pub(crate) struct Gather {
    /// Outstanding replies of requests or of workers.
    pub(crate) outstanding: usize,
    pub(crate) purpose: Purpose,
    /// Large values may be among the replies.
    pub(crate) large: bool,
    /// Nothing was executed, because no forwarded batch was free.
    pub(crate) lacks_batch: bool,
}

impl Gather {
    pub(crate) fn new(outstanding: usize, purpose: Purpose) -> Self {
        Self {
            outstanding,
            purpose,
            large: true,
            lacks_batch: false,
        }
    }

    /// Creates the gather of a run's replies.
    pub(crate) fn of_replies(
        outstanding: usize,
        replies: Box<OrderedReplies>,
        large: bool,
    ) -> Self {
        Self {
            outstanding,
            purpose: Purpose::Replies(replies),
            large,
            lacks_batch: false,
        }
    }

    /// Returns the bytes of memory that the replies take.
    pub(crate) fn memory(&self) -> usize {
        match &self.purpose {
            Purpose::Replies(replies) => replies.memory(),
            _ => 0,
        }
    }
}

/// The kind of replies that are gathered.
pub(crate) enum Purpose {
    /// The replies to a run.
    Replies(Box<OrderedReplies>),
    /// Every worker's acknowledgement.
    Consent { encoder: Encoder },
    /// A step of a dump: its position, and its output.
    Dump { dump: Dump, text: Vec<u8> },
    /// Every worker's counts by prefix.
    Prefixes {
        encoder: Encoder,
        sum: Box<Prefixes>,
    },
    /// Every worker's counters.
    Count {
        topic: Topic,
        encoder: Encoder,
        clock: Clock,
        parts: Vec<Snapshot>,
    },
}

impl Purpose {
    /// Adds a worker's reply to a command.
    pub(crate) fn take(&mut self, batch: &mut ForwardBatch) {
        match self {
            Self::Count { parts, .. } => parts.extend(batch.snapshot.take().map(|part| *part)),
            Self::Dump { dump, text } => {
                if let WorkerCommand::Dump(stepped) = batch.command {
                    *dump = stepped;
                }
                // The buffer goes back with the batch, which is cleared by `recycle`.
                std::mem::swap(text, batch.text_mut());
            }
            Self::Prefixes { sum, .. } => {
                if let Some(part) = &batch.prefixes {
                    sum.add(part);
                }
            }
            Self::Replies(_) | Self::Consent { .. } => {}
        }
    }
}

/// The requested statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    General,
    Items,
    Slabs,
    /// Each worker separately.
    Workers,
    /// How long requests took.
    Latency,
    /// The most frequently requested keys.
    HotKeys,
    /// No statistics: `stats reset`.
    Reset,
}

impl Topic {
    /// Returns the topic that the arguments of `stats` name, if it needs every worker's counters.
    pub(crate) fn of(mut words: Keys<'_>) -> Option<Self> {
        match words.next() {
            None => Some(Self::General),
            Some(b"items") => Some(Self::Items),
            Some(b"slabs") => Some(Self::Slabs),
            Some(b"hotkeys") => Some(Self::HotKeys),
            Some(b"workers") => Some(Self::Workers),
            Some(b"latency") => Some(Self::Latency),
            // As in memcached, any prefix of the word stands for it.
            Some(word) if b"reset".starts_with(word) => Some(Self::Reset),
            Some(_) => None,
        }
    }
}

/// Replies that arrive in any order and are sent in the order of their requests; and the requests that
/// have been put off, which are decoded already.
#[derive(Default)]
pub(crate) struct OrderedReplies {
    slots: Vec<Slot>,
    text: Vec<u8>,
    /// The requests that were put off. Each is in its slot.
    put_off: OwnedRequests,
}

#[derive(Clone)]
enum Slot {
    /// No reply has arrived yet.
    Outstanding,
    /// The request is to be executed again, or for the first time.
    PutOff {
        /// Its index among the requests that were put off.
        index: usize,
        /// When there is room for a large value.
        large: bool,
    },
    Said(Range<usize>),
}

impl OrderedReplies {
    /// Prepares for the replies to `count` requests.
    pub(crate) fn expect(&mut self, count: usize) {
        self.slots.clear();
        self.slots.resize(count, Slot::Outstanding);
        self.text.clear();
        // Memory of requests that were put off is not kept: most rounds put none off.
        self.put_off.clear(0);
    }

    /// Stores the reply to request `slot`.
    pub(crate) fn put(&mut self, slot: usize, text: &[u8]) {
        let from = self.text.len();
        self.text.extend_from_slice(text);
        self.place(slot, from..self.text.len());
    }

    /// Takes over a whole text by swapping, if there is no text yet; returns whether it did. The
    /// caller then assigns its parts with [`place`](Self::place).
    pub(crate) fn adopt(&mut self, text: &mut Vec<u8>) -> bool {
        let empty = self.text.is_empty();
        if empty {
            std::mem::swap(&mut self.text, text);
        }
        empty
    }

    /// Records that the reply to request `slot` is in this part of the text.
    pub(crate) fn place(&mut self, slot: usize, range: Range<usize>) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Slot::Said(range);
        }
    }

    /// Keeps request `slot`, which is to be executed later; if `large`, when there is room for a
    /// large value.
    #[cold]
    pub(crate) fn put_off(&mut self, slot: usize, large: bool, request: (Request<'_>, Answer<'_>)) {
        if let Some(slot) = self.slots.get_mut(slot) {
            let index = self.put_off.len();
            self.put_off.add(&request.0, &request.1);
            *slot = Slot::PutOff { index, large };
        }
    }

    /// Appends the replies in order to `out`, up to the first request that was put off. Returns
    /// whether there was one: then it keeps that request and all behind it.
    pub(crate) fn encode(&mut self, out: &mut Vec<u8>) -> bool {
        // One worker gave all replies in one text: the connection takes that over, and copies
        // nothing.
        if out.is_empty() && self.is_in_order() {
            std::mem::swap(out, &mut self.text);
            self.slots.clear();
            return false;
        }
        for (at, slot) in self.slots.iter().enumerate() {
            // A hole: what is behind it must not overtake it.
            let Slot::Said(range) = slot else {
                self.hold(at);
                return true;
            };
            out.extend_from_slice(&self.text[range.clone()]);
        }
        self.slots.clear();
        false
    }

    /// Keeps the slots from `from` on. Requests that have their replies have been executed, and some
    /// must not be executed twice.
    fn hold(&mut self, from: usize) {
        self.slots.drain(..from);
        // Anew: memory that large replies have taken is not kept.
        let mut text = Vec::new();
        for slot in &mut self.slots {
            if let Slot::Said(range) = slot {
                let start = text.len();
                text.extend_from_slice(&self.text[range.clone()]);
                *range = start..text.len();
            }
        }
        self.text = text;
    }

    /// Returns whether it keeps replies behind a request that was put off.
    pub(crate) fn holds(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Said(_)))
    }

    /// Returns the bytes of memory that they take.
    pub(crate) fn memory(&self) -> usize {
        self.text.capacity() + self.put_off.memory()
    }

    /// Returns whether the next step needs room for a large value.
    pub(crate) fn wants_room(&self) -> bool {
        matches!(self.slots.first(), Some(Slot::PutOff { large: true, .. }))
    }

    /// Returns whether request `slot` is to be executed in this round.
    pub(crate) fn is_outstanding(&self, slot: usize) -> bool {
        matches!(self.slots.get(slot), Some(Slot::Outstanding))
    }

    /// Takes out the requests that were put off, for [`restore`](Self::restore) to make a run of.
    pub(crate) fn take_put_off(&mut self) -> OwnedRequests {
        std::mem::take(&mut self.put_off)
    }

    /// Adds to the empty `run` a request for each slot: of the `requests` that were put off, which are
    /// outstanding now, or one that is not executed where there is a reply.
    pub(crate) fn restore<'a>(
        &mut self,
        requests: &'a OwnedRequests,
        run: &mut Run<'a>,
        owners: &Owners,
    ) {
        for slot in &mut self.slots {
            match *slot {
                Slot::PutOff { index, .. } => {
                    let (request, answer) = requests.get(index);
                    run.push(request, answer, owners);
                    *slot = Slot::Outstanding;
                }
                // In its place all the same: slots and requests have the same numbers.
                Slot::Said(_) | Slot::Outstanding => run.push_answered(),
            }
        }
    }

    /// Returns whether the text is exactly all replies in order, as when one worker gave them all.
    fn is_in_order(&self) -> bool {
        let mut end = 0;
        self.slots.iter().all(|slot| match slot {
            Slot::Said(range) if range.start == end => {
                end = range.end;
                true
            }
            _ => false,
        })
    }

    /// Frees the memory that large values and requests that were put off have made it take.
    fn shrink(&mut self) {
        self.text.clear();
        self.text.shrink_to(OUTPUT_BYTES);
        self.put_off = OwnedRequests::default();
    }
}

/// Maximum number of unused lists of replies that a worker keeps.
const SPARE: usize = 64;

/// Unused lists of replies, and the bytes of their texts.
pub(super) struct SpareReplies {
    #[expect(clippy::vec_box, reason = "a connection holds it by pointer")]
    lists: Vec<Box<OrderedReplies>>,
    bytes: usize,
    most: usize,
    /// The fewest lists that there were since some were last given back.
    least: usize,
}

impl SpareReplies {
    /// Creates the spare lists of a worker that keeps `most` bytes of text in them.
    pub(super) fn new(most: usize) -> Self {
        Self {
            lists: Vec::new(),
            bytes: 0,
            most,
            least: 0,
        }
    }

    /// Gives back part of the lists that have not been needed since the last call.
    pub(super) fn ease(&mut self) {
        let eased = self.lists.drain(..surplus(self.least));
        self.bytes -= eased.map(|list| list.memory()).sum::<usize>();
        self.least = self.lists.len();
    }

    pub(super) fn take(&mut self) -> Box<OrderedReplies> {
        let replies = self.lists.pop().unwrap_or_default();
        self.bytes -= replies.memory();
        self.least = self.least.min(self.lists.len());
        replies
    }

    /// Keeps the list; its text too, if there is room for it.
    pub(super) fn put(&mut self, mut replies: Box<OrderedReplies>) {
        if self.lists.len() == SPARE {
            return;
        }
        replies.shrink();
        if self.bytes + replies.memory() > self.most {
            replies.text = Vec::new();
        }
        self.bytes += replies.memory();
        self.lists.push(replies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_spare_lists_are_kept_up_to_a_number_of_bytes() {
        const MOST: usize = 200_000;
        let mut spare = SpareReplies::new(MOST);
        for n in 0..200 {
            let mut replies = Box::<OrderedReplies>::default();
            replies.text.reserve(n * 1_000);
            spare.put(replies);
        }
        let bytes: usize = spare.lists.iter().map(|list| list.memory()).sum();
        assert!((MOST / 2..=MOST).contains(&bytes), "{bytes}");
        for _ in 0..200 {
            spare.take();
        }
        assert_eq!((spare.bytes, spare.lists.len()), (0, 0));
        spare.put(Box::default());
        spare.ease();
        assert_eq!(spare.lists.len(), 1, "it was needed until now");
        spare.ease();
        assert_eq!((spare.bytes, spare.lists.len()), (0, 0));
    }
}
