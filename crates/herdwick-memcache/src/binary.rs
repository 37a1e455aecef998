//! memcached's binary protocol (protocol-binary.txt): decoding of request packets, encoding of
//! responses.
//!
//! Deprecated since 2020, still used by memjs, python-binary-memcached, Datadog and others, and the
//! only one of memcached's protocols that carries SASL.

mod answer;
mod header;
mod packet;
mod reply;

pub use answer::PacketAnswer;
pub use header::{REQUEST, opcode};
pub use packet::{Packet, Verb};
pub use reply::{Body, Echo, Status};

use herdwick_request::{Arith, Delete, Get, Mode, Op, Put};
use zerocopy::{
    FromBytes, Immutable, KnownLayout, Unaligned,
    big_endian::{U32, U64},
};

use self::{
    answer::PacketKind,
    header::{HEADER, Header},
};
use crate::{ANNOUNCED_BYTES, Admits, Answer, Asked, Command, Decoded, KEY_BYTES_MAX, Refused};

/// Maximum length of a packet's body in bytes (the maximum of memcached's `-I`).
const BODY_BYTES_MAX: u32 = 1 << 30;
/// Maximum length of a client's message in a SASL exchange, in bytes. The longest that can be right
/// is far below it.
pub const SASL_BYTES_MAX: usize = 4096;

/// Returns the fields of the packet at the front of `input` that a response repeats, as soon as its
/// header is there; `None` before that, or if it is no packet.
#[must_use]
pub fn peek(input: &[u8]) -> Option<Echo> {
    let (header, _) = Header::read_from_prefix(input).ok()?;
    (header.magic == REQUEST).then(|| Echo::new(&header))
}

