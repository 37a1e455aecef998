//! The transport headers of a packet as they are on the wire, big-endian (IBTA chapter 9).

use zerocopy::{BigEndian, FromBytes, Immutable, IntoBytes, KnownLayout, U16, U32, U64, Unaligned};

use super::psn::{LOW_24, Psn24};

/// The base transport header, first in every packet (IBTA 9.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    /// Solicited event 1, MigReq 1, PadCnt 2, TVer 4.
    flags: u8,
    pkey: U16<BigEndian>,
    /// FECN 1, BECN 1, reserved 6, DestQP 24; the first byte is masked out of the ICRC.
    dest: U32<BigEndian>,
    /// AckReq 1, reserved 7, PSN 24.
    psn: U32<BigEndian>,
}

/// Length of a [`Bth`] in bytes.
pub const BTH_BYTES: usize = 12;
/// Length in bytes of the ICRC that ends every packet.
pub const ICRC_BYTES: usize = 4;
/// The only partition key that RoCE uses: the default partition, full member.
pub const PKEY: u16 = 0xffff;
/// The membership bit of a partition key; two keys match if the other fifteen bits do.
const PKEY_MEMBER: u16 = 0x8000;

/// Flags of the BTH: of its second byte (solicited event, migration request, version of the transport
/// header), and of the words of the destination (BECN) and of the PSN.
const SOLICITED: u8 = 0x80;
const MIGRATION: u8 = 0x40;
const VERSION: u8 = 0x0f;
const BECN: u32 = 0x4000_0000;
const ACK_REQUEST: u32 = 0x8000_0000;

/// The fields of a [`Bth`] other than opcode, destination and PSN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BthFlags {
    /// The message wakes a receiver that armed for solicited events only.
    pub solicited: bool,
    /// Migration state; hardware sends it set, `rdma_rxe` clear.
    pub migration: bool,
    /// Bytes that pad the payload to a multiple of four: 0 to 3.
    pub pad: u8,
    /// The responder has to acknowledge.
    pub ack_request: bool,
}

impl Bth {
    /// Makes a header addressed to queue pair `dest`.
    #[inline]
    #[must_use]
    pub fn new(opcode: u8, dest: u32, psn: Psn24, flags: BthFlags) -> Self {
        let mut bits = (flags.pad & 3) << 4;
        if flags.solicited {
            bits |= SOLICITED;
        }
        if flags.migration {
            bits |= MIGRATION;
        }
        let request = if flags.ack_request { ACK_REQUEST } else { 0 };
        Self {
            opcode,
            flags: bits,
            pkey: U16::new(PKEY),
            dest: U32::new(dest & LOW_24),
            psn: U32::new(request | psn.get()),
        }
    }

    /// Makes the header of a congestion notification (CNP) to queue pair `dest`.
    #[must_use]
    pub fn congestion(dest: u32) -> Self {
        let flags = BthFlags::default();
        let told = Self::new(super::CONGESTION, dest, Psn24::new(0), flags);
        Self {
            dest: U32::new(BECN | told.dest.get()),
            ..told
        }
    }

    /// Returns the opcode byte: transport in the upper three bits, operation below.
    #[inline]
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.opcode
    }

    /// Returns the destination queue pair.
    #[inline]
    #[must_use]
    pub fn dest(&self) -> u32 {
        self.dest.get() & LOW_24
    }

    /// Returns the packet sequence number.
    #[inline]
    #[must_use]
    pub fn psn(&self) -> Psn24 {
        Psn24::new(self.psn.get())
    }

    /// Returns solicited event, migration, pad count and acknowledgement request.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> BthFlags {
        BthFlags {
            solicited: self.flags & SOLICITED != 0,
            migration: self.flags & MIGRATION != 0,
            pad: self.flags >> 4 & 3,
            ack_request: self.psn.get() & ACK_REQUEST != 0,
        }
    }

    /// Returns whether the transport version is 0, the only one defined.
    #[inline]
    #[must_use]
    pub fn version_is_known(&self) -> bool {
        self.flags & VERSION == 0
    }

    /// Returns whether the partition key matches the local one.
    #[inline]
    #[must_use]
    pub fn partition_matches(&self) -> bool {
        // Two limited members may not talk to each other, but the local key is a full member's.
        self.pkey.get() | PKEY_MEMBER == PKEY
    }
}

/// RDMA extended transport header: the remote range of a WRITE or READ.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reth {
    /// Address in the peer's region.
    pub addr: U64<BigEndian>,
    /// The key of the region.
    pub rkey: U32<BigEndian>,
    /// Bytes of the whole message.
    pub len: U32<BigEndian>,
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Aeth {
    /// Syndrome 8, message sequence number 24.
    pub word: U32<BigEndian>,
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Deth {
    /// The key of the receiving queue pair.
    pub qkey: U32<BigEndian>,
    /// Reserved 8, sending queue pair 24.
    pub source: U32<BigEndian>,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicEth {
    /// Address of the word in the peer's region.
    pub addr: U64<BigEndian>,
    /// The key of the region.
    pub rkey: U32<BigEndian>,
    /// The value to store, or to add.
    pub swap_or_add: U64<BigEndian>,
    /// The value to compare with; FETCH_ADD leaves it 0.
    pub compare: U64<BigEndian>,
}

/// Atomic ACK extended transport header: the word's value before the operation.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicAckEth {
    /// The original value.
    pub original: U64<BigEndian>,
}

/// Immediate data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Immediate {
    /// Not interpreted by the fabric.
    pub value: U32<BigEndian>,
}

const _: () = assert!(size_of::<Bth>() == BTH_BYTES);
const _: () = assert!(size_of::<Reth>() == 16);
const _: () = assert!(size_of::<Aeth>() == 4);
const _: () = assert!(size_of::<Deth>() == 8);
const _: () = assert!(size_of::<AtomicEth>() == 28);
const _: () = assert!(size_of::<AtomicAckEth>() == 8);
const _: () = assert!(size_of::<Immediate>() == 4);
