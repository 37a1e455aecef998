//! The control word of a request line: operation, lengths, attempt, sequence and epoch in 64 bits,
//! so that one store publishes a request.

use super::{BODY_LEN, CONTROL_OFFSET, EPOCH, KEY_LEN, OPCODE, OVERFLOW, SEQUENCE};

const KEY_LEN_SHIFT: u32 = KEY_LEN.shift_in(CONTROL_OFFSET);
const BODY_LEN_SHIFT: u32 = BODY_LEN.shift_in(CONTROL_OFFSET);
const ATTEMPT_SHIFT: u32 = BODY_LEN_SHIFT + 6;
const STAMP_SHIFT: u32 = SEQUENCE.shift_in(CONTROL_OFFSET);
const EPOCH_SHIFT: u32 = EPOCH.shift_in(CONTROL_OFFSET);
const _: () = assert!(OPCODE.shift_in(CONTROL_OFFSET) == 0 && EPOCH_SHIFT == STAMP_SHIFT + 24);

/// Number of sequences before they wrap around.
pub const SEQUENCES: u32 = 1 << (8 * SEQUENCE.bytes);
/// Number of attempts that a control word distinguishes.
pub const ATTEMPTS: u8 = 4;

/// Number of a request: 24 bits, counted per slot in steps of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence(u32);

impl Sequence {
    /// The lower 24 bits of `number`.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & (SEQUENCES - 1))
    }

    /// The number, below [`SEQUENCES`].
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the sequence `steps` later.
    #[inline]
    #[must_use]
    pub const fn plus(self, steps: usize) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "counted modulo 2^24 anyway"
        )]
        Self::new(self.0.wrapping_add(steps as u32))
    }

    /// Returns the sequence `steps` earlier.
    #[inline]
    #[must_use]
    pub const fn minus(self, steps: usize) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "counted modulo 2^24 anyway"
        )]
        Self::new(self.0.wrapping_sub(steps as u32))
    }
}

/// Epoch of a lease: never 0, so that zeroed memory belongs to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(u16);

impl Epoch {
    /// Makes an epoch of any number but 0.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 {
            None
        } else {
            Some(Self(number))
        }
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Epoch and sequence: they decide whether a request is new, old or foreign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// The request `sequence` of lease `epoch`.
    #[inline]
    #[must_use]
    pub const fn new(epoch: Epoch, sequence: Sequence) -> Self {
        Self((epoch.0 as u64) << 24 | sequence.0 as u64)
    }

    /// Returns the stamp `steps` requests later in the same lease.
    #[inline]
    #[must_use]
    pub const fn plus(self, steps: usize) -> Self {
        // The epoch stays when the sequence wraps.
        Self(self.0 & !(SEQUENCES as u64 - 1) | self.sequence().plus(steps).0 as u64)
    }

    /// Its sequence.
    #[inline]
    #[must_use]
    pub const fn sequence(self) -> Sequence {
        Sequence::new(self.0 as u32)
    }

    /// Its epoch, which may be 0 because a peer wrote it.
    #[inline]
    #[must_use]
    pub const fn epoch(self) -> u16 {
        (self.0 >> 24) as u16
    }
}

/// The operations of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OpCode {
    /// Read.
    Get = 1,
    /// Read and set a new exptime.
    Gat = 2,
    /// Store.
    Set = 3,
    /// Store if absent.
    Add = 4,
    /// Store if present.
    Replace = 5,
    /// Append to the value.
    Append = 6,
    /// Prepend to the value.
    Prepend = 7,
    /// Remove.
    Delete = 8,
    /// Add to a number.
    Incr = 9,
    /// Subtract from a number.
    Decr = 10,
    /// Free the slot without doing anything; the rest of the line is ignored.
    Cancel = 11,
    /// Report reads that the client made in the store's memory.
    Report = 12,
    /// Return the stag under which the client READs the item of a key.
    Locate = 13,
}

impl OpCode {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 13] = [
        Self::Get,
        Self::Gat,
        Self::Set,
        Self::Add,
        Self::Replace,
        Self::Append,
        Self::Prepend,
        Self::Delete,
        Self::Incr,
        Self::Decr,
        Self::Cancel,
        Self::Report,
        Self::Locate,
    ];

    /// Returns the operation of `code`.
    #[inline]
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        // 0 is what memory that was never written holds.
        if code == 0 || code as usize > Self::ALL.len() {
            return None;
        }
        Some(Self::ALL[code as usize - 1])
    }
}

/// The last word of a line: operation, lengths, and the stamp that decides whether it is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control(pub u64);

impl Control {
    /// Makes the control word of a first attempt.
    #[inline]
    #[must_use]
    pub const fn new(op: OpCode, bits: u8, key_len: u8, body_len: u8, stamp: Stamp) -> Self {
        Self(
            (op as u8 | bits) as u64
                | (key_len as u64) << KEY_LEN_SHIFT
                | (body_len as u64) << BODY_LEN_SHIFT
                | stamp.0 << STAMP_SHIFT,
        )
    }

    /// The operation; `None` for an unknown code.
    #[inline]
    #[must_use]
    pub const fn op(self) -> Option<OpCode> {
        OpCode::new(self.0 as u8 & 0xf)
    }

