//! The built-in traces of the cache benchmark: one table, each row a generated trace.

use herdwick_check::Rng;

use crate::{SEED, workload::Zipf};

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Reads the key; a miss stores it with the request's size and time to live.
    Get,
    /// Stores the key.
    Set,
    /// Appends `size` bytes if the key is held.
    Append,
    /// Deletes the key.
    Delete,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Time of the request, in seconds of the trace's own time.
    pub(super) second: u32,
    pub(super) key: u64,
    /// Bytes of the value.
    pub(super) size: u32,
    /// Time to live of a stored item, in seconds; 0: unlimited.
    pub(super) ttl: u32,
    pub(super) op: Op,
}

/// A generated trace.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Number of keys of its Zipf distribution.
    keys: u64,
    /// Requests per key.
    per_key: u64,
    /// Requests per second of the trace's time.
    per_second: u64,
    /// Of its random numbers.
    seed: u64,
    /// Sizes of memory, in percent of the peak size of a cache that never evicts.
    pub(super) rooms: [u64; 3],
    step: fn(&mut Source) -> Request,
}

/// Default sizes of memory.
pub(super) const ROOMS: [u64; 3] = [5, 10, 30];

const ROW: Row = Row {
    name: "",
    keys: 80_000,
    per_key: 10,
    per_second: 10_000,
    seed: SEED,
    rooms: ROOMS,
    step: |s| s.get(400),
};

/// Values rewritten with other sizes; half of the requests read. The live items take the percentage
/// of the memory that is in the name.
const REWRITE: Row = Row {
    keys: 40_000,
    per_key: 20,
    step: |s| {
        let (key, size) = (s.any(), s.between(500, 1500));
        s.set_one_in(2, key, size)
    },
    ..ROW
};

/// Few keys with large values, 1 to 64 kB in the rows that use it.
const LARGE: Row = Row {
    keys: 8_000,
    per_key: 40,
    ..ROW
};

