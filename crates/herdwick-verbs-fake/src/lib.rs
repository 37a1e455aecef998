//! A libibverbs for tests, loaded like the real one: a lossless loopback device that fails on
//! request.
//!
//! It trusts its caller as libibverbs does, and checks what a device checks: keys, ranges, rights,
//! states and room. `fake_fail` and `fake_event` script it, for the calling thread alone, or for
//! all others; `fake_link` affects all threads.
#![expect(
    clippy::missing_safety_doc,
    missing_docs,
    reason = "the C library's functions, with the C library's rules"
)]

mod control;
mod data;
mod devices;
mod events;
mod ffi;
pub mod handle;
mod memory;
mod script;
mod world;

pub use control::*;
pub use devices::*;
pub use events::{fake_event, fake_event_elsewhere, fake_link};
pub use script::{fake_fail, fake_fail_elsewhere};
