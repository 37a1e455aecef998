//! The fields of version 0, their offsets and sizes, each defined once.

use herdwick_mem::{LINE, WORD};

/// A named run of bytes in a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name in `docs/wire.md` and in clients in other languages.
    pub name: &'static str,
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
    /// Meaning, as `docs/wire.md` prints it.
    pub meaning: &'static str,
}

impl Field {
    const fn new(name: &'static str, offset: usize, bytes: usize, meaning: &'static str) -> Self {
        Self {
            name,
            offset,
            bytes,
            meaning,
        }
    }

    /// Right shift that brings this field to the bottom of the little-endian number that starts at
    /// byte `base`.
    pub(super) const fn shift_in(&self, base: usize) -> u32 {
        // A constant that does not fit fails the build.
        assert!(self.offset >= base && self.offset + self.bytes <= base + WORD);
        ((self.offset - base) * 8) as u32
    }

    /// Index of the word that this field starts in.
    #[must_use]
    pub const fn word(&self) -> usize {
        assert!(self.offset.is_multiple_of(WORD));
        self.offset / WORD
    }
}

/// Bytes of a request line: one cache line.
pub const LINE_BYTES: usize = LINE;
/// Words of a request line.
pub const LINE_WORDS: usize = LINE_BYTES / WORD;

/// Locator hash of the key.
pub const HASH: Field = Field::new(
    "hash",
    0,
    8,
    "locator hash: SipHash-1-3 of the key under the server's hash key",
);
/// Variable part of the request.
pub const BODY: Field = Field::new(
    "body",
    8,
    48,
    "the body, or the overflow head; unused bytes 0",
);
/// Operation and flag bits: the first byte of the control word.
pub const OPCODE: Field = Field::new(
    "opcode",
    56,
    1,
    "bits 0-3 operation, bit 4 HAS_ATTR, bit 5 HAS_COMPARE, bit 6 zero, bit 7 OVERFLOW",
);
/// Length of the key.
pub const KEY_LEN: Field = Field::new("key_len", 57, 1, "bytes of key, 1 to 250");
/// Length of the body, and number of the attempt.
pub const BODY_LEN: Field = Field::new(
    "body_len",
    58,
    1,
    "bits 0-5 bytes of body in the line, 0 to 48; bits 6-7 attempt: 0, then one more a retry, mod 4",
);
/// Sequence number.
pub const SEQUENCE: Field = Field::new(
    "sequence",
    59,
    3,
    "number of the request, counted a slot at a time: slot + window * lap, mod 2^24",
);
/// Epoch.
pub const EPOCH: Field = Field::new("epoch", 62, 2, "the lease's epoch, never 0");

/// The request line.
pub const LINE_FIELDS: [Field; 7] = [HASH, BODY, OPCODE, KEY_LEN, BODY_LEN, SEQUENCE, EPOCH];

/// Offset of the control word: the last word of the line, published last.
pub const CONTROL_OFFSET: usize = OPCODE.offset;
/// The control word's index in the line.
pub const CONTROL_WORD: usize = CONTROL_OFFSET / WORD;
/// Most bytes of body in the line itself.
pub const BODY_BYTES_MAX: usize = BODY.bytes;

/// Length of an overflowing body.
pub const OVERFLOW_LEN: Field = Field::new("overflow_len", 8, 4, "bytes of body, 1 to 1024");
/// Checksum of an overflowing body.
pub const OVERFLOW_CRC: Field = Field::new("overflow_crc", 12, 4, "CRC32C of those bytes");

/// Contents of the line's body when OVERFLOW is set (offsets within the line).
pub const OVERFLOW_FIELDS: [Field; 2] = [OVERFLOW_LEN, OVERFLOW_CRC];
/// Bytes of body in the line when OVERFLOW is set.
pub const OVERFLOW_HEAD_BYTES: usize = OVERFLOW_LEN.bytes + OVERFLOW_CRC.bytes;

