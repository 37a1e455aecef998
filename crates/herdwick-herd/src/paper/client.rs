//! The client of section 4.2: posts a RECV, then writes a request into the next slot of a server process.
//! The paper has no retransmission: a client that misses an answer ends, and has to connect again.

use std::time::Duration;

use herdwick_fabric::{
    Completion, CqId, Local, Opcode, Payload, Port, PostError, QpId, RecvWr, RegionId, Remote,
    SendOp, SendWr, Status,
};
use herdwick_mem::Span;

use super::slot::{self, KEYHASH_BYTES, Keyhash, PUT_BYTES_MAX, SLOT_BYTES, VALUE_BYTES_MAX};
use crate::signals::Signals;

/// Completions that one poll takes.
const POLL: usize = 32;

/// Sizes and times of a [`PaperClient`].
#[derive(Clone, Debug)]
pub(super) struct PaperClientOptions {
    pub(super) window: usize,
    pub(super) request_cq: CqId,
    pub(super) reply_cq: CqId,
    pub(super) inline_bytes_max: usize,
    /// Bytes in front of the payload in the buffer of a datagram.
    pub(super) header_bytes: usize,
    pub(super) deadline: Duration,
}

/// The objects of a client at one server process.
#[derive(Clone, Debug)]
pub(super) struct PaperChannel {
    /// The UC queue pair that writes to `slots`.
    pub(super) requests: QpId,
    pub(super) slots: Remote,
    /// A slot for each request that is not inlined.
    pub(super) staging: (RegionId, Span),
    /// The UD queue pair of replies, and a buffer for each.
    pub(super) replies: QpId,
    pub(super) buffers: (RegionId, Span),
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaperAnswer<'a> {
    /// The value of a GET.
    Value(&'a [u8]),
    /// The PUT was stored.
    Stored,
    /// No value has the key.
    Missing,
    /// The PUT was not stored.
    NotStored,
    /// A message was lost, or the server is gone: whether a PUT was executed is unknown.
    Lost,
}

/// Why a request did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaperRefused {
    /// The next slot is not free yet.
    #[error("the window is full")]
    Full,
    /// A value is 1 to [`VALUE_BYTES_MAX`] bytes.
    #[error("a value is 1 to {VALUE_BYTES_MAX} bytes, not {0}")]
    Length(usize),
    /// There is no such server process.
    #[error("there is no server process {0}")]
    Server(usize),
    /// The client has ended.
    #[error(transparent)]
    Ended(#[from] PaperLoss),
}

/// Why a client has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaperLoss {
    /// A request was not answered in time: a message was lost, or the server is gone.
    #[error(
        "no answer within the deadline: a message was lost, which HERD's request format of the paper does \
         not repair, or the server is gone; connect again"
    )]
    Deadline,
    /// A queue pair failed.
    #[error("a queue pair failed ({0:?}); connect again")]
    Failed(Status),
    /// The port refused a work request.
    #[error("a request could not be posted: {0}; connect again")]
    Post(#[from] PostError),
}

/// A request that is not answered.
#[derive(Clone, Copy, Debug)]
struct Asked {
    token: u64,
    number: u32,
    is_put: bool,
    since: Duration,
}

struct SlotWindow {
    /// The server process, from 0 on.
    server: usize,
    to: PaperChannel,
    /// By slot.
    asked: Vec<Option<Asked>>,
    /// The number of the next request, and of the oldest one that is not answered.
    next: u32,
    oldest: u32,
    /// Buffers without a RECV.
    free: Vec<u32>,
    signals: Signals,
}

/// What a [`PaperClient`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaperClientCounters {
    /// Requests written.
    pub requests: u64,
    /// Requests answered.
    pub answers: u64,
    /// Replies that answer no request in flight.
    pub unasked: u64,
}

/// The machine of a client.
pub struct PaperClient {
    options: PaperClientOptions,
    windows: Vec<SlotWindow>,
    completions: Box<[Completion; POLL]>,
    put: Box<[u8; PUT_BYTES_MAX]>,
    value: Box<[u8; VALUE_BYTES_MAX]>,
    ended: Option<PaperLoss>,
    counters: PaperClientCounters,
}

impl PaperClient {
    pub(super) fn new(options: PaperClientOptions, channels: Vec<PaperChannel>) -> Self {
        let window = |(server, to)| SlotWindow {
            server,
            to,
            asked: vec![None; options.window],
            next: 0,
            oldest: 0,
            free: (0..options.window as u32).collect(),
            signals: Signals::default(),
        };
        Self {
            windows: channels.into_iter().enumerate().map(window).collect(),
            completions: Box::new([Completion::BLANK; POLL]),
            put: Box::new([0; PUT_BYTES_MAX]),
            value: Box::new([0; VALUE_BYTES_MAX]),
            ended: None,
            counters: PaperClientCounters::default(),
            options,
        }
    }

