use std::{io, time::Duration};

use herdwick_mica::{Clock, Second};
use mio::{Registry, Token, event::Event};

use crate::{counters::WorkerCounters, cross_core::CrossCore, partition::Partition};

/// One way into a worker: sockets, or a fabric's request lines.
///
/// The worker calls [`pass`](Self::pass) over and over; one call serves whatever is there. Before
/// it sleeps it calls [`arm`](Self::arm) on every front, and sleeps only if all agree; a source
/// that a front [`register`](Self::register)ed wakes it.
pub(crate) trait Front {
    /// Adds the sources that announce work to the worker's poll, under tokens of this front.
    ///
    /// # Errors
    /// The operating system's refusal.
    fn register(&mut self, registry: &Registry, tokens: Tokens) -> io::Result<()>;

    /// A registered source, `local` within this front's tokens, has something to say.
    fn ready(&mut self, local: usize, event: &Event);

    /// Serves what has arrived. Never blocks.
    fn pass(&mut self, pass: &mut Pass<'_>) -> Activity;

    /// Whether this front finds work by looking at memory. While it does, the worker looks at the
    /// sockets only every so many passes.
    fn polls_memory(&self) -> bool {
        false
    }

    /// Asks the sources to wake the worker, then looks once more: `true` if there is nothing to do.
    fn arm(&mut self) -> bool;

    /// The worker is awake again, or did not sleep after all.
    fn disarm(&mut self) {}

    /// The server shuts down: take no new work, finish what has arrived.
    fn drain(&mut self);

    /// Whether a draining front has finished.
    fn is_drained(&self) -> bool;

    /// Lists some of its connections, from the one at place `from` on, in the words of `stats
    /// conns`; gives the place to go on at, if there are more. One front of a worker has any.
    fn connections(&self, now: Second, from: usize, out: &mut Vec<u8>) -> Option<usize> {
        let _ = (now, from, out);
        None
    }

    /// The longest that the worker may sleep, if not as long as it likes.
    fn tick(&self) -> Option<Duration> {
        None
    }

    /// The transport, in one word.
    fn transport(&self) -> &'static str;

    /// What this front itself has counted since the start: requests, batches, and each drop by its
    /// reason.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// What a front may use during one pass.
pub(crate) struct Pass<'a> {
    /// The time since the server's start.
    pub(crate) now: Duration,
    /// The time, as the store counts it.
    pub(crate) clock: Clock,
    /// This worker's partition.
    pub(crate) store: &'a mut Partition,
    /// The way to the other partitions.
    pub(crate) cross_core: &'a mut CrossCore,
    /// This worker's counters.
    pub(crate) counters: &'a mut WorkerCounters,
    /// For sources that come and go.
    pub(crate) registry: &'a Registry,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Nothing to do.
    Idle,
    /// Served something, or has more to serve.
    Busy,
}

/// Tokens are split by front: the upper bits say which.
const LOCAL_BITS: u32 = 32;

/// The tokens of one front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    front: usize,
}

impl Tokens {
    pub(crate) fn of_front(front: usize) -> Self {
        Self { front }
    }

    /// The token whose events come back as `local`.
    pub(crate) fn token(self, local: usize) -> Token {
        Token(self.front << LOCAL_BITS | local)
    }

    /// Front and local part of a token.
    pub(crate) fn split(token: Token) -> (usize, usize) {
        (token.0 >> LOCAL_BITS, token.0 & ((1 << LOCAL_BITS) - 1))
    }
}
