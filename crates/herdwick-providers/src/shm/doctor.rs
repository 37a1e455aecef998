//! Checks of the shared-memory fabric: sealed memory, wakeups, and the boot ID.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use herdwick_mem::{Access, Mapping, Span};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::{Errno, write},
    net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair},
};

use crate::check::{Check, Checks};

pub(crate) fn checks() -> Checks {
    Checks::from([
        ("memfd_seals", sealed_memory(try_sealed_memory())),
        ("eventfd", wakes("eventfd", try_event())),
        ("socketpair", wakes("socketpair", try_wakeup())),
        (
            "boot_id",
            boot_id(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()),
        ),
    ])
}

/// The outcome of the trial with a sealed memfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sealed {
    /// The seals hold.
    Tight,
    /// A second writable mapping was possible despite the seals.
    Leaky,
    /// `memfd_create` failed.
    NoMemfd(Errno),
    /// The seals were refused.
    NoSeals(Errno),
    /// It could not be sized or mapped.
    NoMemory,
}

/// Treats a page as the server treats memory that no client may write, such as the board: maps it,
/// seals it, and checks that another holder can map it for reading but not for writing.
fn try_sealed_memory() -> Sealed {
    const PAGE: usize = 4096;
    const SEALS: SealFlags = SealFlags::SHRINK
        .union(SealFlags::GROW)
        .union(SealFlags::FUTURE_WRITE)
        .union(SealFlags::SEAL);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match memfd_create("herdwick-doctor", flags) {
        Ok(fd) => fd,
        Err(errno) => return Sealed::NoMemfd(errno),
    };
    let map =
        |access| Mapping::shared(&fd, PAGE, access).map(|mapping| Span::new(Arc::new(mapping)));
    let seal = |seals| fcntl_add_seals(&fd, seals);
    if ftruncate(&fd, PAGE as u64).is_err() {
        return Sealed::NoMemory;
    }
    // In the server's order: the length is sealed before the file is mapped.
    if let Err(errno) = seal(SealFlags::SHRINK) {
        return Sealed::NoSeals(errno);
    }
    // Mapped before F_SEAL_FUTURE_WRITE, which forbids every later writable mapping.
    let Ok(ours) = map(Access::ReadWrite) else {
        return Sealed::NoMemory;
    };
    if let Err(errno) = seal(SEALS) {
        return Sealed::NoSeals(errno);
    }
    let Ok(theirs) = map(Access::Read) else {
        return Sealed::NoMemory;
    };
    // Both mappings must show one memory.
    ours.write_words(1, &[7]);
    let seen = theirs.read_words(1) == [7];
    if seen && map(Access::ReadWrite).is_err() {
        Sealed::Tight
    } else {
        Sealed::Leaky
    }
}

fn sealed_memory(sealed: Sealed) -> Check {
    const FORBIDDEN: &str =
        "run outside of the container, or with a seccomp profile that allows it";
    match sealed {
        Sealed::Tight => Check::works("memory can be shared read-only (F_SEAL_FUTURE_WRITE)"),
        Sealed::Leaky => Check::cannot("sealed memory can be mapped writable again"),
        // As a seccomp profile refuses it.
        Sealed::NoMemfd(Errno::PERM) => {
            Check::would_work_if("memfd_create is forbidden to this process", FORBIDDEN)
        }
        Sealed::NoMemfd(errno) => Check::cannot(format!("memfd_create: {errno}")),
        // A kernel answers so to a seal that it does not know.
        Sealed::NoSeals(Errno::INVAL) => {
            Check::cannot("the kernel lacks F_SEAL_FUTURE_WRITE: it came with Linux 5.1")
        }
        Sealed::NoSeals(errno) => Check::would_work_if(format!("F_ADD_SEALS: {errno}"), FORBIDDEN),
        Sealed::NoMemory => Check::would_work_if(
            "one page of shared memory could not be had",
            "raise the memory limit of this process or container",
        ),
    }
}

