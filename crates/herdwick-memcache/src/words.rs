//! The words of a command line, and where they are in the input.

use crate::find::find;

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

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
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
