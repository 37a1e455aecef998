//! memcached's meta commands `mg`, `ms`, `md`, `ma`, `mn`, `me`: decoding to requests, and encoding of
//! replies.
//!
//! The reference is memcached 1.6.45.

mod answer;
pub mod base64;
mod flags;
mod keys;
mod reply;

use herdwick_request::{Arith, Delete, Get, Mode, Op, Put};

pub use answer::MetaAnswer;
pub use flags::Returns;
pub use keys::KeyRoom;
pub use reply::{Echo, MISS, NOTHING, OUT_OF_MEMORY, Shown, Status};

use self::{answer::MetaKind, flags::Flags};
use crate::{
    Admits, Answer, Asked, Command, Decoded, KEY_BYTES_MAX, Keys, Refusal,
    block::whole_block,
    line::{self, Line},
    number,
};

/// Maximum number of words of a meta command that memcached accepts, command and key included.
const WORDS_MAX: usize = 20;
/// Words before the flags: the command and its key.
const BEFORE_FLAGS: usize = 2;

/// Offset of the key of a command, behind `m`, a letter and a space.
pub(crate) const KEY_AT: usize = 3;

/// A key, and whether the client sent it in base64.
#[derive(Clone, Copy)]
struct Key<'a> {
    /// 1 to 250 bytes, decoded.
    bytes: &'a [u8],
    base64: bool,
}

/// A decoded part of a command, or the refusal.
type ParsedPart<T> = Result<T, Refusal>;

/// Decodes the line that begins with `command` (an `m` and a letter), and its data block.
#[inline]
pub(crate) fn decode<'a>(line: &Line<'a>, command: &[u8], words: Keys<'a>) -> Decoded<'a> {
    let asked = match command {
        // In the order of `admits`, as in `classic`.
        b"mg" => get(line, words),
        b"me" => debug(line, words),
        _ if line.admits == Admits::Reads => return Decoded::Held,
        b"ms" => return set(line, words),
        b"md" => delete(line, words),
        b"ma" => arith(line, words),
        _ if line.admits == Admits::Requests => return Decoded::Held,
        b"mn" => return line.command(Command::MetaNoop),
        _ => return line.unknown(),
    };
    match asked {
        Ok(asked) => line.request(asked),
        Err(refusal) => line.refuse(refusal),
    }
}

/// Returns the request, with the answer that `flags` ask for.
#[inline]
fn asked<'a>(key: Key<'a>, op: Op<'a>, kind: MetaKind, flags: &Flags<'a>) -> Asked<'a> {
    Asked {
        key: key.bytes,
        op,
        answer: Answer::Meta(MetaAnswer::new(kind, flags, key.base64)),
    }
}

fn get<'a>(line: &Line<'a>, words: Keys<'a>) -> ParsedPart<Asked<'a>> {
    let (key, flags) = key_and_flags(line, words)?;
    let (value, unless) = (flags.value, flags.compare);
    let op = Op::Get(Get {
        touch: flags.touch,
        // `N` asks for an item on a miss, but a `T` after it changes its exptime.
        vivify: flags.vivify.map(|_| flags.made),
        recache: flags.recache,
        touch_first: flags.touch_first,
        // The reply shows a recache win (`W`).
        unaware: false,
        version: flags.unique,
        quiet_access: flags.no_update,
    });
    Ok(asked(key, op, MetaKind::Get { value, unless }, &flags))
}

fn delete<'a>(line: &Line<'a>, words: Keys<'a>) -> ParsedPart<Asked<'a>> {
    let (key, flags) = key_and_flags(line, words)?;
    let op = Op::Delete(Delete {
        compare: flags.compare,
        version: flags.unique,
        invalidate: flags.invalidate,
        exptime: flags.touch,
        drop_value: flags.drop_value,
        flags: flags.client_flags,
    });
    Ok(asked(key, op, MetaKind::Delete, &flags))
}

/// Decodes the words of a command of a key and flags.
#[inline]
fn key_and_flags<'a>(line: &Line<'a>, words: Keys<'a>) -> ParsedPart<(Key<'a>, Flags<'a>)> {
    let (text, rest) = key(line, words)?;
    let (key, flags) = flags(line, text, rest, BEFORE_FLAGS)?;
    flags.check_opaque()?;
    Ok((key, flags))
}

/// Decodes `ma`. memcached executes it before it checks the opaque, so the reply refuses an opaque
/// that is too long.
fn arith<'a>(line: &Line<'a>, words: Keys<'a>) -> ParsedPart<Asked<'a>> {
    let (text, rest) = key(line, words)?;
    // `ma` has one text for every error in its flags.
    let (key, flags) = flags(line, text, rest, BEFORE_FLAGS)
        .map_err(|_| of_words(rest, Refusal::FlagInvalidOrDuplicate))?;
    let decrement = match flags.mode {
        None | Some(b'I' | b'+') => false,
        Some(b'D' | b'-') => true,
        Some(_) => return Err(Refusal::ArithMode),
    };
    let op = Op::Arith(Arith {
        decrement,
        delta: flags.delta.unwrap_or(1),
        vivify: flags.vivify.map(|_| flags.made),
        initial: flags.initial,
        touch: flags.touch,
        compare: flags.compare,
        version: flags.unique,
    });
    let value = flags.value;
    Ok(asked(key, op, MetaKind::Arith { value }, &flags))
}

