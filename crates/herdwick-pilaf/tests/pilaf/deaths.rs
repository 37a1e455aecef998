//! Servers that are killed and started again, clients that die at any step, and clients that do not
//! follow the table.

use herdwick_check::Rng;
use herdwick_conformance::seeded::SeededDevice;
use herdwick_pilaf::{ClientOptions, Failure, Refused, ServerOptions};
use herdwick_request::HashKey;

use crate::fixture::{Kept, World, join, key, seeded, server_options};

#[test]
fn a_server_that_dies_ends_every_request_and_another_one_goes_on() {
    let (network, mut world) = seeded(1, 1, server_options(256));
    assert_eq!(world.put(0, &key(1), b"before"), Kept::Done);
    let client = &mut world.clients[0].1.client;
    for n in 0..10 {
        client.get(&key(n % 2), n).unwrap();
        client
            .put(&key(n), &[1; 9000], 100 + n)
            .map_or_else(|refused| assert_eq!(refused, Refused::Full), |()| ());
    }
    network.stop(world.server.port.party());
    let (mut ended, all) = (0, world.clients[0].1.client.in_flight());
    while world.clients[0].1.client.in_flight() > 0 {
        for (_, _, answer) in world.pass() {
            assert!(matches!(answer, Kept::Failed(_)), "{answer:?}");
            ended += 1;
        }
    }
    assert_eq!(ended, all);
    let client = &mut world.clients[0].1.client;
    let refused = client.get(&key(1), 1).unwrap_err().to_string();
    assert!(refused.contains("connect again"), "{refused}");
    // A server that was started again has nothing; a new session with it works.
    let others = vec![network.device()];
    let mut world = World::of(network.device(), others, server_options(256));
    assert_eq!(world.get(0, &key(1)), Kept::Missing);
    assert_eq!(world.put(0, &key(1), b"after"), Kept::Done);
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"after".to_vec()));
}

/// It finds this bug when it is planted: `ServerEnd::remove` leaves the client's protection domain.
#[test]
fn a_client_killed_at_any_step_leaves_nothing_held() {
    for steps in (0..120).step_by(3) {
        let (network, mut world) = seeded(steps, 2, server_options(256));
        let old = vec![1; 20_000];
        assert_eq!(world.put(0, &key(7), &old), Kept::Done);
        let bytes = world.server.server().store().extent_bytes();
        let victim = &mut world.clients[1].1;
        network.stop_after(victim.port.party(), steps);
        let new = vec![2; 20_000];
        victim.client.put(&key(7), &new, 0).unwrap();
        victim.client.get(&key(7), 1).unwrap();
        for _ in 0..60 {
            world.pass();
        }
        // The caller watches sessions, and notices its end.
        let (id, _) = world.clients.pop().unwrap();
        world.server.remove(id);
        let Kept::Value(value) = world.get(0, &key(7)) else {
            panic!("the key is lost");
        };
        assert!(
            value == old || value == new,
            "a mixture after {steps} steps"
        );
        assert_eq!(world.server.server().store().extent_bytes(), bytes);
        // The port is made for four clients: if anything were held, three more would not fit.
        for _ in 0..3 {
            let client = join(
                &mut world.server,
                network.device(),
                &ClientOptions::default(),
            );
            world.clients.push(client);
        }
        assert_eq!(world.get(3, &key(7)), Kept::Value(value));
    }
}

