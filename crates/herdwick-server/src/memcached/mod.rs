//! memcached's protocols at a worker.

pub(crate) mod protocol;
pub(crate) mod tcp;
