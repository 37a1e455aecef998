//! The interface between a worker and its transports ([`Front`]), and the tokens of their event
//! sources.

use std::{io, time::Duration};

use herdwick_request::Second;
use mio::{Registry, Token, event::Event};

use crate::{
    runtime::{
        cross_core::CrossCore,
        partition::PassStart,
        partition_lock::{Guard, Own, Partitions},
        time::ServerClock,
    },
    telemetry::{latency::LatencyHistograms, snapshot::WorkerCounters},
};

/// A transport of one worker: sockets, or a fabric's request lines.
///
/// The worker calls [`pass`](Self::pass) in a loop; each call serves what has arrived. Before the
/// worker sleeps it calls [`arm`](Self::arm) on every front end, and it sleeps only if all of them
/// return `true`; a source that a front end [`register`](Self::register)ed wakes it.
pub(crate) trait Front {
    /// Registers the front end's event sources with the worker's poll, under tokens of this front end.
    ///
    /// # Errors
    /// The operating system's refusal.
    fn register(&mut self, registry: &Registry, tokens: Tokens) -> io::Result<()>;

    /// Handles an event of a registered source; `local` is its token within this front end.
    fn ready(&mut self, local: usize, event: &Event);

    /// Serves what has arrived. Does not block.
    fn pass(&mut self, pass: &mut Pass<'_>) -> Activity;

    /// Returns whether this front end finds work by polling memory. While it does, only one in
    /// `WHOLE_EVERY` passes is whole, and only front ends that do take part in the others.
    fn polls_memory(&self) -> bool {
        false
    }

    /// Returns whether each of its passes needs the time, because the fabric has timers.
    fn keeps_time(&self) -> bool {
        false
    }

    /// Arms the sources to wake the worker, then polls once more; `true`: there is no work.
    fn arm(&mut self) -> bool;

    /// Undoes [`arm`](Self::arm): the worker has woken, or did not sleep.
    fn disarm(&mut self) {}

    /// Starts the shutdown: the front end accepts no new work and finishes what has arrived.
    fn drain(&mut self);

    /// Returns whether a draining front end has finished.
    fn is_drained(&self) -> bool;

    /// Lists some of its connections from index `from` on, in the format of `stats conns`. Returns
    /// the index to continue at, if there are more. Only one front end of a worker has connections.
    fn connections(&self, now: Second, from: usize, out: &mut Vec<u8>) -> Option<usize> {
        let _ = (now, from, out);
        None
    }

    /// Returns the longest time the worker may sleep; `None`: no limit.
    fn tick(&self) -> Option<Duration> {
        None
    }

    /// Returns the latency histograms of its requests, if they are kept.
    fn latencies(&mut self) -> Option<&mut LatencyHistograms> {
        None
    }

    /// Returns the transport's name, one word.
    fn transport(&self) -> &'static str;

    /// Returns the front end's own counters since the start: requests, batches, and drops by reason.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// What a front end may use during one pass.
pub(crate) struct Pass<'a> {
    /// The clock and the memory limit that this pass sets in the partitions that it uses.
    pub(crate) start: PassStart,
    /// The clock, for what ends later than the pass began.
    pub(crate) timer: &'a ServerClock,
    /// Whether to look for everything, and not only for requests in memory.
    pub(crate) whole: bool,
    /// Set if there may be more to find that is not a request in memory: the next pass is whole.
    pub(crate) goes_on: &'a mut bool,
    /// This worker's partition.
    pub(crate) own: Own<'a>,
    /// All partitions.
    pub(crate) partitions: &'a Partitions,
    /// The queues to the other partitions.
    pub(crate) cross_core: &'a mut CrossCore,
    /// This worker's counters.
    pub(crate) counters: &'a mut WorkerCounters,
    /// The registry of the worker's poll, for sources that are added or removed later.
    pub(crate) registry: &'a Registry,
}

impl Pass<'_> {
    /// Locks this worker's partition.
    pub(crate) fn own(&mut self) -> Guard<'_> {
        self.own.lock(self.start)
    }
}

/// Whether a pass found work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// There was no work.
    Idle,
    /// It served something, or has more to serve.
    Busy,
}

/// The upper bits of a token are the front end's index; this many lower bits are the front end's own.
const LOCAL_BITS: u32 = 32;

/// The tokens of one front end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    front: usize,
}

impl Tokens {
    pub(crate) fn of_front(front: usize) -> Self {
        Self { front }
    }

    /// Returns the token whose events are delivered as `local`.
    pub(crate) fn token(self, local: usize) -> Token {
        Token(self.front << LOCAL_BITS | local)
    }

    /// Splits a token into the front end's index and the local part.
    pub(crate) fn split(token: Token) -> (usize, usize) {
        (token.0 >> LOCAL_BITS, token.0 & ((1 << LOCAL_BITS) - 1))
    }
}
