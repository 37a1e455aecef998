//! Storage for base64 keys of commands, decoded.

use std::cell::{Cell, OnceCell};

use super::base64::{self, DECODED_BYTES_MAX};

/// An arena of decoded keys. Keys are lent out by shared reference while more are added, so cells
/// hold them.
#[derive(Default)]
pub struct KeyRoom {
    places: Vec<OnceCell<DecodedKey>>,
    used: Cell<usize>,
}

/// A key and its length.
struct DecodedKey {
    bytes: [u8; DECODED_BYTES_MAX],
    len: usize,
}

impl KeyRoom {
    /// Creates room for `count` keys.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            places: (0..count).map(|_| OnceCell::new()).collect(),
            used: Cell::new(0),
        }
    }

    /// Decodes `text` and returns the key; `None` if it is not valid base64, or there is no room
    /// left.
    pub(crate) fn decode(&self, text: &[u8]) -> Option<&[u8]> {
        let place = self.places.get(self.used.get())?;
        let mut bytes = [0; DECODED_BYTES_MAX];
        // A key that is not valid takes no place.
        let len = base64::decode(text, &mut bytes)?.len();
        self.used.set(self.used.get() + 1);
        // It is empty: a place is taken once until `clear`.
        let decoded = place.get_or_init(|| DecodedKey { bytes, len });
        Some(&decoded.bytes[..decoded.len])
    }

    /// Takes a key that was decoded before; `None` if there is no room left.
    pub(crate) fn keep(&self, key: &[u8]) -> Option<&[u8]> {
        let place = self.places.get(self.used.get())?;
        let mut bytes = [0; DECODED_BYTES_MAX];
        herdwick_mem::copy(bytes.get_mut(..key.len())?, key);
        self.used.set(self.used.get() + 1);
        let len = key.len();
        let decoded = place.get_or_init(|| DecodedKey { bytes, len });
        Some(&decoded.bytes[..decoded.len])
    }

    /// Removes the keys.
    pub fn clear(&mut self) {
        // Those behind are empty.
        for place in &mut self.places[..self.used.get()] {
            place.take();
        }
        self.used.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_keys_stay_valid_until_the_room_is_full() {
        let mut room = KeyRoom::new(2);
        for _ in 0..2 {
            assert_eq!(room.decode(b"Zm9"), None, "invalid, so it takes no room");
            let first = room.decode(b"Zm9v");
            let second = room.decode(b"YmFy");
            assert_eq!((first, second), (Some(&b"foo"[..]), Some(&b"bar"[..])));
            assert_eq!(room.decode(b"Zm9v"), None, "full");
            room.clear();
        }
    }
}
