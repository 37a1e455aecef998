use herdwick_mem::Span;
use herdwick_mica::{Arith, Delete, Get, KEY_BYTES_MAX, KeyHash, Mode, Op, Put, Request};
use zerocopy::IntoBytes;

use super::{
    BODY, BODY_BYTES_MAX, CONTROL_WORD, Control, HAS_ATTR, HAS_COMPARE, HASH, LINE_WORDS, OVERFLOW,
    OVERFLOW_BYTES, OVERFLOW_CRC, OVERFLOW_HEAD_BYTES, OVERFLOW_LEN, OpCode, RESERVED, Stamp,
};

/// A request line outside shared memory: copied out of it, or about to be written into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub struct Line([u64; LINE_WORDS]);

/// Where a line says its body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// In the line.
    Here(&'a [u8]),
    /// In the slot's overflow area.
    Overflow {
        /// Bytes, 1 to [`OVERFLOW_BYTES`].
        len: usize,
        /// Their CRC32C.
        crc: u32,
    },
}

/// What is wrong with a request line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadRequest {
    /// No operation has this code.
    #[error("unknown operation")]
    Opcode,
    /// The reserved bit is set.
    #[error("reserved bit set")]
    Reserved,
    /// A key has 1 to 250 bytes.
    #[error("key length")]
    KeyLength,
    /// More body than a line or an overflow area holds, or none.
    #[error("body length")]
    BodyLength,
    /// The operation does not take, or lacks, attributes or a version to compare.
    #[error("attributes that the operation does not take, or lacks")]
    Attributes,
    /// The body ends before its parts do.
    #[error("body shorter than its parts")]
    Truncated,
    /// The operation takes no value, or one of another length.
    #[error("value length")]
    Value,
}

impl BadRequest {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Opcode,
        Self::Reserved,
        Self::KeyLength,
        Self::BodyLength,
        Self::Attributes,
        Self::Truncated,
        Self::Value,
    ];
}

/// Why a request cannot travel on a line; memcached's protocol may carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unencodable {
    /// A key has 1 to 250 bytes.
    #[error("a key has 1 to 250 bytes")]
    Key,
    /// Key and value exceed the overflow area.
    #[error("key and value exceed {OVERFLOW_BYTES} bytes")]
    TooLarge,
    /// The line has no place for an option of this request.
    #[error("an option of the request has no place on the line")]
    Option,
}

impl Line {
    /// Copies the seven words before the control word out of `lines`, from word `first` on, and
    /// joins them to the `control` word that was loaded before. Each word is read once.
    #[inline]
    #[must_use]
    pub fn copied(lines: &Span, first: usize, control: Control) -> Self {
        let [a, b, c, d, e, f, g] = lines.read_words::<CONTROL_WORD>(first);
        Self([a, b, c, d, e, f, g, control.0])
    }

    /// The words, as a WRITE takes them.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[u64; LINE_WORDS] {
        &self.0
    }

    /// The control word.
    #[inline]
    #[must_use]
    pub fn control(&self) -> Control {
        Control(self.0[CONTROL_WORD])
    }

    /// Makes this the next attempt of the same request.
    pub fn retry(&mut self) {
        self.0[CONTROL_WORD] = self.control().retried().0;
    }

    /// Makes this the cancellation of its request. No other word changes, for the worker may be
    /// reading them.
    pub fn cancel(&mut self) {
        self.0[CONTROL_WORD] = self.control().canceled().0;
    }

    /// The locator hash.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        KeyHash(self.0[HASH.word()])
    }

    /// Where the body is.
    ///
    /// # Errors
    /// [`BadRequest::BodyLength`].
    #[inline]
    pub fn body(&self) -> Result<Body<'_>, BadRequest> {
        let control = self.control();
        let here = self.0.as_bytes()[BODY.offset..][..BODY_BYTES_MAX]
            .get(..control.body_len())
            .ok_or(BadRequest::BodyLength)?;
        if control.bits() & OVERFLOW == 0 {
            return Ok(Body::Here(here));
        }
        let (len, crc) = (
            self.number(OVERFLOW_LEN.offset),
            self.number(OVERFLOW_CRC.offset),
        );
        let len = len as usize;
        if here.len() != OVERFLOW_HEAD_BYTES || len == 0 || len > OVERFLOW_BYTES {
            return Err(BadRequest::BodyLength);
        }
        Ok(Body::Overflow { len, crc })
    }

    fn number(&self, offset: usize) -> u32 {
        let word = self.0[offset / 8];
        (word >> (offset % 8 * 8)) as u32
    }
}

