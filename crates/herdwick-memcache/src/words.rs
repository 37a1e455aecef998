//! The words of a command line, and where they are in the input.

use crate::find::{BITS_MAX, bits_of, find};

/// A run of bytes of the input that a command was decoded from, counted from the command's first
/// byte. It borrows nothing, so it can be kept while the input moves. A line is shorter than 2^32
/// bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputRange {
    at: u32,
    end: u32,
}

impl InputRange {
    /// Returns the bytes of `line` from `at` on.
    pub(crate) fn behind(line: &[u8], at: usize) -> Self {
        Self {
            at: at as u32,
            end: line.len() as u32,
        }
    }

    /// Returns where `part` is in `input`; `None` if it is not a part of it.
    pub(crate) fn within(input: &[u8], part: &[u8]) -> Option<Self> {
        // By addresses: a key in base64 was decoded to elsewhere.
        let at = (part.as_ptr() as usize).checked_sub(input.as_ptr() as usize)?;
        let end = at.checked_add(part.len())?;
        (end <= input.len()).then_some(Self {
            at: at as u32,
            end: end as u32,
        })
    }

    /// Returns the bytes, of the input from the command's first byte on; none if it ends before
    /// them.
    #[inline]
    #[must_use]
    pub fn of(self, input: &[u8]) -> &[u8] {
        input
            .get(self.at as usize..self.end as usize)
            .unwrap_or_default()
    }

    /// Returns the last `count` bytes of it, or all if it has fewer.
    #[inline]
    #[must_use]
    pub fn last(self, count: usize) -> Self {
        let count = (count as u32).min(self.end - self.at);
        Self {
            at: self.end - count,
            end: self.end,
        }
    }
}

/// An iterator over the words of a line, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'a> {
    rest: &'a [u8],
}

impl<'a> Keys<'a> {
    /// Returns an iterator over the words of `line`.
    #[must_use]
    pub fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    /// Returns the unread rest. Its length is enough to resume later.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns whether no word is left. It reads spaces only, no word.
    #[inline]
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rest.iter().all(|&byte| byte == b' ')
    }
}

/// As [`Keys`], of a line of at most [`BITS_MAX`] bytes: for all words of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortLine<'a> {
    line: &'a [u8],
    /// A bit for the first byte of each unread word ...
    starts: u64,
    /// ... and for the byte behind each.
    ends: u64,
}

impl<'a> Keys<'a> {
    /// Returns an iterator over the same words that costs less; `None` if the line is too long.
    #[inline]
    pub(crate) fn short(self) -> Option<ShortLine<'a>> {
        let line = self.rest;
        (line.len() <= BITS_MAX).then(|| {
            // Behind the line there is a space, and nothing.
            let gaps = bits_of(b' ', line) | u64::MAX << line.len();
            // Before the first byte there is a gap, too.
            let before = gaps << 1 | 1;
            ShortLine {
                line,
                starts: !gaps & before,
                ends: gaps & !before,
            }
        })
    }
}

impl<'a> Iterator for ShortLine<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.starts == 0 {
            return None;
        }
        let (start, end) = (self.starts.trailing_zeros(), self.ends.trailing_zeros());
        // The lowest bits: those of this word.
        self.starts &= self.starts - 1;
        self.ends &= self.ends.wrapping_sub(1);
        self.line.get(start as usize..end as usize)
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        // Before a command's first word there is a space, as a rule.
        if let [b' ', rest @ ..] = self.rest {
            self.rest = rest;
        }
        // Words may be separated by more than one space.
        loop {
            let end = find(b' ', self.rest).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest.get(1..).unwrap_or_default();
            if !word.is_empty() {
                return Some(word);
            }
            if self.rest.is_empty() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_are_those_between_spaces(line in prop::collection::vec(prop_oneof![Just(b' '), Just(b'!'), any::<u8>()], 0..100)) {
            let words: Vec<_> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
            prop_assert_eq!(Keys::new(&line).collect::<Vec<_>>(), words.clone());
            let short = Keys::new(&line).short();
            prop_assert_eq!(short.is_some(), line.len() <= BITS_MAX);
            if let Some(short) = short {
                prop_assert_eq!(short.collect::<Vec<_>>(), words);
            }
        }
    }
}
