//! The table's memory: lines with a version at both ends, slots of lines, and the geometry that a
//! server and its clients agree on. Section 2.3 and 5.1.2 of the HERD paper; drawn in docs/farm.md.

use herdwick_layout::wire::Field;
use herdwick_mem::{LINE, WORD};
use herdwick_request::{KEY_BYTES_MAX, KeyHash};

const fn field(name: &'static str, offset: usize, bytes: usize, meaning: &'static str) -> Field {
    Field {
        name,
        offset,
        bytes,
        meaning,
    }
}

/// Version at the beginning of a line.
pub(crate) const HEAD_VERSION: Field = field(
    "version",
    0,
    5,
    "of the line, even; stored after the data of all lines",
);
/// Length of the key in a slot.
pub(crate) const KEY_LEN: Field = field(
    "key_len",
    5,
    1,
    "first line of a slot: bytes of key; 0 for a slot without an item, and in all other lines",
);
/// Length of the value.
pub(crate) const VALUE_LEN: Field = field(
    "value_len",
    6,
    2,
    "first line of a slot: bytes of value; 0 in all other lines",
);
/// Data of a line.
pub(crate) const DATA: Field = field(
    "data",
    8,
    48,
    "of a slot: key, padded with zeros to words, then value or pointer; of a value block: value",
);
/// Version at the end of a line.
pub(crate) const TAIL_VERSION: Field = field(
    "version",
    56,
    5,
    "odd while the line is being written, otherwise equal to the first version",
);
/// Link of a bucket.
pub(crate) const LINK: Field = field(
    "link",
    61,
    3,
    "first line of a slot: first overflow slot of the bucket, counted from 1, or the next one of \
     its chain; 0 for none, and in all other lines",
);

/// A line of the table or of a value block.
pub const LINE_FIELDS: [Field; 6] = [HEAD_VERSION, KEY_LEN, VALUE_LEN, DATA, TAIL_VERSION, LINK];

/// First line of a value block, in the pointer of a slot whose value is out of the table.
pub(crate) const POINTER_BLOCK: Field = field("block", 0, 4, "first line of the value block");
/// Version of the value block that a pointer names.
pub(crate) const POINTER_VERSION: Field =
    field("version", 8, 5, "version of all lines of the value");

/// The pointer that replaces the value in a slot when values are out of the table.
pub const POINTER_FIELDS: [Field; 2] = [POINTER_BLOCK, POINTER_VERSION];
/// Words of a pointer; bytes without a field are zero.
pub(crate) const POINTER_WORDS: usize = 2;

/// Words of a line.
pub const LINE_WORDS: usize = LINE / WORD;
/// Words of data in a line.
pub const DATA_WORDS: usize = DATA.bytes / WORD;
/// The word of a line that ends it.
pub(crate) const TAIL_WORD: usize = LINE_WORDS - 1;

const _: () = assert!(HEAD_VERSION.bytes == TAIL_VERSION.bytes);
const _: () = assert!(KEY_LEN.offset == HEAD_VERSION.bytes && VALUE_LEN.offset == 6);
const _: () = assert!(DATA.offset == WORD && DATA.offset + DATA.bytes == TAIL_VERSION.offset);
const _: () = assert!(LINK.offset + LINK.bytes == LINE && TAIL_VERSION.offset == TAIL_WORD * WORD);
const _: () =
    assert!(POINTER_VERSION.offset == WORD && POINTER_VERSION.bytes == HEAD_VERSION.bytes);

/// A version of a line: 40 bits, from one counter of the whole table, which moves on by 2 with each
/// change of a slot or value block. So a READ would have to last for 2^39 changes to meet a version
/// again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version(u64);

const VERSION_BITS: u32 = 8 * HEAD_VERSION.bytes as u32;

impl Version {
    const MASK: u64 = (1 << VERSION_BITS) - 1;

    /// Returns the version of the next change.
    #[must_use]
    pub(crate) fn next(self) -> Self {
        Self((self.0 + 2) & Self::MASK)
    }

    /// Returns the mark of a line that is being written to become this version.
    fn unfinished(self) -> Self {
        Self(self.0 | 1)
    }

