//! The commands as an operator and a shell run them: one file for each subject. They share an
//! executable, since each would compile and link the client; what examines its own process is a
//! target of its own.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod client;
mod clover;
mod exit;
mod figures;
mod hkvs;
mod leavers;
mod memory;
mod one_sided;
mod restart;
mod sasl;
mod secure;
mod serve;
mod slab;
mod top;
mod transports;
mod unanswered;
