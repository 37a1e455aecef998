//! REFUSAL, the frame that ends a lease handshake, as bytes and back.

use super::frame::Writer;

/// Reason for refusing a lease: one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Wrong, expired or used token.
    #[error("the token is not valid (any more); say hello again")]
    Token,
    /// No room for another lease, by number or by memory: of all clients, or of this one's owner; or
    /// too many grants of that owner lie unread.
    #[error("the server has as many leases as its memory is for; `herdwick serve -m` takes more")]
    Full,
    /// A frame was malformed.
    #[error("the server could not read the request")]
    Malformed,
    /// The memory could not be allocated.
    #[error("the server could not get the memory for a lease")]
    Memory,
}

impl Refusal {
    /// Encodes the frame: one byte of reason.
    #[must_use]
    pub fn to_frame(self) -> Vec<u8> {
        let mut out = Writer::new(5);
        out.u8(match self {
            Self::Token => 1,
            Self::Full => 2,
            Self::Malformed => 3,
            Self::Memory => 4,
        });
        out.finish()
    }

    /// Parses a body; an unknown reason becomes [`Refusal::Malformed`].
    #[must_use]
    pub fn parse(body: &[u8]) -> Self {
        match body {
            [1] => Self::Token,
            [2] => Self::Full,
            [4] => Self::Memory,
            _ => Self::Malformed,
        }
    }
}
