//! The issuer of verbs: keeps a window of them outstanding on each of its queue pairs.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use herdwick_check::Rng;
use herdwick_fabric::{
    AddressHandle, Completion, CqId, Local, Payload, Port, QpId, RegionId, Remote, SendOp, SendWr,
    Status,
};
use herdwick_mem::WORD;

use super::{
    arrivals::Arrivals,
    plan::{Point, Verb},
};
use crate::{
    counters::RunCounters,
    target::{DriveError, Load, Target},
};

/// Completions that one poll takes.
const POLL: usize = 64;
/// In a closed loop, polls without a completion between two readings of the clock.
const IDLE_PASSES: u32 = 32;
/// After so long without an arrival, on a transport that may lose messages, those outstanding count
/// as lost.
const LOST_AFTER_NS: u64 = 100_000_000;

/// A queue pair of an issuer, or its address of one target.
pub(super) struct Flow {
    qp: QpId,
    to: Option<AddressHandle>,
    base: Remote,
    region: RegionId,
    arrivals: Arc<Arrivals>,
    /// RECVs that the target keeps posted; 0: it has none.
    recvs: usize,
    posted: u64,
    /// Verbs whose completion is known.
    completed: u64,
    /// Verbs posted since the last signaled one.
    unsignaled: usize,
    /// For each signaled verb outstanding: when it started, and how many it completes.
    signals: VecDeque<(u64, u64)>,
    /// Messages that are known to have arrived, and those given up.
    arrived: u64,
    given_up: u64,
    /// When the last arrival was seen.
    heard_ns: u64,
}

impl Flow {
    pub(super) fn new(
        qp: QpId,
        to: Option<AddressHandle>,
        base: Remote,
        region: RegionId,
        arrivals: Arc<Arrivals>,
        recvs: usize,
    ) -> Self {
        Self {
            qp,
            to,
            base,
            region,
            arrivals,
            recvs,
            posted: 0,
            completed: 0,
            unsignaled: 0,
            signals: VecDeque::new(),
            arrived: 0,
            given_up: 0,
            heard_ns: 0,
        }
    }

    /// Returns the verbs that fit the window.
    fn room(&self, window: usize) -> usize {
        window - (self.posted - self.completed) as usize
    }

    /// Returns whether the target has RECVs for `count` more messages, each of which stands for
    /// `per_message` verbs; looks for arrivals only if they seem to be short.
    fn is_expected(&mut self, count: usize, (shape, now_ns): (&Shape, u64)) -> bool {
        if self.recvs == 0 {
            return true;
        }
        let room = self.recvs * shape.per_message;
        let outstanding =
            |flow: &Self| flow.posted.saturating_sub(flow.arrived + flow.given_up) as usize;
        if outstanding(self) + count <= room {
            return true;
        }
        let before = self.arrived;
        self.look(shape.per_message);
        // The wait begins with the first look.
        if self.arrived != before || self.heard_ns == 0 {
            self.heard_ns = now_ns;
        } else if shape.may_lose && now_ns > self.heard_ns + LOST_AFTER_NS {
            self.given_up = self.posted - self.arrived;
            self.heard_ns = now_ns;
        }
        outstanding(self) + count <= room
    }

    /// Takes note of what the target has received.
    fn look(&mut self, per_message: usize) {
        // Acquire: the target posted its RECVs again before it counted. Pairs with
        // `Responder::repost`.
        self.arrived = self.arrivals.received.0.load(Ordering::Acquire) * per_message as u64;
    }
}

/// What an issuer posts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) point: Point,
    /// A message that is received acknowledges so many verbs; 0: arrivals are not counted.
    pub(super) per_message: usize,
    /// Whether the fabric may lose messages of this transport.
    pub(super) may_lose: bool,
    pub(super) seed: u64,
}

impl Shape {
    /// Bytes from one place in memory to the next.
    fn stride(&self) -> usize {
        self.point.payload.next_multiple_of(WORD)
    }
}

/// One thread that posts, with the queue pairs of its port. `D` keeps the device open.
pub(super) struct Issuer<P, D = ()> {
    _device: D,
    port: P,
    cq: CqId,
    shape: Shape,
    flows: Vec<Flow>,
    rng: Rng,
    /// The payload, as words where it is whole words.
    words: Vec<u64>,
    bytes: Vec<u8>,
    /// The flow to post to next.
    turn: usize,
}

