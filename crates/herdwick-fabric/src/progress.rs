//! What a port has done, and whether its thread may sleep.

use core::time::Duration;

/// The result of [`crate::Port::progress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether the call moved anything. A poll loop that gets `false` from every port may sleep.
    pub moved: bool,
    /// The latest time for the next call, even if nothing arrives.
    pub deadline: Option<Duration>,
}

/// The result of [`crate::Port::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Armed: poll once more, then sleep on [`crate::Port::wait_fd`].
    Yes,
    /// Completions, or reports of WRITEs, are queued already; poll instead of sleeping.
    Pending,
    /// The provider has no wakeup; keep polling.
    Never,
}
