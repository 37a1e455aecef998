use herdwick_mica::{Clock, Execute, Op, Reply, Request, Sink, Status};

use crate::{partition::Partition, tally::Tally};

/// A partition whose requests are counted in memcached's words as they are answered.
pub(super) struct Counted<'a> {
    pub(super) store: &'a mut Partition,
    pub(super) tally: &'a mut Tally,
}

impl Execute for Counted<'_> {
    #[inline]
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        let tally = &mut *self.tally;
        // Plain reads are counted here and added once a batch.
        let (mut reads, mut hits) = (0, 0);
        let mut count = |index: usize, reply: &Reply<'_>| {
            match batch.get(index).map(|request| &request.op) {
                Some(Op::Get(get)) if get.touch.is_none() && reply.status == Status::Done => {
                    reads += 1;
                    hits += 1;
                }
                Some(op) => tally.count(op, reply),
                None => {}
            }
            sink.reply(index, reply);
        };
        self.store.execute(clock, batch, &mut count);
        self.tally.cmd_get += reads;
        self.tally.get_hits += hits;
    }
}
