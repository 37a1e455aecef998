//! The server under test: a child process that the benchmark starts, or a running server.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use crate::host::{ProcessCpu, Stopwatch, pin};

/// A server, and the process whose CPU time is measured.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its TCP address.
    pub address: SocketAddr,
    /// Its version, as it reports it: `herdwick VERSION`, or a memcached's version.
    pub version: String,
    /// Whether it is a memcached or another server that speaks the text protocol.
    pub is_memcached: bool,
    /// Its worker threads, from `stats`.
    pub workers: Option<usize>,
    /// Its CPU time, if it runs on this host.
    pub cpu: Option<ProcessCpu>,
    #[expect(dead_code, reason = "held to end the process on drop")]
    own: Option<OwnProcess>,
}

/// Why no server can be measured.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be parsed or resolved.
    #[error("'{text}' is no address: {reason}; say HOST:PORT, such as 127.0.0.1:11211")]
    Address {
        /// The address as given.
        text: String,
        /// Why it is not valid.
        reason: String,
    },
    /// No server answers at the address.
    #[error(
        "no server at {address}: {source}; start one with `herdwick serve`, or leave --server out"
    )]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// What happened.
        source: std::io::Error,
    },
    /// The peer does not speak the memcached protocol.
    #[error("{address} answered 'version' with {reply:?}: not a memcached server")]
    Stranger {
        /// The address.
        address: SocketAddr,
        /// Its reply.
        reply: String,
    },
    /// The server process did not start.
    #[error("`{program}` did not start: {reason}; its own words stand above")]
    NotStarted {
        /// The command.
        program: String,
        /// What happened.
        reason: String,
    },
}

/// Timeout for connecting, and for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a graceful end after SIGTERM, before SIGKILL.
const DRAIN: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};
/// Bound of a `stats` reply, in bytes.
const STATS_MAX: u64 = 64 << 10;
/// Tolerance, in seconds, between a process's age and the uptime that the server reports, for both
/// to be the same process.
const SAME_AGE_S: u64 = 2;

impl Server {
    /// Starts `program serve` on `cpus` with this number of workers, MiB of memory and limit of
    /// connections, on a free loopback port.
    ///
    /// # Errors
    /// It did not start, or does not answer.
    pub(crate) fn start(
        program: &Path,
        cpus: &[usize],
        (workers, memory_mb, connections): (usize, u64, usize),
        more: &[&str],
    ) -> Result<Self, ServerError> {
        let mut command = Command::new(program);
        // `-u root` suppresses the warning that the server runs as root.
        command.args(["serve", "-l", "127.0.0.1", "-p", "0", "-u", "root"]);
        command.args(["-t", &workers.to_string(), "-m", &memory_mb.to_string()]);
        command.args(["-c", &connections.to_string()]);
        command.args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let named = format!("{} serve", program.display());
        Self::launch(&named, command, cpus, OwnProcess::ready_address)
    }

    /// Starts the memcached in the path on `cpus`, with one worker and `memory_mb` MiB, on a free
    /// loopback port.
    ///
    /// # Errors
    /// It did not start, or does not answer.
    pub(crate) fn start_memcached(cpus: &[usize], memory_mb: u64) -> Result<Self, ServerError> {
        let port_file = PortFile::new();
        let mut command = Command::new("memcached");
        // `-p -1`: memcached picks a port and writes it to the file. As root it does not start
        // without `-u`.
        command.args("-l 127.0.0.1 -p -1 -U 0 -t 1 -u root -m".split(' '));
        command.arg(memory_mb.to_string());
        command.env("MEMCACHED_PORT_FILENAME", &port_file.0);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self::launch("memcached", command, cpus, |own| port_file.address(own))
    }

