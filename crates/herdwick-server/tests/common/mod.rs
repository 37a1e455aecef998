//! Servers for the tests, this one and a stock memcached, and conversations with them.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod crowd;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use herdwick::{Client, Options};
use herdwick_server::{Address, Config, Engine, Server, spawn};

/// A bound for failures, which no passing test reaches.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns this server with `workers` workers.
pub(crate) fn ours(workers: usize) -> Server {
    with(Config {
        workers: Some(workers),
        ..Config::local()
    })
}

/// Returns this server with `workers` workers, and a store in slabs.
pub(crate) fn in_slabs(workers: usize) -> Server {
    with(Config {
        workers: Some(workers),
        engine: Engine::Slab,
        ..Config::local()
    })
}

/// Returns whether the environment says `HERDWICK_ENGINE=slab`: then [`with`] starts servers with a store in
/// slabs. The tests of memcached's port have to pass with it, too.
pub(crate) fn is_slab() -> bool {
    std::env::var_os("HERDWICK_ENGINE").is_some_and(|engine| engine == "slab")
}

/// Starts a server.
pub(crate) fn with(mut config: Config) -> Server {
    // Slabs go with neither.
    let is_possible = config.memory_file.is_none() && config.offload.is_none();
    if is_slab() && config.engine == Engine::Herd && is_possible {
        config.engine = Engine::Slab;
    }
    spawn(config).expect("a free port is free")
}

pub(crate) fn tcp(server: &Server) -> SocketAddr {
    match server.address() {
        Address::Tcp(address) => *address,
        Address::Unix(path) => panic!("listens on {}", path.display()),
    }
}

/// Options of a client that waits for a server on a busy host.
pub(crate) fn patient() -> Options {
    Options {
        deadline: TIMEOUT,
        ..Options::default()
    }
}

/// Connects a client over the best transport, which is shared memory.
pub(crate) fn client(server: &Server) -> Client {
    Client::connect_with(&server.address().to_string(), patient()).unwrap()
}

pub(crate) fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(tcp(server)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The memcached version whose protocols the server implements.
pub(crate) const REFERENCE: [u32; 3] = [1, 6, 45];

/// Returns the memcached to compare with: the one in PATH, or `HERDWICK_MEMCACHED`.
pub(crate) fn oracle() -> std::ffi::OsString {
    std::env::var_os("HERDWICK_MEMCACHED").unwrap_or_else(|| "memcached".into())
}

/// Returns whether the oracle is older than [`REFERENCE`], as Debian's is; then fewer replies are
/// compared.
pub(crate) fn oracle_is_old() -> bool {
    static OLD: OnceLock<bool> = OnceLock::new();
    *OLD.get_or_init(|| {
        let told = Command::new(oracle()).arg("-V").output();
        let told = told.map_or_else(|_| Vec::new(), |output| output.stdout);
        let told = String::from_utf8_lossy(&told).into_owned();
        let version = told.split_whitespace().nth(1).unwrap_or_default();
        let numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        numbers.collect::<Vec<u32>>().as_slice() < &REFERENCE[..]
    })
}

/// A stock memcached on a unix socket of its own, or `None` where none is installed.
pub(crate) struct Memcached {
    child: Child,
    path: PathBuf,
}

impl Memcached {
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(|_| {})
    }

    /// Starts it with what `more` adds to its command.
    pub(crate) fn start_with(more: impl FnOnce(&mut Command)) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("herdwick-oracle-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut command = Command::new(oracle());
        more(&mut command);
        let child = command
            .args([
                "-u",
                "root",
                "-t",
                "1",
                "-o",
                "no_lru_maintainer,no_lru_crawler",
                "-s",
            ])
            .arg(&path)
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            println!("skipped: no memcached on the PATH (apt-get install memcached)");
            return None;
        };
        while UnixStream::connect(&path).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "memcached has ended");
            std::thread::yield_now();
        }
        Some(Self { child, path })
    }
}

