//! The offsets of shortcuts and size classes in the memory of a data node, and the header that holds them.

use herdwick_mem::WORD;

/// Bytes in which places are counted, and of the smallest size class.
pub const UNIT: usize = 64;
/// Size classes: 64 bytes, and powers of two up to 32 KiB.
pub const CLASSES: usize = 10;
/// Versions of an entry: they are counted modulo this, or modulo less ([`Geometry::versions`]).
pub const VERSIONS_MAX: u16 = 1 << 14;
/// Most units: places have 32 bits, of which the last value means a closed chain.
const UNITS_MAX: u64 = u32::MAX as u64;
/// Most keys.
pub const SLOTS_MAX: u32 = 1 << 30;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 2 * UNIT;
/// The first word of the header, of this layout: "CLOVER", and its number.
const MAGIC: u64 = u64::from_le_bytes(*b"CLOVER\x00\x01");
/// Words of the header that hold the dimensions.
pub const HEADER_WORDS: usize = 3 + CLASSES;

const _: () = assert!(HEADER_WORDS * WORD <= HEADER_BYTES);

/// Returns the size class of an entry of `len` bytes; `None` if it is longer than the largest.
#[inline]
#[must_use]
pub fn class_of_len(len: usize) -> Option<usize> {
    let class = len.div_ceil(UNIT).next_power_of_two().trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

/// Dimensions of the memory; the same on all data nodes of a metadata server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Shortcuts: most keys.
    pub slots: u32,
    /// Entries of each size class.
    pub entries: [u32; CLASSES],
    /// Uses of an entry before its version is 0 again: 2 to [`VERSIONS_MAX`].
    pub versions: u16,
}

/// Dimensions that no memory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGeometry {
    /// The first word is another.
    #[error("the memory is not Clover's, or of another version of it")]
    Magic,
    /// Another version of this program made it, or someone wrote over it.
    #[error("the memory's dimensions make no sense")]
    Absurd,
}

impl Geometry {
    /// Checks the dimensions.
    ///
    /// # Errors
    /// [`BadGeometry::Absurd`].
    pub fn check(&self) -> Result<(), BadGeometry> {
        let (slots, versions) = (1..=SLOTS_MAX, 2..=VERSIONS_MAX);
        let sized = slots.contains(&self.slots) && versions.contains(&self.versions);
        let units = self.units().filter(|units| *units < UNITS_MAX);
        match sized && units.is_some() {
            true => Ok(()),
            false => Err(BadGeometry::Absurd),
        }
    }

    /// Returns the units of the whole memory.
    fn units(&self) -> Option<u64> {
        let entries = self.entries.iter().enumerate();
        let mut units = entries.map(|(class, count)| u64::from(*count) << class);
        let areas = units.try_fold(0_u64, u64::checked_add);
        areas?.checked_add(self.first_unit())
    }

    /// Returns the unit at which the areas begin.
    fn first_unit(&self) -> u64 {
        let shortcuts = u64::from(self.slots) * WORD as u64;
        (HEADER_BYTES as u64 + shortcuts).div_ceil(UNIT as u64)
    }

    /// Returns the bytes of the memory.
    ///
    /// # Errors
    /// As [`Geometry::check`].
    pub fn bytes(&self) -> Result<usize, BadGeometry> {
        self.check()?;
        let bytes = self
            .units()
            .and_then(|units| units.checked_mul(UNIT as u64));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or(BadGeometry::Absurd)
    }

    /// Returns the first byte of a key's shortcut.
    #[inline]
    #[must_use]
    pub fn shortcut(&self, slot: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(slot) * WORD as u64
    }

    /// Returns the number of entries of all classes.
    #[must_use]
    pub fn count(&self) -> u32 {
        // Fewer than 2^32: each has at least one unit (`check`).
        self.entries.iter().sum()
    }

    /// Returns the size class and the number of the entry that begins at this unit; `None` if none
    /// does. Entries are numbered from class 0 on.
    #[inline]
    #[must_use]
    pub fn entry_at(&self, target: u32) -> Option<(usize, u32)> {
        let mut rest = u64::from(target).checked_sub(self.first_unit())?;
        let mut before = 0;
        for (class, count) in self.entries.iter().enumerate() {
            let units = u64::from(*count) << class;
            if rest < units {
                // A place between two entries is none: links are read from memory that clients
                // write.
                let aligned = rest.trailing_zeros() as usize >= class || rest == 0;
                return aligned.then_some((class, before + (rest >> class) as u32));
            }
            (rest, before) = (rest - units, before + count);
        }
        None
    }