    fn of(word: u64) -> Self {
        Self(word & Self::MASK)
    }
}

/// The first word of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) version: Version,
    pub(crate) key_len: usize,
    pub(crate) value_len: usize,
}

impl Head {
    pub(crate) fn word(self) -> u64 {
        self.version.0 | (self.key_len as u64) << 40 | (self.value_len as u64) << 48
    }

    pub(crate) fn of(word: u64) -> Self {
        Self {
            version: Version::of(word),
            key_len: (word >> 40 & 0xff) as usize,
            value_len: (word >> 48) as usize,
        }
    }
}

/// The last word of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) version: Version,
    /// An overflow slot, counted from 1; 0 for none.
    pub(crate) link: u32,
}

impl Tail {
    pub(crate) fn word(self) -> u64 {
        self.version.0 | u64::from(self.link) << 40
    }

    pub(crate) fn unfinished(self) -> u64 {
        Self {
            version: self.version.unfinished(),
            ..self
        }
        .word()
    }

    pub(crate) fn of(word: u64) -> Self {
        Self {
            version: Version::of(word),
            link: (word >> 40) as u32,
        }
    }
}

/// Where a value is that is not in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pointer {
    /// First line of the block.
    pub(crate) block: u32,
    pub(crate) version: Version,
}

impl Pointer {
    pub(crate) fn words(self) -> [u64; POINTER_WORDS] {
        [self.block.into(), self.version.0]
    }

    pub(crate) fn of([block, version]: [u64; POINTER_WORDS]) -> Self {
        Self {
            block: block as u32,
            version: Version::of(version),
        }
    }
}

/// Returns the version of `lines` whole lines that begin at word `first` of what `load` returns; `None`
/// if they are not all of one version: the last word of a line that is being written is odd. Sound if the words of each line were loaded in
/// rising order or at once; the lines in any order.
#[inline]
pub(crate) fn common_version(
    first: usize,
    lines: usize,
    load: &impl Fn(usize) -> u64,
) -> Option<Version> {
    let version = Version::of(load(first));
    let same = (0..lines).all(|line| {
        let at = first + line * LINE_WORDS;
        Version::of(load(at)) == version && Version::of(load(at + TAIL_WORD)) == version
    });
    same.then_some(version)
}

/// Returns the index, in words of whole lines, of data word `n`.
#[inline]
pub(crate) const fn data_word(n: usize) -> usize {
    n / DATA_WORDS * LINE_WORDS + 1 + n % DATA_WORDS
}

/// Most slots of a neighbourhood.
pub const NEIGHBOURHOOD_MAX: usize = 32;
/// The neighbourhood of section 5.1.2.
pub const NEIGHBOURHOOD: usize = 6;
/// Most bytes of a value.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Most buckets of a table.
pub const BUCKETS_MAX: usize = 1 << 30;
/// Most overflow slots: what a link can name.
pub const OVERFLOW_MAX: usize = (1 << (8 * LINK.bytes)) - 1;
/// Most lines of all value blocks: what a pointer can name, but for the number that stands for none.
pub const VALUE_LINES_MAX: usize = u32::MAX as usize;

/// Where values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// In the slots, beside their keys: FaRM-KV as it is.
    Inline,
    /// In blocks of their own, of so many lines in all: FaRM-KV-VAR.
    OutOfTable {
        /// Lines of all blocks.
        lines: usize,
    },
}

/// The dimensions of a table, which the server chooses and sends to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Buckets that a key hashes to, and slots but for the last neighbourhood.
    pub buckets: usize,
    /// Slots of which one holds the key, unless it is in the overflow.
    pub neighbourhood: usize,
    /// Slots for items that no neighbourhood has room for.
    pub overflow: usize,
    /// Longest key, in bytes.
    pub key_bytes_max: usize,
    /// Longest value, in bytes.
    pub value_bytes_max: usize,
    /// Where values are.
    pub values: Values,
}

/// A table cannot have these dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a table with {what} {given}: give {least} to {most}")]
pub struct GeometryError {
    what: &'static str,
    given: usize,
    least: usize,
    most: usize,
}

