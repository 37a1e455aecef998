//! The client's half: writes requests into its slots at the workers, matches replies to them.

mod lane;
mod order;
mod post;
mod probe;
mod replies;
mod timers;

use std::{fmt, time::Duration};

use herdwick_fabric::{AddressHandle, Completion, CqId, Port, PostError, QpId, RegionId, Remote};
use herdwick_mica::Request;

use crate::{
    Announce, ClientCounters,
    server::REPLY_BYTES_MIN,
    wire::{Epoch, LINE_BYTES, ReplyHead, ReplyStatus, Unencodable, WORKERS_MAX, Window},
};
use lane::Lane;

/// Completions taken in one poll, fewest and most: half a window's in between, so that while one
/// half is looked at the other is on its way, and neither end waits for the other's.
const POLL_MIN: usize = 32;
const POLL_MAX: usize = 64;

/// What a client side is made with.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Slots at each worker: requests outstanding there.
    pub window: Window,
    /// RECVs posted at each lane beyond its window: the retries that may be on their way at once.
    pub recv_slack: usize,
    /// Bytes of each RECV's buffer, as the hello told the server: its longest reply.
    pub reply_bytes_max: usize,
    /// Bytes in front of a reply in a RECV's buffer: the provider's `datagram_header_bytes`.
    pub reply_header_bytes: usize,
    /// Most bytes that a work request carries itself: the provider's `inline_bytes_max`.
    pub inline_bytes_max: usize,
    /// Most bytes of a request, its line included: what one datagram holds, where they are sent.
    pub request_bytes_max: usize,
    /// Where the lanes' WRITEs and SENDs complete and nothing else does.
    pub request_cq: CqId,
    /// Where the lanes' RECVs complete and nothing else does.
    pub reply_cq: CqId,
    /// Most work requests in one post: the provider's `postlist_max`, at least 2.
    pub postlist_max: usize,
    /// A line is written again after this long without a reply, then after twice as long, and so
    /// on.
    pub retry_after: Duration,
    /// The longest such pause.
    pub retry_after_max: Duration,
    /// A request is given up this long after its line was first written, or after it was first
    /// found waiting for another of its key.
    pub deadline: Duration,
}

/// The way to one worker.
#[derive(Clone, Debug)]
pub struct WorkerLane {
    /// The lease's epoch at that worker.
    pub epoch: Epoch,
    /// The queue pair that lines leave by, with a send queue of at least
    /// [`SEND_DEPTH_MIN`](crate::SEND_DEPTH_MIN).
    pub requests: QpId,
    /// The UD queue pair that replies arrive at: window + slack RECVs fit it.
    pub replies: QpId,
    /// Where they go.
    pub to: Destination,
    /// Which of them carry an immediate, if they are written.
    pub announce: Announce,
    /// Local memory for replies too large for a completion: (window + slack) x
    /// [`ClientOptions::reply_buffer_bytes`].
    pub receive: RegionId,
    /// Local memory from which overflowing bodies are sent: [`Window::stage_bytes`].
    pub stage: RegionId,
}

/// Where the requests of a lane go.
#[derive(Clone, Copy, Debug)]
pub enum Destination {
    /// Into the slots' memory, over a connected queue pair.
    Slots {
        /// Where the lines are.
        lines: Remote,
        /// Where the overflow areas are.
        overflow: Remote,
    },
    /// To the worker's queue pair for this client, as datagrams: the line, then what overflows.
    Mailbox(AddressHandle),
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
///   [`ClientSide::close`]
/// - the poll loop calls [`ClientSide::poll`], by [`ClientSide::poll_timeout`] at the latest
/// - getters: [`ClientSide::in_flight`], [`ClientSide::is_broken`], [`ClientSide::counters`]
///
/// `now` is time since any fixed start; it never runs backwards.
pub struct ClientSide {
    lanes: Vec<Lane>,
    options: ClientOptions,
    completions: Box<[Completion]>,
    /// A large reply, copied out of its RECV's buffer.
    large: Box<[u64]>,
    /// When the slots are next looked through, in nanoseconds.
    next_scan: u64,
    counters: ClientCounters,
}

/// A request was not taken; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Every slot at the key's worker is taken, or as many lines wait to be posted as may: poll first.
    #[error("every slot at the key's worker is taken")]
    Full,
    /// It cannot travel on a line; another way in may carry it.
    #[error(transparent)]
    Unencodable(#[from] Unencodable),
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// With a reply.
    Answered(Answer<'a>),
    /// A read got no reply by its deadline, or a request was never written: nothing was changed.
    Timeout,
    /// A mutation got no reply by its deadline: it took effect once or not at all, and will not
    /// any more once its slot is reclaimed. Never replay it by another way in.
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
    /// Its length, also when [`ReplyStatus::ReplyTooLarge`] keeps it back.
    pub value_len: u64,
}

/// A client side cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientSetupError {
    /// There must be from one to [`WORKERS_MAX`] lanes, one for each worker.
    #[error("{0} workers: there are 1 to {WORKERS_MAX}")]
    Workers(usize),
    /// An option is too small to work with.
    #[error("{what}: {value}, at least {least}")]
    Option {
        /// Which.
        what: &'static str,
        /// What it was.
        value: usize,
        /// What it must be.
        least: usize,
    },
    /// A lane's local memory is missing or too small.
    #[error("worker {worker}, {what}: {len} bytes, {needed} needed")]
    Memory {
        /// Which lane.
        worker: usize,
        /// Which memory.
        what: &'static str,
        /// What it has.
        len: usize,
        /// What it needs.
        needed: usize,
    },
    /// The port does not take the RECVs.
    #[error("posting RECVs: {0}")]
    Post(#[from] PostError),
}

impl ClientSide {
    /// A client of `lanes.len()` workers, in their order, with all RECVs posted.
    ///
    /// # Errors
    /// [`ClientSetupError`].
    pub fn new<P: Port>(
        port: &mut P,
        options: ClientOptions,
        lanes: Vec<WorkerLane>,
    ) -> Result<Self, ClientSetupError> {
        check(&options, lanes.len())?;
        let poll = (options.window.slots() / 2).clamp(POLL_MIN, POLL_MAX);
        let lanes = lanes
            .into_iter()
            .enumerate()
            .map(|(worker, lane)| Lane::new(port, &options, worker, lane))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            lanes,
            completions: vec![Completion::BLANK; poll].into(),
            large: vec![0; options.reply_bytes_max.div_ceil(8)].into(),
            next_scan: 0,
            counters: ClientCounters::default(),
            options,
        })
    }

