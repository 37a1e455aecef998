//! A storage command whose data block has not arrived: what was decoded of it is kept, so that the
//! command is not decoded again when more of the block is here.

use herdwick_request::{Op, Put};

use crate::{
    Admits, Answer, Asked, Decoded, InputRange,
    block::{Block, BlockLimits, announced, block, unended},
    meta::KeyRoom,
};

/// A storage command without its value, which borrows nothing.
#[derive(Debug)]
pub(crate) struct Awaited {
    key: KeptKey,
    put: Put<'static>,
    answer: Answer<'static>,
    opaque: InputRange,
    /// Offset of the block in the input, from the command's first byte on.
    data_at: usize,
    /// Bytes of the block, without its line end.
    bytes: usize,
}

#[derive(Debug)]
enum KeptKey {
    /// As it is in the command.
    Text(InputRange),
    /// It was in base64.
    Decoded(Box<[u8]>),
}

impl Awaited {
    /// Keeps what was decoded of the command at the front of `input`; `None` if it stores nothing.
    #[cold]
    pub(crate) fn new(
        asked: &Asked<'_>,
        input: &[u8],
        (data_at, bytes): (usize, usize),
    ) -> Option<Box<Self>> {
        let Op::Put(put) = asked.op else {
            return None;
        };
        // The input may move before the block is here, so places are kept, not references.
        let key = match InputRange::within(input, asked.key) {
            Some(extent) => KeptKey::Text(extent),
            // It was decoded into the caller's room, which may be cleared before the block is here.
            None => KeptKey::Decoded(asked.key.into()),
        };
        Some(Box::new(Self {
            key,
            put: Put { value: &[], ..put },
            answer: asked.answer.with_opaque(&[]),
            // An opaque is a word of the line, so it is always within; if there is none, it is
            // empty.
            opaque: InputRange::within(input, asked.answer.opaque()).unwrap_or_default(),
            data_at,
            bytes,
        }))
    }

    /// Returns the command with `value`.
    fn asked<'a>(&self, input: &'a [u8], keys: &'a KeyRoom, value: &'a [u8]) -> Option<Asked<'a>> {
        Some(Asked {
            key: match &self.key {
                KeptKey::Text(extent) => extent.of(input),
                KeptKey::Decoded(key) => keys.keep(key)?,
            },
            op: Op::Put(Put { value, ..self.put }),
            answer: self.answer.with_opaque(self.opaque.of(input)),
        })
    }

    /// Goes on with the command at the front of `input`. It is still awaited if the result is
    /// [`Decoded::NeedMore`] or [`Decoded::Held`].
    pub(crate) fn go_on<'a>(
        &self,
        input: &'a [u8],
        keys: &'a KeyRoom,
        limits: BlockLimits,
        admits: Admits,
    ) -> Decoded<'a> {
        // A storage command writes, and only reads are taken now.
        if admits == Admits::Reads {
            return Decoded::Held;
        }
        let asked = |value| self.asked(input, keys, value);
        let decoded = match block(input, self.data_at, self.bytes, limits) {
            Block::Whole(value, used) => asked(value).map(|asked| Decoded::Request {
                asked,
                used,
                discard: 0,
            }),
            Block::Unended(used) => Some(unended(self.answer.is_silent(), used)),
            Block::Short(at) => Some(Decoded::NeedMore { at }),
            // A connection that uploads executes no other command: those before it come first.
            Block::Announced if admits != Admits::All => Some(Decoded::Held),
            Block::Announced => asked(&[]).map(|asked| announced(asked, self.data_at, self.bytes)),
            // It would not have been awaited.
            Block::Oversized(_) => None,
        };
        // There is room for the key: a run ends before there is none.
        decoded.unwrap_or(Decoded::Close)
    }
}
