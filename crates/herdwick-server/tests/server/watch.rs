//! `watch`: the events that watchers receive, and the limits on what they can cause.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use crate::common::{Peer, client, connect, line, shown, stat, with};
use std::time::Duration;

use herdwick_server::{Config, Latency, Offers, Server};

fn server(workers: usize) -> Server {
    with(Config {
        workers: Some(workers),
        memory_bytes: 24 << 20,
        ..Config::local()
    })
}

/// Opens a connection that watches, and reads its OK.
fn watch(server: &Server, topics: &str) -> BufReader<TcpStream> {
    let mut stream = connect(server);
    stream
        .write_all(format!("watch {topics}\r\n").as_bytes())
        .unwrap();
    assert_eq!(line(&stream), "OK\r\n");
    BufReader::new(stream)
}

/// Returns its next lines, without time and number.
fn seen(watcher: &mut BufReader<TcpStream>, count: usize) -> Vec<String> {
    heard(watcher, count)
        .iter()
        .map(|line| without_descriptor(line))
        .collect()
}

fn with_slow_log(slow: Duration) -> Server {
    with(Config {
        workers: Some(2),
        latency: Latency {
            histograms: false,
            slow: Some(slow),
        },
        ..Config::local()
    })
}

/// Returns the words of a line of the slow log, without its time.
fn slow(line: &str) -> Vec<&str> {
    let words = line.split(' ');
    let is_time = |word: &str| {
        word.strip_prefix("us=")
            .is_some_and(|us| us.parse::<u64>().is_ok())
    };
    assert_eq!(
        line.split(' ').filter(|word| is_time(word)).count(),
        1,
        "{line}"
    );
    words.filter(|word| !is_time(word)).collect()
}

/// Each request is made when the event of the one before it has been seen: another worker may serve it.
#[test]
fn slow_log_shows_requests_of_every_transport() {
    let server = with_slow_log(Duration::ZERO);
    let mut watcher = watch(&server, "slow");
    let line = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    let value = vec![b'v'; 100_000];
    server.say(&[b"set large 0 0 100000\r\n", &value, b"\r\n"]);
    let expected = line("type=slow_request key=large cmd=set requests=1 transport=tcp cfd=-1");
    assert_eq!(slow(&seen(&mut watcher, 1)[0]), expected);
    server.say(&[b"get %61 a b c\r\n"]);
    let expected = line("type=slow_request key=%2561 cmd=get requests=4 transport=tcp cfd=-1");
    assert_eq!(slow(&seen(&mut watcher, 1)[0]), expected);
    assert_eq!(stat(&server, "slow_requests"), 5);
    let mut client = client(&server);
    client.delete("gone").unwrap();
    let expected = line("type=slow_request key=gone cmd=delete requests=1 transport=shm cfd=-1");
    assert_eq!(slow(&heard(&mut watcher, 1)[0]), expected);
    assert_eq!(stat(&server, "slow_requests"), 6);
}

#[test]
fn what_is_not_slow_is_not_in_the_slow_log() {
    let server = with_slow_log(Duration::from_secs(3600));
    let mut watcher = watch(&server, "slow connevents");
    server.say(&[b"set a 0 0 1\r\n1\r\nget a\r\n"]);
    let said = seen(&mut watcher, 2);
    let kinds = said.iter().map(|line| line.split(' ').next().unwrap());
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        ["type=conn_new", "type=conn_close"]
    );
    assert_eq!(stat(&server, "slow_requests"), 0);
    // A server without a slow log has the topic, too.
    watch(&self::server(1), "slow");
}

