//! The guard of a server that the benchmark has started: a process that ends the server when the
//! benchmark is killed, and so cannot end it itself.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// Time for a graceful end after SIGTERM, before SIGKILL.
const DRAIN: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// The line that a guard prints once it holds the server's pidfd.
const BEGUN: &str = "begun";

/// A guard's process. It ends after its server, or on drop.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    /// Starts `program` as the guard of `server`, which is not to be waited for before this returns:
    /// its number would be free for another process.
    pub(crate) fn start(program: &Path, server: &Child) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.args(["bench-guard", &server.id().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A terminal that closes sends SIGHUP to the benchmark's group: it ends the benchmark, but not a
        // server, which reloads its settings on it.
        command.process_group(0);
        let child = command.spawn();
        let mut guard = Self(child.map_err(|error| format!("no guard for it: {error}"))?);
        let mut line = String::new();
        if let Some(stdout) = guard.0.stdout.as_mut() {
            // What was read of the line says whether it began.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        match line.trim_end() {
            BEGUN => Ok(guard),
            other => Err(format!("its guard's first line was {other:?}")),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The end of its input is what the guard waits for.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Runs as the guard of process `pid` until that has ended. When standard input ends, which is when
/// the process that started this one ends, it ends process `pid`.
///
/// # Errors
/// There is no such process, or a system call fails.
pub fn guard(pid: i32) -> io::Result<()> {
    let pid = Pid::from_raw(pid).filter(|_| pid > 0);
    let server = pidfd_open(pid.ok_or(ErrorKind::InvalidInput)?, PidfdFlags::empty())?;
    // If the reader of that has gone, standard input has ended, too.
    let _ = writeln!(io::stdout(), "{BEGUN}");
    let stdin = io::stdin();
    let mut ended = [
        PollFd::new(&server, PollFlags::IN),
        PollFd::new(&stdin, PollFlags::IN),
    ];
    retry_on_intr(|| poll(&mut ended, None))?;
    // A server that has ended leaves nothing to do.
    if ended[0].revents().is_empty() && !drain(&server) {
        pidfd_send_signal(&server, Signal::KILL)?;
    }
    Ok(())
}

/// Sends SIGTERM, on which a server drains; returns whether it ended within [`DRAIN`].
pub(crate) fn drain(server: &OwnedFd) -> bool {
    if pidfd_send_signal(server, Signal::TERM).is_err() {
        return false;
    }
    let mut ended = [PollFd::new(server, PollFlags::IN)];
    matches!(poll(&mut ended, Some(&DRAIN)), Ok(1))
}
