//! Table 1 of the HERD paper, and the effects of WRITE, READ and the atomics on memory.

use herdwick_fabric::{
    Access, Atomics, ControlError, Local, Payload, PostError, Remote, SendOp, Status,
    Transport::{Rc, Uc, Ud},
};

use crate::{
    Skip,
    stage::{A, B, REGION, Stage, TRANSPORTS, need, signaled, write},
};

const WORD: usize = 8;

pub(crate) fn each_transport_allows_the_verbs_of_table_1(mut stage: Stage) -> Result<(), Skip> {
    for transport in TRANSPORTS {
        if !stage.has(transport) {
            let spec = stage.sides[A].spec(transport);
            let made = stage.sides[A].party.create_qp(&spec);
            assert!(matches!(made, Err(ControlError::Unsupported(_))));
            continue;
        }
        let reads = stage.capabilities().read;
        let atomics = stage.capabilities().atomics != Atomics::None;
        let link = stage.link(transport);
        let region = stage.sides[B].region(Access::ALL);
        let at = stage.sides[B].remote(region);
        let into = Local {
            len: WORD,
            ..stage.sides[A].buffer(0)
        };
        let (add, expected, new) = (1, 0, 1);
        let table = [
            (true, link.send(A, Payload::Words(&[1]), None)),
            (transport != Ud, write(Payload::Words(&[1]), at)),
            (transport == Rc && reads, SendOp::Read { into, from: at }),
            (
                transport == Rc && atomics,
                SendOp::FetchAdd { into, at, add },
            ),
            (
                transport == Rc && atomics,
                SendOp::CompareSwap {
                    into,
                    at,
                    expected,
                    new,
                },
            ),
        ];
        for (allowed, op) in table {
            stage.sides[B].recv(link.qp[B], 0);
            let answer = stage.sides[A]
                .party
                .post_send(link.qp[A], &[signaled(1, op)]);
            if allowed {
                assert_eq!(answer, Ok(()), "{transport:?} {op:?}");
                stage.success(A);
            } else {
                let refused = Err(PostError::Transport(transport));
                assert_eq!(answer, refused, "{transport:?} {op:?}");
            }
        }
    }
    Ok(())
}

/// The three kinds of payload for the same bytes; a region payload starts at an odd byte.
fn payloads<'a>(stage: &mut Stage, bytes: &'a [u8], words: &'a [u64]) -> Vec<Payload<'a>> {
    let outbox = Local {
        region: stage.sides[A].outbox,
        offset: 3,
        len: bytes.len(),
    };
    stage.sides[A]
        .party
        .write(outbox.region, outbox.offset, bytes);
    let mut all = vec![Payload::Region(outbox)];
    if bytes.len() <= stage.capabilities().inline_bytes_max {
        all.push(Payload::Inline(bytes));
        if bytes.len().is_multiple_of(WORD) {
            all.push(Payload::Words(words));
        }
    }
    all
}

fn pattern(len: usize, salt: usize) -> (Vec<u8>, Vec<u64>) {
    // Never 0, which is what memory holds before.
    let byte = |i: usize| u8::try_from((i * 7 + salt * 31 + 1) % 255).unwrap_or(0) + 1;
    let bytes: Vec<u8> = (0..len).map(byte).collect();
    let words = bytes.chunks_exact(WORD).map(|chunk| {
        let whole = chunk.try_into().expect("a whole word");
        u64::from_le_bytes(whole)
    });
    (bytes.clone(), words.collect())
}

