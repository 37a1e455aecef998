//! The lease socket: a private directory, a listener in it, and frames with descriptors.
//!
//! A server holds a lock on its directory for as long as it lives; the kernel releases the lock of
//! a killed server. A starting server removes the directories that no server holds any more.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder},
    io::{self, IoSlice, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, PermissionsExt},
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
};

use herdwick_herd::hello::path_word;
use rustix::{
    fs::{Access, AtFlags, FlockOperation, Mode, OFlags, access, flock, fstat, open, unlinkat},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::geteuid,
};

use crate::net::{stream::Stream, unix::Listener};

/// Prefix of the directories' names; 16 hexadecimal digits follow.
const PREFIX: &str = "herdwick-lease-";
const SOCKET: &str = "lease";
/// Attempts to create a directory, each of which a sweeping server may remove before it is locked.
const TRIES: usize = 8;

/// A listening socket in a directory that this server created; both are removed on drop.
#[derive(Debug)]
pub(crate) struct LeaseListener {
    directory: PathBuf,
    path: PathBuf,
    /// The lock on the directory.
    _lock: OwnedFd,
    listener: Option<Listener>,
}

/// Checks that a server can create its lease socket below `parent`; creates nothing.
///
/// # Errors
/// The obstacle.
pub fn check_lease_directory(parent: &Path) -> io::Result<()> {
    check_name(&parent.join(format!("{PREFIX}{:016x}", 0)).join(SOCKET))?;
    Ok(access(parent, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Checks that a hello can name `path`, and that a socket address can hold it.
fn check_name(path: &Path) -> io::Result<()> {
    if path_word(path).is_none() {
        let reason = "the hello carries the path, which must be ASCII without spaces";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    SocketAddr::from_pathname(path).map(drop)
}

impl LeaseListener {
    /// Creates a fresh directory of mode 0700 below `parent` and listens in it. `mode` (memcached's
    /// `-a`) changes the modes of directory and socket. Removes the directories of killed servers.
    pub(crate) fn bind(parent: &Path, mode: Option<u32>) -> io::Result<Self> {
        check_lease_directory(parent)?;
        sweep(parent);
        let (directory, lock) = create_directory(parent)?;
        let path = directory.join(SOCKET);
        let mut socket = Self {
            directory,
            path,
            _lock: lock,
            listener: None,
        };
        let listener = UnixListener::bind(&socket.path)?;
        listener.set_nonblocking(true)?;
        socket.listener = Some(OwnedFd::from(listener).into());
        if let Some(mode) = mode {
            // A directory needs the x bit for every class of users that has the r bit on the
            // socket.
            let search = mode | ((mode & 0o444) >> 2);
            // The directory last: until then no other user reaches the socket.
            fs::set_permissions(&socket.path, fs::Permissions::from_mode(mode))?;
            fs::set_permissions(&socket.directory, fs::Permissions::from_mode(search))?;
        }
        Ok(socket)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the listener, once.
    pub(crate) fn take_listener(&mut self) -> Option<Listener> {
        self.listener.take()
    }
}

impl Drop for LeaseListener {
    fn drop(&mut self) {
        // On failure, the next server started there removes them.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Creates a directory and locks it. Before it is locked, a server that sweeps takes it for a
/// killed server's and may remove it; then another one is created.
fn create_directory(parent: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    let mut refused = io::ErrorKind::ResourceBusy.into();
    for _ in 0..TRIES {
        let mut salt = [0; 8];
        getrandom::fill(&mut salt).map_err(|_| io::Error::other("no random bytes"))?;
        let salt = u64::from_le_bytes(salt);
        let directory = parent.join(format!("{PREFIX}{salt:016x}"));
        // Fails on any existing entry, symlinks included.
        DirBuilder::new().mode(0o700).create(&directory)?;
        match lock(&directory) {
            // A sweep may have removed the directory before it was locked.
            Ok(lock) if directory.exists() => return Ok((directory, lock)),
            Ok(_) => {}
            Err(error) => {
                // It was removed by a sweep, or cannot be locked, so it is not kept.
                let _ = fs::remove_dir(&directory);
                refused = error;
            }
        }
    }
    Err(refused)
}

/// Locks a directory of this user that no process has locked.
fn lock(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = open(directory, flags, Mode::empty())?;
    // A directory of another user is not this server's to remove, whatever its name.
    if fstat(&fd)?.st_uid != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
    Ok(fd)
}

/// Removes the directories of killed servers. Directories of other users, or with other content,
/// stay.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        if !is_lease_name(&entry.file_name()) {
            continue;
        }
        if let Ok(lock) = lock(&path) {
            // Failures are ignored: another server may sweep at the same time.
            // By the descriptor, so that it is the directory that was locked, whatever its path
            // names by now.
            let _ = unlinkat(&lock, SOCKET, AtFlags::empty());
            let _ = fs::remove_dir(&path);
        }
    }
}

fn is_lease_name(name: &OsStr) -> bool {
    let salt = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    salt.is_some_and(|salt| salt.len() == 16 && salt.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Largest number of descriptors in one message (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;

/// Sends `frame` without blocking, with `fds` attached to its first byte; returns whether all of it
/// was sent. Descriptors can be sent only over a unix socket.
pub(crate) fn send_frame(stream: &mut Stream, frame: &[u8], fds: &[OwnedFd]) -> bool {
    match stream {
        Stream::Unix(socket) => send_with_fds(socket, frame, fds),
        Stream::Tcp(_) | Stream::Tls(_) | Stream::Datagram(_) => {
            // All or nothing: a short frame that the socket does not take shows a client that does
            // not read.
            let sent = stream.write(frame).is_ok_and(|sent| sent == frame.len());
            fds.is_empty() && sent && stream.flush().is_ok()
        }
    }
}

fn send_with_fds(socket: impl AsFd, frame: &[u8], fds: &[OwnedFd]) -> bool {
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return false;
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(frame)], &mut control, flags) == Ok(frame.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_directory_is_private_and_removed_with_the_socket() {
        let parent = std::env::temp_dir();
        let mut socket = LeaseListener::bind(&parent, None).unwrap();
        let path = socket.path().to_owned();
        let mode = fs::metadata(path.parent().unwrap())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(socket.take_listener().is_some() && socket.take_listener().is_none());
        drop(socket);
        assert!(!path.parent().unwrap().exists());
    }

    #[test]
    fn unsuitable_directory_is_refused_with_the_reason() {
        let here = std::env::temp_dir();
        assert!(check_lease_directory(&here).is_ok());
        let kind = |path: &Path| check_lease_directory(path).map_err(|error| error.kind());
        let long = here.join("x".repeat(90));
        for (path, error) in [
            (Path::new("/no/such/directory"), io::ErrorKind::NotFound),
            // Fails for root too.
            (
                Path::new("/proc/self/status"),
                io::ErrorKind::PermissionDenied,
            ),
            (&here.join("with space"), io::ErrorKind::InvalidInput),
            (&here.join("ümlaut"), io::ErrorKind::InvalidInput),
            (&long, io::ErrorKind::InvalidInput),
        ] {
            assert_eq!(kind(path), Err(error), "{path:?}");
            let bound = LeaseListener::bind(path, None).map_err(|error| error.kind());
            assert_eq!(bound.err(), Some(error), "{path:?}");
        }
    }

    #[test]
    fn shm_mode_applies_to_socket_and_directory() {
        let socket = LeaseListener::bind(&std::env::temp_dir(), Some(0o770)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(socket.path()), 0o770);
        assert_eq!(mode(socket.path().parent().unwrap()), 0o770);
    }

    #[test]
    fn only_leftovers_of_dead_servers_are_removed() {
        let parent = std::env::temp_dir().join(format!("herdwick-sweep-{}", std::process::id()));
        fs::create_dir_all(&parent).unwrap();
        let make = |name: &str| {
            let path = parent.join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(SOCKET), "").unwrap();
            path
        };
        let dead = make("herdwick-lease-0123456789abcdef");
        let other = make("herdwick-lease-short");
        let full = make("herdwick-lease-2123456789abcdef");
        fs::write(full.join("more"), "").unwrap();
        let link = parent.join("herdwick-lease-3123456789abcdef");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let live = LeaseListener::bind(&parent, None).unwrap();
        assert!(!dead.exists(), "no process had locked it");
        let next = LeaseListener::bind(&parent, None).unwrap();
        assert!(live.path().exists() && next.path().exists());
        assert!(other.join(SOCKET).exists() && link.exists() && full.exists());
        drop((live, next));
        fs::remove_dir_all(&parent).unwrap();
    }
}
