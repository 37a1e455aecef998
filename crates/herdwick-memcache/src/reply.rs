//! Decoding of a memcached server's replies, for a client: a line, or a `VALUE` line with its
//! block.
//!
//! The grammar is protocol.txt's classic text. The caller checks which reply may follow which
//! command.

mod fixed;

pub use fixed::{FixedReplies, FixedReply};

/// Maximum length of a reply line in bytes, its end included. memcached's longest are `stats` of
/// paths and error texts; a `VALUE` line needs 6 + 250 + 3 * 21.
pub const LINE_BYTES_MAX: usize = 8192;

/// Maximum length of a key in a `VALUE` line, in bytes.
const KEY_BYTES_MAX: usize = 250;

/// One reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `STORED`
    Stored,
    /// `NOT_STORED`
    NotStored,
    /// `EXISTS`
    Exists,
    /// `NOT_FOUND`
    NotFound,
    /// `DELETED`
    Deleted,
    /// `TOUCHED`
    Touched,
    /// `OK`
    Ok,
    /// `RESET`
    Reset,
    /// `END`, of values or of statistics.
    End,
    /// The result of `incr` or `decr`.
    Number(u64),
    /// `VALUE` and its block.
    Value(Value<'a>),
    /// `STAT name value`
    Stat {
        /// The name, without spaces.
        name: &'a [u8],
        /// The rest of the line.
        value: &'a [u8],
    },
    /// `VERSION text`
    Version(&'a [u8]),
    /// `ERROR`, usually without text: the command is unknown, or there are too many connections.
    Error(&'a [u8]),
    /// `CLIENT_ERROR text`
    ClientError(&'a [u8]),
    /// `SERVER_ERROR text`
    ServerError(&'a [u8]),
}

/// One item of a `get`, `gets`, `gat` or `gats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The CAS unique, from `gets` and `gats`.
    pub cas: Option<u64>,
    /// The block.
    pub data: &'a [u8],
}

/// The server's reply is malformed or too long. The rest of the stream cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedReply {
    /// No line end within [`LINE_BYTES_MAX`].
    #[error("a reply line exceeds {LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// The line is not a memcached reply.
    #[error("the reply is none of memcached's")]
    Line,
    /// A `VALUE` line with an invalid key, number or field count.
    #[error("a VALUE line makes no sense")]
    ValueLine,
    /// A block without a line end at its length.
    #[error("a value's block does not end at its length")]
    Block,
    /// A block longer than the caller accepts.
    #[error("a value of {bytes} bytes exceeds the limit of {limit}")]
    ValueTooLarge {
        /// Its announced length.
        bytes: u64,
        /// The caller's limit.
        limit: usize,
    },
}

/// Decodes the reply at the front of `input`. Returns the reply and its length in bytes, or `None`
/// while bytes are missing. A block above `value_bytes_max` is refused as soon as its `VALUE` line
/// has arrived.
///
/// # Errors
/// [`MalformedReply`]; the stream is unusable after it.
pub fn parse(
    input: &[u8],
    value_bytes_max: usize,
) -> Result<Option<(Reply<'_>, usize)>, MalformedReply> {
    // A line end behind the limit is not looked for, since the line is refused anyway.
    let window = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(newline) = memchr::memchr(b'\n', window) else {
        let too_long = input.len() >= LINE_BYTES_MAX;
        return if too_long {
            Err(MalformedReply::LineTooLong)
        } else {
            Ok(None)
        };
    };
    // memcached ends every line in `\r\n`: with a lone `\n` it is another server.
    let line = input[..newline]
        .strip_suffix(b"\r")
        .ok_or(MalformedReply::Line)?;
    let used = newline + 1;
    match line.strip_prefix(b"VALUE ") {
        Some(fields) => value(fields, &input[used..], value_bytes_max)
            .map(|found| found.map(|(value, block)| (Reply::Value(value), used + block))),
        None => Ok(Some((single_line(line)?, used))),
    }
}

fn single_line(line: &[u8]) -> Result<Reply<'_>, MalformedReply> {
    Ok(match line {
        b"STORED" => Reply::Stored,
        b"NOT_STORED" => Reply::NotStored,
        b"EXISTS" => Reply::Exists,
        b"NOT_FOUND" => Reply::NotFound,
        b"DELETED" => Reply::Deleted,
        b"TOUCHED" => Reply::Touched,
        b"OK" => Reply::Ok,
        b"RESET" => Reply::Reset,
        b"END" => Reply::End,
        [b'0'..=b'9', ..] => Reply::Number(decimal(line).ok_or(MalformedReply::Line)?),
        _ => return texted(line),
    })
}

/// Decodes the replies with free text. memcached writes `SERVER_ERROR: ...` in one place, so a
/// colon is accepted in place of the space.
fn texted(line: &[u8]) -> Result<Reply<'_>, MalformedReply> {
    let end = line.iter().position(|byte| matches!(byte, b' ' | b':'));
    let (word, rest) = line.split_at(end.unwrap_or(line.len()));
    let text = rest.trim_ascii_start();
    let text = text.strip_prefix(b":").unwrap_or(text).trim_ascii_start();
    match word {
        b"STAT" => stat(text),
        b"VERSION" => Ok(Reply::Version(text)),
        b"ERROR" => Ok(Reply::Error(text)),
        b"CLIENT_ERROR" => Ok(Reply::ClientError(text)),
        b"SERVER_ERROR" => Ok(Reply::ServerError(text)),
        _ => Err(MalformedReply::Line),
    }
}

