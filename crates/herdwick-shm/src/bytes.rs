//! Payloads of work requests, from wherever they lie.

use herdwick_mem::{LINE, Span, WORD, Words};

const LINE_WORDS: usize = LINE / WORD;

/// The bytes of a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PayloadBytes<'a> {
    Words(&'a [u64]),
    Inline(&'a [u8]),
    /// Offset and length are within the span.
    Span(&'a Span, usize, usize),
}

impl PayloadBytes<'_> {
    /// Returns 64 bytes from byte 64 `n` on, as words; zeros follow the end of the payload.
    pub(crate) fn line(&self, n: usize) -> [u64; LINE_WORDS] {
        let mut line = [0; LINE_WORDS];
        match *self {
            Self::Words(words) => {
                // A payload that became invalid after its check is empty, so any index may be
                // behind its end.
                let words = words.get(n * LINE_WORDS..).unwrap_or(&[]);
                for (to, word) in line.iter_mut().zip(words) {
                    *to = *word;
                }
            }
            Self::Inline(bytes) => fill(&mut line, bytes.get(n * LINE..).unwrap_or(&[])),
            Self::Span(span, offset, len) => {
                let (at, rest) = (offset + n * LINE, len.saturating_sub(n * LINE));
                // A copy of aligned words; the other ways copy bytes.
                if rest >= LINE && at.is_multiple_of(WORD) {
                    return span.copy_out(at / WORD);
                }
                let mut bytes = [0; LINE];
                let bytes = &mut bytes[..rest.min(LINE)];
                // Only what the payload has: the bytes behind it may be another object's.
                span.read_bytes(at, bytes);
                fill(&mut line, bytes);
            }
        }
        line
    }

    /// Stores all `len` bytes to `to` from `offset` on, the last word last.
    pub(crate) fn write_to(&self, to: &Span, offset: usize, len: usize) {
        match *self {
            Self::Inline(bytes) => to.write_bytes(offset, bytes),
            Self::Span(from, start, _) => to.copy_from(offset, from, start, len),
            Self::Words(words) if offset.is_multiple_of(WORD) => {
                to.write_words(offset / WORD, words);
            }
            Self::Words(words) => {
                for (n, word) in words.iter().enumerate() {
                    // In order, so that the last word is stored last here too.
                    to.write_bytes(offset + n * WORD, &word.to_le_bytes());
                }
            }
        }
    }
}

fn fill(line: &mut [u64; LINE_WORDS], bytes: &[u8]) {
    for (to, bytes) in line.iter_mut().zip(bytes.chunks(WORD)) {
        let mut word = [0; WORD];
        herdwick_mem::copy(&mut word[..bytes.len()], bytes);
        *to = u64::from_le_bytes(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_kind_of_payload_is_written_as_its_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..300), skip in 0usize..17, at in 0usize..17,
        ) {
            let source = Span::anonymous(4096).unwrap();
            source.write_bytes(skip, &bytes);
            let whole = &bytes[..bytes.len() / 8 * 8];
            let words: Vec<u64> = whole.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            for (from, bytes) in [
                (PayloadBytes::Inline(&bytes), &bytes[..]),
                (PayloadBytes::Span(&source, skip, bytes.len()), &bytes),
                (PayloadBytes::Words(&words), whole),
            ] {
                let target = Span::anonymous(4096).unwrap();
                from.write_to(&target, at, bytes.len());
                let mut got = vec![0; bytes.len()];
                target.read_bytes(at, &mut got);
                prop_assert_eq!(&got[..], bytes);
                let lines: Vec<u8> = (0..bytes.len().div_ceil(LINE)).flat_map(|n| from.line(n)).flat_map(u64::to_le_bytes).collect();
                prop_assert_eq!(&lines[..bytes.len()], bytes);
                prop_assert!(lines[bytes.len()..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
