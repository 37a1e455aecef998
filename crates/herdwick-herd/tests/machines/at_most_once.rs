//! At-most-once execution: however many requests and replies are lost, an increment is counted once
//! or not at all, and once if it was acknowledged.

use std::time::Duration;

use herdwick_conformance::seeded::{Faults, SeededPort};
use herdwick_fabric::{
    AddressHandle, Armed, Completion, CqId, Port, PostError, Progress, QpId, RecvWr, RegionId,
    SendOp, SendWr,
};
use herdwick_herd::{
    Outcome, Refused,
    RequestPath::{self, RcWrite, UcWrite, UdSend},
    wire::{CONTROL_WORD, LINE_WORDS, ReplyStatus, Sequence, Window, imm, split_imm},
};
use herdwick_mem::{Span, Words};
use herdwick_request::{Arith, Op};

use crate::{
    fixture::{CLOCK, Fixture, request},
    model::Model,
};

const CLIENTS: usize = 4;
/// Several for each client: requests of one client for the same key wait for each other.
const KEYS: [&[u8]; 13] = [
    b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i", b"j", b"k", b"l", b"m",
];

/// What the clients know at the end, and what the store contains.
#[derive(Debug, Default)]
struct Totals {
    acknowledged: u64,
    unknown: u64,
    value: u64,
}

impl Totals {
    fn holds(&self) -> bool {
        let most = self.acknowledged + self.unknown;
        (self.acknowledged..=most).contains(&self.value)
    }
}

/// Adds 1, `total` times, from several clients to several counters on two workers.
fn count(
    (path, seed): (RequestPath, u64),
    total: u64,
    faults: Faults,
    serve: &mut impl FnMut(&mut Fixture<Model>),
) -> Totals {
    let mut fixture = Fixture::over(path, seed, 16, vec![Model::default(); 2]);
    for client in 0..CLIENTS {
        fixture.join(client as u16 + 1);
    }
    fixture.faults(faults);
    let add = Op::Arith(Arith {
        delta: 1,
        vivify: Some(0),
        initial: 1,
        ..Arith::default()
    });
    let mut totals = Totals::default();
    let (mut submitted, mut finished) = (0, 0);
    while finished < total {
        for client in &mut fixture.clients {
            while submitted < total {
                let key = KEYS[submitted as usize % KEYS.len()];
                match client.side.submit(&request(key, add), submitted) {
                    Ok(_) => submitted += 1,
                    Err(Refused::Full) => break,
                    Err(refused) => panic!("{refused}"),
                }
            }
        }
        fixture.advance();
        serve(&mut fixture);
        fixture.poll_clients(&mut |_, _, outcome| {
            finished += 1;
            match outcome {
                Outcome::Answered(answer) => {
                    assert_eq!(answer.status, ReplyStatus::Done, "seed {seed}");
                    totals.acknowledged += 1;
                }
                Outcome::Unknown => totals.unknown += 1,
                // It waited for another request for its key, and was never sent.
                Outcome::Timeout => {}
            }
        });
    }
    let numbers = fixture
        .workers
        .iter()
        .flat_map(|worker| KEYS.map(|key| worker.exec.number(key)));
    totals.value = numbers.flatten().sum();
    totals
}

fn lossy() -> Faults {
    Faults {
        drop_per_mille: 100,
        delay_min: Duration::from_micros(1),
        delay_max: Duration::from_micros(3),
        ..Faults::default()
    }
}

fn plainly(fixture: &mut Fixture<Model>) {
    fixture.serve();
}

/// A hundred thousand, or `HERDWICK_INCREMENTS` (CI: a million).
fn increments() -> u64 {
    herdwick_check::count("HERDWICK_INCREMENTS", 100_000)
}

#[test]
fn increments_survive_one_loss_in_ten() {
    let totals = count((UcWrite, 1), increments(), lossy(), &mut plainly);
    assert!(totals.holds(), "{totals:?}");
    assert!(totals.acknowledged > increments() / 100 * 99, "{totals:?}");
}

#[test]
fn increments_over_ud_survive_loss_duplication_and_reordering() {
    let faults = Faults {
        drop_per_mille: 50,
        duplicate_per_mille: 50,
        reorder_per_mille: 50,
        reorder_window: Duration::from_micros(100),
        ..lossy()
    };
    let totals = count((UdSend, 1), increments(), faults, &mut plainly);
    assert!(totals.holds(), "{totals:?}");
    assert!(totals.acknowledged > increments() / 100 * 99, "{totals:?}");
}

#[test]
fn increments_over_rc_count_once_when_replies_are_lost() {
    let totals = count((RcWrite, 1), 100_000, lossy(), &mut plainly);
    assert!(totals.holds(), "{totals:?}");
    assert!(totals.acknowledged > 99_000, "{totals:?}");
}