/// Decodes the packet at the front of `input`, if it is among those that `admits` names. `limits`
/// are the maximum size of a value, and the size beyond which it is announced.
pub(crate) fn decode(input: &[u8], limits: (usize, usize), admits: Admits) -> Decoded<'_> {
    let Ok((header, rest)) = Header::read_from_prefix(input) else {
        // The first byte is enough: the rest of a header that is none may never arrive.
        let strange = input.first().is_some_and(|&magic| magic != REQUEST);
        return match strange {
            true => Decoded::Close,
            false => Decoded::NeedMore { at: HEADER },
        };
    };
    // The stream is out of step, and nothing marks where the next packet begins.
    if header.magic != REQUEST {
        return Decoded::Close;
    }
    // By the opcode alone: a packet that has to wait is not decoded further.
    if !is_admitted(header.opcode, admits) {
        return Decoded::Held;
    }
    let extras_len = usize::from(header.extras_len);
    let key_len = usize::from(header.key_len.get());
    let value_at = HEADER + extras_len + key_len;
    let mut frame = Frame {
        header,
        extras: &[],
        key: &[],
        input,
        // A refusal before extras and key are here uses up no more than the header.
        value_at: HEADER,
        value_bytes_max: limits.0,
        announced_bytes_min: limits.1,
        admits,
    };
    let body_len = header.body_len.get();
    let Some(value_len) = body_len.checked_sub((extras_len + key_len) as u32) else {
        return frame.fail(Status::UnknownCommand);
    };
    // Before it is awaited: the key may be longer than any that is accepted.
    if body_len > BODY_BYTES_MAX || key_len > KEY_BYTES_MAX {
        return frame.fail(Status::Invalid);
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

fn is_admitted(opcode: u8, admits: Admits) -> bool {
    use opcode::{
        ADD, APPEND, DECREMENT, DELETE, GAT, GET, INCREMENT, PREPEND, REPLACE, SET, TOUCH,
    };
    match (admits, opcode::plain(opcode)) {
        // As `PacketAnswer::is_read`: `gat` is among the reads, `touch` is not.
        (Admits::All, _) | (_, GET | GAT) => true,
        (Admits::Reads, _) => false,
        (Admits::Requests, plain) => matches!(
            plain,
            SET | ADD | REPLACE | APPEND | PREPEND | DELETE | INCREMENT | DECREMENT | TOUCH
        ),
    }
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
    admits: Admits,
}

impl<'a> Frame<'a> {
    fn decode(&self, value_len: u32) -> Decoded<'a> {
        let bare = self.header.body_len.get() == 0;
        let read = match opcode::plain(self.header.opcode) {
            opcode::GET => self.get(value_len),
            plain @ (opcode::GAT | opcode::TOUCH) => self.touch(plain),
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
            // The value of an unknown packet is dropped unread.
            _ => Some(self.refuse(Status::UnknownCommand, value_len)),
        };
        // The lengths do not suit the opcode, so where the next packet begins is not certain.
        read.unwrap_or_else(|| self.fail(Status::Invalid))
    }

    fn get(&self, value_len: u32) -> Option<Decoded<'a>> {
        let fits = self.extras.is_empty() && self.is_keyed() && value_len == 0;
        fits.then(|| self.read(None, PacketKind::Get))
    }

    /// memcached does not check these for a value: bytes after the key are taken as the next
    /// packet.
    fn touch(&self, plain: u8) -> Option<Decoded<'a>> {
        let exptime = U32::read_from_bytes(self.extras).ok()?;
        let kind = match plain {
            opcode::TOUCH => PacketKind::Touch,
            _ => PacketKind::Get,
        };
        self.is_keyed()
            .then(|| self.read(Some(exptime.get()), kind))
    }

    fn read(&self, touch: Option<u32>, kind: PacketKind) -> Decoded<'a> {
        let op = Op::Get(Get {
            touch,
            // The binary protocol has no flag for a recache win.
            unaware: true,
            ..Get::default()
        });
        self.request(op, kind, self.value_at, 0)
    }

    fn delete(&self, value_len: u32) -> Option<Decoded<'a>> {
        let fits = self.extras.is_empty() && self.is_keyed() && value_len == 0;
        let op = Op::Delete(Delete {
            compare: self.compare(),
            ..Delete::default()
        });
        fits.then(|| self.request(op, PacketKind::Delete, self.value_at, 0))
    }

    fn put(&self, mode: Mode, value_len: u32) -> Option<Decoded<'a>> {
        let joins = matches!(mode, Mode::Append | Mode::Prepend);
        let extras = match self.extras {
            // `append` and `prepend` keep the flags and the exptime of the item, so they send none.
            [] if joins => PutExtras::default(),
            _ if joins => return None,
            extras => PutExtras::read_from_bytes(extras).ok()?,
        };
        if !self.is_keyed() {
            return None;
        }
        let len = usize::try_from(value_len).ok()?;
        // Before it is awaited: the value is dropped as it arrives, not buffered.
        if len > self.value_bytes_max {
            return Some(self.too_large(mode, value_len));
        }
        let at = self.value_at + len;
        let value = self.input.get(self.value_at..at);
        let compare = self.compare();
        let op = Op::Put(Put {
            // As in memcached, `add` and `replace` with a CAS unique are sets.
            mode: match mode {
                Mode::Add | Mode::Replace if compare.is_some() => Mode::Set,
                mode => mode,
            },
            value: value.unwrap_or_default(),
            flags: extras.flags.get(),
            exptime: extras.exptime.get(),
            compare,
            ..Put::default()
        });
        Some(match value {
            Some(_) => self.request(op, PacketKind::Put, at, 0),
            None => self.short(op, len),
        })
    }

    /// Refuses a value that is too large. Only `set` removes the old value on failure.
    fn too_large(&self, mode: Mode, value_len: u32) -> Decoded<'a> {
        if mode == Mode::Set {
            let op = Op::Delete(Delete::default());
            return self.request(op, PacketKind::TooLarge, self.value_at, value_len);
        }
        self.refuse(Status::TooLarge, value_len)
    }

    /// Decodes a packet whose value of `len` bytes has not arrived completely: announces it if it
    /// is large and [`ANNOUNCED_BYTES`] of it are here.
    fn short(&self, op: Op<'a>, len: usize) -> Decoded<'a> {
        let enough = self.value_at + ANNOUNCED_BYTES;
        if len <= self.announced_bytes_min {
            return Decoded::NeedMore {
                at: self.value_at + len,
            };
        }
        if self.input.len() < enough {
            return Decoded::NeedMore { at: enough };
        }
        // As for lines: a connection that uploads executes no other command.
        if self.admits != Admits::All {
            return Decoded::Held;
        }
        Decoded::Announced {
            asked: self.asked(op, PacketKind::Put),
            used: self.value_at,
            value_len: len,
            // The header has the length; nothing ends the value.
            has_line_end: false,
        }
    }

    fn sasl(&self, value_len: u32) -> Option<Decoded<'a>> {
        if !self.extras.is_empty() || !self.is_keyed() {
            return None;
        }
        let len = usize::try_from(value_len).ok()?;
        // Dropped, not buffered: this client is not authenticated yet.
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
        let op = Op::Arith(Arith {
            decrement,
            delta: extras.delta.get(),
            initial: extras.initial.get(),
            vivify: makes.then(|| extras.exptime.get()),
            compare: self.compare(),
            ..Arith::default()
        });
        (self.is_keyed() && value_len == 0)
            .then(|| self.request(op, PacketKind::Arith, self.value_at, 0))
    }

    fn flush(&self, value_len: u32) -> Option<Decoded<'a>> {
        let delay = match self.extras {
            // The delay is optional.
            [] => 0,
            extras => U32::read_from_bytes(extras).ok()?.get(),
        };
        (!self.is_keyed() && value_len == 0).then(|| self.just(Verb::Flush { delay }))
    }

    fn is_keyed(&self) -> bool {
        !self.key.is_empty()
    }

    /// Returns the CAS unique to compare; 0 means none.
    fn compare(&self) -> Option<u64> {
        Some(self.header.unique.get()).filter(|&unique| unique != 0)
    }

    fn asked(&self, op: Op<'a>, kind: PacketKind) -> Asked<'a> {
        let echo = Echo::new(&self.header);
        Asked {
            key: self.key,
            op,
            answer: Answer::Binary(PacketAnswer { kind, echo }),
        }
    }

    fn request(&self, op: Op<'a>, kind: PacketKind, used: usize, discard: u32) -> Decoded<'a> {
        Decoded::Request {
            asked: self.asked(op, kind),
            used,
            discard: u64::from(discard),
        }
    }

    /// Refuses a packet; its value is dropped unread.
    fn refuse(&self, status: Status, value_len: u32) -> Decoded<'a> {
        self.refused(status, false, value_len)
    }

    /// Refuses a packet, and what is behind it on the connection.
    fn fail(&self, status: Status) -> Decoded<'a> {
        self.refused(status, true, 0)
    }

    fn refused(&self, status: Status, closes: bool, value_len: u32) -> Decoded<'a> {
        Decoded::Refused {
            refused: Refused::Packet {
                echo: Echo::new(&self.header),
                status,
                closes,
            },
            used: self.value_at,
            discard: u64::from(value_len),
        }
    }

    /// Returns a packet without a value.
    fn just(&self, verb: Verb<'a>) -> Decoded<'a> {
        self.command(verb, self.value_at, 0)
    }

    fn command(&self, verb: Verb<'a>, used: usize, discard: u32) -> Decoded<'a> {
        let echo = Echo::new(&self.header);
        let key = self.key;
        Decoded::Command {
            command: Command::Packet(Packet { echo, key, verb }),
            used,
            discard: u64::from(discard),
        }
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