/// Replaces the descriptor of a connection by `cfd=-1`.
fn without_descriptor(line: &str) -> String {
    let word = |word: &str| match word.strip_prefix("cfd=") {
        Some(number) => {
            assert!(number.parse::<u32>().is_ok(), "{line}");
            "cfd=-1".to_owned()
        }
        None => word.to_owned(),
    };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The same, with descriptors.
fn heard(watcher: &mut BufReader<TcpStream>, count: usize) -> Vec<String> {
    let next = |_| {
        let mut line = String::new();
        watcher.read_line(&mut line).unwrap();
        let mut words = line.trim_end().splitn(3, ' ');
        let (time, number) = (words.next().unwrap(), words.next().unwrap());
        assert!(
            time.starts_with("ts=") && time.contains('.') && number.starts_with("gid="),
            "{line}"
        );
        words.next().unwrap().to_owned()
    };
    (0..count).map(next).collect()
}

/// Lines in the format of memcached's logger; events of requests are in the order of their
/// partition.
#[test]
fn every_watch_topic_has_its_format() {
    let server = server(1);
    let mut fetchers = watch(&server, "");
    let mut changes = watch(&server, "mutations deletions");
    server.say(&[b"set a:b 0 100 3\r\nabc\r\nget a:b none\r\nadd a:b 0 0 1\r\nx\r\ncas a:b 0 0 1 999999\r\nx\r\nappend a:b 0 0 1\r\nd\r\nincr n 1\r\nmd a:b I\r\nmg new N30\r\ndelete a:b\r\ndelete a:b\r\n"]);
    let get = |key: &str, found: bool, size: usize| {
        let (status, class) = if found {
            ("found", 1)
        } else {
            ("not_found", 0)
        };
        format!("type=item_get key={key} status={status} clsid={class} cfd=-1 size={size}")
    };
    assert_eq!(
        seen(&mut fetchers, 11),
        [
            get("a%3Ab", false, 0),
            get("a%3Ab", true, 3),
            get("none", false, 0),
            get("a%3Ab", true, 3),
            get("a%3Ab", true, 3),
            get("a%3Ab", true, 3),
            get("n", false, 0),
            get("a%3Ab", true, 4),
            get("new", false, 0),
            get("a%3Ab", true, 4),
            get("a%3Ab", false, 0),
        ]
    );
    assert_eq!(
        seen(&mut changes, 5),
        [
            "type=item_store key=a%3Ab status=stored cmd=set ttl=100 clsid=1 cfd=-1 size=3",
            "type=item_store key=a%3Ab status=not_stored cmd=add ttl=0 clsid=1 cfd=-1 size=1",
            "type=item_store key=a%3Ab status=exists cmd=cas ttl=0 clsid=1 cfd=-1 size=1",
            "type=item_store key=a%3Ab status=stored cmd=append ttl=0 clsid=1 cfd=-1 size=4",
            "type=deleted key=a%3Ab cmd=delete clsid=1 size=4",
        ]
    );
}

/// memcached looks an item up before it stores; a watcher of both topics receives the events in
/// that order.
#[test]
fn fetch_event_precedes_its_store_event() {
    let server = server(2);
    let mut both = watch(&server, "fetchers mutations");
    server.say(&[b"set foo 0 0 5 noreply\r\nhello\r\nset foo 0 0 1\r\n1\r\n"]);
    assert_eq!(
        seen(&mut both, 4),
        [
            "type=item_get key=foo status=not_found clsid=0 cfd=-1 size=0",
            "type=item_store key=foo status=stored cmd=set ttl=0 clsid=1 cfd=-1 size=5",
            "type=item_get key=foo status=found clsid=1 cfd=-1 size=5",
            "type=item_store key=foo status=stored cmd=set ttl=0 clsid=1 cfd=-1 size=1",
        ]
    );
}

/// Whichever worker executes a request, its event has the connection's descriptor.
#[test]
fn events_name_the_connection_of_their_request() {
    let server = server(3);
    let mut watcher = watch(&server, "fetchers");
    let mut clients = [(); 2].map(|()| connect(&server));
    let mut numbers = Vec::new();
    for client in &mut clients {
        let gets: String = (0..20).map(|n| format!("mg {n}\r\n")).collect();
        client.write_all(gets.as_bytes()).unwrap();
        let lines = heard(&mut watcher, 20);
        let number = |line: &String| {
            let word = line.split(' ').find(|word| word.starts_with("cfd="));
            word.unwrap().to_owned()
        };
        let mut named: Vec<String> = lines.iter().map(number).collect();
        named.dedup();
        assert_eq!(named.len(), 1, "{lines:?}");
        numbers.push(named.remove(0));
    }
    assert_ne!(numbers[0], numbers[1]);
    let listed = shown(&server.say(&[b"stats conns\r\n"]));
    for number in numbers {
        let line = format!("STAT {}:addr tcp:127.0.0.1", &number["cfd=".len()..]);
        assert!(listed.contains(&line), "{line} {listed}");
    }
}

#[test]
fn evictions_and_connections_are_seen() {
    let server = server(1);
    let mut evictions = watch(&server, "evictions");
    for n in 0..300 {
        let value = "x".repeat(100_000);
        server.say(&[format!("set {n} 0 0 100000\r\n{value}\r\n").as_bytes()]);
    }
    let first = seen(&mut evictions, 1).remove(0);
    let key = first.strip_prefix("type=eviction key=").and_then(|rest| {
        let (key, rest) = rest.split_once(' ')?;
        rest.starts_with("fetch=no ttl=-1 la=").then_some(key)
    });
    let key: Option<u32> = key.and_then(|key| key.parse().ok());
    assert!(key.is_some_and(|key| key < 300), "{first}");
    assert!(first.ends_with("clsid=1 size=100000"), "{first}");

    let mut connections = watch(&server, "connevents");
    let client = connect(&server);
    let port = client.local_addr().unwrap().port();
    drop(client);
    let lines = seen(&mut connections, 2);
    assert!(
        lines[0].starts_with(&format!(
            "type=conn_new rip=127.0.0.1 rport={port} transport=tcp cfd="
        )),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("type=conn_close rip=127.0.0.1")
            && lines[1].contains(" reason=normal cfd="),
        "{lines:?}"
    );
    for (said, reason) in [
        (&b"quit\r\n"[..], "normal"),
        (b"GET / HTTP/1.1\r\n", "error"),
        (b"\x80bad packet of no known kind", "error"),
    ] {
        server.say(&[said]);
        let lines = seen(&mut connections, 2);
        assert!(
            lines[1].contains(&format!(" reason={reason} cfd=")),
            "{lines:?}"
        );
    }
}

/// Events of every worker arrive, those of requests over shared memory included.
#[test]
fn all_partitions_are_watched() {
    let server = server(3);
    let mut watcher = watch(&server, "fetchers");
    let gets: String = (0..50).map(|n| format!("get {n}\r\n")).collect();
    server.say(&[gets.as_bytes()]);
    let mut keys: Vec<u32> = seen(&mut watcher, 50)
        .iter()
        .map(|line| line.split(' ').nth(1).unwrap()[4..].parse().unwrap())
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, Vec::from_iter(0..50));
}

