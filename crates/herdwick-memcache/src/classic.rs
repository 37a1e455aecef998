use memchr::memrchr;

use crate::{
    Arith, Command, Decoded, Delete, FlushAll, Get, KEY_BYTES_MAX, Keys, Oversized, Put, Refusal,
    Refused, Touch, Verb,
    line::{Block, Line, whole_block},
    number,
};

/// More words than any command but `get` takes.
const WORDS_MAX: usize = 8;
/// memcached looks at no more words than this of an unknown command.
const UNKNOWN_WORDS_MAX: usize = 23;

/// Reads the line whose first word is `command`, and the data block behind it.
#[inline]
pub(crate) fn decode<'a>(line: &Line<'a>, command: &[u8], words: Keys<'a>) -> Decoded<'a> {
    match command {
        b"get" | b"bget" => line.just(get(words, false)),
        b"gets" => line.just(get(words, true)),
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
        b"gat" => line.just(gat(words, false)),
        b"gats" => line.just(gat(words, true)),
        b"flush_all" => line.just(flush_all(words)),
        b"stats" => line.just(Command::Stats(words)),
        b"version" => line.just(Command::Version),
        b"cache_memlimit" => line.just(memory_limit(words)),
        b"verbosity" => line.just(verbosity(words)),
        b"quit" => line.just(Command::Quit),
        b"shutdown" => line.just(Command::Shutdown {
            known: words.clone().all(|word| word == b"graceful"),
        }),
        _ => unknown(line, command),
    }
}

/// `ERROR`, or a hang-up for a browser, or whoever makes one talk to us (t/malicious-commands.t).
fn unknown<'a>(line: &Line<'a>, command: &[u8]) -> Decoded<'a> {
    let other_branch = matches!(
        command.first(),
        None | Some(b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't')
    );
    let last = Keys::new(line.text).take(UNKNOWN_WORDS_MAX).last();
    if command.len() >= 2 && !other_branch && last.is_some_and(|word| word.starts_with(b"HTTP/")) {
        return Decoded::Close;
    }
    line.just(Command::Unknown(line.text))
}

/// A storage command and its block.
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

/// The words of a command that takes few of them.
struct Words<'a> {
    words: [&'a [u8]; WORDS_MAX],
    count: usize,
}

impl<'a> Words<'a> {
    /// Between `min` and `max` words, or `ERROR`.
    fn new(source: Keys<'a>, min: usize, max: usize) -> Result<Self, Refused> {
        let mut words = [&b""[..]; WORDS_MAX];
        let mut count = 0;
        for (slot, word) in words.iter_mut().zip(source) {
            *slot = word;
            count += 1;
        }
        if (min..=max).contains(&count) {
            return Ok(Self { words, count });
        }
        Err(Refused {
            refusal: Refusal::Arguments,
            noreply: false,
        })
    }

    /// memcached finds `noreply` only as the last word.
    fn noreply(&self) -> bool {
        self.count > 0 && self.words[self.count - 1] == b"noreply"
    }

    fn refuse(&self, refusal: Refusal) -> Refused {
        Refused {
            refusal,
            noreply: self.noreply(),
        }
    }

