//! The kinds of neighbours of `bench hostile`: a hostile client, and the baseline that uses as much CPU.

/// A process that shares the host with a well-behaved client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Writes random words all over the memory of its own lease, at full speed.
    Scribbler,
    /// Uses as much CPU and writes nothing: the baseline.
    Spinner,
}

impl Neighbour {
    /// Returns its name in the report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scribbler => "scribbler",
            Self::Spinner => "spinner",
        }
    }
}
