//! Behaviours of sleeping and waking: no completion that arrives between arming and sleeping is missed.

use std::time::Duration;

use herdwick_fabric::{
    Access, Armed, Payload, RegionId, Remote,
    Transport::{Rc, Uc, Ud},
};

use crate::{
    Skip,
    stage::{A, B, Link, Side, Stage, need, signaled, write},
};

/// Longer than any wakeup takes: a wakeup that takes this long is lost.
const FOREVER: Duration = Duration::from_secs(20);
/// Checks of a word or queue after which the other side counts as stuck.
const CHECKS: u64 = 1 << 32;

/// Makes a link whose messages arrive, with some RECVs posted on both sides.
fn messenger(stage: &mut Stage) -> Result<Link, Skip> {
    let transport = stage.dependable(&[Rc, Uc, Ud])?[0];
    let link = stage.link(transport);
    for side in [A, B] {
        (0..8).for_each(|id| stage.sides[side].recv(link.qp[side], id));
    }
    can_wake(stage, B)?;
    Ok(link)
}

fn can_wake(stage: &mut Stage, side: usize) -> Result<(), Skip> {
    let side = &mut stage.sides[side];
    // No capability says it, so it is tried.
    let armed = side.party.arm(side.cq);
    side.party.disarm(side.cq);
    need(armed != Armed::Never, "the port can only be polled")
}

fn asleep(side: &mut Side) -> bool {
    side.party.wait(Duration::ZERO) == Some(false)
}

fn woken(side: &mut Side) -> bool {
    side.party.wait(FOREVER) == Some(true)
}

pub(crate) fn a_completion_wakes_an_armed_port(mut stage: Stage) -> Result<(), Skip> {
    let link = messenger(&mut stage)?;
    for round in 0..20 {
        let b = &mut stage.sides[B];
        assert_eq!(b.party.arm(b.cq), Armed::Yes);
        assert!(asleep(b), "round {round}: nothing has come yet");
        let words = [round];
        let op = link.send(A, Payload::Words(&words), None);
        stage.sides[A].post(link.qp[A], &[signaled(1, op)]);
        wake_comes(&mut stage);
        assert_eq!(stage.success(A).wr_id, 1);
        // The eight RECVs are used in turn.
        assert_eq!(stage.success(B).wr_id, round % 8);
        stage.sides[B].recv(link.qp[B], round % 8);
    }
    Ok(())
}

/// Runs A, and only checks B's descriptor, until B is woken; then drains the descriptor.
fn wake_comes(stage: &mut Stage) {
    for _ in 0..stage.timeout() {
        stage.now += Duration::from_micros(1);
        let [a, b] = &mut stage.sides;
        // B makes no pass, as it would sleep.
        a.party.progress(stage.now);
        if b.party.wait(Duration::ZERO) == Some(true) {
            b.party.disarm(b.cq);
            assert!(asleep(b), "disarming drains the descriptor");
            return;
        }
    }
    panic!("nothing woke the armed port");
}

pub(crate) fn a_write_wakes_an_armed_port(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().wakes_on_write, "a WRITE does not wake")?;
    let transport = stage.dependable(&[Uc, Rc])?[0];
    can_wake(&mut stage, B)?;
    let link = stage.link(transport);
    let region = stage.sides[B].region(Access::WRITE);
    let at = stage.sides[B].remote(region);
    for round in 1..=20 {
        let b = &mut stage.sides[B];
        assert_eq!(b.party.arm(b.cq), Armed::Yes);
        assert!(asleep(b), "round {round}: nothing has come yet");
        let words = [round];
        let op = write(Payload::Words(&words), at);
        stage.sides[A].post(link.qp[A], &[signaled(1, op)]);
        wake_comes(&mut stage);
        stage.success(A);
        stage.arrived(region, 0, &round.to_le_bytes());
    }
    Ok(())
}

pub(crate) fn arming_with_a_queued_completion_returns_pending(
    mut stage: Stage,
) -> Result<(), Skip> {
    let link = messenger(&mut stage)?;
    let timeout = stage.timeout();
    let b = &mut stage.sides[B];
    b.party.fail_qp(link.qp[B]).expect("ours");
    // A provider with hardware flushes asynchronously.
    let mut flushed = 0;
    for _ in 0..timeout {
        if flushed == 8 {
            break;
        }
        if b.party.arm(b.cq) == Armed::Pending {
            flushed += b.party.poll(b.cq).len();
        }
        b.party.disarm(b.cq);
    }
    assert_eq!(flushed, 8, "flushed RECVs wait");
    assert_eq!(b.party.arm(b.cq), Armed::Yes);
    b.party.disarm(b.cq);
    Ok(())
}

