//! Behaviours of READ: its bytes, its words, its order, and what overtakes it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use herdwick_fabric::{
    Access, Local, Payload, PostError, QpState, RegionId, Remote, SendOp, SendWr, Status,
    Transport::Rc,
};
use herdwick_mem::WORD;

use crate::{
    Skip,
    stage::{A, B, DEPTH, Link, REGION, Side, Stage, need, signaled, unsignaled, write},
};

/// Makes a link that carries READs, and a region of B that A may READ.
fn readable(stage: &mut Stage) -> Result<(Link, RegionId, Remote), Skip> {
    need(stage.capabilities().read, "no READ")?;
    let link = stage.link(Rc);
    let region = stage.sides[B].region(Access::READ);
    let from = stage.sides[B].remote(region);
    Ok((link, region, from))
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    // Never 0, which is what the inbox holds before.
    let byte = |i: usize| u8::try_from((i * 11 + salt * 37) % 251).unwrap_or(0) + 1;
    (0..len).map(byte).collect()
}

pub(crate) fn read_is_byte_exact_at_any_alignment(mut stage: Stage) -> Result<(), Skip> {
    let (link, region, from) = readable(&mut stage)?;
    let bytes = pattern(REGION, 3);
    stage.sides[B].party.write(region, 0, &bytes);
    let inbox = stage.sides[A].inbox;
    let mut model = vec![0; REGION];
    // Each alignment in a word, and that of the next word.
    for at in 0..9 {
        for to in 0..9 {
            for len in [1, 2, 7, 8, 9, 16, 31, 64, 71, 130] {
                let into = Local {
                    region: inbox,
                    offset: to,
                    len,
                };
                let from = from.offset(at as u64);
                stage.perform(link.qp[A], SendOp::Read { into, from });
                model[to..to + len].copy_from_slice(&bytes[at..at + len]);
                let found = stage.sides[A].party.read(inbox, 0, 256);
                assert_eq!(found, model[..256], "{len} bytes from {at} to {to}");
            }
        }
    }
    Ok(())
}

pub(crate) fn reads_up_to_the_end_of_a_region_succeed_and_beyond_are_refused(
    mut stage: Stage,
) -> Result<(), Skip> {
    need(stage.capabilities().read, "no READ")?;
    let region = stage.sides[B].region(Access::READ);
    let from = stage.sides[B].remote(region);
    let bytes = pattern(REGION, 5);
    stage.sides[B].party.write(region, 0, &bytes);
    let inbox = stage.sides[A].inbox;
    let link = stage.link(Rc);
    for len in [1, 7, 8, 64, REGION] {
        let (into, at) = (whole(inbox, len), (REGION - len) as u64);
        let from = from.offset(at);
        stage.perform(link.qp[A], SendOp::Read { into, from });
        let found = stage.sides[A].party.read(inbox, 0, len);
        assert_eq!(found, bytes[REGION - len..]);
    }
    let outside = [
        (REGION as u64, 1),
        (REGION as u64 - 7, 8),
        (0u64.wrapping_sub(1), 8),
        (1 << 40, 8),
        // Its end overflows.
        (u64::MAX - 7 - from.addr, 8),
    ];
    for (at, len) in outside {
        // A refusal fails the queue pair, so each READ has one of its own.
        let link = stage.link(Rc);
        let (into, from) = (whole(inbox, len), from.offset(at));
        let op = SendOp::Read { into, from };
        stage.sides[A].post(link.qp[A], &[signaled(1, op)]);
        assert_eq!(stage.next(A).status, Status::RemoteAccess, "{len} at {at}");
        let state = stage.sides[A].party.qp_state(link.qp[A]);
        assert_eq!(state.expect("known"), QpState::Error);
    }
    Ok(())
}

fn whole(region: RegionId, len: usize) -> Local {
    Local {
        region,
        offset: 0,
        len,
    }
}

