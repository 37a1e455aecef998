//! Behaviours of queues: order, signaling, and overflow.

use herdwick_fabric::{
    Access, ControlError, CqSpec, Local, Payload, PostError, QpSpec, RecvWr, Remote, Rkey, SendWr,
    Status,
    Transport::{Rc, Uc},
};

use crate::{
    Skip,
    stage::{A, B, DEPTH, Link, REGION, Stage, TRANSPORTS, need, signaled, unsignaled, write},
};

/// Makes a link that carries WRITE, and returns the memory that it may write.
fn writer(stage: &mut Stage) -> Result<(Link, Remote), Skip> {
    let transport = stage.dependable(&[Uc, Rc])?[0];
    let link = stage.link(transport);
    let region = stage.sides[B].region(Access::WRITE);
    Ok((link, stage.sides[B].remote(region)))
}

pub(crate) fn unsignaled_success_has_no_completion(mut stage: Stage) -> Result<(), Skip> {
    let (link, at) = writer(&mut stage)?;
    let quiet = unsignaled(1, write(Payload::Words(&[1]), at));
    // No more than fit: only a later completion frees their slots.
    stage.sides[A].post(link.qp[A], &[quiet; DEPTH / 2]);
    stage.silence();
    stage.perform(link.qp[A], write(Payload::Words(&[2]), at));
    stage.silence();
    Ok(())
}

pub(crate) fn unsignaled_failure_has_a_completion(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().rc, "only RC learns of failure")?;
    let link = stage.link(Rc);
    let nowhere = Remote {
        rkey: Rkey(0x5bad_5bad),
        addr: 0,
    };
    let bad = unsignaled(7, write(Payload::Words(&[1]), nowhere));
    stage.sides[A].post(link.qp[A], &[bad]);
    let completion = stage.next(A);
    assert_eq!(completion.wr_id, 7);
    assert_eq!(completion.status, Status::RemoteAccess);
    Ok(())
}

/// In one batch, and whether they are signaled or not.
pub(crate) fn requests_behind_a_failed_one_are_flushed(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().rc, "only RC learns of failure")?;
    let region = stage.sides[B].region(Access::WRITE);
    let to = stage.sides[B].remote(region);
    let nowhere = Remote {
        rkey: Rkey(to.rkey.0 ^ 1),
        ..to
    };
    let link = stage.link(Rc);
    let batch = [
        unsignaled(7, write(Payload::Words(&[1]), nowhere)),
        unsignaled(8, write(Payload::Words(&[2]), to)),
        signaled(9, write(Payload::Words(&[3]), to.offset(8))),
    ];
    stage.sides[A].post(link.qp[A], &batch);
    for (wr_id, status) in [
        (7, Status::RemoteAccess),
        (8, Status::Flushed),
        (9, Status::Flushed),
    ] {
        let completion = stage.next(A);
        assert_eq!((completion.wr_id, completion.status), (wr_id, status));
    }
    stage.silence();
    // What was flushed has had no effect.
    assert_eq!(stage.sides[B].party.read(region, 0, 16), [0; 16]);
    Ok(())
}

pub(crate) fn a_postlist_completes_in_order(mut stage: Stage) -> Result<(), Skip> {
    for transport in stage.dependable(&TRANSPORTS)? {
        let link = stage.link(transport);
        let length = DEPTH.min(stage.capabilities().postlist_max);
        for round in 0..10u64 {
            // No two rounds share an id.
            let ids = round * 100..round * 100 + length as u64;
            ids.clone()
                .for_each(|id| stage.sides[B].recv(link.qp[B], id));
            let words: Vec<[u64; 2]> = ids.clone().map(|id| [id, !id]).collect();
            let batch: Vec<_> = ids
                .clone()
                .zip(&words)
                .map(|(id, words)| signaled(id, link.send(A, Payload::Words(words), None)))
                .collect();
            stage.sides[A].post(link.qp[A], &batch);
            for id in ids {
                assert_eq!(stage.success(A).wr_id, id);
                assert_eq!(stage.success(B).wr_id, id);
            }
        }
        stage.silence();
    }
    Ok(())
}

pub(crate) fn a_full_send_queue_refuses_the_whole_batch(mut stage: Stage) -> Result<(), Skip> {
    let (link, at) = writer(&mut stage)?;
    let batch: Vec<SendWr<'_>> = (0..DEPTH as u64)
        .map(|id| signaled(id, write(Payload::Words(&[1]), at)))
        .collect();
    let room = 3;
    for wr in &batch[..DEPTH - room] {
        // One by one, as a batch may not be this long (`postlist_max`).
        stage.sides[A].post(link.qp[A], &[*wr]);
    }
    let refused = stage.sides[A].party.post_send(link.qp[A], &batch[..=room]);
    assert_eq!(refused, Err(PostError::Full), "not even a part of it");
    stage.sides[A].post(link.qp[A], &batch[DEPTH - room..]);
    let refused = stage.sides[A].party.post_send(link.qp[A], &batch[..1]);
    assert_eq!(
        refused,
        Err(PostError::Full),
        "until completions are polled"
    );
    for wr in &batch {
        assert_eq!(stage.success(A).wr_id, wr.wr_id);
    }
    stage.silence();
    stage.sides[A].post(link.qp[A], &batch[..1]);
    stage.success(A);
    Ok(())
}

