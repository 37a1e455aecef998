use siphasher::sip::SipHasher13;

/// The key of the keyed hash: 128 bits from the OS's random source, told to clients in the hello.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

/// Where a key lives: SipHash-1-3 of its bytes under the server's [`HashKey`].
///
/// Bits 48..64 choose the partition, 16..48 the bucket, 0..16 the tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u64);

impl HashKey {
    /// Hashes `key`.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(SipHasher13::new_with_keys(self.0[0], self.0[1]).hash(key))
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl KeyHash {
    /// Which of `partitions` (at most 65,536) holds the key.
    #[inline]
    #[must_use]
    pub fn partition(self, partitions: usize) -> usize {
        (((self.0 >> 48) * partitions as u64) >> 16) as usize
    }
}
