//! Messages in rings: a client WRITEs requests into cells of the server's memory, the server WRITEs
//! replies into cells of the client's. Drawn in docs/farm.md.

use herdwick_layout::wire::Field;
use herdwick_mem::{LINE, WORD, crc32c};

use crate::{layout::Geometry, table::push_words};

const fn field(name: &'static str, offset: usize, bytes: usize, meaning: &'static str) -> Field {
    Field {
        name,
        offset,
        bytes,
        meaning,
    }
}

/// Turn of the ring.
pub(crate) const LAP: Field = field(
    "lap",
    0,
    1,
    "which turn of the ring: 1 to 255, then 1 again; 0 in a cell that was never used",
);
/// Length of the key of a request.
pub(crate) const MESSAGE_KEY_LEN: Field = field("key_len", 1, 1, "bytes of key; 0 in a reply");
/// Length of the value, and what the message is.
pub(crate) const CODE: Field = field(
    "code",
    2,
    2,
    "bits 0-11: bytes of value; bits 12-15: operation of a request, status of a reply",
);
/// Checksum of the message.
pub(crate) const CRC: Field = field(
    "crc",
    4,
    4,
    "CRC32C of the message up to here, this word's first four bytes first",
);

/// The control word, the last word of a cell and of a message.
pub const CONTROL_FIELDS: [Field; 4] = [LAP, MESSAGE_KEY_LEN, CODE, CRC];
const _: () = assert!(CRC.offset + CRC.bytes == WORD && CRC.offset == CODE.offset + CODE.bytes);

/// Most cells of a ring: messages of one client on their way.
pub const WINDOW_MAX: usize = 128;

/// What a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The value of a key that READs could not settle.
    Get = 1,
    /// Store a value.
    Put = 2,
    /// Remove a key.
    Delete = 3,
}

/// The content of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyCode {
    /// Stored, removed, or the value follows.
    Done = 1,
    /// There is no such key.
    NotFound = 2,
    /// The table has no room for the item.
    Full = 3,
    /// No request that this table takes.
    Refused = 4,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 3] = [Self::Get, Self::Put, Self::Delete];
}

impl ReplyCode {
    /// Every status.
    pub const ALL: [Self; 4] = [Self::Done, Self::NotFound, Self::Full, Self::Refused];
}

/// The control word, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) lap: u8,
    pub(crate) key_len: usize,
    pub(crate) value_len: usize,
    pub(crate) code: u8,
}

impl Control {
    fn of(word: u64) -> Self {
        let [lap, key_len, low, high, ..] = word.to_le_bytes();
        let code = u16::from_le_bytes([low, high]);
        Self {
            lap,
            key_len: key_len.into(),
            value_len: usize::from(code & 0xfff),
            code: (code >> 12) as u8,
        }
    }

    /// Returns the word for a message that begins with `words`.
    fn word(self, words: &[u64]) -> u64 {
        let code = self.value_len as u16 | u16::from(self.code) << 12;
        let [low, high] = code.to_le_bytes();
        let half = [self.lap, self.key_len as u8, low, high];
        u64::from(u32::from_le_bytes(half)) | u64::from(checksum(half, words)) << 32
    }

    /// Words of key and value.
    pub(crate) fn body_words(self) -> usize {
        self.key_len.div_ceil(WORD) + self.value_len.div_ceil(WORD)
    }
}

fn checksum(control: [u8; 4], words: &[u64]) -> u32 {
    let first = crc32c(0, &control);
    words
        .iter()
        .fold(first, |crc, word| crc32c(crc, &word.to_le_bytes()))
}

/// A ring: how many cells, and how long each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(crate) window: usize,
    cell_words: usize,
}

impl Ring {
    /// The ring of requests to a table.
    pub(crate) fn requests(geometry: &Geometry, window: usize) -> Self {
        let terms = geometry.terms();
        let key = terms.key_bytes_max.div_ceil(WORD);
        Self::of(window, key + terms.value_bytes_max.div_ceil(WORD))
    }

    /// The ring of its replies.
    pub(crate) fn replies(geometry: &Geometry, window: usize) -> Self {
        Self::of(window, geometry.terms().value_bytes_max.div_ceil(WORD))
    }

