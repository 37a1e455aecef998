//! Every statistic that the server reports, by name, order and value, after one fixed conversation.

mod common;

use std::{
    fmt::Write as _,
    io::{Read, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::atomic::{AtomicU32, Ordering},
};

use common::{Peer, TIMEOUT, with};
use herdwick_server::{
    ClientCertificates, Config, Description, Interface, KeyFormat, Listen, Server, Tls, Udp, Unit,
    statistics,
};

/// The report before the statistics were declared in one table.
const RECORDED: &str = include_str!("data/statistics.txt");

/// Statistics whose values depend on the time, on the host, or on how the kernel cuts a stream.
const VARIABLE: [&str; 34] = [
    "pid",
    "uptime",
    "time",
    "rusage_user",
    "rusage_system",
    "version",
    "herdwick_version",
    "tcpport",
    "udpport",
    "inter",
    "ssl_chain_cert",
    "ssl_key",
    "time_since_server_cert_refresh",
    "bytes_written",
    "tcp_batches",
    "batches",
    "sleeps",
    "read_buf_bytes",
    "read_buf_count",
    "curr_connections",
    "connection_structures",
    "connections",
    "conn_yields",
    "age",
    "memcached_current_connections",
    "memcached_connections_yielded_total",
    "herdwick_worker_connections",
    "memcached_uptime_seconds",
    "memcached_time_seconds",
    "memcached_version",
    "memcached_written_bytes_total",
    "herdwick_buffer_bytes",
    "herdwick_worker_sleeps_total",
    "herdwick_fabric_batches_total",
];

const CONVERSATION: &[&[u8]] = &[
    b"set a 0 0 1\r\n1\r\nset b 0 0 10\r\n0123456789\r\nset c 0 0 1\r\n3\r\nset n 0 0 1\r\n7\r\n",
    b"get a b none1 none2 none3\r\nincr n 5\r\nincr none 5\r\nincr none 6\r\ndecr n 1\r\ndecr n 1\r\n",
    b"decr none 1\r\ndelete none\r\ndelete b\r\ntouch a 0\r\ntouch none 0\r\ntouch none 0\r\n",
    b"cas a 0 0 1 1\r\n1\r\ncas none 0 0 1 1\r\n1\r\ncas none 0 0 1 1\r\n1\r\nmg a v\r\nmg none v\r\n",
    b"boguscommand x\r\nset big 0 0 2000000\r\n",
    &[b'x'; 2_000_000],
    b"\r\nflush_all 1000\r\n",
];

fn server(certificates: &std::path::Path) -> Server {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (chain, secret) = (certificates.join("chain.pem"), certificates.join("key.pem"));
    std::fs::write(&chain, key.cert.pem()).unwrap();
    std::fs::write(&secret, key.signing_key.serialize_pem()).unwrap();
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let plain = Interface {
        addresses: vec![loopback],
        plain: true,
    };
    with(Config {
        workers: Some(1),
        listen: Listen::Tcp(vec![plain, loopback.into()]),
        tls: Some(Tls {
            chain,
            key: secret,
            key_format: KeyFormat::Pem,
            clients: ClientCertificates::Ignored,
            authorities: None,
            only_1_3: false,
            session_cache: true,
        }),
        udp: Some(Udp {
            port: 0,
            trusted: Vec::new(),
        }),
        roce: Some(loopback),
        metrics: Some(loopback),
        metrics_hot_keys: true,
        ..Config::local()
    })
}

fn scrape(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.metrics().unwrap()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Replaces the value of a line `[prefix]name value` that may vary.
fn masked(line: &str, name: &str) -> String {
    if VARIABLE.contains(&name) || line.contains("hot_key_requests") || line.contains("_cpu_") {
        let at = line.rfind(' ').unwrap_or(line.len());
        return format!("{} *\n", &line[..at]);
    }
    format!("{line}\n")
}

fn report(server: &Server) -> String {
    server.say(CONVERSATION);
    let mut report = String::new();
    for topic in ["", " items", " slabs", " workers", " settings"] {
        writeln!(report, "== stats{topic}").unwrap();
        let said = server.say(&[format!("stats{topic}\r\n").as_bytes()]);
        for line in String::from_utf8(said).unwrap().lines() {
            let name = line.split(' ').nth(1).unwrap_or_default();
            report += &masked(line, name.rsplit(':').next().unwrap());
        }
    }
    let page = scrape(server);
    report += "== metrics\n";
    // A scraper does not depend on the order of families, nor of the series of one.
    let mut families: Vec<&str> = page.split("# HELP ").skip(1).collect();
    families.sort_unstable();
    for family in families {
        let mut lines: Vec<&str> = family.lines().collect();
        lines[2..].sort_unstable();
        writeln!(report, "# HELP {}\n{}", lines[0], lines[1]).unwrap();
        for line in &lines[2..] {
            report += &masked(line, line.split(['{', ' ']).next().unwrap());
        }
    }
    report
}

/// Returns what `run` returns of a server with certificates in a folder of its own.
fn in_folder<T>(run: impl FnOnce(&Server) -> T) -> T {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("herdwick-statistics-{}-{count}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let result = run(&server(&folder));
    std::fs::remove_dir_all(&folder).unwrap();
    result
}

#[test]
fn names_order_and_values_are_as_recorded() {
    let report = in_folder(report);
    if let Some(path) = std::env::var_os("HERDWICK_RECORD_STATISTICS") {
        std::fs::write(path, &report).unwrap();
        return;
    }
    for (number, (now, then)) in report.lines().zip(RECORDED.lines()).enumerate() {
        assert_eq!(now, then, "line {}", number + 1);
    }
    assert_eq!(report.lines().count(), RECORDED.lines().count());
}

/// The reference that operators read.
const PAGE: &str = include_str!("../../../docs/statistics.md");

/// Returns the row of a statistic in the reference.
fn row(of: &Description) -> String {
    let unit = match of.unit {
        Unit::One => String::new(),
        unit => format!(", {unit}"),
    };
    let series = of.series.as_ref();
    let series = series.map_or_else(String::new, |series| format!("`{series}`"));
    format!(
        "| `{}` | {}{unit} | {series} | {} |",
        of.name, of.kind, of.help
    )
}

#[test]
fn the_reference_lists_every_statistic() {
    let listed: Vec<&str> = PAGE
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let declared: Vec<String> = statistics().iter().map(row).collect();
    for (listed, declared) in listed.iter().zip(&declared) {
        assert_eq!(
            listed, declared,
            "docs/statistics.md, and its row as declared"
        );
    }
    let (listed, declared) = (listed.len(), declared.len());
    assert_eq!(
        listed, declared,
        "rows of docs/statistics.md, and as declared"
    );
}

/// What operators read about metrics.
const OPERATING: &str = include_str!("../../../docs/operating.md");

#[test]
fn every_family_of_our_own_is_explained() {
    let report = in_folder(report);
    let types = report
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE herdwick_"));
    let families: Vec<&str> = types.map(|rest| rest.split(' ').next().unwrap()).collect();
    let section = OPERATING.split("\n## Metrics\n").nth(1).expect("is there");
    let section = section.split("\n## ").next().unwrap();
    let words = section.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    // `herdwick_worker_*` stands for a series for each worker.
    let explained: Vec<&str> = words
        .filter_map(|word| word.strip_prefix("herdwick_"))
        .collect();
    assert!(families.len() > 20, "{families:?}");
    for family in &families {
        let known = explained.contains(family) || family.starts_with("worker_");
        assert!(known, "docs/operating.md does not name herdwick_{family}");
    }
    for name in explained {
        let exists = families.contains(&name) || name == "worker_";
        assert!(
            exists,
            "docs/operating.md names herdwick_{name}, which does not exist"
        );
    }
}
