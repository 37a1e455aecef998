//! A command line and the data block behind it, as classic and meta commands share them.

use memchr::memchr;

use crate::{ANNOUNCED_BYTES, Command, Decoded, Keys, Refusal, Refused, classic, meta};

/// Minimum length of a line in bytes, its end included; memcached refuses shorter ones.
const LINE_BYTES_MIN: usize = 4;
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
    #[inline]
    pub(crate) fn decode(&self) -> Decoded<'a> {
        if self.data_at < LINE_BYTES_MIN {
            return self.refuse(Refusal::Format);
        }
        // A leading space hides a command, as in memcached; `classic` still finds the operators'.
        let end = memchr(b' ', self.text).unwrap_or(self.text.len());
        let (command, rest) = self.text.split_at(end);
        let words = Keys::new(rest);
        match command {
            &[b'm', _] => meta::decode(self, command, words),
            _ => classic::decode(self, command, words),
        }
    }

    /// Returns the refusal of a command without a block.
    pub(crate) fn refuse(&self, refusal: Refusal) -> Decoded<'a> {
        let noreply = false;
        self.refused(Refused { refusal, noreply }, 0)
    }

    /// Returns the refusal of a command. Its block, `swallow` bytes of the stream, is dropped, so
    /// that its contents are never executed as commands.
    pub(crate) fn refused(&self, refused: Refused, swallow: u64) -> Decoded<'a> {
        Decoded::Command {
            command: Command::Refused(refused),
            used: self.data_at,
            swallow,
        }
    }

    /// Returns a command without data.
    pub(crate) fn just(&self, command: Command<'a>) -> Decoded<'a> {
        Decoded::Command {
            command,
            used: self.data_at,
            swallow: 0,
        }
    }

    /// Returns a command with a block of `value_len` bytes that follows.
    pub(crate) fn announce(&self, command: Command<'a>, value_len: usize) -> Decoded<'a> {
        Decoded::Announced {
            command,
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