pub(crate) fn a_full_recv_queue_refuses_the_whole_batch(mut stage: Stage) -> Result<(), Skip> {
    let transport = stage.dependable(&TRANSPORTS)?[0];
    let link = stage.link(transport);
    let into = stage.sides[B].buffer(0);
    let recv = |wr_id| RecvWr { wr_id, into };
    let post =
        |stage: &mut Stage, batch: &[RecvWr]| stage.sides[B].party.post_recv(link.qp[B], batch);
    for id in 0..DEPTH as u64 - 1 {
        assert_eq!(post(&mut stage, &[recv(id)]), Ok(()));
    }
    assert_eq!(
        post(&mut stage, &[recv(1000), recv(1001)]),
        Err(PostError::Full)
    );
    let last = DEPTH as u64 - 1;
    assert_eq!(post(&mut stage, &[recv(last)]), Ok(()));
    assert_eq!(post(&mut stage, &[recv(1002)]), Err(PostError::Full));
    for id in 0..DEPTH as u64 {
        stage.perform(link.qp[A], link.send(A, Payload::Words(&[1]), None));
        assert_eq!(stage.success(B).wr_id, id);
    }
    assert_eq!(post(&mut stage, &[recv(1003)]), Ok(()));
    Ok(())
}

pub(crate) fn a_bad_request_refuses_the_whole_batch(mut stage: Stage) -> Result<(), Skip> {
    let (link, at) = writer(&mut stage)?;
    let outside = Local {
        region: stage.sides[A].outbox,
        offset: REGION - 4,
        len: 5,
    };
    let good = signaled(1, write(Payload::Words(&[1]), at));
    let bad = signaled(2, write(Payload::Region(outside), at));
    // At each place of the batch.
    for batch in [[good, bad, good], [bad, good, good], [good, good, bad]] {
        let refused = stage.sides[A].party.post_send(link.qp[A], &batch);
        assert_eq!(refused, Err(PostError::Bounds));
    }
    stage.silence();
    // The queue pair has not failed.
    stage.perform(link.qp[A], good.op);
    Ok(())
}

pub(crate) fn polling_a_later_completion_frees_unsignaled_slots(
    mut stage: Stage,
) -> Result<(), Skip> {
    let (link, at) = writer(&mut stage)?;
    let op = write(Payload::Words(&[1]), at);
    // Each round fills the queue, so the next finds no room unless all slots are free again.
    for round in 0..50 {
        let mut batch = vec![unsignaled(0, op); DEPTH - 1];
        batch.push(signaled(round, op));
        for part in batch.chunks(stage.capabilities().postlist_max.min(DEPTH)) {
            stage.sides[A].post(link.qp[A], part);
        }
        assert_eq!(stage.success(A).wr_id, round);
    }
    stage.silence();
    Ok(())
}

pub(crate) fn payload_may_change_after_an_inline_post(mut stage: Stage) -> Result<(), Skip> {
    let transport = stage.dependable(&[Uc, Rc])?[0];
    let link = stage.link(transport);
    let region = stage.sides[B].region(Access::WRITE);
    let at = stage.sides[B].remote(region);
    let (mut bytes, mut words) = ([1u8; 9], [1u64; 3]);
    stage.sides[A].post(
        link.qp[A],
        &[signaled(1, write(Payload::Inline(&bytes), at))],
    );
    let second = write(Payload::Words(&words), at.offset(64));
    stage.sides[A].post(link.qp[A], &[signaled(2, second)]);
    // The provider has copied them when the post returns.
    bytes.fill(2);
    words.fill(2);
    stage.arrived(region, 0, &[1; 9]);
    stage.arrived(region, 64, &[1u64; 3].map(u64::to_le_bytes).concat());
    // Used once more, so that the changes are not optimized away.
    assert_eq!((bytes, words), ([2; 9], [2; 3]));
    Ok(())
}

pub(crate) fn a_completion_queue_too_small_is_refused(mut stage: Stage) -> Result<(), Skip> {
    let transport = stage.dependable(&TRANSPORTS)?[0];
    let side = &mut stage.sides[A];
    let cq = side
        .party
        .create_cq(&CqSpec { depth: 16 })
        .expect("a queue");
    let spec = |send_depth, recv_depth| QpSpec {
        send_cq: cq,
        recv_cq: cq,
        send_depth,
        recv_depth,
        ..side.spec(transport)
    };
    let [too_much, fits, more] = [spec(8, 9), spec(8, 4), spec(4, 1)];
    let refused = side.party.create_qp(&too_much);
    assert!(matches!(refused, Err(ControlError::Limit { .. })));
    let qp = side.party.create_qp(&fits).expect("12 of 16");
    let refused = side.party.create_qp(&more);
    assert!(
        matches!(refused, Err(ControlError::Limit { .. })),
        "17 of 16"
    );
    side.party.destroy_qp(qp).expect("ours");
    side.party.create_qp(&more).expect("its share came back");
    Ok(())
}
