//! Requests and replies that travel by SEND: PUT, DELETE, and a GET that READs could not settle.
//! `docs/pilaf.md` draws them.

use crate::layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Bytes of a message's head.
pub const HEAD_BYTES: usize = 32;
/// Longest message. A longer body follows in further messages.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Bytes of the body in one message.
pub const PART_BYTES: usize = MESSAGE_BYTES_MAX - HEAD_BYTES;
/// Most messages of one request, and of one reply.
pub const PARTS_MAX: usize = (KEY_BYTES_MAX + VALUE_BYTES_MAX).div_ceil(PART_BYTES);
/// Messages that a client may have sent without a reply to their request: the server has as many RECVs
/// for it. Enough for one request of any length.
pub const CREDITS: usize = 32;
/// Requests by SEND that a client has in flight.
pub const CALLS_MAX: usize = 16;

const _: () = assert!(PARTS_MAX <= CREDITS && CALLS_MAX <= CREDITS);

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The value of a key.
    Get = 1,
    /// Stores a value.
    Put = 2,
    /// Removes a key.
    Delete = 3,
    /// Nothing but to say which generation of the table the client READs. Its key is one byte, 0.
    Adopted = 4,
}

/// The head of each message of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub op: Op,
    /// Bytes of the key, with which the body begins.
    pub key_len: usize,
    /// Bytes of the value, which follows; 0 unless it is a PUT.
    pub value_len: usize,
    /// Repeated in the reply.
    pub token: u64,
    /// The generation of the table that the client READs.
    pub generation: u32,
    /// Number of this message among those of the request, from 0.
    pub part: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStatus {
    /// Done; the value of a GET follows.
    Done = 0,
    /// The key is not stored.
    NotFound = 1,
    /// There is no memory for it, or no place in the table.
    Full = 2,
    /// The request made no sense.
    Malformed = 3,
    /// No reply: the table has moved. Sent to each client when it does.
    Moved = 4,
}

/// The head of each message of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How the request ended.
    pub status: ReplyStatus,
    /// Bytes of the value, in parts behind the heads.
    pub value_len: usize,
    /// The request's.
    pub token: u64,
    /// The generation of the server's table.
    pub generation: u32,
    /// Number of this message among those of the reply, from 0.
    pub part: u32,
}

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadMessage {
    /// Shorter than a head, or longer or shorter than its part of the body.
    Length,
    /// An operation, a status or a reserved bit that does not exist.
    Unknown,
    /// Lengths of key or value beyond their limits.
    Absurd,
}

/// Returns the bytes of the body that the message of number `part` carries.
pub(crate) fn part_len(body: usize, part: u32) -> Option<usize> {
    let before = (part as usize).checked_mul(PART_BYTES)?;
    match body.checked_sub(before)? {
        // Only the first message may carry nothing.
        0 if part > 0 => None,
        rest => Some(rest.min(PART_BYTES)),
    }
}

/// Returns the number of messages that carry a body.
pub(crate) fn parts(body: usize) -> usize {
    body.div_ceil(PART_BYTES).max(1)
}

type Head = [u64; HEAD_BYTES / 8];

impl Request {
    /// Returns the words of the head.
    #[must_use]
    pub fn words(&self) -> Head {
        let lengths = (self.key_len as u64) << 16 | (self.value_len as u64) << 32;
        let place = u64::from(self.generation) | u64::from(self.part) << 32;
        [self.op as u64 | lengths, self.token, place, 0]
    }

    /// Returns the bytes of the whole body.
    pub(crate) fn body_len(&self) -> usize {
        self.key_len + self.value_len
    }

    /// Parses a message of `len` bytes with this head.
    pub(crate) fn parse(head: Head, len: usize) -> Result<Self, BadMessage> {
        let [what, token, place, reserved] = head;
        let op = match what & 0xffff {
            1 => Op::Get,
            2 => Op::Put,
            3 => Op::Delete,
            4 => Op::Adopted,
            _ => return Err(BadMessage::Unknown),
        };
        let request = Self {
            op,
            key_len: (what >> 16 & 0xffff) as usize,
            value_len: (what >> 32) as usize,
            token,
            generation: place as u32,
            part: (place >> 32) as u32,
        };
        let value_max = if op == Op::Put { VALUE_BYTES_MAX } else { 0 };
        if request.key_len == 0 || request.key_len > KEY_BYTES_MAX || request.value_len > value_max
        {
            return Err(BadMessage::Absurd);
        }
        let expected = part_len(request.body_len(), request.part);
        if expected.map(|part| HEAD_BYTES + part) != Some(len) {
            return Err(BadMessage::Length);
        }
        if reserved == 0 {
            Ok(request)
        } else {
            Err(BadMessage::Unknown)
        }
    }
}