fn stat(text: &[u8]) -> Result<Reply<'_>, MalformedReply> {
    // The value may have spaces, and may be empty.
    let end = memchr::memchr(b' ', text).unwrap_or(text.len());
    let (name, value) = text.split_at(end);
    if name.is_empty() {
        return Err(MalformedReply::Line);
    }
    let value = value.strip_prefix(b" ").unwrap_or(value);
    Ok(Reply::Stat { name, value })
}

fn value<'a>(
    fields: &'a [u8],
    rest: &'a [u8],
    value_bytes_max: usize,
) -> Result<Option<(Value<'a>, usize)>, MalformedReply> {
    let (key, flags, bytes, cas) = value_fields(fields).ok_or(MalformedReply::ValueLine)?;
    let too_large = MalformedReply::ValueTooLarge {
        bytes,
        limit: value_bytes_max,
    };
    // Before the block is awaited, so that the caller never buffers more.
    let len = usize::try_from(bytes)
        .ok()
        .filter(|&len| len <= value_bytes_max)
        .ok_or(too_large)?;
    let Some(data) = rest.get(..len) else {
        return Ok(None);
    };
    match &rest[len..] {
        [b'\r', b'\n', ..] => Ok(Some((
            Value {
                key,
                flags,
                cas,
                data,
            },
            len + 2,
        ))),
        // The two bytes of the line end may arrive apart.
        [] | [b'\r'] => Ok(None),
        _ => Err(MalformedReply::Block),
    }
}

/// `key flags bytes[ cas]`
fn value_fields(fields: &[u8]) -> Option<(&[u8], u32, u64, Option<u64>)> {
    let mut fields = fields.split(|&byte| byte == b' ');
    let key = fields
        .next()
        .filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()))?;
    let flags = u32::try_from(decimal(fields.next()?)?).ok()?;
    let bytes = decimal(fields.next()?)?;
    let cas = match fields.next() {
        Some(cas) => Some(decimal(cas)?),
        None => None,
    };
    fields.next().is_none().then_some((key, flags, bytes, cas))
}