/// Bytes of each slot's overflow area: the longest body of a request.
pub const OVERFLOW_BYTES: usize = 1024;

/// Most bytes of a request, its line included.
pub const REQUEST_BYTES_MAX: usize = LINE_BYTES + OVERFLOW_BYTES;

/// Outcome of the request.
pub const STATUS: Field = Field::new(
    "status",
    0,
    1,
    "the lower four bits: status code; the upper ones: number of the secondary store",
);
/// Bits of a reply.
pub const BITS: Field = Field::new(
    "bits",
    1,
    1,
    "bit 0 replicated, bit 1 won, bit 2 stale, bit 3 win_sent, bit 4 leased, bits 6 and 7: how many words of the message count",
);
/// The request's epoch, echoed.
pub const REPLY_EPOCH: Field = Field::new("reply_epoch", 2, 2, "the request's epoch");
/// The item's client flags.
pub const FLAGS: Field = Field::new("flags", 4, 4, "the item's client flags, else 0");
/// Version or number.
pub const NUMBER: Field = Field::new(
    "number",
    8,
    8,
    "the item's version; after INCR and DECR the new number; after LOCATE the stag; absent when there is neither",
);
/// Where a value starts.
pub const VALUE: Field = Field::new(
    "value",
    16,
    8,
    "the value, to the end of the message; with REPLY_TOO_LARGE its length, 8 bytes",
);

/// The reply.
pub const REPLY_FIELDS: [Field; 6] = [STATUS, BITS, REPLY_EPOCH, FLAGS, NUMBER, VALUE];
/// Bytes of a reply before the value.
pub const REPLY_HEAD_BYTES: usize = VALUE.offset;

/// The immediate's lower three bytes.
pub const IMM_SEQUENCE: Field = Field::new("imm_sequence", 0, 3, "the request's sequence");
/// The immediate's upper byte.
pub const IMM_WORKER: Field = Field::new("imm_worker", 3, 1, "the worker that answers");

/// The immediate of a reply.
pub const IMM_FIELDS: [Field; 2] = [IMM_SEQUENCE, IMM_WORKER];

/// The body begins with client flags and exptime.
pub const HAS_ATTR: u8 = 1 << 4;
/// The body contains a version to compare.
pub const HAS_COMPARE: u8 = 1 << 5;
/// Must be 0: reserved for later versions.
pub const RESERVED: u8 = 1 << 6;
/// The body lies in the overflow area.
pub const OVERFLOW: u8 = 1 << 7;

/// Most workers: the immediate has one byte for their number.
pub const WORKERS_MAX: usize = 1 << (8 * IMM_WORKER.bytes);

/// Whether `fields` follow each other from `start` to `end` without gap or overlap.
const fn tiles(fields: &[Field], start: usize, end: usize) -> bool {
    let mut at = start;
    let mut i = 0;
    while i < fields.len() {
        if fields[i].offset != at {
            return false;
        }
        at += fields[i].bytes;
        i += 1;
    }
    at == end
}

const _: () = {
    assert!(tiles(&LINE_FIELDS, 0, LINE_BYTES));
    assert!(tiles(
        &OVERFLOW_FIELDS,
        BODY.offset,
        BODY.offset + OVERFLOW_HEAD_BYTES
    ));
    assert!(tiles(&REPLY_FIELDS, 0, 24));
    assert!(tiles(&IMM_FIELDS, 0, 4));
    assert!(CONTROL_OFFSET + WORD == LINE_BYTES);
    // `body_len` has 6 bits for the length.
    assert!(BODY_BYTES_MAX < 1 << 6);
    assert!(OVERFLOW_BYTES.is_multiple_of(LINE_BYTES));
    // The largest head, the longest key and a value of 500 bytes fit.
    assert!(OVERFLOW_BYTES > 16 + herdwick_request::KEY_BYTES_MAX + 500);
};
