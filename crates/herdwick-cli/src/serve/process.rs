//! The server as a process: limits, user, background, PID file, and notification of the service
//! manager.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use herdwick_server::{Address, Server};
use sd_notify::NotifyState;
use signal_hook::consts::SIGXFSZ;

use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::{Pid, Resource, Rlimit, getrlimit, getuid, setrlimit, setsid, test_kill_process},
    stdio::dup2_stderr,
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// Why the process cannot be set up as the flags demand.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    /// The hard limit of descriptors is too low.
    #[error(
        "{connections} connections (-c) need {needed} descriptors, and this process may have \
         {limit}; raise it (ulimit -Hn, or LimitNOFILE= in the unit file), or give a lower -c"
    )]
    Descriptors {
        connections: usize,
        needed: u64,
        limit: u64,
    },
    /// The user does not exist.
    #[error("there is no user {name:?} (-u); create it, or give another")]
    NoUser { name: String },
    /// The operating system refused an operation.
    #[error("cannot {what}: {source}")]
    Refused {
        what: &'static str,
        source: io::Error,
    },
    /// The PID file cannot be written.
    #[error(
        "cannot write the process's number to {path} (-P): {source}; give a file in a directory \
         where there is room, and where the user that the server runs as (-u) may make files"
    )]
    PidFile { path: PathBuf, source: io::Error },
    /// The background process ended before it was ready.
    #[error("the server in the background did not start; its messages are above")]
    Background {
        /// Its exit code, if no signal ended it.
        code: Option<i32>,
    },
}

fn refused(what: &'static str) -> impl Fn(rustix::io::Errno) -> ProcessError {
    move |errno| ProcessError::Refused {
        what,
        source: errno.into(),
    }
}

/// Descriptors besides those of connections: listeners, polls, wakeup descriptors, and those of a
/// few leases.
const DESCRIPTORS_BESIDE: u64 = 128;

/// Raises the limit of descriptors; returns the number of connections that are certain to get one.
/// A stock memcached starts if the limit is not below `-c`, and stops accepting when descriptors
/// run out. So too few for all connections are a reason to warn, not to refuse.
pub(super) fn allow_connections(connections: usize) -> Result<usize, ProcessError> {
    let needed = connections as u64 + DESCRIPTORS_BESIDE;
    let now = getrlimit(Resource::Nofile);
    let allowed = now.maximum.unwrap_or(u64::MAX);
    let certain = allowed.saturating_sub(DESCRIPTORS_BESIDE);
    if allowed < connections as u64 || certain == 0 {
        return Err(ProcessError::Descriptors {
            connections,
            needed,
            limit: allowed,
        });
    }
    // The whole hard limit: leases need descriptors too, and unused ones cost nothing.
    let wanted = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    setrlimit(Resource::Nofile, wanted).map_err(refused("raise the limit of descriptors"))?;
    if certain < connections as u64 {
        tracing::warn!(
            connections,
            needed,
            allowed,
            "{connections} connections (-c) need {needed} descriptors, and this process may have \
             {allowed}: {certain} connections are served; raise it (ulimit -Hn, or LimitNOFILE= \
             in the unit file) for more"
        );
        // Less than `connections`, so it fits a usize.
        return Ok(certain as usize);
    }
    Ok(connections)
}

/// Raises the limit of core dumps to the hard limit.
pub(super) fn allow_core_dumps() -> Result<(), ProcessError> {
    let maximum = getrlimit(Resource::Core).maximum;
    let wanted = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Core, wanted).map_err(refused("raise the limit of core dumps (-r)"))
}

/// Locks the pages of all current and future mappings in memory, each when it is first used: a store has
/// mapped room for the largest index beside the segments whose memory that takes.
pub(super) fn lock_memory() -> Result<(), ProcessError> {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(all).map_err(refused(
        "lock memory (-k; raise ulimit -l, or leave it out)",
    ))
}