pub(crate) fn write_changes_its_range_and_nothing_else(mut stage: Stage) -> Result<(), Skip> {
    for transport in stage.dependable(&[Rc, Uc])? {
        let link = stage.link(transport);
        let region = stage.sides[B].region(Access::WRITE);
        let at = stage.sides[B].remote(region);
        let mut model = vec![0u8; REGION];
        // Around whole words and cache lines.
        let lengths = [
            1, 3, 7, 8, 9, 15, 16, 31, 56, 63, 64, 65, 120, 200, 256, 1000,
        ];
        let offsets = [0, 1, 5, 8, 13, 60, 64, 127, 512];
        let mut salt = 0;
        for len in lengths {
            // And up to the last byte.
            for offset in offsets.into_iter().chain([REGION - len]) {
                salt += 1;
                let (bytes, words) = pattern(len, salt);
                for payload in payloads(&mut stage, &bytes, &words) {
                    stage.perform(link.qp[A], write(payload, at.offset(offset as u64)));
                    model[offset..offset + len].copy_from_slice(&bytes);
                    stage.arrived(region, 0, &model);
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn write_overwrites_in_order(mut stage: Stage) -> Result<(), Skip> {
    for transport in stage.dependable(&[Rc, Uc])? {
        let link = stage.link(transport);
        let region = stage.sides[B].region(Access::WRITE);
        let at = stage.sides[B].remote(region);
        for round in 1..=200u64 {
            // Three overlapping WRITEs in flight: the last one remains.
            let lines = [[round; 8], [round + 1; 8], [round + 2; 8]];
            let batch = lines.map(|line| line.map(u64::to_le_bytes).concat());
            let batch: Vec<_> = batch
                .iter()
                .map(|line| signaled(round, write(Payload::Inline(line), at)))
                .collect();
            stage.sides[A].post(link.qp[A], &batch);
            for wr in &batch {
                assert_eq!(stage.success(A).wr_id, wr.wr_id);
            }
            let last = [round + 2; 8].map(u64::to_le_bytes).concat();
            stage.arrived(region, 0, &last);
        }
        stage.silence();
        let last = [202; 8].map(u64::to_le_bytes).concat();
        assert_eq!(stage.sides[B].party.read(region, 0, 64), last);
    }
    Ok(())
}

pub(crate) fn zero_length_messages_are_delivered(mut stage: Stage) -> Result<(), Skip> {
    for transport in stage.dependable(&TRANSPORTS)? {
        let link = stage.link(transport);
        stage.sides[B].recv(link.qp[B], 5);
        stage.perform(link.qp[A], link.send(A, Payload::Inline(&[]), Some(9)));
        let received = stage.success(B);
        let endpoint = (received.wr_id, received.byte_len, received.imm);
        assert_eq!(endpoint, (5, 0, Some(9)));
        if transport != Ud {
            let region = stage.sides[B].region(Access::WRITE);
            let at = stage.sides[B].remote(region);
            stage.perform(link.qp[A], write(Payload::Words(&[]), at));
            stage.perform(
                link.qp[A],
                // At the end of the region: no byte of it is outside.
                write(Payload::Words(&[]), at.offset(REGION as u64)),
            );
            stage.silence();
            assert_eq!(stage.sides[B].party.read(region, 0, REGION), [0; REGION]);
        }
    }
    Ok(())
}

pub(crate) fn read_returns_the_remote_bytes(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().read, "no READ")?;
    let link = stage.link(Rc);
    let region = stage.sides[B].region(Access::READ);
    let from = stage.sides[B].remote(region);
    let (bytes, _) = pattern(REGION, 1);
    stage.sides[B].party.write(region, 0, &bytes);
    let inbox = stage.sides[A].inbox;
    let mut model = vec![0; REGION];
    for (len, to, offset) in [
        (1, 0, 5),
        (8, 9, 64),
        (64, 100, 63),
        (1000, 513, 77),
        (0, 3, 3),
    ] {
        let into = Local {
            region: inbox,
            offset: to,
            len,
        };
        let from = from.offset(offset as u64);
        stage.perform(link.qp[A], SendOp::Read { into, from });
        model[to..to + len].copy_from_slice(&bytes[offset..offset + len]);
        let found = stage.sides[A].party.read(inbox, 0, REGION);
        assert_eq!(found, model, "{len} bytes from {offset} to {to}");
    }
    Ok(())
}

/// Objects of the atomic behaviours: a queue pair, the word, and the buffer for old values.
struct SharedCounter {
    qp: herdwick_fabric::QpId,
    region: herdwick_fabric::RegionId,
    at: Remote,
    into: Local,
}

fn counter(stage: &mut Stage) -> Result<SharedCounter, Skip> {
    need(stage.capabilities().atomics != Atomics::None, "no atomics")?;
    let qp = stage.link(Rc).qp[A];
    let region = stage.sides[B].region(Access::ALL);
    let at = stage.sides[B].remote(region);
    let into = Local {
        len: WORD,
        ..stage.sides[A].buffer(1)
    };
    Ok(SharedCounter {
        qp,
        region,
        at,
        into,
    })
}

impl SharedCounter {
    fn old(&self, stage: &mut Stage) -> u64 {
        let word = self.into.offset / WORD;
        stage.sides[A].party.load(self.into.region, word)
    }

    fn add(&self, stage: &mut Stage, word: u64, add: u64) -> u64 {
        let (into, at) = (self.into, self.at.offset(8 * word));
        stage.perform(self.qp, SendOp::FetchAdd { into, at, add });
        self.old(stage)
    }

    fn swap(&self, stage: &mut Stage, expected: u64, new: u64) -> u64 {
        let (into, at) = (self.into, self.at);
        let op = SendOp::CompareSwap {
            into,
            at,
            expected,
            new,
        };
        stage.perform(self.qp, op);
        self.old(stage)
    }
}

pub(crate) fn fetch_add_returns_the_old_value(mut stage: Stage) -> Result<(), Skip> {
    let counter = counter(&mut stage)?;
    assert_eq!(counter.add(&mut stage, 3, 5), 0);
    // The sum wraps around: this takes 1 away.
    assert_eq!(counter.add(&mut stage, 3, u64::MAX), 5);
    assert_eq!(counter.add(&mut stage, 3, 0), 4);
    let found = stage.sides[B].party.read(counter.region, 16, 24);
    assert_eq!(found, [0, 4, 0].map(u64::to_le_bytes).concat());
    Ok(())
}

pub(crate) fn compare_swap_stores_only_if_equal(mut stage: Stage) -> Result<(), Skip> {
    let counter = counter(&mut stage)?;
    assert_eq!(counter.swap(&mut stage, 0, 7), 0);
    assert_eq!(counter.swap(&mut stage, 0, 9), 7, "not what was expected");
    assert_eq!(stage.sides[B].party.load(counter.region, 0), 7);
    assert_eq!(counter.swap(&mut stage, 7, 9), 7);
    assert_eq!(stage.sides[B].party.load(counter.region, 0), 9);
    Ok(())
}

pub(crate) fn atomics_and_cpu_increments_lose_no_count(mut stage: Stage) -> Result<(), Skip> {
    const EACH: u64 = 2000;
    const AT_ONCE: u64 = 8;
    let coherent = stage.capabilities().atomics == Atomics::Coherent;
    need(coherent, "atomics are not coherent with the CPU")?;
    let counter = counter(&mut stage)?;
    let [a, b] = &mut stage.sides;
    let (begin, tick) = (stage.now, std::time::Duration::from_micros(1));
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            let mut now = begin;
            for i in 0..EACH {
                let (into, at) = (counter.into, counter.at);
                let op = SendOp::FetchAdd { into, at, add: 1 };
                a.post(counter.qp, &[signaled(i, op)]);
                let mut checks = 0..10_000_000;
                while a.party.poll(a.cq).is_empty() {
                    assert!(checks.next().is_some(), "no answer to an atomic");
                    now += tick;
                    a.party.progress(now);
                    std::thread::yield_now();
                }
            }
        });
        // Some providers execute atomics in the target's own passes.
        let (mut now, mut counts) = (begin, 0);
        // Passes go on until A has its last answer.
        while counts < EACH || !far.is_finished() {
            if counts < EACH {
                b.party.count_up(counter.region, 0, AT_ONCE);
                counts += AT_ONCE;
            }
            now += tick;
            b.party.progress(now);
            std::thread::yield_now();
        }
    });
    assert_eq!(b.party.load(counter.region, 0), 2 * EACH);
    Ok(())
}

pub(crate) fn misaligned_atomics_are_refused(mut stage: Stage) -> Result<(), Skip> {
    let counter = counter(&mut stage)?;
    let (into, at) = (counter.into, counter.at.offset(4));
    let op = SendOp::FetchAdd { into, at, add: 1 };
    stage.sides[A].post(counter.qp, &[signaled(1, op)]);
    assert_eq!(stage.next(A).status, Status::RemoteInvalid);
    assert_eq!(stage.sides[B].party.read(counter.region, 0, 16), [0; 16]);
    Ok(())
}
