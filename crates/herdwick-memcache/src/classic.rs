//! Decoding of classic text commands (protocol.txt), with memcached's rules for each argument.

use memchr::memrchr;

use crate::{
    Arith, Command, Decoded, Delete, Extent, FlushAll, Get, KEY_BYTES_MAX, Keys, Oversized, Put,
    Refusal, Refused, Touch, Verb,
    line::{Block, Line, WORDS_MAX, whole_block},
    number,
};

/// Decodes the line that begins with `command`, and its data block.
#[inline]
pub(crate) fn decode<'a>(line: &Line<'a>, command: &[u8], words: Keys<'a>) -> Decoded<'a> {
    match command {
        b"get" => line.just(retrieve(line, words, false, None)),
        b"gets" => line.just(retrieve(line, words, true, None)),
        b"set" => put(line, words, Verb::Set),
        b"add" => put(line, words, Verb::Add),
        b"replace" => put(line, words, Verb::Replace),
        b"append" => put(line, words, Verb::Append),
        b"prepend" => put(line, words, Verb::Prepend),
        b"cas" => put(line, words, Verb::Cas(0)),
        b"delete" => line.just(delete(words)),
        b"incr" => line.just(arith(words, false)),
        b"decr" => line.just(arith(words, true)),
        b"touch" => line.just(touch(words)),
        b"gat" => line.just(gat(line, words, false)),
        b"gats" => line.just(gat(line, words, true)),
        b"stats" => line.just(Command::Stats(words)),
        b"version" => line.just(Command::Version),
        b"quit" => line.just(Command::Quit),
        _ => operators(line),
    }
}

/// Decodes the operators' commands, which may follow leading spaces, unlike the others.
fn operators<'a>(line: &Line<'a>) -> Decoded<'a> {
    let mut words = Keys::new(line.text);
    match words.next().unwrap_or_default() {
        b"flush_all" => line.just(flush_all(words)),
        b"cache_memlimit" => line.just(memory_limit(words)),
        b"verbosity" => line.just(verbosity(words)),
        b"shutdown" => line.just(shutdown(words)),
        _ => unknown(line),
    }
}

/// Returns the unknown command (`ERROR`), or closes the connection if the line is an HTTP request:
/// a web page can make a browser send memcached commands in one (t/malicious-commands.t).
pub(crate) fn unknown<'a>(line: &Line<'a>) -> Decoded<'a> {
    let behind = Keys::new(line.text).take(WORDS_MAX).skip(1).last();
    if behind.is_some_and(|word| word.starts_with(b"HTTP/")) {
        return Decoded::Close;
    }
    line.just(Command::Unknown(line.text))
}

/// Decodes a storage command and its block.
fn put<'a>(line: &Line<'a>, words: Keys<'a>, verb: Verb) -> Decoded<'a> {
    let (put, bytes) = match put_line(words, verb) {
        Ok(read) => read,
        Err((refused, swallow)) => return line.refused(refused, swallow),
    };
    let (command, used) = match line.block(bytes) {
        Block::Whole(value, at) => (Command::Put(Put { value, ..put }), at),
        Block::Unended(at) => (refused(Refusal::DataChunk, put.noreply), at),
        Block::Short(at) => return Decoded::NeedMore { at },
        Block::Announced => return line.announce(Command::Put(put), bytes),
        Block::Oversized(swallow) => {
            return Decoded::Command {
                command: Command::Oversized(Oversized {
                    verb,
                    key: put.key,
                    noreply: put.noreply,
                }),
                used: line.data_at,
                swallow,
            };
        }
    };
    Decoded::Command {
        command,
        used,
        swallow: 0,
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
    fn new(source: Keys<'a>) -> Self {
        let mut words = [&b""[..]; MEANT_WORDS];
        let (mut count, mut last) = (0, &b""[..]);
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
    fn at_least(source: Keys<'a>, min: usize) -> Result<Self, Refused> {
        let words = Self::new(source);
        if words.count < min {
            return Err(Refused {
                refusal: Refusal::Format,
                noreply: false,
            });
        }
        Ok(words)
    }

    fn refuse(&self, refusal: Refusal) -> Refused {
        Refused {
            refusal,
            noreply: self.noreply,
        }
    }

    /// Returns the first word as a key; refuses one that is too long.
    fn key(&self) -> Result<&'a [u8], Refused> {
        let key = self.words[0];
        if key.len() > KEY_BYTES_MAX {
            return Err(self.refuse(Refusal::Format));
        }
        Ok(key)
    }
}

fn refused<'a>(refusal: Refusal, noreply: bool) -> Command<'a> {
    Command::Refused(Refused { refusal, noreply })
}

fn or_refused<'a>(command: Result<Command<'a>, Refused>) -> Command<'a> {
    command.unwrap_or_else(Command::Refused)
}