    /// Writes a request to server process `server`: a GET, or a PUT of `value`. Its answer comes to
    /// [`PaperClient::poll`] with `token`.
    ///
    /// # Errors
    /// [`PaperRefused`].
    #[inline]
    pub fn submit<P: Port>(
        &mut self,
        port: &mut P,
        (server, keyhash): (usize, Keyhash),
        value: Option<&[u8]>,
        (token, now): (u64, Duration),
    ) -> Result<(), PaperRefused> {
        let Self {
            options,
            windows,
            put,
            ended,
            ..
        } = self;
        if let Some(loss) = *ended {
            return Err(loss.into());
        }
        if let Some(value) = value
            && !(1..=VALUE_BYTES_MAX).contains(&value.len())
        {
            return Err(PaperRefused::Length(value.len()));
        }
        let window = windows
            .get_mut(server)
            .ok_or(PaperRefused::Server(server))?;
        let slot = window.next as usize % options.window;
        if window.asked[slot].is_some() {
            return Err(PaperRefused::Full);
        }
        let Some(buffer) = window.free.pop() else {
            return Err(PaperRefused::Full);
        };
        let asked = Asked {
            token,
            number: window.next,
            is_put: value.is_some(),
            since: now,
        };
        // The RECV first: a reply that finds none is dropped, and cannot be asked for again.
        let posted = window
            .post_recv(port, options, buffer)
            .and_then(|()| window.write(port, options, (slot, keyhash), (value, put)));
        if let Err(error) = posted {
            *ended = Some(error.into());
            return Err(PaperLoss::Post(error).into());
        }
        window.asked[slot] = Some(asked);
        // Wraps as the immediate does. Windows are powers of two, so slots go on taking turns.
        window.next = window.next.wrapping_add(1);
        self.counters.requests += 1;
        Ok(())
    }