    /// The first word, as a key.
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

/// Words of a storage command that mean something, the unique of `cas` included.
const PUT_WORDS: usize = 5;

/// `KEY FLAGS EXPTIME BYTES [CAS] [noreply]`: all but the data, and the length of that; or the refusal,
/// and the length of what is to be dropped with it. More words are passed over, as in 1.6.45.
fn put_line(source: Keys<'_>, verb: Verb) -> Result<(Put<'_>, usize), (Refused, u64)> {
    let mut words = [&b""[..]; PUT_WORDS];
    let (mut count, mut last) = (0, &b""[..]);
    for word in source.take(UNKNOWN_WORDS_MAX - 1) {
        if let Some(slot) = words.get_mut(count) {
            *slot = word;
        }
        (count, last) = (count + 1, word);
    }
    let [key, flags, exptime, bytes, unique] = words;
    let refuse = |refusal, noreply| Refused { refusal, noreply };
    if count < PUT_WORDS - 1 {
        return Err((refuse(Refusal::Arguments, false), 0));
    }
    let noreply = last == b"noreply";
    let format = refuse(Refusal::Format, noreply);
    let bytes = number::block(bytes).ok_or((format, 0))?;
    let read = || {
        let verb = match verb {
            Verb::Cas(_) => Verb::Cas(number::unsigned(unique)?),
            other => other,
        };
        Some(Put {
            verb,
            key: (key.len() <= KEY_BYTES_MAX).then_some(key)?,
            flags: number::unsigned32(flags)?,
            exptime: number::exptime(exptime)?,
            value: &[],
            noreply,
        })
    };
    let put = read().ok_or_else(|| (format, whole_block(bytes)))?;
    Ok((put, bytes))
}

fn get(keys: Keys<'_>, with_cas: bool) -> Command<'_> {
    if keys.clone().next().is_none() {
        return refused(Refusal::Arguments, false);
    }
    retrieve(keys, with_cas, None)
}

fn gat(mut words: Keys<'_>, with_cas: bool) -> Command<'_> {
    let Some(exptime) = words.next() else {
        return refused(Refusal::Arguments, false);
    };
    match number::exptime(exptime) {
        Some(exptime) => retrieve(words, with_cas, Some(exptime)),
        None => refused(Refusal::Exptime, false),
    }
}

/// One key too long spoils the whole command (t/issue_152.t).
fn retrieve(keys: Keys<'_>, with_cas: bool, touch: Option<u32>) -> Command<'_> {
    if has_long_word(keys.rest()) {
        return refused(Refusal::Format, false);
    }
    Command::Get(Get {
        keys,
        with_cas,
        touch,
    })
}

/// Whether a word exceeds a key; hops from the last space in reach to the next.
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
    or_refused(Words::new(source, 1, 3).and_then(|words| {
        let zero = words.words[1] == b"0";
        let (valid, noreply) = match words.count {
            1 => (true, false),
            2 => (zero || words.noreply(), words.noreply()),
            _ => (zero && words.noreply(), words.noreply()),
        };
        if !valid {
            return Err(words.refuse(Refusal::DeleteUsage));
        }
        words
            .key()
            .map(|key| Command::Delete(Delete { key, noreply }))
    }))
}

fn arith(source: Keys<'_>, decrement: bool) -> Command<'_> {
    or_refused(Words::new(source, 2, 3).and_then(|words| {
        Ok(Command::Arith(Arith {
            key: words.key()?,
            decrement,
            delta: number::unsigned(words.words[1]).ok_or_else(|| words.refuse(Refusal::Delta))?,
            noreply: words.noreply(),
        }))
    }))
}

fn touch(source: Keys<'_>) -> Command<'_> {
    or_refused(Words::new(source, 2, 3).and_then(|words| {
        Ok(Command::Touch(Touch {
            key: words.key()?,
            exptime: number::exptime(words.words[1])
                .ok_or_else(|| words.refuse(Refusal::Exptime))?,
            noreply: words.noreply(),
        }))
    }))
}

fn flush_all(source: Keys<'_>) -> Command<'static> {
    let words = match Words::new(source, 0, 2) {
        Ok(words) => words,
        Err(refused) => return Command::Refused(refused),
    };
    let noreply = words.noreply();
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
    let words = match Words::new(source, 1, 2) {
        Ok(words) => words,
        Err(refused) => return Command::Refused(refused),
    };
    let noreply = words.noreply();
    match number::unsigned32(words.words[0]) {
        Some(level) => Command::Verbosity { level, noreply },
        None => refused(Refusal::Format, noreply),
    }
}

fn memory_limit(source: Keys<'_>) -> Command<'static> {
    let words = match Words::new(source, 1, 2) {
        Ok(words) => words,
        Err(refused) => return Command::Refused(refused),
    };
    let noreply = words.noreply();
    match number::unsigned32(words.words[0]) {
        Some(megabytes) => Command::MemoryLimit { megabytes, noreply },
        None => refused(Refusal::Arguments, noreply),
    }
}

#[cfg(test)]
mod tests;
