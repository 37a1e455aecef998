//! How requests are spread over the partitions of a server.

use herdwick_request::HashKey;

use super::{Dist, KeySpace, Mix, Trace};
use crate::SEED;

/// Any hash key: the keys are not hostile.
const HASH_KEY: HashKey = HashKey([1, 2]);
/// Bytes of a key and of a value; only the keys count.
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 32;

/// Returns the share of each partition in `draws` requests for `keys` keys, as a server with `partitions`
/// workers divides them.
#[must_use]
pub fn partition_shares(dist: Dist, keys: u64, partitions: usize, draws: usize) -> Vec<f64> {
    let mut counts = vec![0_u64; partitions];
    let mut trace = Trace::new(Mix::GetShare(1.0), dist, keys, draws, SEED);
    if let Ok(space) = KeySpace::new(keys, KEY_BYTES, VALUE_BYTES) {
        trace.hash(&HASH_KEY, &space);
    }
    for _ in 0..draws {
        if let Some((_, hash)) = trace.take_hashed() {
            counts[hash.partition(partitions)] += 1;
        }
    }
    let share = |count| count as f64 / draws.max(1) as f64;
    counts.into_iter().map(share).collect()
}
