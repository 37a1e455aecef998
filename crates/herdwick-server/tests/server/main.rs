//! The server as its clients see it: one file for each subject. They share an executable, since a
//! test links the whole server; what limits or measures its own process is a target of its own.

#[path = "../common/tls.rs"]
mod authority;
#[path = "../common/mod.rs"]
mod common;

mod auth;
mod counts;
mod exptime;
mod hotkeys;
mod listening;
mod lowered_limit;
mod metrics;
mod operators;
mod packets;
mod partitions;
mod polling;
mod rows;
mod sasl;
mod schedules;
mod statistics;
mod tls;
mod transfers;
mod udp;
mod watch;
mod wins;
