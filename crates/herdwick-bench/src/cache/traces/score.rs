//! What every cache under measurement does: it runs requests and counts hits; keys as text, and
//! values that name their key.

use super::{model::Answer, table::Request};
use crate::{error::BenchError, report::Latency};

/// A cache under measurement.
pub(super) trait Cache {
    /// Executes the requests, the first of which is request `at` of the trace, and counts the
    /// answers to reads.
    fn run(&mut self, requests: &[Request], at: usize, score: &mut Score)
    -> Result<(), BenchError>;

    /// Returns how long each request took since the last call, if that is measured.
    fn take_times(&mut self) -> Option<Latency> {
        None
    }
}

/// Reads and hits, in requests and in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Score {
    pub(super) reads: u64,
    pub(super) hits: u64,
    /// Bytes of all values read, whether found or not.
    pub(super) read_bytes: u64,
    pub(super) hit_bytes: u64,
    pub(super) wrong_values: u64,
}

impl Score {
    pub(super) fn count(&mut self, request: &Request, answer: Answer) {
        let (hit, bytes) = match answer {
            Answer::Hit(bytes) => (true, bytes),
            Answer::Miss => (false, request.size.into()),
            Answer::Done => return,
        };
        self.reads += 1;
        self.read_bytes += bytes;
        self.hits += u64::from(hit);
        self.hit_bytes += if hit { bytes } else { 0 };
    }
}

/// Bytes of a key: its number in hexadecimal.
pub(super) const KEY: usize = 16;

/// Returns a key as hexadecimal text.
pub(super) fn key_text(key: u64) -> [u8; KEY] {
    std::array::from_fn(|i| b"0123456789abcdef"[(key >> (60 - 4 * i)) as usize & 15])
}

/// Writes the key to the first 8 bytes of a value; a shorter value stays unsigned.
pub(super) fn sign(value: &mut [u8], key: u64) {
    if let Some(front) = value.first_chunk_mut() {
        *front = key.to_le_bytes();
    }
}

/// Returns whether a value carries the signature of `key`, or is too short for one.
pub(super) fn is_signed(value: &[u8], key: u64) -> bool {
    value
        .first_chunk()
        .is_none_or(|front| *front == key.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hexadecimal() {
        for key in [0, 7, 0x0123_4567_89ab_cdef, u64::MAX] {
            assert_eq!(
                String::from_utf8_lossy(&key_text(key)),
                format!("{key:016x}")
            );
        }
    }
}
