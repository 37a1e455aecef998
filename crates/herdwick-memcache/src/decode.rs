use memchr::{memchr, memrchr};

use crate::{
    Arith, Command, Delete, FlushAll, Get, KEY_BYTES_MAX, Keys, Oversized, Put, Refusal, Refused,
    Touch, Verb, number,
};

/// Most bytes of a command line that is not a `get` or `gets`.
pub const LINE_BYTES_MAX: usize = 2048;
/// Most bytes of a `get` or `gets` line: 20,000 keys of 50 bytes.
pub const GET_LINE_BYTES_MAX: usize = 1 << 20;
/// memcached forgives this much white space before a long `get`.
const INDENT_MAX: usize = 100;
/// More words than any command but `get` takes.
const WORDS_MAX: usize = 8;
/// memcached looks at no more words than this of an unknown command.
const UNKNOWN_WORDS_MAX: usize = 23;

/// Reads one command after the other from a stream.
///
/// Give [`decode`](Self::decode) all that has arrived and was not used yet. It remembers how far
/// it has looked for a line end, so a line that trickles in costs linear work.
#[derive(Debug)]
pub struct Decoder {
    value_bytes_max: usize,
    scanned: usize,
}

/// What the input begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A command.
    Command {
        /// The command.
        command: Command<'a>,
        /// How many bytes of the input it took, its data included.
        used: usize,
        /// How many bytes of the stream after those are to be dropped unread.
        swallow: u64,
    },
    /// Part of a command.
    NeedMore {
        /// Ask again when the input has this many bytes.
        at: usize,
    },
    /// No memcached client, or an endless line: hang up without a word.
    Close,
}

impl Decoder {
    /// A decoder that takes data blocks of up to `value_bytes_max` bytes.
    #[must_use]
    pub fn new(value_bytes_max: usize) -> Self {
        Self {
            value_bytes_max,
            scanned: 0,
        }
    }

    /// Reads the command at the front of `input`.
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let Some(end) = memchr(b'\n', &input[self.scanned..]) else {
            self.scanned = input.len();
            return endless(input);
        };
        let end = self.scanned + end;
        self.scanned = 0;
        let line = Line {
            text: trim(&input[..end]),
            input,
            data_at: end + 1,
            value_bytes_max: self.value_bytes_max,
        };
        line.decode()
    }
}

/// What to do about a line without an end.
fn endless(input: &[u8]) -> Decoded<'_> {
    let indent = input.iter().take_while(|&&byte| byte == b' ').count();
    let may_be_long = indent <= INDENT_MAX
        && (input[indent..].starts_with(b"get ") || input[indent..].starts_with(b"gets "));
    let limit = if may_be_long {
        GET_LINE_BYTES_MAX
    } else {
        LINE_BYTES_MAX
    };
    if input.len() > limit {
        return Decoded::Close;
    }
    let at = input.len() + 1;
    Decoded::NeedMore { at }
}

/// The line as memcached's C string: without its line end, up to the first NUL.
fn trim(line: &[u8]) -> &[u8] {
    let line = match line {
        [text @ .., b'\r'] if !text.is_empty() => text,
        line => line,
    };
    memchr(0, line).map_or(line, |nul| &line[..nul])
}

/// A command line and what follows it.
struct Line<'a> {
    text: &'a [u8],
    input: &'a [u8],
    data_at: usize,
    value_bytes_max: usize,
}

