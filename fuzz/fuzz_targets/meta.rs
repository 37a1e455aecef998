//! Fuzz target: the parser of memcached's meta commands, with the checks of `check.rs`.
#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::meta(input));