impl Memcached {
    pub(crate) fn address(&self) -> String {
        self.path.display().to_string()
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A server that a test can converse with.
pub(crate) trait Peer {
    /// Sends the pieces, shuts down the sending side, and reads to the end.
    fn say(&self, pieces: &[&[u8]]) -> Vec<u8>;
}

impl Peer for Server {
    fn say(&self, pieces: &[&[u8]]) -> Vec<u8> {
        let stream = connect(self);
        converse(&stream, &stream, pieces, || {
            stream.shutdown(Shutdown::Write)
        })
    }
}

impl Peer for Memcached {
    fn say(&self, pieces: &[&[u8]]) -> Vec<u8> {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        converse(&stream, &stream, pieces, || {
            stream.shutdown(Shutdown::Write)
        })
    }
}

fn converse(
    mut to: impl Write,
    mut from: impl Read,
    pieces: &[&[u8]],
    finish: impl Fn() -> std::io::Result<()>,
) -> Vec<u8> {
    for piece in pieces {
        // A server that has closed refuses the rest; its earlier replies can still be read.
        if to.write_all(piece).is_err() {
            break;
        }
    }
    let _ = finish();
    let mut said = Vec::new();
    // A reset after the last reply ends the conversation as well.
    if let Err(error) = from.read_to_end(&mut said) {
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset,
            "{said:?}"
        );
    }
    said
}

/// Replaces what may differ between two servers: the version, CAS uniques, and values that depend
/// on the second or on the store's internals.
pub(crate) fn normalised(reply: &[u8]) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = reply.split(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
    for line in &mut lines {
        let words: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        if words[0] == b"VERSION" {
            *line = b"VERSION x\r".to_vec();
        } else if words[0] == b"VALUE" && words.len() == 5 {
            let mut other = words[..4].join(&b' ');
            other.extend_from_slice(b" cas\r");
            *line = other;
        } else if matches!(words[0], b"HD" | b"VA" | b"EN" | b"NF" | b"NS" | b"EX") {
            *line = words
                .iter()
                .map(|word| meta_word(word))
                .collect::<Vec<_>>()
                .join(&b' ');
        } else if words[0] == b"ME" && words.len() > 5 {
            let key = if words[1] == b"\x00\x01\x02" {
                b"AAEC"
            } else {
                words[1]
            };
            *line = [words[0], key, words[5]].join(&b' ');
        }
    }
    lines.join(&b'\n')
}

/// Seconds until a time of day months away are compared in units of this many.
const FAR: u64 = 10_000_000;

/// Normalises one word of a meta reply.
fn meta_word(word: &[u8]) -> Vec<u8> {
    let (word, end) = match word {
        [word @ .., b'\r'] => (word, &b"\r"[..]),
        word => (word, &b""[..]),
    };
    let number = || {
        let digits = std::str::from_utf8(&word[1..]).ok()?;
        digits.parse::<u64>().ok()
    };
    let word = match (word.first(), number()) {
        // The oracle shows the key as its creator spelled it, this server as the reader did.
        _ if word == b"k\x00\x01\x02" => b"kAAEC b".to_vec(),
        (Some(b'c'), Some(unique)) => format!("c{}", u8::from(unique > 0)).into_bytes(),
        (Some(b'l'), Some(_)) => b"l".to_vec(),
        // In the oracle the time left of an expired deadline wraps around; here it is 0.
        (Some(b't'), Some(left)) if left > u64::from(u32::MAX / 2) => b"t0".to_vec(),
        // The time until a time of day changes each second.
        (Some(b't'), Some(left)) if left > FAR => format!("t{}", left / FAR).into_bytes(),
        (Some(b't'), Some(left)) => format!("t{}", (left + 50) / 100).into_bytes(),
        _ => word.to_vec(),
    };
    [&word, end].concat()
}

/// Returns the CAS unique that `gets` shows for `key`, or 0.
pub(crate) fn unique(peer: &dyn Peer, key: &str) -> u64 {
    let reply = peer.say(&[format!("gets {key}\r\n").as_bytes()]);
    let line = reply.split(|&b| b == b'\r').next().unwrap_or_default();
    let text = String::from_utf8_lossy(line).into_owned();
    text.split(' ')
        .nth(4)
        .and_then(|unique| unique.parse().ok())
        .unwrap_or(0)
}

/// Returns a value of `stats`.
pub(crate) fn stat(server: &Server, name: &str) -> u64 {
    let said = String::from_utf8(server.say(&[b"stats\r\n"])).unwrap();
    let prefix = format!("STAT {name} ");
    let line = said.lines().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

pub(crate) fn shown(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(2000)];
    head.escape_ascii().to_string()
}

/// Reads one line of a reply.
pub(crate) fn line(stream: &TcpStream) -> String {
    let mut line = String::new();
    BufReader::with_capacity(1, stream)
        .read_line(&mut line)
        .unwrap();
    line
}
