//! Clients killed at random instants with full windows: nobody beside them notices, and the server
//! has everything back.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use herdwick::{Client, Options};

/// Clients killed. Every tenth is left a zombie until the end.
const VICTIMS: u64 = 100;
/// Keys that the survivor writes and reads.
const KEYS: u64 = 64;

struct Server {
    process: Child,
    address: String,
    /// Open, so that the server's stdout stays writable.
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_herdwick"))
            .args(["serve", "-p", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        let address = ready
            .split(" on ")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .to_owned();
        Self {
            process,
            address,
            _stdout: stdout,
        }
    }

    /// Descriptors, and mappings of shared memory.
    fn holdings(&self) -> (usize, usize) {
        let proc = format!("/proc/{}", self.process.id());
        let maps = fs::read_to_string(format!("{proc}/maps")).unwrap();
        let shared = maps.lines().filter(|line| line.contains("memfd:")).count();
        (fs::read_dir(format!("{proc}/fd")).unwrap().count(), shared)
    }

    /// Bytes of shared memory that the server has resident.
    fn shared_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("RssShmem:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            << 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A client over shared memory that writes without end, windows full.
fn victim(server: &Server) -> Child {
    Command::new(env!("CARGO_BIN_EXE_herdwick"))
        .args("bench herd --fabric shm --keys 1K --window 64 --get-share 0.5".split(' '))
        .args([
            "--seconds",
            "600",
            "--runs",
            "1",
            "--server",
            &server.address,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// One that must never wait longer than its deadline of a second, nor read what it did not write.
struct Survivor {
    client: Client,
    round: u64,
}

impl Survivor {
    fn new(server: &Server) -> Self {
        let client = Client::connect_with(&server.address, Options::default()).unwrap();
        Self { client, round: 0 }
    }

    fn check(&mut self, times: u64) {
        for _ in 0..times {
            self.round += 1;
            let key = format!("survivor:{}", self.round % KEYS);
            let value = format!("{}:{}", self.round, "x".repeat((self.round % 40) as usize));
            self.client.set(&key, &value).unwrap();
            let read = self.client.get(&key).unwrap();
            assert_eq!(read.as_deref(), Some(value.as_bytes()), "{key}");
        }
    }

    fn stat(&mut self, name: &str) -> u64 {
        let stats = self.client.stats("").unwrap();
        let (_, value) = stats.iter().find(|(found, _)| found == name).unwrap();
        value.parse().unwrap()
    }

    /// Goes on checking until the server has `leases` leases.
    fn until_leases(&mut self, leases: u64) {
        while self.stat("leases") != leases {
            self.check(1);
        }
    }
}

#[test]
fn clients_killed_at_random_instants_leave_nothing() {
    let server = Server::start(&["-t", "2", "-m", "128"]);
    let mut survivor = Survivor::new(&server);
    survivor.check(KEYS);
    assert_eq!(
        survivor.stat("leases"),
        1,
        "the survivor itself goes by shared memory"
    );
    let (before, shared) = (server.holdings(), server.shared_bytes());

    let mut chance: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut zombies = Vec::new();
    for round in 0..VICTIMS {
        let mut victim = victim(&server);
        survivor.until_leases(2);
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        survivor.check(chance % 200);
        victim.kill().unwrap();
        if round % 10 == 0 {
            zombies.push(victim);
        } else {
            victim.wait().unwrap();
        }
        survivor.until_leases(1);
    }

    // The last worker lets go just after the lease has left the statistics.
    while server.holdings() != before {
        survivor.check(1);
    }
    assert!(
        server.shared_bytes() <= shared + (64 << 10),
        "shared memory came back"
    );
    assert!(survivor.stat("leases_granted") > VICTIMS);
    for mut zombie in zombies {
        zombie.wait().unwrap();
    }
}
