//! Readers that stop in the middle of a GET, while what they read is superseded and its memory wanted.

use std::time::Duration;

use herdwick_clover::{Answer, ServerEnd};
use herdwick_conformance::seeded::{SeededDevice, SeededNetwork};
use herdwick_fabric::{Device, Port};

use crate::fixture::{Kept, World, geometry, key};

/// Puts values until one is refused; returns how many.
fn put_until_full(world: &mut World<SeededNetwork>) -> u64 {
    for n in 0..2000 {
        match world.put(0, &key(1), &[n as u8; 20]) {
            Kept::Done => {}
            Kept::Full => return n,
            other => panic!("{other:?}"),
        }
    }
    2000
}

/// It finds this bug when it is planted: `Entries::advance` frees without asking what was published.
#[test]
fn memory_that_a_slow_reader_may_read_is_not_reused() {
    let mut world = World::new(SeededNetwork::new(1), (1, 2), geometry(4, 60, 3));
    assert_eq!(world.put(0, &key(1), b"first value, 20 byte"), Kept::Done);
    assert_eq!(
        world.get(1, &key(1)),
        Kept::Value(b"first value, 20 byte".to_vec())
    );
    // No client is slow: entries are reused without limit.
    assert_eq!(put_until_full(&mut world), 2000);
    // The READs of a GET are on their way, and then the client does nothing more.
    let last = vec![(1999 % 256) as u8; 20];
    let end = &mut world.clients[1].end;
    end.client.get(&key(1), 7).unwrap();
    end.client.post(&mut end.port, world.now);
    world.paused = Some(1);
    let recycled = world.server.server().counters().recycled;
    let put = put_until_full(&mut world);
    assert!(put < 60, "{put}");
    let more = world.server.server().counters().recycled - recycled;
    assert!(more < 60, "{more}");
    // It goes on, and what it gets was the value during its GET.
    world.paused = None;
    let Kept::Value(value) = world.answer() else {
        panic!("no value");
    };
    assert!(value == last || value.iter().all(|byte| u64::from(*byte) < put));
    assert_eq!(put_until_full(&mut world), 2000);
}

/// A client that was admitted and does not connect can have read nothing: no reuse waits for it.
#[test]
fn a_client_that_does_not_connect_delays_no_reuse() {
    let mut world = World::new(SeededNetwork::new(6), (1, 1), geometry(4, 60, 3));
    let room = ServerEnd::<SeededDevice>::pd_room();
    let server = &mut world.server;
    let pd = server
        .device
        .create_pd_for(&mut server.port, &room)
        .unwrap();
    let (id, _) = server.admit(pd, None).unwrap();
    assert_eq!(put_until_full(&mut world), 2000);
    // It lapses as any other.
    let end = world.now + 2 * world.server_options.lease;
    while world.now < end {
        assert_eq!(world.pass(), []);
    }
    assert_eq!(world.server.lapsed(), Some(id));
}

/// A client that does not come back is noticed and removed; then its memory is used again.
#[test]
fn a_client_that_does_not_come_back_lapses() {
    let mut world = World::new(SeededNetwork::new(2), (2, 2), geometry(4, 60, 100));
    assert_eq!(world.put(1, &key(1), b"x"), Kept::Done);
    world.paused = Some(1);
    let mut passes = 0;
    let lapsed = loop {
        world.put(0, &key(1), b"y");
        passes += 1;
        assert!(passes < 200_000);
        if let Some(lapsed) = world.server.lapsed() {
            break lapsed;
        }
    };
    assert_eq!(lapsed, world.clients[1].id);
    assert_eq!(world.server.lapsed(), Some(lapsed), "until it is removed");
    world.remove(1);
    world.paused = None;
    assert_eq!(world.server.server().counters().lapsed, 1);
    while world.server.server().is_reclaiming() {
        world.pass();
    }
    assert_eq!(put_until_full(&mut world), 2000);
    // Its free list is there again.
    assert!(world.server.server().counters().reclaimed > 0);
}

/// Where nothing is retired, no reuse waits for a client that is gone; but it has a place.
#[test]
fn a_client_that_is_gone_lapses_where_nothing_is_retired_too() {
    let mut world = World::new(SeededNetwork::new(4), (1, 2), geometry(4, 60, 100));
    world.paused = Some(1);
    let end = world.now + 2 * world.server_options.lease;
    while world.now < end {
        assert_eq!(world.pass(), []);
    }
    assert_eq!(world.server.lapsed(), Some(world.clients[1].id));
    world.remove(1);
    assert_eq!(world.server.lapsed(), None);
    assert_eq!(world.server.server().counters().lapsed, 1);
}

/// One that was removed while it stood still goes on: nothing of it reaches the memory.
#[test]
fn a_client_that_was_removed_is_told_when_it_goes_on() {
    let mut world = World::new(SeededNetwork::new(5), (2, 2), geometry(4, 60, 3));
    assert_eq!(world.put(1, &key(1), b"x"), Kept::Done);
    // It has begun, and none of its verbs is on the way.
    let now = world.now;
    let end = &mut world.clients[1].end;
    end.client.put(&key(1), b"stale", 7, now).unwrap();
    end.client.get(&key(1), 8).unwrap();
    world.paused = Some(1);
    while world.server.lapsed().is_none() {
        world.put(0, &key(1), b"y");
    }
    let mut gone = world.remove(1);
    world.paused = None;
    assert_eq!(put_until_full(&mut world), 2000);
    assert_eq!(world.put(0, &key(1), b"last"), Kept::Done);
    let mut answers = Vec::new();
    for _ in 0..100_000 {
        if answers.len() == 2 {
            break;
        }
        world.now += Duration::from_micros(20);
        world.pass();
        gone.end.client.post(&mut gone.end.port, world.now);
        gone.end.port.progress(world.now);
        let sink = &mut |user, answer: Answer<'_>| answers.push((user, answer.copied()));
        gone.end.client.poll(&mut gone.end.port, world.now, sink);
    }
    answers.sort_by_key(|(user, _)| *user);
    let failed = [(7, true), (8, true)];
    let answers = answers.iter();
    let answers = answers.map(|(user, kept)| (*user, matches!(kept, Kept::Failed(_))));
    assert!(answers.eq(failed) && gone.end.client.failed().is_some());
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"last".to_vec()));
}

/// A server that stops ends every request, those of GETs alone included, whose READs still work.
#[test]
fn clients_notice_a_server_or_data_node_that_falls_silent() {
    for node in [false, true] {
        let mut world = World::new(SeededNetwork::new(3), (1, 1), geometry(4, 60, 100));
        assert_eq!(world.put(0, &key(1), b"x"), Kept::Done);
        let party = match node {
            true => world.nodes[0].port.party(),
            false => world.server.port.party(),
        };
        world.fabric.stop(party);
        let mut passes = 0;
        while world.clients[0].end.client.failed().is_none() {
            let now = world.now;
            let client = &mut world.clients[0].end.client;
            let _ = client.get(&key(1), 1);
            let _ = client.put(&key(1), b"y", 2, now);
            world.pass();
            passes += 1;
            assert!(passes < 200_000);
        }
        assert_eq!(world.clients[0].end.client.in_flight(), 0);
        let failed = world.clients[0].end.client.get(&key(1), 1).unwrap_err();
        assert!(failed.to_string().contains("connect again"), "{failed}");
    }
}