#[test]
fn number_of_watchers_is_limited() {
    let server = server(2);
    assert_eq!(shown(&server.say(&[b"watch nothing\r\n"])), "ERROR\\r\\n");
    let watchers: Vec<_> = (0..20).map(|_| watch(&server, "")).collect();
    let mut refused = String::new();
    let mut stream = connect(&server);
    stream.write_all(b"watch\r\n").unwrap();
    stream.read_to_string(&mut refused).unwrap();
    assert_eq!(refused, "WATCHER_TOO_MANY log watcher limit reached\r\n");
    assert!(shown(&server.say(&[b"stats\r\n"])).contains("log_watchers 20\\r\\n"));
    drop(watchers);
    while !shown(&server.say(&[b"stats\r\n"])).contains("log_watchers 0\\r\\n") {
        std::thread::yield_now();
    }
    let server = with(Config {
        offers: Offers {
            watch: false,
            ..Offers::default()
        },
        ..Config::local()
    });
    assert_eq!(
        shown(&server.say(&[b"watch\r\n"])),
        "CLIENT_ERROR watch commands not allowed\\r\\n"
    );
}

#[test]
fn stats_reset_zeroes_the_events() {
    let server = server(1);
    let mut watcher = watch(&server, "fetchers");
    server.say(&[b"get a\r\n"]);
    seen(&mut watcher, 1);
    let counters = ["log_worker_written", "log_watcher_sent"];
    while counters.iter().any(|name| stat(&server, name) == 0) {}
    assert_eq!(shown(&server.say(&[b"stats reset\r\n"])), "RESET\\r\\n");
    assert_eq!(counters.map(|name| stat(&server, name)), [0, 0]);
}

/// Bursts of a few hundred events, as a busy worker has them.
#[test]
fn burst_of_2000_events_is_delivered_whole() {
    let server = server(1);
    let mut watcher = watch(&server, "fetchers");
    for burst in 1..=3 {
        let gets: String = (0..2000).map(|n| format!("get {n}\r\n")).collect();
        server.say(&[gets.as_bytes()]);
        let lines = seen(&mut watcher, 2000);
        assert!(lines[1999].contains("key=1999 "), "{burst}");
    }
    let said = server.say(&[b"stats\r\n"]);
    assert!(shown(&said).contains("log_worker_dropped 0\\r"));
}

/// M47: a watcher that does not read has a bounded buffer, is notified of the number of skipped
/// events, and delays no client.
#[test]
fn m47_watcher_that_does_not_read_skips_lines() {
    let server = server(1);
    let mut watcher = watch(&server, "fetchers");
    let gets = format!("get {}\r\n", "k".repeat(240)).repeat(200);
    let stat = |name: &str| -> u64 {
        let said = String::from_utf8(server.say(&[b"stats\r\n"])).unwrap();
        let prefix = format!("STAT {name} ");
        let line = said.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap().parse().unwrap()
    };
    while stat("log_watcher_skipped") == 0 {
        assert_eq!(server.say(&[gets.as_bytes()]).len(), 200 * 5);
    }
    let mut line = String::new();
    while !line.starts_with("[skipped=") {
        line.clear();
        watcher.read_line(&mut line).unwrap();
        // The notice of skipped events is written when there is room again.
        if line.is_empty() || watcher.buffer().is_empty() {
            server.say(&[b"get next\r\n"]);
        }
    }
    assert!(stat("log_watcher_sent") > 0);
}