pub(crate) fn a_window_of_reads_completes_in_order(mut stage: Stage) -> Result<(), Skip> {
    const LEN: usize = 40;
    let (link, region, from) = readable(&mut stage)?;
    let bytes = pattern(REGION, 9);
    stage.sides[B].party.write(region, 0, &bytes);
    let inbox = stage.sides[A].inbox;
    // At any alignment.
    let at = |n: usize| (n * 131) % (REGION - LEN);
    for round in 0..20 {
        let read = |n: usize| {
            let into = Local {
                region: inbox,
                offset: n * LEN,
                len: LEN,
            };
            let from = from.offset(at(n + round) as u64);
            let op = SendOp::Read { into, from };
            // All but every fourth are unsignaled; a later completion covers them.
            if n % 4 == 3 {
                signaled(n as u64, op)
            } else {
                unsignaled(n as u64, op)
            }
        };
        let batch: Vec<SendWr<'_>> = (0..DEPTH).map(read).collect();
        stage.sides[A].post(link.qp[A], &batch);
        let refused = stage.sides[A].party.post_send(link.qp[A], &batch[..1]);
        assert_eq!(refused, Err(PostError::Full));
        for n in (3..DEPTH).step_by(4) {
            assert_eq!(stage.success(A).wr_id, n as u64);
        }
        for n in 0..DEPTH {
            let found = stage.sides[A].party.read(inbox, n * LEN, LEN);
            let at = at(n + round);
            assert_eq!(found, bytes[at..at + LEN], "READ {n} of round {round}");
        }
    }
    Ok(())
}

pub(crate) fn a_fence_holds_back_what_follows_a_read(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().read, "no READ")?;
    let link = stage.link(Rc);
    let region = stage.sides[B].region(Access::ALL);
    let at = stage.sides[B].remote(region);
    let inbox = stage.sides[A].inbox;
    for round in 1..=200u64 {
        stage.sides[B].party.write(region, 0, &round.to_le_bytes());
        let local = whole(inbox, WORD);
        let fenced = |wr_id, op| SendWr {
            fence: true,
            ..unsignaled(wr_id, op)
        };
        let (into, from) = (local, at);
        // What the READ brings is sent back elsewhere, then the word itself is overwritten.
        let batch = [
            unsignaled(1, SendOp::Read { into, from }),
            fenced(2, write(Payload::Region(local), at.offset(64))),
            signaled(3, write(Payload::Words(&[u64::MAX]), at)),
        ];
        stage.sides[A].post(link.qp[A], &batch);
        assert_eq!(stage.success(A).wr_id, 3);
        assert_eq!(stage.sides[A].party.load(inbox, 0), round, "the READ");
        assert_eq!(stage.sides[B].party.load(region, 8), round, "the WRITE");
        assert_eq!(stage.sides[B].party.load(region, 0), u64::MAX);
    }
    Ok(())
}

pub(crate) fn a_fenced_atomic_does_not_overtake_a_read(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().read, "no READ")?;
    let atomics = stage.capabilities().atomics != herdwick_fabric::Atomics::None;
    need(atomics, "no atomics")?;
    let link = stage.link(Rc);
    let region = stage.sides[B].region(Access::ALL);
    let at = stage.sides[B].remote(region);
    let inbox = stage.sides[A].inbox;
    for round in 0..200u64 {
        let (into, from) = (whole(inbox, WORD), at);
        let old = Local {
            offset: 64,
            ..whole(inbox, WORD)
        };
        let add = SendOp::FetchAdd {
            into: old,
            at,
            add: 1,
        };
        let fenced = SendWr {
            fence: true,
            ..signaled(2, add)
        };
        let batch = [unsignaled(1, SendOp::Read { into, from }), fenced];
        stage.sides[A].post(link.qp[A], &batch);
        assert_eq!(stage.success(A).wr_id, 2);
        assert_eq!(stage.sides[A].party.load(inbox, 0), round);
        assert_eq!(stage.sides[A].party.load(inbox, 8), round);
    }
    Ok(())
}

