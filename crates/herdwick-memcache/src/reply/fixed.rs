//! Decoding of replies whose sizes are known beforehand, for a client that stores every key and value
//! itself: a header is compared at its expected place, not parsed.

use herdwick_mem::same;

const VALUE: &[u8] = b"VALUE ";
const STORED: &[u8] = b"STORED\r\n";
const END: &[u8] = b"END\r\n";
const LINE_END: &[u8] = b"\r\n";

/// Replies of values of one size, without flags, under keys of one size.
#[derive(Clone, Debug)]
pub struct FixedReplies {
    key_bytes: usize,
    value_bytes: usize,
    /// The end of each header: ` 0 LENGTH\r\n`.
    tail: Vec<u8>,
}

/// What the front of the received bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedReply<'a> {
    /// `STORED`
    Stored,
    /// `END`
    End,
    /// `VALUE` and its block, of the known sizes.
    Value {
        /// Its key.
        key: &'a [u8],
        /// The block.
        data: &'a [u8],
    },
}

impl FixedReplies {
    /// Makes a decoder for keys of `key_bytes` bytes and values of `value_bytes` bytes.
    #[must_use]
    pub fn new(key_bytes: usize, value_bytes: usize) -> Self {
        Self {
            key_bytes,
            value_bytes,
            tail: format!(" 0 {value_bytes}\r\n").into_bytes(),
        }
    }

    /// Decodes the reply at the front of `input`. Returns the reply and its length in bytes, or `None`
    /// if it is incomplete or another one, which [`parse`](super::parse) distinguishes.
    #[inline]
    #[must_use]
    pub fn front<'a>(&self, input: &'a [u8]) -> Option<(FixedReply<'a>, usize)> {
        if input.starts_with(VALUE) {
            return self.value(input);
        }
        if input.starts_with(STORED) {
            return Some((FixedReply::Stored, STORED.len()));
        }
        input
            .starts_with(END)
            .then_some((FixedReply::End, END.len()))
    }

    fn value<'a>(&self, input: &'a [u8]) -> Option<(FixedReply<'a>, usize)> {
        let key_end = VALUE.len() + self.key_bytes;
        let header_end = key_end + self.tail.len();
        let value_end = header_end + self.value_bytes;
        let used = value_end + LINE_END.len();
        let reply = input.get(..used)?;
        if !same(&reply[key_end..header_end], &self.tail) || !reply.ends_with(LINE_END) {
            return None;
        }
        let (key, data) = (&reply[VALUE.len()..key_end], &reply[header_end..value_end]);
        Some((FixedReply::Value { key, data }, used))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reply::{Reply, parse};

    proptest! {
        /// Whatever it recognises, the parser reads alike; and it recognises every value of its sizes.
        #[test]
        fn agrees_with_the_parser(
            input in prop_oneof![
                "(VALUE [a-c]{1,5} [0-2] [0-9]{1,2}\r\n[a-c]{0,5}\r\n|STORED\r\n|END\r\n|ERROR\r\n|VAL|[A-Z \r\n]{0,9}){1,3}",
                "VALUE [a-c]{4} 0 3\r\n[a-c\r\n]{3}\r\n(END\r\n)?",
            ],
            cut in 0..40_usize,
        ) {
            let input = &input.as_bytes()[..input.len().saturating_sub(cut)];
            let parsed = parse(input, 64);
            match FixedReplies::new(4, 3).front(input) {
                Some((FixedReply::Stored, used)) => {
                    prop_assert_eq!(parsed, Ok(Some((Reply::Stored, used))));
                }
                Some((FixedReply::End, used)) => {
                    prop_assert_eq!(parsed, Ok(Some((Reply::End, used))));
                }
                Some((FixedReply::Value { key, data }, used)) => match parsed {
                    Ok(Some((Reply::Value(value), len))) => {
                        prop_assert_eq!((value.key, value.data, len), (key, data, used));
                        prop_assert_eq!((value.flags, value.cas), (0, None));
                    }
                    other => prop_assert!(false, "{:?}", other),
                },
                None => match parsed {
                    Ok(Some((Reply::Value(value), _))) => {
                        let sizes = (value.key.len(), value.data.len());
                        prop_assert!(sizes != (4, 3) || value.flags != 0);
                    }
                    Ok(Some((reply, _))) => {
                        prop_assert!(reply != Reply::Stored && reply != Reply::End);
                    }
                    Ok(None) | Err(_) => {}
                },
            }
        }
    }
}
