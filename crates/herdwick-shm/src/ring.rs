//! The message ring: from all queue pairs of one side to one queue pair of the other.
//!
//! Single producer, single consumer, because a port has one thread. A message takes one cell of 64
//! bytes: 56 of payload, then the control word, stored last, so that a consumer polls one word, and
//! a small message costs one cache line transfer. The payload of a longer message lies in the *long
//! lines* behind the cells instead, allocated in the same order; both sides compute their number
//! from its length alone. A control word carries the lap of its cell, so nothing is ever cleared.
//!
//! The consumer publishes its position in two words of its own control area, a quarter ring at a
//! time; the producer reads them only when it believes that the ring is full.
//!
//! Neither side trusts the other: a consumer bounds every length, a producer bounds the positions.
//!
//! Circular import with `layout` and the front page (`lib`): the sizes of messages are there;
//! the place of a ring has its shape, and a ring's control word has room for
//! the number of every sender.

use herdwick_mem::{LINE, WORD, Words};

use crate::{DATAGRAM_BYTES_MAX, MESSAGE_BYTES_MAX};

/// Bytes of payload that fit into a cell.
pub(crate) const CELL_PAYLOAD: usize = CONTROL * WORD;
/// Index of the control word in a cell.
const CONTROL: usize = 7;
/// Long lines of the longest datagram.
const DATAGRAM_LINES: usize = DATAGRAM_BYTES_MAX.div_ceil(LINE);
const CELL_WORDS: usize = LINE / WORD;
/// Word of a queue pair's line that counts cells taken; the next word counts long lines.
const CELLS_TAKEN: usize = 1;
const LONG_TAKEN: usize = 2;

/// Size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) cells_log2: u8,
    pub(crate) long_log2: u8,
}

/// Long bytes for each RECV in the ring of a connected queue pair, if all of them are more than one
/// message of the largest size.
const LONG_BYTES_PER_RECV: usize = 1024;
/// 4 cells: a smaller ring has no quarter.
const LOG2_MIN: u8 = 2;
/// 65,536 cells and as many long lines: 8 MiB.
const LOG2_MAX: u8 = 16;

impl Shape {
    /// No ring.
    pub(crate) const NONE: Self = Self {
        cells_log2: 0,
        long_log2: 0,
    };
    /// Most RECVs that the ring of a connected queue pair can be sized for.
    pub(crate) const RECVS_MAX: usize = room(LOG2_MAX);
    /// Most RECVs that a ring for datagrams can be sized for.
    pub(crate) const DATAGRAM_RECVS_MAX: usize = room(LOG2_MAX) / DATAGRAM_LINES;

    /// Returns the shape for datagrams of any length to `recvs` outstanding RECVs: a datagram that
    /// has a RECV never finds the ring full.
    pub(crate) fn for_datagrams(recvs: usize) -> Self {
        let recvs = recvs.min(Self::DATAGRAM_RECVS_MAX);
        Self {
            cells_log2: log2_with_room(recvs),
            long_log2: log2_with_room(recvs * DATAGRAM_LINES),
        }
    }

    /// Returns the shape for a connected queue pair with `recvs` outstanding RECVs.
    pub(crate) fn for_messages(recvs: usize) -> Self {
        let recvs = recvs.min(Self::RECVS_MAX);
        let long = MESSAGE_BYTES_MAX.max(recvs * LONG_BYTES_PER_RECV);
        Self {
            cells_log2: log2_with_room(recvs),
            long_log2: log2_with_room(long.div_ceil(LINE)),
        }
    }

    /// Whether a peer may choose this shape.
    pub(crate) fn is_sound(self) -> bool {
        let sizes = LOG2_MIN..=LOG2_MAX;
        sizes.contains(&self.cells_log2) && sizes.contains(&self.long_log2)
    }

    pub(crate) fn cells(self) -> usize {
        1 << self.cells_log2
    }

