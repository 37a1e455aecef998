//! `cache_memlimit` while a server runs: memory that goes back to the system, and items that stay.
//! One test, alone in its process, because it measures the whole process.

mod common;

use std::{
    io::{BufWriter, Read, Write},
    net::Shutdown,
    time::Instant,
};

use common::{Peer, TIMEOUT, connect, with};
use herdwick_server::{Config, Server};

const MIB: usize = 1 << 20;
/// Bytes that the process may take besides `-m`.
const SLACK: usize = 24 << 20;
const VALUE: usize = 1000;
/// Bytes that an item takes in the store: header, key, value, padding.
const ITEM: usize = VALUE + 44;

/// Resident bytes of this process, the server in it included (proc(5), statm).
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Stores items `from..to`, and reads nothing back.
fn store(server: &Server, items: std::ops::Range<usize>) {
    let mut stream = connect(server);
    let mut to = BufWriter::new(&stream);
    let value = "v".repeat(VALUE);
    for n in items {
        write!(to, "set {n:08} 0 0 {VALUE} noreply\r\n{value}\r\n").unwrap();
    }
    to.write_all(b"version\r\n").unwrap();
    drop(to);
    stream.shutdown(Shutdown::Write).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "VERSION 1.6.45\r\n");
}

/// Returns how many of the items are there.
fn found(server: &Server, items: std::ops::Range<usize>) -> usize {
    let ask: Vec<String> = items.map(|n| format!("mg {n:08}\r\n")).collect();
    let said = server.say(&[ask.concat().as_bytes()]);
    said.split(|&byte| byte == b'\n')
        .filter(|line| line.starts_with(b"HD"))
        .count()
}

fn stat(server: &Server, name: &str) -> usize {
    let said = String::from_utf8(server.say(&[b"stats\r\n"])).unwrap();
    let prefix = format!("STAT {name} ");
    let value = said.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap().trim().parse().unwrap()
}

/// Sets the limit, and waits until so much is resident.
#[expect(clippy::disallowed_methods, reason = "bounds a failure")]
fn limit(server: &Server, megabytes: usize) {
    let said = server.say(&[format!("cache_memlimit {megabytes}\r\n").as_bytes()]);
    assert_eq!(said, b"OK\r\n");
    let end = Instant::now() + TIMEOUT;
    while resident() > megabytes * MIB + SLACK {
        assert!(Instant::now() < end, "{} bytes are resident", resident());
        server.say(&[b"version\r\n"]);
    }
}

#[test]
fn what_is_beyond_the_limit_goes_back_and_may_be_used_again() {
    let server = with(Config {
        memory_bytes: 256 * MIB,
        workers: Some(2),
        ..Config::local()
    });
    let items = 300 * MIB / ITEM;
    store(&server, 0..items);
    assert!(resident() > 220 * MIB, "{}", resident());
    let full = stat(&server, "curr_items");

    limit(&server, 100);
    let (kept, part) = (stat(&server, "curr_items"), 20 * MIB / ITEM);
    assert!(kept < full / 2, "{kept} of {full}");
    // About 40 MiB of it are left for the segments.
    assert_eq!(found(&server, items - part..items), part, "the youngest");
    assert_eq!(
        found(&server, items - full..items - 2 * kept),
        0,
        "the oldest"
    );

    // The limit holds when it is written on, too.
    store(&server, items..2 * items);
    limit(&server, 100);
    assert_eq!(found(&server, 2 * items - part..2 * items), part);
    assert!(stat(&server, "curr_items") < full / 2);

    limit(&server, 256);
    store(&server, 0..items);
    assert!(stat(&server, "curr_items") > full * 9 / 10);
    assert!(resident() > 220 * MIB, "{}", resident());
    assert_eq!(stat(&server, "memory_limit_failures"), 0);
    server.shutdown();
}
