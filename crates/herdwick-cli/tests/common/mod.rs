//! Test support: servers in processes of their own, clients that check their answers, and what both
//! hold.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use herdwick::{Client, Options, Session};
use herdwick_check::Rng;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Time after which an awaited event counts as missing. It bounds failures only; no test waits for
/// it to pass.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// MiB; a sixteenth of it is for leases.
const MEMORY_MB: &str = "512";

/// Returns whether there is a memcached in PATH; prints a note if there is none.
pub(crate) fn memcached_is_installed() -> bool {
    let version = Command::new("memcached").arg("-V").output();
    let installed = version.is_ok_and(|output| output.status.success());
    if !installed {
        eprintln!("skipped: there is no memcached here (apt-get install memcached)");
    }
    installed
}

/// Returns how many processes the tests kill: a hundred, or what `HERDWICK_KILLS` says.
pub(crate) fn kills() -> usize {
    herdwick_check::count("HERDWICK_KILLS", 100) as usize
}

/// A directory that is removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("herdwick-test-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Returns the lease directories in it.
    pub(crate) fn leases(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `herdwick serve`, killed on drop.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    /// Starts a server on a free port.
    pub(crate) fn start(folder: &Folder, workers: usize) -> Self {
        Self::run(folder, workers, &["-m", MEMORY_MB, "-p", "0"])
    }

    /// Starts a server on a unix socket in `folder`, so that a later server can have the same
    /// address.
    pub(crate) fn start_at(folder: &Folder, workers: usize) -> Self {
        let path = socket(folder);
        let path = path.to_str().unwrap();
        Self::run(folder, workers, &["-m", MEMORY_MB, "-s", path])
    }

    pub(crate) fn run(folder: &Folder, workers: usize, more: &[&str]) -> Self {
        Self::run_with(folder, workers, more, |_| {})
    }

    /// Starts a server with what `change` adds to its command.
    pub(crate) fn run_with(
        folder: &Folder,
        workers: usize,
        more: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        change(&mut command);
        let mut child = command
            .args([
                "serve",
                "-u",
                "root",
                "-t",
                &workers.to_string(),
                "--shm-dir",
            ])
            .arg(&folder.0)
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let address = ready(&mut child);
        Self { child, address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_to(&self.child, signal);
    }

    /// Stops all its threads by SIGSTOP, and waits until they are stopped.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let clock = Clock::start();
        while self.threads().iter().any(|state| *state != 'T') {
            assert!(clock.now() < TIMEOUT);
        }
    }

    /// Returns the states of its threads (proc(5)).
    pub(crate) fn threads(&self) -> Vec<char> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let state = |stat: String| stat.rsplit(") ").next().unwrap().chars().next().unwrap();
        tasks
            .map(|task| state(fs::read_to_string(task.unwrap().path().join("stat")).unwrap()))
            .collect()
    }

    /// Returns the CPU time of all its threads, in nanoseconds.
    pub(crate) fn cpu_nanos(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let spent = |text: String| -> u64 { text.split(' ').next().unwrap().parse().unwrap() };
        tasks
            .map(|task| spent(fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap()))
            .sum()
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it by SIGTERM, and asserts success.
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().unwrap().success());
    }

    /// Connects a client.
    pub(crate) fn client(&self) -> Client {
        Client::connect_with(&self.address, patient()).unwrap()
    }

    /// Connects a session over shared memory.
    pub(crate) fn session(&self, window: usize) -> Session {
        shm_session(&self.address, window)
    }

    /// Returns one number of `stats`.
    pub(crate) fn stat(&self, client: &mut Client, name: &str) -> u64 {
        let stats = client.stats("").unwrap();
        let found = stats.iter().find(|(found, _)| found == name);
        let (_, value) = found.unwrap_or_else(|| panic!("no {name} in {stats:?}"));
        value.parse().unwrap()
    }

    /// Returns what the process holds now.
    pub(crate) fn holdings(&self) -> Holdings {
        Holdings::of(&Path::new("/proc").join(self.pid().to_string()))
    }

    /// Returns its private memory, the store included, in KiB.
    pub(crate) fn private_kib(&self) -> u64 {
        let proc = Path::new("/proc").join(self.pid().to_string());
        resident_kib(&proc, "RssAnon:")
    }

    /// Waits until it has released everything after a kill. It stays a zombie until dropped.
    pub(crate) fn until_dead(&self) {
        until_dead(&self.child);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the ready line of a server; returns its address, or several, as printed.
pub(crate) fn ready(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let (_, rest) = line.split_once("ready on ").expect("the server starts");
    rest.split_once(" (").expect("its address").0.to_owned()
}

/// Descriptors of a process, and mappings and resident memory of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) fds: usize,
    pub(crate) maps: usize,
    pub(crate) shared_kib: u64,
}