/// The dimensions of a table, checked, and where everything is in it. Slots come first, one a bucket
/// and the rest of the last neighbourhood; then the overflow slots; then the value blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    terms: Terms,
    slot_lines: usize,
}

/// A slot of the table, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(pub(crate) usize);

impl Geometry {
    /// Checks `terms`, which may come from a peer.
    ///
    /// # Errors
    /// The dimension that is out of range.
    pub fn new(terms: Terms) -> Result<Self, GeometryError> {
        // Not used: any number in the range passes the check.
        let lines = match terms.values {
            Values::Inline => 1,
            Values::OutOfTable { lines } => lines,
        };
        let ranges = [
            ("buckets", terms.buckets, 1, BUCKETS_MAX),
            ("neighbourhood", terms.neighbourhood, 1, NEIGHBOURHOOD_MAX),
            ("overflow slots", terms.overflow, 0, OVERFLOW_MAX),
            ("key bytes", terms.key_bytes_max, 1, KEY_BYTES_MAX),
            ("value bytes", terms.value_bytes_max, 0, VALUE_BYTES_MAX),
            ("value lines", lines, 1, VALUE_LINES_MAX),
        ];
        let wrong =
            |(_, given, least, most): &(_, usize, usize, usize)| given < least || given > most;
        if let Some((what, given, least, most)) = ranges.into_iter().find(wrong) {
            return Err(GeometryError {
                what,
                given,
                least,
                most,
            });
        }
        let value_words = match terms.values {
            Values::Inline => terms.value_bytes_max.div_ceil(WORD),
            Values::OutOfTable { .. } => POINTER_WORDS,
        };
        let words = terms.key_bytes_max.div_ceil(WORD) + value_words;
        Ok(Self {
            terms,
            slot_lines: words.div_ceil(DATA_WORDS),
        })
    }

    /// Returns the dimensions.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns whether values are in the slots.
    pub(crate) fn is_inline(&self) -> bool {
        self.terms.values == Values::Inline
    }

    /// Returns the slots that a neighbourhood may have a part in: one a bucket and the rest of the
    /// last neighbourhood.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.terms.buckets + self.terms.neighbourhood - 1
    }

    /// Returns the bytes of a slot, whole lines.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_lines * LINE
    }

    pub(crate) fn slot_lines(&self) -> usize {
        self.slot_lines
    }

    /// Returns the bytes that a GET READs first.
    #[must_use]
    pub fn neighbourhood_bytes(&self) -> usize {
        self.terms.neighbourhood * self.slot_bytes()
    }

    /// Returns the bytes of the longest READ.
    #[must_use]
    pub fn read_bytes_max(&self) -> usize {
        self.neighbourhood_bytes()
            .max(value_lines(self.terms.value_bytes_max) * LINE)
    }

    /// Returns the bytes of the whole table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let blocks = match self.terms.values {
            Values::Inline => 0,
            Values::OutOfTable { lines } => lines * LINE,
        };
        (self.slots() + self.terms.overflow) * self.slot_bytes() + blocks
    }

    /// Returns the bucket of a key: the first slot of its neighbourhood.
    #[inline]
    pub(crate) fn bucket(&self, hash: KeyHash) -> SlotId {
        // The high half of the product is uniform below `buckets`, without a division.
        let scaled = u128::from(hash.0) * self.terms.buckets as u128;
        SlotId((scaled >> 64) as usize)
    }

    /// Returns the slot that a link names; `None` for one that names none.
    #[inline]
    pub(crate) fn linked(&self, link: u32) -> Option<SlotId> {
        let index = (link as usize).checked_sub(1)?;
        (index < self.terms.overflow).then_some(SlotId(self.slots() + index))
    }

    /// Returns the link that names an overflow slot.
    pub(crate) fn link_to(&self, slot: SlotId) -> u32 {
        (slot.0 - self.slots() + 1) as u32
    }

    /// Returns the first byte of a slot.
    #[inline]
    pub(crate) fn slot_offset(&self, slot: SlotId) -> usize {
        slot.0 * self.slot_bytes()
    }

    /// Returns the first byte of a line of the value blocks.
    pub(crate) fn block_offset(&self, block: u32) -> usize {
        (self.slots() + self.terms.overflow) * self.slot_bytes() + block as usize * LINE
    }

    /// Returns whether a value of `len` bytes can be at `block`.
    pub(crate) fn block_fits(&self, block: u32, len: usize) -> bool {
        match self.terms.values {
            Values::Inline => false,
            Values::OutOfTable { lines } => block as usize + value_lines(len) <= lines,
        }
    }

    /// Returns whether a slot with these lengths is one that the server writes.
    pub(crate) fn admits(&self, key_len: usize, value_len: usize) -> bool {
        key_len <= self.terms.key_bytes_max && value_len <= self.terms.value_bytes_max
    }
}

