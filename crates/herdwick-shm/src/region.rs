//! A peer's regions, as this side has checked their entries.

use herdwick_fabric::{Qpn, Rkey, Windows};
use herdwick_mem::{
    LINE, Span, Words,
    sync::{Ordering, fence},
};

use crate::{
    entry::{AccessRight, SHARED},
    files::File,
    layout::{DomainSide, REGIONS, region_word},
    pd::Pd,
};

/// A region of the peer, as this side last read it: copied out of the peer's control area and
/// checked against the layout, so that a false entry harms only the peer itself.
#[derive(Clone, Debug)]
pub(crate) struct PeerRegion {
    word: u64,
    /// `None` before the first.
    span: Option<Span>,
    windows: Option<Windows>,
    start: usize,
    len: u64,
    scope: u32,
}

/// A region of the peer that was reached.
pub(crate) struct WholeRegion<'a> {
    pub(crate) span: &'a Span,
    start: usize,
    len: u64,
}

impl WholeRegion<'_> {
    /// Returns the offset in the memory of the `len` bytes at `addr`; `None` if they are not all in the region.
    #[inline(always)]
    pub(crate) fn offset(&self, addr: u64, len: usize) -> Option<usize> {
        let end = addr.checked_add(len as u64)?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "within the region, which is mapped"
        )]
        (end <= self.len).then_some(self.start + addr as usize)
    }
}

impl PeerRegion {
    pub(crate) const NOTHING: Self = Self {
        word: 0,
        span: None,
        windows: None,
        start: 0,
        len: 0,
        scope: 0,
    };

    /// Returns memory and offset of the `len` bytes at `addr` of the region under `rkey`, for a queue
    /// pair connected with `peer`. `None` if rkey, range, right or scope is wrong.
    #[inline(always)]
    pub(crate) fn reach(
        &mut self,
        pd: &Pd,
        rkey: Rkey,
        (addr, len): (u64, usize),
        right: AccessRight,
        peer: Qpn,
    ) -> Option<(&Span, usize)> {
        let entry = rkey.0 as usize % REGIONS;
        // Pairs with the release by which the owner publishes an entry after its other words.
        let word = pd.theirs.load_acquire(region_word(entry));
        // One load, and no check, while the entry has not changed.
        if word != self.word {
            *self = Self::check(pd, entry, word)?;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the rkey")]
        // 0 is a closed entry's word, so no rkey may match it.
        let opens = word as u32 == rkey.0 && rkey.0 != 0 && word & right.0 != 0;
        let inside = addr
            .checked_add(len as u64)
            .is_some_and(|end| end <= self.len);
        let in_scope = self.scope == 0 || self.scope == peer.0;
        if !(opens && inside && in_scope) {
            return None;
        }
        let span = self.span.as_ref()?;
        // The table is read at each access, since its owner binds windows anew with one store.
        if let Some(windows) = &self.windows {
            return Some((span, windows.resolve(span, addr, len)?));
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "within the region, which is mapped"
        )]
        Some((span, self.start + addr as usize))
    }

    /// As [`PeerRegion::reach`], of all bytes; `None` also if the region has windows.
    #[inline(always)]
    pub(crate) fn reach_whole(
        &mut self,
        pd: &Pd,
        rkey: Rkey,
        right: AccessRight,
        peer: Qpn,
    ) -> Option<WholeRegion<'_>> {
        self.reach(pd, rkey, (0, 0), right, peer)?;
        if self.windows.is_some() {
            return None;
        }
        Some(WholeRegion {
            span: self.span.as_ref()?,
            start: self.start,
            len: self.len,
        })
    }

    /// Whether nothing has changed in the region's entry since [`PeerRegion::reach`]: what was copied
    /// meanwhile was the region's.
    #[inline]
    pub(crate) fn is_current(&self, pd: &Pd, rkey: Rkey) -> bool {
        // What was copied was loaded before this check, as in a sequence lock.
        fence(Ordering::Acquire);
        pd.theirs.load(region_word(rkey.0 as usize)) == self.word
    }

    #[cold]
    fn check(pd: &Pd, entry: usize, word: u64) -> Option<Self> {
        // Seqlock: the entry counts only if its first word is the same before and after the copy.
        let [_, place, len, scope] = pd.theirs.copy_out(region_word(entry));
        // The loads of the copy come before the load below, which pairs with the owner's releases.
        fence(Ordering::Acquire);
        // The owner changes it just now: the request fails as with a wrong rkey.
        if pd.theirs.load(region_word(entry)) != word {
            return None;
        }
        let scope = u32::try_from(scope).ok()?;
        if place == SHARED {
            #[expect(clippy::cast_possible_truncation, reason = "the low half is the rkey")]
            // Only what this side has imported under the same rkey: the entry names no file.
            let shared = pd.shared.get(Rkey(word as u32))?;
            // The host's entry may be false; a range beyond the mapping would panic.
            return (len <= shared.region_len() as u64).then(|| Self {
                word,
                span: Some(shared.span.clone()),
                windows: shared.windows,
                start: 0,
                len,
                scope,
            });
        }
        let file = if place >> 63 == 0 {
            File::Up
        } else {
            File::Down
        };
        let area = match (pd.side, file) {
            (DomainSide::Host, File::Up) => pd.layout.up_client(),
            // A client cannot write `down`, so it has no region there.
            (DomainSide::Host, File::Down) => return None,
            (DomainSide::Client, File::Up) => pd.layout.up_host(),
            (DomainSide::Client, File::Down) => pd.layout.down_host(),
        };
        let start = usize::try_from(place & !(1 << 63)).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        // The owner allocates whole lines; word accesses rely on the alignment.
        let sound = start >= area.start && end <= area.end && start.is_multiple_of(LINE);
        sound.then(|| Self {
            word,
            span: Some(pd.span(file).clone()),
            windows: None,
            start,
            len,
            scope,
        })
    }
}