pub(crate) fn disarming_cancels_the_wakeup(mut stage: Stage) -> Result<(), Skip> {
    let link = messenger(&mut stage)?;
    for round in 0..4 {
        let b = &mut stage.sides[B];
        assert_eq!(b.party.arm(b.cq), Armed::Yes);
        b.party.disarm(b.cq);
        stage.perform(link.qp[A], link.send(A, Payload::Words(&[1]), None));
        assert_eq!(stage.success(B).wr_id, round);
        assert!(asleep(&mut stage.sides[B]), "woken though disarmed");
    }
    Ok(())
}

/// Lets B sleep until `found` succeeds; it arms, checks again and waits each time.
fn sleep_until(b: &mut Side, now: &mut Duration, found: &mut dyn FnMut(&mut Side) -> bool) {
    for _ in 0..CHECKS {
        *now += Duration::from_micros(1);
        b.party.progress(*now);
        if found(b) {
            return;
        }
        let armed = b.party.arm(b.cq) == Armed::Yes;
        // What came before it was armed wakes nothing, so it looks again.
        b.party.progress(*now);
        if found(b) {
            b.party.disarm(b.cq);
            return;
        }
        assert!(!armed || woken(b), "a wake was lost");
        b.party.disarm(b.cq);
    }
    panic!("woken again and again for nothing");
}

/// Lets A poll, without sleeping, until `found` succeeds.
fn spin_until(a: &mut Side, now: &mut Duration, found: &mut dyn FnMut(&mut Side) -> bool) {
    for _ in 0..CHECKS {
        *now += Duration::from_micros(1);
        a.party.progress(*now);
        if found(a) {
            return;
        }
        // The sleeper may need this core.
        std::thread::yield_now();
    }
    panic!("the sleeper did not answer");
}

/// Receives one message and posts its RECV again; completions of own sends are skipped.
fn receive(side: &mut Side, link: Link, own: usize) -> bool {
    let done = side.party.poll(side.cq);
    let received = done
        .iter()
        .filter(|done| done.qp == link.qp[own] && done.wr_id < 8);
    let ids: Vec<u64> = received.map(|done| done.wr_id).collect();
    ids.iter().for_each(|id| side.recv(link.qp[own], *id));
    !ids.is_empty()
}

/// A SENDs and spins, B sleeps and answers, each on its own thread.
pub(crate) fn no_wakeup_by_a_completion_is_lost(mut stage: Stage) -> Result<(), Skip> {
    let link = messenger(&mut stage)?;
    let (start, rounds) = (stage.now, stage.rounds());
    let [a, b] = &mut stage.sides;
    let speak = |side: &mut Side, own: usize| {
        let op = link.send(own, Payload::Words(&[1]), None);
        side.post(link.qp[own], &[signaled(99, op)]);
    };
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            let mut now = start;
            for _ in 0..rounds {
                sleep_until(b, &mut now, &mut |b| receive(b, link, B));
                speak(b, B);
                // The posted message must be sent before this side sleeps again.
                b.party.progress(now);
            }
        });
        let mut now = start;
        for _ in 0..rounds {
            speak(a, A);
            spin_until(a, &mut now, &mut |a| receive(a, link, A));
        }
        sleeper.join().expect("the sleeper woke each time");
    });
    Ok(())
}

/// As above, with WRITEs to B; B answers by WRITE, too.
pub(crate) fn no_wakeup_by_a_write_is_lost(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().wakes_on_write, "a WRITE does not wake")?;
    let transport = stage.dependable(&[Uc, Rc])?[0];
    can_wake(&mut stage, B)?;
    let link = stage.link(transport);
    let regions = [A, B].map(|side| stage.sides[side].region(Access::WRITE));
    let at = [A, B].map(|side| stage.sides[side].remote(regions[side]));
    let (start, rounds) = (stage.now, stage.rounds());
    let [a, b] = &mut stage.sides;
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            let mut now = start;
            for round in 1..=rounds {
                sleep_until(b, &mut now, &mut |b| has(b, regions[B], round));
                post_round(b, link.qp[B], at[A], round);
                b.party.progress(now);
            }
        });
        let mut now = start;
        for round in 1..=rounds {
            post_round(a, link.qp[A], at[B], round);
            spin_until(a, &mut now, &mut |a| has(a, regions[A], round));
        }
        sleeper.join().expect("the sleeper woke each time");
    });
    Ok(())
}

fn has(side: &mut Side, region: RegionId, round: u64) -> bool {
    // Its own WRITEs complete here, and would fill the queue.
    side.party.poll(side.cq);
    side.party.load(region, 0) == round
}

fn post_round(side: &mut Side, qp: herdwick_fabric::QpId, to: Remote, round: u64) {
    let words = [round];
    let op = write(Payload::Words(&words), to);
    side.post(qp, &[signaled(99, op)]);
}