/// Parses a decimal `u64`: digits only, at least one.
fn decimal(digits: &[u8]) -> Option<u64> {
    let number = |sum: u64, &digit: &u8| match digit {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    };
    (!digits.is_empty()).then(|| digits.iter().try_fold(0, number))?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Recorded from memcached 1.6.18.
    const CONVERSATION: &[u8] =
        b"STORED\r\nVALUE k 7 5 12\r\na\r\nbc\r\nEND\r\nVALUE k 0 0\r\n\r\nEND\r\n\
        NOT_STORED\r\nEXISTS\r\nNOT_FOUND\r\nDELETED\r\nTOUCHED\r\nOK\r\nRESET\r\n\
        18446744073709551615\r\nSTAT pid 42\r\nSTAT empty \r\nVERSION 1.6.18\r\nERROR\r\n\
        ERROR Too many open connections\r\nCLIENT_ERROR bad data chunk\r\n\
        SERVER_ERROR object too large for cache\r\nSERVER_ERROR: shutdown not enabled\r\n";

    fn meanings() -> Vec<Reply<'static>> {
        let value = |flags, cas, data| {
            Reply::Value(Value {
                key: b"k",
                flags,
                cas,
                data,
            })
        };
        vec![
            Reply::Stored,
            value(7, Some(12), b"a\r\nbc"),
            Reply::End,
            value(0, None, b""),
            Reply::End,
            Reply::NotStored,
            Reply::Exists,
            Reply::NotFound,
            Reply::Deleted,
            Reply::Touched,
            Reply::Ok,
            Reply::Reset,
            Reply::Number(u64::MAX),
            Reply::Stat {
                name: b"pid",
                value: b"42",
            },
            Reply::Stat {
                name: b"empty",
                value: b"",
            },
            Reply::Version(b"1.6.18"),
            Reply::Error(b""),
            Reply::Error(b"Too many open connections"),
            Reply::ClientError(b"bad data chunk"),
            Reply::ServerError(b"object too large for cache"),
            Reply::ServerError(b"shutdown not enabled"),
        ]
    }

    #[test]
    fn every_reply_is_parsed() {
        let mut rest = CONVERSATION;
        let mut found = Vec::new();
        while let Some((reply, used)) = parse(rest, 1 << 20).unwrap() {
            found.push(reply);
            rest = &rest[used..];
        }
        assert_eq!(rest, b"");
        assert_eq!(found, meanings());
    }

    #[test]
    fn truncated_reply_is_incomplete_at_every_byte() {
        let mut start = 0;
        for meaning in meanings() {
            let (_, used) = parse(&CONVERSATION[start..], 1 << 20).unwrap().unwrap();
            for cut in 0..used {
                let seen = parse(&CONVERSATION[start..start + cut], 1 << 20);
                assert_eq!(seen, Ok(None), "{meaning:?} cut at {cut}");
            }
            start += used;
        }
    }

    #[test]
    fn replies_of_other_protocols_are_refused() {
        let too_large = MalformedReply::ValueTooLarge {
            bytes: 11,
            limit: 10,
        };
        for (input, error) in [
            (b"VALUE k 0 11\r\n".as_slice(), too_large),
            (b"VALUE k 0 2\r\nabc\r\n", MalformedReply::Block),
            (b"VALUE k 0\r\n", MalformedReply::ValueLine),
            (b"VALUE k 0 1 2 3\r\n", MalformedReply::ValueLine),
            (b"VALUE  0 1\r\n", MalformedReply::ValueLine),
            (b"VALUE k 4294967296 1\r\n", MalformedReply::ValueLine),
            (b"18446744073709551616\r\n", MalformedReply::Line),
            (b"12x\r\n", MalformedReply::Line),
            (b"STORED\n", MalformedReply::Line),
            (b"\r\n", MalformedReply::Line),
            (b"HTTP/1.1 400 Bad Request\r\n", MalformedReply::Line),
            (&[b'a'; LINE_BYTES_MAX], MalformedReply::LineTooLong),
        ] {
            assert_eq!(
                parse(input, 10),
                Err(error),
                "{:?}",
                input.escape_ascii().to_string()
            );
        }
    }

    proptest! {
        #[test]
        fn parsing_random_bytes_neither_panics_nor_overruns(
            input in proptest::collection::vec(prop_oneof![
                any::<u8>(),
                proptest::sample::select(b"VALUE k 10\r\nSTAEND".to_vec()),
            ], 0..200),
        ) {
            if let Ok(Some((_, used))) = parse(&input, 64) {
                prop_assert!((1..=input.len()).contains(&used));
            }
        }

        #[test]
        fn values_round_trip(
            key in proptest::collection::vec(33u8..127, 1..=250),
            flags: u32,
            cas: Option<u64>,
            data: Vec<u8>,
        ) {
            let mut wire = format!("VALUE {} {flags} {}", String::from_utf8_lossy(&key), data.len());
            if let Some(cas) = cas {
                wire += &format!(" {cas}");
            }
            let mut wire = (wire + "\r\n").into_bytes();
            wire.extend_from_slice(&data);
            wire.extend_from_slice(b"\r\nEND\r\n");
            let value = Reply::Value(Value { key: &key, flags, cas, data: &data });
            prop_assert_eq!(parse(&wire, data.len()), Ok(Some((value, wire.len() - 5))));
        }
    }
}
