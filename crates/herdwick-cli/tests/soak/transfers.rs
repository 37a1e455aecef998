//! Values of up to a megabyte, sent and read at every speed over many simultaneous connections.
//! Each of them keeps moving, and none may be closed by the server.

use std::{
    io::{ErrorKind, Read, Write},
    time::Duration,
};

use crate::{
    common::TIMEOUT,
    model::{Own, content},
    stage::{Visit, rest},
    stream::Stream,
    text,
    transports::{Kind, Transport},
};

/// Values that a reader requests at once.
const READ_TOGETHER: usize = 4;
/// Size of a connection's read buffer.
const CHUNK_MAX: usize = 64 << 10;

/// A connection that sends a command in small steps, and reads its answer in small steps.
struct Transfer {
    stream: Stream,
    out: Vec<u8>,
    sent: usize,
    /// The expected answer.
    answer: Vec<u8>,
    came: usize,
    /// Bytes of a step ...
    chunk: usize,
    /// ... and the pause between two steps.
    interval: Duration,
    next: Duration,
    /// When a byte last moved.
    moved: Duration,
}

impl Transfer {
    /// Makes the transfer of a command and its whole answer, in about `span`.
    fn new(visit: &mut Visit<'_>, (out, answer): (Vec<u8>, Vec<u8>), span: Duration) -> Self {
        let stream = visit.stage.places.stream(Kind::Classic);
        stream.set_nonblocking();
        let steps = (span.as_millis() as usize / 20).max(1);
        let bytes = out.len().max(answer.len());
        let now = visit.stage.clock.now();
        Self {
            stream,
            out,
            sent: 0,
            answer,
            came: 0,
            chunk: bytes.div_ceil(steps).clamp(1, CHUNK_MAX),
            interval: Duration::from_millis(visit.between(15, 25)),
            next: now,
            moved: now,
        }
    }

    fn is_done(&self) -> bool {
        self.came == self.answer.len()
    }

    /// Moves a chunk, or less.
    fn step(&mut self, now: Duration) {
        self.next = now + self.interval;
        if self.sent < self.out.len() {
            let end = self.out.len().min(self.sent + self.chunk);
            match self.stream.write(&self.out[self.sent..end]) {
                Ok(count) => {
                    self.sent += count;
                    self.moved = now;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{}: {error}", self.place()),
            }
        } else {
            self.read(now);
        }
        assert!(
            now < self.moved + TIMEOUT,
            "{}: nothing moves",
            self.place()
        );
    }

    fn read(&mut self, now: Duration) {
        let mut buffer = [0; CHUNK_MAX];
        match self.stream.read(&mut buffer[..self.chunk]) {
            Ok(0) => panic!("{}: hung up on", self.place()),
            Ok(count) => {
                let expected = self.answer.get(self.came..self.came + count);
                let right = expected == Some(&buffer[..count]);
                assert!(right, "{}: wrong bytes", self.place());
                self.came += count;
                self.moved = now;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{}: {error}", self.place()),
        }
    }

    fn place(&self) -> String {
        format!(
            "a transfer, {} of {} bytes sent, {} of {} read, {} each {:?}",
            self.sent,
            self.out.len(),
            self.came,
            self.answer.len(),
            self.chunk,
            self.interval
        )
    }
}

/// Uploads values, then reads them back, several at a time.
pub(crate) fn visit(visit: &mut Visit<'_>) {
    let most = visit.stage.places.transfers_max;
    let least = if visit.number == 0 { most } else { 1 };
    let count = visit.between(least, most) as usize;
    let mut own = Own::new(visit, Kind::Classic, count);
    let mut stored = Vec::new();
    let span = Duration::from_millis(visit.between(50, 4000)).min(visit.stage.left() / 2);
    let mut uploads = Vec::new();
    for index in 0..count {
        let len = if visit.percent(70) {
            900_000
        } else {
            visit.length(1_000_000)
        };
        let value = own.store(index, len);
        let command = text::set(&own.key(index), &value, 0);
        uploads.push(Transfer::new(
            visit,
            (command, b"STORED\r\n".to_vec()),
            span,
        ));
        stored.push(len);
    }
    run(visit, uploads);
    visit.stage.count("uploads", count as u64);
    // Where items are evicted, the readers' results are not known.
    if visit.stage.strict && visit.stage.lasts() {
        let readers = (0..count).map(|at| reader(visit, &own, at, span)).collect();
        run(visit, readers);
        visit.stage.count("slow readers", count as u64);
    }
    let mut transport = text::Classic::new(visit.stage.places.stream(Kind::Classic));
    for index in 0..count {
        transport.delete(&own.key(index));
    }
}

/// Makes a reader that reads several values with one command.
fn reader(visit: &mut Visit<'_>, own: &Own, at: usize, span: Duration) -> Transfer {
    let (mut command, mut answer) = ("get".to_owned(), Vec::new());
    for step in 0..READ_TOGETHER.min(own.len()) {
        let index = (at + step) % own.len();
        let crate::model::Expected::Stored { version, len, .. } = own.expected(index) else {
            continue;
        };
        let key = own.key(index);
        command = format!("{command} {key}");
        answer.extend(format!("VALUE {key} 0 {len}\r\n").into_bytes());
        answer.extend(content(&key, version, len));
        answer.extend(b"\r\n");
    }
    answer.extend(b"END\r\n");
    Transfer::new(visit, (format!("{command}\r\n").into_bytes(), answer), span)
}

/// Runs until all transfers are done, even beyond the end of the soak.
fn run(visit: &Visit<'_>, mut transfers: Vec<Transfer>) {
    while !transfers.is_empty() && visit.stage.fault().is_none() {
        let now = visit.stage.clock.now();
        for transfer in &mut transfers {
            if transfer.next <= now {
                transfer.step(now);
            }
        }
        transfers.retain(|transfer| !transfer.is_done());
        let next = transfers.iter().map(|transfer| transfer.next).min();
        rest(next.map_or(Duration::ZERO, |next| {
            next.saturating_sub(visit.stage.clock.now())
        }));
    }
}
