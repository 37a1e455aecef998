//! A chunk with an item: header, key, value. Chunks are cut from slabs, and read and written in place.

use herdwick_request::Deadline;

/// Bytes of the header.
pub(crate) const HEADER: usize = 32;

/// What is kept of an item beside its key and its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key_len: u8,
    pub(crate) value_len: u32,
    pub(crate) version: u64,
    pub(crate) flags: u32,
    pub(crate) deadline: Deadline,
}

impl Header {
    /// Reads the header of a chunk.
    #[inline]
    pub(crate) fn read(chunk: &[u8]) -> Self {
        let word = |n: usize| u64::from_le_bytes(std::array::from_fn(|i| chunk[n * 8 + i]));
        Self {
            key_len: (word(0) >> 32) as u8,
            version: word(1),
            value_len: word(2) as u32,
            flags: (word(2) >> 32) as u32,
            deadline: Deadline(word(3) as u32),
        }
    }

    /// Writes the header.
    #[inline]
    pub(crate) fn write(&self, chunk: &mut [u8]) {
        let words = [
            u64::from(self.key_len) << 32,
            self.version,
            u64::from(self.value_len) | u64::from(self.flags) << 32,
            u64::from(self.deadline.0),
        ];
        chunk[..HEADER].copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
    }

    /// Returns the bytes before the value.
    pub(crate) fn front(&self) -> usize {
        HEADER + usize::from(self.key_len)
    }

    /// Returns the bytes of header, key and value.
    pub(crate) fn end(&self) -> usize {
        self.front() + self.value_len as usize
    }
}

/// Returns the bytes that an item needs of a chunk.
pub(crate) fn len(key: &[u8], value_len: usize) -> usize {
    HEADER + key.len() + value_len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_read_as_it_was_written() {
        let header = Header {
            key_len: 250,
            value_len: u32::MAX,
            version: u64::MAX - 1,
            flags: 0xdead_beef,
            deadline: Deadline::NEVER,
        };
        let mut chunk = [0xaa; 64];
        header.write(&mut chunk);
        assert_eq!(Header::read(&chunk), header);
        assert_eq!(chunk[HEADER..], [0xaa; 32]);
    }
}
