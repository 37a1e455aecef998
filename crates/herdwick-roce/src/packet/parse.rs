//! Parsing of arriving packets: bytes in, headers and payload out, all lengths checked.

use zerocopy::FromBytes;

use super::{
    Aeth, AtomicAckEth, AtomicEth, BTH_BYTES, Bth, Class, Deth, Immediate, LOW_24, Operation,
    PacketOp, Place, Reth,
};

/// A packet from its BTH to its pad, whose version, partition, opcode, length and pad are valid.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// Its decoded opcode.
    pub op: PacketOp,
    /// The payload without the pad.
    pub payload: &'a [u8],
    extensions: &'a [u8],
}

/// The reason why bytes are no valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than the headers of its opcode and the pad need.
    Short,
    /// A transport version other than 0.
    Version,
    /// A partition other than the default one.
    Partition,
    /// An unsupported opcode.
    Opcode,
    /// A pad that does not round the payload up to four bytes.
    Pad,
}

impl<'a> Packet<'a> {
    /// Parses `bytes`, which end before the ICRC.
    ///
    /// # Errors
    /// [`Malformed`] names the first check that failed.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (bth, rest) = base(bytes)?;
        let op = PacketOp::decode(bth.opcode()).ok_or(Malformed::Opcode)?;
        let extensions = EXTENSIONS[usize::from(bth.opcode())];
        Self::behind(bth, op, usize::from(extensions), rest)
    }

    /// As [`Packet::parse`], where the caller has decoded the opcode as `op`.
    #[inline(always)]
    pub(crate) fn parse_as(op: PacketOp, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (bth, rest) = base(bytes)?;
        Self::behind(bth, op, op.extension_bytes(), rest)
    }

    #[inline(always)]
    fn behind(
        bth: Bth,
        op: PacketOp,
        extensions: usize,
        rest: &'a [u8],
    ) -> Result<Self, Malformed> {
        let split = rest.split_at_checked(extensions);
        let (extensions, padded) = split.ok_or(Malformed::Short)?;
        let pad = usize::from(bth.flags().pad);
        let len = padded.len().checked_sub(pad).ok_or(Malformed::Short)?;
        // The pad has two bits, so a length that is a multiple of four leaves one value for it.
        if !padded.len().is_multiple_of(4) {
            return Err(Malformed::Pad);
        }
        Ok(Self {
            bth,
            op,
            payload: &padded[..len],
            extensions,
        })
    }

    /// Returns the remote range of a READ, or of a WRITE's first packet.
    #[inline]
    #[must_use]
    pub fn reth(&self) -> Option<Reth> {
        let has = match self.op.operation {
            Operation::Write { place, .. } => place.starts(),
            operation => operation == Operation::ReadRequest,
        };
        has.then(|| self.extension(0)).flatten()
    }

    /// Returns the AETH of a response.
    #[inline]
    #[must_use]
    pub fn aeth(&self) -> Option<Aeth> {
        let has = match self.op.operation {
            Operation::ReadResponse(place) => place != Place::Middle,
            operation => matches!(
                operation,
                Operation::Acknowledge | Operation::AtomicAcknowledge
            ),
        };
        has.then(|| self.extension(0)).flatten()
    }

    /// Returns the DETH of a datagram: Q_Key and sender.
    #[inline]
    #[must_use]
    pub fn deth(&self) -> Option<Deth> {
        let has = self.op.class == Class::Ud;
        has.then(|| self.extension(0)).flatten()
    }

    /// Returns the operands of an atomic.
    #[inline]
    #[must_use]
    pub fn atomic(&self) -> Option<AtomicEth> {
        let has = matches!(
            self.op.operation,
            Operation::CompareSwap | Operation::FetchAdd
        );
        has.then(|| self.extension(0)).flatten()
    }

    /// Returns the word's value before an atomic.
    #[inline]
    #[must_use]
    pub fn original(&self) -> Option<u64> {
        let has = self.op.operation == Operation::AtomicAcknowledge;
        let found: Option<AtomicAckEth> = has.then(|| self.extension(size_of::<Aeth>())).flatten();
        found.map(|header| header.original.get())
    }

    /// Returns the immediate, if the opcode has one.
    #[inline]
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        let has = self.op.has_immediate();
        // The immediate is the last of the headers, whatever comes before it.
        let at = self.extensions.len().checked_sub(size_of::<Immediate>())?;
        let found: Option<Immediate> = has.then(|| self.extension(at)).flatten();
        found.map(|header| header.value.get())
    }

    #[inline]
    fn extension<T: FromBytes>(&self, at: usize) -> Option<T> {
        let (header, _) = T::read_from_prefix(self.extensions.get(at..)?).ok()?;
        Some(header)
    }
}

/// Splits off and checks the BTH, which begins every packet.
#[inline(always)]
fn base(bytes: &[u8]) -> Result<(Bth, &[u8]), Malformed> {
    let (bth, rest) = Bth::read_from_prefix(bytes).map_err(|_| Malformed::Short)?;
    if !bth.version_is_known() {
        return Err(Malformed::Version);
    }
    if !bth.partition_matches() {
        return Err(Malformed::Partition);
    }
    Ok((bth, rest))
}

/// [`PacketOp::extension_bytes`] by opcode.
static EXTENSIONS: [u8; 256] = {
    let mut extensions = [0; 256];
    let mut byte = 0;
    while byte < extensions.len() {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        if let Some(op) = PacketOp::decode(byte as u8) {
            extensions[byte] = op.extension_bytes() as u8;
        }
        byte += 1;
    }
    extensions
};

impl Deth {
    /// Returns the sender of a datagram before anything else of it is checked.
    pub(crate) fn peek(bytes: &[u8]) -> Option<u32> {
        let (deth, _) = Self::read_from_prefix(bytes.get(BTH_BYTES..)?).ok()?;
        Some(deth.source.get() & LOW_24)
    }
}

impl PacketOp {
    /// Returns the number of bytes between the BTH and the payload.
    #[inline]
    #[must_use]
    pub const fn extension_bytes(self) -> usize {
        let own = match self.operation {
            Operation::Write { place, .. } if place.starts() => size_of::<Reth>(),
            Operation::ReadRequest => size_of::<Reth>(),
            Operation::Acknowledge
            | Operation::ReadResponse(Place::First | Place::Last | Place::Only) => {
                size_of::<Aeth>()
            }
            Operation::AtomicAcknowledge => size_of::<Aeth>() + size_of::<AtomicAckEth>(),
            Operation::CompareSwap | Operation::FetchAdd => size_of::<AtomicEth>(),
            Operation::Send { .. } if matches!(self.class, Class::Ud) => size_of::<Deth>(),
            Operation::Send { .. }
            | Operation::Write { .. }
            | Operation::ReadResponse(Place::Middle) => 0,
        };
        let imm = if self.has_immediate() {
            size_of::<Immediate>()
        } else {
            0
        };
        own + imm
    }

    /// Returns the number of bytes before the payload.
    #[inline]
    #[must_use]
    pub const fn head_bytes(self) -> usize {
        BTH_BYTES + self.extension_bytes()
    }

    const fn has_immediate(self) -> bool {
        match self.operation {
            Operation::Send { imm, .. } | Operation::Write { imm, .. } => imm,
            _ => false,
        }
    }
}