#[test]
fn half_of_all_packets_lost_gives_unknown_outcomes_and_correct_counts() {
    for seed in 0..20 {
        let faults = Faults {
            drop_per_mille: 600,
            duplicate_per_mille: 200,
            reorder_per_mille: 200,
            reorder_window: Duration::from_micros(100),
            ..lossy()
        };
        for path in [UcWrite, UdSend] {
            let totals = count((path, seed), 2_000, faults.clone(), &mut plainly);
            assert!(totals.holds(), "{path}, seed {seed}: {totals:?}");
            assert!(totals.unknown > 0, "{path}, seed {seed}: {totals:?}");
        }
    }
}

#[test]
fn server_without_duplicate_detection_fails_the_check() {
    let mut forgetful: Option<Vec<Forgetful>> = None;
    let totals = count((UcWrite, 1), 20_000, lossy(), &mut |fixture| {
        let views = forgetful.get_or_insert_with(|| {
            let workers = 0..fixture.workers.len();
            workers
                .map(|worker| Forgetful::new(fixture, worker))
                .collect()
        });
        for (worker, view) in fixture.workers.iter_mut().zip(views) {
            view.make_retries_new();
            let mut port = Renaming {
                port: &mut worker.port,
                view,
            };
            worker.side.pass(&mut port, CLOCK, &mut worker.exec);
        }
    });
    assert!(!totals.holds(), "{totals:?}");
    assert!(
        totals.value > totals.acknowledged + totals.unknown,
        "{totals:?}"
    );
}

/// Rewrites the clients' lines before the worker reads them: every retry of an executed request
/// gets the next sequence, as if the worker did not remember it.
struct Forgetful {
    window: Window,
    clients: Vec<Forgotten>,
}

struct Forgotten {
    address: AddressHandle,
    lines: Span,
    /// For each slot the control word last shown to the worker, and by how many sequences the
    /// worker is ahead of the client.
    slots: Vec<(u64, usize)>,
}

const SEQUENCE_SHIFT: u32 = 24;

impl Forgetful {
    fn new(fixture: &Fixture<Model>, worker: usize) -> Self {
        let slots = fixture.window.slots();
        let clients = fixture.clients.iter().map(|client| Forgotten {
            address: client.leases[worker].address,
            lines: client.leases[worker].lines.clone(),
            slots: vec![(0, 0); slots],
        });
        Self {
            window: fixture.window,
            clients: clients.collect(),
        }
    }

    fn make_retries_new(&mut self) {
        let window = self.window.slots();
        for Forgotten { lines, slots, .. } in &mut self.clients {
            for (slot, (shown, ahead)) in slots.iter_mut().enumerate() {
                let word = slot * LINE_WORDS + CONTROL_WORD;
                let control = lines.load_acquire(word);
                if control == *shown {
                    continue;
                }
                let sequence = Sequence::new((control >> SEQUENCE_SHIFT) as u32);
                let last = Sequence::new((*shown >> SEQUENCE_SHIFT) as u32);
                let is_retry = *shown != 0 && sequence.plus(*ahead) == last;
                *ahead += if is_retry { window } else { 0 };
                let renamed = u64::from(sequence.plus(*ahead).get()) << SEQUENCE_SHIFT;
                *shown = control & !(0xff_ffff << SEQUENCE_SHIFT) | renamed;
                lines.store_release(word, *shown);
            }
        }
    }
}

/// The worker's port, on which replies carry the sequence that the client knows.
struct Renaming<'a> {
    port: &'a mut SeededPort,
    view: &'a Forgetful,
}

impl Port for Renaming<'_> {
    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut renamed = batch.to_vec();
        for send in &mut renamed {
            let SendOp::Send {
                imm: Some(name),
                to: Some(to),
                ..
            } = &mut send.op
            else {
                continue;
            };
            let (worker, sequence) = split_imm(*name);
            let slot = self.view.window.slot(sequence);
            let mut clients = self.view.clients.iter();
            let client = clients.find(|client| client.address == *to).unwrap();
            *name = imm(worker, sequence.minus(client.slots[slot].1));
        }
        self.port.post_send(qp, &renamed)
    }
    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        self.port.post_recv(qp, batch)
    }
    fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        self.port.poll(cq, out)
    }
    fn progress(&mut self, now: Duration) -> Progress {
        self.port.progress(now)
    }
    fn arm(&mut self, cq: CqId) -> Armed {
        self.port.arm(cq)
    }
    fn disarm(&mut self, cq: CqId) {
        self.port.disarm(cq);
    }
    fn wait_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.port.wait_fd()
    }
    fn region(&self, region: RegionId) -> Option<&Span> {
        self.port.region(region)
    }
}
