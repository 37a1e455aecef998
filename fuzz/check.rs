//! What must hold of every input to a parser. The fuzz targets ask it of what they make up, and
//! `cargo test` of the corpus.
#![allow(dead_code, reason = "each target uses a part")]

use herdwick_memcache::{
    Command, Decoded, Decoder, KEY_BYTES_MAX, Keys,
    binary::{self, Verb},
    meta::{
        self,
        base64::{self, DECODED_BYTES_MAX},
    },
};

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
    let mut decoder = Decoder::new(VALUE_BYTES_MAX);
    let mut seen = Vec::new();
    let (mut start, mut end, mut need, mut swallow) = (0, 0, 1, 0u64);
    while end < input.len() {
        end = (end + step).min(input.len());
        loop {
            let dropped = swallow.min((end - start) as u64);
            swallow -= dropped;
            start += dropped as usize;
            if swallow > 0 || end - start < need || start == end {
                break;
            }
            match decoder.decode(&input[start..end]) {
                Decoded::Command {
                    command,
                    used,
                    swallow: drop,
                } => {
                    assert!(0 < used && used <= end - start, "{used} of {}", end - start);
                    let input = &input[start..end];
                    sane(&command, input);
                    let keys = match command {
                        Command::Get(get) => get.keys.of(input),
                        _ => &[],
                    };
                    seen.push(format!("{command:?} {keys:?} {drop}"));
                    (start, need, swallow) = (start + used, 1, drop);
                }
                Decoded::Announced { .. } => panic!("it was not asked for"),
                Decoded::NeedMore { at } => {
                    assert!(at > end - start, "asks for {at} of {}", end - start);
                    need = at;
                }
                Decoded::Close => {
                    seen.push("close".to_owned());
                    return seen;
                }
            }
        }
    }
    seen
}

/// What whoever executes a command relies on.
fn sane(command: &Command<'_>, input: &[u8]) {
    let key = |key: &[u8]| assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "{key:?}");
    match command {
        Command::Get(get) => {
            let mut keys = Keys::new(get.keys.of(input)).peekable();
            assert!(keys.peek().is_some(), "a get has a key");
            keys.for_each(key);
        }
        Command::Put(put) => {
            key(put.key);
            assert!(put.value.len() <= VALUE_BYTES_MAX);
        }
        Command::Oversized(put) => key(put.key),
        Command::Arith(arith) => key(arith.key),
        Command::Touch(touch) => key(touch.key),
        Command::Delete(delete) => key(delete.key),
        Command::Meta(meta) => {
            key(meta.key.text);
            // That of `ma` is the reply's to refuse.
            let counts = matches!(meta.verb, meta::Verb::Arith { .. });
            assert!(counts || meta.flags.opaque.len() <= 32);
            assert!(meta.flags.returns.into_iter().count() <= 8);
            if meta.key.base64 {
                let mut room = [0; DECODED_BYTES_MAX];
                key(base64::decode(meta.key.text, &mut room).expect("it was looked at"));
            }
        }
        Command::Packet(packet) => match packet.verb {
            Verb::Get { .. } | Verb::Oversized { .. } | Verb::Delete { .. } | Verb::Arith(_) => {
                key(packet.key);
            }
            Verb::Put(put) => {
                key(packet.key);
                assert!(put.value.len() <= VALUE_BYTES_MAX);
            }
            _ => {}
        },
        _ => {}
    }
}
