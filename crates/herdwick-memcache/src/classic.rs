//! Decoding of classic text commands (protocol.txt), with memcached's rules for each argument.

mod answer;

use herdwick_request::{Arith, Delete, Get as Read, Mode, Op, Put};
use memchr::memrchr;

pub(crate) use answer::ClassicAnswer;

use self::answer::Shape;
use crate::{
    Admits, Answer, Asked, Command, Decoded, FlushAll, Get, InputRange, KEY_BYTES_MAX, Keys,
    Refusal,
    block::whole_block,
    line::{Line, WORDS_MAX},
    number,
};

/// Decodes the line that begins with `command`, and its data block.
#[inline]
pub(crate) fn decode<'a>(line: &Line<'a>, command: &[u8], words: Keys<'a>) -> Decoded<'a> {
    // In the order of `admits`: of a command that has to wait, no word but the first is decoded.
    match command {
        b"get" => retrieve(line, words, false, None),
        b"gets" => retrieve(line, words, true, None),
        b"gat" => gat(line, words, false),
        b"gats" => gat(line, words, true),
        _ if line.admits == Admits::Reads => Decoded::Held,
        b"set" => put(line, words, Storage::Mode(Mode::Set)),
        b"add" => put(line, words, Storage::Mode(Mode::Add)),
        b"replace" => put(line, words, Storage::Mode(Mode::Replace)),
        b"append" => put(line, words, Storage::Mode(Mode::Append)),
        b"prepend" => put(line, words, Storage::Mode(Mode::Prepend)),
        b"cas" => put(line, words, Storage::Cas),
        b"delete" => request(line, delete(words)),
        b"incr" => request(line, arith(words, false)),
        b"decr" => request(line, arith(words, true)),
        b"touch" => request(line, touch(words)),
        _ if line.admits == Admits::Requests => Decoded::Held,
        b"stats" => line.command(Command::Stats(words.rest())),
        b"version" => line.command(Command::Version),
        b"quit" => line.command(Command::Quit),
        _ => operators(line),
    }
}

/// Decodes the operators' commands, which may follow leading spaces, unlike the others.
fn operators<'a>(line: &Line<'a>) -> Decoded<'a> {
    let mut words = Keys::new(line.text);
    let command = match words.next().unwrap_or_default() {
        b"flush_all" => flush_all(words),
        b"cache_memlimit" => memory_limit(words),
        b"verbosity" => verbosity(words),
        b"shutdown" => Ok(shutdown(words)),
        _ => return line.unknown(),
    };
    match command {
        Ok(command) => line.command(command),
        Err(refused) => line.refused(refused, 0),
    }
}

/// A refusal, and whether its reply is suppressed.
type Flaw = (Refusal, bool);

/// The storage commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    Mode(Mode),
    /// `cas`, with the CAS unique to compare as a word more.
    Cas,
}

impl Storage {
    fn mode(self) -> Mode {
        match self {
            Self::Mode(mode) => mode,
            Self::Cas => Mode::Set,
        }
    }
}

#[inline]
fn request<'a>(line: &Line<'a>, asked: Result<Asked<'a>, Flaw>) -> Decoded<'a> {
    match asked {
        Ok(asked) => line.request(asked),
        Err(refused) => line.refused(refused, 0),
    }
}

fn asked<'a>(key: &'a [u8], op: Op<'a>, shape: Shape, noreply: bool) -> Asked<'a> {
    let answer = Answer::Classic(ClassicAnswer { shape, noreply });
    Asked { key, op, answer }
}

/// Decodes a storage command and its block.
fn put<'a>(line: &Line<'a>, words: Keys<'a>, verb: Storage) -> Decoded<'a> {
    let PutLine {
        key,
        put,
        bytes,
        noreply,
    } = match PutLine::read(words, verb) {
        Ok(read) => read,
        Err((refused, discard)) => return line.refused(refused, discard),
    };
    // They differ in the reply to a value that is too large once it is joined.
    let shape = match put.mode {
        Mode::Append | Mode::Prepend => Shape::Extended,
        Mode::Set | Mode::Add | Mode::Replace => Shape::Stored,
    };
    let stores = |value| asked(key, Op::Put(Put { value, ..put }), shape, noreply);
    match line.stores(bytes, stores) {
        Ok(decoded) => decoded,
        // Only `set` removes the old value on failure.
        Err(discard) if verb == Storage::Mode(Mode::Set) => Decoded::Request {
            asked: asked(key, Op::Delete(Delete::default()), Shape::TooLarge, noreply),
            used: line.data_at,
            discard,
        },
        Err(discard) => line.refused((Refusal::TooLarge, noreply), discard),
    }
}