pub(super) const TRACES: [Row; 20] = [
    Row {
        name: "zipf-900k",
        keys: 19_500,
        per_key: 20,
        // 10 B to 900 kB, most of them small: 218 MB in all.
        step: |s| {
            let key = s.zipf();
            s.read(key, log_uniform(10.0, 900e3, unit(key).powf(7.75)))
        },
        ..ROW
    },
    Row {
        name: "rewrite-55",
        rooms: [182; 3],
        ..REWRITE
    },
    Row {
        name: "rewrite-65",
        rooms: [154; 3],
        ..REWRITE
    },
    Row {
        name: "rewrite-75",
        rooms: [133; 3],
        ..REWRITE
    },
    Row {
        name: "ttl-beside",
        keys: 10_000,
        per_key: 60,
        per_second: 1_000,
        seed: SEED,
        rooms: [60, 80, 110],
        // Every other request stores a new key with a time to live of 20 s: 500 per second, 10,000
        // live at a time.
        step: |s| match s.at % 2 {
            0 => Request {
                op: Op::Set,
                ttl: 20,
                ..s.read(s.fresh(), 1000)
            },
            _ => s.get_any(1000),
        },
    },
    Row {
        name: "zipf-64k",
        step: |s| {
            let key = s.zipf();
            s.read(key, log_uniform(1e3, 64e3, unit(key)))
        },
        ..LARGE
    },
    Row {
        name: "scan-64k",
        step: |s| {
            let key = if s.at % 4 == 0 {
                s.at / 4 % s.keys
            } else {
                s.zipf()
            };
            s.read(key, log_uniform(1e3, 64e3, unit(key)))
        },
        ..LARGE
    },
    Row {
        name: "shift-64k",
        step: |s| {
            let key = s.hot();
            s.read(key, log_uniform(1e3, 64e3, unit(key)))
        },
        ..LARGE
    },
    Row {
        name: "lognormal",
        step: |s| {
            let key = s.zipf();
            s.read(key, lognormal(400.0, 1.5, key))
        },
        ..ROW
    },
    Row {
        name: "bimodal",
        step: |s| {
            let key = s.zipf();
            s.read(key, if unit(key) < 0.9 { 100 } else { 10_000 })
        },
        ..ROW
    },
    Row {
        name: "one-hit",
        step: |s| match s.at % 2 {
            0 => s.read(s.fresh(), 500),
            _ => s.get(500),
        },
        ..ROW
    },
    Row {
        name: "hot-moves",
        step: |s| {
            let key = s.hot();
            s.read(key, 300)
        },
        ..ROW
    },
    Row {
        name: "size-drift",
        // Within four hours of trace time values grow from 200 B to 2 kB, and the hot keys change.
        per_second: 60,
        step: |s| {
            let (key, grown) = (s.zipf() + s.at / 20, 200 + 1800 * s.at / s.requests);
            s.read(key, grown as u32)
        },
        ..ROW
    },
    Row {
        name: "ttl-mix",
        per_second: 30,
        // Times to live from 5 seconds to two weeks.
        step: |s| Request {
            ttl: log_uniform(5.0, 1.2e6, s.rng.unit()),
            ..s.get(500)
        },
        ..ROW
    },
    Row {
        name: "write-5",
        step: |s| {
            let (key, size) = (s.zipf(), s.between(100, 4000));
            s.set_one_in(20, key, size)
        },
        ..ROW
    },
    Row {
        name: "write-50",
        step: |s| {
            let (key, size) = (s.zipf(), s.between(100, 4000));
            s.set_one_in(2, key, size)
        },
        ..ROW
    },
    Row {
        name: "append",
        step: |s| {
            let key = s.zipf();
            match s.rng.below(16) {
                0 => Request {
                    op: Op::Set,
                    ..s.read(key, 200)
                },
                1..4 => Request {
                    op: Op::Append,
                    ..s.read(key, 100)
                },
                _ => s.read(key, 200),
            }
        },
        ..ROW
    },
    Row {
        name: "delete",
        step: |s| match s.rng.below(10) {
            0 => Request {
                op: Op::Delete,
                ..s.get(500)
            },
            _ => s.get(500),
        },
        ..ROW
    },
    // No parameter of the store was chosen by the traces from here on.
    Row {
        name: "feed",
        seed: SEED + 1,
        // A new key every tenth request, read the less the older it is; one request in twenty writes an
        // edited version, of up to twice the size.
        step: |s| {
            let newest = s.at / 10;
            let age = ((1 + newest) as f64).powf(s.rng.unit()) as u64 - 1;
            let key = newest - age.min(newest);
            let size = log_uniform(50.0, 8e3, unit(key));
            let read = s.read(key, size);
            match s.rng.below(20) {
                0 => Request {
                    op: Op::Set,
                    size: s.between(size.into(), 2 * u64::from(size)),
                    ..read
                },
                _ => read,
            }
        },
        ..ROW
    },
    Row {
        name: "tenants",
        seed: SEED + 2,
        // Three users of one cache: small values by Zipf, values of 2 kB with a hot set that moves, and a
        // loop over values of 20 to 60 kB, in six, three and one of ten requests.
        step: |s| match s.rng.below(10) {
            0..6 => {
                let key = s.zipf();
                s.read(key, log_uniform(20.0, 200.0, unit(key)))
            }
            6..9 => {
                let key = s.hot();
                s.read(SECOND_USER + key, 2_000)
            }
            _ => {
                let key = THIRD_USER + s.at / 10 % (s.keys / 40).max(1);
                s.read(key, log_uniform(20e3, 60e3, unit(key)))
            }
        },
        ..ROW
    },
];

impl Row {
    /// Generates its requests, the same each time, with `1 / one_of` of its keys.
    pub(super) fn requests(&self, one_of: u64) -> Vec<Request> {
        let keys = (self.keys / one_of).max(1);
        let mut source = Source {
            rng: Rng::new(self.seed),
            zipf: Zipf::new(keys, 0.99),
            keys,
            requests: keys * self.per_key,
            at: 0,
            per_second: self.per_second,
        };
        let mut step = |at| {
            source.at = at;
            (self.step)(&mut source)
        };
        (0..keys * self.per_key).map(&mut step).collect()
    }
}

