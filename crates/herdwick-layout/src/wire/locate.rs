//! LOCATE: a client that READs the store's memory asks the worker for the stag of a key.

use herdwick_request::{Get, KEY_BYTES_MAX, KeyHash, Op, Request};

use super::{BadRequest, CONTROL_WORD, Line, OVERFLOW, OpCode, Stamp, Unencodable, encode};

/// Encodes the question for the stag of `key` into `line`, as the first attempt of `stamp`. A key too long for the
/// line is written to the front of `overflow`. Returns its length there, or 0.
///
/// # Errors
/// [`Unencodable`]: the key has not 1 to 250 bytes, or `overflow` is too short for it.
pub fn encode_locate(
    hash: KeyHash,
    key: &[u8],
    stamp: Stamp,
    line: &mut Line,
    overflow: &mut [u8],
) -> Result<usize, Unencodable> {
    // Its body is that of a GET.
    let op = Op::Get(Get::default());
    let len = encode(&Request { hash, key, op }, stamp, line, overflow)?;
    line.0[CONTROL_WORD] = line.control().of(OpCode::Locate).0;
    Ok(len)
}

/// Decodes the key of a line and its `body`.
///
/// # Errors
/// [`BadRequest`].
pub fn decode_locate<'a>(line: &Line, body: &'a [u8]) -> Result<&'a [u8], BadRequest> {
    let control = line.control();
    if control.bits() & !OVERFLOW != 0 {
        return Err(BadRequest::Attributes);
    }
    // The body is the key alone.
    match control.key_len() {
        0 => Err(BadRequest::KeyLength),
        len if len > KEY_BYTES_MAX => Err(BadRequest::KeyLength),
        len if len > body.len() => Err(BadRequest::Truncated),
        len if len < body.len() => Err(BadRequest::Value),
        _ => Ok(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Body, Control, Epoch, Sequence};

    const STAMP: fn() -> Stamp = || Stamp::new(Epoch::new(7).unwrap(), Sequence::new(9));

    #[test]
    fn keys_of_every_length_round_trip() {
        for len in 1..=KEY_BYTES_MAX {
            let (key, mut line, mut overflow) = (vec![b'k'; len], Line::default(), [0; 1024]);
            let out = encode_locate(KeyHash(5), &key, STAMP(), &mut line, &mut overflow).unwrap();
            let body = match line.body().unwrap() {
                Body::Here(body) => body,
                Body::Overflow { len, .. } => &overflow[..len],
            };
            assert_eq!(out > 0, line.control().overflows());
            assert!(line.control().is_of_reader() && line.control().is(OpCode::Locate));
            assert_eq!((line.hash(), line.control().stamp()), (KeyHash(5), STAMP()));
            assert_eq!(decode_locate(&line, body), Ok(&key[..]));
            assert!(super::super::decode(&line, body).is_err());
        }
        for len in [0, 251] {
            let (mut line, mut overflow) = (Line::default(), [0; 1024]);
            let key = vec![0; len];
            assert!(encode_locate(KeyHash(5), &key, STAMP(), &mut line, &mut overflow).is_err());
        }
    }

    #[test]
    fn malformed_questions_are_refused() {
        let mut line = Line::default();
        for (bits, key_len, len) in [(0x10, 4, 4), (0x20, 4, 4), (0, 0, 0), (0, 4, 3), (0, 4, 5)] {
            line.0[CONTROL_WORD] = Control::new(OpCode::Locate, bits, key_len, 4, STAMP()).0;
            assert!(
                decode_locate(&line, &[0; 8][..len]).is_err(),
                "{bits} {key_len} {len}"
            );
        }
        line.0[CONTROL_WORD] = Control::new(OpCode::Locate, OVERFLOW, 251, 8, STAMP()).0;
        assert!(decode_locate(&line, &[0; 251]).is_err());
    }
}
