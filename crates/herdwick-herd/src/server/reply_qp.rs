//! A reply queue pair of a worker: its signaling, and which cells of the reply ring it has sent.

use std::slice;

use herdwick_fabric::{Port, QpId, SendWr};

use crate::signals::Signals;

/// One of the queue pairs that send replies.
pub(super) struct ReplyQp {
    pub(super) qp: QpId,
    pub(super) signals: Signals,
    /// Number of ring cells ever filled: at the last signaled post, and in the last completion.
    asked: u64,
    told: u64,
}

impl ReplyQp {
    pub(super) fn new(qp: QpId) -> Self {
        Self {
            qp,
            signals: Signals::default(),
            asked: 0,
            told: 0,
        }
    }

    /// Records that `count` replies were posted when `filled` cells had ever been filled.
    #[inline]
    pub(super) fn posted(&mut self, count: usize, signaled: bool, filled: u64) {
        self.signals.posted(count, signaled);
        if signaled {
            self.asked = filled;
        }
    }

    /// Posts each reply of `postlist` by itself, because the port refused them together. Returns
    /// how many it still refuses. `held`: whether cells are in use, and how many were ever filled.
    #[cold]
    pub(super) fn post_each<P: Port>(
        &mut self,
        port: &mut P,
        postlist: &mut [SendWr<'_>],
        held: (bool, u64),
    ) -> u64 {
        let (holds_cells, filled) = held;
        let (before, last) = (self.asked, postlist.len() - 1);
        if holds_cells {
            // Even if the last reply is refused: a later completion then frees the cells.
            self.asked = filled;
        }
        let mut refused = 0;
        for (n, reply) in postlist.iter_mut().enumerate() {
            // Later replies may use cells of the same batch, so this completion must free none of
            // them.
            reply.wr_id = if n == last { filled } else { before };
            reply.signaled = self.signals.due(1) || (n == last && holds_cells);
            match port.post_send(self.qp, slice::from_ref(reply)) {
                Ok(()) => self.signals.posted(1, reply.signaled),
                Err(_) => refused += 1,
            }
        }
        refused
    }

    /// Records a completion whose post had seen `filled` cells filled.
    #[inline]
    pub(super) fn completed(&mut self, filled: u64) {
        self.told = filled;
    }

    /// Number of the cells ever filled that this queue pair has surely sent; `None` if all.
    #[inline]
    pub(super) fn sent(&self) -> Option<u64> {
        (self.told != self.asked).then_some(self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_returns_the_last_completed_signaled_cell() {
        let mut reply_qp = ReplyQp::new(QpId(1));
        assert_eq!(reply_qp.sent(), None);
        reply_qp.posted(1, true, 3);
        reply_qp.posted(1, false, 4);
        reply_qp.posted(1, true, 5);
        assert_eq!(reply_qp.sent(), Some(0));
        reply_qp.completed(3);
        assert_eq!(reply_qp.sent(), Some(3));
        reply_qp.completed(5);
        assert_eq!(reply_qp.sent(), None);
    }
}
