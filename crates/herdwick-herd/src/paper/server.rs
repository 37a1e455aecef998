//! The server process of sections 4.1.1 and 4.2: polls the slots of its clients one after the other, takes
//! each request through the pipeline, and answers it with one SEND of the bare value.

use std::time::Duration;

use herdwick_fabric::{
    AddressHandle, Completion, CqId, Local, Payload, Port, QpId, RegionId, SendOp, SendWr,
    Status as WorkStatus,
};
use herdwick_mem::Span;
use herdwick_request::{
    Clock, Execute, Get, HashKey, KeyHash, Op, Prefetch, Put, Reply, Request, Status,
};

use super::{
    pipeline::Pipeline,
    slot::{self, KEYHASH_BYTES, Keyhash, SLOT_BYTES, VALUE_BYTES_MAX},
};
use crate::signals::Signals;

/// Memory accesses of a request, each with its prefetch: the bucket and the item.
pub const STAGES: usize = 2;
/// The payload of a reply to a PUT that was not stored. That to one that was has none; neither has that
/// to a GET that found nothing, since a value has at least a byte.
pub(super) const NOT_STORED: [u8; 1] = [1];
/// Passes of a round, where messages wait in the port until it is flushed.
const PASSES: usize = 32;
/// Completions that one poll takes.
const POLL: usize = 16;

/// The objects and sizes of a [`PaperServer`].
#[derive(Clone, Debug)]
pub(super) struct PaperServerOptions {
    /// The UD queue pair of replies and its completion queue.
    pub(super) replies: QpId,
    pub(super) reply_cq: CqId,
    /// Entries of its send queue.
    pub(super) send_depth: usize,
    /// A slot for each entry: replies that are not inlined.
    pub(super) staging: (RegionId, Span),
    /// Replies of fewer bytes are inlined.
    pub(super) inline_below: usize,
    /// Slots of a client.
    pub(super) window: usize,
    pub(super) clients_max: usize,
    pub(super) hash_key: HashKey,
    /// Whether messages wait in the port until it is flushed.
    pub(super) gso: bool,
}

/// What a [`PaperServer`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaperCounters {
    /// Requests that were executed.
    pub requests: u64,
    /// No-ops that moved the pipeline.
    pub no_ops: u64,
    /// Requests with a LEN above [`VALUE_BYTES_MAX`], which are answered like a PUT that was not stored.
    pub bad_lengths: u64,
    /// Replies for which the send queue had no room, that the port refused, or whose value is longer than
    /// [`VALUE_BYTES_MAX`].
    pub replies_refused: u64,
    /// Replies that were not inlined.
    pub replies_staged: u64,
    /// Requests of clients that were gone before they were executed.
    pub orphans: u64,
    /// SENDs that failed.
    pub sends_failed: u64,
}

/// A client of a [`PaperServer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperClientId {
    index: u32,
    generation: u32,
}

/// A client's slots, and where its replies go.
struct Served {
    slots: Span,
    to: AddressHandle,
    generation: u32,
    /// The number of its next request, from 0 on: that is in slot `next % window`.
    next: u32,
    /// Requests that were taken and are not executed: each is still in its slot.
    held: usize,
}

/// A request in the pipeline.
#[derive(Clone, Copy, Debug)]
struct Taken {
    client: PaperClientId,
    number: u32,
    keyhash: Keyhash,
    hash: KeyHash,
    len: u16,
}

/// The machine of a server process.
pub struct PaperServer {
    options: PaperServerOptions,
    clients: Vec<Option<Served>>,
    generations: u32,
    pipeline: Pipeline<Taken>,
    replies: ReplyQueue,
    /// The value of the PUT that is executed.
    value: Box<[u8; VALUE_BYTES_MAX]>,
    counters: PaperCounters,
}

/// The send queue of replies, of which the staging memory has a cell for each entry.
struct ReplyQueue {
    signals: Signals,
    /// Replies ever posted, and those that have surely been sent.
    posted: u64,
    sent: u64,
}

