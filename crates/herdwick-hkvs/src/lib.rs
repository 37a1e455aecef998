//! hKVS (Chen, Chang and Hung, RACS 2022): which keys a server replicates to a second store, that its clients
//! read by themselves.
//!
//! A [`Popularity`] policy decides. [`Policy`] names those of this crate; a program that links the server may
//! bring its own. Each worker has a [`Tracker`], which asks the policy and sends [`Change`]s; a [`Syncer`] turns
//! them into operations on the second store. `docs/hkvs.md` describes all of it.
//!
//! ```
//! use herdwick_hkvs::{Limits, Policy, Seen};
//! use herdwick_request::KeyHash;
//!
//! let mut policy = Policy::Combined.build(Limits { keys: 10, reads: 2, window: 100 });
//! assert_eq!(policy.read(KeyHash(7 << 16), 48, true), Seen::Unpopular);
//! let seen = policy.read(KeyHash(7 << 16), 48, true);
//! assert_eq!(seen, Seen::Admitted { slot: 0, evicted: false });
//! ```
#![forbid(unsafe_code)]

mod change;
mod combined;
mod counters;
mod members;
mod policy;
mod popularity;
mod recency;
mod record;
mod sampled;
mod syncer;
mod tracker;
mod window;

pub use change::{Act, CHANGES_MAX, Change, Outcome, SyncEnd, WorkerEnd, channel, channel_bytes};
pub use counters::TrackerCounters;
pub use policy::{NoPolicy, Policy};
pub use popularity::{Limits, Popularity, Seen};
pub use record::{RECORD_HEAD_BYTES, Record, VALUE_BYTES_MAX};
pub use syncer::{SyncAnswer, SyncOp, SyncToken, Syncer};
pub use tracker::{
    CONNECT_EVERY, LAG_MAX, LEASE, QUIET_MAX, STALENESS_MAX, STORE_NUMBERS, SizeClass, Tracker,
    store_number,
};
