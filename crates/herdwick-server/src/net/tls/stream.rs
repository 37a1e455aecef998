//! A TLS session over a non-blocking TCP socket, as a byte stream. Its memory is bounded; short
//! reads and writes mean what they mean on a socket.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use rustls::{HandshakeKind, ServerConnection};

/// Encrypted bytes that may wait to be sent.
pub(crate) const SENDING_BYTES: usize = 32 << 10;
/// Reads of the socket in one read of the stream. Records without plaintext are bounded by it too.
const READS: usize = 64;
/// Largest record in bytes (RFC 8446, 5.2, and TLS 1.2's limit).
const RECORD_BYTES_MAX: usize = 5 + (16 << 10) + 2048;
/// Other memory of a session, measured and rounded.
const SESSION_BYTES: usize = 8 << 10;

/// A byte stream over TLS, non-blocking like its socket: a short read has emptied the socket (but
/// see [`has_more`](Self::has_more)), a short write has filled it.
#[derive(Debug)]
pub(crate) struct TlsStream {
    socket: TcpStream,
    session: ServerConnection,
    /// Bytes of the caller that are encrypted but not completely sent. They count as written only
    /// when sent: the next write has to begin with them.
    owed: usize,
    /// Bytes that are decrypted but not read.
    decrypted: usize,
    /// The last read stopped before the socket was empty, or read the end of the stream.
    has_more: bool,
}

impl TlsStream {
    pub(crate) fn new(socket: TcpStream, mut session: ServerConnection) -> Self {
        session.set_buffer_limit(Some(SENDING_BYTES));
        Self {
            socket,
            session,
            owed: 0,
            decrypted: 0,
            has_more: false,
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Continues the handshake; adds to `came` the bytes that the peer sent for it.
    ///
    /// # Errors
    /// The handshake failed, and the alert was sent if the socket accepted it, or the peer has
    /// disconnected.
    pub(crate) fn shake_hands(&mut self, came: &mut usize) -> io::Result<Shaken> {
        loop {
            // What the server owes goes first: the peer may wait for it.
            match self.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Shaken::NotYet),
                flushed => flushed?,
            }
            if !self.session.is_handshaking() {
                return Ok(Shaken::Done);
            }
            match self.session.read_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => *came += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Shaken::NotYet),
                Err(error) => return Err(error),
            }
            self.process()?;
            if *came > HANDSHAKE_BYTES_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
        }
    }

    /// Returns whether the session was resumed.
    pub(crate) fn is_resumed(&self) -> bool {
        self.session.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns whether a read would find data that no event announces.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns an upper bound on the plaintext that can be read without further packets: plaintext
    /// is no longer than its records, one of which may be partly decrypted. `None`: the kernel does
    /// not report the socket's bytes.
    pub(crate) fn unread_most(&self) -> Option<usize> {
        let in_socket = rustix::io::ioctl_fionread(&self.socket).ok()?;
        let in_socket = usize::try_from(in_socket).ok()?;
        Some(in_socket + self.decrypted + RECORD_BYTES_MAX)
    }

    /// Returns the approximate memory in bytes, without the caller's buffers and what is
    /// [owed](Self::owed).
    pub(crate) fn memory(&self) -> usize {
        SESSION_BYTES
    }

    /// Returns the bytes that are encrypted but not sent.
    pub(crate) fn owed(&self) -> usize {
        self.owed
    }

    /// Decrypts what was read. On an error sends the alert, if the socket accepts it at once.
    fn process(&mut self) -> io::Result<()> {
        let error = match self.session.process_new_packets() {
            Ok(state) => {
                self.decrypted = state.plaintext_bytes_to_read();
                return Ok(());
            }
            Err(error) => error,
        };
        // The alert is best effort: the connection ends either way.
        let _ = self.session.write_tls(&mut self.socket);
        Err(io::Error::new(ErrorKind::InvalidData, error))
    }

    /// Reads decrypted plaintext; `None`: the peer has ended the stream.
    fn take(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.session.reader().read(into) {
            Ok(0) => Ok(None),
            Ok(count) => {
                self.decrypted = self.decrypted.saturating_sub(count);
                Ok(Some(count))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
            // The connection ended without close_notify, as after `kill`: all complete data has
            // been read.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Bytes that a peer may send before its handshake is done: eight certificates and some margin.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 32 << 10;

/// The progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shaken {
    /// Waiting for the peer.
    NotYet,
    Done,
}

impl Read for TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        self.has_more = false;
        for _ in 0..READS {
            // First what is decrypted already: no event announces it.
            match self.take(&mut into[count..])? {
                Some(taken) => count += taken,
                None => {
                    // Bytes first: the end is a read of its own, which returns 0.
                    self.has_more = count > 0;
                    return Ok(count);
                }
            }
            if count == into.len() {
                return Ok(count);
            }
            match self.session.read_tls(&mut self.socket) {
                // 0 is the end of the socket, which `take` reports.
                Ok(_) => self.process()?,
                Err(error) if error.kind() == ErrorKind::WouldBlock && count > 0 => {
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
        }
        self.has_more = true;
        if count == 0 {
            // 0 would be the end of the stream: the caller is to read again.
            return Err(ErrorKind::Interrupted.into());
        }
        Ok(count)
    }
}

impl Write for TlsStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut count = 0;
        loop {
            match self.flush() {
                Ok(()) => count += std::mem::take(&mut self.owed),
                Err(error) if error.kind() == ErrorKind::WouldBlock && count > 0 => {
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
            if count == from.len() {
                return Ok(count);
            }
            // The session takes at most what its buffer has room for (`SENDING_BYTES`).
            self.owed = self.session.writer().write(&from[count..])?;
        }
    }

    /// Sends what is encrypted.
    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            if self.session.write_tls(&mut self.socket)? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

impl Drop for TlsStream {
    /// Sends close_notify if the socket accepts it without blocking, so that the peer can distinguish
    /// the end from a truncation.
    fn drop(&mut self) {
        if !self.session.is_handshaking() {
            self.session.send_close_notify();
            let _ = self.flush();
        }
    }
}
