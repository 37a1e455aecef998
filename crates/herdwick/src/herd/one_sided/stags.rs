//! Stags of keys: what a session knows of where the items of a store in slabs lie, and the keys of which it asks
//! the workers.

use herdwick_herd::{ClientSide, Outcome, wire::ReplyStatus};
use herdwick_request::{KEY_BYTES_MAX, KeyHash};

/// Sets of the table, in each of which a key has one of [`WAYS`] places: a MiB in all, allocated with the first
/// stag.
const SETS: usize = 16 << 10;
const WAYS: usize = 4;
const PLACES: u32 = (SETS * WAYS) as u32;
/// Questions at a time; keys that are read meanwhile are asked for when they are read again.
const ASKED_MAX: usize = 32;
/// Reads for each question, once as many questions were asked as the table has places: where keys do not
/// come again before others have taken their places, stags are of no use.
const READS_PER_QUESTION: u32 = 16;
/// The first of their tokens, which no request has; [`REPORT`](super::REPORT) follows the last.
const FIRST: u64 = super::REPORT - ASKED_MAX as u64;

/// A stag, and the key that it is of. Stag 0 is no key's.
#[derive(Clone, Copy, Debug, Default)]
struct KnownStag {
    hash: KeyHash,
    stag: u32,
}

/// A question for a stag.
#[derive(Debug)]
struct Question {
    hash: KeyHash,
    /// The key, as long as the question is not sent.
    key: Option<Vec<u8>>,
}

/// The stags that are known, and the questions for others.
#[derive(Debug, Default)]
pub(super) struct Stags {
    sets: Vec<[KnownStag; WAYS]>,
    questions: [Option<Question>; ASKED_MAX],
    unsent: usize,
    /// Reads that count towards further questions, up to those of as many as the table has places.
    saved: u32,
    /// Questions so far, up to as many.
    asked: u32,
}

impl Stags {
    fn set(hash: KeyHash) -> usize {
        hash.0 as usize % SETS
    }

    /// Returns the stag of a key with this hash.
    #[inline]
    pub(super) fn get(&self, hash: KeyHash) -> Option<u32> {
        let set = self.sets.get(Self::set(hash))?;
        let mut entries = set.iter();
        let found = entries.find(|entry| entry.hash == hash && entry.stag > 0)?;
        Some(found.stag)
    }

    /// Forgets a stag, under which the key's item is not.
    pub(super) fn purge(&mut self, hash: KeyHash) {
        for entry in self.sets.get_mut(Self::set(hash)).into_iter().flatten() {
            if entry.hash == hash {
                *entry = KnownStag::default();
            }
        }
    }

    /// Learns a stag, if need be in place of the one that was learnt first in its set.
    fn learn(&mut self, hash: KeyHash, stag: u32) {
        // Otherwise a key could have two stags.
        self.purge(hash);
        if self.sets.is_empty() {
            self.sets = vec![[KnownStag::default(); WAYS]; SETS];
        }
        let set = &mut self.sets[Self::set(hash)];
        let free = set.iter().position(|entry| entry.stag == 0);
        set[..=free.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = KnownStag { hash, stag };
    }

    /// Notes a key that was read by a request: its stag is to be asked for.
    pub(super) fn want(&mut self, hash: KeyHash, key: &[u8]) {
        self.save(1);
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) || !self.may_ask() {
            return;
        }
        let mut asked = self.questions.iter().flatten();
        if self.get(hash).is_some() || asked.any(|question| question.hash == hash) {
            return;
        }
        if let Some(free) = self.questions.iter_mut().find(|place| place.is_none()) {
            let key = Some(key.to_vec());
            *free = Some(Question { hash, key });
            self.unsent += 1;
            match self.asked < PLACES {
                true => self.asked += 1,
                false => self.saved -= READS_PER_QUESTION,
            }
        }
    }

    /// Notes reads, which count towards further questions: each in the memory for one.
    #[inline]
    pub(super) fn note_hit(&mut self) {
        self.save(READS_PER_QUESTION);
    }