/// The state from which a row generates its requests.
pub(super) struct Source {
    rng: Rng,
    zipf: Zipf,
    keys: u64,
    requests: u64,
    /// Index of the current request.
    at: u64,
    per_second: u64,
}

/// First of the keys that are requested only once.
const FRESH: u64 = 1 << 40;
/// First keys of the second and the third user of the cache in `tenants`.
const SECOND_USER: u64 = 1 << 41;
const THIRD_USER: u64 = 1 << 42;
/// The hot set is one key in so many.
const HOT_PART: u64 = 20;

impl Source {
    fn read(&self, key: u64, size: u32) -> Request {
        let second = 1 + (self.at / self.per_second) as u32;
        let (ttl, op) = (0, Op::Get);
        Request {
            second,
            key,
            size,
            ttl,
            op,
        }
    }

    /// Returns a read of a Zipf-distributed key.
    fn get(&mut self, size: u32) -> Request {
        let key = self.zipf();
        self.read(key, size)
    }

    fn get_any(&mut self, size: u32) -> Request {
        let key = self.any();
        self.read(key, size)
    }

    /// Returns a write of `key` with probability `1 / n`, else a read.
    fn set_one_in(&mut self, n: u64, key: u64, size: u32) -> Request {
        let op = if self.rng.below(n) == 0 {
            Op::Set
        } else {
            Op::Get
        };
        Request {
            op,
            ..self.read(key, size)
        }
    }

    fn zipf(&mut self) -> u64 {
        self.zipf.draw(&mut self.rng)
    }

    fn any(&mut self) -> u64 {
        self.rng.below(self.keys)
    }

    fn fresh(&self) -> u64 {
        FRESH + self.at
    }

    /// Returns, nine of ten times, a key of a hot set of a twentieth of the keys, else any key. The
    /// hot set moves by a tenth of its size after every `keys / 20` requests.
    fn hot(&mut self) -> u64 {
        let size = (self.keys / HOT_PART).max(1);
        let from = self.at / size * (size / 10).max(1);
        match self.rng.below(10) {
            0 => self.any(),
            _ => (from + self.rng.below(size)) % self.keys,
        }
    }

    fn between(&mut self, low: u64, high: u64) -> u32 {
        (low + self.rng.below(high - low + 1)) as u32
    }
}

/// Returns a pseudo-random number in `[0, 1)` that depends on the key alone.
fn unit(key: u64) -> f64 {
    Rng::new(key ^ 0x517c_c1b7_2722_0a95).unit()
}

fn log_uniform(low: f64, high: f64, unit: f64) -> u32 {
    (low * (high / low).powf(unit)) as u32
}

/// Returns a log-normal size that depends on the key alone (Box-Muller), clamped to 8 B .. 900 kB.
fn lognormal(median: f64, sigma: f64, key: u64) -> u32 {
    let (a, b) = (1.0 - unit(key), unit(!key));
    let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    (median * (sigma * normal).exp()).clamp(8.0, 900e3) as u32
}

