//! Base64 (RFC 4648, section 4, padded), in which meta commands carry binary keys. Like
//! memcached's, the decoder skips characters outside the alphabet.

/// Maximum length in bytes of a key that a word of 250 bytes encodes.
pub const DECODED_BYTES_MAX: usize = crate::KEY_BYTES_MAX / 4 * 3;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const PADDING: u8 = b'=';
/// In place of a number of padding letters: the key has ended.
const END: usize = 4;

/// Decodes a word of at most 250 bytes into `room`, in one pass; returns the key, at least one byte.
pub fn decode<'a>(text: &[u8], room: &'a mut [u8; DECODED_BYTES_MAX]) -> Option<&'a [u8]> {
    #[cfg(test)]
    crate::counting::scan(text, None);
    let (mut len, mut count, mut bits, mut padding) = (0, 0usize, 0u32, 0);
    for &letter in text {
        let Some(value) = value(letter) else {
            continue;
        };
        count += 1;
        // Behind the padding, letters are only counted.
        if padding > 0 && count % 4 == 1 {
            padding = END;
        }
        if padding >= END {
            continue;
        }
        bits = bits << 6 | value;
        padding += usize::from(letter == PADDING);
        if count.is_multiple_of(4) {
            // With three there would be no whole byte.
            if padding > 2 {
                return None;
            }
            room.get_mut(len..len + 3)?
                .copy_from_slice(&bits.to_be_bytes()[1..]);
            len += 3 - padding;
        }
    }
    // A last group of fewer letters, without padding, is refused.
    let whole = count > 0 && count.is_multiple_of(4) && count / 4 * 3 <= room.len();
    whole.then(|| &room[..len])
}

/// Appends `key` in base64.
pub fn encode(key: &[u8], out: &mut Vec<u8>) {
    for chunk in key.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for letter in 0..4 {
            // Of n bytes, n + 1 letters have bits.
            out.push(if letter > chunk.len() {
                PADDING
            } else {
                ALPHABET[(bits >> (18 - 6 * letter)) as usize & 63]
            });
        }
    }
}

/// Returns the value of a letter, 0 for padding; `None` outside the alphabet.
fn value(letter: u8) -> Option<u32> {
    let value = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        PADDING => 0,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(text: &[u8]) -> Option<Vec<u8>> {
        let mut room = [0; DECODED_BYTES_MAX];
        decode(text, &mut room).map(<[u8]>::to_vec)
    }

    /// RFC 4648, section 10.
    #[test]
    fn rfc_4648_vectors_decode() {
        for (key, text) in [
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            encode(key.as_bytes(), &mut out);
            assert_eq!(out, text.as_bytes());
            assert_eq!(decoded(text.as_bytes()), Some(key.as_bytes().to_vec()));
        }
    }

    #[test]
    fn invalid_base64_is_refused() {
        for text in [&b""[..], b"Zg=", b"Zg", b"!!!!", b"Zm9vY", b"Z===", b"===="] {
            assert_eq!(decoded(text), None, "{text:?}");
        }
        assert_eq!(decoded(b"Z!g=-="), Some(b"f".to_vec()));
    }

    proptest! {
        #[test]
        fn base64_round_trips(key in prop::collection::vec(any::<u8>(), 1..=DECODED_BYTES_MAX)) {
            let mut out = Vec::new();
            encode(&key, &mut out);
            prop_assert_eq!(decoded(&out), Some(key));
        }

        /// As in memcached, which counts the letters first: any number of them that makes no whole
        /// quads is refused, what is behind the padding is ignored.
        #[test]
        fn any_word_decodes_like_its_letters(
            text in prop::collection::vec(prop_oneof![
                6 => prop::sample::select(ALPHABET.to_vec()),
                1 => Just(PADDING),
                1 => any::<u8>(),
            ], 0..=250)
        ) {
            let letters: Vec<u8> = text.iter().copied().filter(|&byte| value(byte).is_some()).collect();
            let mut expected = Vec::new();
            let mut valid = !letters.is_empty() && letters.len().is_multiple_of(4);
            for quad in letters.chunks(4) {
                let bits = quad.iter().fold(0, |bits, &letter| bits << 6 | value(letter).unwrap());
                let padding = quad.iter().filter(|&&letter| letter == PADDING).count();
                valid &= padding <= 2;
                expected.extend_from_slice(&bits.to_be_bytes()[1..4 - padding.min(2)]);
                if padding > 0 {
                    break;
                }
            }
            prop_assert_eq!(decoded(&text), valid.then_some(expected));
        }
    }
}