    pub(crate) fn long_lines(self) -> usize {
        1 << self.long_log2
    }

    pub(crate) fn bytes(self) -> usize {
        (self.cells() + self.long_lines()) * LINE
    }
}

/// Capacity of a ring of so many cells or lines that can be relied on: up to a quarter may be taken
/// without being published yet.
const fn room(log2: u8) -> usize {
    (1 << log2) / 4 * 3
}

fn log2_with_room(needed: usize) -> u8 {
    // The least one that is large enough: the memory is taken for good.
    let mut sizes = LOG2_MIN..LOG2_MAX;
    sizes.find(|log2| room(*log2) >= needed).unwrap_or(LOG2_MAX)
}

/// The last word of a cell, from its low end: immediate (32 bits), length (17), WRITTEN (1),
/// HAS_IMM (1), unused (1), sender (5), lap (7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control(u64);

const LEN_SHIFT: u32 = 32;
const WRITTEN: u64 = 1 << 49;
const HAS_IMM: u64 = 1 << 50;
const SENDER_SHIFT: u32 = 52;
const LAP_SHIFT: u32 = 57;
const _: () = assert!(crate::layout::SENDERS <= 1 << (LAP_SHIFT - SENDER_SHIFT));
const _: () = assert!(MESSAGE_BYTES_MAX < 1 << 17);

impl Control {
    #[inline]
    pub(crate) fn new(len: usize, imm: Option<u32>) -> Self {
        let imm = imm.map_or(0, |imm| u64::from(imm) | HAS_IMM);
        // The mask keeps a length that is too long out of the flags.
        Self((len as u64) << LEN_SHIFT & (WRITTEN - 1) | imm)
    }

    /// Marks the message as the announcement, by an immediate, of a WRITE of this length.
    pub(crate) fn written(self) -> Self {
        Self(self.0 | WRITTEN)
    }

    /// The part of a control word that is the index of a datagram's sender.
    pub(crate) fn stamp(sender: usize) -> Self {
        Self(((sender as u64) << SENDER_SHIFT) & (LAP - 1))
    }

    #[inline]
    pub(crate) fn stamped(self, stamp: Self) -> Self {
        Self(self.0 | stamp.0)
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.0 >> LEN_SHIFT) as usize & 0x1_ffff
    }

    /// Whether the whole payload is in the cell.
    #[inline]
    pub(crate) fn is_small(self) -> bool {
        // WRITTEN is the bit above the length: one comparison tests both.
        (self.0 >> LEN_SHIFT) as usize & 0x3_ffff <= CELL_PAYLOAD
    }

    #[inline]
    pub(crate) fn imm(self) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        (self.0 & HAS_IMM != 0).then_some(self.0 as u32)
    }

    #[inline]
    pub(crate) fn is_written(self) -> bool {
        self.0 & WRITTEN != 0
    }

    #[inline]
    pub(crate) fn sender(self) -> usize {
        (self.0 >> SENDER_SHIFT) as usize & 0x1f
    }

    /// Number of long lines of a message with this control word.
    #[inline]
    fn long_lines(self) -> u64 {
        long_lines(if self.is_written() { 0 } else { self.len() })
    }
}

#[inline]
fn long_lines(len: usize) -> u64 {
    if len <= CELL_PAYLOAD {
        0
    } else {
        len.div_ceil(LINE) as u64
    }
}

/// First word of long line `at`.
#[inline]
fn long_word(at: u64, shape: Shape) -> usize {
    (shape.cells() + (at as usize & (shape.long_lines() - 1))) * CELL_WORDS
}

/// Position of the next cell: its first word, and the lap of its control word. The first lap is 1,
/// because the lap of zeroed memory is 0.
#[derive(Clone, Copy, Debug)]
struct CellPosition {
    word: usize,
    lap: u64,
    end: usize,
}

const LAP: u64 = 1 << LAP_SHIFT;

