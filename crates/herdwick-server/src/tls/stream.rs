use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use rustls::{HandshakeKind, ServerConnection};

/// Encrypted bytes that may wait to leave.
pub(crate) const SENDING_BYTES: usize = 32 << 10;
/// Reads of the socket in one read of the stream: records without text in them cost, too.
const READS: usize = 64;
/// Most bytes of one record (RFC 8446, 5.2, and TLS 1.2's).
const RECORD_BYTES_MAX: usize = 5 + (16 << 10) + 2048;
/// What a session takes besides; measured, roundly.
const SESSION_BYTES: usize = 8 << 10;

/// A byte stream over TLS, as non-blocking as its socket: a read that is short has emptied the
/// socket (but see [`has_more`](Self::has_more)), a write that is short has filled it.
#[derive(Debug)]
pub(crate) struct TlsStream {
    socket: TcpStream,
    session: ServerConnection,
    /// Bytes that the caller has given and that are encrypted, but have not all left. They count as
    /// written once they have: the next write has to begin with them.
    owed: usize,
    /// Bytes that are decrypted and have not been taken.
    decrypted: usize,
    /// The last read stopped before the socket was empty, or came to the end.
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

    /// Goes on with the handshake; `came` counts what the peer has sent for it.
    ///
    /// # Errors
    /// It has failed, and the peer knows, or is gone.
    pub(crate) fn shake_hands(&mut self, came: &mut usize) -> io::Result<Shaken> {
        loop {
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

    /// Whether the session goes on from an earlier one.
    pub(crate) fn is_resumed(&self) -> bool {
        self.session.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Whether a read would find something that no event announces.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Most bytes that can still be read of what has come: text is no longer than its records, of
    /// which one may have begun. `None`: the kernel does not tell.
    pub(crate) fn unread_most(&self) -> Option<usize> {
        let in_socket = rustix::io::ioctl_fionread(&self.socket).ok()?;
        let in_socket = usize::try_from(in_socket).ok()?;
        Some(in_socket + self.decrypted + RECORD_BYTES_MAX)
    }

    /// Bytes of memory besides the caller's buffers and what is [owed](Self::owed), about.
    pub(crate) fn memory(&self) -> usize {
        SESSION_BYTES
    }

    /// Bytes that are encrypted and have not left.
    pub(crate) fn owed(&self) -> usize {
        self.owed
    }

    /// Decrypts what has come; what the peer is told of an error leaves if it can.
    fn process(&mut self) -> io::Result<()> {
        let error = match self.session.process_new_packets() {
            Ok(state) => {
                self.decrypted = state.plaintext_bytes_to_read();
                return Ok(());
            }
            Err(error) => error,
        };
        // What was wrong, if it can be said at once: the connection ends either way.
        let _ = self.session.write_tls(&mut self.socket);
        Err(io::Error::new(ErrorKind::InvalidData, error))
    }

    /// Takes decrypted text; `None`: the peer has ended the stream.
    fn take(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.session.reader().read(into) {
            Ok(0) => Ok(None),
            Ok(count) => {
                self.decrypted = self.decrypted.saturating_sub(count);
                Ok(Some(count))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
            // Without a farewell, as after `kill`: what is whole has been taken.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Most that a peer may send before its handshake is done: eight certificates and more.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 32 << 10;

/// How far a handshake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shaken {
    /// The peer has to move first.
    NotYet,
    Done,
}

impl Read for TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        self.has_more = false;
        for _ in 0..READS {
            match self.take(&mut into[count..])? {
                Some(taken) => count += taken,
                None => {
                    self.has_more = count > 0;
                    return Ok(count);
                }
            }
            if count == into.len() {
                return Ok(count);
            }
            match self.session.read_tls(&mut self.socket) {
                Ok(_) => self.process()?,
                Err(error) if error.kind() == ErrorKind::WouldBlock && count > 0 => {
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
        }
        self.has_more = true;
        if count == 0 {
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
            self.owed = self.session.writer().write(&from[count..])?;
        }
    }

    /// Sends what is encrypted and has not left.
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
    /// Says farewell, so that the peer knows the end from a cut; if it can be said at once.
    fn drop(&mut self) {
        if !self.session.is_handshaking() {
            self.session.send_close_notify();
            let _ = self.flush();
        }
    }
}
