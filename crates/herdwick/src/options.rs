use std::time::Duration;

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a call may take, dialling included. Looking a host name up is the one thing that
    /// the operating system will not cut short.
    pub deadline: Duration,
    /// Values above this many bytes are not taken from a server: the connection ends instead.
    pub value_bytes_max: usize,
    /// Whether to look for a better way than memcached's text.
    pub fabric: bool,
    /// Requests in flight at each worker, on a fabric: rounded up to a power of two, at most 256;
    /// the server may grant fewer.
    pub window: usize,
}

impl Default for Options {
    /// One second, 128 MiB, the best way there is, and 32 requests.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(1),
            value_bytes_max: 128 << 20,
            fabric: true,
            window: 32,
        }
    }
}
