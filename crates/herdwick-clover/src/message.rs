//! Calls of a client to the metadata server, and their replies: each is one SEND. `docs/clover.md`
//! draws them.

use arrayvec::ArrayVec;
use herdwick_mem::WORD;

use crate::layout::{KEY_BYTES_MAX, Place};

/// Bytes of the head of a call, and of a reply.
pub const MESSAGE_HEAD_BYTES: usize = 4 * WORD;
/// Longest call: a head, and a key or numbers.
pub const CALL_BYTES_MAX: usize = (MESSAGE_HEAD_BYTES + KEY_BYTES_MAX).next_multiple_of(WORD);
/// Calls that a client has in flight: the server has as many RECVs for it.
pub const CALLS_MAX: usize = 16;
/// Entries that one call takes, as in Clover.
pub const BATCH: usize = 16;
/// Numbers that one call names: superseded keys, or entries given back.
pub const NUMBERS_MAX: usize = (CALL_BYTES_MAX - MESSAGE_HEAD_BYTES) / WORD;
/// Longest reply; it is sent inline.
pub const REPLY_BYTES_MAX: usize = MESSAGE_HEAD_BYTES + BATCH * WORD;

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOp {
    /// Where the chain of a key is.
    Find = 1,
    /// Free entries of a size class.
    Take = 2,
    /// A new key, whose first entry the client has written.
    Create = 3,
    /// Keys with superseded entries.
    Superseded = 4,
    /// No body: the head holds the epoch that the client has left.
    Publish = 5,
    /// Entries that the client has taken and does not need.
    Give = 6,
    /// The key is to be deleted by the server, since the client has no entry for a tombstone.
    Delete = 7,
}

impl CallOp {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Find,
        Self::Take,
        Self::Create,
        Self::Superseded,
        Self::Publish,
        Self::Give,
        Self::Delete,
    ];

    fn of(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u64 == code)
    }
}

/// The head of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is asked for.
    pub op: CallOp,
    /// Bytes of the body.
    pub len: usize,
    /// [`CallOp::Take`]: the size class.
    pub class: usize,
    /// Repeated in the reply.
    pub token: u64,
    /// The newest epoch before which no request of the client began that is still in flight.
    pub published: u64,
    /// [`CallOp::Create`]: the word of the entry ([`Place::word`]).
    pub entry: u64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    /// Done.
    Done = 0,
    /// The key is not stored.
    NotFound = 1,
    /// [`CallOp::Create`]: the key exists already; the body holds its position.
    Exists = 2,
    /// There is no room for another key.
    Full = 3,
    /// The call makes no sense, or the client has no right to it.
    Malformed = 4,
    /// [`CallOp::Delete`]: others change the key so often that it was given up.
    Contended = 5,
}

impl CallStatus {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Done,
        Self::NotFound,
        Self::Exists,
        Self::Full,
        Self::Malformed,
        Self::Contended,
    ];
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How the call ended.
    pub status: CallStatus,
    /// The call's.
    pub token: u64,
    /// The server's epoch.
    pub epoch: u64,
    /// The last epoch at whose beginning clients have to forget their cursors.
    pub flush: u64,
    /// [`CallOp::Find`] and [`CallOp::Create`]: the slot of the key, and an entry of its chain.
    /// [`CallOp::Take`]: the entries.
    pub words: ArrayVec<u64, BATCH>,
}

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadMessage {
    /// Its length differs from the one in its head.
    Length,
    /// No such operation, or a field that has no meaning.
    Unknown,
}

impl Call {
    /// Returns the words of the head.
    #[must_use]
    pub fn words(&self) -> [u64; 4] {
        let what = self.op as u64 | (self.len as u64) << 16 | (self.class as u64) << 32;
        [what, self.token, self.published, self.entry]
    }