    fn of(window: usize, body: usize) -> Self {
        Self {
            window,
            // Cells are whole lines, so that no two share one.
            cell_words: (body + 1).next_multiple_of(LINE / WORD),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.window * self.cell_words * WORD
    }

    /// Returns the word after the cell of message `number`; a message ends there.
    pub(crate) fn end(&self, number: u64) -> usize {
        ((number % self.window as u64) as usize + 1) * self.cell_words
    }

    /// Returns the lap of message `number`.
    pub(crate) fn lap(&self, number: u64) -> u8 {
        (number / self.window as u64 % 255) as u8 + 1
    }
}

/// Lays a message out in `words`.
pub(crate) fn encode(words: &mut Vec<u64>, lap: u8, code: u8, key: &[u8], value: &[u8]) {
    words.clear();
    push_words(words, key);
    push_words(words, value);
    let control = Control {
        lap,
        key_len: key.len(),
        value_len: value.len(),
        code,
    };
    words.push(control.word(words));
}

/// What is in the cell in which a message is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Nothing new.
    Nothing,
    /// A message of which not every word is visible yet, or that was made up.
    Incomplete,
    /// A message with lengths that no message of this ring has.
    Malformed,
    /// A message; its key and value are in the caller's words.
    Message(Control),
}

/// Looks at the cell of message `number`. `load` returns words of the ring, the control word with
/// acquire ordering. The body is copied once, and what is checked is the copy.
#[inline]
pub(crate) fn arrival(
    ring: &Ring,
    number: u64,
    load: &impl Fn(usize) -> u64,
    body: &mut Vec<u64>,
) -> Arrival {
    let end = ring.end(number);
    let word = load(end - 1);
    let control = Control::of(word);
    if control.lap != ring.lap(number) {
        return Arrival::Nothing;
    }
    let count = control.body_words();
    // Before the copy, since the lengths are the peer's.
    if count >= ring.cell_words {
        return Arrival::Malformed;
    }
    body.clear();
    body.extend((end - 1 - count..end - 1).map(load));
    if control.word(body) != word {
        return Arrival::Incomplete;
    }
    Arrival::Message(control)
}

/// Copies `out.len()` bytes that begin at word `first`.
pub(crate) fn bytes_at(words: &[u64], first: usize, out: &mut [u8]) {
    for (bytes, word) in out.chunks_mut(WORD).zip(&words[first..]) {
        let from = word.to_le_bytes();
        herdwick_mem::copy(bytes, &from[..bytes.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::word_of;

    const RING: Ring = Ring {
        window: 4,
        cell_words: 8,
    };

    /// Lays message `number` in its cell of `cells`.
    fn lay(cells: &mut [u64], number: u64, key: &[u8], value: &[u8]) {
        let mut words = Vec::new();
        encode(&mut words, RING.lap(number), 2, key, value);
        let end = RING.end(number);
        cells[end - words.len()..end].copy_from_slice(&words);
    }

    #[test]
    fn messages_arrive_in_their_cells_lap_after_lap() {
        let (mut cells, mut body) = (vec![0; 32], Vec::new());
        for number in 0..3000 {
            let look =
                |cells: &[u64], body: &mut Vec<u64>| arrival(&RING, number, &|n| cells[n], body);
            assert_eq!(look(&cells, &mut body), Arrival::Nothing);
            lay(&mut cells, number, b"a key", &[number as u8; 20]);
            let Arrival::Message(control) = look(&cells, &mut body) else {
                panic!("message {number}");
            };
            assert_eq!(
                (control.key_len, control.value_len, control.code),
                (5, 20, 2)
            );
            let mut value = [0; 20];
            bytes_at(&body, 1, &mut value);
            assert_eq!((body[0], value), (word_of(b"a key"), [number as u8; 20]));
        }
    }

    #[test]
    fn a_message_with_any_word_missing_has_not_arrived() {
        let (mut cells, mut body) = (vec![0; 32], Vec::new());
        lay(&mut cells, 1, &[7; 16], &[8; 32]);
        for word in 9..15 {
            let load = |n: usize| if n == word { 0 } else { cells[n] };
            assert_eq!(arrival(&RING, 1, &load, &mut body), Arrival::Incomplete);
        }
        let load = |n: usize| cells[n];
        assert!(matches!(
            arrival(&RING, 1, &load, &mut body),
            Arrival::Message(_)
        ));
    }

    #[test]
    fn any_control_word_is_handled() {
        let mut body = Vec::new();
        for n in 0..200_000_u64 {
            let word = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xff | 1;
            let seen = arrival(&RING, 0, &|_| word, &mut body);
            let fits = Control::of(word).body_words() < RING.cell_words;
            assert_eq!(seen == Arrival::Malformed, !fits);
        }
    }
}
