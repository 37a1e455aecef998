//! What this crate costs beside the driver; `tests/verbs/cost.sh` counts its instructions.

use herdwick_fabric::{Completion, Local, Port, PostError, RecvWr, SendWr};

use crate::side::{Side, signaled};

const ROUNDS: usize = 1000;
const BATCH: usize = 16;

#[inline(never)]
fn cost_of_sends(side: &mut Side, batch: &[SendWr<'_>]) -> Result<(), PostError> {
    side.port.post_send(side.qp, batch)
}

#[inline(never)]
fn cost_of_recvs(side: &mut Side, batch: &[RecvWr]) -> Result<(), PostError> {
    side.port.post_recv(side.qp, batch)
}

#[inline(never)]
fn cost_of_completions(side: &mut Side, out: &mut [Completion]) -> usize {
    side.port.poll(side.cq, out)
}

#[test]
#[ignore = "to be counted by tests/verbs/cost.sh"]
fn sixteen_datagrams_a_thousand_times() {
    let mut side = Side::new();
    let into = Local {
        region: side.inbox,
        offset: 0,
        len: 256,
    };
    let recvs = [RecvWr { wr_id: 1, into }; BATCH];
    let sends = [signaled(2, side.own); BATCH];
    let mut out = [Completion::BLANK; 2 * BATCH];
    for _ in 0..ROUNDS {
        cost_of_recvs(&mut side, &recvs).unwrap();
        cost_of_sends(&mut side, &sends).unwrap();
        assert_eq!(cost_of_completions(&mut side, &mut out), 2 * BATCH);
    }
}
