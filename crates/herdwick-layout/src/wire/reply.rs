//! The head of a reply and its immediate: status, bits, epoch and client flags in one word.

use herdwick_request::{Item, Marks, Status};

use super::{BITS, Epoch, FLAGS, IMM_SEQUENCE, IMM_WORKER, REPLY_EPOCH, Sequence};

const BITS_SHIFT: u32 = BITS.shift_in(0);
const EPOCH_SHIFT: u32 = REPLY_EPOCH.shift_in(0);
/// Lowest of the bits of the status' byte that have the number of the secondary store.
const STORE_SHIFT: u32 = 4;
/// Bits of a status.
const STATUS_MASK: u64 = (1 << STORE_SHIFT) - 1;
/// Bit that allows reads of the secondary store.
const LEASED_BIT: u32 = 4;
/// Lower one of the two bits that count words.
const WORDS_BIT: u32 = 6;
const FLAGS_SHIFT: u32 = FLAGS.shift_in(0);
const WORKER_SHIFT: u32 = IMM_WORKER.shift_in(0);
const _: () = assert!(IMM_SEQUENCE.shift_in(0) == 0);

/// How a request ended, as the reply encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReplyStatus {
    /// Done: a hit, or stored, deleted, touched.
    Done = 1,
    /// No such item.
    NotFound = 2,
    /// The condition of ADD, REPLACE, APPEND or PREPEND failed.
    NotStored = 3,
    /// The version did not match.
    Exists = 4,
    /// The item would exceed the largest size.
    TooLargeItem = 5,
    /// Arithmetic on a value that is not a number.
    NonNumeric = 6,
    /// The store has no memory that it may free.
    OutOfMemory = 7,
    /// The hash is not that of the key: nothing was done.
    BadKey = 8,
    /// The key belongs to another worker: nothing was done.
    WrongPartition = 9,
    /// The line is malformed: nothing was done.
    BadRequest = 10,
    /// The value does not fit a reply; the message carries version and length instead. Length 0: a
    /// GAT was executed, and the item that it read has changed before its retry.
    ReplyTooLarge = 11,
}

impl ReplyStatus {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 11] = [
        Self::Done,
        Self::NotFound,
        Self::NotStored,
        Self::Exists,
        Self::TooLargeItem,
        Self::NonNumeric,
        Self::OutOfMemory,
        Self::BadKey,
        Self::WrongPartition,
        Self::BadRequest,
        Self::ReplyTooLarge,
    ];

    /// Returns the status of `code`.
    #[inline]
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code == 0 || code as usize > Self::ALL.len() {
            return None;
        }
        Some(Self::ALL[code as usize - 1])
    }
}

impl From<Status> for ReplyStatus {
    #[inline]
    fn from(status: Status) -> Self {
        match status {
            Status::Done => Self::Done,
            Status::NotFound => Self::NotFound,
            Status::NotStored => Self::NotStored,
            Status::Exists => Self::Exists,
            Status::TooLarge => Self::TooLargeItem,
            Status::NonNumeric => Self::NonNumeric,
            Status::OutOfMemory => Self::OutOfMemory,
            Status::BadKey => Self::BadKey,
        }
    }
}

/// Word 0 of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyHead(pub u64);

impl ReplyHead {
    /// Makes a head without item.
    #[inline]
    #[must_use]
    pub const fn bare(status: ReplyStatus, epoch: Epoch) -> Self {
        Self(status as u64 | (epoch.get() as u64) << EPOCH_SHIFT)
    }

    /// Makes a head that shows `item`.
    #[inline]
    #[must_use]
    pub fn with(status: ReplyStatus, epoch: Epoch, item: &Item<'_>) -> Self {
        let bits =
            u64::from(item.won) << 1 | u64::from(item.stale) << 2 | u64::from(item.win_sent) << 3;
        let flags = u64::from(item.flags) << FLAGS_SHIFT;
        Self(Self::bare(status, epoch).0 | bits << BITS_SHIFT | flags)
    }

    /// Returns the same head with what it tells of the secondary store.
    #[inline]
    #[must_use]
    pub fn marked(self, marks: Marks) -> Self {
        let bits = u64::from(marks.replicated) | u64::from(marks.leased) << LEASED_BIT;
        // Four bits: the number is counted modulo 16.
        let store = u64::from(marks.store) << STORE_SHIFT & 0xf0;
        Self(self.0 | store | bits << BITS_SHIFT)
    }

    /// What it tells of the secondary store.
    #[inline]
    #[must_use]
    pub const fn marks(self) -> Marks {
        Marks {
            replicated: self.bit(0),
            leased: self.bit(LEASED_BIT),
            store: self.0 as u8 >> STORE_SHIFT,
        }
    }

    /// Returns the same head with another status.
    #[must_use]
    pub const fn restated(self, status: ReplyStatus) -> Self {
        Self(self.0 & !STATUS_MASK | status as u64)
    }

    /// How the request ended; `None` for an unknown code.
    #[inline]
    #[must_use]
    pub const fn status(self) -> Option<ReplyStatus> {
        ReplyStatus::new((self.0 & STATUS_MASK) as u8)
    }

    /// The request's epoch.
    #[inline]
    #[must_use]
    pub const fn epoch(self) -> u16 {
        (self.0 >> EPOCH_SHIFT) as u16
    }

    /// The item's client flags.
    #[inline]
    #[must_use]
    pub const fn flags(self) -> u32 {
        (self.0 >> FLAGS_SHIFT) as u32
    }

    /// Returns the same head, which declares that only the first `words` words of the message
    /// count: 1 to 3.
    #[inline]
    #[must_use]
    pub const fn padded(self, words: usize) -> Self {
        // 0 stands for all words, so three is the most.
        Self(self.0 | (words as u64 & 3) << (BITS_SHIFT + WORDS_BIT))
    }

    /// Number of words of the message that count, followed by padding; `None` if all of it counts.
    #[inline]
    #[must_use]
    pub const fn words(self) -> Option<usize> {
        match self.0 >> (BITS_SHIFT + WORDS_BIT) & 3 {
            0 => None,
            words => Some(words as usize),
        }
    }

    const fn bit(self, bit: u32) -> bool {
        self.0 >> (BITS_SHIFT + bit) & 1 == 1
    }

    /// Whether this reader is to recache the item.
    #[must_use]
    pub const fn won(self) -> bool {
        self.bit(1)
    }

    /// Whether the item is stale.
    #[must_use]
    pub const fn stale(self) -> bool {
        self.bit(2)
    }

    /// Whether another reader is to recache the item.
    #[must_use]
    pub const fn win_sent(self) -> bool {
        self.bit(3)
    }
}

/// The immediate of the reply that `worker` gives to request `sequence`.
#[inline]
#[must_use]
pub const fn imm(worker: u8, sequence: Sequence) -> u32 {
    (worker as u32) << WORKER_SHIFT | sequence.get()
}

/// The worker and the sequence of an immediate.
#[inline]
#[must_use]
pub const fn split_imm(imm: u32) -> (u8, Sequence) {
    ((imm >> WORKER_SHIFT) as u8, Sequence::new(imm))
}
