//! A thread that another can interrupt in a blocking system call, by a signal directed at it.

use std::io;

use rustix::{
    process::getpid,
    thread::{Pid, gettid},
};

/// A thread of this process, which others may interrupt in a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interruptible(Pid);

impl Interruptible {
    /// The thread that calls.
    #[must_use]
    pub fn here() -> Self {
        Self(gettid())
    }

    /// Sends it SIGURG. That has no effect but to end what the thread waits for in the kernel, and
    /// not even that one unless the process has a handler for it: by default it is ignored.
    ///
    /// # Errors
    /// `ESRCH` if there is no such thread any more.
    pub fn interrupt(self) -> io::Result<()> {
        // tgkill, not tkill: a thread id that another process has by now is not signaled.
        let (process, thread) = (getpid().as_raw_pid(), self.0.as_raw_pid());
        // SAFETY: tgkill(2) takes three numbers and touches no memory. The signal runs the handler that
        // is installed; installing one was unsound unless any thread may run it.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) };
        if sent == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn thread_can_be_interrupted_until_it_ends() {
        Interruptible::here().interrupt().unwrap();
        let ended = thread::spawn(Interruptible::here).join().unwrap();
        assert_ne!(ended, Interruptible::here());
        // A thread that was joined may still be on its way out of the kernel.
        while ended.interrupt().is_ok() {
            thread::yield_now();
        }
        let gone = ended.interrupt().unwrap_err().raw_os_error();
        assert_eq!(gone, Some(libc::ESRCH));
    }
}
