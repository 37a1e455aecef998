//! memcached's binary protocol (protocol-binary.txt): decoding of request packets, encoding of
//! responses.
//!
//! Deprecated since 2020, still used by memjs, python-binary-memcached, Datadog and others, and the
//! only one of memcached's protocols that carries SASL.

mod reply;

pub use reply::{Body, Echo, Status};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    big_endian::{U16, U32, U64},
};

use crate::{ANNOUNCED_BYTES, Command, Decoded, KEY_BYTES_MAX, Mode};

/// The first byte of a request.
pub const REQUEST: u8 = 0x80;
/// The first byte of a response.
const RESPONSE: u8 = 0x81;
/// Maximum length of a packet's body in bytes (the maximum of memcached's `-I`).
const BODY_BYTES_MAX: u32 = 1 << 30;
/// Maximum length of a client's message in a SASL exchange, in bytes. The longest that can be right
/// is far below it.
pub const SASL_BYTES_MAX: usize = 4096;

/// The header of a packet, 24 bytes. Extras, key and value follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: u8,
    opcode: u8,
    key_len: U16,
    extras_len: u8,
    data_type: u8,
    /// In a request, the reserved vbucket id, which is ignored.
    status: U16,
    /// Total length of extras, key and value.
    body_len: U32,
    opaque: [u8; 4],
    unique: U64,
}

const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == 24);

/// The second byte of a packet.
pub mod opcode {
    #![expect(missing_docs, reason = "they are their names")]
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const ADD: u8 = 0x02;
    pub const REPLACE: u8 = 0x03;
    pub const DELETE: u8 = 0x04;
    pub const INCREMENT: u8 = 0x05;
    pub const DECREMENT: u8 = 0x06;
    pub const QUIT: u8 = 0x07;
    pub const FLUSH: u8 = 0x08;
    pub const GETQ: u8 = 0x09;
    pub const NOOP: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GETK: u8 = 0x0c;
    pub const GETKQ: u8 = 0x0d;
    pub const APPEND: u8 = 0x0e;
    pub const PREPEND: u8 = 0x0f;
    pub const STAT: u8 = 0x10;
    pub const SETQ: u8 = 0x11;
    pub const ADDQ: u8 = 0x12;
    pub const REPLACEQ: u8 = 0x13;
    pub const DELETEQ: u8 = 0x14;
    pub const INCREMENTQ: u8 = 0x15;
    pub const DECREMENTQ: u8 = 0x16;
    pub const QUITQ: u8 = 0x17;
    pub const FLUSHQ: u8 = 0x18;
    pub const APPENDQ: u8 = 0x19;
    pub const PREPENDQ: u8 = 0x1a;
    pub const TOUCH: u8 = 0x1c;
    pub const GAT: u8 = 0x1d;
    pub const GATQ: u8 = 0x1e;
    pub const SASL_LIST: u8 = 0x20;
    pub const SASL_AUTH: u8 = 0x21;
    pub const SASL_STEP: u8 = 0x22;
    pub const GATK: u8 = 0x23;
    pub const GATKQ: u8 = 0x24;

    /// Returns the opcode of the same operation without the quiet and show-key variants.
    #[must_use]
    pub fn plain(opcode: u8) -> u8 {
        match opcode {
            GETQ | GETK | GETKQ => GET,
            GATQ | GATK | GATKQ => GAT,
            SETQ..=PREPENDQ => [
                SET, ADD, REPLACE, DELETE, INCREMENT, DECREMENT, QUIT, FLUSH, APPEND, PREPEND,
            ][usize::from(opcode - SETQ)],
            other => other,
        }
    }

    /// Returns whether the nominal response is suppressed: a miss of a read, the success of others.
    #[must_use]
    pub fn is_quiet(opcode: u8) -> bool {
        matches!(opcode, GETQ | GETKQ | GATQ | GATKQ | SETQ..=PREPENDQ)
    }

