//! Reads by stags in the memory of the engine slab: what they find, and when their stags are of no more use.

use std::time::Duration;

use herdwick::{Client, Item, OneSidedReads, Put};
use herdwick_server::{Engine, OneSidedReads as Readers, Server, spawn};

use crate::one_sided::{client, config_of, counters, say};

fn server() -> Server {
    spawn(config_of(Engine::Slab, Readers::Owner)).unwrap()
}

/// Reads a key until its stag is known and the memory has answered.
fn read(reader: &mut Client, key: &str) -> Item {
    let before = counters(reader).hits;
    loop {
        let item = reader.gets(key).unwrap().expect("it is stored");
        if counters(reader).hits > before {
            return item;
        }
    }
}

#[test]
fn the_second_read_of_a_key_finds_what_requests_find() {
    let server = server();
    let mut reader = client(&server, OneSidedReads::Always);
    let mut other = client(&server, OneSidedReads::Never);
    let lens = [
        0, 1, 8, 20, 31, 32, 33, 100, 960, 1024, 4000, 9000, 100_000, 900_000,
    ];
    for (n, len) in (1..).zip(lens) {
        // A key too long for a request line, too.
        let key = format!("{}-{len}", "k".repeat(len % 11 * 20));
        let value = vec![n as u8; len];
        other.set(&key, Put::new(&value).flags(n)).unwrap();
        let item = read(&mut reader, &key);
        assert_eq!((&item.value, item.flags), (&value, n));
        assert_eq!(Some(item), other.gets(&key).unwrap(), "{len}");
    }
    // A key keeps its stag, whatever the size of its item.
    let absent = counters(&reader).absent;
    for len in [10, 50_000, 3, 700_000, 0] {
        let value = vec![len as u8; len];
        other.set("-0", &value).unwrap();
        let hits = counters(&reader).hits;
        assert_eq!(reader.get("-0").unwrap(), Some(value));
        assert_eq!(counters(&reader).hits, hits + 1, "{len}");
    }
    assert_eq!(counters(&reader).absent, absent);
    // What is not stored has no stag.
    for _ in 0..3 {
        assert_eq!(reader.get("none").unwrap(), None);
    }
    assert_eq!(counters(&reader).absent, absent + 3);
}

#[test]
fn nothing_that_is_gone_is_read_by_its_stag_after_its_end_was_acknowledged() {
    let server = server();
    let mut reader = client(&server, OneSidedReads::Always);
    let mut other = client(&server, OneSidedReads::Never);
    let minute = Duration::from_secs(60);
    for key in ["deleted", "replaced", "flushed", "late"] {
        other.set(key, "old").unwrap();
        assert_eq!(read(&mut reader, key).value, b"old");
    }
    for key in ["mortal", "touched"] {
        other.set(key, Put::new("old").ttl(minute)).unwrap();
        assert_eq!(read(&mut reader, key).value, b"old");
    }
    assert!(other.delete("deleted").unwrap());
    assert_eq!(reader.get("deleted").unwrap(), None);
    // The stag goes to another key with its chunk.
    other.set("another", "new").unwrap();
    assert_eq!(reader.get("deleted").unwrap(), None);
    assert_eq!(read(&mut reader, "another").value, b"new");
    other.set("replaced", "new").unwrap();
    assert_eq!(reader.get("replaced").unwrap(), Some(b"new".to_vec()));
    // The reader tells the time itself: the workers may sleep.
    assert!(other.touch("touched", 5 * minute).unwrap());
    assert_eq!(say(&server, &["debugtime 61"]), ["OK"]);
    assert_eq!(reader.get("mortal").unwrap(), None);
    assert_eq!(read(&mut reader, "touched").value, b"old");
    assert_eq!(say(&server, &["debugtime 300"]), ["OK"]);
    assert_eq!(reader.get("touched").unwrap(), None);
    assert_eq!(counters(&reader).expired, 2);
    // Where the server's clock stands, it is not the reader's.
    other.set("stopped", Put::new("old").ttl(minute)).unwrap();
    read(&mut reader, "stopped");
    assert_eq!(say(&server, &["debugtime p"]), ["OK"]);
    assert!(reader.get("stopped").unwrap().is_some());
    assert_eq!(counters(&reader).expired, 3);
    assert_eq!(say(&server, &["debugtime r"]), ["OK"]);
    assert_eq!(say(&server, &["flush_all 100"]), ["OK"]);
    read(&mut reader, "late");
    assert_eq!(say(&server, &["debugtime 101"]), ["OK"]);
    assert_eq!(reader.get("late").unwrap(), None);
    other.set("flushed", "old").unwrap();
    read(&mut reader, "flushed");
    other.flush_all().unwrap();
    assert_eq!(reader.get("flushed").unwrap(), None);
    // A stale item is for the server: one reader wins it.
    assert_eq!(say(&server, &["set s 0 0 1\r\nx"]), ["STORED"]);
    read(&mut reader, "s");
    assert_eq!(say(&server, &["md s I T30"]), ["HD"]);
    let before = counters(&reader);
    assert!(reader.get("s").unwrap().is_some());
    assert_eq!(counters(&reader).stale, before.stale + 1);
}