/// Reads the request that `line` and its `body` (from the line or the overflow area) make.
///
/// # Errors
/// What is wrong with it: [`BadRequest`].
#[inline]
pub fn decode<'a>(line: &Line, body: &'a [u8]) -> Result<Request<'a>, BadRequest> {
    let control = line.control();
    let op = control.op().ok_or(BadRequest::Opcode)?;
    if control.bits() & RESERVED != 0 {
        return Err(BadRequest::Reserved);
    }
    let mut parts = Parts(body);
    let attr = parts.attr(control.bits())?;
    let compare = parts.compare(control.bits())?;
    let key = match control.key_len() {
        len @ 1..=KEY_BYTES_MAX => parts.take(len)?,
        _ => return Err(BadRequest::KeyLength),
    };
    let op = match op {
        OpCode::Get | OpCode::Gat => read(op, attr, compare, parts)?,
        OpCode::Delete => delete(attr, compare, parts)?,
        OpCode::Incr | OpCode::Decr => arith(op, attr, compare, parts)?,
        OpCode::Set => put(Mode::Set, attr, compare, parts),
        OpCode::Add => put(Mode::Add, attr, compare, parts),
        OpCode::Replace => put(Mode::Replace, attr, compare, parts),
        OpCode::Append => put(Mode::Append, attr, compare, parts),
        OpCode::Prepend => put(Mode::Prepend, attr, compare, parts),
        OpCode::Cancel => return Err(BadRequest::Opcode),
    };
    Ok(Request {
        hash: line.hash(),
        key,
        op,
    })
}

/// Client flags and exptime.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Attr {
    flags: u32,
    exptime: i32,
}

/// What is left of a body.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], BadRequest> {
        let (part, rest) = self.0.split_at_checked(len).ok_or(BadRequest::Truncated)?;
        self.0 = rest;
        Ok(part)
    }

    #[inline]
    fn number(&mut self) -> Result<u64, BadRequest> {
        let (part, rest) = self.0.split_first_chunk().ok_or(BadRequest::Truncated)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*part))
    }

    #[inline]
    fn attr(&mut self, bits: u8) -> Result<Option<Attr>, BadRequest> {
        if bits & HAS_ATTR == 0 {
            return Ok(None);
        }
        let both = self.number()?;
        Ok(Some(Attr {
            flags: both as u32,
            exptime: (both >> 32) as i32,
        }))
    }

    #[inline]
    fn compare(&mut self, bits: u8) -> Result<Option<u64>, BadRequest> {
        if bits & HAS_COMPARE == 0 {
            return Ok(None);
        }
        self.number().map(Some)
    }

    /// Nothing may be left.
    #[inline]
    fn end(self) -> Result<(), BadRequest> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(BadRequest::Value)
        }
    }
}

/// The exptime of an operation that has no flags to set.
fn exptime_alone(attr: Attr) -> Result<i32, BadRequest> {
    if attr.flags == 0 {
        Ok(attr.exptime)
    } else {
        Err(BadRequest::Attributes)
    }
}

#[inline]
fn read<'a>(
    op: OpCode,
    attr: Option<Attr>,
    compare: Option<u64>,
    parts: Parts<'a>,
) -> Result<Op<'a>, BadRequest> {
    parts.end()?;
    if compare.is_some() || attr.is_some() != (op == OpCode::Gat) {
        return Err(BadRequest::Attributes);
    }
    Ok(Op::Get(Get {
        touch: attr.map(exptime_alone).transpose()?,
        ..Get::default()
    }))
}

#[inline]
fn put<'a>(mode: Mode, attr: Option<Attr>, compare: Option<u64>, value: Parts<'a>) -> Op<'a> {
    let attr = attr.unwrap_or_default();
    Op::Put(Put {
        mode,
        value: value.0,
        flags: attr.flags,
        exptime: attr.exptime,
        compare,
        ..Put::default()
    })
}

fn delete<'a>(
    attr: Option<Attr>,
    compare: Option<u64>,
    parts: Parts<'a>,
) -> Result<Op<'a>, BadRequest> {
    parts.end()?;
    if attr.is_some() {
        return Err(BadRequest::Attributes);
    }
    Ok(Op::Delete(Delete {
        compare,
        ..Delete::default()
    }))
}

/// The value is the delta; with attributes, the delta and the number to start from on a miss.
fn arith<'a>(
    op: OpCode,
    attr: Option<Attr>,
    compare: Option<u64>,
    mut parts: Parts<'a>,
) -> Result<Op<'a>, BadRequest> {
    let delta = parts.number()?;
    let initial = if attr.is_some() { parts.number()? } else { 0 };
    parts.end()?;
    Ok(Op::Arith(Arith {
        decrement: op == OpCode::Decr,
        delta,
        vivify: attr.map(exptime_alone).transpose()?,
        initial,
        compare,
        ..Arith::default()
    }))
}