impl Holdings {
    /// Reads the holdings of the process with this directory in /proc.
    pub(crate) fn of(proc: &Path) -> Self {
        let maps = fs::read_to_string(proc.join("maps")).unwrap();
        Self {
            fds: fs::read_dir(proc.join("fd")).unwrap().count(),
            maps: maps.matches("memfd:herdwick").count(),
            shared_kib: resident_kib(proc, "RssShmem:"),
        }
    }

    /// Returns whether none of them is above `bound`'s.
    pub(crate) fn within(self, bound: Self) -> bool {
        self.fds <= bound.fds && self.maps <= bound.maps && self.shared_kib <= bound.shared_kib
    }
}

/// Returns one line of a process's status, in KiB.
fn resident_kib(proc: &Path, name: &str) -> u64 {
    let status = fs::read_to_string(proc.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim_end_matches("kB").trim().parse().unwrap()
}

pub(crate) fn socket(folder: &Folder) -> PathBuf {
    folder.0.join("memcached.sock")
}

pub(crate) fn signal_to(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits until a killed child has released everything, and leaves it a zombie.
pub(crate) fn until_dead(child: &Child) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), options).unwrap();
}

/// Options of a client that waits for a server on a busy host.
pub(crate) fn patient() -> Options {
    Options {
        deadline: TIMEOUT,
        ..Options::default()
    }
}

/// Connects a session, and asserts that it uses shared memory.
pub(crate) fn shm_session(address: &str, window: usize) -> Session {
    let options = Options {
        window,
        ..patient()
    };
    let session = Session::dial(&address.parse().unwrap(), &options).unwrap();
    assert_eq!(session.transport(), "shm");
    session
}

/// Waits until the server has `leases` leases and holds no more than at `baseline`, polling it
/// through `client`. It may hold less: a baseline that is read while a set-up ends counts what that
/// set-up is about to close.
pub(crate) fn settle(server: &Server, client: &mut Client, leases: u64, baseline: Holdings) {
    let clock = Clock::start();
    loop {
        let live = server.stat(client, "leases");
        let now = server.holdings();
        if live == leases && now.within(baseline) {
            return;
        }
        assert!(
            clock.now() < TIMEOUT,
            "{live} leases for {leases}, {now:?} for {baseline:?}"
        );
    }
}

/// The clock of the tests, for deadlines.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "processes live in real time")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> Duration {
        self.0.elapsed()
    }

    /// Panics if `what` has not happened within [`TIMEOUT`].
    pub(crate) fn hurry(&self, what: &str) {
        assert!(self.now() < TIMEOUT, "waited for {what}");
    }
}

/// Random delays and sizes, the same in every run.
pub(crate) struct Chance(Rng);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.index(limit)
    }
}

/// Returns `len` bytes derived from key, seed and length, so that any mix of two values, keys or
/// lengths is detected.
pub(crate) fn value(key: &str, seed: u64, len: usize) -> Vec<u8> {
    let mut value = seed.to_le_bytes().to_vec();
    let name = key.bytes().fold(7_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    let mut chance = Chance::new(seed ^ len as u64 ^ name);
    while value.len() < len {
        value.extend_from_slice(&chance.next().to_le_bytes());
    }
    value.truncate(len.max(8));
    value
}

/// Returns whether `bytes` is some [`value`] of `key`.
pub(crate) fn is_whole(key: &str, bytes: &[u8]) -> bool {
    let Some(seed) = bytes.first_chunk::<8>() else {
        return false;
    };
    value(key, u64::from_le_bytes(*seed), bytes.len()) == bytes
}

/// A client that the others must not affect: every call is answered rightly.
pub(crate) struct Steady {
    pub(crate) client: Client,
    pub(crate) count: u64,
    /// The longest duration of a [`Steady::check`].
    pub(crate) longest: Duration,
}

impl Steady {
    pub(crate) fn new(server: &Server) -> Self {
        let mut client = server.client();
        client.set("steady:count", "0").unwrap();
        Self {
            client,
            count: 0,
            longest: Duration::ZERO,
        }
    }

    /// Makes a few calls and checks each.
    pub(crate) fn check(&mut self) {
        let clock = Clock::start();
        self.count += 1;
        let key = format!("steady:{}", self.count % 16);
        let len = [8, 30, 200, 900][self.count as usize % 4];
        let value = value(&key, self.count, len);
        self.client.set(&key, &value).unwrap();
        let read = self.client.gets(&key).unwrap().unwrap();
        assert!(read.value == value, "{key}");
        let number = self.client.incr("steady:count", 1).unwrap();
        assert_eq!(number, Some(self.count), "each once");
        self.longest = self.longest.max(clock.now());
    }
}

/// Starts the ignored test `name` of this binary in its own process, with a socket as standard
/// input.
pub(crate) fn start(name: &str) -> (Child, UnixStream) {
    let (child, here) = herdwick_check::start_ignored(name).unwrap();
    here.set_read_timeout(Some(TIMEOUT)).unwrap();
    (child, here)
}

/// Returns, in such a process, the other end of the socket; `None` if the ignored test is run by
/// hand.
pub(crate) fn other_end() -> Option<UnixStream> {
    herdwick_check::other_end().unwrap()
}