pub(crate) fn reads_of_a_revoked_region_fail_and_show_nothing_newer(
    mut stage: Stage,
) -> Result<(), Skip> {
    need(stage.capabilities().read, "no READ")?;
    // Revoked before, among and after the READs.
    for early in [0, 1, 3, 1000] {
        let (link, region, from) = readable(&mut stage)?;
        stage.sides[B].party.write(region, 0, &[0x11; REGION]);
        let inbox = stage.sides[A].inbox;
        let into = whole(inbox, 4096);
        let read = |n| signaled(n, SendOp::Read { into, from });
        let batch: Vec<_> = (0..16).map(read).collect();
        stage.sides[A].post(link.qp[A], &batch);
        for _ in 0..early {
            stage.pass();
        }
        stage.sides[B].party.free_region(region).expect("ours");
        // The memory's next use is not what the old key shows.
        let next = stage.sides[B].region(Access::READ);
        stage.sides[B].party.write(next, 0, &[0x22; REGION]);
        let statuses: Vec<Status> = (0..16).map(|_| stage.next(A).status).collect();
        // From the first refusal on, none may succeed.
        let refused = statuses.iter().position(|s| *s != Status::Success);
        let refused = refused.unwrap_or(statuses.len());
        for (n, status) in statuses.iter().enumerate().skip(refused) {
            let due = match n - refused {
                0 => Status::RemoteAccess,
                _ => Status::Flushed,
            };
            assert_eq!(*status, due, "{statuses:?}");
        }
        if refused > 0 {
            let found = stage.sides[A].party.read(inbox, 0, 4096);
            assert!(!found.contains(&0x22), "bytes of the next region");
        }
        let link = stage.link(Rc);
        stage.sides[A].post(link.qp[A], &[read(1)]);
        assert_eq!(stage.next(A).status, Status::RemoteAccess);
        stage.sides[B].party.free_region(next).expect("ours");
    }
    Ok(())
}

/// Words that a writer stores round after round, while A READs all of them.
const WORDS: usize = 32;

/// READs the words as long as B's thread stores to them, and passes each copy to `check`.
fn race(
    stage: &mut Stage,
    store: impl Fn(&mut Side, RegionId, u64) + Send + Sync,
    check: impl Fn(&[u64]),
) -> Result<(), Skip> {
    let (link, region, from) = readable(stage)?;
    let (rounds, timeout) = (stage.rounds(), stage.timeout());
    let mut now = stage.now;
    let [a, b] = &mut stage.sides;
    let (start, stop) = (now, AtomicBool::new(false));
    std::thread::scope(|scope| {
        // A panic below has to end the other thread, too.
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            let (mut round, mut now) = (0, start);
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                store(b, region, round);
                now += Duration::from_micros(1);
                // Some providers serve READs in the target's own passes.
                b.party.progress(now);
            }
        });
        let into = whole(a.inbox, WORDS * WORD);
        for round in 0..rounds {
            a.post(link.qp[A], &[signaled(round, SendOp::Read { into, from })]);
            let mut passes = 0;
            while a.party.poll(a.cq).is_empty() {
                passes += 1;
                assert!(passes < timeout, "no answer to READ {round}");
                now += Duration::from_micros(1);
                a.party.progress(now);
            }
            let found = a.party.read(a.inbox, 0, WORDS * WORD);
            let words = found.as_chunks::<WORD>().0.iter();
            let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
            check(&words);
        }
    });
    Ok(())
}

/// Sets its flag when it goes out of scope.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        // It orders no other memory, so no stronger ordering is needed.
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn words_of_a_read_are_never_torn(mut stage: Stage) -> Result<(), Skip> {
    race(
        &mut stage,
        |b, region, round| {
            // All bytes of a word are equal, so a mixture of two rounds shows.
            let byte = u8::try_from(round % 255).unwrap_or(0);
            b.party.write(region, 0, &[byte; WORDS * WORD]);
        },
        |words| {
            for word in words {
                let bytes = word.to_le_bytes();
                assert_eq!(bytes, [bytes[0]; WORD], "a torn word");
            }
        },
    )
}

pub(crate) fn words_of_a_read_are_loaded_in_rising_order(mut stage: Stage) -> Result<(), Skip> {
    let ordered = stage.capabilities().ordered_read;
    need(ordered, "the words of a READ are not ordered")?;
    race(
        &mut stage,
        |b, region, round| {
            // From the last word on: what a READ loads later was stored earlier, so it is no older.
            for word in (0..WORDS).rev() {
                b.party.write(region, word * WORD, &round.to_le_bytes());
            }
        },
        |words| assert!(words.is_sorted(), "{words:?}"),
    )
}
