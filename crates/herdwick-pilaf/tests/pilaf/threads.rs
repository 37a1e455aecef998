//! A reader on a thread of its own beside two writers, over shared memory and over the RNIC in software.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use herdwick_check::{Rng, Stopwatch, count, length};
use herdwick_fabric::{Device, Port};
use herdwick_pilaf::{ClientEnd, ClientOptions, ServerEnd};
use herdwick_providers::{AnyPort, End, Fabric, VisitAll};

use crate::{
    fixture::{Kept, join, key},
    flips::{ALL, STEADY, check, flip, tight},
};

fn server<D: Device>(device: D) -> ServerEnd<D> {
    let mut server = ServerEnd::open(device, tight()).unwrap();
    for n in 0..ALL {
        server.store_mut().put(&key(n), &flip(n, false)).unwrap();
    }
    server
}

/// Writes until `stop`; returns how often.
fn write<D: Device>(
    mut end: ClientEnd<D>,
    (seed, time): (u64, Stopwatch),
    stop: &AtomicBool,
) -> u64 {
    let (mut draw, mut writes) = (Rng::new(seed), 0);
    while !stop.load(Ordering::Relaxed) || end.client.in_flight() > 0 {
        let n = draw.below(ALL);
        if !stop.load(Ordering::Relaxed) {
            let _ = match n >= STEADY && draw.below(2) == 0 {
                true => end.client.delete(&key(n), n),
                false => end.client.put(&key(n), &flip(n, draw.below(2) == 0), n),
            };
        }
        let now = time.now();
        end.client.post(&mut end.port, now);
        end.port.progress(now);
        end.port.flush(now);
        writes += end.client.poll(&mut end.port, now, &mut |_, answer| {
            let answer = answer.copied();
            assert!(matches!(answer, Kept::Done | Kept::Missing), "{answer:?}");
        }) as u64;
    }
    writes
}

fn read<D: Device>(mut end: ClientEnd<D>, time: Stopwatch, gets: u64) -> ClientEnd<D> {
    let (mut draw, mut answers) = (Rng::new(1000), 0);
    while answers < gets {
        while {
            let n = draw.below(ALL);
            end.client.get(&key(n), n).is_ok()
        } {}
        let now = time.now();
        end.client.post(&mut end.port, now);
        end.port.progress(now);
        end.port.flush(now);
        answers += end.client.poll(&mut end.port, now, &mut |n, answer| {
            check(n, &answer.copied());
        }) as u64;
    }
    end
}

/// A server, a reader of so many GETs and two writers, each on a thread.
struct Readers {
    gets: u64,
}

impl VisitAll for Readers {
    type Output = ();

    fn visit<D>(self, host: D, clients: Vec<D>)
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
    {
        let (mut server, time) = (server(host), Stopwatch::start());
        let options = ClientOptions::default();
        let ends = clients.into_iter();
        let mut ends: Vec<_> = ends
            .map(|client| join(&mut server, client, &options).1)
            .collect();
        let (stop, served) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let (stop, served) = (&stop, &served);
            let serving = scope.spawn(move || {
                while !served.load(Ordering::Relaxed) {
                    let now = time.now();
                    server.port.progress(now);
                    server.pass(now);
                    server.port.flush(now);
                }
                server
            });
            let reader = ends.remove(0);
            let writers: Vec<_> = (0..)
                .zip(ends.drain(..))
                .map(|(seed, end)| scope.spawn(move || write(end, (seed, time), stop)))
                .collect();
            let reading = scope.spawn(move || read(reader, time, self.gets));
            // If one thread panics, the others must end.
            let reader = reading.join();
            stop.store(true, Ordering::Relaxed);
            let writes: u64 = writers
                .into_iter()
                .map(|writer| writer.join().unwrap_or(0))
                .sum();
            served.store(true, Ordering::Relaxed);
            let server = serving.join().expect("the server");
            let reader = reader.expect("the reader");
            let (found, more) = (reader.client.read_counters(), reader.client.counters());
            println!("{writes} writes; {found:?} {more:?}");
            assert!(writes > 0 && found.found > 0);
            assert_eq!(server.server().counters().clients_failed, 0);
        });
    }
}

fn beside_two_writers(fabric: Fabric, gets: u64) {
    let open = |end| fabric.loopback(end).unwrap();
    let clients = (0..3).map(|_| open(End::Client)).collect();
    open(End::Worker).visit_all(clients, Readers { gets });
}

#[test]
fn readers_over_shared_memory_see_whole_values_of_their_keys() {
    beside_two_writers(
        Fabric::Shm,
        count("HERDWICK_PILAF_GETS", length(20_000, 200_000)),
    );
}

#[test]
fn readers_over_an_rnic_in_software_see_whole_values_of_their_keys() {
    beside_two_writers(
        Fabric::Roce,
        count("HERDWICK_PILAF_ROCE_GETS", length(1_000, 2_000)),
    );
}
