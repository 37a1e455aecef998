//! The metrics page, for valid and for hostile HTTP clients.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

use crate::common::{Memcached, Peer, client, ours, stat, with};
use herdwick_server::{Config, Latency, Server};

/// Families and series that memcached_exporter 0.16.0 produced from this server.
const EXPORTED: &str = include_str!("../data/memcached_exporter-0.16.0.txt");

fn measured(workers: usize) -> Server {
    with(Config {
        workers: Some(workers),
        metrics: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        ..Config::local()
    })
}

fn visit(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.metrics().unwrap()).unwrap();
    let timeout = Some(Duration::from_secs(60));
    stream.set_read_timeout(timeout).unwrap();
    stream
}

/// Sends `bytes`; returns head and body of the response.
fn ask(server: &Server, bytes: &[u8]) -> (String, String) {
    let mut stream = visit(server);
    stream.write_all(bytes).unwrap();
    hear(&mut stream)
}

fn hear(stream: &mut TcpStream) -> (String, String) {
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n").expect("has a head");
    (head.to_owned(), body.to_owned())
}

const SCRAPE: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n";

fn scrape(server: &Server) -> Page {
    let (head, body) = ask(server, SCRAPE);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"));
    assert!(head.contains(&format!("Content-Length: {}", body.len())));
    Page::read(&body)
}

/// A page in the text format 0.0.4, parsed strictly.
struct Page {
    kinds: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

impl Page {
    fn read(text: &str) -> Self {
        let (mut kinds, mut series) = (BTreeMap::new(), BTreeMap::new());
        let mut family = String::new();
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                family = help.split(' ').next().unwrap().to_owned();
                assert!(help.len() > family.len() + 1, "{line}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, family);
                assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
                let first = kinds.insert(name.to_owned(), kind.to_owned()).is_none();
                assert!(first, "{line}: the lines of a family are adjacent");
            } else {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let mut of_family = vec![family.clone()];
                if kinds[&family] == "histogram" {
                    let parts = ["_bucket", "_sum", "_count"];
                    of_family = parts.map(|part| format!("{family}{part}")).into();
                }
                let name_alone = name.split('{').next().unwrap().to_owned();
                assert!(of_family.contains(&name_alone), "{line}");
                let first = series
                    .insert(sorted(name), value.parse().unwrap())
                    .is_none();
                assert!(first, "{line}: a series occurs once");
            }
        }
        Self { kinds, series }
    }

    fn value(&self, series: &str) -> f64 {
        let value = self.series.get(&sorted(series));
        *value.unwrap_or_else(|| panic!("no {series}"))
    }
}

/// Sorts the labels of a series; a version label is removed.
fn sorted(series: &str) -> String {
    let Some((name, labels)) = series.split_once('{') else {
        return series.to_owned();
    };
    let labels = labels.strip_suffix('}').expect("labels end");
    let mut labels: Vec<&str> = labels.split(',').collect();
    labels.retain(|label| !label.starts_with("version="));
    labels.sort_unstable();
    match &labels[..] {
        [] => name.to_owned(),
        labels => format!("{name}{{{}}}", labels.join(",")),
    }
}

#[test]
fn metrics_page_has_every_name_of_memcached_exporter() {
    let server = measured(2);
    server.say(&[b"set a 0 0 1\r\n1\r\n"]);
    let page = scrape(&server);
    for line in EXPORTED.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(family) => {
                let (name, kind) = family.split_once(' ').unwrap();
                assert_eq!(
                    page.kinds.get(name).map(String::as_str),
                    Some(kind),
                    "{name}"
                );
            }
            None => drop(page.value(line)),
        }
    }
}

#[test]
fn dashboard_and_alerts_use_existing_metrics() {
    let server = with(Config {
        metrics: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        metrics_hot_keys: true,
        ..Config::local()
    });
    server.say(&[b"get a\r\n"]);
    let page = scrape(&server);
    let dashboard = include_str!("../../../../packaging/grafana.json");
    let alerts = include_str!("../../../../packaging/alerts.yml");
    let all = format!("{dashboard}\n{alerts}");
    let words = all.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let asked = |word: &&str| word.starts_with("memcached_") || word.starts_with("herdwick_");
    let names: Vec<&str> = words.filter(asked).collect();
    assert!(names.len() > 20);
    for name in names {
        assert!(page.kinds.contains_key(name), "{name}");
    }
}