impl CellPosition {
    fn start(shape: Shape) -> Self {
        Self {
            word: 0,
            lap: LAP,
            end: shape.cells() * CELL_WORDS,
        }
    }

    #[inline]
    fn advance(&mut self) {
        self.word += CELL_WORDS;
        if self.word == self.end {
            self.word = 0;
            self.lap = self.lap.wrapping_add(LAP);
        }
    }
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct RingProducer<W> {
    ring: W,
    next: CellPosition,
    /// Cells known to be free.
    free: usize,
    /// The line of the receiving queue pair, which the peer writes.
    taken: W,
    shape: Shape,
    /// The position up to which `free` reaches: one ring beyond the last accepted counter.
    granted: u64,
    long_tail: u64,
    long_seen: u64,
    /// Whether the peer published an impossible position.
    pub(crate) liar: bool,
}

/// The ring has no room for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl<W: Words> RingProducer<W> {
    /// Makes the sending end. `ring` has [`Shape::bytes`] zeroed bytes; `taken` is a line.
    pub(crate) fn new(ring: W, taken: W, shape: Shape) -> Self {
        Self {
            ring,
            next: CellPosition::start(shape),
            free: shape.cells(),
            taken,
            shape,
            granted: shape.cells() as u64,
            long_tail: 0,
            long_seen: 0,
            liar: false,
        }
    }

    /// Sends a message whose payload, at most 7 words, fits into its cell.
    #[inline(always)]
    pub(crate) fn push_small(&mut self, control: Control, payload: &[u64]) -> Result<(), Full> {
        if self.free == 0 {
            self.reserve(1, 0)?;
        }
        self.publish(control, payload);
        Ok(())
    }

    /// Sends a message too long for a cell; `line` returns its payload 64 bytes at a time.
    pub(crate) fn push_long(
        &mut self,
        control: Control,
        mut line: impl FnMut(usize) -> [u64; CELL_WORDS],
    ) -> Result<(), Full> {
        // From the control word, as the receiver computes it: a payload of another length cannot
        // shift them apart.
        let lines = control.long_lines();
        self.reserve(1, lines)?;
        for n in 0..lines {
            // A long payload may wrap around the end of the long lines: each is placed for itself.
            let word = long_word(self.long_tail + n, self.shape);
            self.ring.copy_in(word, &line(n as usize));
        }
        // The receiver looks at these lines only once `publish` has announced the message.
        self.long_tail += lines;
        self.publish(control, &[]);
        Ok(())
    }

    /// Checks that this many cells and long lines are free.
    pub(crate) fn reserve(&mut self, cells: usize, lines: u64) -> Result<(), Full> {
        if !self.fits(cells, lines) {
            // The peer's line is loaded only now: each load of it is a cache miss.
            self.check();
        }
        if self.fits(cells, lines) {
            Ok(())
        } else {
            Err(Full)
        }
    }

