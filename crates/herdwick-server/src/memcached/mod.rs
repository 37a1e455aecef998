//! memcached's protocols at a worker.

pub(crate) mod tcp;
