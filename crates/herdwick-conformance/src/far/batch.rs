//! Work requests in transit between processes, with payloads of their own.

use herdwick_fabric::SendWr;

use super::{
    owned::Owned,
    wire::{Get, Put, Reader},
};

/// Send work requests that own their payloads.
pub(super) struct Batch(Vec<Owned>);

impl Batch {
    /// Returns the requests, with borrowed payloads.
    pub(super) fn lend(&self) -> Vec<SendWr<'_>> {
        self.0.iter().map(Owned::lend).collect()
    }
}

impl Put for SendWr<'_> {
    fn put(&self, out: &mut Vec<u8>) {
        Owned::new(self).put(out);
    }
}

impl Get for Batch {
    fn get(from: &mut Reader<'_>) -> Self {
        Self(Get::get(from))
    }
}
