use memchr::memchr;

use crate::{ANNOUNCED_BYTES, Command, Decoded, Keys, Refusal, Refused, classic, meta};

/// memcached takes a line of fewer bytes, its end included, for none.
const LINE_BYTES_MIN: usize = 4;
/// memcached looks at no more words of a line than this, but for the keys of a `get`.
pub(crate) const WORDS_MAX: usize = 23;

/// Whether the answer to this line, whose command is unknown to the decoder, is not to be heard.
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

/// How much of the stream a block of `bytes` bytes takes, with its line end.
pub(crate) fn whole_block(bytes: usize) -> u64 {
    bytes as u64 + 2
}

/// The data block behind a line.
pub(crate) enum Block<'a> {
    /// All of it, and where it ends.
    Whole(&'a [u8], usize),
    /// It does not end in a line end where it should: nothing stored, and this much used.
    Unended(usize),
    /// Not all of it is here: ask again when the input has this many bytes.
    Short(usize),
    /// It is large, and enough of it is here to begin with.
    Announced,
    /// It exceeds what the server takes: this much of the stream is to be dropped.
    Oversized(u64),
}

impl<'a> Line<'a> {
    #[inline]
    pub(crate) fn decode(&self) -> Decoded<'a> {
        if self.data_at < LINE_BYTES_MIN {
            return self.refuse(Refusal::Format);
        }
        // A space before the command hides it; those of operators are found all the same.
        let end = memchr(b' ', self.text).unwrap_or(self.text.len());
        let (command, rest) = self.text.split_at(end);
        let words = Keys::new(rest);
        match command {
            &[b'm', _] => meta::decode(self, command, words),
            _ => classic::decode(self, command, words),
        }
    }

    /// A command that is refused, and has no block.
    pub(crate) fn refuse(&self, refusal: Refusal) -> Decoded<'a> {
        let noreply = false;
        self.refused(Refused { refusal, noreply }, 0)
    }

    /// A command that is refused: what stands in its block, `swallow` bytes of the stream, is data, and
    /// never a command.
    pub(crate) fn refused(&self, refused: Refused, swallow: u64) -> Decoded<'a> {
        Decoded::Command {
            command: Command::Refused(refused),
            used: self.data_at,
            swallow,
        }
    }

    /// A command without data.
    pub(crate) fn just(&self, command: Command<'a>) -> Decoded<'a> {
        Decoded::Command {
            command,
            used: self.data_at,
            swallow: 0,
        }
    }

    /// A command whose block of `value_len` bytes follows.
    pub(crate) fn announce(&self, command: Command<'a>, value_len: usize) -> Decoded<'a> {
        Decoded::Announced {
            command,
            used: self.data_at,
            value_len,
            has_line_end: true,
        }
    }

    /// The block of `bytes` bytes behind the line.
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