    /// Puts `request` into a free slot at its key's worker; [`ClientSide::flush`] sends it. `token`
    /// comes back with the outcome.
    ///
    /// Requests for one key take effect in the order of their submission, whatever the fabric loses:
    /// where one of two is no plain read, the later is not sent before the earlier is out of its
    /// slot. Requests for different keys may overtake each other.
    ///
    /// # Errors
    /// [`Refused`]: nothing was done.
    #[inline]
    pub fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let worker = request.hash.partition(self.lanes.len());
        self.lanes[worker].submit(request, token)?;
        self.counters.requests += 1;
        Ok(())
    }

    /// Writes, or sends, the lines of everything submitted: one postlist a worker, where they fit
    /// one. What the port does not take now waits for the next call.
    #[inline]
    pub fn flush<P: Port>(&mut self, port: &mut P, now: Duration) {
        let now = nanos(now);
        for lane in &mut self.lanes {
            if lane.has_pending() {
                lane.flush(port, now, &self.options, &mut self.counters);
            }
        }
    }

    /// Takes replies and hands each outcome to `sink`, with the request's token; then looks after
    /// retries and deadlines, and sends what is due. Returns how many outcomes there were.
    #[inline]
    pub fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, Outcome<'_>),
    ) -> usize {
        let mut outcomes = self.take_replies(port, now, sink);
        if nanos(now) >= self.next_scan {
            outcomes += self.scan(nanos(now), sink);
            for lane in &mut self.lanes {
                self.counters.posts_failed += u64::from(lane.is_deaf(port));
            }
            self.flush(port, now);
        }
        if self.lanes.iter().any(Lane::awaits_completion) && self.take_completions(port) {
            // What found a send queue full goes on.
            self.flush(port, now);
        }
        outcomes
    }

    /// When to call [`ClientSide::poll`] at the latest; `None` while nothing is outstanding.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        (self.in_flight() > 0).then(|| Duration::from_nanos(self.next_scan))
    }

    /// Ends every request, and takes no more: for when the lease is over, or is to be.
    ///
    /// What is under way is canceled first. Where requests are written into shared memory that
    /// settles it: what the worker has not found by the return it does not execute any more.
    /// Datagrams wait where nothing takes them back, and a network may lose the cancellation or
    /// deliver the request late: there it is the end of the lease that settles it.
    pub fn close<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let told = &mut (&self.options, &mut self.counters);
        for lane in &mut self.lanes {
            lane.close(port, nanos(now), (told.0, told.1), sink);
        }
    }

    /// As [`ClientSide::close`], without another word to the workers: for a process whose port is
    /// that of another one, which goes on using it.
    pub fn forget(&mut self, sink: &mut impl FnMut(u64, Outcome<'_>)) {
        for lane in &mut self.lanes {
            lane.forget(sink);
        }
    }

    /// Slots taken: requests without outcome, and abandoned ones that are not reclaimed yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.lanes.iter().map(Lane::in_flight).sum()
    }

    /// Whether a new lease is due: some slot was lost for good, for its worker does not answer, or
    /// a queue pair has failed.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.counters.slots_lost + self.counters.posts_failed > 0
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.lanes.len()
    }

    /// The window at each of them.
    #[must_use]
    pub fn window(&self) -> Window {
        self.options.window
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> &ClientCounters {
        &self.counters
    }
}

fn check(options: &ClientOptions, workers: usize) -> Result<(), ClientSetupError> {
    if workers == 0 || workers > WORKERS_MAX {
        return Err(ClientSetupError::Workers(workers));
    }
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
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Answer<'_> {
    /// The item's client flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.head.flags()
    }

    /// This reader is to recache the item.
    #[must_use]
    pub fn won(&self) -> bool {
        self.head.won()
    }

    /// The item is stale.
    #[must_use]
    pub fn stale(&self) -> bool {
        self.head.stale()
    }

    /// Another reader is to recache it.
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
