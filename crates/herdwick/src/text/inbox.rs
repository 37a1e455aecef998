//! The receive buffer of a text connection; its growth follows the bytes that have arrived.

/// First size, and the least room for a read.
const CHUNK_BYTES: usize = 16 << 10;

/// Bytes from the socket that are not parsed yet. The buffer doubles as bytes arrive; its user
/// bounds it by refusing a value that announces too large a size.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns room for more bytes, never empty. Moves unparsed bytes to the front first.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            self.bytes.resize((self.end * 2).max(CHUNK_BYTES), 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Records that `len` bytes of the room are filled.
    pub(super) fn filled(&mut self, len: usize) {
        self.end += len;
        debug_assert!(
            self.end <= self.bytes.len(),
            "a socket fills no more than the room"
        );
    }

    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        debug_assert!(
            self.start <= self.end,
            "a reply is no longer than what is unread"
        );
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }
}