    /// Starts a server process; `address` waits until it is ready and returns its address.
    fn launch(
        name: &str,
        mut command: Command,
        cpus: &[usize],
        address: impl FnOnce(&mut OwnProcess) -> Result<SocketAddr, String>,
    ) -> Result<Self, ServerError> {
        let not_started = |reason: String| ServerError::NotStarted {
            program: name.to_owned(),
            reason,
        };
        // A child inherits the CPUs of the thread that starts it. A separate thread is pinned, so
        // that the affinity of the caller does not change.
        let spawned = std::thread::scope(|scope| {
            let spawn = || {
                pin(cpus);
                command.spawn()
            };
            scope.spawn(spawn).join()
        });
        let child = spawned.map_err(|_| not_started("no thread to start it".to_owned()))?;
        let mut own = OwnProcess(child.map_err(|error| not_started(error.to_string()))?);
        let address = address(&mut own).map_err(not_started)?;
        let cpu = Some(ProcessCpu::new(own.0.id()));
        let (version, stats) = ask(address)?;
        let (version, is_memcached) = identity(version, &stats);
        Ok(Self {
            address,
            version,
            is_memcached,
            workers: stat(&stats, "threads"),
            cpu,
            own: Some(own),
        })
    }

    /// Connects to a running server at `address`, `HOST:PORT`.
    ///
    /// # Errors
    /// No server answers there, or it is not a memcached server.
    pub(crate) fn find(address: &str) -> Result<Self, ServerError> {
        let unknown = |reason: String| ServerError::Address {
            text: address.to_owned(),
            reason,
        };
        let found = address.to_socket_addrs();
        let mut found = found.map_err(|error| unknown(error.to_string()))?;
        let address = found.next();
        let address = address.ok_or_else(|| unknown("the name has no address".into()))?;
        let (version, stats) = ask(address)?;
        let local = address.ip().is_loopback();
        let pid = stat(&stats, "pid").filter(|pid| local && is_as_old(*pid, &stats));
        let (version, is_memcached) = identity(version, &stats);
        Ok(Self {
            address,
            version,
            is_memcached,
            workers: stat(&stats, "threads"),
            cpu: pid.map(ProcessCpu::new),
            own: None,
        })
    }
}

impl Server {
    /// Returns the number of items it holds, if it reports that.
    pub(crate) fn items(&self) -> Option<u64> {
        let (_, stats) = ask(self.address).ok()?;
        stat(&stats, "curr_items")
    }
}

/// The file to which memcached writes its port; removed on drop.
struct PortFile(PathBuf);

