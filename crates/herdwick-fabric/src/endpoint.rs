//! The address of a queue pair as an opaque blob that a hello carries between two providers.

use core::fmt;

/// Maximum bytes of an [`Endpoint`].
pub const ENDPOINT_BYTES_MAX: usize = 96;

/// What the other side needs to know of a queue pair to reach it: an opaque, bounded blob that
/// the two sides exchange. Its provider wrote it and its provider reads it; no system looks inside, and a
/// provider trusts none of it, for it comes from a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    bytes: [u8; ENDPOINT_BYTES_MAX],
    len: u8,
}

/// The blob exceeds [`ENDPOINT_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an endpoint has at most {ENDPOINT_BYTES_MAX} bytes")]
pub struct EndpointTooLong;

impl Endpoint {
    /// Wraps `blob`.
    ///
    /// # Errors
    /// [`EndpointTooLong`] when `blob` exceeds [`ENDPOINT_BYTES_MAX`] bytes.
    pub fn new(blob: &[u8]) -> Result<Self, EndpointTooLong> {
        let mut bytes = [0; ENDPOINT_BYTES_MAX];
        bytes
            // The length is checked by the slice: a longer blob has no such range.
            .get_mut(..blob.len())
            .ok_or(EndpointTooLong)?
            .copy_from_slice(blob);
        Ok(Self {
            bytes,
            // Cannot fail: 96 fits.
            len: u8::try_from(blob.len()).map_err(|_| EndpointTooLong)?,
        })
    }

    /// Returns the blob.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({} bytes)", self.len)
    }
}