impl<'a> Line<'a> {
    fn decode(&self) -> Decoded<'a> {
        let mut words = Keys::new(self.text);
        let command = words.next().unwrap_or_default();
        match command {
            b"get" | b"bget" => self.just(get(words, false)),
            b"gets" => self.just(get(words, true)),
            b"set" => self.put(words, Verb::Set),
            b"add" => self.put(words, Verb::Add),
            b"replace" => self.put(words, Verb::Replace),
            b"append" => self.put(words, Verb::Append),
            b"prepend" => self.put(words, Verb::Prepend),
            b"cas" => self.put(words, Verb::Cas(0)),
            b"delete" => self.just(delete(words)),
            b"incr" => self.just(arith(words, false)),
            b"decr" => self.just(arith(words, true)),
            b"touch" => self.just(touch(words)),
            b"gat" => self.just(gat(words, false)),
            b"gats" => self.just(gat(words, true)),
            b"flush_all" => self.just(flush_all(words)),
            b"stats" => self.just(Command::Stats(words)),
            b"version" => self.just(Command::Version),
            b"cache_memlimit" => self.just(memory_limit(words)),
            b"verbosity" => self.just(verbosity(words)),
            b"quit" => self.just(Command::Quit),
            b"shutdown" => self.just(refused(Refusal::Shutdown, false)),
            _ => self.unknown(command),
        }
    }

    /// A command without data.
    fn just(&self, command: Command<'a>) -> Decoded<'a> {
        Decoded::Command {
            command,
            used: self.data_at,
            swallow: 0,
        }
    }

    /// `ERROR`, or a hang-up for a browser, or whoever makes one talk to us (t/malicious-commands.t).
    fn unknown(&self, command: &[u8]) -> Decoded<'a> {
        let other_branch = matches!(
            command.first(),
            None | Some(b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't')
        );
        let last = Keys::new(self.text).take(UNKNOWN_WORDS_MAX).last();
        if command.len() >= 2
            && !other_branch
            && last.is_some_and(|word| word.starts_with(b"HTTP/"))
        {
            return Decoded::Close;
        }
        self.just(Command::Unknown(self.text))
    }

    fn put(&self, words: Keys<'a>, verb: Verb) -> Decoded<'a> {
        let (put, bytes) = match put_line(words, verb) {
            Ok(read) => read,
            Err(refused) => return self.just(Command::Refused(refused)),
        };
        if bytes > self.value_bytes_max {
            return Decoded::Command {
                command: Command::Oversized(Oversized {
                    verb,
                    key: put.key,
                    noreply: put.noreply,
                }),
                used: self.data_at,
                swallow: bytes as u64 + 2,
            };
        }
        let at = self.data_at + bytes + 2;
        let Some(block) = self.input.get(self.data_at..at) else {
            return Decoded::NeedMore { at };
        };
        let command = match block {
            [value @ .., b'\r', b'\n'] => Command::Put(Put { value, ..put }),
            _ => refused(Refusal::DataChunk, put.noreply),
        };
        Decoded::Command {
            command,
            used: at,
            swallow: 0,
        }
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

/// `KEY FLAGS EXPTIME BYTES [CAS] [noreply]`: all but the data, and the length of that.
fn put_line(source: Keys<'_>, verb: Verb) -> Result<(Put<'_>, usize), Refused> {
    let compares = matches!(verb, Verb::Cas(_));
    let least = if compares { 5 } else { 4 };
    let words = Words::new(source, least, least + 1)?;
    let key = words.key()?;
    let read = || {
        let flags = number::unsigned32(words.words[1])?;
        let exptime = number::exptime(words.words[2])?;
        let bytes = number::signed32(words.words[3])?;
        let verb = match verb {
            Verb::Cas(_) => Verb::Cas(number::unsigned(words.words[4])?),
            other => other,
        };
        // memcached adds the line end in an `int`.
        let bytes = usize::try_from(bytes)
            .ok()
            .filter(|&b| b <= i32::MAX as usize - 2)?;
        Some((flags, exptime, bytes, verb))
    };
    let (flags, exptime, bytes, verb) = read().ok_or_else(|| words.refuse(Refusal::Format))?;
    let put = Put {
        verb,
        key,
        flags,
        exptime,
        value: &[],
        noreply: words.noreply(),
    };
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
fn retrieve(keys: Keys<'_>, with_cas: bool, touch: Option<i32>) -> Command<'_> {
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
        number::exptime(words.words[0])
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
