//! Behaviours that every fabric provider shows, and a seeded fabric that misbehaves.
//!
//! [`seeded`] is a whole provider inside one process, under virtual time, whose every accident is
//! drawn from a seed: the place to test a protocol against loss, reordering and dead peers.
#![forbid(unsafe_code)]

pub mod seeded;
