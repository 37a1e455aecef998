//! The request patterns of the cache benchmark: Zipf, Zipf with a scan, and a hot set that moves.

use herdwick_check::Rng;

use crate::{
    SEED,
    workload::{Step, Zipf},
};

/// A pattern of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Zipf .99 over all keys, reads only.
    Zipf,
    /// The same, and every fourth request is the next one of a cyclic scan over all keys.
    Scan,
    /// Nine of ten requests read or write a hot set of a twentieth of the keys, the others any key.
    /// The hot set moves by a tenth of its size after every `keys / 20` requests. One request in
    /// twenty writes.
    Shift,
}

pub(super) const PATTERNS: [Pattern; 3] = [Pattern::Zipf, Pattern::Scan, Pattern::Shift];

/// The skew of YCSB's Zipf distribution.
const THETA: f64 = 0.99;
/// The shares that [`Pattern`] describes.
const SCAN_EVERY: u64 = 4;
const HOT_PART: u64 = 20;
const HOT_OF_TEN: u64 = 9;
const MOVES_OF_SET: u64 = 10;
const WRITE_EVERY: u64 = 20;

impl Pattern {
    /// Returns its name in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zipf => "zipf",
            Self::Scan => "scan",
            Self::Shift => "shift",
        }
    }

    /// Returns its share of reads.
    pub(super) fn get_share(self) -> f64 {
        match self {
            Self::Zipf | Self::Scan => 1.0,
            Self::Shift => 1.0 - 1.0 / WRITE_EVERY as f64,
        }
    }
}

/// The endless sequence of requests of a pattern; the same in every run.
pub(super) struct Requests {
    pattern: Pattern,
    keys: u64,
    zipf: Zipf,
    rng: Rng,
    made: u64,
}

impl Requests {
    pub(super) fn new(pattern: Pattern, keys: u64) -> Self {
        Self {
            pattern,
            keys,
            zipf: Zipf::new(keys, THETA),
            rng: Rng::new(SEED),
            made: 0,
        }
    }

    /// Returns the first key of the hot set of [`Pattern::Shift`], and its number of keys.
    fn hot_set(&self) -> (u64, u64) {
        let size = (self.keys / HOT_PART).max(1);
        let moves = self.made / size;
        (moves * (size / MOVES_OF_SET).max(1), size)
    }

    fn shift(&mut self) -> Step {
        let (from, size) = self.hot_set();
        let key = if self.rng.below(10) < HOT_OF_TEN {
            (from + self.rng.below(size)) % self.keys
        } else {
            self.rng.below(self.keys)
        };
        if self.rng.below(WRITE_EVERY) == 0 {
            Step::put(key as u32)
        } else {
            Step::get(key as u32)
        }
    }
}

impl Iterator for Requests {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let step = match self.pattern {
            Pattern::Shift => self.shift(),
            Pattern::Scan if self.made.is_multiple_of(SCAN_EVERY) => {
                Step::get((self.made / SCAN_EVERY % self.keys) as u32)
            }
            Pattern::Zipf | Pattern::Scan => Step::get(self.zipf.draw(&mut self.rng) as u32),
        };
        self.made += 1;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scan_visits_every_key_in_order() {
        let scanned: Vec<u32> = Requests::new(Pattern::Scan, 50)
            .step_by(SCAN_EVERY as usize)
            .take(100)
            .map(Step::key)
            .collect();
        let expected: Vec<u32> = (0..50).chain(0..50).collect();
        assert_eq!(scanned, expected);
    }

    #[test]
    fn hot_set_gets_its_share_of_requests_and_moves() {
        let steps: Vec<Step> = Requests::new(Pattern::Shift, 1000).take(100_000).collect();
        let share_in = |steps: &[Step], from: u32| {
            let inside = |step: &&Step| (from..from + 50).contains(&step.key());
            steps.iter().filter(inside).count() as f64 / steps.len() as f64
        };
        let at_first = share_in(&steps[..50], 0);
        assert!(at_first > 0.75, "{at_first}");
        // The set moves every 50 requests by 5 keys: after 5,000 requests it begins at 500.
        let later = share_in(&steps[5_000..5_050], 500);
        assert!(later > 0.75, "{later}");
        let writes = steps.iter().filter(|step| step.is_put()).count();
        assert!((4_500..5_500).contains(&writes), "{writes}");
    }
}
