//! What the server is as a process: descriptors, user, background, number.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use herdwick_server::{Address, Server};
use sd_notify::NotifyState;

use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::{Pid, Resource, Rlimit, getrlimit, getuid, setrlimit, setsid, test_kill_process},
    stdio::dup2_stderr,
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// Why the process cannot be as it was asked to be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    /// The hard limit is too low.
    #[error(
        "{connections} connections (-c) need {needed} descriptors, and this process may have \
         {limit}; raise it (ulimit -Hn, or LimitNOFILE= in the unit file), or give a lower -c"
    )]
    Descriptors {
        connections: usize,
        needed: u64,
        limit: u64,
    },
    /// There is no such user.
    #[error("there is no user {name:?} (-u); create it, or give another")]
    NoUser { name: String },
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Refused {
        what: &'static str,
        source: io::Error,
    },
    /// The number cannot be written.
    #[error(
        "cannot write the process's number to {path} (-P): {source}; the user that the server runs \
         as (-u) has to be allowed to make files there"
    )]
    PidFile { path: PathBuf, source: io::Error },
    /// What -d started has ended.
    #[error("the server in the background (-d) did not start; what it said stands above")]
    Background,
}

fn refused(what: &'static str) -> impl Fn(rustix::io::Errno) -> ProcessError {
    move |errno| ProcessError::Refused {
        what,
        source: errno.into(),
    }
}

/// Descriptors besides connections: listeners, polls, wakers; and leases', as far as they go.
const DESCRIPTORS_BESIDE: u64 = 128;

/// Lets the process have a descriptor for each connection; gives as many connections as it may have
/// for certain. A stock memcached starts where the limit is not below `-c`, and stops accepting
/// when descriptors run out; so fewer are no reason to refuse, but one to say so.
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
    // All that may be had: leases need some too, and cost nothing until they are there.
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
        // Less than `connections`.
        return Ok(certain as usize);
    }
    Ok(connections)
}

/// Lets the kernel write whole core dumps.
pub(super) fn allow_core_dumps() -> Result<(), ProcessError> {
    let maximum = getrlimit(Resource::Core).maximum;
    let wanted = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Core, wanted).map_err(refused("raise the limit of core dumps (-r)"))
}

/// Keeps what is mapped, and what will be, out of swap.
pub(super) fn lock_memory() -> Result<(), ProcessError> {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    mlockall(all).map_err(refused(
        "lock memory (-k; raise ulimit -l, or leave it out)",
    ))
}

/// Becomes another user, if this is root: else nothing happens, as in memcached. Threads started
/// later are that user too, so this comes before all of them.
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
    set_thread_groups(&[gid]).map_err(&to)?;
    set_thread_res_gid(gid, gid, gid).map_err(&to)?;
    set_thread_res_uid(uid, uid, uid).map_err(&to)
}

/// User and group of a name or number in the text of passwd(5).
fn find_user(passwd: &str, name: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let known = fields.next()? == name;
        let uid = fields.nth(1)?;
        let gid = fields.next()?.parse().ok()?;
        (known || uid == name).then_some((uid.parse().ok()?, gid))
    })
}

/// Whether this is root, and nobody has said that it shall stay so (`-u root`).
pub(super) fn is_root_unasked(user: Option<&str>) -> bool {
    user.is_none() && getuid().is_root()
}

/// Starts the same command in the background, and returns what it says when it is ready. Both write
/// to one standard error, until the one in the background leaves it.
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
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let mut ready = String::new();
    if let Some(stdout) = child.stdout.take() {
        // At its end there is nothing to read.
        let _ = BufReader::new(stdout).read_line(&mut ready);
    }
    if ready.is_empty() {
        return Err(ProcessError::Background);
    }
    Ok(ready)
}

/// Leaves the terminal and the directory, as a process in the background does.
pub(super) fn settle_in_background() -> Result<(), ProcessError> {
    // A process that leads its group already cannot: then it has left the terminal's.
    let _ = setsid();
    rustix::process::chdir("/").map_err(refused("leave the directory"))
}

/// Writes nothing to the standard error any more: whoever waits for its end waits for a start, not
/// for the server's end.
pub(super) fn leave_stderr() -> Result<(), ProcessError> {
    let null = File::options().write(true).open("/dev/null");
    let to = |source| ProcessError::Refused {
        what: "leave the standard error (-d)",
        source,
    };
    dup2_stderr(null.map_err(to)?).map_err(|errno| to(errno.into()))
}

/// Bytes of memory that this process may have: the host's, or less by a control group. `None`:
/// nothing tells.
pub(super) fn ram_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let total = meminfo.lines().find_map(|line| {
        let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?;
        Some(kib.parse::<u64>().ok()? * 1024)
    })?;
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/"));
    let groups = Path::new("/sys/fs/cgroup").join(group.unwrap_or_default());
    // A limit holds for all groups below; what is "max", or not there, limits nothing.
    let limits = groups.ancestors().filter_map(|group| {
        let limit = fs::read_to_string(group.join("memory.max")).ok()?;
        limit.trim().parse::<u64>().ok()
    });
    Some(limits.fold(total, u64::min))
}

/// Tells the service manager how far the server is, where it is started by one that asks
/// (`Type=notify`).
pub(super) fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        tracing::warn!("cannot tell the service manager (NOTIFY_SOCKET): {error}");
    }
}

/// Names the ports in the file that the environment asks for, in memcached's words, for whoever has
/// the server take free ones. As in memcached, one that cannot be written keeps nothing from going
/// on.
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
    // It appears whole: whoever waits for it reads it at once.
    let beside = format!("{path}.lck");
    if let Err(error) = fs::write(&beside, lines).and_then(|()| fs::rename(&beside, &path)) {
        tracing::warn!("cannot write the ports to {path} (MEMCACHED_PORT_FILENAME): {error}");
    }
}

/// The file with the process's number; gone with it.
pub(super) struct PidFile(PathBuf);

impl PidFile {
    /// Puts the file at `path`, an absolute one, whole, in the place of what was there. To be done
    /// when the server is there: the file of one that runs is not for others to replace.
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
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        // One of a process of this number that was killed in between.
        let _ = fs::remove_file(&beside);
        File::create_new(&beside)
            .and_then(|mut file| file.write_all(own_number().as_bytes()))
            .and_then(|()| fs::rename(&beside, path))
            .map_err(refused)?;
        Ok(Self(path.to_owned()))
    }
}

fn own_number() -> String {
    format!("{}\n", std::process::id())
}

/// The process that the file at `path` names, if it runs and is not this one.
fn other_process(path: &Path) -> Option<i32> {
    let number: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    let pid = Pid::from_raw(number).filter(|pid| !pid.is_init())?;
    (number != std::process::id().cast_signed() && test_kill_process(pid).is_ok()).then_some(number)
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let is_own = fs::read_to_string(&self.0).is_ok_and(|text| text == own_number());
        if is_own {
            // If it stays, the next start replaces it.
            let _ = fs::remove_file(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nnobody:x:65534:65533::/:/bin/false\n";
        assert_eq!(find_user(passwd, "root"), Some((0, 0)));
        assert_eq!(find_user(passwd, "nobody"), Some((65534, 65533)));
        assert_eq!(find_user(passwd, "65534"), Some((65534, 65533)));
        assert_eq!(find_user(passwd, "none"), None);
    }
}