    /// Takes the answers that have arrived; `sink` gets each with its token. If an answer is missing for too
    /// long, every request ends as [`PaperAnswer::Lost`]. Returns the number of requests that ended.
    #[inline]
    pub fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, PaperAnswer<'_>),
    ) -> usize {
        if self.ended.is_some() {
            return self.end(sink);
        }
        let mut count = 0;
        loop {
            let here = port.poll(self.options.reply_cq, &mut self.completions[..]);
            for index in 0..here {
                let completion = self.completions[index];
                count += usize::from(self.take(port, &completion, sink));
            }
            if here < POLL {
                break;
            }
        }
        self.reap(port);
        // What has just come may be what was waited for: the next poll looks again.
        if count == 0 && self.is_overdue(now) {
            self.ended.get_or_insert(PaperLoss::Deadline);
        }
        match self.ended {
            Some(_) => count + self.end(sink),
            None => count,
        }
    }

    /// Returns when [`PaperClient::poll`] has to be called at the latest; `None`: nothing is in flight.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let oldest = self.windows.iter().filter_map(SlotWindow::oldest);
        let since = oldest.map(|asked| asked.since).min()?;
        Some(since.saturating_add(self.options.deadline))
    }

    /// Returns why the client has ended; `None`: it has not.
    #[must_use]
    pub fn ended(&self) -> Option<PaperLoss> {
        self.ended
    }

    /// Returns what was counted.
    #[must_use]
    pub fn counters(&self) -> &PaperClientCounters {
        &self.counters
    }

    fn is_overdue(&self, now: Duration) -> bool {
        let late = |asked: Asked| now.saturating_sub(asked.since) >= self.options.deadline;
        self.windows.iter().filter_map(SlotWindow::oldest).any(late)
    }

    /// Takes a reply; returns whether it answers a request.
    #[inline]
    fn take<P: Port>(
        &mut self,
        port: &mut P,
        completion: &Completion,
        sink: &mut impl FnMut(u64, PaperAnswer<'_>),
    ) -> bool {
        let Self {
            options,
            windows,
            value,
            counters,
            ended,
            ..
        } = self;
        if completion.status != Status::Success {
            ended.get_or_insert(PaperLoss::Failed(completion.status));
            return false;
        }
        let (server, buffer) = named(completion.wr_id);
        let window = windows
            .get_mut(server)
            .filter(|_| completion.opcode == Opcode::Recv);
        let Some(window) = window else { return false };
        // The number of no request in flight: a message without an immediate answers none.
        let number = completion.imm.unwrap_or(window.next);
        let place = &mut window.asked[number as usize % options.window];
        let asked = place.take_if(|asked| asked.number == number);
        let Some(asked) = asked else {
            counters.unasked += 1;
            // The RECV was for the answer that is still to come.
            let posted = window.post_recv(port, options, buffer);
            if let Err(error) = posted {
                ended.get_or_insert(error.into());
            }
            return false;
        };
        window.free.push(buffer);
        window.advance();
        counters.answers += 1;
        let len = (completion.byte_len as usize).min(VALUE_BYTES_MAX);
        match &completion.inline {
            Some(inline) => inline.copy_to(&mut value[..inline.len()]),
            None if len > 0 => {
                let at = buffer as usize * buffer_bytes(options) + options.header_bytes;
                window.to.buffers.1.read_bytes(at, &mut value[..len]);
            }
            None => (),
        }
        sink(
            asked.token,
            match (asked.is_put, len) {
                (false, 0) => PaperAnswer::Missing,
                (false, len) => PaperAnswer::Value(&value[..len]),
                (true, 0) => PaperAnswer::Stored,
                (true, _) => PaperAnswer::NotStored,
            },
        );
        true
    }

    /// Takes the completions of requests, one of a run.
    #[inline]
    fn reap<P: Port>(&mut self, port: &mut P) {
        if !self.windows.iter().any(|window| window.signals.awaited()) {
            return;
        }
        let mut done = [Completion::BLANK; POLL];
        let count = port.poll(self.options.request_cq, &mut done);
        for completion in &done[..count] {
            if completion.status != Status::Success {
                self.ended
                    .get_or_insert(PaperLoss::Failed(completion.status));
            } else if let Some(window) = self.windows.get_mut(completion.wr_id as usize) {
                window.signals.arrived();
            }
        }
    }

    /// Ends every request in flight; returns how many.
    #[cold]
    fn end(&mut self, sink: &mut impl FnMut(u64, PaperAnswer<'_>)) -> usize {
        let mut count = 0;
        for window in &mut self.windows {
            for asked in window.asked.iter_mut().filter_map(Option::take) {
                count += 1;
                sink(asked.token, PaperAnswer::Lost);
            }
        }
        count
    }
}

/// Bytes of a buffer for a reply.
pub(super) fn buffer_bytes(options: &PaperClientOptions) -> usize {
    (options.header_bytes + VALUE_BYTES_MAX).next_multiple_of(8)
}

/// The name of a RECV: server process and buffer.
fn recv_id(server: usize, buffer: u32) -> u64 {
    (server as u64) << 32 | u64::from(buffer)
}

fn named(recv_id: u64) -> (usize, u32) {
    ((recv_id >> 32) as usize, recv_id as u32)
}

impl SlotWindow {
    /// Returns the oldest request in flight.
    fn oldest(&self) -> Option<Asked> {
        self.asked[self.oldest as usize % self.asked.len()]
    }

    /// Moves on to the oldest request in flight: answers may overtake each other.
    #[inline]
    fn advance(&mut self) {
        while self.oldest != self.next && self.oldest().is_none() {
            self.oldest = self.oldest.wrapping_add(1);
        }
    }

    #[inline]
    fn post_recv<P: Port>(
        &mut self,
        port: &mut P,
        options: &PaperClientOptions,
        buffer: u32,
    ) -> Result<(), PostError> {
        let len = buffer_bytes(options);
        let recv = RecvWr {
            wr_id: recv_id(self.server, buffer),
            into: Local {
                region: self.to.buffers.0,
                offset: buffer as usize * len,
                len: options.header_bytes + VALUE_BYTES_MAX,
            },
        };
        port.post_recv(self.to.replies, &[recv])
    }

    /// Writes a request to the right end of its slot.
    #[inline]
    fn write<P: Port>(
        &mut self,
        port: &mut P,
        options: &PaperClientOptions,
        (slot, keyhash): (usize, Keyhash),
        (value, out): (Option<&[u8]>, &mut [u8; PUT_BYTES_MAX]),
    ) -> Result<(), PostError> {
        let (payload, len) = match value {
            None => (Payload::Words(keyhash.words()), KEYHASH_BYTES),
            Some(value) => {
                let put = slot::encode_put(out, keyhash, value);
                (self.payload(options, slot, put), put.len())
            }
        };
        let signaled = self.signals.due(1);
        let wr = SendWr {
            wr_id: self.server as u64,
            op: SendOp::Write {
                payload,
                to: self.to.slots.offset(slot::start(slot, len) as u64),
                imm: None,
            },
            signaled,
            solicited: false,
            fence: false,
        };
        port.post_send(self.to.requests, &[wr])?;
        self.signals.posted(1, signaled);
        Ok(())
    }

    /// Returns the payload of a PUT: inlined, or in the staging memory if it is too long for that.
    #[inline]
    fn payload<'a>(&self, options: &PaperClientOptions, slot: usize, put: &'a [u8]) -> Payload<'a> {
        if put.len() <= options.inline_bytes_max {
            return Payload::Inline(put);
        }
        let (region, staging) = &self.to.staging;
        // A slot is written again only after its answer, so the device has read the staged bytes by
        // then.
        staging.write_bytes(slot * SLOT_BYTES, put);
        Payload::Region(Local {
            region: *region,
            offset: slot * SLOT_BYTES,
            len: put.len(),
        })
    }
}
