//! The send buffer of a text connection, which knows how far the stream was sent.

use herdwick_request::number::Decimal;

/// Bytes that wait for the socket. Positions count from the start of the stream.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    /// Position of `bytes[0]`.
    base: u64,
}

impl Outbox {
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Records that the socket accepted `len` more bytes.
    pub(super) fn advance(&mut self, len: usize) {
        self.sent += len;
        debug_assert!(
            self.sent <= self.bytes.len(),
            "a socket takes no more than it is given"
        );
        if self.sent == self.bytes.len() {
            self.base += self.sent as u64;
            self.bytes.clear();
            self.sent = 0;
        }
    }

    /// Stream position of the next byte to be appended.
    pub(super) fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Stream position up to which all bytes are in the socket.
    pub(super) fn sent(&self) -> u64 {
        self.base + self.sent as u64
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a space and `number` in decimal.
    pub(super) fn push_number(&mut self, number: u64) {
        self.bytes.push(b' ');
        self.push(Decimal::new(number).as_bytes());
    }

    /// Removes the last `len` bytes, none of which was sent.
    pub(super) fn unpush(&mut self, len: usize) {
        let end = self.bytes.len() - len;
        debug_assert!(self.sent <= end, "what the socket has cannot be taken back");
        self.bytes.truncate(end);
    }
}
