//! The worker side of HERD: finds requests in its clients' lines, executes them in batches and
//! replies. A new request is executed at most once; everything dropped is counted.

mod batch;
mod chunk;
mod client_table;
mod gather;
mod job;
mod options;
mod recv_queue;
mod replies;
mod reply_qp;
mod ud_queue;

pub use chunk::Chunk;
pub use options::{REPLY_QPS_MAX, ServerOptions};
pub use recv_queue::{LineWatch, UdQueue, WriteNotify};

use std::{fmt, time::Duration};

use arrayvec::ArrayVec;
use herdwick_fabric::{Completion, Port, PostError, Status};
use herdwick_mem::Span;
use herdwick_request::{Clock, Execute};

use crate::{
    ServerCounters,
    wire::{WORKERS_MAX, Window},
};
use batch::Batch;
use chunk::Attached;
pub use client_table::ClientId;
use client_table::ClientTable;
pub use job::BATCH;
use recv_queue::OpenUdQueue;
use replies::Replies;
pub use replies::{RECV_BYTES_MIN, REPLY_BYTES_MIN};
use reply_qp::ReplyQp;

/// Most passes of a round whose replies are sent together: they cover a full window of one client,
/// or what one poll of many clients finds.
const PASSES: usize = Window::MAX / BATCH;

/// The server side of HERD at one worker.
///
/// - mutators, at set-up and tear-down: [`ServerSide::attach`], [`ServerSide::detach`]
/// - the poll loop calls [`ServerSide::round`], or [`ServerSide::pass`] if it drives the port, and before it sleeps, with the port armed,
///   [`ServerSide::has_news`]
/// - getters: [`ServerSide::clients`], [`ServerSide::counters`]
pub struct ServerSide {
    worker: u8,
    options: ServerOptions,
    clients: ClientTable,
    batch: Batch,
    /// Datagrams taken in one poll.
    recv_memory: Box<[Completion; BATCH]>,
    reply_qps: ArrayVec<ReplyQp, REPLY_QPS_MAX>,
    counters: ServerCounters,
}

/// Why options are refused: they contradict each other or the layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerOptionsError {
    /// The worker's number is not below the number of workers, or there are too many workers.
    #[error("worker {worker} of {workers}: there are at most {WORKERS_MAX}, counted from 0")]
    Worker {
        /// The worker's number.
        worker: usize,
        /// Number of workers.
        workers: usize,
    },
    /// No queue pair for the replies, or too many.
    #[error("{0} queue pairs for replies: there are 1 to {REPLY_QPS_MAX}")]
    ReplyQps(usize),
    /// The memory for large replies is missing or too small.
    #[error("{len} bytes for large replies, {needed} needed")]
    Memory {
        /// Bytes of the memory.
        len: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// Too small for any reply, or for any post.
    #[error(
        "replies of {reply_bytes_max} bytes, {inline_bytes_max} of them inline (at least \
         {REPLY_BYTES_MIN} of either), {postlist_max} to a post (at least 1)"
    )]
    Replies {
        /// The limit that was asked for.
        reply_bytes_max: usize,
        /// The provider's limit.
        inline_bytes_max: usize,
        /// The limit that was asked for.
        postlist_max: usize,
    },
}

/// Why a client cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// As many clients are attached as are allowed.
    #[error("{0} clients are attached, the most there may be")]
    Full(usize),
    /// The memory is smaller than the window needs.
    #[error("{what}: {len} bytes, the window needs {needed}")]
    TooSmall {
        /// The memory's name.
        what: &'static str,
        /// Its bytes.
        len: usize,
        /// The bytes needed.
        needed: usize,
    },
    /// The queue pair for its replies does not exist.
    #[error("replies by queue pair {0}, counted from 0, of fewer")]
    ReplyQp(usize),
    /// The port refused the RECVs of its receive queue, or their memory is missing.
    #[error("posting a client's RECVs: {0}")]
    Recvs(#[from] PostError),
}

impl ServerOptions {
    /// Bytes of memory that replies of at most `reply_bytes_max` bytes need.
    #[must_use]
    pub const fn reply_memory(reply_bytes_max: usize) -> usize {
        Replies::bytes(reply_bytes_max)
    }
}