#[test]
fn a_client_that_does_not_follow_two_moves_is_dropped_and_others_are_served() {
    let options = ServerOptions {
        buckets_max: 4096,
        ..server_options(16)
    };
    let (_, mut world) = seeded(2, 2, options);
    assert_eq!(world.put(0, &key(0), b"x"), Kept::Done);
    assert_eq!(world.get(1, &key(0)), Kept::Value(b"x".to_vec()));
    world.follows = false;
    let mut n = 1;
    while world.server.server().counters().growths == 0 {
        assert_eq!(world.put(0, &key(n), b"x"), Kept::Done);
        n += 1;
    }
    // It notices, and is served by SEND until it follows.
    assert_eq!(world.get(0, &key(0)), Kept::Value(b"x".to_vec()));
    assert_eq!(world.get(0, &key(9999)), Kept::Missing);
    let client = &world.clients[0].1.client;
    assert!(!client.follows() && client.counters().fallbacks == 2);
    // The first client follows, the second one never asks.
    let grant = world.server.table_of(world.clients[0].0).unwrap();
    world.clients[0].1.adopt(grant).unwrap();
    while world.server.server().counters().growths == 1 {
        assert_eq!(world.put(0, &key(n), b"x"), Kept::Done);
        n += 1;
        assert!(n < 100);
    }
    // The PUT that found no place waited for it.
    assert_eq!(world.server.clients(), 1, "the second client is gone");
    world.follows = true;
    assert_eq!(world.get(0, &key(0)), Kept::Value(b"x".to_vec()));
    world.clients[1].1.client.get(&key(0), 5).unwrap();
    assert!(matches!(world.answer(), Kept::Failed(_)));
}

/// A server that stops answers no READ: a client that only GETs ends too.
#[test]
fn a_client_that_only_gets_ends_when_its_server_falls_silent() {
    let (_, mut world) = seeded(4, 1, server_options(64));
    assert_eq!(world.put(0, &key(1), b"x"), Kept::Done);
    let (_, end) = &mut world.clients[0];
    end.client.get(&key(1), 5).unwrap();
    let (mut ended, mut now) = (None, world.now);
    // Nothing moves the network.
    for _ in 0..1_000_000 {
        now += std::time::Duration::from_millis(1);
        end.client.post(&mut end.port, now);
        end.client.poll(&mut end.port, now, &mut |_, answer| {
            ended = Some(answer.copied())
        });
        if ended.is_some() {
            break;
        }
    }
    assert!(matches!(ended, Some(Kept::Failed(_))), "{ended:?}");
    assert_eq!(end.client.failed(), Some(Failure::Silent));
}

/// A table that could not grow tries again: here the keys that had no place in it are deleted.
#[test]
fn growth_that_failed_is_tried_again() {
    let mut grown_later = 0;
    for seed in 110..120 {
        let options = ServerOptions {
            buckets_max: 17,
            load_percent: 90,
            hash_key: HashKey([seed, 4]),
            ..server_options(16)
        };
        let (_, mut world) = seeded(seed, 1, options);
        for n in 0..20 {
            world.put(0, &key(n), b"x");
        }
        if world.server.server().store().buckets() == 17 {
            continue;
        }
        for n in 0..20 {
            world.clients[0].1.client.delete(&key(n), 0).unwrap();
            world.answer();
        }
        // Other keys, as many as the smaller table has no place for.
        for round in 0..200 {
            for n in 0..20 {
                world.put(0, &key(100 + n), b"y");
            }
            for _ in 0..100 {
                world.pass();
            }
            if world.server.server().store().buckets() == 17 {
                grown_later += 1;
                break;
            }
            if round % 10 == 9 {
                for n in 0..20 {
                    world.clients[0].1.client.delete(&key(100 + n), 0).unwrap();
                    world.answer();
                }
            }
        }
    }
    assert!(grown_later > 0);
}

/// One bucket more is all that the table may grow by, and with some hash keys not every key finds a
/// place there.
#[test]
fn clients_read_on_where_a_larger_table_has_no_place_for_a_key() {
    let mut refused = 0;
    for seed in 110..120 {
        let options = ServerOptions {
            buckets_max: 17,
            load_percent: 90,
            hash_key: HashKey([seed, 4]),
            ..server_options(16)
        };
        let (_, mut world) = seeded(seed, 1, options);
        let mut stored = Vec::new();
        for n in 0..20 {
            match world.put(0, &key(n), b"x") {
                Kept::Done => stored.push(n),
                full => assert_eq!(full, Kept::Full),
            }
        }
        refused += u64::from(world.server.server().store().buckets() == 16 && stored.len() > 13);
        for n in stored {
            assert_eq!(world.get(0, &key(n)), Kept::Value(b"x".to_vec()));
        }
    }
    assert!(refused > 0);
}

