//! What a client of Memcached/RDMA knows: the stags of keys, and whether a chunk that it READ is an item.

use herdwick_fabric::{Remote, Windows};
use herdwick_layout::chunk::{ChunkHeader, HEAD_STAG, Mistrust, StoreHead, judge};
use herdwick_read::{Fetch, Fetched, Judge, Step, Verdict};
use herdwick_request::KeyHash;
use herdwick_slab::Tagged;

/// The stags that a client knows: one place for each key, which keys with the same bits of their hash share.
pub(super) struct StagTable {
    places: Vec<Option<(KeyHash, Tagged)>>,
}

impl StagTable {
    pub(super) fn new(keys: u64) -> Self {
        // Twice as many, so that few keys share a place.
        let places = (2 * keys).next_power_of_two() as usize;
        Self {
            places: vec![None; places],
        }
    }

    fn place(&mut self, hash: KeyHash) -> &mut Option<(KeyHash, Tagged)> {
        let index = hash.0 as usize & (self.places.len() - 1);
        &mut self.places[index]
    }

    pub(super) fn get(&mut self, hash: KeyHash) -> Option<Tagged> {
        // Another key may have the place.
        let known = self.place(hash).filter(|(of, _)| *of == hash);
        known.map(|(_, tagged)| tagged)
    }

    pub(super) fn set(&mut self, hash: KeyHash, tagged: Option<Tagged>) {
        *self.place(hash) = tagged.map(|tagged| (hash, tagged));
    }
}

/// A GET that READs.
pub(super) struct Lookup {
    pub(super) token: u64,
    pub(super) hash: KeyHash,
    pub(super) key: Vec<u8>,
    pub(super) stag: u32,
}

/// Judges chunks.
pub(super) struct Chunks {
    pub(super) region: Remote,
    pub(super) windows: Windows,
}

impl Chunks {
    /// Returns the READs of the first `len` bytes that a stag shows, and of the head behind them.
    pub(super) fn step(&self, stag: u32, len: usize) -> Step {
        let at = |stag| self.region.offset(self.windows.addr(stag));
        // No window is longer.
        let len = len.min(1 << self.windows.shift());
        let from = at(stag);
        Step::one(Fetch { from, len }).and(Fetch {
            from: at(HEAD_STAG),
            len: StoreHead::BYTES,
        })
    }
}

impl Judge for Chunks {
    type Lookup = Lookup;

    #[inline]
    fn judge(&mut self, lookup: &mut Lookup, read: &Fetched<'_>) -> Verdict {
        let Some(head) = StoreHead::read(read.part(1)) else {
            return Verdict::Unsure;
        };
        match judge(read.part(0), head, lookup.stag, &lookup.key, None) {
            Ok(header) => Verdict::Found(read.within(0, value_of(&header))),
            Err(Mistrust::Torn) => Verdict::Torn,
            Err(Mistrust::Longer(len)) => Verdict::Stale(self.step(lookup.stag, len)),
            Err(Mistrust::OtherKey | Mistrust::Expired | Mistrust::Stale) => Verdict::Unsure,
        }
    }
}

fn value_of(header: &ChunkHeader) -> std::ops::Range<usize> {
    header.front()..header.end()
}
