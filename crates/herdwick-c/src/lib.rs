//! The Herdwick client for C, declared in `include/herdwick.h`: each exported function checks what it is
//! given, and calls the crate `herdwick`.
//!
//! A handle is a mutex that is never waited for: a second call at the same time, from another thread or
//! from a callback, is an error of the caller and not a race. A panic ends no call of C's: where panics
//! unwind it is caught, and its handle refuses every later call; where they abort, as in this workspace's
//! release builds, the process ends as by `abort(3)`.

mod bytes;
mod calls;
mod client;
mod handle;
mod options;
mod servers;
mod session;
mod status;