impl ServerSide {
    /// Makes a worker without clients.
    ///
    /// # Errors
    /// [`ServerOptionsError`].
    pub fn new<P: Port>(port: &P, options: ServerOptions) -> Result<Self, ServerOptionsError> {
        let (worker, workers) = (options.worker, options.workers);
        // An immediate has one byte for the worker.
        let number = u8::try_from(worker).ok().filter(|_| worker < workers);
        let worker = number
            .filter(|_| workers <= WORKERS_MAX)
            .ok_or(ServerOptionsError::Worker { worker, workers })?;
        let least = options.reply_bytes_max.min(options.inline_bytes_max);
        if least < REPLY_BYTES_MIN || options.postlist_max == 0 {
            return Err(ServerOptionsError::Replies {
                reply_bytes_max: options.reply_bytes_max,
                inline_bytes_max: options.inline_bytes_max,
                postlist_max: options.postlist_max,
            });
        }
        let reply_qps = options.replies.iter().map(|qp| ReplyQp::new(*qp));
        // An `ArrayVec` panics beyond its capacity; that some were left out shows in the comparison
        // of lengths below.
        let reply_qps = reply_qps.take(REPLY_QPS_MAX).collect::<ArrayVec<_, _>>();
        if reply_qps.is_empty() || reply_qps.len() < options.replies.len() {
            return Err(ServerOptionsError::ReplyQps(options.replies.len()));
        }
        let memory = port.region(options.reply_region).cloned();
        let len = memory.as_ref().map_or(0, Span::len);
        let needed = ServerOptions::reply_memory(options.reply_bytes_max);
        let memory = memory
            .filter(|memory| memory.len() >= needed)
            .ok_or(ServerOptionsError::Memory { len, needed })?;
        let replies = Replies::new(memory, &options);
        Ok(Self {
            worker,
            clients: ClientTable::new(options.clients_max),
            batch: Batch::new(replies),
            recv_memory: Box::new([Completion::BLANK; BATCH]),
            reply_qps,
            counters: ServerCounters::default(),
            options,
        })
    }

