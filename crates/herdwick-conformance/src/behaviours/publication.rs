//! Publication: a WRITE makes its last aligned 8 bytes visible last.

use std::time::Duration;

use herdwick_fabric::{
    Access, Payload, PostError, RegionId, Remote, SendOp,
    Transport::{Rc, Uc},
};

use crate::{
    Skip,
    stage::{A, B, Link, Stage, need, signaled, write},
};

/// Words of a line: one request line, a part of one, and more than a cache line.
const LINES: [usize; 3] = [8, 3, 30];

/// Makes a link that carries ordered WRITEs, and a region of B to write to.
fn line(stage: &mut Stage) -> Result<(Link, RegionId, Remote), Skip> {
    need(stage.capabilities().ordered_write, "WRITEs are not ordered")?;
    let transport = stage.dependable(&[Uc, Rc])?[0];
    let region = stage.sides[B].region(Access::WRITE);
    let at = stage.sides[B].remote(region);
    Ok((stage.link(transport), region, at))
}

fn lines(stage: &Stage) -> [usize; 3] {
    // Words are copied into the request, so a line has no more than fit.
    let most = stage.capabilities().inline_bytes_max / 8;
    LINES.map(|count| count.min(most))
}

pub(crate) fn write_publishes_its_last_word_last_step_by_step(
    mut stage: Stage,
) -> Result<(), Skip> {
    let (link, region, at) = line(&mut stage)?;
    let mut round = 0;
    for count in lines(&stage) {
        for _ in 0..200 {
            // No two rounds store the same value, so an old line cannot pass for a new one.
            round += 1;
            let words = vec![round; count];
            let op = write(Payload::Words(&words), at);
            stage.sides[A].post(link.qp[A], &[signaled(round, op)]);
            watch(&mut stage, region, count, round);
            assert_eq!(stage.success(A).wr_id, round);
        }
    }
    Ok(())
}

/// Advances time by a nanosecond between checks, until the last word is visible.
fn watch(stage: &mut Stage, region: RegionId, count: usize, round: u64) {
    for _ in 0..stage.timeout() {
        // In the smallest steps, so that a state between two words would be seen.
        stage.now += Duration::from_nanos(1);
        let now = stage.now;
        let [a, b] = &mut stage.sides;
        a.party.progress(now);
        b.party.progress(now);
        if b.party.load(region, count - 1) == round {
            let words: Vec<u64> = (0..count).map(|i| b.party.load(region, i)).collect();
            assert_eq!(words, vec![round; count], "the last word was early");
            return;
        }
    }
    panic!("round {round} never came");
}

pub(crate) fn write_publishes_its_last_word_last_across_threads(
    mut stage: Stage,
) -> Result<(), Skip> {
    let rounds = stage.rounds();
    for count in lines(&stage) {
        let (link, region, at) = line(&mut stage)?;
        let mut now = stage.now;
        let [a, b] = &mut stage.sides;
        let timeout = 1 << 34;
        let early = std::thread::scope(|scope| {
            let follower = scope.spawn(|| b.party.follow(region, count, rounds, timeout));
            for round in 1..=rounds {
                let words = vec![round; count];
                post_when_room(a, link, write(Payload::Words(&words), at), &mut now);
            }
            // The last WRITE may be lost if the socket of `b` had no room for it.
            let words = vec![rounds; count];
            while !follower.is_finished() {
                for _ in 0..1000 {
                    now += Duration::from_micros(1);
                    a.party.progress(now);
                    a.party.poll(a.cq);
                }
                post_when_room(a, link, write(Payload::Words(&words), at), &mut now);
            }
            follower.join().expect("followed")
        });
        assert_eq!(early, Some(0), "the last word was early");
    }
    Ok(())
}

fn post_when_room(a: &mut crate::stage::Side, link: Link, op: SendOp<'_>, now: &mut Duration) {
    let wr = [signaled(1, op)];
    loop {
        *now += Duration::from_micros(1);
        a.party.progress(*now);
        a.party.poll(a.cq);
        match a.party.post_send(link.qp[A], &wr) {
            // The next attempt polls again, which makes room.
            Err(PostError::Full) => {}
            posted => return posted.expect("a WRITE"),
        }
    }
}
