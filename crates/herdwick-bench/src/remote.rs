//! Where the server under test is, and how it is reached: its address, TLS and login.

use std::{
    io::{self, ErrorKind, Read, Write},
    os::fd::AsFd,
    time::Duration,
};

use herdwick::{Address, Client, Connection, Error, Options};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Timeout for connecting, and for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// A server's address, and the options with which connections to it are made.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub address: Address,
    pub options: Options,
}

impl Remote {
    /// `options` are TLS and login; the deadline becomes that of the benchmark.
    pub(crate) fn new(address: Address, options: Options) -> Self {
        Self {
            address,
            options: Options {
                deadline: TIMEOUT,
                ..options
            },
        }
    }

    /// Opens a connection that never blocks.
    pub(crate) fn connect(&self) -> Result<Connection, Error> {
        let unreachable = |reason| Error::Unreachable {
            address: self.address.to_string(),
            reason,
        };
        Connection::dial(&self.address, &self.options).map_err(unreachable)
    }

    /// Opens a connection whose reads and writes wait, for [`TIMEOUT`] at most.
    pub(crate) fn connect_blocking(&self) -> Result<Blocking, Error> {
        self.connect().map(Blocking)
    }

    /// Opens a client that uses memcached's protocol.
    pub(crate) fn text_client(&self) -> Result<Client, Error> {
        let options = Options {
            fabric: false,
            ..self.options.clone()
        };
        Client::connect_with(&self.address.to_string(), options)
    }
}

/// A connection whose reads and writes wait, for [`TIMEOUT`] at most.
#[derive(Debug)]
pub(crate) struct Blocking(Connection);

impl Blocking {
    fn wait(&self, wanted: PollFlags) -> io::Result<()> {
        let timeout = Timespec::try_from(TIMEOUT).map_err(|_| ErrorKind::InvalidInput)?;
        let mut fds = [PollFd::from_borrowed_fd(self.0.as_fd(), wanted)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            // A signal only ends the wait early: the caller tries again.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Blocking {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(room) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                done => return done,
            }
        }
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