    /// Attaches a client. Its lines must be zeroed, or its epoch must be a new one: a line left by
    /// an earlier lease of the same epoch would be executed.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach<P: Port>(
        &mut self,
        port: &mut P,
        mut client: Chunk,
    ) -> Result<ClientId, AttachError> {
        let areas = [
            ("request lines", &client.lines, client.window.line_bytes()),
            (
                "overflow areas",
                &client.overflow,
                client.window.overflow_bytes(),
            ),
        ];
        for (what, span, needed) in areas {
            let len = span.len();
            if len < needed {
                return Err(AttachError::TooSmall { what, len, needed });
            }
        }
        if usize::from(client.reply_qp) >= self.reply_qps.len() {
            return Err(AttachError::ReplyQp(client.reply_qp.into()));
        }
        // A number in a claim is never refused: less than the least reply counts as that
        // (docs/wire.md, The lease).
        client.reply_bytes_max = client
            .reply_bytes_max
            .max(RECV_BYTES_MIN)
            .min(self.options.reply_bytes_max);
        let (ud_queue, notify) = (client.ud_queue.clone(), client.notify.clone());
        let client = Attached::new(client);
        // Lines that are checked at their announcement need no report.
        let watch = client.chunk.watch.filter(|_| client.is_polled());
        // Inserted before its RECVs are posted, since they carry its index; removed again if they
        // are refused.
        let id = self.clients.insert(client);
        let id = id.ok_or(AttachError::Full(self.options.clients_max))?;
        let opened = match (ud_queue, notify) {
            (Some(ud_queue), _) => self.open_ud_queue(port, id, ud_queue),
            (None, Some(notify)) => notify.open(port, id.index),
            (None, None) => Ok(()),
        };
        if opened.is_err() {
            self.clients.remove(id);
        }
        opened?;
        if let Some(watch) = watch
            && port.watch_writes(watch.qp, watch.range, id.token())
        {
            self.clients.watch(id);
        }
        Ok(id)
    }

    fn open_ud_queue<P: Port>(
        &mut self,
        port: &mut P,
        id: ClientId,
        ud_queue: UdQueue,
    ) -> Result<(), PostError> {
        let header = self.options.request_header_bytes;
        let open = OpenUdQueue::open(port, ud_queue, header, id.index)?;
        if let Some(client) = self.clients.client(id.index) {
            client.ud_queue = Some(open);
        }
        Ok(())
    }

    /// Detaches a client and returns its memory; `None` if it was not attached. After the return,
    /// nothing reads that memory and nothing is sent to that address.
    pub fn detach(&mut self, client: ClientId) -> Option<Chunk> {
        self.clients.remove(client).map(|attached| attached.chunk)
    }

    /// Runs one round of the poll loop: takes what has arrived, executes it, and has the port send
    /// the replies. Returns the number of requests.
    #[inline]
    pub fn round<P: Port, E: Execute>(
        &mut self,
        port: &mut P,
        (now, clock): (Duration, Clock),
        exec: &mut E,
    ) -> usize {
        if self.clients() == 0 {
            return 0;
        }
        port.progress(now);
        if !self.options.gso {
            return self.pass(port, clock, exec);
        }
        // Datagrams wait in the port until the flush: several passes fill larger GSO batches.
        let mut served = 0;
        for _ in 0..PASSES {
            let here = self.pass(port, clock, exec);
            // A pass that is not full has found all that there was.
            served += here;
            if here < BATCH {
                break;
            }
        }
        port.flush(now);
        served
    }

    /// One pass over the clients: takes up to [`BATCH`] requests, executes them, and posts their
    /// replies, in one postlist for each queue pair that they leave by, where they fit one. Returns
    /// how many requests there were, cancellations among them.
    pub fn pass<P: Port, E: Execute>(&mut self, port: &mut P, clock: Clock, exec: &mut E) -> usize {
        let before = self.counters.requests;
        self.gather(port);
        let taken = self.batch.len();
        if taken == 0 {
            return 0;
        }
        // A pass that found cancellations alone executes nothing, and is no batch.
        self.counters.batches += u64::from(self.counters.requests > before);
        let place = (self.worker, self.options.workers);
        self.batch
            .execute(clock, exec, (&mut self.clients, place), &mut self.counters);
        self.send(port);
        self.batch.clear();
        taken
    }

    /// Whether any slot of any polled client holds a control word that no pass has checked. Reads
    /// one line a slot: for the last check before sleeping. Datagrams and announcements wait in
    /// their completion queue instead.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.clients.iter().any(Attached::has_news)
    }

    /// Number of attached clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    fn send<P: Port>(&mut self, port: &mut P) {
        for (number, reply_qp) in (0..).zip(&mut self.reply_qps) {
            let mut sends = ArrayVec::<_, BATCH>::new();
            self.batch.sends(number, &mut sends);
            for postlist in sends.chunks_mut(self.options.postlist_max) {
                let (count, replies) = (postlist.len(), &self.batch.replies);
                // Cells of large replies become free by a completion alone: while one is held, the
                // last SEND asks for one.
                let signaled = reply_qp.signals.due(count) || replies.holds_cells();
                if let (true, Some(last)) = (signaled, postlist.last_mut()) {
                    last.signaled = true;
                }
                match port.post_send(reply_qp.qp, postlist) {
                    Ok(()) => reply_qp.posted(count, signaled, replies.filled()),
                    // The send queue is full: retries fetch these replies.
                    Err(PostError::Full) => self.counters.replies_refused += count as u64,
                    // A reply that cannot be sent affects only its own client: post the others one
                    // by one.
                    Err(_) => {
                        let held = (replies.holds_cells(), replies.filled());
                        let refused = reply_qp.post_each(port, postlist, held);
                        self.counters.replies_refused += refused;
                    }
                }
            }
        }
        if self
            .reply_qps
            .iter()
            .any(|reply_qp| reply_qp.signals.awaited())
        {
            self.take_completions(port);
        }
    }

    /// Frees cells whose replies were sent and counts failed SENDs.
    fn take_completions<P: Port>(&mut self, port: &mut P) {
        let mut done = [Completion::BLANK; 4];
        loop {
            let found = port.poll(self.options.reply_cq, &mut done);
            for done in done.iter().take(found) {
                let mut reply_qps = self.reply_qps.iter_mut();
                let Some(reply_qp) = reply_qps.find(|reply_qp| reply_qp.qp == done.qp) else {
                    continue;
                };
                reply_qp.completed(done.wr_id);
                // A work request that fails completes although it was not signaled, so it is none
                // of those that are awaited.
                if done.status == Status::Success {
                    reply_qp.signals.arrived();
                } else {
                    self.counters.replies_failed += 1;
                }
            }
            if found < done.len() {
                break;
            }
        }
        let replies = &mut self.batch.replies;
        // A cell is free only when the slowest queue pair has sent past it: all share one ring.
        let sent = self.reply_qps.iter().filter_map(ReplyQp::sent).min();
        replies.sent(sent.unwrap_or_else(|| replies.filled()));
    }
}

impl fmt::Debug for ServerSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSide")
            .field("worker", &self.worker)
            .field("clients", &self.clients())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
