//! A command line and the data block behind it, as classic and meta commands share them.

use crate::{Admits, Asked, Command, Decoded, Keys, Refusal, Refused, meta::KeyRoom};

/// Bytes of a value that must arrive before it is announced, so that a command line alone reserves
/// nothing.
pub const ANNOUNCED_BYTES: usize = 8 << 10;
/// Maximum number of words of a line that memcached reads, except for the keys of a `get`.
pub(crate) const WORDS_MAX: usize = 23;

/// Returns whether this line, of an unknown command, suppresses its reply.
#[must_use]
pub fn is_noreply(line: &[u8]) -> bool {
    Keys::new(line).take(WORDS_MAX).last() == Some(b"noreply")
}

/// A command line and what follows it.
pub(crate) struct Line<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) input: &'a [u8],
    pub(crate) data_at: usize,
    pub(crate) value_bytes_max: usize,
    pub(crate) announced_bytes_min: usize,
    /// Room for a key in base64.
    pub(crate) keys: &'a KeyRoom,
    pub(crate) admits: Admits,
}

/// Returns the bytes of the stream that a block of `bytes` bytes takes, with its line end.
pub(crate) fn whole_block(bytes: usize) -> u64 {
    bytes as u64 + 2
}

/// The data block behind a line.
pub(crate) enum Block<'a> {
    /// The complete block, and the offset of its end.
    Whole(&'a [u8], usize),
    /// The block has no line end at its length: nothing is stored, and the input is used up to this
    /// offset.
    Unended(usize),
    /// The block is incomplete: decode again when the input has this many bytes.
    Short(usize),
    /// The block is large, and enough of it has arrived to be announced.
    Announced,
    /// The block is larger than the server accepts: drop this many bytes of the stream.
    Oversized(u64),
}

impl<'a> Line<'a> {
    /// Returns the unknown command (`ERROR`), or closes the connection if the line is an HTTP
    /// request: a web page can make a browser send memcached commands in one
    /// (t/malicious-commands.t).
    pub(crate) fn unknown(&self) -> Decoded<'a> {
        let behind = Keys::new(self.text).take(WORDS_MAX).skip(1).last();
        if behind.is_some_and(|word| word.starts_with(b"HTTP/")) {
            return Decoded::Close;
        }
        self.command(Command::Unknown(self.text))
    }

    /// Returns the refusal of a command without a block.
    pub(crate) fn refuse(&self, refusal: Refusal) -> Decoded<'a> {
        self.refused((refusal, false), 0)
    }

    /// Returns the refusal of a command, and whether its reply is suppressed. Its block, `swallow`
    /// bytes of the stream, is dropped, so that its contents are never executed as commands.
    pub(crate) fn refused(&self, refused: (Refusal, bool), swallow: u64) -> Decoded<'a> {
        let (refusal, noreply) = refused;
        Decoded::Refused {
            refused: Refused::Line { refusal, noreply },
            used: self.data_at,
            swallow,
        }
    }

    /// Returns the refusal of a command with a data block that ends at `used`, but not in a line end.
    pub(crate) fn unended(&self, noreply: bool, used: usize) -> Decoded<'a> {
        let refusal = Refusal::DataChunk;
        Decoded::Refused {
            refused: Refused::Line { refusal, noreply },
            used,
            swallow: 0,
        }
    }

    /// Returns a command that is no request.
    pub(crate) fn command(&self, command: Command<'a>) -> Decoded<'a> {
        Decoded::Command {
            command,
            used: self.data_at,
            swallow: 0,
        }
    }

    /// Returns a request without data.
    #[inline]
    pub(crate) fn request(&self, asked: Asked<'a>) -> Decoded<'a> {
        Decoded::Request {
            asked,
            used: self.data_at,
            swallow: 0,
        }
    }

    /// Returns a request with a block of `value_len` bytes that follows. It is not one of others: a
    /// connection that uploads executes no other.
    pub(crate) fn announce(&self, asked: Asked<'a>, value_len: usize) -> Decoded<'a> {
        if self.admits != Admits::All {
            return Decoded::Held;
        }
        Decoded::Announced {
            asked,
            used: self.data_at,
            value_len,
            has_line_end: true,
        }
    }

    /// Returns the block of `bytes` bytes behind the line.
    pub(crate) fn block(&self, bytes: usize) -> Block<'a> {
        if bytes > self.value_bytes_max {
            return Block::Oversized(whole_block(bytes));
        }
        let at = self.data_at + bytes + 2;
        match self.input.get(self.data_at..at) {
            None if bytes > self.announced_bytes_min => {
                let enough = self.data_at + ANNOUNCED_BYTES;
                if self.input.len() < enough {
                    Block::Short(enough)
                } else {
                    Block::Announced
                }
            }
            None => Block::Short(at),
            Some([value @ .., b'\r', b'\n']) => Block::Whole(value, at),
            Some(_) => Block::Unended(at),
        }
    }
}