    /// Returns the size class of the entry that begins at this unit.
    #[inline]
    #[must_use]
    pub fn class_at(&self, target: u32) -> Option<usize> {
        self.entry_at(target).map(|(class, _)| class)
    }

    /// Returns the first unit of an entry by its number.
    ///
    /// # Panics
    /// When there are fewer entries.
    #[must_use]
    pub fn target_of(&self, number: u32) -> u32 {
        let (mut unit, mut rest) = (self.first_unit(), number);
        for (class, count) in self.entries.iter().enumerate() {
            if rest < *count {
                // Units are fewer than 2^32 (`check`).
                return (unit + (u64::from(rest) << class)) as u32;
            }
            unit += u64::from(*count) << class;
            rest -= count;
        }
        panic!("entry {number} of {}", self.count());
    }

    /// Returns the bytes of the largest size class that has entries.
    #[must_use]
    pub fn largest(&self) -> usize {
        let class = self.entries.iter().rposition(|count| *count > 0);
        UNIT << class.unwrap_or(0)
    }

    /// Returns the words of the header.
    #[must_use]
    pub fn words(&self) -> [u64; HEADER_WORDS] {
        let mut words = [0; HEADER_WORDS];
        words[..3].copy_from_slice(&[MAGIC, self.slots.into(), self.versions.into()]);
        for (word, count) in words[3..].iter_mut().zip(self.entries) {
            *word = count.into();
        }
        words
    }

    /// Parses a header.
    ///
    /// # Errors
    /// [`BadGeometry`].
    pub fn of(words: &[u64; HEADER_WORDS]) -> Result<Self, BadGeometry> {
        if words[0] != MAGIC {
            return Err(BadGeometry::Magic);
        }
        let number = |word: u64| u32::try_from(word).map_err(|_| BadGeometry::Absurd);
        let mut geometry = Self {
            slots: number(words[1])?,
            entries: [0; CLASSES],
            versions: u16::try_from(words[2]).map_err(|_| BadGeometry::Absurd)?,
        };
        for (count, word) in geometry.entries.iter_mut().zip(&words[3..]) {
            *count = number(*word)?;
        }
        geometry.check()?;
        Ok(geometry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entries_lie_one_behind_the_other(
            slots in 1..1000_u32,
            entries in prop::array::uniform10(0..6_u32),
        ) {
            let geometry = Geometry { slots, entries, versions: 2 };
            let bytes = geometry.bytes().unwrap() as u64;
            prop_assert_eq!(Geometry::of(&geometry.words()), Ok(geometry));
            let mut end = geometry.shortcut(slots).next_multiple_of(UNIT as u64);
            for number in 0..geometry.count() {
                let target = geometry.target_of(number);
                let (class, found) = geometry.entry_at(target).unwrap();
                prop_assert_eq!((found, u64::from(target) * UNIT as u64), (number, end));
                for inside in 1..1 << class {
                    prop_assert_eq!(geometry.entry_at(target + inside), None);
                }
                end += (UNIT << class) as u64;
            }
            prop_assert_eq!(end, bytes);
            prop_assert_eq!(geometry.entry_at((end / UNIT as u64) as u32), None);
            prop_assert_eq!(geometry.entry_at(0), None);
        }

        #[test]
        fn any_header_is_refused_or_makes_sense(mut words in any::<[u64; HEADER_WORDS]>(), small in any::<bool>()) {
            words[0] = MAGIC;
            if small {
                for word in &mut words[1..] {
                    *word &= 0x3fff_ffff;
                }
            }
            if let Ok(geometry) = Geometry::of(&words) {
                prop_assert!(geometry.bytes().is_ok());
            }
        }
    }

    #[test]
    fn classes_are_powers_of_two() {
        let classes = [1, 64, 65, 128, 129, 32 << 10, (32 << 10) + 1].map(class_of_len);
        let expected = [Some(0), Some(0), Some(1), Some(1), Some(2), Some(9), None];
        assert_eq!(classes, expected);
    }
}
