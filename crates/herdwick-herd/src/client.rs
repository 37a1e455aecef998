//! The client side of HERD: writes requests into its slots at the workers and matches the replies
//! to them. A request ends exactly once: with an answer, a timeout or an unknown outcome.
//!
//! Circular import with `channel` and `order`: the client holds channels, which take its options and keep
//! their requests in order, and the order looks at a channel's slots.

mod channel;
mod order;
mod post;
mod probe;
mod replies;
mod timers;

use std::{fmt, time::Duration};

use channel::Channel;
use herdwick_fabric::{AddressHandle, Completion, CqId, Port, PostError, QpId, RegionId, Remote};
use herdwick_request::{Marks, Request};

use crate::{
    Announce, ClientCounters,
    server::REPLY_BYTES_MIN,
    wire::{Epoch, LINE_BYTES, ReplyHead, ReplyStatus, Unencodable, WORKERS_MAX, Window},
};

/// Fewest and most completions taken in one poll. In between it is half a window: the client
/// handles one half while the other is in flight, so neither end waits for the other.
const POLL_MIN: usize = 32;
const POLL_MAX: usize = 64;

/// Options of a [`ClientSide`].
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Slots at each worker: requests outstanding there.
    pub window: Window,
    /// RECVs posted at each channel beyond its window: the retries that may be in flight at once.
    pub recv_slack: usize,
    /// Bytes of each RECV's buffer: the longest reply, as announced to the server in the hello.
    pub reply_bytes_max: usize,
    /// Bytes that precede a reply in a RECV's buffer: the provider's `datagram_header_bytes`.
    pub reply_header_bytes: usize,
    /// Most inline bytes of a work request: the provider's `inline_bytes_max`.
    pub inline_bytes_max: usize,
    /// Most bytes of a request, line included. Where requests are datagrams: what one of them
    /// holds.
    pub request_bytes_max: usize,
    /// Completion queue of the channels' WRITEs and SENDs, and of nothing else.
    pub request_cq: CqId,
    /// Completion queue of the channels' RECVs, and of nothing else.
    pub reply_cq: CqId,
    /// Most work requests in one post: the provider's `postlist_max`, at least 2.
    pub postlist_max: usize,
    /// Time without a reply after which a line is written again. The pause doubles with each
    /// attempt.
    pub retry_after: Duration,
    /// The longest pause between two attempts.
    pub retry_after_max: Duration,
    /// A request times out this long after its line was first posted, whether or not the port took
    /// it, or after the first scan that found it held back behind another request for its key.
    pub deadline: Duration,
}

/// A channel to one worker.
#[derive(Clone, Debug)]
pub struct WorkerChannel {
    /// The lease's epoch at that worker.
    pub epoch: Epoch,
    /// The queue pair that sends the lines, with a send queue of at least
    /// [`SEND_DEPTH_MIN`](crate::SEND_DEPTH_MIN).
    pub requests: QpId,
    /// The UD queue pair that receives the replies; it has room for window + slack RECVs.
    pub replies: QpId,
    /// The destination of the lines.
    pub to: Destination,
    /// Which WRITEs of lines carry an immediate.
    pub announce: Announce,
    /// Local memory for replies too large for a completion: (window + slack) x
    /// [`ClientOptions::reply_buffer_bytes`].
    pub receive: RegionId,
    /// Local memory from which overflowing bodies are sent: [`Window::stage_bytes`] bytes.
    pub stage: RegionId,
}

/// The destination of a channel's requests.
#[derive(Clone, Copy, Debug)]
pub enum Destination {
    /// Into the slots' memory, over a connected queue pair.
    Slots {
        /// Where the lines are.
        lines: Remote,
        /// Where the overflow areas are.
        overflow: Remote,
    },
    /// The worker's UD queue pair for this client. A datagram is the line, then the overflow.
    UdQueue(AddressHandle),
}

impl ClientOptions {
    /// Bytes of one RECV's buffer.
    #[must_use]
    pub const fn reply_buffer_bytes(&self) -> usize {
        let reply = self.reply_bytes_max.next_multiple_of(8);
        (self.reply_header_bytes + reply).next_multiple_of(8)
    }
}

