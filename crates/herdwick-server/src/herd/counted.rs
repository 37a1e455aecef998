//! Counts fabric requests as memcached counts them, while a worker's partition executes them.

use herdwick_mica::{Clock, Execute, Op, Reply, Request, Sink, Status};

use crate::{counters::WorkerCounters, partition::Partition};

herdwick_fabric::counters! {
    /// Counters of a front, which outlive its device.
    pub(crate) struct FrontCounters {
        /// RDMA devices lost.
        devices_lost,
        /// Leases whose memory a device would not release.
        leases_not_taken_back,
    }
}

/// A partition that counts each request by its reply, in memcached's counters.
pub(super) struct Counted<'a> {
    pub(super) store: &'a mut Partition,
    pub(super) counters: &'a mut WorkerCounters,
}

impl Execute for Counted<'_> {
    #[inline]
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
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
        self.store.execute(clock, batch, &mut count);
        self.counters.cmd_get += reads;
        self.counters.get_hits += hits;
        let read: usize = batch.iter().map(bytes).sum();
        self.counters.fabric_bytes_read += read as u64;
        self.counters.fabric_bytes_written += written as u64;
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
