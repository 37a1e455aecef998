//! Readers beside a writer on the seeded fabric: values flip between two kinds while keys are deleted,
//! made again and displaced. A reader never sees a mixture, another key's value, or a miss of a key
//! that was there throughout.

use herdwick_check::Rng;
use herdwick_conformance::seeded::Faults;
use herdwick_pilaf::ServerOptions;

use crate::fixture::{Kept, key, seeded, server_options};

/// Sizes of the values that flip.
pub(crate) const SIZES: [usize; 6] = [8, 40, 256, 1500, 9000, 64 << 10];

/// The value of key `n` when it is of kind A, or of kind B: one byte, over and over, that no other key
/// has.
pub(crate) fn flip(n: u64, kind: bool) -> Vec<u8> {
    let byte = (2 * n + u64::from(kind)) as u8;
    vec![byte; SIZES[n as usize % SIZES.len()]]
}

/// Keys that are there throughout, and keys that come and go.
pub(crate) const STEADY: u64 = 60;
pub(crate) const ALL: u64 = 120;

/// Panics if key `n` cannot have this answer.
pub(crate) fn check(n: u64, answer: &Kept) {
    match answer {
        Kept::Value(value) => assert!(
            [flip(n, false), flip(n, true)].contains(value),
            "key {n}: {} bytes, {:?} to {:?}",
            value.len(),
            value.iter().min(),
            value.iter().max()
        ),
        Kept::Missing => assert!(n >= STEADY, "key {n} was there throughout"),
        other => panic!("key {n}: {other:?}"),
    }
}

/// A full table, so that new keys displace others all the time.
pub(crate) fn tight() -> ServerOptions {
    ServerOptions {
        load_percent: 90,
        extent_bytes: 16 << 20,
        ..server_options(140)
    }
}

#[test]
fn values_that_flip_are_never_mixed_nor_another_keys_nor_missed() {
    let (mut torn, mut stale, mut changed) = (0, 0, 0);
    for seed in 0..3 {
        let (network, mut world) = seeded(seed, 3, tight());
        for n in 0..ALL {
            assert_eq!(world.put(0, &key(n), &flip(n, false)), Kept::Done);
        }
        network.set_faults(Faults::storm());
        let (mut draw, mut gets) = (Rng::new(seed), 0);
        while gets < 2000 {
            let n = draw.below(ALL);
            let writer = &mut world.clients[0].1.client;
            let _ = match n >= STEADY && draw.below(2) == 0 {
                true => writer.delete(&key(n), n),
                false => writer.put(&key(n), &flip(n, draw.below(2) == 0), n),
            };
            for reader in 1..3 {
                let n = draw.below(ALL);
                let _ = world.clients[reader].1.client.get(&key(n), n);
            }
            for (client, n, answer) in world.pass() {
                if client > 0 {
                    gets += 1;
                    check(n, &answer);
                } else {
                    assert!(matches!(answer, Kept::Done | Kept::Missing), "{answer:?}");
                }
            }
        }
        for (_, end) in &world.clients {
            torn += end.client.read_counters().torn;
            stale += end.client.counters().stale_extents;
            changed += end.client.counters().misses_changed;
        }
    }
    // Every guard was needed.
    assert!(
        torn > 0 && stale > 0 && changed > 0,
        "{torn} {stale} {changed}"
    );
}
