//! Idle TCP connections that are held open beside the measured ones.

use std::io::{Read, Write};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    BenchError, DriveError,
    remote::{Blocking, Remote},
};

/// Descriptors that the process needs besides those of the idle connections.
const DESCRIPTORS_BESIDE: u64 = 256;

/// Idle connections; dropping it closes them.
#[derive(Debug)]
pub(crate) struct Crowd(#[expect(dead_code, reason = "held open")] Vec<Blocking>);

impl Crowd {
    /// Connects `count` times to `server`. Each connection requests the version once, so that the
    /// server allocates everything it keeps for a connection.
    ///
    /// # Errors
    /// The operating system or the server does not allow so many connections.
    pub(crate) fn gather(server: &Remote, count: usize) -> Result<Self, BenchError> {
        allow(count)?;
        let one = |_| -> Result<Blocking, DriveError> {
            let mut stream = server.connect_blocking()?;
            stream.write_all(b"version\r\n")?;
            // What is behind it stays unread: nothing else is asked on this connection.
            let mut answer = [0; 8];
            stream.read_exact(&mut answer)?;
            if &answer != b"VERSION " {
                let said = String::from_utf8_lossy(&answer).into_owned();
                return Err(std::io::Error::other(format!(
                    "the server replied {said:?}; allow it more connections (-c)"
                ))
                .into());
            }
            Ok(stream)
        };
        Ok(Self((0..count).map(one).collect::<Result<_, _>>()?))
    }
}

/// Raises the soft limit of descriptors to one for each connection.
fn allow(count: usize) -> Result<(), BenchError> {
    let needed = count as u64 + DESCRIPTORS_BESIDE;
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|limit| limit >= needed) {
        return Ok(());
    }
    // The hard limit stays: only a privileged process may raise it.
    let wanted = Rlimit {
        current: Some(needed),
        maximum: now.maximum,
    };
    setrlimit(Resource::Nofile, wanted).map_err(|_| BenchError::Descriptors {
        needed,
        limit: now.maximum.unwrap_or(u64::MAX),
    })
}
