//! The keyed hash of keys: SipHash-1-3, under a random key that the server sends to its clients.

use siphasher::sip::SipHasher13;

/// The key of the keyed hash: 128 bits from the OS's random source, sent to clients in the hello.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

/// The hash of a key: SipHash-1-3 of its bytes under the server's [`HashKey`].
///
/// Bits 48..64 select the partition, 16..48 the bucket, 0..16 the tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u64);

impl HashKey {
    /// Returns the hash of `key`.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(SipHasher13::new_with_keys(self.0[0], self.0[1]).hash(key))
    }
}

// Written by hand so that the secret does not get into logs.
impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl KeyHash {
    /// Returns which of `partitions` (at most 65,536) holds the key.
    #[inline]
    #[must_use]
    pub fn partition(self, partitions: usize) -> usize {
        // Multiply-shift: any number of partitions without a division. Bits that neither the bucket
        // nor the tag uses, so that the keys of a partition spread over its index.
        (((self.0 >> 48) * partitions as u64) >> 16) as usize
    }
}