/// Writes `request` into `line`, as `stamp`'s first attempt. A body too long for the line goes to
/// the front of `overflow`, of at most [`OVERFLOW_BYTES`]; the answer is its length there, or 0.
///
/// # Errors
/// Why it cannot travel this way: [`Unencodable`]. `line` and `overflow` are then unspecified.
#[inline]
pub fn encode(
    request: &Request<'_>,
    stamp: Stamp,
    line: &mut Line,
    overflow: &mut [u8],
) -> Result<usize, Unencodable> {
    let parts = Written::of(&request.op).ok_or(Unencodable::Option)?;
    let key_len = u8::try_from(request.key.len()).map_err(|_| Unencodable::Key)?;
    if key_len == 0 || request.key.len() > KEY_BYTES_MAX {
        return Err(Unencodable::Key);
    }
    let head_len = 8 * (usize::from(parts.attr.is_some()) + usize::from(parts.compare.is_some()));
    let len = head_len + request.key.len() + parts.value().len();
    *line = Line::default();
    line.0[HASH.word()] = request.hash.0;
    let here = len <= BODY_BYTES_MAX;
    if here {
        parts.emit(request.key, &mut line.0.as_mut_bytes()[BODY.offset..]);
    } else {
        let body = overflow.get_mut(..len).ok_or(Unencodable::TooLarge)?;
        parts.emit(request.key, body);
        let crc = u64::from(crc32c::crc32c(body));
        line.0[BODY.word()] = len as u64 | crc << 32;
    }
    let (bits, body_len) = if here {
        (0, len)
    } else {
        (OVERFLOW, OVERFLOW_HEAD_BYTES)
    };
    let control = Control::new(
        parts.op,
        parts.bits() | bits,
        key_len,
        body_len as u8,
        stamp,
    );
    line.0[CONTROL_WORD] = control.0;
    Ok(if here { 0 } else { len })
}

/// A request as the line has it.
struct Written<'a> {
    op: OpCode,
    attr: Option<Attr>,
    compare: Option<u64>,
    value: Value<'a>,
}

enum Value<'a> {
    Bytes(&'a [u8]),
    Numbers([u8; 16], usize),
}

impl<'a> Written<'a> {
    /// `None` when `op` has an option that the line has no place for.
    #[inline]
    fn of(op: &Op<'a>) -> Option<Self> {
        match op {
            Op::Get(get) => Self::read(get),
            Op::Put(put) => Self::put(put),
            Op::Delete(delete) => Self::delete(delete),
            Op::Arith(arith) => Self::arith(arith),
        }
    }

    #[inline]
    fn read(get: &Get) -> Option<Self> {
        let plain = get.vivify.is_none()
            && get.recache.is_none()
            && get.version.is_none()
            && !get.quiet_access;
        plain.then_some(Self {
            op: if get.touch.is_some() {
                OpCode::Gat
            } else {
                OpCode::Get
            },
            attr: get.touch.map(|exptime| Attr { flags: 0, exptime }),
            compare: None,
            value: Value::Bytes(&[]),
        })
    }

    #[inline]
    fn put(put: &Put<'a>) -> Option<Self> {
        let plain = put.version.is_none() && !put.invalidate && put.vivify.is_none();
        let attr = Attr {
            flags: put.flags,
            exptime: put.exptime,
        };
        plain.then_some(Self {
            op: match put.mode {
                Mode::Set => OpCode::Set,
                Mode::Add => OpCode::Add,
                Mode::Replace => OpCode::Replace,
                Mode::Append => OpCode::Append,
                Mode::Prepend => OpCode::Prepend,
            },
            attr: (attr != Attr::default()).then_some(attr),
            compare: put.compare,
            value: Value::Bytes(put.value),
        })
    }

    fn delete(delete: &Delete) -> Option<Self> {
        let plain = delete.version.is_none()
            && !delete.invalidate
            && delete.exptime.is_none()
            && !delete.drop_value;
        plain.then_some(Self {
            op: OpCode::Delete,
            attr: None,
            compare: delete.compare,
            value: Value::Bytes(&[]),
        })
    }

    fn arith(arith: &Arith) -> Option<Self> {
        let mut numbers = [0; 16];
        numbers[..8].copy_from_slice(&arith.delta.to_le_bytes());
        numbers[8..].copy_from_slice(&arith.initial.to_le_bytes());
        let len = if arith.vivify.is_some() { 16 } else { 8 };
        let plain = arith.touch.is_none() && arith.version.is_none();
        plain.then_some(Self {
            op: if arith.decrement {
                OpCode::Decr
            } else {
                OpCode::Incr
            },
            attr: arith.vivify.map(|exptime| Attr { flags: 0, exptime }),
            compare: arith.compare,
            value: Value::Numbers(numbers, len),
        })
    }

    #[inline]
    fn bits(&self) -> u8 {
        let attr = if self.attr.is_some() { HAS_ATTR } else { 0 };
        let compare = if self.compare.is_some() {
            HAS_COMPARE
        } else {
            0
        };
        attr | compare
    }

    #[inline]
    fn value(&self) -> &[u8] {
        match &self.value {
            Value::Bytes(bytes) => bytes,
            Value::Numbers(bytes, len) => &bytes[..*len],
        }
    }

    /// Writes the body to the front of `out`, which has room for it.
    #[inline]
    fn emit(&self, key: &[u8], out: &mut [u8]) {
        let mut at = 0;
        let mut push = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(attr) = self.attr {
            push(&attr.flags.to_le_bytes());
            push(&attr.exptime.to_le_bytes());
        }
        if let Some(compare) = self.compare {
            push(&compare.to_le_bytes());
        }
        push(key);
        push(self.value());
    }
}
