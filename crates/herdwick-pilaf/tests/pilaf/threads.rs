//! Readers on threads of their own beside a server that writes, over shared memory.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use herdwick_fabric::Port;
use herdwick_pilaf::{ClientEnd, ClientOptions, ServerEnd};
use herdwick_shm::{PdSize, ShmDevice};

use crate::{
    fixture::{Draw, Kept, join, key, knob},
    flips::{ALL, STEADY, check, flip, tight},
};

/// The time does not matter where nothing is lost.
const NOW: Duration = Duration::ZERO;

fn server() -> ServerEnd<ShmDevice> {
    let mut server = ServerEnd::open(ShmDevice::host(PdSize::NONE), tight()).unwrap();
    for n in 0..ALL {
        server.store_mut().put(&key(n), &flip(n, false)).unwrap();
    }
    server
}

/// Writes until `stop`; returns how often.
fn write(mut end: ClientEnd<ShmDevice>, seed: u64, stop: &AtomicBool) -> u64 {
    let (mut draw, mut writes) = (Draw(seed), 0);
    while !stop.load(Ordering::Relaxed) || end.client.in_flight() > 0 {
        let n = draw.next(ALL);
        if !stop.load(Ordering::Relaxed) {
            let _ = match n >= STEADY && draw.next(2) == 0 {
                true => end.client.delete(&key(n), n),
                false => end.client.put(&key(n), &flip(n, draw.next(2) == 0), n),
            };
        }
        end.client.post(&mut end.port, NOW);
        end.port.progress(NOW);
        writes += end.client.poll(&mut end.port, NOW, &mut |_, answer| {
            let answer = Kept::of(answer);
            assert!(matches!(answer, Kept::Done | Kept::Missing), "{answer:?}");
        }) as u64;
    }
    writes
}

fn read(mut end: ClientEnd<ShmDevice>, gets: u64) -> ClientEnd<ShmDevice> {
    let (mut draw, mut answers) = (Draw(1000), 0);
    while answers < gets {
        while {
            let n = draw.next(ALL);
            end.client.get(&key(n), n).is_ok()
        } {}
        end.client.post(&mut end.port, NOW);
        end.port.progress(NOW);
        answers += end.client.poll(&mut end.port, NOW, &mut |n, answer| {
            check(n, &Kept::of(answer));
        }) as u64;
    }
    end
}

#[test]
fn readers_on_other_threads_see_whole_values_of_their_keys() {
    let gets = knob("HERDWICK_PILAF_GETS", 200_000);
    let mut server = server();
    let options = ClientOptions::default();
    let mut ends: Vec<_> = (0..3)
        .map(|_| join(&mut server, ShmDevice::client(), &options).1)
        .collect();
    let (stop, served) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let (stop, served) = (&stop, &served);
        let serving = scope.spawn(move || {
            while !served.load(Ordering::Relaxed) {
                server.port.progress(NOW);
                server.pass();
            }
            server
        });
        let reader = ends.remove(0);
        let writers: Vec<_> = (0..)
            .zip(ends.drain(..))
            .map(|(seed, end)| scope.spawn(move || write(end, seed, stop)))
            .collect();
        let reading = scope.spawn(move || read(reader, gets));
        // Whoever panics, the others must end.
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
