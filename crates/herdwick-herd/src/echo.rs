//! An executor without a store, for measuring everything else.

use herdwick_request::{Clock, Execute, Item, Op, Reply, Request, Sink, Status};

/// Answers every GET with the same value and everything else with "not found": a server with the
/// store taken out, for measuring the rest.
#[derive(Clone, Debug)]
pub struct Echo {
    value: Box<[u8]>,
}

impl Echo {
    /// Makes an executor whose values have `value_bytes` bytes.
    #[must_use]
    pub fn new(value_bytes: usize) -> Self {
        Self {
            value: vec![b'e'; value_bytes].into(),
        }
    }
}

impl Execute for Echo {
    fn execute(&mut self, _: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        let hit = Reply::with(Status::Done, Item::plain(&self.value, 1));
        for (index, request) in batch.iter().enumerate() {
            match request.op {
                Op::Get(_) => sink.reply(index, &hit),
                _ => sink.reply(index, &Reply::bare(Status::NotFound)),
            }
        }
    }
}
