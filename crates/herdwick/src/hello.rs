//! The hello on the memcached port, and the login: one line each way on a fresh connection.

use std::{
    fs,
    io::{self, ErrorKind},
    os::fd::AsFd,
    time::Duration,
};

use herdwick_herd::hello::{BootId, HELLO_BYTES_MAX, Hello, LineError, Offer};
use rustix::event::{PollFd, PollFlags, poll};

use crate::{DialError, Fabric, Login, Options, due::Due, stream::Stream};

/// The engine Clover, in hellos.
pub(crate) const CLOVER: &str = "clover";
/// The same of a secondary store (`docs/hkvs.md`).
pub(crate) const SECONDARY: &str = "secondary";

/// Least timeout of the hello, which otherwise gets a quarter of the time left. A memcached answers
/// `ERROR` at once; a proxy may drop the line.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Its longest timeout.
const TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// The result of a hello.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A Herdwick server, and what it offers.
    Offer(Offer),
    /// A Herdwick server of another version; its offer cannot be parsed.
    Version(u8),
    /// A peer that requires a password first.
    Locked,
    /// A server that has registered anew in etcd.
    AnotherMember,
    /// A peer that ended TLS: with TLS 1.3 it checks the client's certificate after the client's part
    /// of the handshake.
    Refused(DialError),
    /// A memcached that rejected the line; the connection can be used.
    Memcached,
    /// A peer that closed, did not answer, or sent what may have more behind it: dial again.
    Spoiled,
}

/// Exchanges the hello on a fresh connection.
pub(crate) fn exchange(stream: &mut Stream, options: &Options, due: Due) -> Said {
    // Without it the server offers no shared memory.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let fabrics = Fabric::ALL.into_iter();
    let fabrics = fabrics.filter(|fabric| options.allows(*fabric));
    let hello = Hello {
        fabrics: fabrics.map(|fabric| fabric.name().to_owned()).collect(),
        path: options.request_path,
        engines: vec![engine(options).to_owned()],
        member: options.member,
        boot: boot.and_then(|text| BootId::parse(&text)),
    };
    let line = hello.to_line();
    // A fresh socket accepts a short line whole; one that does not is not worth waiting for. Where the
    // peer has closed already, its last words may still be read.
    if !matches!(stream.write(line.as_bytes()), Ok(Some(len)) if len == line.len()) {
        return refusal(read_line(stream, Due::after(Duration::ZERO)).err());
    }
    let reply = match read_line(stream, due.quarter(TIMEOUT, TIMEOUT_MAX)) {
        Ok(reply) => reply,
        Err(error) => return refusal(Some(error)),
    };
    match Offer::parse(&reply, &Fabric::all_words()) {
        Ok(offer) => Said::Offer(offer),
        Err(LineError::Version(version)) => Said::Version(version),
        Err(LineError::AnotherMember) => Said::AnotherMember,
        Err(_) if reply == b"ERROR" => Said::Memcached,
        Err(_) if reply == UNAUTHENTICATED => Said::Locked,
        Err(_) => Said::Spoiled,
    }
}

/// Returns the engine that a client knows besides HERD: it uses a secondary store only where it was to.
pub(crate) fn engine(options: &Options) -> &'static str {
    match options.secret.is_some() || options.store.is_some() {
        true => SECONDARY,
        false => CLOVER,
    }
}

fn refusal(error: Option<io::Error>) -> Said {
    match error.map(DialError::from) {
        Some(refused @ DialError::Tls(_)) => Said::Refused(refused),
        _ => Said::Spoiled,
    }
}

/// Waits for the answer to a command, so that a peer which refuses this client's certificate has
/// ended TLS by now.
pub(crate) fn confirm(stream: &mut Stream, due: Due) -> Result<(), DialError> {
    ask(stream, b"version\r\n", due).map(drop)
}

/// Sends `login`, if the peer requires one.
pub(crate) fn log_in(stream: &mut Stream, login: &Login, due: Due) -> Result<(), DialError> {
    // A peer that requires none would store the password as a value that every client can read.
    let reply = ask(stream, b"version\r\n", due)?;
    if reply != UNAUTHENTICATED {
        return Ok(());
    }
    let token = login.token();
    // memcached takes both as the value of a set, of which it ignores key, flags and exptime.
    let mut line = format!("set login 0 0 {}\r\n", token.len()).into_bytes();
    line.extend_from_slice(token);
    line.extend_from_slice(b"\r\n");
    match &ask(stream, &line, due)?[..] {
        b"STORED" => Ok(()),
        _ => Err(DialError::LoginRefused),
    }
}

/// memcached's reply to a client that has not logged in.
const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated";

/// Sends one or two lines on a fresh connection. Returns the line that is answered.
fn ask(stream: &mut Stream, line: &[u8], due: Due) -> Result<Vec<u8>, DialError> {
    if stream.write(line)? != Some(line.len()) {
        return Err(DialError::Io(ErrorKind::TimedOut.into()));
    }
    Ok(read_line(stream, due)?)
}

/// Reads one line, without its end, and checks that nothing follows it.
fn read_line(stream: &mut Stream, due: Due) -> io::Result<Vec<u8>> {
    let mut line = [0; HELLO_BYTES_MAX];
    let mut len = 0;
    loop {
        // Read before the wait: under TLS the bytes may have arrived already.
        match stream.read(&mut line[len..]) {
            Ok(Some(0)) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) => return Err(error),
            Ok(Some(more)) => len += more,
            Ok(None) => {
                let left = due.timespec()?;
                let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
                // After an interrupted wait the loop reads again.
                let _ = poll(&mut fds, Some(&left));
            }
        }
        if let Some(end) = line[..len].iter().position(|byte| *byte == b'\n') {
            let text = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
            // One line was asked for: what follows it answers nothing.
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
