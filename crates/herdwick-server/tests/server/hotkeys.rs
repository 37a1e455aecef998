//! Hot keys, as `stats hotkeys` and the metrics show them.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use crate::common::{Peer, client, with};
use herdwick_server::{Config, Offers, Server};

fn server(change: impl FnOnce(&mut Config)) -> Server {
    let mut config = Config {
        workers: Some(3),
        ..Config::local()
    };
    change(&mut config);
    with(config)
}

/// Returns the keys and their counts, hottest first.
fn hot(server: &Server) -> Vec<(String, u64)> {
    let said = String::from_utf8(server.say(&[b"stats hotkeys\r\n"])).unwrap();
    assert!(said.ends_with("END\r\n"), "{said}");
    let value = |rank: usize, what: &str| {
        let prefix = format!("STAT hotkey:{rank}:{what} ");
        said.lines().find_map(|line| line.strip_prefix(&prefix))
    };
    (1..)
        .map_while(|rank| {
            let count = value(rank, "requests")?.parse().unwrap();
            Some((value(rank, "key")?.to_owned(), count))
        })
        .collect()
}

/// Reads `k7` seven times, `k6` six times and so on.
fn ask(server: &Server) {
    let lines: String = (1..8)
        .flat_map(|n| (0..n).map(move |_| format!("get k{n}\r\n")))
        .collect();
    server.say(&[lines.as_bytes()]);
}

#[test]
fn hot_keys_are_ranked_over_all_workers_and_transports() {
    let server = server(|config| config.hot_keys = 4);
    ask(&server);
    server.say(&[b"set a\x01b 0 0 1\r\n1\r\n"]);
    let mut client = client(&server);
    for _ in 0..10 {
        client.get("k1").unwrap();
    }
    let found = hot(&server);
    let ranked: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(ranked, ["k1", "k7", "k6", "k5"]);
    // A retry counts as a request too.
    assert!(found[0].1 >= 11, "{found:?}");
    assert_eq!(found[1].1, 7);
}

#[test]
fn hot_keys_are_percent_encoded() {
    let server = server(|_| {});
    server.say(&[b"get a\x01b%\r\n"]);
    assert_eq!(hot(&server), [("a%01b%25".to_owned(), 1)]);
}

#[test]
fn hot_keys_are_hidden_if_disabled_or_dumps_are_off() {
    let hidden = |config: &mut Config| {
        config.offers = Offers {
            dump: false,
            ..Offers::default()
        };
        config.metrics = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        config.metrics_hot_keys = true;
    };
    let silent = server(|config| config.hot_keys = 0);
    ask(&silent);
    assert!(hot(&silent).is_empty());
    let hidden = server(hidden);
    ask(&hidden);
    assert_eq!(hidden.say(&[b"stats hotkeys\r\n"]), b"ERROR\r\n");
    assert!(!scraped(&hidden).contains("herdwick_hot_key"));
}

#[test]
fn metrics_page_lists_the_ten_hottest_keys() {
    let server = server(|config| {
        config.hot_keys = 16;
        config.metrics = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        config.metrics_hot_keys = true;
    });
    let lines: String = (0..30).map(|n| format!("get k{n}\r\n")).collect();
    server.say(&[lines.as_bytes()]);
    let page = scraped(&server);
    let name = "herdwick_hot_key_requests_per_second{";
    let series = page.lines().filter(|line| line.starts_with(name));
    assert_eq!(series.count(), 10, "{page}");
    assert_eq!(hot(&server).len(), 16);
}

/// Off by default in the metrics: each key makes a series, and metrics need no password.
#[test]
fn metrics_contain_no_keys_by_default() {
    let server = server(|config| {
        config.metrics = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    });
    server.say(&[b"get secret\r\n"]);
    assert_eq!(hot(&server), [("secret".to_owned(), 1)]);
    let page = scraped(&server);
    assert!(
        page.contains("memcached_up 1") && !page.contains("secret"),
        "{page}"
    );
}

fn scraped(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.metrics().unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}
