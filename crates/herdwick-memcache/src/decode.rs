//! The decoder of a connection's stream: detects the protocol, finds lines, bounds what is
//! buffered.

use std::cell::Cell;

use crate::{
    Admits, Decoded, Keys, Refusal,
    awaited::Awaited,
    binary,
    block::{ANNOUNCED_BYTES, BlockLimits},
    classic,
    find::{find, find_either},
    line::Line,
    meta::{self, KEY_AT, KeyRoom},
};

/// Maximum length in bytes of a command line other than `get` and `gets`.
pub const LINE_BYTES_MAX: usize = 2048;
/// Maximum length in bytes of a `get` or `gets` line: 20,000 keys of 50 bytes.
pub const GET_LINE_BYTES_MAX: usize = 1 << 20;
/// Minimum length of a line in bytes, its end included; memcached refuses shorter ones.
const LINE_BYTES_MIN: usize = 4;
/// Maximum number of spaces that memcached accepts before a long `get`.
const INDENT_MAX: usize = 100;

/// Decodes the commands of a stream, one after the other.
///
/// The first byte of the stream selects binary or text for the whole stream; classic and meta
/// commands share the text protocol.
///
/// Pass [`decode`](Self::decode) all bytes that have arrived and are not used yet. The decoder
/// remembers how far it has searched for a line end, so a line that arrives in small pieces costs
/// linear work, and one that was [held](Decoded::Held) is not searched again; and a command whose data
/// block is incomplete, which is decoded once. A caller that moves back in the stream calls
/// [`check_again`](Self::check_again).
#[derive(Debug)]
pub struct Decoder {
    limits: BlockLimits,
    language: Option<Language>,
    scanned: usize,
    /// Offset of the end of the key of a meta command, once it is found; else 0.
    key_end: usize,
    /// The command at the front of the input, if its data block has not arrived.
    awaited: Option<Box<Awaited>>,
}

/// The framing of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Lines,
    Packets,
}

impl Decoder {
    /// Creates a decoder that accepts data blocks of up to `value_bytes_max` bytes.
    #[must_use]
    pub fn new(value_bytes_max: usize) -> Self {
        Self {
            limits: BlockLimits {
                value_bytes_max,
                // None, unless the caller asks for it.
                announced_bytes_min: usize::MAX,
            },
            language: None,
            scanned: 0,
            key_end: 0,
            awaited: None,
        }
    }

    /// Makes the decoder announce values of more than `bytes` bytes: it returns the command as soon
    /// as [`ANNOUNCED_BYTES`] of the value have arrived.
    #[must_use]
    pub fn announcing(self, bytes: usize) -> Self {
        let limits = BlockLimits {
            // A value must be longer than what has to arrive before it is announced.
            announced_bytes_min: bytes.max(ANNOUNCED_BYTES),
            ..self.limits
        };
        Self { limits, ..self }
    }

    /// Decodes the command at the front of `input`, if it is among those that `admits` names. A key
    /// in base64 is decoded into `keys`, which must have room for one, and again when the command's data
    /// block has arrived.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        input: &'a [u8],
        keys: &'a KeyRoom,
        admits: Admits,
    ) -> Decoded<'a> {
        match self.language {
            Some(Language::Lines) => self.line(input, keys, admits),
            Some(Language::Packets) => {
                let limits = (self.limits.value_bytes_max, self.limits.announced_bytes_min);
                binary::decode(input, limits, admits)
            }
            None => self.first(input, keys, admits),
        }
    }

    /// Restarts the search for a line end, because the next input begins at another position of the
    /// stream than the last one.
    #[inline]
    pub fn check_again(&mut self) {
        (self.scanned, self.key_end) = (0, 0);
        if self.awaited.is_some() {
            self.awaited = None;
        }
    }

    #[cold]
    fn first<'a>(&mut self, input: &'a [u8], keys: &'a KeyRoom, admits: Admits) -> Decoded<'a> {
        let Some(&byte) = input.first() else {
            return Decoded::NeedMore { at: 1 };
        };
        // memcached detects the binary protocol by the same byte.
        self.language = Some(if byte == binary::REQUEST {
            Language::Packets
        } else {
            Language::Lines
        });
        self.decode(input, keys, admits)
    }

    #[inline]
    fn line<'a>(&mut self, input: &'a [u8], keys: &'a KeyRoom, admits: Admits) -> Decoded<'a> {
        if self.awaited.is_some() {
            return self.go_on(input, keys, admits);
        }
        let Some(end) = self.line_end(input) else {
            // The next search begins behind these bytes, which contain no line end.
            self.scanned = input.len();
            return endless(input);
        };
        let line = Line {
            text: trim(&input[..end]),
            input,
            data_at: end + 1,
            key_end: self.key_end,
            limits: self.limits,
            keys,
            admits,
            awaited: Cell::new(None),
        };
        let decoded = decode(&line);
        if matches!(decoded, Decoded::Held) {
            // The line end is found at once when the line is decoded.
            self.scanned = end;
        } else {
            // These offsets were of a command that is used up now.
            (self.scanned, self.key_end) = (0, 0);
        }
        self.awaited = line.awaited.into_inner();
        decoded
    }

    /// Returns the offset of the line end, as far as it is in `input`. Of a meta command it finds the
    /// end of the key on the way: a key in base64 is scanned again when it is decoded, and were the
    /// line's end found first, that would be for the third time.
    #[inline]
    fn line_end(&mut self, input: &[u8]) -> Option<usize> {
        if let ([b'm', letter, b' ', ..], 0) = (input, self.key_end)
            // The line `m` ends here; what follows it is another command's.
            && *letter != b'\n'
        {
            let from = self.scanned.max(KEY_AT);
            self.key_end = from + find_either([b' ', b'\n'], &input[from..])?;
            self.scanned = self.key_end;
        }
        let end = find(b'\n', &input[self.scanned..])?;
        Some(self.scanned + end)
    }

    /// Goes on with the command whose data block had not arrived.
    #[cold]
    fn go_on<'a>(&mut self, input: &'a [u8], keys: &'a KeyRoom, admits: Admits) -> Decoded<'a> {
        let Some(awaited) = self.awaited.take() else {
            return Decoded::Close;
        };
        let decoded = awaited.go_on(input, keys, self.limits, admits);
        if matches!(decoded, Decoded::Held | Decoded::NeedMore { .. }) {
            self.awaited = Some(awaited);
        } else {
            (self.scanned, self.key_end) = (0, 0);
        }
        decoded
    }
}

