//! The load generator against Debian's memcached.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use herdwick_bench::{Config, Dist, Fabric, Mix, Report, Workload, compare};

/// A memcached on a port that the kernel chose, killed on drop.
struct Memcached {
    child: Child,
    address: String,
    port_file: PathBuf,
}

impl Memcached {
    /// Starts one; `None`, with a message, if none is installed.
    fn start(name: &str) -> Option<Self> {
        let port_file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&port_file);
        // `-p -1`: memcached picks a port and writes it to the file. As root it does not start
        // without `-u`.
        let spawned = Command::new("memcached")
            .args("-l 127.0.0.1 -p -1 -U 0 -t 1 -m 64 -u root".split(' '))
            .env("MEMCACHED_PORT_FILENAME", &port_file)
            .stdout(Stdio::null())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("skipped: there is no memcached here (apt-get install memcached)");
                return None;
            }
            Err(error) => panic!("memcached does not start: {error}"),
        };
        let port = loop {
            let text = std::fs::read_to_string(&port_file).unwrap_or_default();
            if let Some(port) = text.trim().strip_prefix("TCP INET: ") {
                break port.to_owned();
            }
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "memcached ended: {ended:?}");
            std::thread::yield_now();
        };
        Some(Self {
            child,
            address: format!("127.0.0.1:{port}"),
            port_file,
        })
    }

    fn measure(&self, config: &Config) -> Report {
        let config = Config {
            fabrics: vec![Fabric::Tcp],
            server: Some(self.address.clone()),
            keys: 1000,
            seconds: 0.2,
            runs: 1,
            ..config.clone()
        };
        let report = compare(&config, &mut |_| {}).unwrap();
        for result in &report.results {
            assert_eq!(result.subject.system, "memcached");
        }
        report
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.port_file);
    }
}

#[test]
fn every_load_shape_gets_correct_replies() {
    let Some(memcached) = Memcached::start("shapes") else {
        return;
    };
    let plain = Config::default();
    let shapes = [
        Config {
            connections: 3,
            ..plain.clone()
        },
        Config {
            connections: 2,
            pipeline: 32,
            ..plain.clone()
        },
        Config {
            connections: 2,
            pipeline: 4,
            multiget: 100,
            ..plain.clone()
        },
        Config {
            mix: Mix::Ycsb(Workload::A),
            clients: 2,
            connections: 4,
            ..plain.clone()
        },
        Config {
            mix: Mix::Ycsb(Workload::F),
            dist: Dist::Uniform,
            ..plain.clone()
        },
    ];
    for config in shapes {
        let report = memcached.measure(&config);
        let result = &report.results[0];
        assert!(report.is_sound(), "{config:?}: {result:?}");
        assert_eq!(result.hit_ratio, Some(1.0), "{config:?}");
        assert!(
            result.ops_per_s > 0.0 && result.latency_us.is_some(),
            "{config:?}"
        );
        assert_eq!(
            result.subject.server.as_deref().map(|v| &v[..2]),
            Some("1.")
        );
        assert!(result.cpu_ns_per_op.client.is_some());
    }
}

#[test]
fn open_loop_reaches_its_rate() {
    let Some(memcached) = Memcached::start("rate") else {
        return;
    };
    let config = Config {
        rate: Some(2000.0),
        connections: 8,
        ..Config::default()
    };
    let result = &memcached.measure(&config).results[0];
    assert_eq!(result.offered_per_s, Some(2000.0));
    // After a pause of the host it catches up; without a rate it is many times as fast.
    assert!(result.ops_per_s < 8000.0, "{result:?}");
}

#[test]
fn fill_replaces_values_of_other_sizes() {
    let Some(memcached) = Memcached::start("foreign") else {
        return;
    };
    let config = Config {
        mix: Mix::GetShare(1.0),
        connections: 2,
        ..Config::default()
    };
    assert!(memcached.measure(&config).is_sound());
    let other = Config {
        value_size: 33,
        ..config
    };
    assert!(memcached.measure(&other).is_sound());
}
