//! Readers and writers on threads of their own, over shared memory.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use herdwick_check::{Rng, count};
use herdwick_clover::{ClientEnd, ClientOptions, ServerOptions};
use herdwick_fabric::Port;
use herdwick_request::HashKey;
use herdwick_shm::ShmDevice;

use crate::fixture::{Kept, SECRET, Shm, World, geometry, join, key};

const KEYS: u64 = 16;
const WRITERS: usize = 4;

/// A value that names its key, of the length in its first byte.
fn value(n: u64, seed: u8) -> Vec<u8> {
    let mut value = vec![seed; 9 + usize::from(seed)];
    value[1..9].copy_from_slice(&n.to_le_bytes());
    value
}

fn check(n: u64, kept: &Kept) {
    if let Kept::Value(found) = kept {
        assert_eq!(*found, value(n, found[0]), "a torn or foreign value");
    } else {
        assert!(matches!(kept, Kept::Missing | Kept::Contended), "{kept:?}");
    }
}

/// Reads or writes until `stop`.
fn work(
    mut end: ClientEnd<ShmDevice>,
    (seed, writes): (u64, bool),
    (stop, failed): (&AtomicBool, &AtomicBool),
    gets: &AtomicU64,
) -> ClientEnd<ShmDevice> {
    let (mut draw, mut now) = (Rng::new(seed), Duration::ZERO);
    // Where a thread has panicked, what it held is not given back, and others would wait.
    while !stop.load(Ordering::Relaxed)
        || end.client.in_flight() > 0 && !failed.load(Ordering::Relaxed)
    {
        let n = draw.below(KEYS);
        if !stop.load(Ordering::Relaxed) {
            // What does not fit is asked for later.
            let _ = match (writes, draw.below(16)) {
                (false, _) => end.client.get(&key(n), n),
                (true, 0) => end.client.delete(&key(n), n, now),
                _ => end
                    .client
                    .put(&key(n), &value(n, draw.below(200) as u8), n, now),
            };
        }
        // Steps of time: nothing is lost here, and no client may be taken for dead on a busy host.
        now += Duration::from_nanos(100);
        end.client.post(&mut end.port, now);
        end.port.progress(now);
        let mut ended = 0;
        end.client.poll(&mut end.port, now, &mut |n, answer| {
            let kept = answer.copied();
            match writes {
                false => check(n, &kept),
                true => assert!(
                    matches!(
                        kept,
                        Kept::Done | Kept::Missing | Kept::Full | Kept::Contended
                    ),
                    "{kept:?}"
                ),
            }
            ended += 1;
        });
        if !writes {
            gets.fetch_add(ended, Ordering::Relaxed);
        }
        if ended == 0 {
            thread::yield_now();
        }
    }
    end
}

#[test]
#[ignore = "seven threads spin: by hand, with --ignored"]
fn readers_on_other_threads_see_whole_values_of_their_keys() {
    let wanted = count("HERDWICK_CLOVER_GETS", 20_000);
    let mut world = World::new(Shm, (1, 0), geometry(64, 2000, 100));
    let options = ClientOptions {
        timeout: Duration::from_secs(1 << 20),
        entry_wait: Duration::from_secs(1 << 20),
        ..world.client_options
    };
    world.server_options = ServerOptions::new(6, HashKey([3, 4]));
    world.restart();
    let ends: Vec<_> = (0..=WRITERS)
        .map(|_| {
            let both = (&mut world.nodes[..], &mut world.server);
            join(both, ShmDevice::client(), (Some(&SECRET), &options)).end
        })
        .collect();
    let (stop, served, failed, gets) = (
        AtomicBool::new(false),
        AtomicBool::new(false),
        AtomicBool::new(false),
        AtomicU64::new(0),
    );
    thread::scope(|scope| {
        let (stop, served, failed, gets) = (&stop, &served, &failed, &gets);
        let server = &mut world.server;
        let serving = scope.spawn(move || {
            while !served.load(Ordering::Relaxed) {
                server.port.progress(Duration::ZERO);
                server.node_port.progress(Duration::ZERO);
                if server.pass(Duration::ZERO) == 0 {
                    // There are more threads than CPUs.
                    thread::yield_now();
                }
            }
            server.server().counters()
        });
        let workers: Vec<_> = (0..)
            .zip(ends)
            .map(|(n, end)| scope.spawn(move || work(end, (n, n > 0), (stop, failed), gets)))
            .collect();
        while gets.load(Ordering::Relaxed) < wanted
            && !workers.iter().any(thread::ScopedJoinHandle::is_finished)
        {
            thread::yield_now();
        }
        // If one thread panics, the others must end.
        failed.store(gets.load(Ordering::Relaxed) < wanted, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        let ends: Vec<_> = workers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        served.store(true, Ordering::Relaxed);
        let counters = serving.join().expect("the server");
        let reader = &ends[0].as_ref().expect("the reader").client;
        println!(
            "{:?} {:?} {counters:?}",
            reader.read_counters(),
            reader.counters()
        );
        assert!(ends.iter().all(Result::is_ok));
        assert!(counters.recycled > 0 && counters.corrupt == 0);
        assert!(reader.read_counters().found > 0);
    });
}
