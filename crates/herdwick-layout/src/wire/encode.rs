//! Encoding of requests into lines, on the client. Requests that a line cannot carry are refused,
//! never truncated: each operation is taken apart into all its options, so that a new one does not
//! compile before it is encoded or refused.

use herdwick_request::{Arith, Delete, Get, KEY_BYTES_MAX, Mode, Op, Put, Request};
use zerocopy::IntoBytes;

use super::{
    BODY, BODY_BYTES_MAX, CONTROL_WORD, Control, HAS_ATTR, HAS_COMPARE, HASH, Line, OVERFLOW,
    OVERFLOW_BYTES, OVERFLOW_HEAD_BYTES, OpCode, Stamp, request::Attr,
};

/// Why a line cannot carry a request; memcached's protocol may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unencodable {
    /// The key has not 1 to 250 bytes.
    #[error("a key has 1 to 250 bytes")]
    Key,
    /// Key and value exceed the overflow area, or the longest datagram.
    #[error("key and value exceed what a request carries, at most {OVERFLOW_BYTES} bytes")]
    TooLarge,
    /// The line has no field for an option of this request.
    #[error("an option of the request has no place on the line")]
    Option,
}

/// Encodes `request` into `line`, as the first attempt of `stamp`. A body too long for the line is
/// written to the front of `overflow`, of at most [`OVERFLOW_BYTES`]. Returns its length there, or
/// 0.
///
/// # Errors
/// [`Unencodable`]. `line` and `overflow` are then unspecified.
#[inline]
pub fn encode(
    request: &Request<'_>,
    stamp: Stamp,
    line: &mut Line,
    overflow: &mut [u8],
) -> Result<usize, Unencodable> {
    if is_plain_get(&request.op) && matches!(request.key.len(), 1..=BODY_BYTES_MAX) {
        plain_get(request, stamp, line);
        return Ok(0);
    }
    let pen = Pen {
        request,
        stamp,
        line,
        overflow,
    };
    pen.encode()
}

/// Whether it is a GET without options, by far the most frequent request.
#[inline]
fn is_plain_get(op: &Op<'_>) -> bool {
    let Op::Get(Get {
        touch: None,
        vivify: None,
        recache: None,
        // Of a recache.
        touch_first: _,
        unaware: false,
        version: None,
        quiet_access: false,
    }) = op
    else {
        return false;
    };
    true
}

/// [`Pen::write`] reduced to what a plain GET needs, whose key fits the line.
#[inline]
fn plain_get(request: &Request<'_>, stamp: Stamp, line: &mut Line) {
    let key = request.key;
    let len = key.len() as u8;
    // Unused bytes are 0 (docs/wire.md), and no earlier request shows through.
    *line = Line::default();
    line.0[HASH.word()] = request.hash.0;
    copy(line.body_mut(), key);
    line.0[CONTROL_WORD] = Control::new(OpCode::Get, 0, len, len, stamp).0;
}

/// Encoder of one request.
struct Pen<'a> {
    request: &'a Request<'a>,
    stamp: Stamp,
    line: &'a mut Line,
    overflow: &'a mut [u8],
}

/// The parts of a body that precede the key.
#[derive(Default)]
struct Head {
    attr: Option<Attr>,
    compare: Option<u64>,
}