/// Stores new keys until the table has moved `moves` times; returns the next number of a key.
fn grow(world: &mut World<SeededDevice>, mut n: u64, moves: u64) -> u64 {
    let before = world.server.server().counters().growths;
    while world.server.server().counters().growths < before + moves {
        assert_eq!(world.put(0, &key(n), b"x"), Kept::Done);
        n += 1;
    }
    n
}

fn growing() -> ServerOptions {
    ServerOptions {
        buckets_max: 1 << 14,
        ..server_options(16)
    }
}

#[test]
fn a_client_without_requests_follows_every_move() {
    let (_, mut world) = seeded(5, 2, growing());
    let next = grow(&mut world, 0, 6);
    let server = world.server.server();
    assert_eq!(
        (server.counters().clients_failed, world.server.clients()),
        (0, 2)
    );
    assert_eq!(world.clients[1].1.client.counters().unexpected_replies, 0);
    for _ in 0..10 {
        world.pass();
    }
    for n in 0..next {
        assert_eq!(world.get(1, &key(n)), Kept::Value(b"x".to_vec()));
    }
    assert_eq!(world.clients[1].1.client.counters().fallbacks, 0);
}

/// A server that copies a table of any size in one pass answers no READ meanwhile, where it drives the
/// RNIC in software.
#[test]
fn a_table_moves_in_many_passes_and_is_read_between_them() {
    let options = ServerOptions {
        buckets_max: 1 << 15,
        ..server_options(1 << 14)
    };
    let (_, mut world) = seeded(7, 1, options);
    for n in 0..12_287 {
        world.server.store_mut().put(&key(n), b"x").unwrap();
    }
    assert_eq!(world.put(0, &key(20_000), b"x"), Kept::Done);
    let (mut draw, mut found) = (Rng::new(7), 0);
    while world.server.server().counters().growths == 0 {
        let got = world.get(0, &key(draw.below(12_287)));
        assert_eq!(got, Kept::Value(b"x".to_vec()));
        found += 1;
    }
    assert!(found > 20, "{found} GETs while the table moved");
    let counters = *world.clients[0].1.client.counters();
    assert!(counters.fallbacks <= 1, "{counters:?}");
}

/// A table that cannot grow refuses a PUT without a place at once, although clients still READ an older one.
#[test]
fn a_put_without_a_place_in_the_largest_table_is_refused_at_once() {
    let options = ServerOptions {
        buckets_max: 32,
        ..server_options(16)
    };
    let lag = options.lag;
    let (_, mut world) = seeded(9, 2, options);
    world.follows = false;
    let mut n = grow(&mut world, 0, 1);
    let before = loop {
        let before = world.now;
        match world.put(0, &key(n), b"x") {
            Kept::Done => n += 1,
            full => {
                assert_eq!(full, Kept::Full);
                break before;
            }
        }
        assert!(n <= 3 * 32, "{n} keys in 32 buckets");
    };
    assert!(world.now - before < lag, "{:?}", world.now - before);
    assert_eq!(world.server.clients(), 2);
    assert_eq!(world.server.server().store().buckets(), 32);
}

/// It finds these bugs when they are planted: a domain, or a place, is kept.
#[test]
fn a_client_that_cannot_join_leaves_nothing_held() {
    let (network, mut world) = seeded(8, 0, server_options(64));
    for _ in 0..20 {
        let options = ClientOptions {
            window: 0,
            ..ClientOptions::default()
        };
        let joined = world.server.join_in_process(network.device(), &options);
        assert!(joined.is_err());
    }
    for _ in 0..4 {
        join(
            &mut world.server,
            network.device(),
            &ClientOptions::default(),
        );
    }
}