/// Decodes `KEY FLAGS EXPTIME BYTES [CAS] [noreply]`: returns the command without its data and the
/// length of the data; or the refusal and the bytes of the stream to drop with it.
fn put_line(source: Keys<'_>, verb: Verb) -> Result<(Put<'_>, usize), (Refused, u64)> {
    let words = Words::at_least(source, MEANT_WORDS - 1).map_err(|refused| (refused, 0))?;
    let noreply = words.noreply;
    let [key, flags, exptime, bytes, unique] = words.words;
    let heard = Refused {
        refusal: Refusal::Format,
        noreply: false,
    };
    let bytes = number::block(bytes).ok_or((heard, 0))?;
    let read = || {
        let verb = match verb {
            Verb::Cas(_) => Verb::Cas(number::unsigned(unique)?),
            other => other,
        };
        Some(Put {
            verb,
            key: (key.len() <= KEY_BYTES_MAX).then_some(key)?,
            flags: number::stored_flags(flags)?,
            exptime: number::stored_exptime(exptime)?,
            value: &[],
            noreply,
        })
    };
    let put = read().ok_or_else(|| (words.refuse(Refusal::Format), whole_block(bytes)))?;
    Ok((put, bytes))
}

fn gat<'a>(line: &Line<'a>, mut words: Keys<'a>, with_cas: bool) -> Command<'a> {
    let exptime = words.next().unwrap_or_default();
    match number::exptime(exptime) {
        None if !words.is_done() => refused(Refusal::Exptime, false),
        None => refused(Refusal::Format, false),
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
) -> Command<'a> {
    if keys.is_done() || has_long_word(keys.rest()) {
        return refused(Refusal::Format, false);
    }
    Command::Get(Get {
        keys: Extent::behind(line.text, line.text.len() - keys.rest().len()),
        with_cas,
        touch,
    })
}

/// Returns whether a word is longer than a key may be. Each step searches the last space within a
/// key's reach, so most words are skipped.
fn has_long_word(mut text: &[u8]) -> bool {
    while text.len() > KEY_BYTES_MAX {
        match memrchr(b' ', &text[..=KEY_BYTES_MAX]) {
            Some(space) => text = &text[space + 1..],
            None => return true,
        }
    }
    false
}

fn delete(source: Keys<'_>) -> Command<'_> {
    or_refused(Words::at_least(source, 1).and_then(|words| {
        let noreply = words.noreply;
        words
            .key()
            .map(|key| Command::Delete(Delete { key, noreply }))
    }))
}

fn arith(source: Keys<'_>, decrement: bool) -> Command<'_> {
    or_refused(Words::at_least(source, 2).and_then(|words| {
        Ok(Command::Arith(Arith {
            key: words.key()?,
            decrement,
            delta: number::unsigned(words.words[1]).ok_or_else(|| words.refuse(Refusal::Delta))?,
            noreply: words.noreply,
        }))
    }))
}

fn touch(source: Keys<'_>) -> Command<'_> {
    or_refused(Words::at_least(source, 2).and_then(|words| {
        Ok(Command::Touch(Touch {
            key: words.key()?,
            exptime: number::exptime(words.words[1])
                .ok_or_else(|| words.refuse(Refusal::Exptime))?,
            noreply: words.noreply,
        }))
    }))
}

fn flush_all(source: Keys<'_>) -> Command<'static> {
    let words = Words::new(source);
    let noreply = words.noreply;
    let bare = words.count == usize::from(noreply);
    let delay = if bare {
        Some(0)
    } else {
        number::delay(words.words[0])
    };
    match delay {
        Some(delay) => Command::FlushAll(FlushAll { delay, noreply }),
        None => refused(Refusal::Exptime, noreply),
    }
}

fn verbosity(source: Keys<'_>) -> Command<'static> {
    let words = Words::new(source);
    let noreply = words.noreply;
    match number::unsigned32(words.words[0]) {
        Some(level) => Command::Verbosity { level, noreply },
        None => refused(Refusal::Format, noreply),
    }
}

fn memory_limit(source: Keys<'_>) -> Command<'static> {
    let words = Words::new(source);
    let noreply = words.noreply;
    match number::unsigned32(words.words[0]) {
        Some(megabytes) => Command::MemoryLimit { megabytes, noreply },
        None => refused(Refusal::Limit, noreply),
    }
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
