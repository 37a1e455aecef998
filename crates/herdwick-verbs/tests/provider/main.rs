//! The provider against a libibverbs of the tests' own, and against the system's where there is a
//! device.

mod conformance;
mod cost;
mod faults;
mod layout;
mod side;
