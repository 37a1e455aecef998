//! What an item that was never read counts for: how many of the items that were stored lately were read
//! afterwards, learnt for each kind.

use super::table::Kind;

/// Stored items after which older ones count half.
const MEMORY: u32 = 4096;
/// Items that were neither stored nor read, but count as if: before the first were, half of them are
/// expected to be read.
const PRIOR: (f64, f64) = (8.0, 16.0);
/// The least uses that an item without any counts for. Where it is evicted before it can be read, it would
/// never be seen to be read ...
const LEAST: f64 = 0.05;
/// ... but one that expires soon is rarely read later than others of its kind.
const LEAST_MORTAL: f64 = 0.03;
/// What a copy without uses counts for: it had some once.
const COPY: f64 = 0.2;
/// What a copy that was never read counts for: this part of what it did when it was new ...
const UNREAD: f64 = 0.7;
/// ... at most this.
const UNREAD_MAX: f64 = 0.1;

/// Items of one kind.
#[derive(Clone, Copy, Default)]
struct Count {
    stored: u32,
    read: u32,
}

/// How many stored items of each kind were read.
#[derive(Default)]
pub(super) struct Reuse([Count; Kind::ALL]);

impl Reuse {
    /// Counts an item that was stored.
    #[inline]
    pub(super) fn stored(&mut self, kind: Kind) {
        let count = &mut self.0[kind.index()];
        count.stored += 1;
        if count.stored >= MEMORY {
            count.stored /= 2;
            count.read /= 2;
        }
    }

    /// Counts an item that was stored, or counted again, in one kind as one of another, into which it was copied:
    /// its next first use is counted there. `read` if its first one was counted already.
    pub(super) fn moved(&mut self, from: Kind, to: Kind, read: bool) {
        // What a copy of an item that lasts counts for is not learnt: its kind stays the judge of it.
        if from == to || !to.is_mortal() {
            return;
        }
        let count = &mut self.0[from.index()];
        count.stored -= u32::from(!read && count.read < count.stored);
        self.stored(to);
    }

    /// Counts the first use of an item. One that was recovered is counted as stored nowhere.
    #[inline]
    pub(super) fn read(&mut self, kind: Kind) {
        let count = &mut self.0[kind.index()];
        count.read += u32::from(count.read < count.stored);
    }

    /// Returns the uses that an item of this kind counts for before its first one.
    pub(super) fn expected(&self, kind: Kind) -> f64 {
        if kind.is_copied() {
            return COPY;
        }
        let Count { stored, read } = self.0[kind.index()];
        let part = (f64::from(read) + PRIOR.0) / (f64::from(stored) + PRIOR.1);
        let least = if kind.is_mortal() {
            LEAST_MORTAL
        } else {
            LEAST
        };
        part.clamp(least, 1.0)
    }

    /// Returns the uses that an item among those of this kind counts for that was copied although it was
    /// never read: less than a new one, so that where nothing is read the oldest go first.
    pub(super) fn expected_unread(&self, kind: Kind) -> f64 {
        match kind {
            kind if kind.is_mortal() => self.expected(kind),
            Kind::OLD_LINED => (UNREAD * self.expected(Kind::YOUNG_LINED)).min(UNREAD_MAX),
            _ => (UNREAD * self.expected(Kind::YOUNG)).min(UNREAD_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_which_no_item_is_read_are_expected_to_stay_so() {
        let mut reuse = Reuse::default();
        let mortal = Kind(Kind::MORTAL);
        assert!((reuse.expected(Kind::YOUNG) - 0.5).abs() < 0.01);
        for n in 0..10_000 {
            reuse.stored(Kind::YOUNG);
            if n % 2 == 0 {
                reuse.read(Kind::YOUNG);
            }
            reuse.stored(mortal);
        }
        assert!((reuse.expected(Kind::YOUNG) - 0.5).abs() < 0.02);
        assert!(reuse.expected(mortal) <= LEAST_MORTAL);
        for _ in 0..10_000 {
            reuse.stored(Kind::YOUNG);
        }
        assert!(reuse.expected(Kind::YOUNG) <= LEAST);
        assert!((reuse.expected(Kind::OLD) - COPY).abs() < f64::EPSILON);
        assert!(reuse.expected_unread(Kind::OLD) < reuse.expected(Kind::YOUNG));
    }

    /// Items are copied into the kinds of those that expire sooner, and used there.
    #[test]
    fn no_more_items_are_read_than_stored() {
        let (mut reuse, mortal) = (Reuse::default(), Kind(Kind::MORTAL));
        for _ in 0..10_000 {
            reuse.read(mortal);
        }
        assert!((reuse.expected(mortal) - 0.5).abs() < 0.01);
        reuse.stored(mortal);
        for _ in 0..10_000 {
            reuse.read(mortal);
        }
        assert!(reuse.expected(mortal) < 0.55);
    }
}