    fn save(&mut self, reads: u32) {
        self.saved = (self.saved + reads).min(PLACES * READS_PER_QUESTION);
    }

    fn may_ask(&self) -> bool {
        self.asked < PLACES || self.saved >= READS_PER_QUESTION
    }

    /// Submits the questions for which there is room; the next flush sends them.
    #[inline]
    pub(super) fn ask(&mut self, side: &mut ClientSide) {
        if self.unsent == 0 {
            return;
        }
        for (n, question) in self.questions.iter_mut().enumerate() {
            let Some(question @ Question { key: Some(_), .. }) = question else {
                continue;
            };
            let key = question.key.as_deref().unwrap_or_default();
            if side.locate(question.hash, key, FIRST + n as u64) {
                self.unsent -= 1;
                question.key = None;
            }
        }
    }

    /// Takes the answer to a question. Returns whether `token` is of one.
    #[inline]
    pub(super) fn answer(&mut self, token: u64, outcome: &Outcome<'_>) -> bool {
        let Some(place) = token.checked_sub(FIRST) else {
            return false;
        };
        let place = self.questions.get_mut(place as usize);
        // Without an answer the key is asked for when it is read again.
        if let Some(question) = place.and_then(Option::take)
            && let Outcome::Answered(answer) = outcome
            && answer.status == ReplyStatus::Done
            && let Some(Ok(stag)) = answer.number.map(u32::try_from)
        {
            self.learn(question.hash, stag);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stags_are_found_until_they_are_purged_or_others_take_their_place() {
        let mut stags = Stags::default();
        let hash = |n: u64| KeyHash(n << 32 | 7);
        assert_eq!(stags.get(hash(1)), None);
        stags.purge(hash(1));
        for n in 1..=5_u32 {
            stags.learn(hash(n.into()), n);
        }
        let known: Vec<_> = (1..=5).map(|n| stags.get(hash(n))).collect();
        assert_eq!(known, [None, Some(2), Some(3), Some(4), Some(5)]);
        stags.learn(hash(3), 30);
        assert_eq!(stags.get(hash(3)), Some(30));
        assert_eq!(stags.get(hash(2)), Some(2), "a key takes one place");
        stags.purge(hash(3));
        assert_eq!(stags.get(hash(3)), None);
        assert_eq!(stags.get(KeyHash(8)), None);
    }

    #[test]
    fn few_are_asked_for_where_no_read_finds_a_stag() {
        let mut stags = Stags::default();
        let mut asked = 0;
        let reads = 40 * u64::from(PLACES);
        for n in 0..reads {
            stags.want(KeyHash(n), b"key");
            asked += std::mem::take(&mut stags.unsent);
            stags.questions = Default::default();
        }
        let expected = PLACES + (reads as u32 - PLACES) / READS_PER_QUESTION;
        assert!(
            (expected..=expected + PLACES).contains(&(asked as u32)),
            "{asked}"
        );
        stags.saved = 2 * READS_PER_QUESTION;
        for key in [&b""[..], &[b'k'; 251]] {
            stags.want(KeyHash(reads), key);
            assert_eq!(stags.unsent, 0, "no key");
        }
        // Reads in the memory pay for as many.
        stags.saved = 0;
        stags.want(KeyHash(reads), b"key");
        assert_eq!(stags.unsent, 0);
        stags.note_hit();
        stags.want(KeyHash(reads), b"key");
        assert_eq!(stags.unsent, 1);
    }

    #[test]
    fn each_key_is_asked_for_once_at_a_time() {
        let mut stags = Stags::default();
        for n in 0..100 {
            stags.want(KeyHash(n / 2), b"key");
        }
        assert_eq!(stags.unsent, ASKED_MAX);
        let asked = stags.questions.iter().flatten();
        assert!(
            asked
                .map(|question| question.hash.0)
                .eq(0..ASKED_MAX as u64)
        );
    }
}
