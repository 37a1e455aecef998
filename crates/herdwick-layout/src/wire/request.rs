//! Request lines and their decoding, on the worker. The input is a private copy of what a peer
//! wrote; it is validated whole and never panics.

use herdwick_mem::Span;
use herdwick_request::{Arith, Delete, Get, KEY_BYTES_MAX, KeyHash, Mode, Op, Put, Request};
use zerocopy::IntoBytes;

use super::{
    BODY, BODY_BYTES_MAX, CONTROL_WORD, Control, HAS_ATTR, HAS_COMPARE, HASH, LINE_WORDS,
    OVERFLOW_BYTES, OVERFLOW_CRC, OVERFLOW_HEAD_BYTES, OVERFLOW_LEN, OpCode, RESERVED, Stamp,
};

/// A request line outside shared memory: copied out of it, or about to be written into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub struct Line(pub(super) [u64; LINE_WORDS]);

/// Where a line's body is.
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
    /// The key has not 1 to 250 bytes.
    #[error("key length")]
    KeyLength,
    /// The body is longer than a line or an overflow area, or an overflowing one is empty.
    #[error("body length")]
    BodyLength,
    /// The operation does not take, or lacks, attributes or a version to compare.
    #[error("attributes that the operation does not take, or lacks")]
    Attributes,
    /// The body is shorter than its parts.
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

impl Line {
    /// Copies the seven words before the control word out of `lines`, from word `first` on, and
    /// adds the `control` word that was loaded before them. Each word is read once.
    #[inline]
    pub fn copy_from(&mut self, lines: &Span, first: usize, control: Control) {
        let words = lines.read_words::<CONTROL_WORD>(first);
        // Word by word, from registers: a line that is made elsewhere and copied costs its copy again.
        for (to, from) in self.0.iter_mut().zip(words) {
            *to = from;
        }
        // The word that was loaded before: a second load could find that of another request.
        self.0[CONTROL_WORD] = control.0;
    }

    /// The words, as a WRITE carries them.
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

    /// Turns the line into the next attempt of the same request.
    pub fn retry(&mut self) {
        self.0[CONTROL_WORD] = self.control().retried().0;
    }

    /// Turns the line into the cancellation of its request. No other word changes, because the
    /// worker may be reading them.
    pub fn cancel(&mut self) {
        self.0[CONTROL_WORD] = self.control().canceled().0;
    }

    /// Turns the line into the first attempt of another request with the same words.
    pub fn restamp(&mut self, stamp: Stamp) {
        self.0[CONTROL_WORD] = self.control().stamped(stamp).0;
    }

    /// Makes the cancellation of a request that was never written.
    #[must_use]
    pub fn cancellation(stamp: Stamp) -> Self {
        let mut line = Self::default();
        line.0[CONTROL_WORD] = Control::new(OpCode::Cancel, 0, 0, 0, stamp).0;
        line
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
            // Six bits may say up to 63, and a line has 48.
            .get(..control.body_len())
            .ok_or(BadRequest::BodyLength)?;
        if !control.overflows() {
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

    #[inline]
    pub(super) fn body_mut(&mut self) -> &mut [u8] {
        &mut self.0.as_mut_bytes()[BODY.offset..][..BODY_BYTES_MAX]
    }

    fn number(&self, offset: usize) -> u32 {
        let word = self.0[offset / 8];
        (word >> (offset % 8 * 8)) as u32
    }
}

impl Line {
    /// Returns the key if the request is a plain GET, by far the most frequent request; [`decode`]
    /// would return the same.
    #[inline]
    #[must_use]
    pub fn plain_get(&self) -> Option<&[u8]> {
        let control = self.control();
        let key_len = control.key_len();
        let plain = control.is(OpCode::Get) && control.bits() == 0;
        // A body that is longer than the key has more than a key.
        if !plain || key_len != control.body_len() || key_len == 0 {
            return None;
        }
        self.0.as_bytes()[BODY.offset..][..BODY_BYTES_MAX].get(..key_len)
    }
}

/// Decodes the request of `line` and its `body`, from the line or the overflow area.
///
/// # Errors
/// [`BadRequest`].
pub fn decode<'a>(line: &Line, body: &'a [u8]) -> Result<Request<'a>, BadRequest> {
    let control = line.control();
    let op = control.op().ok_or(BadRequest::Opcode)?;
    // Refused, so that a later version can use it.
    if control.bits() & RESERVED != 0 {
        return Err(BadRequest::Reserved);
    }
    let mut parts = Parts(body);
    // The order of the parts is that of docs/wire.md.
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
        // The worker handles these before it decodes a line.
        OpCode::Cancel | OpCode::Report | OpCode::Locate => return Err(BadRequest::Opcode),
    };
    Ok(Request {
        hash: line.hash(),
        key,
        op,
    })
}

/// Client flags and exptime.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attr {
    pub(super) flags: u32,
    pub(super) exptime: u32,
}

/// The rest of a body.
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
            exptime: (both >> 32) as u32,
        }))
    }

    #[inline]
    fn compare(&mut self, bits: u8) -> Result<Option<u64>, BadRequest> {
        if bits & HAS_COMPARE == 0 {
            return Ok(None);
        }
        self.number().map(Some)
    }

    /// Checks that nothing is left.
    #[inline]
    fn end(self) -> Result<(), BadRequest> {
        // Left-over bytes are a mistake of the client, and must not be ignored.
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(BadRequest::Value)
        }
    }
}

/// Returns the exptime of an operation that cannot set flags.
fn exptime_alone(attr: Attr) -> Result<u32, BadRequest> {
    // A field without a meaning must be 0.
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
    // GAT needs an exptime, and GET takes none.
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

/// Decodes INCR and DECR. The value is the delta; with attributes, the delta and the number to
/// start from on a miss.
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
