//! memcached's meta commands: `mg`, `ms`, `md`, `ma`, `mn`, `me`, read and answered.
//!
//! The reference is memcached 1.6.45; where 1.6.18 refuses in other words, those of 1.6.18.

pub mod base64;
mod flags;
mod reply;

pub use flags::{Flags, Returns};
pub use reply::{Echo, MISS, NOTHING, OUT_OF_MEMORY, Shown, Status};

use crate::{
    Command, Decoded, KEY_BYTES_MAX, Keys, Mode, Refusal, Refused,
    line::{Block, Line, whole_block},
    number,
};

/// memcached looks at no more words of a meta command than this.
const WORDS_MAX: usize = 19;

/// One meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// Which.
    pub verb: Verb<'a>,
    /// Its key.
    pub key: Key<'a>,
    /// Its flags.
    pub flags: Flags<'a>,
}

/// The meta commands that have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb<'a> {
    /// `mg`
    Get,
    /// `ms`
    Put {
        /// How it treats what is there.
        mode: Mode,
        /// The data block, without its line end.
        value: &'a [u8],
    },
    /// `ms` of more than the server takes; the block is not here.
    Oversized,
    /// `md`
    Delete,
    /// `ma`
    Arith {
        /// Subtract.
        decrement: bool,
    },
    /// `me`
    Debug,
}

/// A key as the client spelled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// 1 to 250 bytes.
    pub text: &'a [u8],
    /// The text is base64 of the key, and decodes.
    pub base64: bool,
}

/// What was read, or why it is refused.
type Read<T> = Result<T, Refusal>;

/// Reads the line whose first word is `command`, an `m` and a letter, and the data block behind it.
#[inline]
pub(crate) fn decode<'a>(line: &Line<'a>, command: &[u8], words: Keys<'a>) -> Decoded<'a> {
    let read = match command {
        b"mg" => get(words),
        b"ms" => return set(line, words),
        b"md" => delete(words),
        b"ma" => arith(words),
        b"me" => debug(words),
        b"mn" => return line.just(Command::MetaNoop),
        _ => return line.just(Command::Unknown(line.text)),
    };
    line.just(read.map_or_else(refused, Command::Meta))
}

fn refused<'a>(refusal: Refusal) -> Command<'a> {
    Command::Refused(Refused {
        refusal,
        noreply: false,
    })
}

fn get(words: Keys<'_>) -> Read<Meta<'_>> {
    let (text, rest) = key(words, Refusal::FlagsAreTooLong)?;
    let (flags, base64) = Flags::read(text, rest)?;
    flags.check_opaque()?;
    Ok(Meta {
        verb: Verb::Get,
        key: Key { text, base64 },
        flags,
    })
}

fn delete(words: Keys<'_>) -> Read<Meta<'_>> {
    let (text, rest) = key(words, Refusal::FlagsTooLong)?;
    let (flags, base64) = Flags::read(text, rest).map_err(|_| Refusal::FlagInvalidOrDuplicate)?;
    flags.check_opaque()?;
    Ok(Meta {
        verb: Verb::Delete,
        key: Key { text, base64 },
        flags,
    })
}

/// memcached counts before it looks at the opaque, so one that is too long is the reply's to refuse.
fn arith(words: Keys<'_>) -> Read<Meta<'_>> {
    let (text, rest) = key(words, Refusal::FlagsTooLong)?;
    let (flags, base64) = Flags::read(text, rest).map_err(|_| Refusal::FlagInvalidOrDuplicate)?;
    let decrement = match flags.mode {
        None | Some(b'I' | b'+') => false,
        Some(b'D' | b'-') => true,
        Some(_) => return Err(Refusal::ArithMode),
    };
    Ok(Meta {
        verb: Verb::Arith { decrement },
        key: Key { text, base64 },
        flags,
    })
}

fn debug(mut words: Keys<'_>) -> Read<Meta<'_>> {
    let text = words.next().ok_or(Refusal::Format)?;
    let base64 = words.next() == Some(b"b");
    if text.len() > KEY_BYTES_MAX || base64 && !base64::is_valid(text) {
        return Err(Refusal::Format);
    }
    Ok(Meta {
        verb: Verb::Debug,
        key: Key { text, base64 },
        flags: Flags::default(),
    })
}

/// The key, and the words behind it.
fn key(mut words: Keys<'_>, too_many: Refusal) -> Read<(&[u8], Keys<'_>)> {
    let key = words.next().ok_or(Refusal::Arguments)?;
    if key.len() > KEY_BYTES_MAX {
        return Err(Refusal::Format);
    }
    // The command and the key are words too.
    if words.clone().nth(WORDS_MAX - 2).is_some() {
        return Err(too_many);
    }
    Ok((key, words))
}

/// `ms KEY BYTES FLAG*` and its block. What is refused swallows its block, if its length can be read.
fn set<'a>(line: &Line<'a>, words: Keys<'a>) -> Decoded<'a> {
    let (text, bytes, rest) = match set_line(words) {
        Ok(read) => read,
        Err(refusal) => return line.just(refused(refusal)),
    };
    let swallowing = |command, swallow| Decoded::Command {
        command,
        used: line.data_at,
        swallow,
    };
    let (mode, flags, base64) = match set_flags(words, rest) {
        Ok(read) => read,
        Err(refusal) => return swallowing(refused(refusal), whole_block(bytes)),
    };
    let meta = |verb| {
        let key = Key { text, base64 };
        Command::Meta(Meta { verb, key, flags })
    };
    let (command, used) = match line.block(bytes) {
        Block::Whole(value, at) => (meta(Verb::Put { mode, value }), at),
        Block::Unended(at) => (refused(Refusal::DataChunk), at),
        Block::Short(at) => return Decoded::NeedMore { at },
        Block::Announced => return line.announce(meta(Verb::Put { mode, value: &[] }), bytes),
        Block::Oversized(swallow) => return swallowing(meta(Verb::Oversized), swallow),
    };
    Decoded::Command {
        command,
        used,
        swallow: 0,
    }
}

/// Key, length of the block, and the words behind them.
fn set_line(words: Keys<'_>) -> Read<(&[u8], usize, Keys<'_>)> {
    let mut all = words;
    let text = all.next().ok_or(Refusal::Arguments)?;
    let bytes = all.next().and_then(number::block).ok_or(Refusal::Format)?;
    Ok((text, bytes, all))
}

/// What the words behind the length say; `words` are all of them.
fn set_flags<'a>(words: Keys<'a>, rest: Keys<'a>) -> Read<(Mode, Flags<'a>, bool)> {
    let (text, _) = key(words, Refusal::FlagsTooLong)?;
    let (flags, base64) = Flags::read(text, rest)?;
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return Err(Refusal::SetMode),
    };
    flags.check_opaque()?;
    Ok((mode, flags, base64))
}

#[cfg(test)]
mod tests;