/// The bytes of every payload.
pub(super) const FILL: u8 = 0x5a;

impl<P: Port, D> Issuer<P, D> {
    pub(super) fn new(device: D, port: P, cq: CqId, shape: Shape, flows: Vec<Flow>) -> Self {
        let payload = shape.point.payload;
        for flow in &flows {
            if let Some(span) = port.region(flow.region)
                && matches!(shape.point.verb, Verb::Send | Verb::Write)
            {
                span.write_bytes(0, &vec![FILL; payload]);
            }
        }
        Self {
            _device: device,
            port,
            cq,
            rng: Rng::new(shape.seed),
            words: vec![u64::from_ne_bytes([FILL; WORD]); payload / WORD],
            bytes: vec![FILL; payload],
            shape,
            flows,
            turn: 0,
        }
    }

    /// Takes completions; returns how many. Records the latency of each signaled verb.
    fn complete(
        &mut self,
        out: &mut [Completion],
        counters: &mut RunCounters,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<usize, DriveError> {
        let count = self.port.poll(self.cq, out);
        if count == 0 {
            return Ok(0);
        }
        let now_ns = clock();
        for completion in &out[..count] {
            if completion.status != Status::Success {
                return Err(DriveError::Verb(completion.status));
            }
            let flow = &mut self.flows[completion.wr_id as usize];
            let Some((start_ns, count)) = flow.signals.pop_front() else {
                continue;
            };
            flow.completed += count;
            counters.latency(start_ns, now_ns);
            // Otherwise what arrived is counted, and not what completed.
            if self.shape.per_message == 0 {
                counters.hits += count;
            }
        }
        Ok(count)
    }

    /// Adds the arrivals since the last call to the counters.
    fn count_arrivals(&mut self, counters: &mut RunCounters, counted: &mut u64) {
        let per_message = self.shape.per_message;
        if per_message == 0 {
            return;
        }
        for flow in &mut self.flows {
            flow.look(per_message);
            let sent = &flow.arrivals.sent.0;
            // Release: what is counted has been posted. Pairs with the acquire in `ArrivalCounts::lost`.
            sent.store(flow.posted / per_message as u64, Ordering::Release);
        }
        let arrived: u64 = self.flows.iter().map(|flow| flow.arrived).sum();
        counters.hits += arrived - *counted;
        *counted = arrived;
    }

    /// Posts to each flow with room, in turn or, from all to all, at random. Returns whether there was
    /// any.
    fn post<'a>(
        &mut self,
        source: PayloadBytes<'a>,
        batch: &mut Vec<SendWr<'a>>,
        load: &mut Load<'_>,
        now_ns: u64,
    ) -> Result<bool, DriveError> {
        let (point, mut any) = (self.shape.point, false);
        for _ in 0..self.flows.len() {
            self.turn = match point.all_to_all {
                true => self.rng.below(self.flows.len() as u64) as usize,
                false => (self.turn + 1) % self.flows.len(),
            };
            let flow = &mut self.flows[self.turn];
            while flow.room(point.window) >= point.postlist
                && load.pace.is_due(now_ns)
                && flow.is_expected(point.postlist, (&self.shape, now_ns))
            {
                let start_ns = load.pace.take(point.postlist as u64, now_ns);
                flow.fill(
                    self.turn,
                    &self.shape,
                    source,
                    (&mut self.rng, start_ns),
                    batch,
                );
                self.port.post_send(flow.qp, batch)?;
                any = true;
                // Each post draws its flow anew.
                if point.all_to_all {
                    break;
                }
            }
        }
        Ok(any)
    }
}

/// Where payloads are taken from.
#[derive(Clone, Copy)]
struct PayloadBytes<'a> {
    words: &'a [u64],
    bytes: &'a [u8],
}

