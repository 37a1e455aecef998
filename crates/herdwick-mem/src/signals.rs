//! Threads that take no signals of their process.

use std::{mem::MaybeUninit, ptr};

/// Runs `start` with all signals of this thread blocked. A thread that is started meanwhile inherits that, so that
/// no signal of the process is delivered to it, whatever the others block later: a program that reads its
/// signals from a descriptor (signalfd) blocks them in the threads that it knows of.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // A named binding: `_` alone would drop it, and restore the mask, at once.
    let _before = Mask::all_blocked();
    start()
}

/// The mask that a thread had, which it gets back on drop.
struct Mask(libc::sigset_t);

impl Mask {
    fn all_blocked() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both are places for a set. sigfillset(3) fills `all`, and pthread_sigmask(3) `before`; neither
        // fails for these arguments.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            // Of this thread alone; its children inherit the mask.
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: a set that pthread_sigmask(3) has filled.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    /// The signals that this thread blocks, a bit each.
    fn blocked() -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    }

    #[test]
    fn thread_that_is_started_blocks_signals_and_its_starter_does_not() {
        let before = blocked();
        let started = without_signals(|| thread::spawn(blocked)).join().unwrap();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD, libc::SIGUSR1] {
            assert_ne!(started & 1 << (signal - 1), 0, "signal {signal}");
        }
        assert_eq!(blocked(), before);
    }
}