/// The client half of HERD: one window of slots at each worker.
///
/// - mutators: [`ClientSide::submit`], then [`ClientSide::flush`]; [`ClientSide::probe`];
///   [`ClientSide::close`], [`ClientSide::forget`]
/// - the poll loop calls [`ClientSide::poll`], by [`ClientSide::poll_timeout`] at the latest
/// - getters: [`ClientSide::in_flight`], [`ClientSide::is_broken`], [`ClientSide::counters`]
///
/// `now` is the time since any fixed start; it never runs backwards.
pub struct ClientSide {
    channels: Vec<Channel>,
    options: ClientOptions,
    completions: Box<[Completion]>,
    /// A large reply, copied out of its RECV's buffer.
    large: Box<[u64]>,
    /// Time of the next scan of the slots, in nanoseconds.
    next_scan: u64,
    counters: ClientCounters,
}

/// Why a request was not accepted; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Every slot at the key's worker is taken, or as many lines wait to be posted as may: poll
    /// first.
    #[error("every slot at the key's worker is taken")]
    Full,
    /// The line cannot carry the request; another transport may.
    #[error(transparent)]
    Unencodable(#[from] Unencodable),
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// A reply arrived.
    Answered(Answer<'a>),
    /// No reply to a read by its deadline, or a request was never written: nothing was changed.
    Timeout,
    /// No reply to a mutation by its deadline: it took effect once or not at all, and cannot take
    /// effect once its slot is reclaimed. Never replay it over another transport.
    Unknown,
}

/// A reply.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    head: ReplyHead,
    /// How the request ended.
    pub status: ReplyStatus,
    /// The item's version; after INCR and DECR the new number. `None` when there is no item.
    pub number: Option<u64>,
    /// The value of a read; valid until the sink returns.
    pub value: &'a [u8],
    /// Length of the value, also where [`ReplyStatus::ReplyTooLarge`] withholds it.
    pub value_len: u64,
}

/// Why a client side cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientSetupError {
    /// There must be from one to [`WORKERS_MAX`] channels, one for each worker.
    #[error("{0} workers: there are 1 to {WORKERS_MAX}")]
    Workers(usize),
    /// An option is too small.
    #[error("{what}: {value}, at least {least}")]
    Option {
        /// The option's name.
        what: &'static str,
        /// Its value.
        value: usize,
        /// Its least value.
        least: usize,
    },
    /// A channel's local memory is missing or too small.
    #[error("worker {worker}, {what}: {len} bytes, {needed} needed")]
    Memory {
        /// The channel's worker.
        worker: usize,
        /// The memory's name.
        what: &'static str,
        /// Its bytes.
        len: usize,
        /// The bytes needed.
        needed: usize,
    },
    /// The port refused the RECVs.
    #[error("posting RECVs: {0}")]
    Post(#[from] PostError),
}

