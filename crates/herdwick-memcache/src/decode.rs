use memchr::memchr;

use crate::{Command, binary, line::Line};

/// Most bytes of a command line that is not a `get` or `gets`.
pub const LINE_BYTES_MAX: usize = 2048;
/// Most bytes of a `get` or `gets` line: 20,000 keys of 50 bytes.
pub const GET_LINE_BYTES_MAX: usize = 1 << 20;
/// Bytes that have come of a value before it is announced: a line alone costs nothing.
pub const ANNOUNCED_BYTES: usize = 8 << 10;
/// memcached forgives this much white space before a long `get`.
const INDENT_MAX: usize = 100;

/// Reads one command after the other from a stream.
///
/// The first byte of the stream decides for good whether it speaks binary or text; classic and
/// meta commands share the text.
///
/// Give [`decode`](Self::decode) all that has arrived and was not used yet. It remembers how far
/// it has looked for a line end, so a line that trickles in costs linear work; who goes back in the
/// stream says so by [`check_again`](Self::look_again).
#[derive(Debug)]
pub struct Decoder {
    value_bytes_max: usize,
    /// Values beyond this size need not be here when their command is read.
    announced_bytes_min: usize,
    language: Option<Language>,
    scanned: usize,
}

/// What a stream is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Lines,
    Packets,
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
    /// A command that stores a large value, of which the input may hold a part; the value is empty
    /// in the command. Only from a decoder that was made [`announcing`](Decoder::announcing).
    Announced {
        /// The command.
        command: Command<'a>,
        /// How many bytes of the input it took: the value begins behind them.
        used: usize,
        /// Bytes of the value.
        value_len: usize,
        /// A line end follows the value.
        has_line_end: bool,
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
            announced_bytes_min: usize::MAX,
            language: None,
            scanned: 0,
        }
    }

    /// The same decoder, but it does not wait for a value of more than `bytes` bytes: it gives the
    /// command as soon as [`ANNOUNCED_BYTES`] of the value are here.
    #[must_use]
    pub fn announcing(self, bytes: usize) -> Self {
        Self {
            announced_bytes_min: bytes.max(ANNOUNCED_BYTES),
            ..self
        }
    }

    /// Reads the command at the front of `input`.
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        match self.language {
            Some(Language::Lines) => self.line(input),
            Some(Language::Packets) => {
                binary::decode(input, self.value_bytes_max, self.announced_bytes_min)
            }
            None => self.first(input),
        }
    }

    /// The next input begins elsewhere than the last one did: forgets how far that was looked at.
    #[inline]
    pub fn check_again(&mut self) {
        self.scanned = 0;
    }

    #[cold]
    fn first<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let Some(&byte) = input.first() else {
            return Decoded::NeedMore { at: 1 };
        };
        self.language = Some(if byte == binary::REQUEST {
            Language::Packets
        } else {
            Language::Lines
        });
        self.decode(input)
    }

    #[inline]
    fn line<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
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
            announced_bytes_min: self.announced_bytes_min,
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

/// The line without its line end.
fn trim(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Put, Verb};

    /// However the stream is cut, a large value is announced once so much of it is here, and comes
    /// with its command if all of it is.
    #[test]
    fn a_large_value_is_announced_when_enough_of_it_is_here() {
        const LINE: &[u8] = b"set key 7 8 20000\r\n";
        let mut input = [LINE, &[b'v'; 20_000], b"\r\n"].concat();
        let put = |value| {
            Command::Put(Put {
                verb: Verb::Set,
                key: b"key",
                flags: 7,
                exptime: 8,
                value,
                noreply: false,
            })
        };
        for end in (LINE.len()..input.len()).step_by(97) {
            let mut decoder = Decoder::new(1 << 20).announcing(16 << 10);
            let enough = LINE.len() + ANNOUNCED_BYTES;
            let expected = if end < enough {
                Decoded::NeedMore { at: enough }
            } else {
                Decoded::Announced {
                    command: put(b""),
                    used: LINE.len(),
                    value_len: 20_000,
                    has_line_end: true,
                }
            };
            assert_eq!(decoder.decode(&input[..end]), expected, "{end}");
            let waits = Decoder::new(1 << 20).decode(&input[..end]);
            assert_eq!(waits, Decoded::NeedMore { at: input.len() });
        }
        let mut decoder = Decoder::new(1 << 20).announcing(16 << 10);
        let whole = Decoded::Command {
            command: put(&[b'v'; 20_000]),
            used: input.len(),
            swallow: 0,
        };
        assert_eq!(decoder.decode(&input), whole);
        input[8..19].copy_from_slice(b"7 8 16384\r\n".first_chunk::<11>().unwrap());
        let mut decoder = Decoder::new(1 << 20).announcing(16 << 10);
        assert!(
            matches!(decoder.decode(&input[..16_000]), Decoded::NeedMore { at } if at > 16_384)
        );
    }
}