/// Decodes a line and the data block behind it.
#[inline]
fn decode<'a>(line: &Line<'a>) -> Decoded<'a> {
    #[cfg(test)]
    crate::counting::line();
    if line.data_at < LINE_BYTES_MIN {
        return line.refuse(Refusal::Format);
    }
    // A leading space hides a command, as in memcached; `classic` still finds the operators'.
    let end = find(b' ', line.text).unwrap_or(line.text.len());
    let (command, rest) = line.text.split_at(end);
    let words = Keys::new(rest);
    match command {
        // Whether it is known or not: no classic command is of two letters.
        &[b'm', _] => meta::decode(line, command, words),
        _ => classic::decode(line, command, words),
    }
}

/// Returns the result for a line without an end: wait for more, or close if it is too long.
fn endless(input: &[u8]) -> Decoded<'_> {
    let indent = input.iter().take_while(|&&byte| byte == b' ').count();
    // In memcached, too, no other line may be longer: only these have any number of keys.
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
    // The next byte may be the line end.
    let at = input.len() + 1;
    Decoded::NeedMore { at }
}

/// Removes the carriage return of a line end.
fn trim(line: &[u8]) -> &[u8] {
    // It is optional: a lone `\n` ends a command line, too.
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use herdwick_request::{Op, Put};

    use super::*;
    use crate::Asked;

    /// However the stream is cut, a large value is announced once [`ANNOUNCED_BYTES`] of it are
    /// here, and is part of its command if all of it is. It is not announced behind other requests.
    #[test]
    fn large_value_is_announced_once_announced_bytes_have_arrived() {
        const LINE: &[u8] = b"set key 7 8 20000\r\n";
        let mut input = [LINE, &[b'v'; 20_000], b"\r\n"].concat();
        let keys = KeyRoom::default();
        let Decoded::Request { asked: small, .. } =
            Decoder::new(1 << 20).decode(b"set key 7 8 0\r\n\r\n", &keys, Admits::All)
        else {
            panic!("a request");
        };
        let put = |value| {
            let op = Op::Put(Put {
                value,
                flags: 7,
                exptime: 8,
                ..Put::default()
            });
            Asked { op, ..small }
        };
        for end in (LINE.len()..input.len()).step_by(97) {
            let mut decoder = Decoder::new(1 << 20).announcing(16 << 10);
            let enough = LINE.len() + ANNOUNCED_BYTES;
            let expected = if end < enough {
                Decoded::NeedMore { at: enough }
            } else {
                Decoded::Announced {
                    asked: put(b""),
                    used: LINE.len(),
                    value_len: 20_000,
                    has_line_end: true,
                }
            };
            let decoded = decoder.decode(&input[..end], &keys, Admits::All);
            assert_eq!(decoded, expected, "{end}");
            let behind = decoder.decode(&input[..end], &keys, Admits::Requests);
            assert_eq!(behind == Decoded::Held, end >= enough, "{end}");
            let waits = Decoder::new(1 << 20).decode(&input[..end], &keys, Admits::All);
            assert_eq!(waits, Decoded::NeedMore { at: input.len() });
        }
        let mut decoder = Decoder::new(1 << 20).announcing(16 << 10);
        let whole = Decoded::Request {
            asked: put(&[b'v'; 20_000]),
            used: input.len(),
            discard: 0,
        };
        assert_eq!(decoder.decode(&input, &keys, Admits::All), whole);
        input[8..19].copy_from_slice(b"7 8 16384\r\n".first_chunk::<11>().unwrap());
        let mut decoder = Decoder::new(1 << 20).announcing(16 << 10);
        let decoded = decoder.decode(&input[..16_000], &keys, Admits::All);
        assert!(matches!(decoded, Decoded::NeedMore { at } if at > 16_384));
    }
}
