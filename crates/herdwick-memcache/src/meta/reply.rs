//! Replies to meta commands, appended to a buffer.

use super::{
    base64,
    flags::{OPAQUE_BYTES_MAX, Returns},
};
use crate::{Refusal, text::decimal};

/// The reply to `mn`.
pub const NOTHING: &[u8] = b"MN\r\n";

/// The reply to `me` on a miss.
pub const MISS: &[u8] = b"EN\r\n";
/// The reply to `ma` without room for the longer number.
pub const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory\r\n";

/// The flags that the reply to each command can show.
const OF_GET: &[u8] = b"Ocfhklst";
const OF_SET: &[u8] = b"Ocks";
const OF_ARITH: &[u8] = b"Ockt";
const OF_NOTHING: &[u8] = b"Ok";

/// The part of a meta command that its reply depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// `O`, its letter included.
    pub opaque: &'a [u8],
    /// The flags to show.
    pub returns: Returns,
    /// Suppress the nominal reply.
    pub quiet: bool,
    /// The key was sent in base64.
    pub base64: bool,
}

/// The status of a meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `HD`, or `VA` with a value.
    Done,
    /// `EN`, of `mg` and `me`.
    Miss,
    /// `NF`
    NotFound,
    /// `NS`
    NotStored,
    /// `EX`
    Exists,
}

/// The attributes of an item that a reply may show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The value, if it is to be returned.
    pub value: Option<&'a [u8]>,
    /// Bytes of the value, returned or not.
    pub size: usize,
    /// The client's flags.
    pub client_flags: u32,
    /// Its CAS unique.
    pub unique: u64,
    /// Seconds left, or `None` without expiry.
    pub left: Option<u32>,
    /// Seconds since the access before this one.
    pub idle: u32,
    /// Whether it had been read before.
    pub fetched: bool,
    /// `W`: the reader has won the right to recache it.
    pub won: bool,
    /// `X`
    pub stale: bool,
    /// `Z`: another reader has won before.
    pub win_sent: bool,
}

impl Echo<'_> {
    /// Appends the reply to an `mg` that hit; `q` does not suppress it.
    pub fn hit(&self, out: &mut Vec<u8>, shown: &Shown<'_>) {
        head(out, shown.value);
        self.flags(out, OF_GET, shown);
        for (is, flag) in [
            (shown.win_sent, b" Z"),
            (shown.stale, b" X"),
            (shown.won, b" W"),
        ] {
            if is {
                out.extend_from_slice(flag);
            }
        }
        end(out, shown.value);
    }

    /// Appends the reply to a successful `ma`.
    pub fn counted(&self, out: &mut Vec<u8>, shown: &Shown<'_>) {
        if self.withheld(Status::Done, out) {
            return;
        }
        head(out, shown.value);
        self.flags(out, OF_ARITH, shown);
        end(out, shown.value);
    }

    /// Appends the reply to an `ms`.
    pub fn stored(&self, out: &mut Vec<u8>, status: Status, shown: &Shown<'_>) {
        self.line(out, status, OF_SET, shown);
    }

    /// Appends a reply without attributes of an item: to an `md`, or to a miss.
    pub fn bare(&self, out: &mut Vec<u8>, status: Status, key: &[u8]) {
        let shown = Shown {
            key,
            ..Shown::default()
        };
        self.line(out, status, OF_NOTHING, &shown);
    }

    fn line(&self, out: &mut Vec<u8>, status: Status, which: &[u8], shown: &Shown<'_>) {
        if self.withheld(status, out) {
            return;
        }
        out.extend_from_slice(status.letters());
        self.flags(out, which, shown);
        end(out, None);
    }

    fn flags(&self, out: &mut Vec<u8>, which: &[u8], shown: &Shown<'_>) {
        for letter in self.returns {
            if which.contains(&letter) {
                self.flag(out, letter, shown);
            }
        }
    }

    /// Returns whether the reply is suppressed: because it is nominal and quiet, or because the
    /// opaque is too long; then appends that error instead.
    fn withheld(&self, status: Status, out: &mut Vec<u8>) -> bool {
        // Only `ma` comes here with one; the others refuse it before they are executed.
        if self.opaque.len() > OPAQUE_BYTES_MAX {
            out.extend_from_slice(Refusal::Opaque.line());
            return true;
        }
        // `NF`, `NS` and `EX` are sent in spite of `q`.
        self.quiet && matches!(status, Status::Done | Status::Miss)
    }

    #[inline]
    fn flag(&self, out: &mut Vec<u8>, letter: u8, shown: &Shown<'_>) {
        out.push(b' ');
        if letter == b'O' {
            out.extend_from_slice(self.opaque);
            return;
        }
        out.push(letter);
        match letter {
            b'k' => self.key(out, shown.key),
            b's' => decimal(out, shown.size as u64),
            b'f' => decimal(out, u64::from(shown.client_flags)),
            b'c' => decimal(out, shown.unique),
            b'l' => decimal(out, u64::from(shown.idle)),
            b'h' => decimal(out, u64::from(shown.fetched)),
            b't' => match shown.left {
                Some(left) => decimal(out, u64::from(left)),
                None => out.extend_from_slice(b"-1"),
            },
            _ => {}
        }
    }

    fn key(&self, out: &mut Vec<u8>, key: &[u8]) {
        if self.base64 {
            base64::encode(key, out);
            // Marks the key as encoded.
            out.extend_from_slice(b" b");
        } else {
            out.extend_from_slice(key);
        }
    }

    /// Appends the reply to `me`.
    pub fn debug(&self, out: &mut Vec<u8>, shown: &Shown<'_>, footprint: usize) {
        use std::io::Write;
        out.extend_from_slice(b"ME ");
        if self.base64 {
            base64::encode(shown.key, out);
        } else {
            out.extend_from_slice(shown.key);
        }
        let left = shown.left.map_or(-1, i64::from);
        let fetched = if shown.fetched { "yes" } else { "no" };
        let (idle, unique) = (shown.idle, shown.unique);
        write!(
            out,
            " exp={left} la={idle} cas={unique} fetch={fetched} cls=1 size={footprint}\r\n"
        )
        .expect("a Vec takes every write");
    }
}

fn head(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        Some(value) => {
            out.extend_from_slice(b"VA ");
            decimal(out, value.len() as u64);
        }
        None => out.extend_from_slice(b"HD"),
    }
}

fn end(out: &mut Vec<u8>, value: Option<&[u8]>) {
    out.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

impl Status {
    fn letters(self) -> &'static [u8] {
        match self {
            Self::Done => b"HD",
            Self::Miss => b"EN",
            Self::NotFound => b"NF",
            Self::NotStored => b"NS",
            Self::Exists => b"EX",
        }
    }
}