/// Signals an eventfd, as threads of the server wake each other, and checks that it becomes
/// readable.
fn try_event() -> Result<bool, Errno> {
    let wakeup: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    is_heard(&wakeup, || write(&wakeup, &1u64.to_le_bytes()))
}

/// Does the same with a socket pair, as a server and its clients wake each other.
fn try_wakeup() -> Result<bool, Errno> {
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let (theirs, ours) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    is_heard(&ours, || send(&theirs, &[1], SendFlags::DONTWAIT))
}

/// Returns whether `ring` makes `wakeup` readable.
fn is_heard(wakeup: &OwnedFd, ring: impl Fn() -> Result<usize, Errno>) -> Result<bool, Errno> {
    // Without waiting: what was written is readable at once.
    let heard = || {
        let mut fds = [PollFd::from_borrowed_fd(wakeup.as_fd(), PollFlags::IN)];
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        )
    };
    let before = heard()?;
    ring()?;
    // One that looks readable before would never let its thread sleep.
    Ok(before == 0 && heard()? == 1)
}

fn wakes(what: &str, heard: Result<bool, Errno>) -> Check {
    match heard {
        Ok(true) => Check::works("a sleeper can be woken"),
        Ok(false) => Check::cannot(format!("{what}: what was written does not become readable")),
        Err(Errno::MFILE) => Check::would_work_if("no file descriptor is left", "ulimit -n 65536"),
        Err(errno) => Check::cannot(format!("{what}: {errno}")),
    }
}

/// Checks the boot ID, by which client and server recognise that they run on the same host.
fn boot_id(text: Option<String>) -> Check {
    match text
        .map(|text| text.trim().to_owned())
        .filter(|id| !id.is_empty())
    {
        Some(id) => Check::works("the boot id identifies this host").fact("id", id),
        None => Check::would_work_if(
            "/proc/sys/kernel/random/boot_id cannot be read",
            "mount -t proc proc /proc",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    #[test]
    fn every_failure_has_its_message() {
        for (check, status, word) in [
            (
                sealed_memory(Sealed::Tight),
                Status::Works,
                "F_SEAL_FUTURE_WRITE",
            ),
            (
                sealed_memory(Sealed::Leaky),
                Status::Cannot,
                "writable again",
            ),
            (
                sealed_memory(Sealed::NoMemfd(Errno::NOSYS)),
                Status::Cannot,
                "not implemented",
            ),
            (
                sealed_memory(Sealed::NoMemfd(Errno::PERM)),
                Status::WouldWorkIf,
                "forbidden",
            ),
            (
                sealed_memory(Sealed::NoSeals(Errno::INVAL)),
                Status::Cannot,
                "Linux 5.1",
            ),
            (
                sealed_memory(Sealed::NoMemory),
                Status::WouldWorkIf,
                "one page",
            ),
            (wakes("x", Ok(true)), Status::Works, "woken"),
            (wakes("x", Ok(false)), Status::Cannot, "readable"),
            (
                wakes("x", Err(Errno::MFILE)),
                Status::WouldWorkIf,
                "no file descriptor",
            ),
            (boot_id(None), Status::WouldWorkIf, "boot_id"),
            (boot_id(Some("ab\n".into())), Status::Works, "identifies"),
        ] {
            assert_eq!(check.status, status, "{check:?}");
            assert!(
                check.reason.to_lowercase().contains(&word.to_lowercase()),
                "{check:?}"
            );
            assert_eq!(
                check.advice.is_some(),
                status == Status::WouldWorkIf,
                "{check:?}"
            );
        }
    }

    /// The kernel's release determines independently what must work.
    #[test]
    fn kernel_5_1_or_later_supports_all_of_shm() {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut number = || {
            numbers
                .next()
                .and_then(|text| text.parse::<u32>().ok())
                .unwrap()
        };
        if (number(), number()) >= (5, 1) {
            assert_eq!(try_sealed_memory(), Sealed::Tight);
            assert_eq!((try_event(), try_wakeup()), (Ok(true), Ok(true)));
        }
    }
}
