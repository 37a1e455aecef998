//! How often an item was used, as its header records it: a power of two, and whether it was used since it
//! was stored or copied. Used, but never: it was not read before it was copied.

use herdwick_layout::item::bit;

/// The weight of one use.
pub(crate) const USE: u32 = 2;

/// Returns what the uses of an item count for: half as much if there was none since it was copied. An
/// item that was never used has no weight of its own; its segment's kind decides.
#[inline]
pub(crate) fn weight(bits: u8) -> u32 {
    match (bit::level(bits), bits & bit::USED != 0) {
        (0, _) => 0,
        (level, true) => USE << (level - 1),
        (level, false) => (USE << (level - 1)) / 2,
    }
}

/// Returns the bits of an item after one more use. The level rises with a probability of one in the uses
/// that lie between it and the next; `draw` returns 32 random bits.
#[inline]
pub(crate) fn after_use(bits: u8, draw: impl FnOnce() -> u32) -> u8 {
    let level = bit::level(bits);
    let rises = match level {
        0 | 1 => true,
        bit::LEVEL_MAX => false,
        // The level stands for 2^(level - 1) uses: one in as many raises it.
        level => draw() >> (u32::BITS - u32::from(level - 1)) == 0,
    };
    bit::with_level(bits, level + u8::from(rises)) | bit::USED
}

/// Returns whether an item has no uses, and may have some yet.
#[inline]
pub(crate) fn is_unused(bits: u8) -> bool {
    bits & (bit::LEVEL | bit::USED) == 0
}

/// Returns whether an item was read, as far as its bits still tell: those of an item that was replaced by a value of
/// another size, and then copied, do not.
#[inline]
pub(crate) fn was_used(bits: u8) -> bool {
    bits & (bit::LEVEL | bit::FETCHED) != 0
}

/// Returns whether an item was copied although it was never read, and was not read since.
#[inline]
pub(crate) fn is_unread_copy(bits: u8) -> bool {
    bits & (bit::LEVEL | bit::USED) == bit::USED
}

/// Returns the bits of the first copy of an item: as [`after_copy`], with a mark if it was never read.
#[inline]
pub(crate) fn after_first_copy(bits: u8) -> u8 {
    if is_unused(bits) && bits & bit::FETCHED == 0 {
        bits | bit::USED
    } else {
        after_copy(bits)
    }
}

/// Returns the bits of a copy: half of the uses; none if there was none since the last copy, so that what
/// was used much and is not any more goes soon.
#[inline]
pub(crate) fn after_copy(bits: u8) -> u8 {
    if is_unread_copy(bits) {
        return bits;
    }
    let level = if bits & bit::USED == 0 {
        0
    } else {
        bit::level(bits).saturating_sub(1)
    };
    bit::with_level(bits, level) & !bit::USED
}

#[cfg(test)]
mod tests {
    use herdwick_check::Rng;

    use super::*;

    /// The level is the logarithm of the uses, within a factor of two in the mean of many items.
    #[test]
    fn level_follows_the_logarithm_of_the_uses() {
        let mut rng = Rng::new(1);
        for uses in [1u32, 2, 4, 8, 16, 32] {
            let items = 2_000;
            let total: u64 = (0..items)
                .map(|_| {
                    let used = |bits, _| after_use(bits, || rng.bits() as u32);
                    u64::from(weight((0..uses).fold(bit::FETCHED, used)))
                })
                .sum();
            let mean = total as f64 / f64::from(items) / f64::from(USE);
            let expected = f64::from(uses);
            assert!(
                (expected / 2.0..expected * 2.0).contains(&mean),
                "{uses}: {mean}"
            );
        }
    }

    #[test]
    fn copies_forget_half_of_the_uses_and_all_of_an_item_not_used_since() {
        let used = bit::with_level(bit::STALE, 5) | bit::USED;
        let copied = after_copy(used);
        assert_eq!((bit::level(copied), weight(copied)), (4, USE / 2 * 8));
        assert_eq!(copied & bit::STALE, bit::STALE);
        assert_eq!(weight(after_copy(copied)), 0);
        let used = after_use(copied, || u32::MAX);
        assert_eq!(weight(used), USE * 8);
    }

    #[test]
    fn copies_of_what_was_never_read_are_marked_until_a_use() {
        let stored = bit::STALE;
        assert!(is_unused(stored) && !is_unread_copy(stored));
        let copied = after_copy(after_first_copy(stored));
        assert!(is_unread_copy(copied) && !is_unused(copied) && weight(copied) == 0);
        assert_eq!(copied & bit::STALE, bit::STALE);
        let used = after_use(copied, || u32::MAX);
        assert_eq!(weight(used), USE);
        // One that was read before has forgotten its uses.
        let read = stored | bit::FETCHED;
        assert!(is_unused(after_first_copy(read)));
    }
}
