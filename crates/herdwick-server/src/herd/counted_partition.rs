//! Counts fabric requests as memcached counts them, while a worker's partition executes them; and the
//! counters of lost devices and unreleased leases.

use herdwick_request::{Clock, Execute, KeyHash, Op, ReadReport, Reply, Request, Sink, Status};

use crate::{
    runtime::{
        partition::PassStart,
        partition_lock::Own,
        request_timer::{RequestTimer, RequestTimes},
    },
    telemetry::snapshot::WorkerCounters,
};

herdwick_fabric::counters! {
    /// Counters of a front end, which outlive its device.
    pub(crate) struct FrontCounters {
        /// RDMA devices lost.
        devices_lost,
        /// Leases whose memory a device would not release.
        leases_unreleased,
    }
}

/// A worker's partition that counts each request by its reply, in memcached's counters. It is
/// locked for each batch.
pub(super) struct Counted<'a, 'p> {
    pub(super) own: &'a mut Own<'p>,
    pub(super) start: PassStart,
    pub(super) counters: &'a mut WorkerCounters,
    /// Measures the requests' times; `None`: nothing does.
    pub(super) times: Option<(&'a RequestTimes, &'a mut RequestTimer)>,
}

impl Execute for Counted<'_, '_> {
    #[inline]
    fn execute(&mut self, _: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        if let Some((times, timer)) = &mut self.times {
            times.start(timer, batch, self.start.now);
        }
        let counters = &mut *self.counters;
        // Plain hits are the common case: summed in locals and added once per batch.
        let (mut reads, mut hits, mut written) = (0, 0, 0);
        let mut count = |index: usize, reply: &Reply<'_>| {
            written += reply.item.map_or(0, |item| item.value.len());
            match batch.get(index).map(|request| &request.op) {
                Some(Op::Get(get)) if get.touch.is_none() && reply.status == Status::Done => {
                    reads += 1;
                    hits += 1;
                }
                Some(op) => counters.count(op, reply),
                None => {}
            }
            sink.reply(index, reply);
        };
        let mut partition = self.own.lock(self.start);
        // Not that of the pass: a pass of another worker may have set it on.
        let clock = partition.clock();
        partition.execute(clock, batch, &mut count);
        // The counters are this worker's own: no lock is needed for them.
        drop(partition);
        self.counters.cmd_get += reads;
        self.counters.get_hits += hits;
        let read: usize = batch.iter().map(bytes).sum();
        self.counters.fabric_bytes_read += read as u64;
        self.counters.fabric_bytes_written += written as u64;
    }

    fn note_reads(&mut self, _: Clock, report: &ReadReport<'_>) {
        let hits = u64::from(report.hits);
        // Clients choose the number: it may not wrap the counters.
        let counters = &mut *self.counters;
        for count in [
            &mut counters.cmd_get,
            &mut counters.get_hits,
            &mut counters.one_sided_hits,
        ] {
            *count = count.saturating_add(hits);
        }
        let mut partition = self.own.lock(self.start);
        let clock = partition.clock();
        partition.note_reads(clock, report);
    }

    fn stag(&mut self, _: Clock, hash: KeyHash, key: &[u8]) -> Option<u32> {
        let mut partition = self.own.lock(self.start);
        let clock = partition.clock();
        partition.stag(clock, hash, key)
    }
}

/// Returns the bytes of a request's key and of the value it stores.
fn bytes(request: &Request<'_>) -> usize {
    request.key.len()
        + match &request.op {
            Op::Put(put) => put.value_len(),
            _ => 0,
        }
}
