//! `cache_memlimit` lowered while clients upload and watch.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use crate::common::{
    Peer, TIMEOUT, connect,
    crowd::{Since, Talk, all_done, stored, value},
    line, stat, with,
};
use herdwick_server::{Config, Server};

const LEN: usize = 900_000;

fn server(workers: usize) -> Server {
    with(Config {
        memory_bytes: 128 << 20,
        workers: Some(workers),
        ..Config::local()
    })
}

fn limit(server: &Server, megabytes: usize) -> bool {
    let said = server.say(&[format!("cache_memlimit {megabytes}\r\n").as_bytes()]);
    said == b"OK\r\n"
}

/// Sets the lowest limit that the server accepts, and returns it in bytes.
fn lowest(server: &Server) -> usize {
    let lowest = (8..128).find(|&megabytes| limit(server, megabytes));
    assert!(lowest.is_some_and(|megabytes| megabytes < 64), "{lowest:?}");
    lowest.unwrap_or_default() << 20
}

fn set(n: usize) -> Vec<u8> {
    let line = format!("set key-{n} 0 0 {LEN}\r\n");
    [line.as_bytes(), &value(n, LEN), b"\r\n"].concat()
}

/// Returns how often each worker has gone to sleep.
fn sleeps(server: &Server) -> Vec<u64> {
    let said = String::from_utf8(server.say(&[b"stats workers\r\n"])).unwrap();
    let sleeps = said
        .lines()
        .filter_map(|line| line.split_once(":sleeps ")?.1.parse().ok());
    sleeps.collect()
}

/// Waits until every worker has gone to sleep `times` times more.
fn rest(server: &Server, times: u64) {
    let (before, begun) = (sleeps(server), Since::now());
    assert!(!before.is_empty());
    while sleeps(server)
        .iter()
        .zip(&before)
        .any(|(now, before)| *now < before + times)
    {
        assert!(begun.elapsed() < TIMEOUT, "a worker never sleeps");
    }
}

#[test]
fn workers_sleep_while_uploads_hold_more_than_a_lower_limit() {
    for workers in [1, 2] {
        let server = server(workers);
        let begin = |n| {
            let stream = connect(&server);
            (&stream).write_all(&set(n)[..LEN / 2]).unwrap();
            (n, stream)
        };
        let uploads: Vec<(usize, TcpStream)> = (0..20).map(begin).collect();
        while stat(&server, "uploads") < 20 {}
        let limit = lowest(&server);
        rest(&server, 5);
        for (n, stream) in &uploads {
            let mut stream: &TcpStream = stream;
            stream.write_all(&set(*n)[LEN / 2..]).unwrap();
            assert_eq!(line(stream), "STORED\r\n");
        }
        rest(&server, 5);
        // What is left of them fits, and is whole.
        let found = (0..20).filter_map(|n| Some((n, stored(&server, &format!("key-{n}"))?)));
        let mut count = 0;
        for (n, found) in found {
            assert!(found == value(n, LEN), "{n}");
            count += 1;
        }
        assert!(count > 0 && count * LEN < limit, "{count} of 20, {limit}");
    }
}

#[test]
fn uploads_under_a_low_limit_take_turns() {
    let server = server(2);
    lowest(&server);
    rest(&server, 2);
    let stored = || b"STORED\r\n".to_vec();
    let talks = |count| (0..count).map(|n| Talk::new(&server, set(n), stored(), 16 << 10));
    all_done(talks(20).collect(), || {});
    assert!(stat(&server, "uploads_queued") > 0, "they have to wait");

    // A higher limit admits more at a time, at once.
    assert!(limit(&server, 128));
    let queued = stat(&server, "uploads_queued");
    rest(&server, 2);
    all_done(talks(8).collect(), || {});
    assert_eq!(stat(&server, "uploads_queued"), queued);
}

/// Each is written for watchers, or counted as dropped.
#[test]
fn watchers_see_the_evictions_by_a_lower_limit() {
    let server = server(2);
    let sets: Vec<String> = (0..60_000)
        .map(|n| format!("set key-{n} 0 0 1000 noreply\r\n{}\r\n", "v".repeat(1000)))
        .collect();
    server.say(&[sets.concat().as_bytes()]);
    assert_eq!(stat(&server, "evictions"), 0);
    let mut watcher = connect(&server);
    watcher.write_all(b"watch evictions\r\n").unwrap();
    assert_eq!(line(&watcher), "OK\r\n");
    assert!(limit(&server, 64));
    let mut line = String::new();
    // It stays connected: nothing is recorded without a watcher.
    let mut watcher = BufReader::new(watcher);
    watcher.read_line(&mut line).unwrap();
    assert!(line.contains(" type=eviction key=key-"), "{line}");
    // Once the limit is reached the workers sleep, and evict no more.
    rest(&server, 2);
    let evicted = stat(&server, "evictions");
    assert!(evicted > 10_000, "{evicted}");
    // A thread of its own writes them.
    let (begun, mut told) = (Since::now(), 0);
    while told < evicted {
        assert!(begun.elapsed() < TIMEOUT, "{told} of {evicted}");
        told = stat(&server, "log_worker_written") + stat(&server, "log_worker_dropped");
    }
    assert!(stat(&server, "log_worker_written") > 0);
    assert_eq!(told, evicted);
    drop(watcher);
}
