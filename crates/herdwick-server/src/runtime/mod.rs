//! A worker's loop, sleep and shutdown; partitions and their locks, and the store of each engine; which keys are
//! popular; forwarding to other workers and the encoding of a batch's replies; upload permits; LRU crawler and key
//! dumps; clocks and CPUs.

pub(crate) mod crawl;
pub(crate) mod cross_core;
pub(crate) mod dump;
pub(crate) mod forward;
pub(crate) mod front;
pub(crate) mod invalidator;
pub(crate) mod offload;
pub(crate) mod owned_requests;
pub(crate) mod parking;
pub(crate) mod partition;
pub(crate) mod partition_lock;
pub(crate) mod pin;
pub(crate) mod readiness;
pub(crate) mod reply_encoding;
pub(crate) mod request_timer;
pub(crate) mod shutdown;
pub(crate) mod spin;
pub(crate) mod store;
pub(crate) mod time;
pub(crate) mod upload_permits;
pub(crate) mod upload_steps;
pub(crate) mod wait_queue;
pub(crate) mod worker;
