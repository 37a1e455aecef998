//! Messages that are not replies to an outstanding request: the client counts and drops them.

use herdwick_fabric::{Completion, Payload, Port, SendOp, SendWr};
use herdwick_herd::{
    ClientCounters, Outcome,
    wire::{Epoch, ReplyHead, ReplyStatus, Sequence, imm},
};
use herdwick_request::{Get, Op, Put};

use crate::{
    fixture::{Fixture, HASH_KEY, request},
    model::Model,
};

const EPOCH: u16 = 9;

struct Forger {
    fixture: Fixture<Model>,
}

impl Forger {
    fn new() -> Self {
        let mut fixture = Fixture::new(1, 4, vec![Model::default(); 2]);
        fixture.join(EPOCH);
        Self { fixture }
    }

    /// Sends `bytes` to the client as worker 0. It must not give an outcome.
    fn send(&mut self, bytes: &[u8], imm: Option<u32>) {
        let lease = &self.fixture.clients[0].leases[0];
        let (to, replies) = (lease.address, lease.replies);
        let worker = &mut self.fixture.workers[0];
        let send = SendWr {
            wr_id: 0,
            op: SendOp::Send {
                payload: Payload::Inline(bytes),
                imm,
                to: Some(to),
            },
            signaled: true,
            solicited: false,
            fence: false,
        };
        worker.port.post_send(replies, &[send]).unwrap();
        self.fixture.advance();
        let worker = &mut self.fixture.workers[0];
        worker.port.poll(worker.cq, &mut [Completion::BLANK; 4]);
        self.fixture
            .poll_clients(&mut |_, _, outcome| panic!("{outcome:?}"));
    }

    fn counters(&self) -> ClientCounters {
        *self.fixture.clients[0].side.counters()
    }

    /// Checks that requests are still answered, on every slot and at both workers.
    fn still_serves(&mut self) {
        for n in 0..32 {
            let key = format!("key {n}");
            let op = Op::Put(Put {
                value: b"v",
                ..Put::default()
            });
            self.fixture.call(0, key.as_bytes(), op, |outcome| {
                assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
            });
        }
        assert_eq!(self.counters().recvs_short, 0);
    }
}

fn head(status: u8, epoch: u16) -> [u8; 8] {
    let bare = ReplyHead::bare(ReplyStatus::Done, Epoch::new(epoch).unwrap());
    (bare.0 & !0xff | u64::from(status)).to_le_bytes()
}

#[test]
fn malformed_replies_are_counted_and_their_recv_is_reposted() {
    let mut forger = Forger::new();
    let name = Some(imm(0, Sequence::new(0)));
    let cut = [&head(1, EPOCH)[..], &[0; 4]].concat();
    let too_large_without_length = [&head(11, EPOCH)[..], &[0; 8]].concat();
    let cases: [(&[u8], Option<u32>); 9] = [
        (&[], name),
        (&head(1, EPOCH)[..7], name),
        (&cut, name),
        (&head(0, EPOCH), name),
        (&head(12, EPOCH), name),
        (&head(255, EPOCH), name),
        (&too_large_without_length, name),
        (&head(1, EPOCH), None),
        (&head(1, EPOCH), Some(imm(200, Sequence::new(0)))),
    ];
    for round in 0..10 {
        for (n, (bytes, imm)) in cases.into_iter().enumerate() {
            forger.send(bytes, imm);
            let expected = round * cases.len() + n + 1;
            assert_eq!(forger.counters().malformed_replies, expected as u64, "{n}");
        }
    }
    // A reply with another worker's number arrives at the wrong queue pair.
    forger.send(&head(1, EPOCH), Some(imm(1, Sequence::new(0))));
    assert_eq!(forger.counters().malformed_replies, 91);
    forger.still_serves();
}

#[test]
fn replies_of_another_lease_are_dropped() {
    let mut forger = Forger::new();
    let side = &mut forger.fixture.clients[0].side;
    let key = (0..)
        .map(|n| format!("{n}"))
        .find(|key| HASH_KEY.hash(key.as_bytes()).partition(2) == 0);
    let key = key.unwrap();
    side.submit(&request(key.as_bytes(), Op::Get(Get::default())), 1)
        .unwrap();
    forger.send(&head(2, EPOCH + 1), Some(imm(0, Sequence::new(0))));
    assert_eq!(forger.counters().stale_epoch, 1);
    assert_eq!(forger.counters().answers, 0);
}

#[test]
fn replies_without_outstanding_request_are_dropped() {
    let mut forger = Forger::new();
    for sequence in [0, 1, 4, 77, (1 << 24) - 1] {
        forger.send(&head(1, EPOCH), Some(imm(0, Sequence::new(sequence))));
    }
    assert_eq!(forger.counters().stale_replies, 5);
    forger.still_serves();
    assert_eq!(forger.counters().stale_replies, 5);
}
