//! The real time of a test whose threads have no virtual one.

use std::time::{Duration, Instant};

/// The time since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts it.
    #[expect(
        clippy::disallowed_methods,
        reason = "the threads of a test are shells"
    )]
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn now(self) -> Duration {
        self.0.elapsed()
    }
}