/// Returns the names of all built-in traces, for an error message.
pub(super) fn names() -> String {
    TRACES
        .iter()
        .map(|row| row.name)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn row(name: &str) -> &'static Row {
        let found = TRACES.iter().find(|row| row.name == name);
        found.unwrap_or_else(|| panic!("{name}"))
    }

    #[test]
    fn trace_names_are_unique_and_traces_are_deterministic() {
        let names: HashSet<_> = TRACES.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TRACES.len());
        for row in &TRACES {
            let requests = row.requests(100);
            assert_eq!(requests, row.requests(100), "{}", row.name);
            assert!(
                requests.is_sorted_by_key(|request| request.second),
                "{}",
                row.name
            );
            assert!(
                requests
                    .iter()
                    .all(|request| request.second > 0 && request.size > 0)
            );
            assert!(requests.iter().any(|request| request.op == Op::Get));
        }
    }

    #[test]
    fn zipf_900k_holds_218_megabytes_of_10_bytes_to_900_kilobytes() {
        let size = |key| log_uniform(10.0, 900e3, unit(key).powf(7.75));
        let sizes: Vec<u64> = (0..19_500).map(|key| size(key).into()).collect();
        let total = sizes.iter().sum::<u64>() as f64 / 1e6;
        assert!((200.0..236.0).contains(&total), "{total}");
        assert!(sizes.iter().all(|size| (10..=900_000).contains(size)));
        assert!(*sizes.iter().max().unwrap() > 800_000);
        let asked = row("zipf-900k").requests(1);
        assert!(
            asked[..1000]
                .iter()
                .all(|request| request.size == size(request.key))
        );
    }

    #[test]
    fn ttl_beside_stores_twenty_second_items_in_half_of_its_requests() {
        let requests = row("ttl-beside").requests(1);
        let in_a_second = requests.iter().filter(|request| request.second == 7);
        let (stored, read): (Vec<&Request>, Vec<_>) =
            in_a_second.partition(|request| request.ttl == 20);
        assert_eq!((stored.len(), read.len()), (500, 500));
        assert!(
            stored
                .iter()
                .all(|request| request.op == Op::Set && request.key >= FRESH)
        );
        assert!(
            read.iter()
                .all(|request| request.ttl == 0 && request.key < 10_000)
        );
    }

    #[test]
    fn traces_have_the_shares_and_sizes_in_their_names() {
        let share = |name, op| {
            let requests = row(name).requests(10);
            let count = requests.iter().filter(|request| request.op == op).count();
            count as f64 / requests.len() as f64
        };
        assert!((0.045..0.055).contains(&share("write-5", Op::Set)));
        assert!((0.49..0.51).contains(&share("write-50", Op::Set)));
        assert!((0.09..0.11).contains(&share("delete", Op::Delete)));
        let mut sizes: Vec<u32> = (0..20_000).map(|key| lognormal(400.0, 1.5, key)).collect();
        sizes.sort_unstable();
        // Median 400; 84 % lie below 400 * e^1.5, one sigma.
        assert!((370..430).contains(&sizes[10_000]), "{}", sizes[10_000]);
        assert!((1600..2000).contains(&sizes[16_827]), "{}", sizes[16_827]);
        let once: HashMap<u64, u32> =
            row("one-hit")
                .requests(10)
                .iter()
                .fold(HashMap::new(), |mut seen, request| {
                    *seen.entry(request.key).or_default() += 1;
                    seen
                });
        assert!(
            once.iter()
                .filter(|(key, _)| **key >= FRESH)
                .all(|(_, count)| *count == 1)
        );
    }

    #[test]
    fn feed_reads_new_keys_most_and_edits_one_in_twenty() {
        let requests = row("feed").requests(10);
        let share = |is: &dyn Fn(&(usize, &Request)) -> bool| {
            let count = requests.iter().enumerate().filter(|it| is(it)).count();
            count as f64 / requests.len() as f64
        };
        let edits = share(&|(_, request)| request.op == Op::Set);
        assert!((0.045..0.055).contains(&edits), "{edits}");
        // Half of the requests are for keys not older than the square root of the number of keys then.
        let is_new = |&(at, request): &(usize, &Request)| {
            let newest = at as u64 / 10;
            (newest - request.key + 1).pow(2) <= newest + 1
        };
        let new = share(&is_new);
        assert!((0.45..0.55).contains(&new), "{new}");
        assert!(share(&|(at, request)| request.key > *at as u64 / 10) == 0.0);
    }

    #[test]
    fn tenants_divide_the_requests_in_six_three_and_one() {
        let requests = row("tenants").requests(10);
        let share = |keys: std::ops::Range<u64>, sizes: std::ops::RangeInclusive<u32>| {
            let own = requests
                .iter()
                .filter(|request| keys.contains(&request.key));
            let own: Vec<_> = own.collect();
            assert!(own.iter().all(|request| sizes.contains(&request.size)));
            own.len() as f64 / requests.len() as f64
        };
        assert!((0.59..0.61).contains(&share(0..SECOND_USER, 20..=200)));
        assert!((0.29..0.31).contains(&share(SECOND_USER..THIRD_USER, 2000..=2000)));
        assert!((0.09..0.11).contains(&share(THIRD_USER..u64::MAX, 20_000..=60_000)));
    }
}