impl PaperServer {
    pub(super) fn new(options: PaperServerOptions) -> Self {
        Self {
            clients: std::iter::repeat_with(|| None)
                .take(options.clients_max)
                .collect(),
            generations: 0,
            pipeline: Pipeline::new(STAGES),
            replies: ReplyQueue {
                signals: Signals::default(),
                posted: 0,
                sent: 0,
            },
            value: Box::new([0; VALUE_BYTES_MAX]),
            counters: PaperCounters::default(),
            options,
        }
    }

    /// Takes a client into service; its slots are zero. `None`: there are as many as there may be.
    pub(super) fn attach(&mut self, slots: Span, to: AddressHandle) -> Option<PaperClientId> {
        let index = self.clients.iter().position(Option::is_none)?;
        self.generations = self.generations.wrapping_add(1);
        let generation = self.generations;
        self.clients[index] = Some(Served {
            slots,
            to,
            generation,
            next: 0,
            held: 0,
        });
        let index = index as u32;
        Some(PaperClientId { index, generation })
    }

    /// Takes a client out of service: nothing reads its memory any more, and what it had in the pipeline is
    /// dropped. Returns the address of its replies; `None` if it was not in service.
    pub(super) fn detach(&mut self, client: PaperClientId) -> Option<AddressHandle> {
        let place = self.clients.get_mut(client.index as usize)?;
        let served = place.take_if(|served| served.generation == client.generation)?;
        Some(served.to)
    }

    /// Returns the number of clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.iter().flatten().count()
    }

    /// Returns what was counted.
    #[must_use]
    pub fn counters(&self) -> &PaperCounters {
        &self.counters
    }

    /// Runs one round of the poll loop: takes what has arrived, executes what has passed the pipeline, and has
    /// the port send the replies. Returns the number of requests taken.
    #[inline]
    pub fn round<P: Port, E: Execute + Prefetch>(
        &mut self,
        port: &mut P,
        (now, clock): (Duration, Clock),
        exec: &mut E,
    ) -> usize {
        port.progress(now);
        let passes = if self.options.gso { PASSES } else { 1 };
        let mut taken = 0;
        for _ in 0..passes {
            let here = self.pass(port, clock, exec);
            taken += here;
            if here == 0 {
                break;
            }
        }
        port.flush(now);
        taken
    }

    /// Looks at the next slot of each client, and pushes the requests found there into the pipeline, or a
    /// no-op after [`NO_OP_AFTER`](super::NO_OP_AFTER) passes without one. Returns the number of requests.
    #[inline]
    pub fn pass<P: Port, E: Execute + Prefetch>(
        &mut self,
        port: &mut P,
        clock: Clock,
        exec: &mut E,
    ) -> usize {
        let mut count = 0;
        for index in 0..self.clients.len() {
            let Some(taken) = self.take(index) else {
                continue;
            };
            count += 1;
            // Prefetched now, read when another request or a no-op moves this one on (section
            // 4.1.1).
            exec.prefetch_bucket(taken.hash);
            self.push(port, clock, exec, Some(taken));
        }
        if count == 0 && self.pipeline.polled_nothing() {
            self.counters.no_ops += 1;
            self.push(port, clock, exec, None);
        }
        count
    }

    /// Returns the next request of a client. It stays in its slot until it is answered.
    #[inline]
    fn take(&mut self, index: usize) -> Option<Taken> {
        let client = self.clients[index].as_mut()?;
        // With all slots in the pipeline, the next one holds a request that was taken before.
        if client.held == self.options.window {
            return None;
        }
        let slot = client.next as usize % self.options.window;
        let found = slot::find(&client.slots, slot)?;
        let number = client.next;
        client.next = number.wrapping_add(1);
        client.held += 1;
        let (index, generation) = (index as u32, client.generation);
        Some(Taken {
            client: PaperClientId { index, generation },
            number,
            keyhash: found.keyhash,
            hash: self.options.hash_key.hash(&found.keyhash.bytes()),
            len: found.len,
        })
    }

    #[inline]
    fn push<P: Port, E: Execute + Prefetch>(
        &mut self,
        port: &mut P,
        clock: Clock,
        exec: &mut E,
        new: Option<Taken>,
    ) {
        let ended = self.pipeline.push(new, |stage, taken| {
            // In the last stage the item is accessed, when the request is executed.
            if stage < STAGES {
                exec.prefetch_item(taken.hash);
            }
        });
        if let Some(taken) = ended {
            self.execute(port, clock, exec, taken);
        }
    }

    /// Executes a request, frees its slot and posts the reply.
    #[inline]
    fn execute<P: Port, E: Execute>(
        &mut self,
        port: &mut P,
        clock: Clock,
        exec: &mut E,
        taken: Taken,
    ) {
        let Self {
            options,
            clients,
            replies,
            value,
            counters,
            ..
        } = self;
        let client = clients[taken.client.index as usize].as_mut();
        let client = client.filter(|served| served.generation == taken.client.generation);
        let Some(client) = client else {
            counters.orphans += 1;
            return;
        };
        client.held -= 1;
        counters.requests += 1;
        let slot = taken.number as usize % options.window;
        let len = usize::from(taken.len);
        let key: [u8; KEYHASH_BYTES] = taken.keyhash.bytes();
        let mut answer = |counters: &mut PaperCounters, payload: &[u8]| {
            // Before the reply: the client may write its next request as soon as it has that.
            slot::clear(&client.slots, slot);
            replies.post(port, options, (client.to, taken.number), payload, counters);
        };
        let op = match len {
            0 => Op::Get(Get::default()),
            1..=VALUE_BYTES_MAX => {
                slot::copy_value(&client.slots, slot, &mut value[..len]);
                Op::Put(Put {
                    value: &value[..len],
                    ..Put::default()
                })
            }
            _ => {
                counters.bad_lengths += 1;
                return answer(counters, &NOT_STORED);
            }
        };
        let request = Request {
            hash: taken.hash,
            key: &key,
            op,
        };
        exec.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
            let payload = match (len, &reply.item) {
                (0, Some(item)) => item.value,
                (0, None) => &[],
                _ if reply.status == Status::Done => &[],
                _ => &NOT_STORED,
            };
            answer(counters, payload);
        });
    }
}

