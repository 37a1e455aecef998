//! The server under test: a child process that the benchmark starts, or a running server.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use herdwick::{Address, Options, Usage};
use herdwick_server::{GeneralNames, names};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{
    guard::{Guard, drain},
    host::{ProcessCpu, Stopwatch, pin},
    remote::Remote,
};

/// The names in `stats`; a memcached has those that are its own.
const STATS: GeneralNames = GeneralNames::NAMES;

/// A server, and the process whose CPU time is measured.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its address, and how it is reached.
    pub remote: Remote,
    /// Its version, as it reports it: `herdwick VERSION`, or a memcached's version.
    pub version: String,
    /// Whether it is a memcached or another server that speaks the text protocol.
    pub is_memcached: bool,
    /// Its worker threads, from `stats`.
    pub workers: Option<usize>,
    /// Its CPU time, if it runs on this host.
    pub cpu: Option<ProcessCpu>,
    #[expect(dead_code, reason = "held to end the process on drop")]
    own: Option<ChildProcess>,
}

/// Why no server can be measured.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be parsed.
    #[error(
        "'{text}' is no address: give HOST:PORT, such as 127.0.0.1:11211, or the path of a unix socket"
    )]
    Address {
        /// The address as given.
        text: String,
    },
    /// No server answers at the address, it does not admit this client, or it does not speak
    /// memcached's protocol.
    #[error("{source}")]
    Client {
        /// The address.
        server: Address,
        /// What happened.
        source: herdwick::Error,
    },
    /// The server process did not start.
    #[error("`{program}` did not start: {reason}; its messages are above")]
    NotStarted {
        /// The command.
        program: String,
        /// What happened.
        reason: String,
    },
}

/// Timeout of a memcached's start.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
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
        let names = (&*named, program);
        Self::launch(names, command, cpus, ChildProcess::ready_address)
    }

    /// Starts the memcached in the path on `cpus`, with one worker and `memory_mb` MiB, on a free
    /// loopback port; `program` is its guard.
    ///
    /// # Errors
    /// It did not start, or does not answer.
    pub(crate) fn start_memcached(
        program: &Path,
        cpus: &[usize],
        memory_mb: u64,
    ) -> Result<Self, ServerError> {
        let port_file = PortFile::new();
        let mut command = Command::new("memcached");
        // `-p -1`: memcached picks a port and writes it to the file. As root it does not start
        // without `-u`.
        command.args("-l 127.0.0.1 -p -1 -U 0 -t 1 -u root -m".split(' '));
        command.arg(memory_mb.to_string());
        command.env("MEMCACHED_PORT_FILENAME", &port_file.0);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let names = ("memcached", program);
        Self::launch(names, command, cpus, |own| port_file.address(own))
    }

    /// Starts a server process called `name`, with `program` as its guard; `address` waits until it is
    /// ready and returns its address.
    fn launch(
        (name, program): (&str, &Path),
        mut command: Command,
        cpus: &[usize],
        address: impl FnOnce(&mut ChildProcess) -> Result<SocketAddr, String>,
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
        let child = child.map_err(|error| not_started(error.to_string()))?;
        // Guarded before its address is waited for: from here on a killed benchmark ends it.
        let mut own = ChildProcess { child, guard: None };
        own.guard = Some(Guard::start(program, &own.child).map_err(not_started)?);
        let address = address(&mut own).map_err(not_started)?;
        let cpu = Some(ProcessCpu::new(own.child.id()));
        let remote = Remote::new(Address::Tcp(address.to_string()), Options::default());
        let (version, stats) = ask(&remote)?;
        let (version, is_memcached) = identity(version, &stats);
        Ok(Self {
            remote,
            version,
            is_memcached,
            workers: stat(&stats, STATS.threads),
            cpu,
            own: Some(own),
        })
    }

    /// Connects to a running server at `address`, `HOST:PORT` or the path of a unix socket, with the
    /// TLS and login of `access`.
    ///
    /// # Errors
    /// No server answers there, it does not admit this client, or it is not a memcached server.
    pub(crate) fn find(address: &str, access: Options) -> Result<Self, ServerError> {
        let parsed = address.parse().map_err(|_: Usage| ServerError::Address {
            text: address.to_owned(),
        })?;
        let remote = Remote::new(parsed, access);
        let (version, stats) = ask(&remote)?;
        let local = is_local(&remote);
        // The number of a process of another host is that of an unrelated one here.
        let pid = stat(&stats, STATS.pid).filter(|pid| local && is_as_old(*pid, &stats));
        let (version, is_memcached) = identity(version, &stats);
        Ok(Self {
            remote,
            version,
            is_memcached,
            workers: stat(&stats, STATS.threads),
            cpu: pid.map(ProcessCpu::new),
            own: None,
        })
    }
}

/// Returns whether the server is on this host: on a unix socket or a loopback address.
fn is_local(remote: &Remote) -> bool {
    match &remote.address {
        Address::Unix(_) => true,
        Address::Tcp(_) => {
            let peer = remote
                .connect()
                .ok()
                .and_then(|connection| connection.peer());
            peer.is_some_and(|peer| peer.ip().is_loopback())
        }
    }
}

