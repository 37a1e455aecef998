//! Responses of the binary protocol, appended to a buffer. Quiet opcodes omit the nominal ones.

use std::{fmt::Display, io::Write};

use zerocopy::{FromZeros, IntoBytes};

use super::header::{HEADER, Header, RESPONSE, opcode};

/// The fields of a request that its response repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    opcode: u8,
    opaque: [u8; 4],
}

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// No such item, or topic of statistics.
    NotFound = 1,
    /// The CAS unique did not match, or `add` found an item.
    Exists = 2,
    /// The item exceeds the maximum size.
    TooLarge = 3,
    /// The packet is malformed.
    Invalid = 4,
    /// `append` or `prepend` found no item, or would have made one that is too large.
    NotStored = 5,
    /// Arithmetic on a value that is not a number.
    NonNumeric = 6,
    /// Authentication is required, or has failed.
    Auth = 0x20,
    /// The SASL exchange takes another step.
    AuthContinue = 0x21,
    /// No such opcode.
    UnknownCommand = 0x81,
    /// The store has no room without evicting, which it must not.
    OutOfMemory = 0x82,
}

impl Status {
    /// Returns memcached's text for the status.
    fn text(self) -> &'static [u8] {
        match self {
            Self::Ok => b"",
            Self::NotFound => b"Not found",
            Self::Exists => b"Data exists for key.",
            Self::TooLarge => b"Too large.",
            Self::Invalid => b"Invalid arguments",
            Self::NotStored => b"Not stored.",
            Self::NonNumeric => b"Non-numeric server-side value for incr or decr",
            Self::Auth => b"Auth failure.",
            // Its body is the mechanism's challenge, not a text.
            Self::AuthContinue => b"",
            Self::UnknownCommand => b"Unknown command",
            Self::OutOfMemory => b"Out of memory",
        }
    }
}

/// The contents of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Body<'a> {
    /// Extras.
    pub extras: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The item's CAS unique.
    pub unique: u64,
}

impl Echo {
    pub(super) fn new(header: &Header) -> Self {
        Self {
            opcode: header.opcode,
            opaque: header.opaque,
        }
    }

    /// Returns the request's opcode without the quiet and show-key variants.
    #[must_use]
    pub fn plain(self) -> u8 {
        opcode::plain(self.opcode)
    }

    /// Appends a response.
    pub fn respond(self, out: &mut Vec<u8>, status: Status, body: &Body<'_>) {
        let len = body.extras.len() + body.key.len() + body.value.len();
        let mut header = self.header(status);
        // No truncation: extras have at most 8 bytes, keys 250, bodies 1 GiB.
        header.extras_len = body.extras.len() as u8;
        header.key_len.set(body.key.len() as u16);
        header.body_len.set(len as u32);
        header.unique.set(body.unique);
        // Once for all parts: a value may be large.
        out.reserve(HEADER + len);
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(body.extras);
        out.extend_from_slice(body.key);
        out.extend_from_slice(body.value);
    }

    /// Appends the hit of a read: flags and value, but for `touch` the flags only.
    pub fn item(self, out: &mut Vec<u8>, key: &[u8], flags: u32, unique: u64, value: &[u8]) {
        let touches = self.opcode == opcode::TOUCH;
        let body = Body {
            extras: &flags.to_be_bytes(),
            key: self.shown(key),
            value: if touches { &[] } else { value },
            unique,
        };
        self.respond(out, Status::Ok, &body);
    }

    /// Appends the miss of a read, unless it is quiet. A response that shows the key has it instead
    /// of the error text.
    pub fn miss(self, out: &mut Vec<u8>, key: &[u8]) {
        if opcode::is_quiet(self.opcode) {
            return;
        }
        match self.shown(key) {
            [] => self.error(out, Status::NotFound),
            key => {
                let body = Body {
                    key,
                    ..Body::default()
                };
                self.respond(out, Status::NotFound, &body);
            }
        }
    }

    /// Appends a success, unless the opcode is quiet.
    pub fn done(self, out: &mut Vec<u8>, body: &Body<'_>) {
        if !opcode::is_quiet(self.opcode) {
            self.respond(out, Status::Ok, body);
        }
    }

    /// Appends an error with its text; a quiet opcode does not suppress it.
    pub fn error(self, out: &mut Vec<u8>, status: Status) {
        let body = Body {
            value: status.text(),
            ..Body::default()
        };
        self.respond(out, status, &body);
    }

    /// Appends one statistic. An empty name and value end the list.
    pub fn stat(self, out: &mut Vec<u8>, name: &str, value: impl Display) {
        let at = out.len();
        // The header is written last, as the length of a formatted value is not known before.
        out.extend_from_slice(&[0; HEADER]);
        out.extend_from_slice(name.as_bytes());
        write!(out, "{value}").expect("a Vec takes every write");
        let mut header = self.header(Status::Ok);
        header.key_len.set(name.len() as u16);
        header.body_len.set((out.len() - at - HEADER) as u32);
        out[at..at + HEADER].copy_from_slice(header.as_bytes());
    }

    fn shown(self, key: &[u8]) -> &[u8] {
        if opcode::shows_key(self.opcode) {
            key
        } else {
            &[]
        }
    }

    fn header(self, status: Status) -> Header {
        let mut header = Header::new_zeroed();
        header.magic = RESPONSE;
        header.opcode = self.opcode;
        header.opaque = self.opaque;
        header.status.set(status as u16);
        header
    }
}