/// Changes to another user if this process is root; else does nothing, as in memcached. Threads
/// inherit the user of the thread that starts them, so this has to precede all of them.
pub(super) fn become_user(name: &str) -> Result<(), ProcessError> {
    if !getuid().is_root() {
        return Ok(());
    }
    let passwd = fs::read_to_string("/etc/passwd").map_err(|source| ProcessError::Refused {
        what: "read /etc/passwd",
        source,
    })?;
    let (uid, gid) = find_user(&passwd, name).ok_or_else(|| ProcessError::NoUser {
        name: name.to_owned(),
    })?;
    if uid == 0 {
        return Ok(());
    }
    let to = refused("become another user (-u)");
    let (uid, gid) = (
        rustix::process::Uid::from_raw(uid),
        rustix::process::Gid::from_raw(gid),
    );
    // The user last: afterwards the process may no longer change its groups.
    set_thread_groups(&[gid]).map_err(&to)?;
    set_thread_res_gid(gid, gid, gid).map_err(&to)?;
    set_thread_res_uid(uid, uid, uid).map_err(&to)
}

/// Returns user and group ID of a user name or number, from the text of passwd(5).
fn find_user(passwd: &str, name: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let known = fields.next()? == name;
        let uid = fields.nth(1)?;
        let gid = fields.next()?.parse().ok()?;
        (known || uid == name).then_some((uid.parse().ok()?, gid))
    })
}

/// Returns whether this process is root without `-u`. `-u root` states that this is intended.
pub(super) fn is_root_unasked(user: Option<&str>) -> bool {
    user.is_none() && getuid().is_root()
}

/// Starts the same command in the background, and returns the ready line that it prints. Both write
/// to the same standard error until the background process detaches from it.
pub(super) fn start_in_background() -> Result<String, ProcessError> {
    let failed = |source| ProcessError::Refused {
        what: "start a server in the background (-d)",
        source,
    };
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    let mut child = command
        .args(arguments)
        .arg("--in-background")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut ready = String::new();
    if let Some(stdout) = child.stdout.take() {
        // At the end of the stream the line stays empty.
        let _ = BufReader::new(stdout).read_line(&mut ready);
    }
    if ready.is_empty() {
        let code = child.wait().map_err(failed)?.code();
        return Err(ProcessError::Background { code });
    }
    Ok(ready)
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error, EFBIG: by default SIGXFSZ
/// ends the process.
pub(super) fn outlive_file_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Detaches from the terminal and from the working directory.
pub(super) fn settle_in_background() -> Result<(), ProcessError> {
    // setsid() fails for the leader of a process group: `start_in_background` leaves this process in
    // the group of its parent.
    setsid().map_err(refused("become the leader of a session (-d)"))?;
    rustix::process::chdir("/").map_err(refused("leave the directory"))
}

/// Redirects standard error to /dev/null. A parent that reads standard error to its end waits for
/// the start, not for the end of the server.
pub(super) fn leave_stderr() -> Result<(), ProcessError> {
    let null = File::options().write(true).open("/dev/null");
    let to = |source| ProcessError::Refused {
        what: "leave the standard error (-d)",
        source,
    };
    dup2_stderr(null.map_err(to)?).map_err(|errno| to(errno.into()))
}

/// Returns the bytes of memory that this process may use: the host's, or less if a control group
/// (v2) limits it. `None` if /proc/meminfo cannot be read.
pub(super) fn ram_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let total = meminfo.lines().find_map(|line| {
        let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?;
        Some(kib.parse::<u64>().ok()? * 1024)
    })?;
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // `0::` is the line of version 2.
    let group = group.lines().find_map(|line| line.strip_prefix("0::/"));
    let groups = Path::new("/sys/fs/cgroup").join(group.unwrap_or_default());
    // The limit of a group applies to all groups below it. `max` and a missing file mean no limit.
    let limits = groups.ancestors().filter_map(|group| {
        let limit = fs::read_to_string(group.join("memory.max")).ok()?;
        limit.trim().parse::<u64>().ok()
    });
    Some(limits.fold(total, u64::min))
}

/// Notifies the service manager of the state of the server, if it requests that (`Type=notify`).
pub(super) fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        tracing::warn!("cannot tell the service manager (NOTIFY_SOCKET): {error}");
    }
}