    /// Parses a message.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let [what, token, published, entry] = words_of::<4>(message).ok_or(BadMessage::Length)?;
        let call = Self {
            op: CallOp::of(what & 0xffff).ok_or(BadMessage::Unknown)?,
            len: (what >> 16 & 0xffff) as usize,
            class: (what >> 32) as usize,
            token,
            published,
            entry,
        };
        let len_fits = match call.op {
            CallOp::Find | CallOp::Create | CallOp::Delete => {
                (1..=KEY_BYTES_MAX).contains(&call.len)
            }
            CallOp::Superseded | CallOp::Give => {
                call.len.is_multiple_of(WORD) && call.len / WORD <= NUMBERS_MAX
            }
            CallOp::Take | CallOp::Publish => call.len == 0,
        };
        let classed = call.op == CallOp::Take || call.class == 0;
        if !len_fits || message.len() != MESSAGE_HEAD_BYTES + call.len.next_multiple_of(WORD) {
            return Err(BadMessage::Length);
        }
        let named = match call.op {
            CallOp::Create => Place::of(entry).is_some(),
            _ => entry == 0,
        };
        (named && classed)
            .then_some(call)
            .ok_or(BadMessage::Unknown)
    }
}

impl Reply {
    /// Returns the words of the message.
    #[must_use]
    pub fn message(&self) -> ArrayVec<u64, { REPLY_BYTES_MAX / WORD }> {
        let what = self.status as u64 | (self.words.len() as u64) << 16;
        let head = [what, self.token, self.epoch, self.flush];
        head.into_iter().chain(self.words.iter().copied()).collect()
    }

    /// Parses a message.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let [what, token, epoch, flush] = words_of::<4>(message).ok_or(BadMessage::Length)?;
        let count = (what >> 16) as usize;
        let status = usize::try_from(what & 0xffff).unwrap_or(usize::MAX);
        let status = CallStatus::ALL
            .get(status)
            .copied()
            .ok_or(BadMessage::Unknown)?;
        if count > BATCH || message.len() != MESSAGE_HEAD_BYTES + count * WORD {
            return Err(BadMessage::Length);
        }
        let words = message[MESSAGE_HEAD_BYTES..].chunks_exact(WORD);
        Ok(Self {
            status,
            token,
            epoch,
            flush,
            words: words.filter_map(words_of::<1>).map(|[word]| word).collect(),
        })
    }
}

/// Returns the first words of `bytes`, if it has as many.
pub(crate) fn words_of<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let bytes = bytes.get(..N * WORD)?;
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(WORD)) {
        // Each chunk has the bytes of a word: the 0 is never used.
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(words: &[u64], rest: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(bytes.len() + rest, 0);
        bytes
    }

    proptest! {
        #[test]
        fn calls_survive_their_words(
            op in prop::sample::select(&CallOp::ALL[..]),
            len in 1..=KEY_BYTES_MAX,
            (class, token, published, target) in (0..10_usize, any::<u64>(), any::<u64>(), 1..u32::MAX),
        ) {
            let entry = Place { target, version: 5, tombstone: false }.word();
            let call = Call {
                op,
                len: match op {
                    CallOp::Find | CallOp::Create | CallOp::Delete => len,
                    CallOp::Superseded | CallOp::Give => len / 8 * 8,
                    CallOp::Take | CallOp::Publish => 0,
                },
                class: if op == CallOp::Take { class } else { 0 },
                token,
                published,
                entry: if op == CallOp::Create { entry } else { 0 },
            };
            let rest = call.len.next_multiple_of(8);
            prop_assert_eq!(Call::parse(&bytes(&call.words(), rest)), Ok(call));
            prop_assert_eq!(Call::parse(&bytes(&call.words(), rest + 8)), Err(BadMessage::Length));
        }

        #[test]
        fn replies_survive_their_words(
            status in prop::sample::select(&CallStatus::ALL[..]),
            (token, epoch, flush) in any::<(u64, u64, u64)>(),
            words in prop::collection::vec(any::<u64>(), 0..=BATCH),
        ) {
            let reply = Reply { status, token, epoch, flush, words: words.into_iter().collect() };
            prop_assert_eq!(Reply::parse(&bytes(&reply.message(), 0)), Ok(reply));
        }

        #[test]
        fn any_message_is_refused_or_makes_sense(message in prop::collection::vec(any::<u8>(), 0..CALL_BYTES_MAX), op in 1..8_u8) {
            let mut message = message;
            let _ = Reply::parse(&message);
            if message.len() >= 8 {
                let len = (message.len() - 8).saturating_sub(24) as u8;
                message[..8].copy_from_slice(&[op, 0, len, 0, 0, 0, 0, 0]);
            }
            if let Ok(call) = Call::parse(&message) {
                prop_assert!(call.len <= CALL_BYTES_MAX - MESSAGE_HEAD_BYTES);
            }
        }
    }
}
