//! Policies that rank popular keys by a number of each, and evict the worst of a few: by frequency alone, or
//! the largest item.

use herdwick_mem::prefetch_write;
use herdwick_request::KeyHash;

use crate::{
    members::Members,
    popularity::{LOOKED_AT, Limits, Popularity, Seen},
    window::Window,
};

/// Popular keys that are compared for an eviction.
const SAMPLE: u32 = 8;

/// Admission by the window; a key takes the place of the worst of [`SAMPLE`] others, if that is worse than
/// itself. Which ones are compared goes round.
#[derive(Debug)]
pub(crate) struct Sampled {
    members: Members,
    /// By slot; higher is better.
    ranks: Box<[u32]>,
    window: Window,
    limits: Limits,
    ranking: Ranking,
    /// The slot that is compared next.
    hand: u32,
    /// Reads until all ranks by frequency are halved.
    left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ranking {
    /// How often a key was read, halved each time the window has passed.
    Frequency,
    /// The smaller the better.
    Size,
}

impl Sampled {
    pub(crate) fn by_frequency(limits: Limits) -> Self {
        Self::new(limits, Ranking::Frequency)
    }

    pub(crate) fn by_size(limits: Limits) -> Self {
        Self::new(limits, Ranking::Size)
    }

    fn new(limits: Limits, ranking: Ranking) -> Self {
        Self {
            members: Members::new(limits.keys),
            ranks: vec![0; limits.keys].into(),
            window: Window::new(limits.window),
            limits,
            ranking,
            hand: 0,
            left: limits.window.max(1),
        }
    }

    pub(crate) fn set_bytes(limits: Limits) -> usize {
        Members::bytes(limits.keys) + limits.keys * size_of::<u32>()
    }

    /// Halves all ranks each time the window has passed.
    #[inline]
    fn age(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.limits.window.max(1);
            if self.ranking == Ranking::Frequency {
                self.ranks.iter_mut().for_each(|rank| *rank /= 2);
            }
        }
    }

    /// Returns the slot to be taken from a key that is worse than `rank`. The set is full.
    fn victim(&mut self, rank: u32) -> Option<u32> {
        let count = self.ranks.len() as u32;
        // Round robin instead of random: no random numbers, and each slot has its turn.
        let sample = (0..SAMPLE.min(count)).map(|n| (self.hand + n) % count);
        let worst = sample.min_by_key(|slot| self.ranks[*slot as usize]);
        self.hand = (self.hand + SAMPLE) % count;
        worst.filter(|slot| self.ranks[*slot as usize] < rank)
    }
}

impl Popularity for Sampled {
    fn read(&mut self, hash: KeyHash, bytes: usize, may_admit: bool) -> Seen {
        self.age();
        // Smaller items rank higher.
        let size = u32::MAX - u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Some(slot) = self.members.find(hash) {
            self.window.pass();
            let rank = &mut self.ranks[slot as usize];
            *rank = match self.ranking {
                Ranking::Frequency => rank.saturating_add(1),
                Ranking::Size => size,
            };
            return Seen::Popular { slot };
        }
        let counted = self.window.count(hash);
        if counted < self.limits.reads || !may_admit {
            return Seen::Unpopular;
        }
        let rank = match self.ranking {
            Ranking::Frequency => counted.into(),
            Ranking::Size => size,
        };
        let evicted = self.members.is_full();
        if evicted {
            let Some(victim) = self.victim(rank) else {
                return Seen::Unpopular;
            };
            self.members.remove(victim);
        }
        let Some(slot) = self.members.insert(hash) else {
            return Seen::Unpopular;
        };
        self.ranks[slot as usize] = rank;
        Seen::Admitted { slot, evicted }
    }

    fn other(&mut self) {
        self.age();
        self.window.pass();
    }

    fn find(&self, hash: KeyHash) -> Option<u32> {
        self.members.find(hash)
    }

    fn remove(&mut self, slot: u32) {
        self.members.remove(slot);
    }

    fn next_victim(&mut self, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        let (count, members) = (self.ranks.len() as u32, &self.members);
        let slots = (0..count).map(|n| (self.hand + n) % count);
        let looked_at = slots.filter(|slot| members.has(*slot)).take(LOOKED_AT);
        // The slots that are free, perhaps most of them, are passed once for all members, not in each call.
        let mut hand = self.hand;
        let looked_at = looked_at.inspect(|slot| hand = (slot + 1) % count);
        let sample = looked_at.filter(|slot| may_go(*slot)).take(SAMPLE as usize);
        let worst = sample.min_by_key(|slot| self.ranks[*slot as usize]);
        self.hand = hand;
        worst
    }

    fn clear(&mut self) {
        self.members.clear();
    }

    fn len(&self) -> usize {
        self.members.len()
    }

    fn prefetch(&self, hash: KeyHash) {
        self.members.prefetch(hash);
        self.window.prefetch(hash);
        if let Some(slot) = self.members.find(hash) {
            prefetch_write(&self.ranks, slot as usize);
        }
    }
}