#[test]
fn metrics_page_counts_requests() {
    let server = measured(3);
    server.say(&[
        b"set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\nset c 0 0 1\r\n3\r\n",
        b"get a b none\r\nincr a 5\r\ndelete none\r\ndelete b\r\nboguscommand x\r\n",
        b"cas a 0 0 1 1\r\n1\r\ncas none 0 0 1 1\r\n1\r\n",
    ]);
    let page = scrape(&server);
    let command = |command: &str, status: &str| {
        let series =
            format!("memcached_commands_total{{command=\"{command}\",status=\"{status}\"}}");
        page.value(&series)
    };
    assert_eq!(command("set", "hit"), 3.0);
    assert_eq!((command("get", "hit"), command("get", "miss")), (2.0, 1.0));
    assert_eq!(
        (command("delete", "hit"), command("delete", "miss")),
        (1.0, 1.0)
    );
    assert_eq!(
        (command("cas", "badval"), command("cas", "miss")),
        (1.0, 1.0)
    );
    assert_eq!(command("incr", "hit"), 1.0);
    assert_eq!(page.value("memcached_current_items"), 2.0);
    let drops = "herdwick_drops_total{fabric=\"tcp\",reason=\"refused_lines\"}";
    assert_eq!(page.value(drops), 1.0);
    let sum = |name: &str| -> f64 {
        let of = |(series, value): (&String, &f64)| series.starts_with(name).then_some(*value);
        page.series.iter().filter_map(of).sum()
    };
    // Three sets, three keys read, one incr, two deletes, two cas.
    assert_eq!(sum("herdwick_fabric_requests_total{fabric=\"tcp\""), 11.0);
    assert_eq!(sum("herdwick_worker_items"), 2.0);
    assert_eq!(stat(&server, "tcp_requests"), 11);
}

#[test]
fn requests_over_shm_are_counted_separately() {
    let server = measured(2);
    let mut client = client(&server);
    let over = client.session().unwrap().transport().to_string();
    for n in 0..10 {
        client.set(format!("k{n}"), &b"1"[..]).unwrap();
    }
    let page = scrape(&server);
    let transport = |worker: u8, fabric: &str, what: &str| {
        let labels = format!("worker=\"{worker}\",fabric=\"{fabric}\"");
        page.value(&format!("herdwick_fabric_{what}_total{{{labels}}}"))
    };
    assert_eq!(over, "shm");
    let events = |event: &str| {
        let series = format!("herdwick_fabric_events_total{{fabric=\"shm\",event=\"{event}\"}}");
        page.value(&series)
    };
    // A client first probes the path to each worker by canceling a request it never made.
    assert!(events("canceled") >= 2.0);
    let all = transport(0, "shm", "requests") + transport(1, "shm", "requests");
    assert_eq!(all - events("retries_remembered"), 10.0);
    assert_eq!(
        transport(0, "tcp", "requests") + transport(1, "tcp", "requests"),
        0.0
    );
    assert_eq!(page.value("herdwick_leases"), 1.0);
    // What was served is no drop.
    let dropped = page.series.iter().filter(|(series, value)| {
        series.starts_with("herdwick_drops_total{fabric=\"shm\"") && **value > 0.0
    });
    assert_eq!(dropped.collect::<Vec<_>>(), []);
}

/// Whichever worker executes a request, and however its value arrives, its time is recorded once, in the buckets
/// and in `stats latency` alike.
#[test]
fn time_of_every_request_is_recorded_once() {
    let server = with(Config {
        workers: Some(3),
        metrics: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        latency: Latency {
            histograms: true,
            slow: None,
        },
        ..Config::local()
    });
    let large = vec![b'v'; 200_000];
    let keys: Vec<String> = (0..300).map(|n| format!("key{n}")).collect();
    let get_all = format!("get {}\r\n", keys.join(" "));
    let mut expected = [
        ("get", 0),
        ("touch", 0),
        ("set", 0),
        ("incr", 0),
        ("delete", 0),
    ];
    let mut client = client(&server);
    for key in &keys[..20] {
        server.say(&[
            b"set big",
            key.as_bytes(),
            b" 0 0 200000\r\n",
            &large,
            b"\r\n",
        ]);
        server.say(&[b"get big", key.as_bytes(), b"\r\n", get_all.as_bytes()]);
        server.say(&[
            b"touch big",
            key.as_bytes(),
            b" 9\r\ngat 9 none\r\nincr none 1\r\n",
        ]);
        server.say(&[
            b"delete big",
            key.as_bytes(),
            b"\r\ndelete none\r\nmg none v\r\n",
        ]);
        client.set(key.as_str(), &b"1"[..]).unwrap();
        for (sum, each) in expected.iter_mut().zip([302, 2, 1, 1, 2]) {
            sum.1 += each;
        }
    }
    let said = String::from_utf8(server.say(&[b"stats latency\r\n"])).unwrap();
    let value = |name: &str| -> f64 {
        let prefix = format!("STAT latency:{name} ");
        let line = said.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("{name} in {said}"))
            .parse()
            .unwrap()
    };
    let page = scrape(&server);
    let series = |fabric: &str, command: &str, part: &str, le: &str| {
        let labels = format!("fabric=\"{fabric}\",command=\"{command}\"{le}");
        page.value(&format!(
            "herdwick_request_duration_seconds_{part}{{{labels}}}"
        ))
    };
    let of_shm = [("shm", "set", 20)];
    let of_tcp = expected.map(|(command, count)| ("tcp", command, count));
    for (fabric, command, count) in of_tcp.into_iter().chain(of_shm) {
        let stat = |what: &str| value(&format!("{fabric}:{command}:{what}"));
        assert_eq!(stat("count"), f64::from(count), "{fabric} {command}");
        assert_eq!(series(fabric, command, "count", ""), f64::from(count));
        assert_eq!(
            series(fabric, command, "bucket", ",le=\"+Inf\""),
            f64::from(count)
        );
        let times = ["p50", "p99", "p999", "max"].map(stat);
        assert!(
            times[0] > 0.0 && times.is_sorted(),
            "{fabric} {command}: {times:?}"
        );
        assert!(
            (0.0..=times[3]).contains(&stat("mean")),
            "{fabric} {command}"
        );
        let sum = stat("mean") * f64::from(count) / 1e6;
        let on_page = series(fabric, command, "sum", "");
        assert!(
            (sum - on_page).abs() <= on_page / 100.0,
            "{sum} and {on_page} s"
        );
    }
    server.say(&[b"stats reset\r\n"]);
    assert_eq!(server.say(&[b"stats latency\r\n"]), b"END\r\n");
    assert_eq!(
        ours(1).say(&[b"stats latency\r\n"]),
        b"STAT latency_status disabled\r\nEND\r\n"
    );
}

