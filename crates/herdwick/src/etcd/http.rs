//! HTTP/1.1 for etcd's gateway: a POST of JSON on a connection of its own, and the body of the answer,
//! whole or line by line.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use rustix::net::sockopt;

use crate::due::Due;

/// Longest answer, or line of one: some ten thousand servers.
const BODY_MAX: usize = 4 << 20;
/// Longest head of an answer.
const HEAD_MAX: usize = 16 << 10;
/// Most bytes that are received and not taken: a chunk, and its frame.
const RAW_MAX: usize = BODY_MAX + HEAD_MAX;
/// An idle connection is probed so often. A watch whose etcd has lost power ends after two probes.
const PROBE: Duration = Duration::from_secs(1);

/// An answer whose body is being read.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    stream: TcpStream,
    pub(super) status: u16,
    framing: Framing,
    /// Received, and not yet taken.
    raw: Vec<u8>,
    /// Bytes of the body, without the frames of chunks.
    body: Vec<u8>,
    is_over: bool,
}

/// How the end of the body is known.
#[derive(Debug)]
enum Framing {
    /// Bytes that are left.
    Length(usize),
    Chunks,
    Close,
}

/// Posts `body` to `path` at `endpoint`, and reads the head of the answer.
pub(super) fn post(
    endpoint: &str,
    path: &str,
    body: &str,
    within: Duration,
) -> io::Result<HttpAnswer> {
    let due = Due::after(within);
    let mut stream = connect(endpoint, due)?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {endpoint}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.set_write_timeout(Some(due.left()?))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = HttpAnswer {
        stream,
        status: 0,
        framing: Framing::Close,
        raw: Vec::new(),
        body: Vec::new(),
        is_over: false,
    };
    while !answer.head()? {
        answer.receive(due)?;
    }
    Ok(answer)
}

fn connect(endpoint: &str, due: Due) -> io::Result<TcpStream> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    let mut addresses = endpoint.to_socket_addrs()?.peekable();
    while let Some(address) = addresses.next() {
        // One that does not answer leaves time for the others.
        let parts = 1 + u32::from(addresses.peek().is_some());
        match TcpStream::connect_timeout(&address, due.left()? / parts) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, PROBE)?;
                sockopt::set_tcp_keepintvl(&stream, PROBE)?;
                sockopt::set_tcp_keepcnt(&stream, 1)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl HttpAnswer {
    /// The connection, for another thread to shut down.
    pub(super) fn connection(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// Reads the whole body.
    pub(super) fn whole(mut self, within: Duration) -> io::Result<Vec<u8>> {
        let due = Due::after(within);
        while !self.unframe()? {
            self.receive(due)?;
        }
        Ok(self.body)
    }

    /// Reads a line of the body; `None`: it has ended.
    pub(super) fn line(&mut self, within: Duration) -> io::Result<Option<Vec<u8>>> {
        let due = Due::after(within);
        loop {
            let is_over = self.unframe()?;
            if let Some(end) = self.body.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.body.drain(..=end).collect()));
            }
            if is_over {
                return Ok(None);
            }
            self.receive(due)?;
        }
    }

    /// Parses the head, if it is there.
    fn head(&mut self) -> io::Result<bool> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(&self.raw);
        let httparse::Status::Complete(end) = parsed.map_err(|_| malformed())? else {
            return match self.raw.len() > HEAD_MAX {
                true => Err(malformed()),
                false => Ok(false),
            };
        };
        self.status = head.code.unwrap_or(0);
        for header in &*head.headers {
            let value = std::str::from_utf8(header.value).map_err(|_| malformed())?;
            if header.name.eq_ignore_ascii_case("content-length") {
                self.framing = Framing::Length(value.trim().parse().map_err(|_| malformed())?);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                // It overrides a length (RFC 9112, section 6.3).
                self.framing = Framing::Chunks;
                break;
            }
        }
        self.raw.drain(..end);
        Ok(true)
    }

    /// Moves what was received to the body. Returns whether it has ended.
    fn unframe(&mut self) -> io::Result<bool> {
        match &mut self.framing {
            Framing::Close => self.body.append(&mut self.raw),
            Framing::Length(left) => {
                let len = self.raw.len().min(*left);
                self.body.extend(self.raw.drain(..len));
                *left -= len;
                self.is_over |= *left == 0;
            }
            Framing::Chunks => self.unchunk()?,
        }
        match self.body.len() > BODY_MAX {
            true => Err(malformed()),
            false => Ok(self.is_over),
        }
    }

    fn unchunk(&mut self) -> io::Result<()> {
        while !self.is_over {
            let parsed = httparse::parse_chunk_size(&self.raw).map_err(|_| malformed())?;
            let httparse::Status::Complete((start, len)) = parsed else {
                return Ok(());
            };
            let len = usize::try_from(len).map_err(|_| malformed())?;
            if len > BODY_MAX {
                return Err(malformed());
            }
            // A chunk ends with CRLF; trailers after the last one are of no concern.
            let end = start + len;
            if self.raw.len() < end + 2 {
                return Ok(());
            }
            self.is_over = len == 0;
            self.body.extend_from_slice(&self.raw[start..end]);
            self.raw.drain(..end + 2);
        }
        Ok(())
    }

    fn receive(&mut self, due: Due) -> io::Result<()> {
        self.stream.set_read_timeout(Some(due.left()?))?;
        let mut room = [0; 4096];
        match self.stream.read(&mut room) {
            Ok(0) if matches!(self.framing, Framing::Close) && self.status != 0 => {
                self.is_over = true;
                Ok(())
            }
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.raw.extend_from_slice(&room[..len]);
                match self.raw.len() > RAW_MAX {
                    true => Err(malformed()),
                    false => Ok(()),
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            // What a timeout of a socket is called.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
            Err(error) => Err(error),
        }
    }
}

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the answer is not HTTP")
}
