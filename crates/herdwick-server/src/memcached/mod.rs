//! memcached's protocols at a worker.

pub(crate) mod keys;
pub(crate) mod protocol;
pub(crate) mod tcp;
