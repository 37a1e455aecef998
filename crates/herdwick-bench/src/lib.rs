//! Load, measurement and report
#![forbid(unsafe_code)]

pub mod host;
pub mod pace;
pub mod report;
pub mod tally;
pub mod target;
pub mod tcp;
pub mod workload;
