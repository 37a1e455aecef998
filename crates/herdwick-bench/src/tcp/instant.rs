//! The memcached client over an in-memory server that answers at once: measures the cost of the
//! client itself, without system calls.

use std::io::{ErrorKind, Read, Write};

use super::{TcpOptions, compose::Composer, connection::Connection, reply::Reader};
use crate::{
    cost::ns_per_op,
    counters::RunCounters,
    pace::Pace,
    target::{DriveError, Load},
    workload::{KeySpace, Trace},
};

/// Least number of requests in flight on all connections together: enough that two readings of the
/// clock for all of them do not count.
const IN_FLIGHT: usize = 64;
/// Bytes of replies that a connection buffers; the rest of a reply is taken by the next read.
const REPLIES_MAX: usize = 48 << 10;

/// An in-memory stream: requests written, and replies to read.
#[derive(Debug, Default)]
struct InMemoryStream {
    requests: Vec<u8>,
    replies: Vec<u8>,
    read: usize,
}

impl Write for InMemoryStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.requests.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Read for InMemoryStream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.replies[self.read..];
        if rest.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        Ok(count)
    }
}

impl InMemoryStream {
    /// Answers every request that was written; every key is found.
    fn answer(&mut self, space: &KeySpace, value: &mut [u8]) {
        (self.read, self.replies) = (0, Vec::with_capacity(self.replies.len()));
        let tail = format!(" 0 {}\r\n", value.len());
        let mut rest = &self.requests[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, behind) = rest.split_at(end + 1);
            let mut words = line.trim_ascii().split(|byte| *byte == b' ');
            if words.next() == Some(b"set") {
                self.replies.extend_from_slice(b"STORED\r\n");
                rest = &behind[space.value_size() + 2..];
                continue;
            }
            for key in words {
                space.value(index_of(key), 0, value);
                self.replies.extend_from_slice(b"VALUE ");
                self.replies.extend_from_slice(key);
                self.replies.extend_from_slice(tail.as_bytes());
                self.replies.extend_from_slice(value);
                self.replies.extend_from_slice(b"\r\n");
            }
            self.replies.extend_from_slice(b"END\r\n");
            rest = behind;
        }
        self.requests.clear();
    }
}

/// Returns the index that a key encodes in its last eight hexadecimal digits.
fn index_of(key: &[u8]) -> u32 {
    let digits = &key[key.len().saturating_sub(8)..];
    digits.iter().fold(0, |index, digit| {
        index << 4 | char::from(*digit).to_digit(16).unwrap_or(0)
    })
}

/// Returns nanoseconds per key for composing a request of `trace` and checking its reply.
///
/// # Errors
/// The client cannot parse a reply, which would be a bug of this module.
pub(crate) fn generator_ns(
    trace: &mut Trace,
    space: KeySpace,
    options: TcpOptions,
) -> Result<f64, DriveError> {
    let pipeline = options.pipeline.max(1);
    let count = options.connections.max(IN_FLIGHT.div_ceil(pipeline));
    let mut connections = Vec::from_iter((0..count).map(|_| {
        let room = space.value_size() + REPLIES_MAX;
        Connection::new(InMemoryStream::default(), room, true)
    }));
    let (mut composer, mut reader) = (
        Composer::new(space, options.multiget.max(1)),
        Reader::new(space),
    );
    let (mut pace, mut counters) = (Pace::closed(), RunCounters::new());
    let (mut value, mut failed) = (vec![0; space.value_size()], None);
    let ns = ns_per_op(|clock| {
        let before = counters.operations();
        let mut load = Load {
            trace: &mut *trace,
            pace: &mut pace,
            counters: &mut counters,
            version: 0,
        };
        let start_ns = clock.ns();
        for connection in &mut connections {
            let now_ns = start_ns;
            let asked = connection.refill(&mut composer, &mut load, pipeline, now_ns);
            failed = asked.err().or_else(|| failed.take());
        }
        let asking_ns = clock.ns() - start_ns;
        for connection in &mut connections {
            connection.stream().answer(&space, &mut value);
        }
        let start_ns = clock.ns();
        for connection in &mut connections {
            let now_ns = clock.ns();
            let heard = connection.receive(&mut reader, load.counters, now_ns);
            failed = heard.err().or_else(|| failed.take());
        }
        let checking_ns = clock.ns() - start_ns;
        (asking_ns + checking_ns, counters.operations() - before)
    });
    debug_assert_eq!((counters.wrong_values, counters.errors), (0, 0));
    failed.map_or(Ok(ns), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Dist, Mix};

    /// Every request that the client composes is answered as a server would, to the last byte;
    /// `tests/memcached.rs` runs the same client against a real server.
    #[test]
    fn every_composed_request_gets_its_correct_reply() {
        let space = KeySpace::new(100, 5, 7).unwrap();
        let shapes = [(1, 1), (8, 1), (2, 10), (4, 100)];
        for (pipeline, multiget) in shapes {
            let mut trace = Trace::new(Mix::GetShare(0.7), Dist::Uniform, 100, 500, 1);
            let options = TcpOptions {
                connections: 3,
                pipeline,
                multiget,
            };
            assert!(generator_ns(&mut trace, space, options).unwrap() > 0.0);
        }
    }

    #[test]
    fn instant_target_answers_in_the_protocol() {
        let space = KeySpace::new(100, 5, 3).unwrap();
        let mut memory = InMemoryStream::default();
        let _ = memory.write(b"get 00001 0000a\r\nset 00002 0 0 3\r\nx\n\r\r\nget 00003\r\n");
        memory.answer(&space, &mut [0; 3]);
        let text = memory.replies.split(|byte| *byte == b'\n');
        let lines: Vec<_> = text.map(<[u8]>::len).collect();
        let value = b"VALUE 00001 0 3\r".len();
        assert_eq!(lines[0], value);
        assert!(memory.replies.starts_with(b"VALUE 00001 0 3\r\n"));
        let mut expected = [0; 3];
        space.value(3, 0, &mut expected);
        let last = [
            b"END\r\nSTORED\r\nVALUE 00003 0 3\r\n",
            &expected[..],
            b"\r\nEND\r\n",
        ]
        .concat();
        assert!(memory.replies.ends_with(&last));
        assert_eq!(index_of(b"kkk0000beef"), 0xbeef);
    }
}