    /// Number of messages sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.granted - self.free as u64
    }

    /// Number of messages that the receiver has taken, as far as its counter can be believed.
    pub(crate) fn received(&mut self) -> u64 {
        self.check();
        self.granted - self.shape.cells() as u64
    }

    /// Number of long lines of a message of `len` bytes.
    pub(crate) fn lines_for(len: usize) -> u64 {
        long_lines(len)
    }

    fn fits(&self, cells: usize, lines: u64) -> bool {
        cells <= self.free
            // `check` accepts no `long_seen` beyond `long_tail`.
            && self.long_tail - self.long_seen + lines <= self.shape.long_lines() as u64
    }

    /// Reads the consumer's position; accepts only what is possible.
    #[cold]
    fn check(&mut self) {
        // Pairs with the release in `RingConsumer::say`: the consumer has copied out what it counts.
        let head = self.taken.load_acquire(CELLS_TAKEN);
        let long = self.taken.load_acquire(LONG_TAKEN);
        let cells = self.shape.cells() as u64;
        let (tail, seen) = (self.sent(), self.granted - cells);
        // Never back, and never beyond what was sent: more would let the sender write over unread
        // cells.
        if (seen..=tail).contains(&head) && (self.long_seen..=self.long_tail).contains(&long) {
            self.free += (head - seen) as usize;
            self.granted = head + cells;
            self.long_seen = long;
        } else {
            // Nothing is granted: the ring stays full until the counter is possible again.
            self.liar = true;
        }
    }

    /// Fills the next cell, which is free.
    #[inline(always)]
    fn publish(&mut self, control: Control, payload: &[u64]) {
        // Pairs with the acquire in `RingConsumer::peek`.
        let control = control.0 | self.next.lap;
        self.ring.publish_line(self.next.word, payload, control);
        self.next.advance();
        self.free -= 1;
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct RingConsumer<W> {
    ring: W,
    next: CellPosition,
    head: u64,
    long_head: u64,
    /// The line of this queue pair, which only its owner writes.
    taken: W,
    shape: Shape,
    said: u64,
    long_said: u64,
}

impl<W: Words> RingConsumer<W> {
    /// Makes the receiving end. Arguments are as of [`RingProducer::new`].
    pub(crate) fn new(ring: W, taken: W, shape: Shape) -> Self {
        Self {
            ring,
            next: CellPosition::start(shape),
            head: 0,
            long_head: 0,
            taken,
            shape,
            said: 0,
            long_said: 0,
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the control word of the next message, once that message is complete.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Control> {
        // Pairs with the release in `RingProducer::publish`.
        let control = self.ring.load_acquire(self.next.word + CONTROL);
        // Seven bits are enough: an honest producer is never a lap ahead, since it waits for `taken`.
        // What a dishonest one stores is checked like any other message.
        ((control ^ self.next.lap) >> LAP_SHIFT == 0).then_some(Control(control))
    }

    /// Returns control word and payload of the next message, once it is complete, if it lies in its cell.
    #[inline]
    pub(crate) fn small(&self) -> Option<(Control, [u64; CONTROL])> {
        let lap = self.next.lap;
        // As in `peek`.
        let (payload, control) = self.ring.line_if(self.next.word, |control| {
            (control ^ lap) >> LAP_SHIFT == 0 && Control(control).is_small()
        })?;
        Some((Control(control), payload))
    }

    /// Returns 64 bytes of the next message's long payload.
    pub(crate) fn long_line(&self, n: usize) -> [u64; CELL_WORDS] {
        // The producer's lengths decide where this is; `long_word` takes it modulo the ring, so it is
        // never outside.
        let at = self.long_head.wrapping_add(n as u64);
        self.ring.copy_out(long_word(at, self.shape))
    }

    /// Steps past the next message, which lies in its cell.
    #[inline]
    pub(crate) fn advance_small(&mut self) {
        self.next.advance();
        self.head += 1;
    }

    /// Steps past the next message; its cell is the producer's again after [`RingConsumer::give_back`].
    #[inline]
    pub(crate) fn advance(&mut self, control: Control) {
        self.advance_small();
        if !control.is_small() {
            self.long_head += control.long_lines();
        }
    }

    /// Publishes the position once it is a quarter ring beyond the last one published.
    #[inline]
    pub(crate) fn give_back(&mut self) {
        // A quarter: the sender learns of room in time, and the line moves four times a lap only.
        let cells = self.head - self.said;
        let lines = self.long_head - self.long_said;
        if cells >= self.shape.cells() as u64 / 4 || lines >= self.shape.long_lines() as u64 / 4 {
            self.say();
        }
    }

    #[cold]
    fn say(&mut self) {
        // Pairs with the acquires in `RingProducer::check`, which reads the cells first: the long lines
        // that it then reads are at least those of these cells.
        self.taken.store_release(LONG_TAKEN, self.long_head);
        self.taken.store_release(CELLS_TAKEN, self.head);
        (self.said, self.long_said) = (self.head, self.long_head);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
