//! Random operations of several clients on a store, compared with a plain map.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use crate::Rng;

/// The map: keys and their values.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// What is asked of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapCall {
    /// Its value.
    Get,
    /// To store a value.
    Put(Vec<u8>),
    /// To remove it.
    Delete,
}

/// The answer of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapAnswer {
    /// The value of a GET.
    Value(Vec<u8>),
    /// The key of a GET or DELETE is not stored.
    Missing,
    /// The PUT or DELETE is done.
    Done,
    /// The PUT is refused, as a store may do that has no room.
    Full,
}

/// A store and its clients.
pub trait MapClients {
    /// The store's own answers.
    type Answer: Debug + PartialEq;

    /// Returns the number of clients.
    fn clients(&self) -> usize;
    /// Lets `client` call; returns `false` if it cannot now.
    fn call(&mut self, client: usize, key: &[u8], call: &MapCall, token: u64) -> bool;
    /// Runs every party once; returns the answers: client, token, answer.
    fn pass(&mut self) -> Vec<(usize, u64, Self::Answer)>;
    /// Returns the map's answer as the store's own.
    fn own(answer: MapAnswer) -> Self::Answer;
}

/// A sequence of random operations.
#[derive(Clone, Copy, Debug)]
pub struct MapLoad {
    /// Of the random numbers.
    pub seed: u64,
    /// How many.
    pub operations: u64,
    /// On how many keys.
    pub keys: u64,
    /// Bytes of the longest keys, one of fifty.
    pub key_bytes_max: usize,
    /// Bytes of values, at most: of one in forty, of five, and of the others.
    pub value_bytes_max: [u64; 3],
}

impl MapLoad {
    /// Returns key `n`: one of one byte, and one of the longest, in fifty.
    #[must_use]
    pub fn key(&self, n: u64) -> Vec<u8> {
        match n % 50 {
            0 => vec![n as u8; self.key_bytes_max],
            1 => vec![n as u8],
            _ => format!("{n:016}").into_bytes(),
        }
    }

    fn value(&self, rng: &mut Rng) -> Vec<u8> {
        let [longest, long, usual] = self.value_bytes_max;
        let len = match rng.below(40) {
            0 => rng.below(longest) + 1,
            1..=5 => rng.below(long),
            6 => 0,
            _ => rng.below(usual),
        };
        let byte = rng.below(256) as u8;
        (0..len).map(|i| byte.wrapping_add(i as u8)).collect()
    }

    fn call(&self, rng: &mut Rng) -> MapCall {
        match rng.below(10) {
            0..=3 => MapCall::Get,
            4..=8 => MapCall::Put(self.value(rng)),
            _ => MapCall::Delete,
        }
    }

    /// Runs the operations, each on a key that no other client asks for meanwhile. Returns what is
    /// stored in the end.
    ///
    /// # Panics
    /// If an answer is not the map's.
    pub fn run<C: MapClients>(&self, clients: &mut C) -> Map {
        let (mut rng, mut map) = (Rng::new(self.seed), Map::new());
        let mut called: BTreeMap<(usize, u64), (Vec<u8>, MapCall)> = BTreeMap::new();
        let (mut busy, mut begun, mut ended) = (BTreeSet::new(), 0, 0);
        while ended < self.operations {
            for client in 0..clients.clients() {
                let key = self.key(rng.below(self.keys));
                if begun == self.operations || busy.contains(&key) {
                    continue;
                }
                let call = self.call(&mut rng);
                if clients.call(client, &key, &call, begun) {
                    busy.insert(key.clone());
                    called.insert((client, begun), (key, call));
                    begun += 1;
                }
            }
            for (client, token, answer) in clients.pass() {
                let Some((key, call)) = called.remove(&(client, token)) else {
                    panic!("client {client} did not call {token}");
                };
                busy.remove(&key);
                ended += 1;
                let full = answer == C::own(MapAnswer::Full);
                let expected = C::own(execute(&mut map, key, call, full));
                assert!(
                    answer == expected,
                    "operation {token}: {answer:.80?}, not {expected:.80?}"
                );
            }
        }
        map
    }
}

/// Executes a call on the map; `full`: the store has refused it for want of room.
fn execute(map: &mut Map, key: Vec<u8>, call: MapCall, full: bool) -> MapAnswer {
    match call {
        MapCall::Get => map
            .get(&key)
            .map_or(MapAnswer::Missing, |value| MapAnswer::Value(value.clone())),
        MapCall::Put(_) if full => MapAnswer::Full,
        MapCall::Put(value) => {
            map.insert(key, value);
            MapAnswer::Done
        }
        MapCall::Delete => map
            .remove(&key)
            .map_or(MapAnswer::Missing, |_| MapAnswer::Done),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// A store that answers one call in each pass, and forgets the value of every `nth` PUT.
    struct Forgetful {
        map: Map,
        calls: Vec<(usize, u64, Vec<u8>, MapCall)>,
        puts: u64,
        nth: u64,
    }

    impl MapClients for Forgetful {
        type Answer = MapAnswer;

        fn clients(&self) -> usize {
            3
        }

        fn call(&mut self, client: usize, key: &[u8], call: &MapCall, token: u64) -> bool {
            let room = self.calls.len() < 5;
            if room {
                self.calls.push((client, token, key.to_vec(), call.clone()));
            }
            room
        }

        fn pass(&mut self) -> Vec<(usize, u64, MapAnswer)> {
            let Some((client, token, key, call)) = self.calls.pop() else {
                return Vec::new();
            };
            self.puts += u64::from(matches!(call, MapCall::Put(_)));
            let forgets = matches!(call, MapCall::Put(_)) && self.puts.is_multiple_of(self.nth);
            let answer = execute(&mut self.map, key.clone(), call, false);
            if forgets {
                self.map.remove(&key);
            }
            vec![(client, token, answer)]
        }

        fn own(answer: MapAnswer) -> MapAnswer {
            answer
        }
    }

    fn run(nth: u64) -> Map {
        let load = MapLoad {
            seed: 1,
            operations: 2000,
            keys: 100,
            key_bytes_max: 40,
            value_bytes_max: [300, 100, 20],
        };
        load.run(&mut Forgetful {
            map: Map::new(),
            calls: Vec::new(),
            puts: 0,
            nth,
        })
    }

    #[test]
    fn a_map_agrees_and_a_store_that_forgets_a_value_is_found_out() {
        assert!(run(u64::MAX).len() > 30);
        assert!(catch_unwind(AssertUnwindSafe(|| run(100))).is_err());
    }
}
