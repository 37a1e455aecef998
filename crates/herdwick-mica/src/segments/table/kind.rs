//! Which items share a segment.

use herdwick_request::{Deadline, Second};

/// The items that a segment takes. Items that will go at about the same time share segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::segments) struct Kind(pub(in crate::segments) u8);

impl Kind {
    /// Items that were stored, not copied.
    pub(in crate::segments) const YOUNG: Self = Self(0);
    /// Copies.
    pub(in crate::segments) const OLD: Self = Self(1);
    /// Reservations.
    pub(in crate::segments) const STAGED: Self = Self(2);
    /// As [`Kind::YOUNG`] and [`Kind::OLD`], of items that lie within cache lines: among others they would
    /// leave gaps.
    pub(in crate::segments) const YOUNG_LINED: Self = Self(3);
    pub(in crate::segments) const OLD_LINED: Self = Self(4);
    /// The first of those for items that expire.
    pub(in crate::segments) const MORTAL: u8 = 5;
    /// Items that expire within 16 s, 64 s, and so on.
    const MORTALS: u8 = 6;
    pub(in crate::segments) const ALL: usize = (Self::MORTAL + Self::MORTALS) as usize;

    /// Returns its number, less than [`Self::ALL`].
    pub(in crate::segments) fn index(self) -> usize {
        self.0.into()
    }

    /// Returns whether it is that of copies.
    pub(in crate::segments) fn is_copied(self) -> bool {
        matches!(self, Self::OLD | Self::OLD_LINED)
    }

    /// Returns whether its items expire within hours.
    pub(in crate::segments) fn is_mortal(self) -> bool {
        self.0 >= Self::MORTAL
    }

    /// Returns every kind, that of copies first.
    pub(in crate::segments) fn all() -> impl Iterator<Item = Self> {
        let others = (0..Self::ALL as u8).map(Self);
        std::iter::once(Self::OLD).chain(others.filter(|kind| *kind != Self::OLD))
    }

    /// Returns the kind for an item with this deadline: `durable`, if it lasts for hours or longer.
    pub(super) fn of(deadline: Deadline, now: Second, durable: Self) -> Self {
        if deadline == Deadline::NEVER {
            return durable;
        }
        let left = deadline.0.saturating_sub(now.0).max(1);
        // 0 up to 15 s, 1 up to 63 s, ..
        let class = (left.ilog2() / 2).saturating_sub(1) as u8;
        if class < Self::MORTALS {
            Self(Self::MORTAL + class)
        } else {
            durable
        }
    }
}
