//! The server under test: one that we start, or one that is there.

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

/// Where requests go, and whose CPU time they cost.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its TCP address.
    pub address: SocketAddr,
    /// What it calls itself: this server by its own version, a memcached by its.
    pub version: String,
    /// It is a memcached, or whatever else speaks its text.
    pub is_memcached: bool,
    /// Its worker threads, as its statistics have them.
    pub workers: Option<usize>,
    /// Its CPU time, if it runs on this host.
    pub cpu: Option<ProcessCpu>,
    #[expect(dead_code, reason = "held to end the process on drop")]
    own: Option<OwnProcess>,
}

/// Why there is no server to measure.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address means nothing.
    #[error("'{text}' is no address: {reason}; say HOST:PORT, such as 127.0.0.1:11211")]
    Address {
        /// What was said.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody answers there.
    #[error(
        "no server at {address}: {source}; start one with `herdwick serve`, or leave --server out"
    )]
    Unreachable {
        /// Where we asked.
        address: SocketAddr,
        /// What happened.
        source: std::io::Error,
    },
    /// It speaks something else.
    #[error("{address} answered 'version' with {reply:?}: not a memcached server")]
    Stranger {
        /// Where we asked.
        address: SocketAddr,
        /// What it said.
        reply: String,
    },
    /// Our own did not start.
    #[error("`{program}` did not start: {reason}; its own words stand above")]
    NotStarted {
        /// What we ran.
        program: String,
        /// What happened.
        reason: String,
    },
}

/// A server that does not answer for so long is not there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A drain may take so long before we kill.
const DRAIN: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};
/// No `stats` reply is longer.
const STATS_MAX: u64 = 64 << 10;
/// How far a process's age may lie from the uptime it tells for us to believe it is the same.
const SAME_AGE_S: u64 = 2;

impl Server {
    /// Starts `program serve` on `cpus` with so many workers, so much memory and room for so many
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
        // Root has to say that it means it, as below.
        command.args(["serve", "-l", "127.0.0.1", "-p", "0", "-u", "root"]);
        command.args(["-t", &workers.to_string(), "-m", &memory_mb.to_string()]);
        command.args(["-c", &connections.to_string()]);
        command.args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let named = format!("{} serve", program.display());
        Self::launch(&named, command, cpus, OwnProcess::ready_address)
    }

    /// Starts the memcached in the path on `cpus`, with one worker and so much memory, on a free
    /// loopback port.
    ///
    /// # Errors
    /// It did not start, or does not answer.
    pub(crate) fn start_memcached(cpus: &[usize], memory_mb: u64) -> Result<Self, ServerError> {
        let port_file = PortFile::new();
        let mut command = Command::new("memcached");
        // A port of its own choice (-1), told through the file; root has to say that it means it.
        command.args("-l 127.0.0.1 -p -1 -U 0 -t 1 -u root -m".split(' '));
        command.arg(memory_mb.to_string());
        command.env("MEMCACHED_PORT_FILENAME", &port_file.0);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self::launch("memcached", command, cpus, |own| port_file.address(own))
    }

    /// Starts a process that tells its address one way or another.
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
        // A child inherits the CPUs of the thread that starts it; nobody else's change.
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

    /// Greets a server at `address`, `HOST:PORT`.
    ///
    /// # Errors
    /// It is not there, or no memcached server.
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
    /// How many items it holds, if it says.
    pub(crate) fn items(&self) -> Option<u64> {
        let (_, stats) = ask(self.address).ok()?;
        stat(&stats, "curr_items")
    }
}

/// Where memcached writes which port it took; gone with its owner.
struct PortFile(PathBuf);

impl PortFile {
    fn new() -> Self {
        let name = format!("herdwick-bench-{}-memcached", std::process::id());
        let path = std::env::temp_dir().join(name);
        // One of a process of this number that ended long ago.
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

/// Ends with its owner.
#[derive(Debug)]
struct OwnProcess(Child);

impl OwnProcess {
    /// Waits for the one line that a server says when it is ready, and finds the address in it.
    fn ready_address(&mut self) -> Result<SocketAddr, String> {
        let stdout = self.0.stdout.as_mut().ok_or("it has no stdout")?;
        let mut line = String::new();
        // One line, and nothing after it matters: what a buffer swallows behind it is nobody's.
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

    /// Asks it to drain; returns whether it ended in time.
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

/// Requests over shared memory that a server has executed, and in how many batches; `None` if it
/// does not say.
pub(crate) fn batches(address: SocketAddr) -> Option<[u64; 2]> {
    let (_, stats) = ask(address).ok()?;
    Some([stat(&stats, "requests")?, stat(&stats, "batches")?])
}

/// Asks for version and statistics.
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

/// What a server calls itself, and whether it is none of this program's.
fn identity(version: String, stats: &str) -> (String, bool) {
    match stat::<String>(stats, "herdwick_version") {
        Some(own) => (format!("herdwick {own}"), false),
        None => (version, true),
    }
}

/// The value behind `STAT name`.
fn stat<N: std::str::FromStr>(stats: &str, name: &str) -> Option<N> {
    let mut values = stats.lines().filter_map(|line| {
        let (stat, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
        (stat == name).then(|| value.trim().parse().ok()).flatten()
    });
    values.next()
}

/// Whether process `pid` here is as old as the server says it is: one in a container tells a pid
/// that is somebody else's here.
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