/// Returns the lines of a value block; an empty value has a line too.
#[must_use]
pub fn value_lines(len: usize) -> usize {
    len.div_ceil(DATA.bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_fields() {
        let version = Version(Version::MASK - 1);
        let head = Head {
            version,
            key_len: 250,
            value_len: 1024,
        };
        assert_eq!(Head::of(head.word()), head);
        let tail = Tail {
            version,
            link: 0xff_ffff,
        };
        assert_eq!(Tail::of(tail.word()), tail);
        let pointer = Pointer {
            block: u32::MAX,
            version,
        };
        assert_eq!(Pointer::of(pointer.words()), pointer);
        assert_eq!(version.next(), Version(0));
        assert_eq!(Tail::of(tail.unfinished()).version.0, version.0 + 1);
    }

    #[test]
    fn an_item_of_48_bytes_takes_one_line() {
        let terms = Terms {
            buckets: 100,
            neighbourhood: 6,
            overflow: 10,
            key_bytes_max: 16,
            value_bytes_max: 32,
            values: Values::Inline,
        };
        let geometry = Geometry::new(terms).unwrap();
        assert_eq!(geometry.slot_bytes(), 64);
        assert_eq!(geometry.neighbourhood_bytes(), 384);
        assert_eq!(geometry.bytes(), (105 + 10) * 64);
        assert_eq!(geometry.bucket(KeyHash(u64::MAX)), SlotId(99));
        assert_eq!(geometry.linked(0), None);
        assert_eq!(geometry.linked(11), None);
        let last = geometry.linked(10).unwrap();
        assert_eq!(geometry.link_to(last), 10);
        let wider = Terms {
            value_bytes_max: 33,
            ..terms
        };
        assert_eq!(Geometry::new(wider).unwrap().slot_bytes(), 128);
        let refused = [
            Terms {
                buckets: 0,
                ..terms
            },
            Terms {
                buckets: usize::MAX,
                ..terms
            },
            Terms {
                neighbourhood: 33,
                ..terms
            },
            Terms {
                overflow: OVERFLOW_MAX + 1,
                ..terms
            },
            Terms {
                key_bytes_max: 251,
                ..terms
            },
            Terms {
                value_bytes_max: 1025,
                ..terms
            },
            Terms {
                values: Values::OutOfTable {
                    lines: VALUE_LINES_MAX + 1,
                },
                ..terms
            },
        ];
        assert!(
            refused
                .into_iter()
                .all(|terms| Geometry::new(terms).is_err())
        );
    }

    #[test]
    fn lines_of_different_versions_have_none_in_common() {
        let line = |head, tail| {
            let mut line = [0; LINE_WORDS];
            (line[0], line[TAIL_WORD]) = (head, tail);
            line
        };
        let common = |lines: &[[u64; LINE_WORDS]]| {
            let words = lines.concat();
            common_version(0, lines.len(), &|n| words[n])
        };
        assert_eq!(common(&[line(4, 4)]), Some(Version(4)));
        for torn in [line(4, 6), line(6, 4), line(4, 5)] {
            assert_eq!(common(&[torn]), None);
        }
        assert_eq!(common(&[line(4, 4), line(6, 6)]), None);
        assert_eq!(common(&[line(4, 4), line(4, 4)]), Some(Version(4)));
    }
}
