//! The CRC-32 of the packets of a batch, timed:
//!
//! ```text
//! cargo run --release -p herdwick-mem --example crc32
//! ```
//!
//! A line for each length: nanoseconds a packet for a batch of four, for one packet alone, and for
//! the crate `crc32fast`.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::{array, hint::black_box, time::Instant};

use herdwick_mem::crc32_interleaved;

/// Payloads of a request's packet, of a longer one, and of each MTU of RoCE.
const LENGTHS: [usize; 8] = [44, 92, 156, 284, 540, 1052, 2076, 4124];
const BATCH: usize = 4;
/// Each figure is the least of so many runs of so many bytes.
const RUNS: usize = 15;
const BYTES: usize = 4 << 20;

fn main() {
    println!("bytes  batch ns  alone ns  crc32fast ns");
    for len in LENGTHS {
        let packets = vec![vec![7_u8; len]; BATCH];
        let batch: [&[u8]; BATCH] = array::from_fn(|i| &packets[i][..]);
        let four = least(BYTES / len, || {
            black_box(crc32_interleaved([1; BATCH], black_box(batch)));
        });
        let alone = least(BYTES / len, || {
            black_box(crc32_interleaved([1], [black_box(batch[0])]));
        });
        let library = least(BYTES / len, || {
            let mut hasher = crc32fast::Hasher::new_with_initial(1);
            hasher.update(black_box(batch[0]));
            black_box(hasher.finalize());
        });
        let four = four / BATCH as f64;
        println!("{len:5}  {four:8.1}  {alone:8.1}  {library:12.1}");
    }
}

/// Returns the nanoseconds of one call, the least of several runs.
fn least(calls: usize, mut call: impl FnMut()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        start.elapsed().as_nanos() as f64 / calls as f64
    };
    (0..RUNS).map(run).fold(f64::INFINITY, f64::min)
}
