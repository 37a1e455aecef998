//! Limits of a reader, and errors of its set-up.

use herdwick_fabric::ControlError;

use crate::READS_PER_STEP;

/// Most lookups that one reader has in flight.
pub const LOOKUPS_MAX: usize = 1024;
/// Most READs of one reader on the way. The fabric's `rd_atomic_max` may be lower.
pub const OUTSTANDING_MAX: usize = 128;
/// Most bytes of one step.
pub const STEP_BYTES_MAX: usize = 16 << 20;

/// Limits of a [`Reader`](crate::Reader).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Lookups in flight, 1 to [`LOOKUPS_MAX`]; each has a buffer of `step_bytes`.
    pub lookups: usize,
    /// READs on the way to the peer, 1 to [`OUTSTANDING_MAX`]. A step of more READs goes alone.
    pub outstanding: usize,
    /// Bytes of READs on the way; one longer step goes alone. Bounds what a fabric in software
    /// has to buffer.
    pub bytes_outstanding: usize,
    /// Most bytes of one step, each READ rounded up to whole words; up to [`STEP_BYTES_MAX`].
    pub step_bytes: usize,
    /// Most steps of a lookup, repetitions not counted.
    pub steps: u32,
    /// Most repetitions of a lookup's steps, torn and stale together.
    pub retries: u32,
}

impl Default for ReaderOptions {
    /// A window of 32, 1 MiB on the way, values of about 4 KiB.
    fn default() -> Self {
        Self {
            lookups: 32,
            outstanding: OUTSTANDING_MAX,
            bytes_outstanding: 1 << 20,
            step_bytes: 8 << 10,
            steps: 64,
            retries: 64,
        }
    }
}

impl ReaderOptions {
    pub(crate) fn check(&self) -> Result<(), ReaderError> {
        let bounds = [
            ("lookups", self.lookups, LOOKUPS_MAX),
            ("outstanding", self.outstanding, OUTSTANDING_MAX),
            ("bytes_outstanding", self.bytes_outstanding, usize::MAX),
            ("step_bytes", self.step_bytes, STEP_BYTES_MAX),
            ("steps", self.steps as usize, usize::MAX),
        ];
        for (what, asked, max) in bounds {
            if asked == 0 || asked > max {
                return Err(ReaderError::Option { what, asked, max });
            }
        }
        Ok(())
    }

    /// Returns the depth of the send queue: what is outstanding, or a step that goes alone.
    pub(crate) fn depth(&self) -> usize {
        self.outstanding.max(READS_PER_STEP)
    }
}

/// A reader cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// An option is out of its range.
    #[error("{what} is 1 to {max}, not {asked}")]
    Option {
        /// The option.
        what: &'static str,
        /// Its value.
        asked: usize,
        /// Its greatest value.
        max: usize,
    },
    /// The fabric has no READ.
    #[error("the fabric {0} has no READ; take another")]
    NoRead(&'static str),
    /// The provider refused an object.
    #[error("setting up READs: {0}")]
    Control(#[from] ControlError),
}
