//! The header of packets, and their opcodes.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    big_endian::{U16, U32, U64},
};

/// The first byte of a request.
pub const REQUEST: u8 = 0x80;
/// The first byte of a response.
pub(super) const RESPONSE: u8 = 0x81;
/// The header of a packet, 24 bytes. Extras, key and value follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    pub(super) magic: u8,
    pub(super) opcode: u8,
    pub(super) key_len: U16,
    pub(super) extras_len: u8,
    pub(super) data_type: u8,
    /// In a request, the reserved vbucket id, which is ignored.
    pub(super) status: U16,
    /// Total length of extras, key and value.
    pub(super) body_len: U32,
    pub(super) opaque: [u8; 4],
    pub(super) unique: U64,
}

pub(super) const HEADER: usize = size_of::<Header>();
// protocol-binary.txt, "Packet Structure".
const _: () = assert!(HEADER == 24);

/// The second byte of a packet.
pub mod opcode {
    #![expect(missing_docs, reason = "they are their names")]
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const ADD: u8 = 0x02;
    pub const REPLACE: u8 = 0x03;
    pub const DELETE: u8 = 0x04;
    pub const INCREMENT: u8 = 0x05;
    pub const DECREMENT: u8 = 0x06;
    pub const QUIT: u8 = 0x07;
    pub const FLUSH: u8 = 0x08;
    pub const GETQ: u8 = 0x09;
    pub const NOOP: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GETK: u8 = 0x0c;
    pub const GETKQ: u8 = 0x0d;
    pub const APPEND: u8 = 0x0e;
    pub const PREPEND: u8 = 0x0f;
    pub const STAT: u8 = 0x10;
    pub const SETQ: u8 = 0x11;
    pub const ADDQ: u8 = 0x12;
    pub const REPLACEQ: u8 = 0x13;
    pub const DELETEQ: u8 = 0x14;
    pub const INCREMENTQ: u8 = 0x15;
    pub const DECREMENTQ: u8 = 0x16;
    pub const QUITQ: u8 = 0x17;
    pub const FLUSHQ: u8 = 0x18;
    pub const APPENDQ: u8 = 0x19;
    pub const PREPENDQ: u8 = 0x1a;
    pub const TOUCH: u8 = 0x1c;
    pub const GAT: u8 = 0x1d;
    pub const GATQ: u8 = 0x1e;
    pub const SASL_LIST: u8 = 0x20;
    pub const SASL_AUTH: u8 = 0x21;
    pub const SASL_STEP: u8 = 0x22;
    pub const GATK: u8 = 0x23;
    pub const GATKQ: u8 = 0x24;

    /// Returns the opcode of the same operation without the quiet and show-key variants.
    #[must_use]
    pub fn plain(opcode: u8) -> u8 {
        match opcode {
            GETQ | GETK | GETKQ => GET,
            GATQ | GATK | GATKQ => GAT,
            // These opcodes follow each other without a gap.
            SETQ..=PREPENDQ => [
                SET, ADD, REPLACE, DELETE, INCREMENT, DECREMENT, QUIT, FLUSH, APPEND, PREPEND,
            ][usize::from(opcode - SETQ)],
            other => other,
        }
    }

    /// Returns whether the nominal response is suppressed: a miss of a read, the success of others.
    #[must_use]
    pub fn is_quiet(opcode: u8) -> bool {
        matches!(opcode, GETQ | GETKQ | GATQ | GATKQ | SETQ..=PREPENDQ)
    }

    /// Returns whether the response contains the key.
    #[must_use]
    pub fn shows_key(opcode: u8) -> bool {
        matches!(opcode, GETK | GETKQ | GATK | GATKQ)
    }
}