impl ReplyQueue {
    /// Posts one reply by itself.
    #[inline]
    fn post<P: Port>(
        &mut self,
        port: &mut P,
        options: &PaperServerOptions,
        (to, number): (AddressHandle, u32),
        payload: &[u8],
        counters: &mut PaperCounters,
    ) {
        if self.signals.awaited() {
            self.completions(port, options.reply_cq, counters);
        }
        let depth = options.send_depth as u64;
        // The cell of a reply that has not been sent is not written to.
        if self.posted - self.sent >= depth || payload.len() > VALUE_BYTES_MAX {
            counters.replies_refused += 1;
            return;
        }
        let inline = payload.len() < options.inline_below;
        let signaled = self.signals.due(1);
        let cell = (self.posted % depth) as usize * SLOT_BYTES;
        let (region, staging) = &options.staging;
        if !inline {
            counters.replies_staged += 1;
            staging.write_bytes(cell, payload);
        }
        let wr = SendWr {
            // How many replies are sent when this one completes: a send queue completes in order.
            wr_id: self.posted + 1,
            op: SendOp::Send {
                payload: match inline {
                    true => Payload::Inline(payload),
                    false => Payload::Region(Local {
                        region: *region,
                        offset: cell,
                        len: payload.len(),
                    }),
                },
                imm: Some(number),
                to: Some(to),
            },
            signaled,
            solicited: false,
            fence: false,
        };
        match port.post_send(options.replies, &[wr]) {
            Ok(()) => {
                self.posted += 1;
                self.signals.posted(1, signaled);
            }
            Err(_) => counters.replies_refused += 1,
        }
    }

    fn completions<P: Port>(&mut self, port: &mut P, cq: CqId, counters: &mut PaperCounters) {
        let mut done = [Completion::BLANK; POLL];
        let count = port.poll(cq, &mut done);
        for completion in &done[..count] {
            match completion.status {
                WorkStatus::Success => {
                    self.sent = self.sent.max(completion.wr_id);
                    self.signals.arrived();
                }
                _ => counters.sends_failed += 1,
            }
        }
    }
}