impl Server {
    /// Returns the number of items it holds, if it reports that.
    pub(crate) fn items(&self) -> Option<u64> {
        let (_, stats) = ask(&self.remote).ok()?;
        stat(&stats, STATS.curr_items)
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

    fn address(&self, own: &mut ChildProcess) -> Result<SocketAddr, String> {
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
            if let Ok(Some(status)) = own.child.try_wait() {
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
        // Not there if memcached did not come so far.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A child process that is ended on drop, or by its guard.
#[derive(Debug)]
struct ChildProcess {
    child: Child,
    /// Dropped when the child has been waited for.
    guard: Option<Guard>,
}

impl ChildProcess {
    /// Waits for the ready line on standard output and returns the first address in it.
    fn ready_address(&mut self) -> Result<SocketAddr, String> {
        let stdout = self.child.stdout.as_mut().ok_or("it has no stdout")?;
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

    /// Asks it to end; returns whether it has, in time.
    fn drain(&self) -> bool {
        let handle = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty());
        handle.is_ok_and(|handle| drain(&handle))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if !self.drain() {
            // Fails only for a process that has been waited for.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Returns the requests over fabrics that a server has executed and the number of batches;
/// `None` if it does not report them.
pub(crate) fn batches(server: &Remote) -> Option<[u64; 2]> {
    let (_, stats) = ask(server).ok()?;
    Some([
        stat(&stats, names::REQUESTS)?,
        stat(&stats, names::BATCHES)?,
    ])
}

/// The statistics of a server, by name.
type StatList = Vec<(String, String)>;

/// Requests version and statistics.
fn ask(server: &Remote) -> Result<(String, StatList), ServerError> {
    let asked = server.text_client().and_then(|mut client| {
        let version = client.version()?;
        Ok((version, client.stats("")?))
    });
    asked.map_err(|source| ServerError::Client {
        server: server.address.clone(),
        source,
    })
}

/// Returns the version to report, and whether the server is not a herdwick.
fn identity(version: String, stats: &[(String, String)]) -> (String, bool) {
    match stat::<String>(stats, STATS.herdwick_version) {
        Some(own) => (format!("herdwick {own}"), false),
        None => (version, true),
    }
}

/// Returns the value of the statistic `name`.
fn stat<N: std::str::FromStr>(stats: &[(String, String)], name: &str) -> Option<N> {
    let (_, value) = stats.iter().find(|(stat, _)| stat == name)?;
    value.trim().parse().ok()
}

/// Returns whether local process `pid` is as old as the uptime that the server reports. A server in
/// a container reports a pid of its own namespace, which is another process here.
fn is_as_old(pid: u32, stats: &[(String, String)]) -> bool {
    let age = || {
        let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
        let process = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Field 22, starttime in ticks; field 3 is the first behind the name (proc(5)).
        // The name may contain parentheses itself.
        let (_, fields) = process.rsplit_once(')')?;
        let started: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
        (uptime as u64).checked_sub(started / rustix::param::clock_ticks_per_second().max(1))
    };
    match (age(), stat::<u64>(stats, STATS.uptime)) {
        (Some(age), Some(told)) => age.abs_diff(told) <= SAME_AGE_S,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(pairs: &[(&str, &str)]) -> StatList {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn statistics_match_by_whole_name() {
        let stats = stats(&[("pid", "17"), ("pid_max", "3"), ("threads", "4")]);
        assert_eq!(stat(&stats, "pid"), Some(17_u32));
        assert_eq!(stat(&stats, STATS.threads), Some(4_usize));
        assert_eq!(stat::<u32>(&stats, "pi"), None);
    }

    #[test]
    fn memcached_is_distinguished_from_herdwick() {
        let version = || "1.6.45".to_owned();
        let memcached = stats(&[("pid", "1")]);
        assert_eq!(identity(version(), &memcached), (version(), true));
        let own = stats(&[("version", "1.6.45"), ("herdwick_version", "0.1.0")]);
        assert_eq!(identity(version(), &own), ("herdwick 0.1.0".into(), false));
    }

    #[test]
    fn uptime_that_does_not_match_means_another_server() {
        let old = stats(&[("uptime", "4000000000")]);
        assert!(!is_as_old(std::process::id(), &old));
        assert!(!is_as_old(std::process::id(), &[]));
        assert!(!is_as_old(u32::MAX, &stats(&[("uptime", "0")])));
    }

    #[test]
    fn unreachable_server_is_reported() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let find = |address: &str| Server::find(address, Options::default()).unwrap_err();
        let error = find(&address.to_string());
        assert!(matches!(error, ServerError::Client { .. }), "{error}");
        let error = find("nowhere:http");
        assert!(matches!(error, ServerError::Address { .. }), "{error}");
    }

    #[test]
    fn program_without_output_is_reported_as_not_started() {
        let error = Server::start(Path::new("/bin/true"), &[0], (1, 64, 1), &[]).unwrap_err();
        assert!(matches!(error, ServerError::NotStarted { .. }), "{error}");
        let error =
            Server::start(Path::new("/nowhere/herdwick"), &[0], (1, 64, 1), &[]).unwrap_err();
        assert!(matches!(error, ServerError::NotStarted { .. }), "{error}");
    }
}
