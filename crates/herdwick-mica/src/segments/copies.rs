//! The state of cleaning between requests: the segment that is walked, and the copies that are allowed.

/// Bytes of copies that a cache may make for each byte stored ...
pub(crate) const COPY_RATE: usize = 3;
/// ... of which unused ones accumulate up to so many segments.
const COPIES_MAX: isize = 4;

/// The part of the bytes walked over that is kept: the more, the better the choice of what goes, and the
/// more copies.
const KEPT: f64 = 0.6;
/// What an item has to be worth is doubled or so while one part in so many of the store is walked over and
/// all of it is kept, ...
const STEPS: usize = 128;
/// ... but not by one item, ...
const STEP_MAX: f64 = 0.5;
/// ... nor is it less or more than the mean by more than this, as a logarithm.
const EXCESS_MAX: f64 = 4.0;

/// The segment that is being walked.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    pub(super) number: usize,
    pub(super) at: usize,
    pub(super) end: usize,
    /// Whether its segments are free only when all of its items are gone.
    pub(super) whole: bool,
    /// Bytes stored since the uses of its items are counted.
    pub(super) age: u64,
}

/// The bytes of copies that are allowed, and what an item has to be worth.
#[derive(Default)]
pub(crate) struct Copies {
    pub(super) allowed: isize,
    /// Uses of the items that were walked over, their bytes times their ages, and their bytes:
    /// recent ones in full.
    uses: f64,
    volume: f64,
    bytes: usize,
    /// What an item has to be worth beyond the mean, as a natural logarithm.
    excess: f64,
    /// Bytes that were moved since the start for adjacent segments to be free.
    pub(super) gathered: usize,
}

impl Copies {
    pub(crate) fn earn(&mut self, len: usize, segment: usize) {
        let most = segment as isize * COPIES_MAX;
        self.allowed = (self.allowed + (len * COPY_RATE) as isize).min(most);
    }

    /// Returns the uses a byte and byte stored above which an item is worth a copy.
    pub(super) fn usual(&self) -> f64 {
        if self.volume > 0.0 {
            self.excess.exp() * self.uses / self.volume
        } else {
            // Nothing was walked over yet: whatever has a use is worth a copy.
            f64::MIN_POSITIVE
        }
    }

    /// Records an item that was walked over. Returns whether it is worth a copy: so many are that
    /// [`KEPT`] of the bytes are kept.
    pub(super) fn weigh(&mut self, uses: f64, len: usize, age: u64, usable: usize) -> bool {
        let volume = len as f64 * age as f64;
        self.uses += uses;
        self.volume += volume;
        self.bytes += len;
        // Halved after an eighth of the store: the mean follows a load that changes.
        if self.bytes > usable / 8 {
            self.bytes /= 2;
            self.uses /= 2.0;
            self.volume /= 2.0;
        }
        let worth = uses > self.usual() * volume;
        let step = (len * STEPS) as f64 / usable as f64;
        let step = step.min(STEP_MAX);
        self.excess += if worth {
            // The two steps are in balance when a part `KEPT` of the bytes is worth a copy.
            step * (1.0 - KEPT)
        } else {
            -step * KEPT
        };
        self.excess = self.excess.clamp(-EXCESS_MAX, EXCESS_MAX);
        // The bar is moved by what an item is worth, not by whether it may be copied now.
        self.allowed > 0 && worth
    }
}
