//! memcached's meta commands `mg`, `ms`, `md`, `ma`, `mn`, `me`: decoding, and encoding of replies.
//!
//! The reference is memcached 1.6.45.

pub mod base64;
mod flags;
mod reply;

pub use flags::{Flags, Returns};
pub use reply::{Echo, MISS, NOTHING, OUT_OF_MEMORY, Shown, Status};

use crate::{
    Command, Decoded, KEY_BYTES_MAX, Keys, Mode, Refusal, Refused, classic,
    line::{self, Block, Line, whole_block},
    number,
};

/// Maximum number of words of a meta command that memcached accepts, command and key included.
const WORDS_MAX: usize = 20;
/// Words before the flags: the command and its key.
const BEFORE_FLAGS: usize = 2;

/// One meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// The command.
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
        /// How it treats the present item.
        mode: Mode,
        /// The data block, without its line end.
        value: &'a [u8],
    },
    /// `ms` with more data than the server accepts; the block is not here.
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

/// A key as the client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// 1 to 250 bytes.
    pub text: &'a [u8],
    /// The text is valid base64 of the key.
    pub base64: bool,
}

/// A decoded part of a command, or the refusal.
type Read<T> = Result<T, Refusal>;

/// Decodes the line that begins with `command` (an `m` and a letter), and its data block.
#[inline]
pub(crate) fn decode<'a>(line: &Line<'a>, command: &[u8], words: Keys<'a>) -> Decoded<'a> {
    let read = match command {
        b"mg" => get(words),
        b"ms" => return set(line, words),
        b"md" => delete(words),
        b"ma" => arith(words),
        b"me" => debug(words),
        b"mn" => return line.just(Command::MetaNoop),
        _ => return classic::unknown(line),
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
    simple(words, Verb::Get)
}

fn delete(words: Keys<'_>) -> Read<Meta<'_>> {
    simple(words, Verb::Delete)
}

/// Decodes a command of a key and flags.
fn simple<'a>(words: Keys<'a>, verb: Verb<'a>) -> Read<Meta<'a>> {
    let (text, rest) = key(words)?;
    let (flags, base64) = flags(text, rest, BEFORE_FLAGS)?;
    flags.check_opaque()?;
    let key = Key { text, base64 };
    Ok(Meta { verb, key, flags })
}

/// Decodes `ma`. memcached executes it before it checks the opaque, so the reply refuses an opaque
/// that is too long.
fn arith(words: Keys<'_>) -> Read<Meta<'_>> {
    let (text, rest) = key(words)?;
    let (flags, base64) = flags(text, rest, BEFORE_FLAGS)
        .map_err(|_| of_words(rest, Refusal::FlagInvalidOrDuplicate))?;
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

/// Decodes `me`. Words that cannot be flags are refused here, too; unknown flags are ignored.
fn debug(words: Keys<'_>) -> Read<Meta<'_>> {
    let (text, rest) = key(words)?;
    let base64 = rest.clone().next() == Some(b"b");
    let spelled = text.len() <= KEY_BYTES_MAX && (!base64 || base64::is_valid(text));
    if !spelled || of_words(rest, Refusal::FlagInvalid) == Refusal::Format {
        return Err(Refusal::Format);
    }
    Ok(Meta {
        verb: Verb::Debug,
        key: Key { text, base64 },
        flags: Flags::default(),
    })
}

/// Splits off the key from the words behind it.
fn key(mut words: Keys<'_>) -> Read<(&[u8], Keys<'_>)> {
    let key = words.next().ok_or(Refusal::Format)?;
    Ok((key, words))
}

/// Decodes the flags in the words `rest`, which `before` words precede; also returns whether the
/// key is base64.
#[inline]
fn flags<'a>(text: &[u8], rest: Keys<'a>, before: usize) -> Read<(Flags<'a>, bool)> {
    if text.len() > KEY_BYTES_MAX {
        return Err(Refusal::Format);
    }
    let too_many = rest.clone().nth(WORDS_MAX - before).is_some();
    let read = if too_many {
        Err(Refusal::FlagsTooLong)
    } else {
        Flags::read(text, rest)
    };
    read.map_err(|refusal| of_words(rest, refusal))
}

/// Returns the refusal of a command with the flags `rest`. memcached first checks that each begins
/// like a flag.
#[cold]
fn of_words(rest: Keys<'_>, refusal: Refusal) -> Refusal {
    let mut looked_at = rest.take(line::WORDS_MAX - BEFORE_FLAGS);
    if looked_at.all(|word| flags::begins_flag(word[0])) {
        refusal
    } else {
        Refusal::Format
    }
}

/// Decodes `ms KEY BYTES FLAG*` and its block. A refused command drops its block, if the length is
/// valid.
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
    let (mode, flags, base64) = match set_flags(text, rest) {
        Ok(read) => read,
        Err(refusal) => return swallowing(refused(refusal), whole_block(bytes)),
    };
    let meta = |verb| {
        let key = Key { text, base64 };
        Command::Meta(Meta { verb, key, flags })
    };
    let block = line.block(bytes);
    if !matches!(block, Block::Oversized(_))
        && let Err(refusal) = flags.check_opaque()
    {
        return swallowing(refused(refusal), whole_block(bytes));
    }
    let (command, used) = match block {
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

/// Decodes key and length of the block; also returns the words behind them.
fn set_line(words: Keys<'_>) -> Read<(&[u8], usize, Keys<'_>)> {
    let (text, mut rest) = key(words)?;
    let bytes = rest.next().and_then(number::block).ok_or(Refusal::Format)?;
    Ok((text, bytes, rest))
}

/// Decodes the words behind the length: mode, flags, and whether the key is base64.
fn set_flags<'a>(text: &[u8], rest: Keys<'a>) -> Read<(Mode, Flags<'a>, bool)> {
    let (flags, base64) = flags(text, rest, BEFORE_FLAGS + 1)?;
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return Err(Refusal::SetMode),
    };
    Ok((mode, flags, base64))
}

#[cfg(test)]
mod tests;