impl PortFile {
    fn new() -> Self {
        let name = format!("herdwick-bench-{}-memcached", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Left over by an earlier process with the same number.
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn address(&self, own: &mut OwnProcess) -> Result<SocketAddr, String> {
        let clock = Stopwatch::start();
        loop {
            let text = std::fs::read_to_string(&self.0).unwrap_or_default();
            let port = text.strip_suffix('\n').and_then(|line| {
                let port = line.strip_prefix("TCP INET: ")?;
                port.parse().ok()
            });
            if let Some(port) = port {
                return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
            }
            if let Ok(Some(status)) = own.0.try_wait() {
                return Err(format!("it ended ({status})"));
            }
            if clock.ns() as u128 > ANSWER_TIMEOUT.as_nanos() {
                return Err("it does not say on which port it listens".into());
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for PortFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A child process that is ended on drop.
#[derive(Debug)]
struct OwnProcess(Child);

impl OwnProcess {
    /// Waits for the ready line on standard output and returns the first address in it.
    fn ready_address(&mut self) -> Result<SocketAddr, String> {
        let stdout = self.0.stdout.as_mut().ok_or("it has no stdout")?;
        let mut line = String::new();
        // Only the first line matters, so bytes that the buffer reads beyond it may be lost.
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(|error| error.to_string())?;
        let words = line.split(|c: char| c.is_whitespace() || c == ',');
        let mut addresses = words.filter_map(|word| word.parse().ok());
        addresses.next().ok_or_else(|| {
            format!(
                "its first line was {:?}, without an address",
                line.trim_end()
            )
        })
    }

    /// Sends SIGTERM, on which the server drains; returns whether it ended within [`DRAIN`].
    fn drain(&self) -> bool {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let Some(pid) = pid else { return false };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        kill_process(pid, Signal::TERM).is_ok() && matches!(poll(&mut ended, Some(&DRAIN)), Ok(1))
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        if !self.drain() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// Returns the requests over shared memory that a server has executed and the number of batches;
/// `None` if it does not report them.
pub(crate) fn batches(address: SocketAddr) -> Option<[u64; 2]> {
    let (_, stats) = ask(address).ok()?;
    Some([stat(&stats, "requests")?, stat(&stats, "batches")?])
}

/// Requests version and statistics.
fn ask(address: SocketAddr) -> Result<(String, String), ServerError> {
    let unreachable = |source| ServerError::Unreachable { address, source };
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT).map_err(unreachable)?;
    stream
        .set_read_timeout(Some(ANSWER_TIMEOUT))
        .map_err(unreachable)?;
    stream
        .write_all(b"version\r\nstats\r\n")
        .map_err(unreachable)?;
    let mut lines = BufReader::new(stream.take(STATS_MAX)).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()));
    let first = first.map_err(unreachable)?;
    let Some(version) = first.strip_prefix("VERSION ") else {
        return Err(ServerError::Stranger {
            address,
            reply: first,
        });
    };
    let stats = lines.map_while(Result::ok).take_while(|line| line != "END");
    Ok((version.to_owned(), stats.collect::<Vec<_>>().join("\n")))
}

/// Returns the version to report, and whether the server is not a herdwick.
fn identity(version: String, stats: &str) -> (String, bool) {
    match stat::<String>(stats, "herdwick_version") {
        Some(own) => (format!("herdwick {own}"), false),
        None => (version, true),
    }
}

/// Returns the value of the line `STAT name`.
fn stat<N: std::str::FromStr>(stats: &str, name: &str) -> Option<N> {
    let mut values = stats.lines().filter_map(|line| {
        let (stat, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
        (stat == name).then(|| value.trim().parse().ok()).flatten()
    });
    values.next()
}

/// Returns whether local process `pid` is as old as the uptime that the server reports. A server in
/// a container reports a pid of its own namespace, which is another process here.
fn is_as_old(pid: u32, stats: &str) -> bool {
    let age = || {
        let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
        let process = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Field 22, starttime in ticks; field 3 is the first behind the name (proc(5)).
        let (_, fields) = process.rsplit_once(')')?;
        let started: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
        (uptime as u64).checked_sub(started / rustix::param::clock_ticks_per_second().max(1))
    };
    match (age(), stat::<u64>(stats, "uptime")) {
        (Some(age), Some(told)) => age.abs_diff(told) <= SAME_AGE_S,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_found_by_whole_names() {
        let stats = "STAT pid 17\nSTAT pid_max 3\nSTAT threads 4\nbabble";
        assert_eq!(stat(stats, "pid"), Some(17_u32));
        assert_eq!(stat(stats, "threads"), Some(4_usize));
        assert_eq!(stat::<u32>(stats, "pi"), None);
        assert_eq!(stat::<u32>(stats, "babble"), None);
    }

    #[test]
    fn a_memcached_is_told_from_this_server() {
        let version = || "1.6.45".to_owned();
        assert_eq!(identity(version(), "STAT pid 1"), (version(), true));
        let own = "STAT version 1.6.45\nSTAT herdwick_version 0.1.0";
        assert_eq!(identity(version(), own), ("herdwick 0.1.0".into(), false));
    }

    #[test]
    fn an_age_that_does_not_fit_is_somebody_else() {
        assert!(!is_as_old(std::process::id(), "STAT uptime 4000000000"));
        assert!(!is_as_old(std::process::id(), ""));
        assert!(!is_as_old(u32::MAX, "STAT uptime 0"));
    }

    #[test]
    fn a_server_that_is_not_there_is_said_to_be_so() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let error = Server::find(&address.to_string()).unwrap_err();
        assert!(matches!(error, ServerError::Unreachable { .. }), "{error}");
        let error = Server::find("nowhere").unwrap_err();
        assert!(matches!(error, ServerError::Address { .. }), "{error}");
    }

    #[test]
    fn a_program_that_says_nothing_did_not_start() {
        let error = Server::start(Path::new("/bin/true"), &[0], (1, 64, 1), &[]).unwrap_err();
        assert!(matches!(error, ServerError::NotStarted { .. }), "{error}");
        let error =
            Server::start(Path::new("/nowhere/herdwick"), &[0], (1, 64, 1), &[]).unwrap_err();
        assert!(matches!(error, ServerError::NotStarted { .. }), "{error}");
    }
}