    /// Returns whether the response contains the key.
    #[must_use]
    pub fn shows_key(opcode: u8) -> bool {
        matches!(opcode, GETK | GETKQ | GATK | GATKQ)
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The fields that the response repeats.
    pub echo: Echo,
    /// The key, 1 to 250 bytes, or empty for a verb without a key.
    pub key: &'a [u8],
    /// The operation.
    pub verb: Verb<'a>,
}

/// The operation of a packet. A CAS unique of 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb<'a> {
    /// `get`, `gat`, `touch`; the opcode distinguishes them.
    Get {
        /// New exptime.
        touch: Option<u32>,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`.
    Put(Put<'a>),
    /// A [`Put`](Self::Put) with a value beyond the maximum item size; the value is dropped from
    /// the stream.
    Oversized {
        /// It is a `set`, the only one that removes the old value on failure.
        set: bool,
    },
    /// `delete`
    Delete {
        /// Only if its CAS unique is this.
        compare: Option<u64>,
    },
    /// `increment`, `decrement`
    Arith(Arith),
    /// `flush` of everything older than this exptime; 0 is now.
    Flush {
        /// The exptime.
        delay: u32,
    },
    /// `noop`
    Noop,
    /// `version`
    Version,
    /// `stat`, on the topic that is the key.
    Stat,
    /// `quit`
    Quit,
    /// `list mechanisms` of SASL.
    SaslList,
    /// The start or a step of a SASL exchange, which the opcode distinguishes; the key is the
    /// mechanism.
    Sasl {
        /// The client's message; `None` if it is longer than [`SASL_BYTES_MAX`], and dropped from
        /// the stream.
        message: Option<&'a [u8]>,
    },
    /// Answered by an error.
    Refused(Status),
    /// Answered by an error; then the connection is closed.
    Fatal(Status),
}

/// Stores a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// How to treat the present item.
    pub mode: Mode,
    /// The value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The exptime.
    pub exptime: u32,
    /// Only if the item's CAS unique is this.
    pub compare: Option<u64>,
}

/// Adds to, or subtracts from, a decimal value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arith {
    /// Subtract.
    pub decrement: bool,
    /// The number to add or subtract.
    pub delta: u64,
    /// The number of an item created on a miss.
    pub initial: u64,
    /// The exptime of an item created on a miss; `None` to create none.
    pub vivify: Option<u32>,
    /// Only if the item's CAS unique is this.
    pub compare: Option<u64>,
}

/// Returns the fields of the packet at the front of `input` that a response repeats, as soon as its
/// header is there; `None` before that, or if it is no packet.
#[must_use]
pub fn peek(input: &[u8]) -> Option<Echo> {
    let (header, _) = Header::read_from_prefix(input).ok()?;
    (header.magic == REQUEST).then(|| Echo::new(&header))
}

/// Decodes the packet at the front of `input`.
pub(crate) fn decode(
    input: &[u8],
    value_bytes_max: usize,
    announced_bytes_min: usize,
) -> Decoded<'_> {
    let Ok((header, rest)) = Header::read_from_prefix(input) else {
        let strange = input.first().is_some_and(|&magic| magic != REQUEST);
        return match strange {
            true => Decoded::Close,
            false => Decoded::NeedMore { at: HEADER },
        };
    };
    if header.magic != REQUEST {
        return Decoded::Close;
    }
    let extras_len = usize::from(header.extras_len);
    let key_len = usize::from(header.key_len.get());
    let value_at = HEADER + extras_len + key_len;
    let mut frame = Frame {
        header,
        extras: &[],
        key: &[],
        input,
        value_at: HEADER,
        value_bytes_max,
        announced_bytes_min,
    };
    let body_len = header.body_len.get();
    let Some(value_len) = body_len.checked_sub((extras_len + key_len) as u32) else {
        return frame.just(Verb::Fatal(Status::UnknownCommand));
    };
    if body_len > BODY_BYTES_MAX || key_len > KEY_BYTES_MAX {
        return frame.just(Verb::Fatal(Status::Invalid));
    }
    if input.len() < value_at {
        return Decoded::NeedMore { at: value_at };
    }
    let (extras, rest) = rest.split_at(extras_len);
    frame.extras = extras;
    frame.key = &rest[..key_len];
    frame.value_at = value_at;
    frame.decode(value_len)
}

/// A packet with its header decoded. Extras and key are empty until all of them have arrived.
struct Frame<'a> {
    header: Header,
    extras: &'a [u8],
    key: &'a [u8],
    input: &'a [u8],
    /// Offset of the value in the input.
    value_at: usize,
    value_bytes_max: usize,
    announced_bytes_min: usize,
}

impl<'a> Frame<'a> {
    fn decode(&self, value_len: u32) -> Decoded<'a> {
        let bare = self.header.body_len.get() == 0;
        let read = match opcode::plain(self.header.opcode) {
            opcode::GET => self.get(value_len),
            opcode::GAT | opcode::TOUCH => self.touch(),
            opcode::SET => self.put(Mode::Set, value_len),
            opcode::ADD => self.put(Mode::Add, value_len),
            opcode::REPLACE => self.put(Mode::Replace, value_len),
            opcode::APPEND => self.put(Mode::Append, value_len),
            opcode::PREPEND => self.put(Mode::Prepend, value_len),
            opcode::DELETE => self.delete(value_len),
            opcode::INCREMENT => self.arith(false, value_len),
            opcode::DECREMENT => self.arith(true, value_len),
            opcode::FLUSH => self.flush(value_len),
            opcode::STAT => self.extras.is_empty().then(|| self.just(Verb::Stat)),
            opcode::NOOP => bare.then(|| self.just(Verb::Noop)),
            opcode::VERSION => bare.then(|| self.just(Verb::Version)),
            opcode::QUIT => bare.then(|| self.just(Verb::Quit)),
            opcode::SASL_LIST => bare.then(|| self.just(Verb::SaslList)),
            opcode::SASL_AUTH | opcode::SASL_STEP => self.sasl(value_len),
            _ => Some(self.refuse(value_len)),
        };
        read.unwrap_or_else(|| self.just(Verb::Fatal(Status::Invalid)))
    }

    fn get(&self, value_len: u32) -> Option<Decoded<'a>> {
        let fits = self.extras.is_empty() && self.is_keyed() && value_len == 0;
        fits.then(|| self.just(Verb::Get { touch: None }))
    }

    /// memcached does not check these for a value: bytes after the key are taken as the next
    /// packet.
    fn touch(&self) -> Option<Decoded<'a>> {
        let exptime = U32::read_from_bytes(self.extras).ok()?;
        let touch = Some(exptime.get());
        self.is_keyed().then(|| self.just(Verb::Get { touch }))
    }

    fn delete(&self, value_len: u32) -> Option<Decoded<'a>> {
        let fits = self.extras.is_empty() && self.is_keyed() && value_len == 0;
        let compare = self.compare();
        fits.then(|| self.just(Verb::Delete { compare }))
    }

    fn put(&self, mode: Mode, value_len: u32) -> Option<Decoded<'a>> {
        let joins = matches!(mode, Mode::Append | Mode::Prepend);
        let extras = match self.extras {
            [] if joins => PutExtras::default(),
            _ if joins => return None,
            extras => PutExtras::read_from_bytes(extras).ok()?,
        };
        if !self.is_keyed() {
            return None;
        }
        let len = usize::try_from(value_len).ok()?;
        if len > self.value_bytes_max {
            let set = mode == Mode::Set;
            return Some(self.command(Verb::Oversized { set }, self.value_at, value_len));
        }
        let at = self.value_at + len;
        let value = self.input.get(self.value_at..at);
        let put = Put {
            mode,
            value: value.unwrap_or_default(),
            flags: extras.flags.get(),
            exptime: extras.exptime.get(),
            compare: self.compare(),
        };
        Some(match value {
            Some(_) => self.command(Verb::Put(put), at, 0),
            None => self.short(Verb::Put(put), len),
        })
    }

    /// Decodes a packet whose value of `len` bytes has not arrived completely: announces it if it
    /// is large and [`ANNOUNCED_BYTES`] of it are here.
    fn short(&self, verb: Verb<'a>, len: usize) -> Decoded<'a> {
        let enough = self.value_at + ANNOUNCED_BYTES;
        if len <= self.announced_bytes_min {
            return Decoded::NeedMore {
                at: self.value_at + len,
            };
        }
        if self.input.len() < enough {
            return Decoded::NeedMore { at: enough };
        }
        Decoded::Announced {
            command: self.packet(verb),
            used: self.value_at,
            value_len: len,
            has_line_end: false,
        }
    }

    fn sasl(&self, value_len: u32) -> Option<Decoded<'a>> {
        if !self.extras.is_empty() || !self.is_keyed() {
            return None;
        }
        let len = usize::try_from(value_len).ok()?;
        if len > SASL_BYTES_MAX {
            let verb = Verb::Sasl { message: None };
            return Some(self.command(verb, self.value_at, value_len));
        }
        let at = self.value_at + len;
        Some(match self.input.get(self.value_at..at) {
            None => Decoded::NeedMore { at },
            message => self.command(Verb::Sasl { message }, at, 0),
        })
    }

    fn arith(&self, decrement: bool, value_len: u32) -> Option<Decoded<'a>> {
        let extras = ArithExtras::read_from_bytes(self.extras).ok()?;
        // protocol-binary.txt, "Increment, Decrement": an exptime of all ones creates no item.
        let makes = extras.exptime.get() != u32::MAX;
        let arith = Arith {
            decrement,
            delta: extras.delta.get(),
            initial: extras.initial.get(),
            vivify: makes.then(|| extras.exptime.get()),
            compare: self.compare(),
        };
        (self.is_keyed() && value_len == 0).then(|| self.just(Verb::Arith(arith)))
    }

    fn flush(&self, value_len: u32) -> Option<Decoded<'a>> {
        let delay = match self.extras {
            [] => 0,
            extras => U32::read_from_bytes(extras).ok()?.get(),
        };
        (!self.is_keyed() && value_len == 0).then(|| self.just(Verb::Flush { delay }))
    }

    fn is_keyed(&self) -> bool {
        !self.key.is_empty()
    }

    fn compare(&self) -> Option<u64> {
        Some(self.header.unique.get()).filter(|&unique| unique != 0)
    }

    /// Refuses an unknown or unsupported opcode; its value is dropped unread.
    fn refuse(&self, value_len: u32) -> Decoded<'a> {
        let verb = Verb::Refused(Status::UnknownCommand);
        self.command(verb, self.value_at, value_len)
    }

    /// Returns a command without a value.
    fn just(&self, verb: Verb<'a>) -> Decoded<'a> {
        self.command(verb, self.value_at, 0)
    }

    fn command(&self, verb: Verb<'a>, used: usize, swallow: u32) -> Decoded<'a> {
        Decoded::Command {
            command: self.packet(verb),
            used,
            swallow: u64::from(swallow),
        }
    }

    fn packet(&self, verb: Verb<'a>) -> Command<'a> {
        Command::Packet(Packet {
            echo: Echo::new(&self.header),
            key: self.key,
            verb,
        })
    }
}

/// Extras of `set`, `add`, `replace`.
#[derive(Clone, Copy, Default, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PutExtras {
    flags: U32,
    exptime: U32,
}

/// Extras of `increment` and `decrement`.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ArithExtras {
    delta: U64,
    initial: U64,
    exptime: U32,
}

const _: () = assert!(size_of::<PutExtras>() == 8 && size_of::<ArithExtras>() == 20);

#[cfg(test)]
mod tests;
