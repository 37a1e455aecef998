//! Region entries: what an owner shows of a region, and what a peer has checked of it.

use herdwick_fabric::{Access, Qpn, Rkey};
use herdwick_mem::{
    LINE, Span, Words,
    sync::{Ordering, fence},
};

use crate::{
    layout::{REGIONS, Side, region_word},
    pd::{File, Pd},
};

const RIGHT_READ: u64 = 1 << 32;
const RIGHT_WRITE: u64 = 1 << 33;
const RIGHT_ATOMIC: u64 = 1 << 34;

/// A region entry's place, if the region is memory with a file of its own.
pub(crate) const SHARED: u64 = 1 << 62;

/// The first word of a region entry; the serial number makes it differ from earlier ones.
pub(crate) fn entry_word(rkey: Rkey, access: Access, serial: u64) -> u64 {
    let right = |granted: bool, bit: u64| if granted { bit } else { 0 };
    u64::from(rkey.0)
        | right(access.remote_read, RIGHT_READ)
        | right(access.remote_write, RIGHT_WRITE)
        | right(access.remote_atomic, RIGHT_ATOMIC)
        | serial << 40
}

/// The right that a one-sided verb needs: its bit in an entry's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right(u64);

impl Right {
    pub(crate) const READ: Self = Self(RIGHT_READ);
    pub(crate) const WRITE: Self = Self(RIGHT_WRITE);
    pub(crate) const ATOMIC: Self = Self(RIGHT_ATOMIC);
}

/// A region of the peer, as this side last read it: copied out of the peer's control area and
/// checked against the layout, so that a false entry harms only the peer itself.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    word: u64,
    /// `None` before the first.
    span: Option<Span>,
    start: usize,
    len: u64,
    scope: u32,
}

impl Opened {
    pub(crate) const NOTHING: Self = Self {
        word: 0,
        span: None,
        start: 0,
        len: 0,
        scope: 0,
    };

    /// Returns memory and offset of the `len` bytes at `addr` of the region under `rkey`, for a queue
    /// pair connected with `peer`. `None` if rkey, range, right or scope is wrong.
    #[inline]
    pub(crate) fn reach(
        &mut self,
        pd: &Pd,
        rkey: Rkey,
        (addr, len): (u64, usize),
        right: Right,
        peer: Qpn,
    ) -> Option<(&Span, usize)> {
        let entry = rkey.0 as usize % REGIONS;
        let word = pd.theirs.load_acquire(region_word(entry));
        if word != self.word {
            *self = Self::check(pd, entry, word)?;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the rkey")]
        let opens = word as u32 == rkey.0 && rkey.0 != 0 && word & right.0 != 0;
        let inside = addr
            .checked_add(len as u64)
            .is_some_and(|end| end <= self.len);
        let in_scope = self.scope == 0 || self.scope == peer.0;
        if !(opens && inside && in_scope) {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "within the region, which is mapped"
        )]
        Some((self.span.as_ref()?, self.start + addr as usize))
    }

    /// Whether nothing has changed in the region's entry since [`Opened::reach`]: what was copied
    /// meanwhile was the region's.
    #[inline]
    pub(crate) fn is_current(&self, pd: &Pd, rkey: Rkey) -> bool {
        fence(Ordering::Acquire);
        pd.theirs.load(region_word(rkey.0 as usize)) == self.word
    }

    #[cold]
    fn check(pd: &Pd, entry: usize, word: u64) -> Option<Self> {
        // Seqlock: the entry counts only if its first word is the same before and after the copy.
        let [_, place, len, scope] = pd.theirs.copy_out(region_word(entry));
        fence(Ordering::Acquire);
        if pd.theirs.load(region_word(entry)) != word {
            return None;
        }
        let scope = u32::try_from(scope).ok()?;
        if place == SHARED {
            #[expect(clippy::cast_possible_truncation, reason = "the low half is the rkey")]
            let span = pd.shared.get(Rkey(word as u32))?;
            return (len <= span.len() as u64).then(|| Self {
                word,
                span: Some(span.clone()),
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
            (Side::Host, File::Up) => pd.layout.up_client(),
            (Side::Host, File::Down) => return None,
            (Side::Client, File::Up) => pd.layout.up_host(),
            (Side::Client, File::Down) => pd.layout.down_host(),
        };
        let start = usize::try_from(place & !(1 << 63)).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        let sound = start >= area.start && end <= area.end && start.is_multiple_of(LINE);
        sound.then(|| Self {
            word,
            span: Some(pd.span(file).clone()),
            start,
            len,
            scope,
        })
    }
}
