//! One batch: requests staged in private memory, executed by the store, and turned into SENDs. A
//! line is read from the copy only.

use arrayvec::ArrayVec;
use herdwick_fabric::{SendOp, SendWr};
use herdwick_request::{Clock, Execute, Get, KeyHash, Op, ReadReport, Reply, Request};

use super::{
    client_table::ClientTable,
    job::{BATCH, Instead, Job, Work},
    replies::Replies,
};
use crate::{
    ServerCounters,
    wire::{
        Body, Line, OVERFLOW_BYTES, OpCode, REPORT_HASHES_MAX, ReplyStatus, decode, decode_locate,
        decode_report,
    },
};

/// The requests of one pass, from line to reply.
pub(super) struct Batch {
    jobs: ArrayVec<Job, BATCH>,
    lines: Box<[Line; BATCH]>,
    overflow: Box<[u8]>,
    pub(super) replies: Replies,
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

    /// Stages the line of the next job. The caller has checked [`Batch::is_full`].
    #[inline]
    pub(super) fn stage(&mut self, fill: impl FnOnce(&mut Line)) -> &Line {
        let staged = &mut self.lines[self.jobs.len()];
        fill(staged);
        staged
    }

    /// The staged line of the next job.
    pub(super) fn staged(&self) -> &Line {
        &self.lines[self.jobs.len()]
    }

    /// The staging area for the overflowing body of the next job, `len` bytes long.
    pub(super) fn stage_overflow(&mut self, len: usize) -> &mut [u8] {
        &mut self.overflow[self.jobs.len() * OVERFLOW_BYTES..][..len]
    }

    /// Appends the job of the staged line.
    #[inline]
    pub(super) fn push(&mut self, job: Job) {
        self.jobs.push(job);
    }

    /// Executes the jobs that need it and writes every reply.
    pub(super) fn execute<E: Execute>(
        &mut self,
        clock: Clock,
        exec: &mut E,
        (clients, place): (&mut ClientTable, (u8, usize)),
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
        for (i, (job, line)) in jobs.iter().zip(lines.iter()).enumerate() {
            // A job without a reply must not send that of the last batch.
            replies.forget(i);
            if let (Work::Run { overflow_len: 0 }, Some(key)) = (job.work, line.plain_get()) {
                whose[requests.len()] = i;
                // Constructed in place: a copy would load wide what narrow stores have just
                // written, and store forwarding would stall.
                requests.push(Request {
                    hash: line.hash(),
                    key,
                    op: Op::Get(Get::default()),
                });
                continue;
            }
            if let (Work::Run { overflow_len }, true) = (job.work, line.control().is_of_reader()) {
                let body = &overflow[i * OVERFLOW_BYTES..][..overflow_len.into()];
                let instead = match line.control().is(OpCode::Report) {
                    true => report(line, body, (clock, place), exec, counters),
                    false => locate(line, body, clock, exec),
                };
                replies.instead(i, job, line, instead, clients, counters);
                continue;
            }
            match read(job, line, &overflow[i * OVERFLOW_BYTES..]) {
                Ok(request) => {
                    whose[requests.len()] = i;
                    requests.push(request);
                }
                Err(instead) => replies.instead(i, job, line, instead, clients, counters),
            }
        }
        exec.execute(clock, &requests, &mut |n: usize, reply: &Reply<'_>| {
            let i = whose[n];
            replies.write(i, &jobs[i], lines[i].control(), reply, clients, counters);
        });
    }

    /// Appends the SENDs of the replies that leave through reply queue pair `reply_qp` to `sends`.
    #[inline]
    pub(super) fn sends<'a>(&'a self, reply_qp: u8, sends: &mut ArrayVec<SendWr<'a>, BATCH>) {
        for (i, job) in self.jobs.iter().enumerate() {
            if job.reply_qp != reply_qp {
                continue;
            }
            let Some(payload) = self.replies.payload(i) else {
                continue;
            };
            sends.push(SendWr {
                // Every reply of the batch is written by now, so when the signaled one completes,
                // all cells filled so far are sent.
                wr_id: self.replies.filled(),
                op: SendOp::Send {
                    payload,
                    imm: Some(job.imm),
                    to: Some(job.to),
                },
                signaled: false,
                solicited: false,
                fence: false,
            });
        }
    }
}

/// Most reads that a report counts: those of some tenths of a second.
const REPORTED_MAX: u32 = 1 << 24;

/// Has `exec` note the reads that a client reports. Hashes of other workers' keys are left out.
#[cold]
fn report<E: Execute>(
    line: &Line,
    overflow: &[u8],
    (clock, (worker, workers)): (Clock, (u8, usize)),
    exec: &mut E,
    counters: &mut ServerCounters,
) -> Instead {
    let report = match line.body() {
        Ok(Body::Here(body)) => decode_report(line, body),
        Ok(Body::Overflow { .. }) => decode_report(line, overflow),
        Err(bad) => Err(bad),
    };
    match report {
        Ok(report) => {
            counters.read_reports += 1;
            let is_here = |bytes: &&[u8; 8]| {
                let hash = KeyHash(u64::from_le_bytes(**bytes));
                hash.partition(workers) == usize::from(worker)
            };
            let hashes = report.hashes.iter().filter(is_here).copied();
            // An `ArrayVec` panics beyond its capacity.
            let hashes: ArrayVec<_, REPORT_HASHES_MAX> = hashes.take(REPORT_HASHES_MAX).collect();
            let report = ReadReport {
                hits: report.hits.min(REPORTED_MAX),
                hashes: &hashes,
            };
            exec.note_reads(clock, &report);
            // DONE is all that a report is answered by.
            Instead::Refuse(ReplyStatus::Done)
        }
        Err(bad) => Instead::Bad(bad),
    }
}

/// Asks `exec` for the stag of a key.
#[cold]
fn locate<E: Execute>(line: &Line, overflow: &[u8], clock: Clock, exec: &mut E) -> Instead {
    let key = match line.body() {
        Ok(Body::Here(body)) => decode_locate(line, body),
        Ok(Body::Overflow { .. }) => decode_locate(line, overflow),
        Err(bad) => Err(bad),
    };
    match key.map(|key| exec.stag(clock, line.hash(), key)) {
        Ok(Some(stag)) => Instead::Stag(stag),
        Ok(None) => Instead::Refuse(ReplyStatus::NotFound),
        Err(bad) => Instead::Bad(bad),
    }
}

fn read<'a>(job: &Job, line: &'a Line, overflow: &'a [u8]) -> Result<Request<'a>, Instead> {
    let overflow_len: usize = match job.work {
        Work::Run { overflow_len } | Work::Reread { overflow_len } => overflow_len.into(),
        Work::Refuse(status) => return Err(Instead::Refuse(status)),
        Work::Repeat(words) => return Err(Instead::Repeat(words)),
    };
    let request = match line.body() {
        Ok(Body::Here(body)) => decode(line, body),
        Ok(Body::Overflow { .. }) => decode(line, &overflow[..overflow_len]),
        Err(bad) => Err(bad),
    };
    let mut request = request.map_err(Instead::Bad)?;
    if let Work::Reread { .. } = job.work {
        request.op = Op::Get(Get::default());
    }
    Ok(request)
}
