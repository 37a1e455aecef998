//! The Herdwick client for C, declared in `include/herdwick.h`: each exported function checks what it is
//! given, and calls the crate `herdwick`.
//!
//! A handle is a mutex that no call waits for: a second call at the same time, from another thread or
//! from a callback, is an error of the caller and not a race; only a copy of options waits. A panic ends no call
//! of C's: it is caught, and its handle refuses every later call. For that panics unwind in the profile that the
//! library is installed from (`[profile.c]`).

mod bytes;
mod calls;
mod client;
mod handle;
mod options;
mod servers;
mod session;
mod status;