impl ClientSide {
    /// Makes a client of `channels.len()` workers, in their order, and posts all RECVs.
    ///
    /// # Errors
    /// [`ClientSetupError`].
    pub fn new<P: Port>(
        port: &mut P,
        options: ClientOptions,
        channels: Vec<WorkerChannel>,
    ) -> Result<Self, ClientSetupError> {
        check(&options, channels.len())?;
        let poll = (options.window.slots() / 2).clamp(POLL_MIN, POLL_MAX);
        let channels = channels
            .into_iter()
            .enumerate()
            .map(|(worker, channel)| Channel::new(port, &options, worker, channel))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            channels,
            completions: vec![Completion::BLANK; poll].into(),
            large: vec![0; options.reply_bytes_max.div_ceil(8)].into(),
            next_scan: 0,
            counters: ClientCounters::default(),
            options,
        })
    }

    /// Puts `request` into a free slot at its key's worker; [`ClientSide::flush`] sends it. The
    /// outcome carries `token`.
    ///
    /// Requests for one key take effect in the order of submission, whatever the fabric loses: if
    /// either of two is not a plain read, the later one is not sent before the earlier one has left
    /// its slot. Requests for different keys may overtake each other.
    ///
    /// # Errors
    /// [`Refused`]: nothing was done.
    #[inline]
    pub fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let worker = request.hash.partition(self.channels.len());
        self.channels[worker].submit(request, token)?;
        self.counters.requests += 1;
        Ok(())
    }

    /// Writes, or sends, the lines of all submitted requests: one postlist a worker, where they fit
    /// into one. Lines that the port refuses now wait for the next call.
    #[inline]
    pub fn flush<P: Port>(&mut self, port: &mut P, now: Duration) {
        let now = nanos(now);
        for channel in &mut self.channels {
            // An empty flush would count as a post, and hide the pause after which a line is
            // announced.
            if channel.has_pending() {
                channel.flush(port, now, &self.options, &mut self.counters);
            }
        }
    }

    /// Takes replies and passes each outcome to `sink` with the request's token, then checks
    /// retries and deadlines, and sends what is due. Returns the number of outcomes.
    #[inline]
    pub fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, Outcome<'_>),
    ) -> usize {
        let mut outcomes = self.take_replies(port, now, sink);
        // A scan looks at every slot, so it runs once in half a retry period and not at each poll.
        if nanos(now) >= self.next_scan {
            outcomes += self.scan(nanos(now), sink);
            // Before the flush: a failed receive queue is looked for only while retries are
            // pending, which the flush removes.
            for channel in &mut self.channels {
                self.counters.posts_failed += u64::from(channel.is_deaf(port));
            }
            self.flush(port, now);
        }
        // One work request in 64 is signaled; without one outstanding there is nothing to poll for.
        if self.channels.iter().any(Channel::awaits_completion) && self.take_completions(port) {
            // Lines that a full send queue held back may be posted now.
            self.flush(port, now);
        }
        outcomes
    }

    /// Returns when to call [`ClientSide::poll`] at the latest; `None` while nothing is in flight.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        (self.in_flight() > 0).then(|| Duration::from_nanos(self.next_scan))
    }

    /// Ends every request and accepts no more, because the lease is over or about to end.
    ///
    /// Requests in flight are canceled first. Where they are written into shared memory, that is
    /// final: a request that the worker has not found by the return is never executed. Datagrams
    /// stay queued and cannot be recalled, and a network may lose the cancellation or deliver the
    /// request late: there only the end of the lease is final.
    pub fn close<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let told = &mut (&self.options, &mut self.counters);
        for channel in &mut self.channels {
            channel.close(port, nanos(now), (told.0, told.1), sink);
        }
    }

    /// Ends every request like [`ClientSide::close`], without sending anything: for a forked
    /// process, whose port belongs to its parent and is still in use there.
    pub fn forget(&mut self, sink: &mut impl FnMut(u64, Outcome<'_>)) {
        for channel in &mut self.channels {
            channel.forget(sink);
        }
    }

    /// Number of slots in use: requests without outcome, and abandoned ones not reclaimed yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.channels.iter().map(Channel::in_flight).sum()
    }

    /// Whether a new lease is due: a slot was lost because its worker does not answer, or a queue
    /// pair has failed.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        // Neither count falls again: what is lost stays so for the whole lease.
        self.counters.slots_lost + self.counters.posts_failed > 0
    }

    /// Number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.channels.len()
    }

    /// The window at each worker.
    #[must_use]
    pub fn window(&self) -> Window {
        self.options.window
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &ClientCounters {
        &self.counters
    }
}

fn check(options: &ClientOptions, workers: usize) -> Result<(), ClientSetupError> {
    if workers == 0 || workers > WORKERS_MAX {
        return Err(ClientSetupError::Workers(workers));
    }
    // Without a spare RECV no retry could be written, and an overflowing request is two WRITEs that
    // go in one postlist.
    let least = [
        ("recv_slack", options.recv_slack, 1),
        ("reply_bytes_max", options.reply_bytes_max, REPLY_BYTES_MIN),
        ("request_bytes_max", options.request_bytes_max, LINE_BYTES),
        ("postlist_max", options.postlist_max, 2),
    ];
    match least.into_iter().find(|(_, value, least)| value < least) {
        Some((what, value, least)) => Err(ClientSetupError::Option { what, value, least }),
        None => Ok(()),
    }
}

fn nanos(time: Duration) -> u64 {
    // Saturates, so that an option of `Duration::MAX` means never.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Answer<'_> {
    /// The item's client flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.head.flags()
    }

    /// Whether this reader is to recache the item.
    #[must_use]
    pub fn won(&self) -> bool {
        self.head.won()
    }

    /// Whether the item is stale.
    #[must_use]
    pub fn stale(&self) -> bool {
        self.head.stale()
    }

    /// What it tells of the server's secondary store.
    #[inline]
    #[must_use]
    pub fn marks(&self) -> Marks {
        self.head.marks()
    }

    /// Whether another reader is to recache the item.
    #[must_use]
    pub fn win_sent(&self) -> bool {
        self.head.win_sent()
    }
}

impl fmt::Debug for ClientSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSide")
            .field("workers", &self.workers())
            .field("in_flight", &self.in_flight())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
