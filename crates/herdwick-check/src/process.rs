//! Another process of a test: the test's own binary again, which runs one ignored test with a socket as its
//! standard input.

use std::{
    env, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Command, Stdio},
};

/// Starts the ignored test `name` of this binary in a process of its own. The socket's other end is
/// [`other_end`] there.
///
/// # Errors
/// The operating system's.
pub fn start_ignored(name: &str) -> io::Result<(Child, UnixStream)> {
    let (here, there) = UnixStream::pair()?;
    let mut command = Command::new(env::current_exe()?);
    command.args([
        "--exact",
        name,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    let child = command
        .stdin(OwnedFd::from(there))
        .stdout(Stdio::null())
        .spawn()?;
    Ok((child, here))
}

/// Returns, in such a process, the other end of the socket; `None` if the ignored test is run by hand.
///
/// # Errors
/// The operating system's.
pub fn other_end() -> io::Result<Option<UnixStream>> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Anything else that may be standard input has no peer.
    Ok(stream.peer_addr().is_ok().then_some(stream))
}