/// Maximum number of meaningful words of a command besides its name: those of `cas`.
const MEANT_WORDS: usize = 5;

/// The words after a command's name. Surplus words are ignored.
struct Words<'a> {
    words: [&'a [u8]; MEANT_WORDS],
    count: usize,
    /// `noreply` is the last word; memcached recognizes it nowhere else.
    noreply: bool,
}

impl<'a> Words<'a> {
    #[inline]
    fn new(source: Keys<'a>) -> Self {
        match source.short() {
            Some(source) => Self::collect(source),
            None => Self::collect(source),
        }
    }

    #[inline]
    fn collect(source: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut words = [&b""[..]; MEANT_WORDS];
        let (mut count, mut last) = (0, &b""[..]);
        // The command's name is one of the words that memcached reads.
        for word in source.take(WORDS_MAX - 1) {
            if let Some(slot) = words.get_mut(count) {
                *slot = word;
            }
            (count, last) = (count + 1, word);
        }
        Self {
            words,
            count,
            noreply: last == b"noreply",
        }
    }

    /// As [`Self::new`], but refuses fewer than `min` words. That refusal is sent in spite of
    /// `noreply`.
    fn at_least(source: Keys<'a>, min: usize) -> Result<Self, Flaw> {
        let words = Self::new(source);
        if words.count < min {
            return Err((Refusal::Format, false));
        }
        Ok(words)
    }

    fn refuse(&self, refusal: Refusal) -> Flaw {
        (refusal, self.noreply)
    }

    /// Returns the first word as a key; refuses one that is too long.
    fn key(&self) -> Result<&'a [u8], Flaw> {
        let key = self.words[0];
        if key.len() > KEY_BYTES_MAX {
            return Err(self.refuse(Refusal::Format));
        }
        Ok(key)
    }
}

/// The line of a storage command: `KEY FLAGS EXPTIME BYTES [CAS] [noreply]`.
struct PutLine<'a> {
    key: &'a [u8],
    /// Without its value ...
    put: Put<'a>,
    /// ... which has this many bytes.
    bytes: usize,
    noreply: bool,
}

impl<'a> PutLine<'a> {
    /// Decodes the words behind the command's name.
    ///
    /// # Errors
    /// The refusal, and the bytes of the stream to drop with it.
    #[inline]
    fn read(source: Keys<'a>, verb: Storage) -> Result<Self, (Flaw, u64)> {
        let words = Words::at_least(source, MEANT_WORDS - 1).map_err(|flaw| (flaw, 0))?;
        let noreply = words.noreply;
        let [key, flags, exptime, bytes, unique] = words.words;
        // Without a valid length there is no block: what follows is a command (t/issue_70.t).
        let bytes = number::block(bytes).ok_or(((Refusal::Format, false), 0))?;
        let read = || {
            let compare = match verb {
                Storage::Cas => Some(number::unsigned(unique)?),
                Storage::Mode(_) => None,
            };
            let put = Put {
                mode: verb.mode(),
                flags: number::stored_flags(flags)?,
                exptime: number::stored_exptime(exptime)?,
                compare,
                ..Put::default()
            };
            (key.len() <= KEY_BYTES_MAX).then_some(put)
        };
        // The length is valid, so the block is dropped with the line; else it would be executed.
        let put = read().ok_or_else(|| (words.refuse(Refusal::Format), whole_block(bytes)))?;
        Ok(Self {
            key,
            put,
            bytes,
            noreply,
        })
    }
}

fn gat<'a>(line: &Line<'a>, mut words: Keys<'a>, with_cas: bool) -> Decoded<'a> {
    let exptime = words.next().unwrap_or_default();
    match number::exptime(exptime) {
        // With keys, only the exptime is wrong; without, the line is.
        None if !words.is_done() => line.refuse(Refusal::Exptime),
        None => line.refuse(Refusal::Format),
        exptime => retrieve(line, words, with_cas, exptime),
    }
}

