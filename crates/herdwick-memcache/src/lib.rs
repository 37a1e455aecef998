//! memcached's text protocol as bytes: parse requests, format replies
#![forbid(unsafe_code)]

pub mod reply;