    /// Whether the operation is `op`.
    #[inline]
    #[must_use]
    pub const fn is(self, op: OpCode) -> bool {
        self.0 as u8 & 0xf == op as u8
    }

    /// Whether executing the request twice equals executing it once: such requests are executed
    /// again on a retry, not remembered.
    #[inline]
    #[must_use]
    pub const fn is_read(self) -> bool {
        // GAT changes the deadline, so it is no read.
        self.is(OpCode::Get)
    }

    /// Whether it is of a client that reads the store's memory, and no request for an item.
    #[inline]
    #[must_use]
    pub const fn is_of_reader(self) -> bool {
        self.is(OpCode::Report) || self.is(OpCode::Locate)
    }

    /// Whether the reply carries a number rather than a version.
    #[inline]
    #[must_use]
    pub const fn is_arith(self) -> bool {
        self.is(OpCode::Incr) || self.is(OpCode::Decr)
    }

    /// HAS_ATTR, HAS_COMPARE, the reserved bit and OVERFLOW.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0 as u8 & 0xf0
    }

    /// Whether the body lies in the overflow area.
    #[inline]
    #[must_use]
    pub const fn overflows(self) -> bool {
        self.bits() & OVERFLOW != 0
    }

    /// Bytes of the key.
    #[inline]
    #[must_use]
    pub const fn key_len(self) -> usize {
        (self.0 >> KEY_LEN_SHIFT) as usize & 0xff
    }

    /// Bytes of the body in the line.
    #[inline]
    #[must_use]
    pub const fn body_len(self) -> usize {
        (self.0 >> BODY_LEN_SHIFT) as usize & 0x3f
    }

    /// Number of the attempt, modulo [`ATTEMPTS`].
    #[inline]
    #[must_use]
    pub const fn attempt(self) -> u8 {
        (self.0 >> ATTEMPT_SHIFT) as u8 & (ATTEMPTS - 1)
    }

    /// Returns the same request, one attempt later.
    #[inline]
    #[must_use]
    pub const fn retried(self) -> Self {
        let attempt = (self.attempt() + 1) & (ATTEMPTS - 1);
        let others = self.0 & !((ATTEMPTS as u64 - 1) << ATTEMPT_SHIFT);
        Self(others | (attempt as u64) << ATTEMPT_SHIFT)
    }

    /// Returns the same control word under another stamp.
    #[inline]
    #[must_use]
    pub const fn stamped(self, stamp: Stamp) -> Self {
        Self(self.0 & ((1 << STAMP_SHIFT) - 1) | stamp.0 << STAMP_SHIFT)
    }

    /// Returns the cancellation of the same request, as the same attempt.
    #[inline]
    #[must_use]
    pub const fn canceled(self) -> Self {
        // Operation and bits alone. Sequence, epoch and attempt stay, for they name the request.
        Self(self.0 & !0xff | OpCode::Cancel as u64)
    }

    /// Returns the same control word of another operation.
    #[must_use]
    pub(super) const fn of(self, op: OpCode) -> Self {
        Self(self.0 & !0xf | op as u64)
    }

    /// Epoch and sequence of the request.
    #[inline]
    #[must_use]
    pub const fn stamp(self) -> Stamp {
        Stamp(self.0 >> STAMP_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(sequence: u32) -> Control {
        let stamp = Stamp::new(Epoch::new(0xbeef).unwrap(), Sequence::new(sequence));
        Control::new(OpCode::Decr, super::super::HAS_ATTR, 250, 48, stamp)
    }

    #[test]
    fn control_word_fields_round_trip() {
        let control = control(0xff_fffe);
        assert_eq!(
            control.0.to_le_bytes(),
            [0x1a, 250, 48, 0xfe, 0xff, 0xff, 0xef, 0xbe]
        );
        assert_eq!(control.op(), Some(OpCode::Decr));
        assert_eq!(control.bits(), super::super::HAS_ATTR);
        assert_eq!((control.key_len(), control.body_len()), (250, 48));
        assert_eq!(control.stamp().sequence(), Sequence::new(0xff_fffe));
        assert_eq!(control.stamp().epoch(), 0xbeef);
    }

    #[test]
    fn retry_changes_only_the_attempt_number() {
        let first = control(7);
        let mut retried = first;
        for attempt in [1, 2, 3, 0] {
            retried = retried.retried();
            assert_eq!(retried.attempt(), attempt);
            assert_eq!(retried.stamp(), first.stamp());
            assert_eq!(retried.body_len(), first.body_len());
        }
        assert_eq!(retried, first);
    }

    #[test]
    fn sequences_wrap() {
        assert_eq!(Sequence::new(SEQUENCES - 1).plus(1), Sequence::new(0));
        assert_eq!(Sequence::new(3).minus(8), Sequence::new(SEQUENCES - 5));
    }

    #[test]
    fn operation_codes_round_trip() {
        for (i, op) in OpCode::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(op as u8), i + 1);
            assert_eq!(OpCode::new(op as u8), Some(op));
        }
        assert_eq!(OpCode::new(0), None);
        assert_eq!(OpCode::new(14), None);
    }
}