/// Decodes a retrieval; `keys` are the end of `line`. One key that is too long makes the whole
/// command invalid (t/issue_152.t).
#[inline]
fn retrieve<'a>(
    line: &Line<'a>,
    keys: Keys<'a>,
    with_cas: bool,
    touch: Option<u32>,
) -> Decoded<'a> {
    if keys.is_done() || has_long_word(keys.rest()) {
        return line.refuse(Refusal::Format);
    }
    Decoded::Get {
        get: Get {
            // By place: the keys of a long `get` are taken in several runs, while the input may
            // move.
            keys: InputRange::behind(line.text, line.text.len() - keys.rest().len()),
            with_cas,
            touch,
        },
        used: line.data_at,
    }
}

/// Returns whether a word is longer than a key may be. Each step searches the last space within a
/// key's reach, so most words are skipped.
fn has_long_word(mut text: &[u8]) -> bool {
    while text.len() > KEY_BYTES_MAX {
        match memrchr(b' ', &text[..=KEY_BYTES_MAX]) {
            Some(space) => {
                #[cfg(test)]
                crate::counting::scan(&text[space..=KEY_BYTES_MAX], None);
                text = &text[space + 1..];
            }
            None => return true,
        }
    }
    false
}

fn delete(source: Keys<'_>) -> Result<Asked<'_>, Flaw> {
    let words = Words::at_least(source, 1)?;
    // Surplus words are ignored, such as the 0 of `delete KEY 0` (t/issue_108.t).
    let op = Op::Delete(Delete::default());
    Ok(asked(words.key()?, op, Shape::Deleted, words.noreply))
}

fn arith(source: Keys<'_>, decrement: bool) -> Result<Asked<'_>, Flaw> {
    let words = Words::at_least(source, 2)?;
    let key = words.key()?;
    let delta = number::unsigned(words.words[1]).ok_or_else(|| words.refuse(Refusal::Delta))?;
    let op = Op::Arith(Arith {
        decrement,
        delta,
        ..Arith::default()
    });
    Ok(asked(key, op, Shape::Number, words.noreply))
}

fn touch(source: Keys<'_>) -> Result<Asked<'_>, Flaw> {
    let words = Words::at_least(source, 2)?;
    let key = words.key()?;
    let exptime = number::exptime(words.words[1]).ok_or_else(|| words.refuse(Refusal::Exptime))?;
    let op = Op::Get(Read {
        touch: Some(exptime),
        // Classic text has no flag for a recache win.
        unaware: true,
        ..Read::default()
    });
    Ok(asked(key, op, Shape::Touched, words.noreply))
}

fn flush_all(source: Keys<'_>) -> Result<Command<'static>, Flaw> {
    let words = Words::new(source);
    let noreply = words.noreply;
    // A `noreply` that is the only word is no delay.
    let bare = words.count == usize::from(noreply);
    let delay = if bare {
        Some(0)
    } else {
        number::delay(words.words[0])
    };
    let delay = delay.ok_or_else(|| words.refuse(Refusal::Exptime))?;
    Ok(Command::FlushAll(FlushAll { delay, noreply }))
}

fn verbosity(source: Keys<'_>) -> Result<Command<'static>, Flaw> {
    let words = Words::new(source);
    let noreply = words.noreply;
    let level = number::unsigned32(words.words[0]).ok_or_else(|| words.refuse(Refusal::Format))?;
    Ok(Command::Verbosity { level, noreply })
}

fn memory_limit(source: Keys<'_>) -> Result<Command<'static>, Flaw> {
    let words = Words::new(source);
    let noreply = words.noreply;
    let megabytes =
        number::unsigned32(words.words[0]).ok_or_else(|| words.refuse(Refusal::Limit))?;
    Ok(Command::MemoryLimit { megabytes, noreply })
}

/// Decodes `shutdown`. As in memcached, any prefix of `graceful` counts as `graceful`.
fn shutdown(source: Keys<'_>) -> Command<'static> {
    let words = Words::new(source);
    let graceful = words.count == 1 && b"graceful".starts_with(words.words[0]);
    Command::Shutdown {
        known: words.count == 0 || graceful,
        noreply: words.noreply,
    }
}

#[cfg(test)]
mod tests;
