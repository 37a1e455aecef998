//! Reads and writes of a span's bytes alone, for counting their instructions
//! (`tests/bench/span.sh`):
//!
//! ```text
//! cargo build --release -p herdwick-mem --example span_bytes
//! valgrind --tool=callgrind target/release/examples/span_bytes read 0 1000
//! ```
//!
//! `read` and `write` copy 4 KiB out of a span or into it, from this byte on, so many times.
#![forbid(unsafe_code)]

use std::{env::args, hint::black_box};

use herdwick_mem::Span;

const BYTES: usize = 4096;

fn main() {
    let words: Vec<String> = args().skip(1).collect();
    let [verb, offset, times] = &words[..] else {
        panic!("read or write, the first byte, and how many times");
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (offset, times) = (number(offset), number(times));
    let span = Span::anonymous(2 * BYTES).expect("two pages");
    let mut bytes = [7; BYTES];
    for _ in 0..times {
        match verb.as_str() {
            "read" => span.read_bytes(offset, black_box(&mut bytes)),
            _ => span.write_bytes(offset, black_box(&bytes)),
        }
    }
}
