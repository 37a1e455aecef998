use herdwick_mica::{Arith, Delete, Get, KEY_BYTES_MAX, Mode, Op, Put, Request};
use zerocopy::IntoBytes;

use super::{
    BODY, BODY_BYTES_MAX, CONTROL_WORD, Control, HAS_ATTR, HAS_COMPARE, HASH, Line, OVERFLOW,
    OVERFLOW_BYTES, OVERFLOW_HEAD_BYTES, OpCode, Stamp, request::Attr,
};

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
    let mut pen = Pen {
        request,
        stamp,
        line,
        overflow,
    };
    match &request.op {
        Op::Get(get) => pen.read(get),
        Op::Put(put) => pen.put(put),
        Op::Delete(delete) => pen.delete(delete),
        Op::Arith(arith) => pen.arith(arith),
    }
}

/// Writes one request.
struct Pen<'a> {
    request: &'a Request<'a>,
    stamp: Stamp,
    line: &'a mut Line,
    overflow: &'a mut [u8],
}

/// What stands before the key.
#[derive(Default)]
struct Head {
    attr: Option<Attr>,
    compare: Option<u64>,
}

impl Pen<'_> {
    #[inline]
    fn read(&mut self, get: &Get) -> Result<usize, Unencodable> {
        if get.vivify.is_some()
            || get.recache.is_some()
            || get.version.is_some()
            || get.quiet_access
        {
            return Err(Unencodable::Option);
        }
        match get.touch {
            None => self.plain_get(),
            Some(exptime) => self.write(OpCode::Gat, &Head::exptime(exptime), &[]),
        }
    }

    /// What [`Pen::write`] does for a GET, without what no GET needs: by far the most frequent one.
    #[inline]
    fn plain_get(&mut self) -> Result<usize, Unencodable> {
        let key = self.request.key;
        if key.is_empty() || key.len() > BODY_BYTES_MAX {
            return self.write(OpCode::Get, &Head::default(), &[]);
        }
        let len = key.len() as u8;
        *self.line = Line::default();
        self.line.0[HASH.word()] = self.request.hash.0;
        copy(self.line.body_mut(), key);
        self.line.0[CONTROL_WORD] = Control::new(OpCode::Get, 0, len, len, self.stamp).0;
        Ok(0)
    }

    #[inline]
    fn put(&mut self, put: &Put<'_>) -> Result<usize, Unencodable> {
        if put.version.is_some() || put.invalidate || put.vivify.is_some() {
            return Err(Unencodable::Option);
        }
        let op = match put.mode {
            Mode::Set => OpCode::Set,
            Mode::Add => OpCode::Add,
            Mode::Replace => OpCode::Replace,
            Mode::Append => OpCode::Append,
            Mode::Prepend => OpCode::Prepend,
        };
        let attr = Attr {
            flags: put.flags,
            exptime: put.exptime,
        };
        let head = Head {
            attr: (attr != Attr::default()).then_some(attr),
            compare: put.compare,
        };
        self.write(op, &head, put.value)
    }

    fn delete(&mut self, delete: &Delete) -> Result<usize, Unencodable> {
        let plain = delete.version.is_none()
            && !delete.invalidate
            && delete.exptime.is_none()
            && !delete.drop_value;
        if !plain {
            return Err(Unencodable::Option);
        }
        let head = Head {
            attr: None,
            compare: delete.compare,
        };
        self.write(OpCode::Delete, &head, &[])
    }

    fn arith(&mut self, arith: &Arith) -> Result<usize, Unencodable> {
        if arith.touch.is_some() || arith.version.is_some() {
            return Err(Unencodable::Option);
        }
        let op = if arith.decrement {
            OpCode::Decr
        } else {
            OpCode::Incr
        };
        let head = Head {
            compare: arith.compare,
            ..arith.vivify.map(Head::exptime).unwrap_or_default()
        };
        let numbers = [arith.delta, arith.initial];
        let numbers = &numbers[..1 + usize::from(arith.vivify.is_some())];
        self.write(op, &head, numbers.as_bytes())
    }

    /// Writes body and control word.
    fn write(&mut self, op: OpCode, head: &Head, value: &[u8]) -> Result<usize, Unencodable> {
        let key = self.request.key;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Unencodable::Key);
        }
        let len = head.len() + key.len() + value.len();
        *self.line = Line::default();
        self.line.0[HASH.word()] = self.request.hash.0;
        let (bits, body_len, overflow_len) = if len <= BODY_BYTES_MAX {
            emit(head, key, value, self.line.body_mut());
            (head.bits(), len, 0)
        } else {
            let body = self.overflow.get_mut(..len).ok_or(Unencodable::TooLarge)?;
            emit(head, key, value, body);
            let crc = u64::from(crc32c::crc32c(body));
            self.line.0[BODY.word()] = len as u64 | crc << 32;
            (head.bits() | OVERFLOW, OVERFLOW_HEAD_BYTES, len)
        };
        let control = Control::new(op, bits, key.len() as u8, body_len as u8, self.stamp);
        self.line.0[CONTROL_WORD] = control.0;
        Ok(overflow_len)
    }
}

impl Head {
    fn exptime(exptime: i32) -> Self {
        Self {
            attr: Some(Attr { flags: 0, exptime }),
            compare: None,
        }
    }

    #[inline]
    fn len(&self) -> usize {
        8 * (usize::from(self.attr.is_some()) + usize::from(self.compare.is_some()))
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
}

/// Writes the body to the front of `out`, which has room for it.
#[inline]
fn emit(head: &Head, key: &[u8], value: &[u8], out: &mut [u8]) {
    let mut rest = out;
    if let Some(attr) = head.attr {
        let word = u64::from(attr.flags) | u64::from(attr.exptime as u32) << 32;
        rest = copy(rest, &word.to_le_bytes());
    }
    if let Some(compare) = head.compare {
        rest = copy(rest, &compare.to_le_bytes());
    }
    rest = copy(rest, key);
    copy(rest, value);
}

/// Copies `from` to the front of `out` and returns what is behind it. By words: for the few bytes
/// of a key that is cheaper than a call to `memcpy`.
#[inline]
fn copy<'a>(out: &'a mut [u8], from: &[u8]) -> &'a mut [u8] {
    let (front, behind) = out.split_at_mut(from.len());
    if from.len() > BODY_BYTES_MAX {
        front.copy_from_slice(from);
        return behind;
    }
    let (words, last) = from.as_chunks::<8>();
    let (to_words, to_last) = front.as_chunks_mut::<8>();
    for (to, word) in to_words.iter_mut().zip(words) {
        *to = *word;
    }
    for (to, byte) in to_last.iter_mut().zip(last) {
        *to = *byte;
    }
    behind
}