impl Flow {
    /// Fills `batch` with the work requests of one post, and takes note of them.
    #[inline]
    fn fill<'a>(
        &mut self,
        index: usize,
        shape: &Shape,
        source: PayloadBytes<'a>,
        (rng, start_ns): (&mut Rng, u64),
        batch: &mut Vec<SendWr<'a>>,
    ) {
        let Point {
            postlist,
            signaled,
            window,
            ..
        } = shape.point;
        batch.clear();
        for n in 0..postlist {
            let op = self.op(shape, source, rng);
            self.posted += 1;
            self.unsignaled += 1;
            // The last one before the window is full is signaled, or nothing would open it again.
            let last = n + 1 == postlist && self.room(window) < postlist;
            let signal = self.unsignaled >= signaled || last;
            if signal {
                self.signals.push_back((start_ns, self.unsignaled as u64));
                self.unsignaled = 0;
            }
            batch.push(SendWr {
                wr_id: index as u64,
                op,
                signaled: signal,
                solicited: false,
                fence: false,
            });
        }
    }

    /// Returns the next verb.
    #[inline]
    fn op<'a>(&self, shape: &Shape, source: PayloadBytes<'a>, rng: &mut Rng) -> SendOp<'a> {
        let (point, stride) = (&shape.point, shape.stride());
        let slot = (self.posted % point.window as u64) as usize * stride;
        let local = |offset| Local {
            region: self.region,
            offset,
            len: point.payload,
        };
        let payload = match point.inline {
            // All payloads are the same bytes.
            false => Payload::Region(local(0)),
            true if point.payload % WORD == 0 => Payload::Words(source.words),
            true => Payload::Inline(source.bytes),
        };
        let mut at = || {
            let places = (point.memory / stride).max(1) as u64;
            self.base.offset(rng.below(places) * stride as u64)
        };
        match point.verb {
            Verb::Send => SendOp::Send {
                payload,
                imm: None,
                to: self.to,
            },
            Verb::Write => SendOp::Write {
                payload,
                to: at(),
                imm: self.is_announced(shape).then_some(0),
            },
            Verb::Read => SendOp::Read {
                into: local(slot),
                from: at(),
            },
            Verb::FetchAdd => SendOp::FetchAdd {
                into: local(slot),
                at: at(),
                add: 1,
            },
            // The memory starts as zeros and stays so: the swap takes place each time.
            Verb::CompareSwap => SendOp::CompareSwap {
                into: local(slot),
                at: at(),
                expected: 0,
                new: 0,
            },
        }
    }

    /// Whether the next WRITE has an immediate, by which the target counts it and those before it.
    fn is_announced(&self, shape: &Shape) -> bool {
        let every = shape.per_message as u64;
        every > 0 && (self.posted + 1).is_multiple_of(every)
    }
}

impl<P: Port, D> Target for Issuer<P, D> {
    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        // Taken out: payloads are borrowed while all of `self` is in use.
        let (words, bytes) = (
            std::mem::take(&mut self.words),
            std::mem::take(&mut self.bytes),
        );
        let source = PayloadBytes {
            words: &words,
            bytes: &bytes,
        };
        let driven = self.drive_from(source, load, until_ns, clock);
        (self.words, self.bytes) = (words, bytes);
        driven
    }

    fn in_flight(&self) -> impl Iterator<Item = u64> {
        let signals = self.flows.iter().flat_map(|flow| &flow.signals);
        signals.map(|(start_ns, _)| *start_ns)
    }
}

impl<P: Port, D> Issuer<P, D> {
    fn drive_from(
        &mut self,
        source: PayloadBytes<'_>,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        let mut out = [Completion::BLANK; POLL];
        let mut batch = Vec::with_capacity(self.shape.point.postlist);
        let closed = load.pace.next_due_ns().is_none();
        let mut counted = self.flows.iter().map(|flow| flow.arrived).sum();
        let (mut now_ns, mut idle) = (clock(), 0_u32);
        loop {
            self.port.progress(Duration::from_nanos(now_ns));
            let mut polled_ns = 0;
            let done = self.complete(&mut out, load.counters, &mut || {
                polled_ns = clock();
                polled_ns
            })?;
            idle = if done == 0 { idle + 1 } else { 0 };
            now_ns = match polled_ns {
                0 if closed && !idle.is_multiple_of(IDLE_PASSES) => now_ns,
                0 => clock(),
                read => read,
            };
            if now_ns >= until_ns {
                self.count_arrivals(load.counters, &mut counted);
                return Ok(());
            }
            if self.post(source, &mut batch, load, now_ns)? {
                self.port.flush(Duration::from_nanos(now_ns));
            }
        }
    }
}
