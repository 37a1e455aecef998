//! The one writer of the table's lines: each change gives all lines of a slot or value block a new
//! version, in an order that a READ beside it can tell from a finished change.

use std::sync::atomic::{Ordering, fence};

use herdwick_mem::Words;

use crate::layout::{Head, LINE_WORDS, TAIL_WORD, Tail, Version, common_version, data_word};

/// The table's memory, and the version of its last change.
pub(super) struct Lines<W> {
    memory: W,
    version: Version,
}

/// Whole lines: the first word, and how many lines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: usize,
    pub(super) lines: usize,
}

/// The content of the first line of a slot besides its version. All zero for a value block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Labels {
    pub(super) key_len: usize,
    pub(super) value_len: usize,
    pub(super) link: u32,
}

impl<W: Words> Lines<W> {
    pub(super) fn new(memory: W) -> Self {
        Self {
            memory,
            version: Version::default(),
        }
    }

    pub(super) fn labels(&self, run: Run) -> Labels {
        let head = Head::of(self.memory.load(run.first));
        let tail = Tail::of(self.memory.load(run.first + TAIL_WORD));
        Labels {
            key_len: head.key_len,
            value_len: head.value_len,
            link: tail.link,
        }
    }

    /// Returns data word `n`.
    pub(super) fn data(&self, run: Run, n: usize) -> u64 {
        self.memory.load(run.first + data_word(n))
    }

    /// Marks `run` as being written, so that no READ of it is good until its next
    /// [`Lines::publish`].
    pub(super) fn mark(&mut self, run: Run) {
        self.version = self.version.next();
        for (tail, word) in self.tails(run, self.labels(run).link) {
            self.memory.store(word, tail.unfinished());
        }
        // What is stored from here on is seen after the marks.
        fence(Ordering::Release);
    }

    /// Changes `run` to `labels` and `data`; data beyond stays as it is. Returns the new version.
    ///
    /// A READ that loads the words of each line in rising order, or at once, finds a line's first
    /// version only after the data, and an odd or later last version once any data has changed. So a
    /// line with twice the same even version is as it was at that version, and lines of one version
    /// are one value.
    pub(super) fn publish(
        &mut self,
        run: Run,
        labels: Labels,
        data: impl IntoIterator<Item = u64>,
    ) -> Version {
        self.mark(run);
        for (n, word) in data.into_iter().enumerate() {
            self.memory.store(run.first + data_word(n), word);
        }
        let version = self.version;
        for line in 0..run.lines {
            let first = line == 0;
            let head = Head {
                version,
                key_len: if first { labels.key_len } else { 0 },
                value_len: if first { labels.value_len } else { 0 },
            };
            let word = run.first + line * LINE_WORDS;
            self.memory.store_release(word, head.word());
        }
        for (tail, word) in self.tails(run, labels.link) {
            // Behind the data and the first versions: a line whose last version is even is whole.
            self.memory.store_release(word, tail.word());
        }
        version
    }

    /// Gives `run` a new version and leaves the rest as it is.
    pub(super) fn touch(&mut self, run: Run) {
        let labels = self.labels(run);
        self.publish(run, labels, []);
    }

    /// Returns the last words of `run` as of the current version, and where they are.
    fn tails(&self, run: Run, link: u32) -> impl Iterator<Item = (Tail, usize)> + use<W> {
        let version = self.version;
        (0..run.lines).map(move |line| {
            let link = if line == 0 { link } else { 0 };
            let word = run.first + line * LINE_WORDS + TAIL_WORD;
            (Tail { version, link }, word)
        })
    }

    /// Returns whether all lines of `run` have one finished version, for assertions.
    pub(super) fn is_finished(&self, run: Run) -> bool {
        common_version(run.first, run.lines, &|word| self.memory.load(word)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use herdwick_mem::Span;

    use super::*;
    use crate::layout::DATA_WORDS;

    /// A READ between two stores of the data finds no finished line, and one after the last the new version.
    #[test]
    fn lines_are_unfinished_from_the_first_store_to_the_last() {
        let run = Run { first: 0, lines: 2 };
        let span = Span::anonymous(4096).unwrap();
        let mut lines = Lines::new(span.clone());
        let version = |span: &Span, line: usize| {
            common_version(line * LINE_WORDS, 1, &|word| span.load(word))
        };
        let mut last = Version::default();
        for round in 0..3_u64 {
            let mut seen = 0;
            let data = (0..2 * DATA_WORDS as u64).inspect(|_| {
                let finished = [0, 1].map(|line| version(&span, line));
                assert_eq!(finished, [None, None]);
                seen += 1;
            });
            let published = lines.publish(run, Labels::default(), data.map(|n| n + round));
            assert_eq!((seen, published == last), (2 * DATA_WORDS, false));
            let finished = [0, 1].map(|line| version(&span, line));
            assert_eq!(finished, [Some(published), Some(published)]);
            last = published;
        }
    }
}
