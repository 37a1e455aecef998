//! An item as the secondary store has it: its version and client flags, before the value.

/// Bytes before the value.
pub const RECORD_HEAD_BYTES: usize = 12;
/// Longest value that is replicated: as many as a reply over a fabric has, since clients learn from a reply that
/// a key is replicated.
pub const VALUE_BYTES_MAX: usize = 4096 - 16;

/// A replicated item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The item's version in the primary store; a later change has a higher one, unless a client chose it (meta flag `E`).
    pub version: u64,
    /// The client's flags.
    pub flags: u32,
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Record<'a> {
    /// Appends the bytes that are stored.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(self.value);
    }

    /// Parses what was stored; `None`: it is no record.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first_chunk()?;
        let (flags, value) = rest.split_first_chunk()?;
        Some(Self {
            version: u64::from_le_bytes(*version),
            flags: u32::from_le_bytes(*flags),
            value,
        })
    }
}