impl Pen<'_> {
    /// Kept apart: in a caller's loop over plain GETs it would take their registers.
    #[inline(never)]
    fn encode(mut self) -> Result<usize, Unencodable> {
        match &self.request.op {
            Op::Get(get) => self.read(get),
            Op::Put(put) => self.put(put),
            Op::Delete(delete) => self.delete(delete),
            Op::Arith(arith) => self.arith(arith),
        }
    }

    fn read(&mut self, get: &Get) -> Result<usize, Unencodable> {
        let Get {
            touch,
            vivify,
            recache,
            // Of a recache, which is refused.
            touch_first: _,
            unaware,
            version,
            quiet_access,
        } = *get;
        // Refused, so that the caller goes by memcached's protocol.
        let others = vivify.is_some() || recache.is_some() || version.is_some();
        if others || unaware || quiet_access {
            return Err(Unencodable::Option);
        }
        match touch {
            None => self.write(OpCode::Get, &Head::default(), &[]),
            Some(exptime) => self.write(OpCode::Gat, &Head::exptime(exptime), &[]),
        }
    }

    #[inline]
    fn put(&mut self, put: &Put<'_>) -> Result<usize, Unencodable> {
        let Put {
            mode,
            value,
            flags,
            exptime,
            compare,
            version,
            invalidate,
            vivify,
            staged,
        } = *put;
        if version.is_some() || invalidate || vivify.is_some() || staged.is_some() {
            return Err(Unencodable::Option);
        }
        let op = match mode {
            Mode::Set => OpCode::Set,
            Mode::Add => OpCode::Add,
            Mode::Replace => OpCode::Replace,
            Mode::Append => OpCode::Append,
            Mode::Prepend => OpCode::Prepend,
        };
        let attr = Attr { flags, exptime };
        let head = Head {
            // Attributes of 0 are left out: they are the default, and 8 bytes of the line.
            attr: (attr != Attr::default()).then_some(attr),
            compare,
        };
        self.write(op, &head, value)
    }

    fn delete(&mut self, delete: &Delete) -> Result<usize, Unencodable> {
        let Delete {
            compare,
            version,
            invalidate,
            exptime,
            drop_value,
            // Of an item without its value, which is refused.
            flags: _,
        } = *delete;
        if version.is_some() || invalidate || exptime.is_some() || drop_value {
            return Err(Unencodable::Option);
        }
        let head = Head {
            attr: None,
            compare,
        };
        self.write(OpCode::Delete, &head, &[])
    }

    fn arith(&mut self, arith: &Arith) -> Result<usize, Unencodable> {
        let Arith {
            decrement,
            delta,
            vivify,
            initial,
            touch,
            compare,
            version,
        } = *arith;
        if touch.is_some() || version.is_some() {
            return Err(Unencodable::Option);
        }
        let op = if decrement {
            OpCode::Decr
        } else {
            OpCode::Incr
        };
        let head = Head {
            compare,
            ..vivify.map(Head::exptime).unwrap_or_default()
        };
        let numbers = [delta, initial];
        // The initial number is there only with the attributes, as docs/wire.md has it.
        let numbers = &numbers[..1 + usize::from(vivify.is_some())];
        self.write(op, &head, numbers.as_bytes())
    }

    /// Encodes body and control word.
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
            // The caller's area may be shorter, if its fabric has short datagrams.
            let body = self.overflow.get_mut(..len).ok_or(Unencodable::TooLarge)?;
            emit(head, key, value, body);
            // The line and the area are two WRITEs: the checksum shows that the area is that of
            // this line.
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
    fn exptime(exptime: u32) -> Self {
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
        let word = u64::from(attr.flags) | u64::from(attr.exptime) << 32;
        rest = copy(rest, &word.to_le_bytes());
    }
    if let Some(compare) = head.compare {
        rest = copy(rest, &compare.to_le_bytes());
    }
    rest = copy(rest, key);
    copy(rest, value);
}

/// Copies `from` to the front of `out` and returns the rest of `out`.
#[inline]
fn copy<'a>(out: &'a mut [u8], from: &[u8]) -> &'a mut [u8] {
    let (front, behind) = out.split_at_mut(from.len());
    herdwick_mem::copy(front, from);
    behind
}

