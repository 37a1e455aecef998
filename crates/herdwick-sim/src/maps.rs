//! Maps by ids of the network: looked up, and never iterated in an order that a run could depend on.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use herdwick_check::mix;

/// A map by an id. Its hash has no seed, so that a run costs the same each time.
pub(super) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Hashes ids of 32 bits, which are counted or drawn by the network itself.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.write_u64(u64::from(id));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = mix(self.0 ^ id);
    }
}
