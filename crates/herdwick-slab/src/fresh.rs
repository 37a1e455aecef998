//! The attributes of an item that a request stores.

use herdwick_request::Deadline;

/// The attributes of an item to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    pub(crate) flags: u32,
    pub(crate) deadline: Deadline,
    /// Bits of its meta.
    pub(crate) bits: u8,
    /// Its version; `None`: the next.
    pub(crate) version: Option<u64>,
}

impl Default for Fresh {
    fn default() -> Self {
        Self {
            flags: 0,
            deadline: Deadline::NEVER,
            bits: 0,
            version: None,
        }
    }
}
