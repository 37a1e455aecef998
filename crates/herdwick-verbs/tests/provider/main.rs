//! Tests of the provider with the fake libibverbs, and with the system's if there is a device.

mod conformance;
mod cost;
mod faults;
mod layout;
mod schedules;
mod side;
