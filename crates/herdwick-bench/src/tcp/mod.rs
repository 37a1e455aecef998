//! A memcached client that costs less than any memcached server: requests are patched templates,
//! replies are recognised by their fixed sizes, and one system call carries many of both.

mod compose;
mod connection;
mod instant;
mod reply;

use std::{
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};

use crate::{
    remote::Remote,
    target::{DriveError, Load, Target},
    workload::KeySpace,
};

use compose::Composer;
use connection::Connection;
pub(crate) use instant::generator_ns;
use reply::Reader;

/// The load of one thread over TCP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpOptions {
    /// Connections of this thread.
    pub connections: usize,
    /// Requests in flight on each.
    pub pipeline: usize,
    /// Keys in one `get`.
    pub multiget: usize,
}

/// The connections of one thread.
#[derive(Debug)]
pub(crate) struct TcpTarget {
    poll: Poll,
    events: Events,
    connections: Vec<Connection<herdwick::Connection>>,
    composer: Composer,
    reader: Reader,
    pipeline: usize,
    /// Index of the connection that received the last request, in an open loop.
    turn: usize,
}

/// epoll timeouts are whole milliseconds: if the next request is due sooner than this, the loop
/// polls instead of sleeping.
const SPIN_BELOW_NS: u64 = 1_500_000;
/// Events taken from one `epoll_wait`.
const EVENTS: usize = 1024;

impl TcpTarget {
    /// Connects to `server`.
    ///
    /// # Errors
    /// A connection was refused or failed.
    pub(crate) fn connect(
        server: &Remote,
        options: TcpOptions,
        space: KeySpace,
    ) -> Result<Self, DriveError> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(options.connections);
        for token in 0..options.connections.max(1) {
            let stream = server.connect()?;
            let fd = stream.as_fd().as_raw_fd();
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut SourceFd(&fd), Token(token), interest)?;
            let ends_short = !stream.is_encrypted();
            connections.push(Connection::new(stream, space.value_size(), ends_short));
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS),
            connections,
            composer: Composer::new(space, options.multiget.max(1)),
            reader: Reader::new(space),
            pipeline: options.pipeline.max(1),
            turn: 0,
        })
    }

    fn refill(&mut self, index: usize, load: &mut Load<'_>, now_ns: u64) -> Result<(), DriveError> {
        self.connections[index].refill(&mut self.composer, load, self.pipeline, now_ns)
    }

    /// Open loop: distributes the requests that are due over the connections, round robin, as far
    /// as they have room.
    fn offer(&mut self, load: &mut Load<'_>, now_ns: u64) -> Result<(), DriveError> {
        let (mut asked, mut full) = (false, 0);
        while full < self.connections.len() && load.pace.is_due(now_ns) {
            self.turn = (self.turn + 1) % self.connections.len();
            let connection = &mut self.connections[self.turn];
            if connection.in_flight() >= self.pipeline || !self.composer.has_more(load) {
                full += 1;
                continue;
            }
            (asked, full) = (true, 0);
            connection.ask(&mut self.composer, load, now_ns);
        }
        if asked || full > 0 {
            self.connections.iter_mut().try_for_each(Connection::send)?;
        }
        Ok(())
    }

    fn pass(
        &mut self,
        load: &mut Load<'_>,
        timeout: Duration,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        if let Err(error) = self.poll.poll(&mut self.events, Some(timeout)) {
            match error.kind() {
                std::io::ErrorKind::Interrupted => return Ok(()),
                _ => return Err(error.into()),
            }
        }
        // Taken out, since the calls below borrow all of `self`.
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            let Token(index) = event.token();
            if event.is_writable() {
                self.connections[index].send()?;
            }
            if event.is_readable() || event.is_read_closed() {
                let now_ns = clock();
                self.connections[index].receive(&mut self.reader, load.counters, now_ns)?;
                if load.pace.next_due_ns().is_none() {
                    self.refill(index, load, now_ns)?;
                }
            }
        }
        self.events = events;
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.connections
            .iter()
            .all(|connection| connection.in_flight() == 0)
    }
}

impl Target for TcpTarget {
    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        let mut now_ns = clock();
        if load.pace.next_due_ns().is_none() {
            for index in 0..self.connections.len() {
                self.refill(index, load, now_ns)?;
            }
        }
        while now_ns < until_ns {
            let mut wait_ns = until_ns - now_ns;
            if load.pace.next_due_ns().is_some() {
                self.offer(load, now_ns)?;
                wait_ns = wait_ns.min(timeout_ns(load, now_ns));
            }
            if !self.composer.has_more(load) && self.is_idle() {
                break;
            }
            self.pass(load, Duration::from_nanos(wait_ns), clock)?;
            now_ns = clock();
        }
        Ok(())
    }

    fn in_flight(&self) -> impl Iterator<Item = u64> {
        self.connections.iter().flat_map(Connection::waiting_since)
    }
}

/// Returns how long an open loop may sleep, in nanoseconds: 0 if the next request is near.
fn timeout_ns(load: &Load<'_>, now_ns: u64) -> u64 {
    let due = load.pace.next_due_ns().unwrap_or(u64::MAX);
    match due.saturating_sub(now_ns) {
        // Overdue: every connection is full, so only an answer makes progress.
        0 => u64::MAX,
        near if near < SPIN_BELOW_NS => 0,
        far => far - SPIN_BELOW_NS + 1,
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, net::TcpListener};

    use herdwick::{Address, Options};

    use super::*;
    use crate::{
        counters::RunCounters,
        pace::Pace,
        workload::{Dist, Mix, Trace},
    };

    /// In an open loop with one connection. Seen to fail where it was sent with the next one only, an interval
    /// later.
    #[test]
    fn request_that_is_due_is_sent_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let remote = Remote::new(address, Options::default());
        let options = TcpOptions {
            connections: 1,
            pipeline: 8,
            multiget: 1,
        };
        let space = KeySpace::new(100, 3, 4).unwrap();
        let mut target = TcpTarget::connect(&remote, options, space).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut load = Load {
            trace: &mut Trace::new(Mix::GetShare(1.0), Dist::Uniform, 100, 1000, 3),
            pace: &mut Pace::open(1.0, 0),
            counters: &mut RunCounters::new(),
            version: 0,
        };
        target.offer(&mut load, 1).unwrap();
        let mut request = [0; 4];
        server.read_exact(&mut request).unwrap();
        assert_eq!(&request, b"get ");
    }
}