#[cfg(test)]
mod tests {
    use herdwick_mem::{Span, Words};
    use herdwick_request::{KeyHash, Staged};
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Body, Epoch, LINE_WORDS, Sequence, decode};

    /// The operation that `kind` selects, from generated parts.
    fn op(
        kind: u8,
        value: &[u8],
        numbers: [u64; 2],
        parts: (u32, Option<u32>, Option<u64>),
    ) -> Op<'_> {
        let (flags, exptime, compare) = parts;
        let modes = [
            Mode::Set,
            Mode::Add,
            Mode::Replace,
            Mode::Append,
            Mode::Prepend,
        ];
        match kind {
            0 => Op::Get(Get {
                touch: exptime,
                ..Get::default()
            }),
            1 => Op::Delete(Delete {
                compare,
                ..Delete::default()
            }),
            2 | 3 => Op::Arith(Arith {
                decrement: kind == 3,
                delta: numbers[0],
                vivify: exptime,
                initial: exptime.map_or(0, |_| numbers[1]),
                compare,
                ..Arith::default()
            }),
            _ => Op::Put(Put {
                mode: modes[usize::from(kind) % modes.len()],
                value,
                flags,
                exptime: exptime.unwrap_or(0),
                compare,
                ..Put::default()
            }),
        }
    }

    /// An option without a field on the line is refused: dropped, it would change what the request
    /// does.
    #[test]
    fn each_option_without_a_field_is_refused() {
        let get = Get::default();
        let put = Put::default();
        let delete = Delete::default();
        let arith = Arith::default();
        let refused = [
            Op::Get(Get {
                vivify: Some(1),
                ..get
            }),
            Op::Get(Get {
                recache: Some(1),
                ..get
            }),
            Op::Get(Get {
                unaware: true,
                ..get
            }),
            Op::Get(Get {
                version: Some(1),
                ..get
            }),
            Op::Get(Get {
                quiet_access: true,
                ..get
            }),
            Op::Put(Put {
                version: Some(1),
                ..put
            }),
            Op::Put(Put {
                invalidate: true,
                ..put
            }),
            Op::Put(Put {
                vivify: Some(1),
                ..put
            }),
            Op::Put(Put {
                staged: Some(Staged::unknown(1)),
                ..put
            }),
            Op::Delete(Delete {
                version: Some(1),
                ..delete
            }),
            Op::Delete(Delete {
                invalidate: true,
                ..delete
            }),
            Op::Delete(Delete {
                exptime: Some(1),
                ..delete
            }),
            Op::Delete(Delete {
                drop_value: true,
                ..delete
            }),
            Op::Arith(Arith {
                touch: Some(1),
                ..arith
            }),
            Op::Arith(Arith {
                version: Some(1),
                ..arith
            }),
        ];
        let stamp = Stamp::new(Epoch::new(7).unwrap(), Sequence::new(0));
        let (mut line, mut overflow) = (Line::default(), [0; OVERFLOW_BYTES]);
        for op in refused {
            let request = Request {
                hash: KeyHash(1),
                key: b"key",
                op,
            };
            let encoded = encode(&request, stamp, &mut line, &mut overflow);
            assert_eq!(encoded, Err(Unencodable::Option), "{op:?}");
        }
    }

    /// The line as the worker copies it out of its memory.
    fn copied(words: &[u64; LINE_WORDS]) -> Line {
        let span = Span::anonymous(64).unwrap();
        span.write_words(0, words);
        let mut copy = Line::default();
        copy.copy_from(&span, 0, Control(span.load_acquire(CONTROL_WORD)));
        copy
    }

    proptest! {
        #[test]
        fn requests_round_trip(
            key in prop::collection::vec(any::<u8>(), 1..=250),
            value in prop::collection::vec(any::<u8>(), 0..700),
            (hash, sequence) in any::<(u64, u32)>(),
            kind in 0u8..9,
            numbers: [u64; 2],
            parts: (u32, Option<u32>, Option<u64>),
        ) {
            let op = op(kind, &value, numbers, parts);
            let request = Request { hash: KeyHash(hash), key: &key, op };
            let stamp = Stamp::new(Epoch::new(7).unwrap(), Sequence::new(sequence));
            let (mut line, mut overflow) = (Line::default(), [0; OVERFLOW_BYTES]);
            let len = encode(&request, stamp, &mut line, &mut overflow).unwrap();
            let line = copied(line.words());
            let read = match line.body().unwrap() {
                Body::Here(body) => decode(&line, body).unwrap(),
                Body::Overflow { len: said, crc } => {
                    prop_assert_eq!((said, crc), (len, crc32c::crc32c(&overflow[..len])));
                    decode(&line, &overflow[..len]).unwrap()
                }
            };
            prop_assert_eq!(format!("{read:?}"), format!("{request:?}"));
            prop_assert_eq!(line.control().stamp(), stamp);
        }

        #[test]
        fn decoding_any_line_does_not_panic_and_the_fast_path_agrees(
            mut words: [u64; LINE_WORDS],
            plain: bool,
            lens in (0u64..70, 0u64..64),
        ) {
            if plain {
                words[CONTROL_WORD] = words[CONTROL_WORD] & !0xff_ffff
                    | 1
                    | lens.0 << 8
                    | if lens.0 % 2 == 0 { lens.0 % 64 } else { lens.1 } << 16;
            }
            let line = copied(&words);
            let long = match line.body() {
                Ok(Body::Here(body)) => decode(&line, body).ok(),
                Ok(Body::Overflow { len, .. }) => decode(&line, &[0; OVERFLOW_BYTES][..len]).ok(),
                Err(_) => None,
            };
            if let Some(key) = line.plain_get() {
                let short = Request { hash: line.hash(), key, op: Op::Get(Get::default()) };
                prop_assert_eq!(format!("{:?}", Some(short)), format!("{long:?}"));
            }
        }
    }
}
