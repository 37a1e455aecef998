use arrayvec::ArrayVec;
use herdwick_fabric::{AddressHandle, SendOp, SendWr};
use herdwick_mica::{Clock, Execute, Reply, Request};

use super::{
    chunk::{Last, Slot},
    replies::Replies,
    roster::Roster,
};
use crate::{
    ServerCounters,
    wire::{BadRequest, Body, Epoch, Line, OVERFLOW_BYTES, OpCode, ReplyStatus, decode},
};

/// Most requests of one pass: one batch through the store, one postlist of replies. Past 32 the
/// store's prefetches begin to push each other out, below 16 the doorbell is spread too thin.
pub const BATCH: usize = 32;
/// The requests of one pass, from line to reply.
pub(super) struct Batch {
    jobs: ArrayVec<Job, BATCH>,
    lines: Box<[Line; BATCH]>,
    overflow: Box<[u8]>,
    pub(super) replies: Replies,
}

/// One request on its way.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) client: u32,
    pub(super) slot: usize,
    pub(super) epoch: Epoch,
    pub(super) imm: u32,
    pub(super) to: AddressHandle,
    pub(super) reply_bytes_max: usize,
    pub(super) work: Work,
}

/// What is to be done about it.
#[derive(Clone, Copy)]
pub(super) enum Work {
    /// Execute it; so much of its body lies in the overflow staging.
    Run { overflow_len: usize },
    /// Answer with this status and nothing else.
    Refuse(ReplyStatus),
    /// Answer with so many words that the slot remembers.
    Repeat(u8),
}

impl Batch {
    pub(super) fn new(replies: Replies) -> Self {
        Self {
            jobs: ArrayVec::new(),
            lines: Box::new([Line::default(); BATCH]),
            overflow: vec![0; BATCH * OVERFLOW_BYTES].into(),
            replies,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.jobs.is_full()
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.jobs.clear();
    }

    /// Where the overflowing body of the next job goes. There is room: the caller asked
    /// [`Batch::is_full`].
    pub(super) fn next_overflow(&mut self, len: usize) -> &mut [u8] {
        &mut self.overflow[self.jobs.len() * OVERFLOW_BYTES..][..len]
    }

    /// Appends a job. There is room: the caller asked [`Batch::is_full`].
    #[inline]
    pub(super) fn push(&mut self, line: Line, job: Job) {
        self.lines[self.jobs.len()] = line;
        self.jobs.push(job);
    }

    /// Executes what is to be executed and writes every reply.
    pub(super) fn execute<E: Execute>(
        &mut self,
        clock: Clock,
        exec: &mut E,
        roster: &mut Roster,
        counters: &mut ServerCounters,
    ) {
        let Self {
            jobs,
            lines,
            overflow,
            replies,
        } = self;
        let mut requests: ArrayVec<Request<'_>, BATCH> = ArrayVec::new();
        let mut whose = [0; BATCH];
        let bodies = overflow.chunks_exact(OVERFLOW_BYTES);
        for (i, ((job, line), overflow)) in jobs.iter().zip(lines.iter()).zip(bodies).enumerate() {
            replies.forget(i);
            let refused = match job.work {
                Work::Refuse(status) => status,
                Work::Repeat(words) => {
                    replies.repeat(i, &slot(roster, job).reply[..words.into()]);
                    continue;
                }
                Work::Run { overflow_len } => match read(line, &overflow[..overflow_len]) {
                    Ok(request) => {
                        whose[requests.len()] = i;
                        requests.push(request);
                        continue;
                    }
                    Err(bad) => {
                        counters.count_bad(bad);
                        ReplyStatus::BadRequest
                    }
                },
            };
            replies.bare(i, refused, job.epoch);
            remember(roster, job, line, replies.head(i));
        }
        exec.execute(clock, &requests, &mut |n: usize, reply: &Reply<'_>| {
            let i = whose[n];
            let (job, line) = (&jobs[i], &lines[i]);
            replies.write(i, job, line.control().op(), reply, counters);
            remember(roster, job, line, replies.head(i));
        });
    }

    /// The replies, ready to be posted.
    #[inline]
    pub(super) fn sends(&self) -> ArrayVec<SendWr<'_>, BATCH> {
        let mut sends = ArrayVec::new();
        for (i, job) in self.jobs.iter().enumerate() {
            let Some(payload) = self.replies.payload(i) else {
                continue;
            };
            sends.push(SendWr {
                wr_id: self.replies.filled(),
                op: SendOp::Send {
                    payload,
                    imm: Some(job.imm),
                    to: Some(job.to),
                },
                signaled: false,
                solicited: false,
            });
        }
        sends
    }
}

#[inline]
fn read<'a>(line: &'a Line, overflow: &'a [u8]) -> Result<Request<'a>, BadRequest> {
    match line.body()? {
        Body::Here(body) => decode(line, body),
        Body::Overflow { .. } => decode(line, overflow),
    }
}

/// The slot a job came from. Its client cannot have left: nobody detaches during a pass.
fn slot<'a>(roster: &'a mut Roster, job: &Job) -> &'a mut Slot {
    let client = roster.client(job.client);
    &mut client.expect("attached for the whole pass").slots[job.slot]
}

/// Keeps the reply to what must not run twice.
#[inline]
fn remember(roster: &mut Roster, job: &Job, line: &Line, reply: &[u64]) {
    if line.control().op().is_some_and(OpCode::is_read) {
        return;
    }
    let slot = slot(roster, job);
    slot.reply[..reply.len()].copy_from_slice(reply);
    slot.last = Last::Words(reply.len() as u8);
}
