//! What the server reports, what it declares of it, and what the documentation lists.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::common::{Peer, TIMEOUT, with};
use herdwick_server::{
    ClientCertificates, Config, Engine, Interface, KeyFormat, Latency, Listen, ListenOptions,
    Offload, Secret, Server, StatisticDescription, Tls, Udp, Unit, statistics,
};

/// A server that reports everything but an RDMA device.
struct Reporter {
    server: Server,
    certificates: PathBuf,
}

impl Reporter {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("herdwick-statistics-{}-{count}", std::process::id());
        let certificates = std::env::temp_dir().join(name);
        std::fs::create_dir(&certificates).unwrap();
        let signed = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (chain, key) = (certificates.join("chain.pem"), certificates.join("key.pem"));
        std::fs::write(&chain, signed.cert.pem()).unwrap();
        std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let plain = Interface {
            addresses: vec![loopback],
            plain: true,
        };
        let server = with(Config {
            workers: Some(2),
            // Its statistics are there, whether it is or not.
            offload: Some(Offload::to("127.0.0.1:1".to_owned(), Secret([7; 16]))),
            listen: Listen::Tcp(vec![plain, loopback.into()]),
            tls: Some(Tls {
                chain,
                key,
                key_format: KeyFormat::Pem,
                authorities: None,
                clients: ClientCertificates::Ignored,
                only_1_3: false,
                session_cache: true,
            }),
            udp: Some(Udp {
                port: 0,
                trusted: Vec::new(),
            }),
            fabrics: ListenOptions {
                roce: Some(loopback),
                ..ListenOptions::default()
            },
            metrics: Some(loopback),
            metrics_hot_keys: true,
            latency: Latency {
                histograms: true,
                slow: Some(Duration::ZERO),
            },
            ..Config::local()
        });
        // `stats items` is empty without items, and hot keys are shown once they are read.
        server.say(&[b"set a 0 0 1\r\n1\r\nget a\r\n"]);
        Self {
            server,
            certificates,
        }
    }

    /// A server whose engine is Clover.
    fn clover() -> Self {
        let server = with(Config {
            engine: Engine::Clover,
            metrics: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            ..Config::local()
        });
        let certificates = PathBuf::new();
        Self {
            server,
            certificates,
        }
    }

    /// Returns the names and values that `command` shows.
    fn stats(&self, command: &str) -> Vec<(String, String)> {
        let said = self.server.say(&[command.as_bytes(), b"\r\n"]);
        let said = String::from_utf8(said).unwrap();
        let lines = said.lines().filter_map(|line| line.strip_prefix("STAT "));
        let split = |line: &str| {
            let (name, value) = line.split_once(' ').expect("a name and a value");
            (name.to_owned(), value.to_owned())
        };
        lines.map(split).collect()
    }

    /// Returns the families of the metrics page.
    fn families(&self) -> BTreeSet<String> {
        let mut stream = TcpStream::connect(self.server.metrics().unwrap()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let name = |line: &str| line.split(' ').next().unwrap().to_owned();
        types.map(name).collect()
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.certificates);
    }
}

/// A statistic is described, in its place, or it is of memcached's machinery and idle.
#[test]
fn every_reported_statistic_is_described() {
    let reporter = Reporter::new();
    let described = statistics();
    for command in ["stats", "stats items", "stats slabs"] {
        let of_command = described.iter().filter(|one| one.command == command);
        let mut expected = of_command.map(|one| one.name.as_str());
        let mut own = false;
        for (name, value) in reporter.stats(command) {
            // The first of those that memcached does not have.
            own |= name == "index_evictions";
            let found = expected.clone().any(|other| other == name);
            if found {
                // What is described and passed over is not reported, or not in this order.
                let passed: Vec<&str> = expected
                    .by_ref()
                    .take_while(|other| *other != name)
                    .collect();
                let absent =
                    |name: &&str| name.starts_with("verbs_") || name.starts_with("clover_");
                let absent = passed.iter().all(absent);
                assert!(absent, "{command}: {passed:?} before {name}");
            } else {
                assert!(!own, "{command}: {name} is not described");
                assert!(
                    ["0", "none"].contains(&&*value),
                    "{command}: {name} {value}"
                );
            }
        }
        assert_eq!(
            expected.next(),
            None,
            "{command}: described, and not reported"
        );
    }
}

