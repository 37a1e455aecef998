use std::ops::Range;

use herdwick_memcache::Keys;
use herdwick_mica::Clock;

use super::{
    protocol::{Encoder, OUTPUT_BYTES},
    run::{Cursor, Point, Progress},
};
use crate::{
    counters::Snapshot,
    dump::Dump,
    forward::{ForwardBatch, Order},
    prefixes::Prefixes,
};

/// A round of one connection that other workers take part in: its replies, until the last is in.
pub(crate) struct Gather {
    /// Replies, or workers, still to come.
    pub(crate) outstanding: usize,
    pub(crate) purpose: Purpose,
    /// Large values were asked for.
    pub(crate) large: bool,
}

impl Gather {
    pub(crate) fn new(outstanding: usize, purpose: Purpose) -> Self {
        Self {
            outstanding,
            purpose,
            large: true,
        }
    }

    /// The replies to a run.
    pub(crate) fn of_replies(outstanding: usize, replies: Box<Replies>, large: bool) -> Self {
        Self {
            outstanding,
            purpose: Purpose::Replies(replies),
            large,
        }
    }

    /// Bytes that the replies take.
    pub(crate) fn memory(&self) -> usize {
        match &self.purpose {
            Purpose::Replies(replies) => replies.memory(),
            _ => 0,
        }
    }
}

/// What is being gathered.
pub(crate) enum Purpose {
    /// The replies to a run.
    Replies(Box<Replies>),
    /// Every worker's consent.
    Consent { encoder: Encoder },
    /// A step of a dump: where it has come, and what it shows.
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
    /// Takes what a worker has answered to an order.
    pub(crate) fn take(&mut self, batch: &mut ForwardBatch) {
        match self {
            Self::Count { parts, .. } => parts.extend(batch.snapshot.take().map(|part| *part)),
            Self::Dump { dump, text } => {
                if let Order::Dump(stepped) = batch.order {
                    *dump = stepped;
                }
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

/// Which statistics were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    General,
    Items,
    Slabs,
    /// Each worker by itself.
    Workers,
    /// The keys asked for most.
    HotKeys,
    /// Not asked for: to be forgotten.
    Reset,
}

impl Topic {
    /// The topic that the arguments of `stats` name, if all workers have to say something on it.
    pub(crate) fn of(mut words: Keys<'_>) -> Option<Self> {
        match words.next() {
            None => Some(Self::General),
            Some(b"items") => Some(Self::Items),
            Some(b"slabs") => Some(Self::Slabs),
            Some(b"hotkeys") => Some(Self::HotKeys),
            Some(b"workers") => Some(Self::Workers),
            // memcached takes the beginning of the word for it.
            Some(word) if b"reset".starts_with(word) => Some(Self::Reset),
            Some(_) => None,
        }
    }
}

/// Replies in any order of arrival, to be said in the order of their requests.
#[derive(Default)]
pub(crate) struct Replies {
    slots: Vec<Slot>,
    text: Vec<u8>,
    points: Vec<Point>,
    /// How far the connection has come once all are said.
    after: Option<Progress>,
}

#[derive(Clone)]
enum Slot {
    Deferred {
        /// For being large.
        large: bool,
    },
    Said(Range<usize>),
}

impl Replies {
    /// Expects the replies to the requests at `points`.
    pub(crate) fn expect(&mut self, points: &[Point], after: Progress) {
        self.slots.clear();
        self.slots
            .resize(points.len(), Slot::Deferred { large: false });
        self.text.clear();
        self.points.clear();
        self.points.extend_from_slice(points);
        self.after = Some(after);
    }

    /// Takes the reply to request `slot`.
    pub(crate) fn put(&mut self, slot: usize, text: &[u8]) {
        let from = self.text.len();
        self.text.extend_from_slice(text);
        self.place(slot, from..self.text.len());
    }

    /// Takes a whole text, if there is none yet; [`place`](Self::place) says what it holds.
    pub(crate) fn adopt(&mut self, text: &mut Vec<u8>) -> bool {
        let empty = self.text.is_empty();
        if empty {
            std::mem::swap(&mut self.text, text);
        }
        empty
    }

    /// The reply to request `slot` is in this part of the text.
    pub(crate) fn place(&mut self, slot: usize, range: Range<usize>) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Slot::Said(range);
        }
    }

    /// Request `slot` is to be read again; `large`: when there is room for a large value.
    pub(crate) fn defer(&mut self, slot: usize, large: bool) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Slot::Deferred { large };
        }
    }

    /// Says the replies in order, up to the first deferred one, whose request has to be read
    /// again. Gives back how far the connection has come, of the `input` it stood at.
    pub(crate) fn say(&mut self, out: &mut Vec<u8>, input: &[u8]) -> Progress {
        if out.is_empty() && self.is_in_order() {
            std::mem::swap(out, &mut self.text);
            self.slots.clear();
            return self.finished();
        }
        for (at, (slot, point)) in self.slots.iter().zip(&self.points).enumerate() {
            match slot {
                Slot::Said(range) => out.extend_from_slice(&self.text[range.clone()]),
                Slot::Deferred { .. } => {
                    let back = Progress::to(Cursor::back_to(*point, input));
                    self.hold(at);
                    return back;
                }
            }
        }
        self.slots.clear();
        self.finished()
    }

    /// Keeps the replies from slot `from` on: their requests have been executed, which some must
    /// not be twice.
    fn hold(&mut self, from: usize) {
        self.slots.drain(..from);
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

    /// Whether there are replies behind a deferred one.
    pub(crate) fn holds(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Said(_)))
    }

    /// Bytes that they take.
    pub(crate) fn memory(&self) -> usize {
        self.text.capacity()
    }

    /// Whether it takes room for a large value to go on.
    pub(crate) fn wants_room(&self) -> bool {
        matches!(self.slots.first(), Some(Slot::Deferred { large: true }))
    }

    /// How many replies are expected.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the reply to request `slot` is not in.
    pub(crate) fn lacks(&self, slot: usize) -> bool {
        matches!(self.slots.get(slot), Some(Slot::Deferred { .. }))
    }

    /// The requests have been read again, at `points`.
    pub(crate) fn go_on(&mut self, points: &[Point], after: Progress) {
        self.slots.truncate(points.len());
        self.points.clear();
        self.points.extend_from_slice(points);
        self.after = Some(after);
    }

    /// Whether the text is the replies, all of them, in order: one worker has given them all.
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

    fn finished(&self) -> Progress {
        self.after.unwrap_or_else(|| Progress::past(0))
    }

    /// Gives back what large values have made it grow to.
    pub(crate) fn shrink(&mut self) {
        self.text.clear();
        self.text.shrink_to(OUTPUT_BYTES);
    }
}
