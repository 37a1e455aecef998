//! The lease socket: a private directory, a listener in it, and frames with descriptors.

use std::{
    fs::{self, DirBuilder},
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// A listening socket in a directory that only this server made; both go when it is dropped.
#[derive(Debug)]
pub(crate) struct LeaseSocket {
    directory: PathBuf,
    path: PathBuf,
    listener: Option<UnixListener>,
}

impl LeaseSocket {
    /// Makes a fresh directory of mode 0700 below `parent` and listens in it; `mode`, memcached's
    /// `-a`, opens the directory and socket further.
    pub(crate) fn bind(parent: &Path, mode: Option<u32>) -> io::Result<Self> {
        let mut salt = [0; 8];
        getrandom::fill(&mut salt).map_err(|_| io::Error::other("no random bytes"))?;
        let directory = parent.join(format!("herdwick-{:016x}", u64::from_le_bytes(salt)));
        // Fails on anything that is already there, symlinks included.
        DirBuilder::new().mode(0o700).create(&directory)?;
        let path = directory.join("lease");
        let mut socket = Self {
            directory,
            path,
            listener: None,
        };
        let listener = UnixListener::bind(&socket.path)?;
        listener.set_nonblocking(true)?;
        socket.listener = Some(listener);
        if let Some(mode) = mode {
            // Searching a directory takes the x bit wherever the socket has the rw bits.
            let search = mode | ((mode & 0o444) >> 2);
            fs::set_permissions(&socket.path, fs::Permissions::from_mode(mode))?;
            fs::set_permissions(&socket.directory, fs::Permissions::from_mode(search))?;
        }
        Ok(socket)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The listener, once.
    pub(crate) fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for LeaseSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Most descriptors in one message (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;

/// Sends `frame` with `fds` riding on its first byte, without blocking; whether all of it went.
pub(crate) fn send_frame(socket: impl AsFd, frame: &[u8], fds: &[OwnedFd]) -> bool {
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
    fn the_directory_is_private_and_goes_with_the_socket() {
        let parent = std::env::temp_dir();
        let mut socket = LeaseSocket::bind(&parent, None).unwrap();
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
    fn a_mode_opens_socket_and_directory() {
        let socket = LeaseSocket::bind(&std::env::temp_dir(), Some(0o770)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(socket.path()), 0o770);
        assert_eq!(mode(socket.path().parent().unwrap()), 0o770);
    }
}