impl Reply {
    /// Returns the words of the head.
    #[must_use]
    pub fn words(&self) -> Head {
        let what = self.status as u64 | (self.value_len as u64) << 32;
        let place = u64::from(self.generation) | u64::from(self.part) << 32;
        [what, self.token, place, 0]
    }

    /// Parses a message of `len` bytes with this head.
    pub(crate) fn parse(head: Head, len: usize) -> Result<Self, BadMessage> {
        let [what, token, place, reserved] = head;
        let status = match what & 0xffff_ffff {
            0 => ReplyStatus::Done,
            1 => ReplyStatus::NotFound,
            2 => ReplyStatus::Full,
            3 => ReplyStatus::Malformed,
            4 => ReplyStatus::Moved,
            _ => return Err(BadMessage::Unknown),
        };
        let reply = Self {
            status,
            value_len: (what >> 32) as usize,
            token,
            generation: place as u32,
            part: (place >> 32) as u32,
        };
        if reply.value_len > VALUE_BYTES_MAX {
            return Err(BadMessage::Absurd);
        }
        let expected = part_len(reply.value_len, reply.part);
        if expected.map(|part| HEAD_BYTES + part) != Some(len) {
            return Err(BadMessage::Length);
        }
        if reserved == 0 {
            Ok(reply)
        } else {
            Err(BadMessage::Unknown)
        }
    }
}

/// Returns the head at the beginning of a message; zeros stand for what is missing.
pub(crate) fn head_of(message: &[u8]) -> Head {
    let mut words = [0; HEAD_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(message.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    words
}

/// Stores a head at the beginning of a message.
pub(crate) fn store_head(head: Head, message: &mut [u8]) {
    for (bytes, word) in message.chunks_exact_mut(8).zip(head) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn heads_survive_their_words(
            op in prop_oneof![Just(Op::Get), Just(Op::Put), Just(Op::Delete)],
            key_len in 1..=KEY_BYTES_MAX,
            value_len in 0..=VALUE_BYTES_MAX,
            (token, generation) in any::<(u64, u32)>(),
        ) {
            let value_len = if op == Op::Put { value_len } else { 0 };
            let body = key_len + value_len;
            let mut carried = 0;
            for part in 0..parts(body) as u32 {
                let request = Request { op, key_len, value_len, token, generation, part };
                let len = part_len(body, part).unwrap();
                carried += len;
                prop_assert_eq!(Request::parse(request.words(), HEAD_BYTES + len), Ok(request));
                let longer = Request::parse(request.words(), HEAD_BYTES + len + 1);
                prop_assert_eq!(longer, Err(BadMessage::Length));
            }
            prop_assert_eq!(carried, body);
            prop_assert_eq!(part_len(body, parts(body) as u32), None);
        }

        #[test]
        fn any_head_is_refused_or_within_bounds(head in any::<[u64; 4]>(), len in 0..5000_usize) {
            for head in [head, [head[0] & 0xffff_0003, head[1], head[2] & 0xffff_ffff, 0]] {
                if let Ok(request) = Request::parse(head, len) {
                    prop_assert!(request.body_len() <= KEY_BYTES_MAX + VALUE_BYTES_MAX);
                }
                let _ = Reply::parse(head, len);
            }
        }
    }

    #[test]
    fn absurd_lengths_are_refused_as_such() {
        let put = Request {
            op: Op::Put,
            key_len: 16,
            value_len: VALUE_BYTES_MAX + 1,
            token: 1,
            generation: 0,
            part: 0,
        };
        assert_eq!(
            Request::parse(put.words(), MESSAGE_BYTES_MAX),
            Err(BadMessage::Absurd)
        );
        let keyless = Request {
            key_len: 0,
            value_len: 8,
            ..put
        };
        assert_eq!(Request::parse(keyless.words(), 40), Err(BadMessage::Absurd));
        let get = Request {
            op: Op::Get,
            value_len: 1,
            ..put
        };
        assert_eq!(Request::parse(get.words(), 49), Err(BadMessage::Absurd));
        let reply = Reply {
            status: ReplyStatus::Done,
            value_len: u32::MAX as usize,
            token: 1,
            generation: 0,
            part: 0,
        };
        assert_eq!(
            Reply::parse(reply.words(), MESSAGE_BYTES_MAX),
            Err(BadMessage::Absurd)
        );
    }
}
