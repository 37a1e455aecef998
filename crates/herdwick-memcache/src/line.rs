//! A command line and the data block behind it, as classic and meta commands share them.

use std::cell::Cell;

use crate::{
    Admits, Asked, Command, Decoded, Keys, Refusal, Refused,
    awaited::Awaited,
    block::{Block, BlockLimits, announced, block, unended},
    meta::KeyRoom,
};

/// Maximum number of words of a line that memcached reads, except for the keys of a `get`.
pub(crate) const WORDS_MAX: usize = 23;

/// Returns whether this line, of an unknown command, suppresses its reply.
#[must_use]
pub fn is_noreply(line: &[u8]) -> bool {
    // The last of the words that memcached reads, which is not always that of the line.
    Keys::new(line).take(WORDS_MAX).last() == Some(b"noreply")
}

/// A command line and what follows it.
pub(crate) struct Line<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) input: &'a [u8],
    pub(crate) data_at: usize,
    /// Offset of the end of the key, if the search for the line's end has passed it; else 0.
    pub(crate) key_end: usize,
    pub(crate) limits: BlockLimits,
    /// Room for a key in base64.
    pub(crate) keys: &'a KeyRoom,
    pub(crate) admits: Admits,
    /// The command, if its block has not arrived.
    pub(crate) awaited: Cell<Option<Box<Awaited>>>,
}

impl<'a> Line<'a> {
    /// Returns the unknown command (`ERROR`), or closes the connection if the line is an HTTP
    /// request: a web page can make a browser send memcached commands in one
    /// (t/malicious-commands.t).
    pub(crate) fn unknown(&self) -> Decoded<'a> {
        // The last word of an HTTP request line is its version.
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

    /// Returns the refusal of a command, and whether its reply is suppressed. Its block, `discard`
    /// bytes of the stream, is dropped, so that its contents are never executed as commands.
    pub(crate) fn refused(&self, refused: (Refusal, bool), discard: u64) -> Decoded<'a> {
        let (refusal, noreply) = refused;
        Decoded::Refused {
            refused: Refused::Line { refusal, noreply },
            used: self.data_at,
            discard,
        }
    }

    /// Returns a command that is no request.
    pub(crate) fn command(&self, command: Command<'a>) -> Decoded<'a> {
        Decoded::Command {
            command,
            used: self.data_at,
            discard: 0,
        }
    }

    /// Returns a request without data.
    #[inline]
    pub(crate) fn request(&self, asked: Asked<'a>) -> Decoded<'a> {
        Decoded::Request {
            asked,
            used: self.data_at,
            discard: 0,
        }
    }

    /// Returns a storage command, which `asked` makes of its value, with its block of `bytes` bytes;
    /// [`Block::Oversized`] if the server does not accept it. A command whose block has not arrived
    /// is [awaited](Awaited).
    pub(crate) fn stores(
        &self,
        bytes: usize,
        asked: impl Fn(&'a [u8]) -> Asked<'a>,
    ) -> Result<Decoded<'a>, u64> {
        Ok(match block(self.input, self.data_at, bytes, self.limits) {
            Block::Whole(value, used) => Decoded::Request {
                asked: asked(value),
                used,
                discard: 0,
            },
            Block::Unended(used) => unended(asked(&[]).answer.is_silent(), used),
            // Kept, so that the line is decoded once, however the block arrives.
            Block::Short(at) => {
                self.keep(&asked(&[]), bytes);
                Decoded::NeedMore { at }
            }
            // It is not one of others: a connection that uploads executes no other.
            Block::Announced if self.admits != Admits::All => {
                self.keep(&asked(&[]), bytes);
                Decoded::Held
            }
            Block::Announced => announced(asked(&[]), self.data_at, bytes),
            // The caller's: it depends on the command whether the old item is removed.
            Block::Oversized(discard) => return Err(discard),
        })
    }

    fn keep(&self, asked: &Asked<'_>, bytes: usize) {
        let block = (self.data_at, bytes);
        self.awaited.set(Awaited::new(asked, self.input, block));
    }
}
