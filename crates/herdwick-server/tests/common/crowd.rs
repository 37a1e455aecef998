//! Many clients at a time, each of which progresses whenever its socket permits, a piece in turn.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    time::{Duration, Instant},
};

use herdwick_server::Server;

use super::connect;

/// Without any progress for this long, the test fails.
const STUCK: Duration = Duration::from_secs(60);

/// A client that pauses for longer may be cut while others wait for its room: half of what the server
/// allows. On a busy host the clients of a test pause, too.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

/// Time since an event, for bounds that only a failure reaches.
pub(crate) struct Since(Instant);

impl Since {
    #[expect(clippy::disallowed_methods, reason = "a guard against hanging")]
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A stream that a client sends to and reads from.
pub(crate) trait Duplex: Read + Write {}

impl<S: Read + Write> Duplex for S {}

/// What one client sends, and what it expects to receive.
pub(crate) struct Talk {
    stream: Box<dyn Duplex>,
    said: Vec<u8>,
    sent: usize,
    expected: Vec<u8>,
    heard: usize,
    /// Most bytes that it sends, and reads, in one turn.
    piece: usize,
    /// When its last turn was, and whether it ever paused for long before one.
    last: Since,
    paused: bool,
}

impl Talk {
    pub(crate) fn new(server: &Server, said: Vec<u8>, expected: Vec<u8>, piece: usize) -> Self {
        let stream = connect(server);
        stream.set_nonblocking(true).unwrap();
        Self::over(stream, said, expected, piece)
    }

    /// The same over a stream that does not block.
    pub(crate) fn over(
        stream: impl Duplex + 'static,
        said: Vec<u8>,
        expected: Vec<u8>,
        piece: usize,
    ) -> Self {
        Self {
            stream: Box::new(stream),
            said,
            sent: 0,
            expected,
            heard: 0,
            piece,
            last: Since::now(),
            paused: false,
        }
    }

    /// Runs one turn; returns whether it progressed. `None`: the server has closed the connection.
    pub(crate) fn turn(&mut self) -> Option<bool> {
        self.paused |= self.last.elapsed() > PAUSE;
        self.last = Since::now();
        let rest = &self.said[self.sent..];
        let mut moved = false;
        if !rest.is_empty() {
            match self.stream.write(&rest[..rest.len().min(self.piece)]) {
                Ok(count) => {
                    self.sent += count;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
        let mut buffer = vec![0; self.piece.min(self.expected.len() - self.heard).max(1)];
        match self.stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => {
                let expected = self.expected.get(self.heard..self.heard + count);
                let heard = &buffer[..count];
                assert!(
                    expected == Some(heard),
                    "at {} of {}: {}",
                    self.heard,
                    self.expected.len(),
                    heard[..count.min(200)].escape_ascii()
                );
                self.heard += count;
                moved = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
        Some(moved)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.sent == self.said.len() && self.heard == self.expected.len()
    }
}

/// Runs turns until all are complete; calls `between` after each round. Returns how many were cut by
/// the server because this host paused them for too long.
pub(crate) fn all_done(mut talks: Vec<Talk>, mut between: impl FnMut()) -> u64 {
    let (mut last, mut cut) = (Since::now(), 0);
    while !talks.is_empty() {
        let mut moved = false;
        talks.retain_mut(|talk| {
            let Some(progress) = talk.turn() else {
                let (sent, heard) = (talk.sent, talk.heard);
                assert!(
                    talk.paused,
                    "closed after {sent} bytes sent, {heard} received"
                );
                cut += 1;
                return false;
            };
            moved |= progress;
            !talk.is_done()
        });
        if moved {
            last = Since::now();
        } else {
            assert!(last.elapsed() < STUCK, "{} are stuck", talks.len());
            std::thread::yield_now();
        }
        between();
    }
    cut
}

/// Returns a distinct value for each `n`, which shows where a byte was lost.
pub(crate) fn value(n: usize, len: usize) -> Vec<u8> {
    let byte = |i: usize| (i % 251) as u8 ^ (i >> 10) as u8 ^ (n as u8).wrapping_mul(37);
    (0..len).map(byte).collect()
}

/// Returns what the server holds under `key`.
pub(crate) fn stored(server: &Server, key: &str) -> Option<Vec<u8>> {
    let mut stream = connect(server);
    stream
        .write_all(format!("get {key}\r\n").as_bytes())
        .unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    if line == "END\r\n" {
        return None;
    }
    let len = line.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    let mut value = vec![0; len];
    reader.read_exact(&mut value).unwrap();
    Some(value)
}