/// Writes the ports to the file that MEMCACHED_PORT_FILENAME names, in memcached's format, for
/// callers that let the server take free ports. As in memcached, a failure does not stop the
/// server.
#[expect(
    clippy::disallowed_methods,
    reason = "memcached's test suites and wrappers ask by the environment alone"
)]
pub(super) fn write_ports(server: &Server) {
    let Ok(path) = std::env::var("MEMCACHED_PORT_FILENAME") else {
        return;
    };
    let tcp = server
        .addresses()
        .iter()
        .filter_map(|address| match address {
            Address::Tcp(address) => Some(("TCP", *address)),
            Address::Unix(_) => None,
        });
    let udp = server
        .udp_addresses()
        .iter()
        .map(|&address| ("UDP", address));
    let lines: String = tcp
        .chain(udp)
        .map(|(kind, address)| {
            let family = if address.is_ipv4() { "INET" } else { "INET6" };
            format!("{kind} {family}: {}\n", address.port())
        })
        .collect();
    // The rename makes the file appear complete: a caller that waits for it reads it at once.
    let beside = format!("{path}.lck");
    if let Err(error) = fs::write(&beside, lines).and_then(|()| fs::rename(&beside, &path)) {
        tracing::warn!("cannot write the ports to {path} (MEMCACHED_PORT_FILENAME): {error}");
    }
}

/// Returns the file of SASL's users that MEMCACHED_SASL_PWDB names: memcached takes it from the
/// environment alone.
pub(super) fn sasl_pwdb() -> Option<PathBuf> {
    let path = std::env::var_os("MEMCACHED_SASL_PWDB")?;
    (!path.is_empty()).then(|| path.into())
}

/// The PID file; removed on drop.
pub(super) struct PidFile(PathBuf);

impl PidFile {
    /// Checks, before the server starts, that a file can be made beside the one at `path`.
    pub(super) fn check(path: &Path) -> Result<(), ProcessError> {
        let beside = Self::beside(path);
        let made = File::create(&beside).and_then(|_| fs::remove_file(&beside));
        made.map_err(|source| ProcessError::PidFile {
            path: path.to_owned(),
            source,
        })
    }

    /// Returns the path at which the file is written before it takes its place.
    fn beside(path: &Path) -> PathBuf {
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        beside.into()
    }

    /// Writes the file at `path`, which has to be absolute, and atomically replaces an existing
    /// one. To be called when the server is ready, so that a start that fails does not replace the
    /// file of a running server.
    pub(super) fn write(path: &Path) -> Result<Self, ProcessError> {
        let refused = |source| ProcessError::PidFile {
            path: path.to_owned(),
            source,
        };
        if let Some(pid) = other_process(path) {
            tracing::warn!(
                pid,
                "{} named process {pid}, which runs (-P)",
                path.display()
            );
        }
        let beside = Self::beside(path);
        // Left over by a process with the same number that was killed in between.
        let _ = fs::remove_file(&beside);
        let written = File::create_new(&beside)
            .and_then(|mut file| file.write_all(own_number().as_bytes()))
            .and_then(|()| fs::rename(&beside, path));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written.map_err(refused)?;
        Ok(Self(path.to_owned()))
    }
}

fn own_number() -> String {
    format!("{}\n", std::process::id())
}

/// Returns the process that the file at `path` names, if it is alive and not this one.
fn other_process(path: &Path) -> Option<i32> {
    let number: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    let pid = Pid::from_raw(number).filter(|pid| !pid.is_init())?;
    (number != std::process::id().cast_signed() && test_kill_process(pid).is_ok()).then_some(number)
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let is_own = fs::read_to_string(&self.0).is_ok_and(|text| text == own_number());
        if is_own {
            // Errors are ignored: the next start replaces the file.
            let _ = fs::remove_file(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_that_cannot_be_written_leaves_none() {
        let name = format!("herdwick-pid-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        // A directory, which no file replaces.
        let path = directory.join("pid");
        fs::create_dir_all(&path).unwrap();
        assert!(PidFile::write(&path).is_err());
        let left = fs::read_dir(&directory).unwrap().count();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(left, 1, "the directory alone");
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nnobody:x:65534:65533::/:/bin/false\n";
        assert_eq!(find_user(passwd, "root"), Some((0, 0)));
        assert_eq!(find_user(passwd, "nobody"), Some((65534, 65533)));
        assert_eq!(find_user(passwd, "65534"), Some((65534, 65533)));
        assert_eq!(find_user(passwd, "none"), None);
    }
}