/// Decodes `me`. Words that cannot be flags are refused here, too; unknown flags are ignored.
fn debug<'a>(line: &Line<'a>, words: Keys<'a>) -> ParsedPart<Asked<'a>> {
    let (text, rest) = key(line, words)?;
    if text.len() > KEY_BYTES_MAX || of_words(rest, Refusal::FlagInvalid) == Refusal::Format {
        return Err(Refusal::Format);
    }
    // As the first word only: the others are not read.
    let base64 = rest.clone().next() == Some(b"b");
    let bytes = match base64 {
        true => line.keys.decode(text).ok_or(Refusal::Format)?,
        false => text,
    };
    let peek = Get {
        // It shows the last access, so it must not be one.
        quiet_access: true,
        unaware: true,
        ..Get::default()
    };
    let key = Key { bytes, base64 };
    Ok(asked(
        key,
        Op::Get(peek),
        MetaKind::Debug,
        &Flags::default(),
    ))
}

/// Splits off the key from the words behind it.
fn key<'a>(line: &Line<'a>, mut words: Keys<'a>) -> ParsedPart<(&'a [u8], Keys<'a>)> {
    // Its end is known, unless more than one space precedes it or its line came in pieces.
    let known = line.text.get(KEY_AT..line.key_end.min(line.text.len()));
    if let Some(key) = known.filter(|key| !key.is_empty()) {
        let rest = line.text.get(line.key_end + 1..).unwrap_or_default();
        return Ok((key, Keys::new(rest)));
    }
    let key = words.next().ok_or(Refusal::Format)?;
    Ok((key, words))
}

/// Decodes the flags in the words `rest`, which `before` words precede, and the key `text`, which is
/// base64 if the flags contain `b`.
#[inline]
fn flags<'a>(
    line: &Line<'a>,
    text: &'a [u8],
    rest: Keys<'a>,
    before: usize,
) -> ParsedPart<(Key<'a>, Flags<'a>)> {
    // The limit is of the word as it was sent, in base64 or not.
    if text.len() > KEY_BYTES_MAX {
        return Err(Refusal::Format);
    }
    // Counted before they are read: this error comes before those of single flags.
    let too_many = rest.clone().nth(WORDS_MAX - before).is_some();
    let read = if too_many {
        Err(Refusal::FlagsTooLong)
    } else {
        Flags::read(|| line.keys.decode(text), rest)
    };
    match read {
        Ok((flags, decoded)) => {
            let key = Key {
                bytes: decoded.unwrap_or(text),
                base64: decoded.is_some(),
            };
            Ok((key, flags))
        }
        Err(refusal) => Err(of_words(rest, refusal)),
    }
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
    let (text, bytes, rest) = match set_line(line, words) {
        Ok(read) => read,
        Err(refusal) => return line.refuse(refusal),
    };
    let refuse = |refusal| line.refused((refusal, false), whole_block(bytes));
    let (mode, key, flags) = match set_flags(line, text, rest) {
        Ok(read) => read,
        Err(refusal) => return refuse(refusal),
    };
    // Of a value that is too large, that is the only error.
    let is_accepted = bytes <= line.limits.value_bytes_max;
    if is_accepted && let Err(refusal) = flags.check_opaque() {
        return refuse(refusal);
    }
    let stores = |value| {
        asked(
            key,
            Op::Put(put(mode, value, &flags)),
            MetaKind::Put,
            &flags,
        )
    };
    // The old item is removed in every mode, other than for the classic commands.
    line.stores(bytes, stores).unwrap_or_else(|discard| {
        let removal = Op::Delete(Delete::default());
        Decoded::Request {
            asked: asked(key, removal, MetaKind::TooLarge, &flags),
            used: line.data_at,
            discard,
        }
    })
}

fn put<'a>(mode: Mode, value: &'a [u8], flags: &Flags<'_>) -> Put<'a> {
    Put {
        mode,
        value,
        flags: flags.client_flags,
        exptime: flags.touch.unwrap_or(0),
        compare: flags.compare,
        // For `ms` only, a version of 0 means none, as in memcached.
        version: flags.unique.filter(|&unique| unique != 0),
        invalidate: flags.invalidate,
        vivify: flags.vivify,
        staged: None,
    }
}

/// Decodes key and length of the block; also returns the words behind them.
fn set_line<'a>(line: &Line<'a>, words: Keys<'a>) -> ParsedPart<(&'a [u8], usize, Keys<'a>)> {
    let (text, mut rest) = key(line, words)?;
    let bytes = rest.next().and_then(number::block).ok_or(Refusal::Format)?;
    Ok((text, bytes, rest))
}

/// Decodes the words behind the length: mode and flags; and the key.
fn set_flags<'a>(
    line: &Line<'a>,
    text: &'a [u8],
    rest: Keys<'a>,
) -> ParsedPart<(Mode, Key<'a>, Flags<'a>)> {
    // The length is one word more.
    let (key, flags) = flags(line, text, rest, BEFORE_FLAGS + 1)?;
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return Err(Refusal::SetMode),
    };
    Ok((mode, key, flags))
}

#[cfg(test)]
mod tests;