#[test]
fn the_engine_clover_reports_what_is_described_of_it() {
    let reported = Reporter::clover().stats("stats").into_iter();
    let reported = reported.filter(|(name, _)| name.starts_with("clover_"));
    let described = statistics().into_iter().map(|one| one.name);
    let described = described.filter(|name| name.starts_with("clover_"));
    assert!(reported.map(|(name, _)| name).eq(described));
}

#[test]
fn every_statistic_of_a_worker_is_described() {
    let described = statistics();
    let of_worker = described
        .iter()
        .filter(|one| one.command == "stats workers");
    let names: Vec<String> = of_worker.map(|one| one.name.replace('N', "1")).collect();
    let reported = Reporter::new().stats("stats workers").into_iter();
    let own = reported.filter(|(name, _)| {
        // Those of a fabric have a word more: `worker:1:tcp:requests`.
        name.starts_with("worker:1:") && name.split(':').count() == 3
    });
    assert_eq!(own.map(|(name, _)| name).collect::<Vec<_>>(), names);
}

#[test]
fn every_statistic_of_latency_is_described() {
    let described = statistics();
    let of_latency = described
        .iter()
        .filter(|one| one.command == "stats latency");
    let names: Vec<String> = of_latency
        .map(|one| one.name.replace("FABRIC", "tcp").replace("COMMAND", "get"))
        .collect();
    let reported = Reporter::new().stats("stats latency").into_iter();
    let of_gets = reported.filter(|(name, _)| name.starts_with("latency:tcp:get:"));
    assert_eq!(of_gets.map(|(name, _)| name).collect::<Vec<_>>(), names);
}

#[test]
fn every_described_series_is_on_the_page() {
    let mut families = Reporter::new().families();
    families.extend(Reporter::clover().families());
    for one in statistics() {
        if let Some(series) = &one.series {
            let family = series.split('{').next().unwrap();
            assert!(families.contains(family), "{}: {series}", one.name);
        }
    }
}

/// The reference of all statistics.
const REFERENCE: &str = include_str!("../../../../docs/statistics.md");

/// Returns the row of a statistic in the reference.
fn row(of: &StatisticDescription) -> String {
    let unit = match of.unit {
        Unit::One => String::new(),
        unit => format!(", {unit}"),
    };
    let series = of.series.as_ref();
    let series = series.map_or_else(String::new, |series| format!("`{series}`"));
    let (name, kind, help) = (&of.name, of.kind, of.help);
    format!("| `{name}` | {kind}{unit} | {series} | {help} |")
}

#[test]
fn the_reference_lists_every_statistic() {
    let rows = REFERENCE.lines().filter(|line| line.starts_with("| `"));
    let listed: Vec<&str> = rows.collect();
    let declared: Vec<String> = statistics().iter().map(row).collect();
    for (listed, declared) in listed.iter().zip(&declared) {
        assert_eq!(listed, declared, "docs/statistics.md, and as declared");
    }
    assert_eq!(listed.len(), declared.len(), "rows of docs/statistics.md");
}

/// The page that explains metrics to operators.
const OPERATING: &str = include_str!("../../../../docs/operating.md");

/// `herdwick_worker_*` there stands for a series for each worker.
#[test]
fn every_family_of_our_own_is_explained() {
    let mut families = Reporter::new().families();
    families.extend(Reporter::clover().families());
    let own = families.iter().filter(|name| name.starts_with("herdwick_"));
    let own: Vec<&str> = own.map(String::as_str).collect();
    let section = OPERATING.split("\n## Metrics\n").nth(1).expect("is there");
    let section = section.split("\n## ").next().unwrap();
    let words = section.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let explained: Vec<&str> = words.filter(|word| word.starts_with("herdwick_")).collect();
    assert!(own.len() > 20, "{own:?}");
    for family in &own {
        let known = explained.contains(family) || family.starts_with("herdwick_worker_");
        assert!(known, "docs/operating.md does not name {family}");
    }
    for name in explained {
        let exists = own.contains(&name) || name == "herdwick_worker_";
        assert!(
            exists,
            "docs/operating.md names {name}, which does not exist"
        );
    }
}
