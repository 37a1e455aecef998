//! What must hold of every input to a parser. The fuzz targets ask it of what they make up, and
//! `cargo test` of the corpus.
#![allow(dead_code, reason = "each target uses a part")]

use herdwick_memcache::{Admits, Decoded, Decoder, KEY_BYTES_MAX, Keys, binary, meta::KeyRoom};
use herdwick_request::Op;

/// Largest data block taken.
const VALUE_BYTES_MAX: usize = 64;
/// Inputs up to this length are fed byte by byte, too.
const BYTEWISE_MAX: usize = 600;

/// Classic text: whatever does not begin a binary stream.
pub(crate) fn classic(input: &[u8]) {
    if input.first() != Some(&binary::REQUEST) {
        check(input);
    }
}

/// Meta: text whose first line begins with the letter of a meta command.
pub(crate) fn meta(input: &[u8]) {
    check(&[b"m", input].concat());
}

/// Binary: a stream that begins as a packet.
pub(crate) fn binary(input: &[u8]) {
    check(&[&[binary::REQUEST], input].concat());
}

fn check(input: &[u8]) {
    let whole = commands(input, input.len().max(1));
    if input.len() <= BYTEWISE_MAX {
        assert_eq!(whole, commands(input, 1), "fed byte by byte");
        assert_eq!(whole, commands(input, 7), "fed by sevens");
    }
}

/// The commands of a stream that arrives in pieces of `step` bytes, and how it ended.
fn commands(input: &[u8], step: usize) -> Vec<String> {
    let (mut decoder, mut keys) = (Decoder::new(VALUE_BYTES_MAX), KeyRoom::new(1));
    let mut seen = Vec::new();
    let (mut start, mut end, mut need, mut discard) = (0, 0, 1, 0u64);
    while end < input.len() {
        end = (end + step).min(input.len());
        loop {
            let dropped = discard.min((end - start) as u64);
            discard -= dropped;
            start += dropped as usize;
            if discard > 0 || end - start < need || start == end {
                break;
            }
            let front = &input[start..end];
            keys.clear();
            let decoded = decoder.decode(front, &keys, Admits::All);
            let (used, drop) = match decoded {
                Decoded::NeedMore { at } => {
                    assert!(at > end - start, "asks for {at} of {}", end - start);
                    need = at;
                    continue;
                }
                Decoded::Close => {
                    seen.push("close".to_owned());
                    return seen;
                }
                Decoded::Announced { .. } | Decoded::Held => {
                    panic!("{decoded:?} was not asked for")
                }
                Decoded::Get { get, used } => {
                    seen.push(format!("{:?}", get.keys.of(front)));
                    (used, 0)
                }
                Decoded::Request { used, discard, .. }
                | Decoded::Command { used, discard, .. }
                | Decoded::Refused { used, discard, .. } => (used, discard),
            };
            assert!(0 < used && used <= end - start, "{used} of {}", end - start);
            sane(&decoded, front);
            seen.push(format!("{decoded:?}"));
            (start, need, discard) = (start + used, 1, drop);
        }
    }
    seen
}

/// Checks what the execution of a request relies on.
fn sane(decoded: &Decoded<'_>, input: &[u8]) {
    let key = |key: &[u8]| assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "{key:?}");
    match decoded {
        Decoded::Get { get, .. } => {
            let mut keys = Keys::new(get.keys.of(input)).peekable();
            assert!(keys.peek().is_some(), "a get has a key");
            keys.for_each(key);
        }
        Decoded::Request { asked, .. } => {
            key(asked.key);
            if let Op::Put(put) = asked.op {
                assert!(put.value.len() <= VALUE_BYTES_MAX);
            }
            // That of `ma` is the reply's to refuse.
            let counts = matches!(asked.op, Op::Arith(_));
            assert!(counts || asked.answer.opaque().len() <= 32);
        }
        _ => {}
    }
}