#[test]
fn metrics_page_lists_every_worker() {
    let server = ours(2);
    server.say(&[b"set a 0 0 1\r\n1\r\n"]);
    let said = String::from_utf8(server.say(&[b"stats workers\r\n"])).unwrap();
    let items = |worker| {
        let prefix = format!("STAT worker:{worker}:items ");
        let count = said.lines().find_map(|line| line.strip_prefix(&prefix));
        count.unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(items(0) + items(1), 1);
    assert!(said.contains("STAT worker:1:tcp:requests "), "{said}");
    if let Some(memcached) = Memcached::start() {
        // A stock memcached does not know that name.
        let theirs = memcached.say(&[b"stats workers\r\n"]);
        assert!(!String::from_utf8_lossy(&theirs).contains("STAT"));
    }
}

#[test]
fn only_metrics_requests_get_the_page() {
    let server = measured(1);
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (
            b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            "405",
        ),
        (b"stats\r\n\r\n", "400"),
        (b"\x80\x10\x00\x00\x00\x00\x00\x00", "400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
    ] {
        let (head, _) = ask(&server, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
    }
    let endless = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &[b'x'; 20_000]].concat();
    let (head, _) = ask(&server, &endless);
    assert!(head.starts_with("HTTP/1.1 431"), "{head}");
    let (head, body) = ask(&server, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200") && body.is_empty(),
        "{head}"
    );
}

#[test]
fn http_request_may_arrive_in_pieces() {
    let server = measured(1);
    let mut stream = visit(&server);
    stream.set_nodelay(true).unwrap();
    for byte in SCRAPE {
        stream.write_all(&[*byte]).unwrap();
    }
    let (head, _) = hear(&mut stream);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

/// Clients that send nothing, disconnect at once or do not read are disconnected before long, and
/// delay no other client.
#[test]
fn stalled_http_clients_do_not_block_scrapes() {
    let server = measured(2);
    let silent: Vec<TcpStream> = (0..40).map(|_| visit(&server)).collect();
    let deaf: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = visit(&server);
            // It may have been closed for a newer connection.
            let _ = stream.write_all(SCRAPE);
            stream
        })
        .collect();
    for _ in 0..100 {
        let mut stream = visit(&server);
        let _ = stream.write_all(b"GET /metrics HT");
        let _ = stream.shutdown(Shutdown::Both);
    }
    for _ in 0..10 {
        scrape(&server);
    }
    assert_eq!(server.say(&[b"get a\r\n"]), b"END\r\n");
    drop((silent, deaf));
}

#[test]
fn server_ends_during_a_slow_scrape() {
    let server = measured(2);
    let mut waiting = visit(&server);
    waiting.write_all(b"GET /metr").unwrap();
    let address = server.metrics().unwrap();
    server.shutdown();
    assert_eq!(waiting.read(&mut [0; 16]).unwrap_or(0), 0);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn metrics_are_off_by_default() {
    assert_eq!(ours(1).metrics(), None);
}
