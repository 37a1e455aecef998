/// First size, and how much is read at once at least.
const CHUNK_BYTES: usize = 16 << 10;

/// Bytes from the socket, not yet read as replies. It grows by doubling as bytes really arrive;
/// its user bounds it by refusing what announces itself too large.
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

    /// Room for more, never empty. What is unread moves to the front first.
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

    /// Notes that `len` bytes of the room are filled.
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
