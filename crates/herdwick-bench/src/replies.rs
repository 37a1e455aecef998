//! The replies of a memcached over a blocking socket, one after the other.

use std::io::Read;

use herdwick_memcache::reply::{LINE_BYTES_MAX, MalformedReply, Reply, parse};

use crate::DriveError;

/// Bytes of the buffer at first; it grows for a value that does not fit.
const BUFFER_BYTES: usize = 64 << 10;

/// Reads replies from a blocking socket.
pub(crate) struct ReplyReader<R> {
    from: R,
    buffer: Vec<u8>,
    /// The unread bytes of the buffer.
    start: usize,
    end: usize,
    value_bytes_max: usize,
}

impl<R: Read> ReplyReader<R> {
    /// Creates a reader of replies with values of up to `value_bytes_max` bytes.
    pub(crate) fn new(from: R, value_bytes_max: usize) -> Self {
        Self {
            from,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            value_bytes_max,
        }
    }

    /// Returns the socket, to write to.
    pub(crate) fn get_mut(&mut self) -> &mut R {
        &mut self.from
    }

    /// Reads the next reply and returns what `take` makes of it; `None` if it is no reply to what
    /// was requested.
    ///
    /// # Errors
    /// [`DriveError`], among them the reply that `take` did not expect.
    pub(crate) fn next<T>(
        &mut self,
        take: impl FnOnce(Reply<'_>) -> Option<T>,
    ) -> Result<T, DriveError> {
        loop {
            let unread = &self.buffer[self.start..self.end];
            let parsed = parse(unread, self.value_bytes_max);
            if let Some((reply, used)) = parsed.map_err(|flaw| refuse(flaw, unread))? {
                let taken = take(reply).ok_or_else(|| unexpected(unread));
                self.start += used;
                return taken;
            }
            self.fill()?;
        }
    }

    /// Reads more bytes from the socket; makes room for them first.
    fn fill(&mut self) -> Result<(), DriveError> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.buffer.len() {
            // The parser refuses longer values, so this ends.
            self.buffer.resize(2 * self.end, 0);
        }
        let count = self.from.read(&mut self.buffer[self.end..])?;
        if count == 0 {
            return Err(DriveError::Closed);
        }
        self.end += count;
        Ok(())
    }
}

/// Returns the error for a reply that memcached never sends, at the front of `bytes`.
pub(crate) fn refuse(flaw: MalformedReply, bytes: &[u8]) -> DriveError {
    match flaw {
        MalformedReply::ValueTooLarge { bytes, .. } => DriveError::ForeignValue(bytes),
        _ => unexpected(bytes),
    }
}

/// Returns the error for a reply, at the front of `bytes`, to something that was not requested.
pub(crate) fn unexpected(bytes: &[u8]) -> DriveError {
    const SHOWN: usize = 64;
    let head = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let line = match head.iter().position(|&byte| byte == b'\n') {
        Some(end) => String::from_utf8_lossy(&head[..end]).trim_end().to_owned(),
        None => format!(
            "{}...",
            String::from_utf8_lossy(&head[..head.len().min(SHOWN)])
        ),
    };
    DriveError::Reply(line)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// Returns a reader of `bytes`, which its peer sends before it closes.
    fn reader(bytes: &[u8], value_bytes_max: usize) -> ReplyReader<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut to, _) = listener.accept().unwrap();
        let bytes = bytes.to_vec();
        // In a thread: the bytes may exceed the socket's buffers.
        std::thread::spawn(move || to.write_all(&bytes));
        ReplyReader::new(from, value_bytes_max)
    }

    #[test]
    fn value_larger_than_the_buffer_and_the_reply_behind_it_are_read() {
        let value = vec![b'v'; 5 * BUFFER_BYTES];
        let header = format!("VALUE key 0 {}\r\n", value.len());
        let bytes = [header.as_bytes(), &value, b"\r\nEND\r\nSTORED\r\n"].concat();
        let mut reader = reader(&bytes, value.len());
        let read = reader.next(|reply| match reply {
            Reply::Value(value) => Some(value.data.to_vec()),
            _ => None,
        });
        assert!(read.unwrap() == value, "the value is the one sent");
        for expected in [Reply::End, Reply::Stored] {
            let next = reader.next(|reply| (reply == expected).then_some(()));
            assert!(next.is_ok(), "{expected:?}");
        }
        assert!(matches!(reader.next(|_| Some(())), Err(DriveError::Closed)));
    }

    #[test]
    fn replies_to_something_else_are_shown() {
        let mut unasked = reader(b"SERVER_ERROR out of memory\r\n", 10);
        let shown = unasked.next(|reply| (reply == Reply::End).then_some(()));
        assert!(
            matches!(shown, Err(DriveError::Reply(text)) if text == "SERVER_ERROR out of memory")
        );
        let mut http = reader(b"HTTP/1.1 400 Bad Request\r\n", 10);
        let shown = http.next(|_| Some(()));
        assert!(matches!(shown, Err(DriveError::Reply(text)) if text.starts_with("HTTP/1.1 400")));
        let mut large = reader(b"VALUE key 0 11\r\n", 10);
        let refused = large.next(|_| Some(()));
        assert!(matches!(refused, Err(DriveError::ForeignValue(11))));
    }
}
