use std::time::Duration;

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a call may take, dialling included. Looking a host name up is the one thing that
    /// the operating system will not cut short.
    pub deadline: Duration,
    /// Values above this many bytes are not taken from a server: the connection ends instead.
    pub value_bytes_max: usize,
}

impl Default for Options {
    /// One second, and 128 MiB.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(1),
            value_bytes_max: 128 << 20,
        }
    }
}
