//! HERD: requests written into the server's memory, replies sent back
#![forbid(unsafe_code)]

pub mod hello;
