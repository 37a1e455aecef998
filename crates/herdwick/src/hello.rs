//! The hello on the memcached port: one line each way.

use std::{
    fs,
    io::{self, ErrorKind},
    os::fd::AsFd,
    time::Duration,
};

use herdwick_herd::hello::{BootId, HELLO_BYTES_MAX, Hello, LineError, Offer};
use rustix::event::{PollFd, PollFlags, poll};

use crate::{DialError, Fabric, Login, Options, due::Due, stream::Stream};

/// The longest that a peer may take to answer a hello before it counts as one that never will. A
/// memcached answers `ERROR` at once; a proxy may swallow the line.
const PATIENCE: Duration = Duration::from_millis(250);

/// What came of a hello.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A Herdwick server, and what it offers.
    Offer(Offer),
    /// A Herdwick server of another version, which offers nothing that we understand.
    Version(u8),
    /// A peer that asks for a password first.
    Locked,
    /// A memcached that did not understand; the connection is as good as new.
    Memcached,
    /// A peer that hung up, kept silent, or said something of which there may be more: dial again.
    Spoiled,
}

/// Says hello on a fresh connection.
pub(crate) fn exchange(stream: &mut Stream, options: &Options, due: Due) -> Said {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let hello = Hello {
        shm: options.allows(Fabric::Shm),
        verbs: options.allows(Fabric::Verbs),
        roce: options.allows(Fabric::Roce),
        path: options.request_path,
        boot: boot.and_then(|text| BootId::parse(&text)),
    };
    let line = hello.to_line();
    // A fresh socket takes a short line whole; one that does not is none to wait for.
    if !matches!(stream.write(line.as_bytes()), Ok(Some(len)) if len == line.len()) {
        return Said::Spoiled;
    }
    let Ok(reply) = read_line(stream, due.within(PATIENCE)) else {
        return Said::Spoiled;
    };
    match Offer::parse(&reply) {
        Ok(offer) => Said::Offer(offer),
        Err(LineError::Version(version)) => Said::Version(version),
        Err(_) if reply == b"ERROR" => Said::Memcached,
        Err(_) if reply == UNAUTHENTICATED => Said::Locked,
        Err(_) => Said::Spoiled,
    }
}

/// Shows `login`, if the peer asks for one.
pub(crate) fn log_in(stream: &mut Stream, login: &Login, due: Due) -> Result<(), DialError> {
    // A peer that asks for none would keep the password as a value for all to see.
    let reply = ask(stream, b"version\r\n", due)?;
    if reply != UNAUTHENTICATED {
        return Ok(());
    }
    let token = login.token();
    let mut line = format!("set login 0 0 {}\r\n", token.len()).into_bytes();
    line.extend_from_slice(token);
    line.extend_from_slice(b"\r\n");
    match &ask(stream, &line, due)?[..] {
        b"STORED" => Ok(()),
        _ => Err(DialError::LoginRefused),
    }
}

/// What memcached says to whoever has shown no password.
const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated";

/// Says a line, or two, on a fresh connection; gives the line that is answered.
fn ask(stream: &mut Stream, line: &[u8], due: Due) -> Result<Vec<u8>, DialError> {
    if stream.write(line)? != Some(line.len()) {
        return Err(DialError::Io(ErrorKind::TimedOut.into()));
    }
    Ok(read_line(stream, due)?)
}

/// One line without its end, and nothing behind it.
fn read_line(stream: &mut Stream, due: Due) -> io::Result<Vec<u8>> {
    let mut line = [0; HELLO_BYTES_MAX];
    let mut len = 0;
    loop {
        match stream.read(&mut line[len..]) {
            Ok(Some(0)) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) => return Err(error),
            Ok(Some(more)) => len += more,
            Ok(None) => {
                let left = due.timespec()?;
                let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
                // An interrupted wait looks again.
                let _ = poll(&mut fds, Some(&left));
            }
        }
        if let Some(end) = line[..len].iter().position(|byte| *byte == b'\n') {
            let text = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
            let alone = end + 1 == len;
            return if alone {
                Ok(text.to_vec())
            } else {
                Err(ErrorKind::InvalidData.into())
            };
        }
        if len == line.len() {
            return Err(ErrorKind::InvalidData.into());
        }
    }
}
