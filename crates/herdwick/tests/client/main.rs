//! The client against servers: stock ones, and ones that fail.

mod fallback;
mod faults;
mod peers;
mod servers;
