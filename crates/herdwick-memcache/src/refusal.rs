//! Why a line is answered by an error, and with which.

use crate::text;

/// Why a line was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A memory limit that is not a number.
    Limit,
    /// Too few arguments, a key that is too long, or an invalid number.
    Format,
    /// A data block beyond the maximum item size.
    TooLarge,
    /// A data block without a line end at its length.
    DataChunk,
    /// An exptime that is not a number.
    Exptime,
    /// A delta that is not a number.
    Delta,
    /// More words than a meta command may have.
    FlagsTooLong,
    /// A flag given twice.
    FlagDuplicate,
    /// No such flag.
    FlagInvalid,
    /// Any error in the key or the flags of `ma`.
    FlagInvalidOrDuplicate,
    /// An invalid number in a flag.
    Token,
    /// A key that is not valid base64.
    KeyEncoding,
    /// An invalid mode of `ms`.
    SetMode,
    /// An invalid mode of `ma`.
    ArithMode,
    /// A delta in a flag that is not a number.
    DeltaValue,
    /// An initial value that is not a number.
    InitialValue,
    /// An opaque that is too long.
    Opaque,
}

impl Refusal {
    /// Returns memcached's line for the refusal, line end included.
    #[must_use]
    pub fn line(self) -> &'static [u8] {
        match self {
            Self::Limit => b"ERROR\r\n",
            Self::Format => b"CLIENT_ERROR bad command line format\r\n",
            Self::TooLarge => text::TOO_LARGE,
            Self::DataChunk => b"CLIENT_ERROR bad data chunk\r\n",
            Self::Exptime => b"CLIENT_ERROR invalid exptime argument\r\n",
            Self::Delta => b"CLIENT_ERROR invalid numeric delta argument\r\n",
            Self::FlagsTooLong => b"CLIENT_ERROR options flags are too long\r\n",
            Self::FlagDuplicate => b"CLIENT_ERROR duplicate flag\r\n",
            Self::FlagInvalid => b"CLIENT_ERROR invalid flag\r\n",
            Self::FlagInvalidOrDuplicate => b"CLIENT_ERROR invalid or duplicate flag\r\n",
            Self::Token => b"CLIENT_ERROR bad token in command line format\r\n",
            Self::KeyEncoding => b"CLIENT_ERROR error decoding key\r\n",
            Self::SetMode => b"CLIENT_ERROR invalid mode for ms M token\r\n",
            Self::ArithMode => b"CLIENT_ERROR invalid mode for ma M token\r\n",
            Self::DeltaValue => b"CLIENT_ERROR invalid numeric delta value\r\n",
            Self::InitialValue => b"CLIENT_ERROR invalid numeric initial value\r\n",
            Self::Opaque => b"CLIENT_ERROR opaque token too long\r\n",
        }
    }
}
