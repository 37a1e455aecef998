//! Behaviours of protection: which memory a peer can access.

use herdwick_fabric::{
    Access, Atomics, ControlError, Local, Payload, PostError, QpState, RegionId, RegionSpec,
    Remote, Rkey, Scope, SendOp, Status,
    Transport::{self, Rc, Uc},
};

use crate::{
    Skip,
    stage::{A, B, Link, REGION, Stage, TRANSPORTS, need, signaled, write},
};

/// Checks that `op`, posted on A, is refused: RC reports it and fails, UC drops and counts it.
fn refused(stage: &mut Stage, link: Link, op: SendOp<'_>) {
    let drops = stage.drops();
    stage.sides[A].post(link.qp[A], &[signaled(1, op)]);
    if link.transport == Rc {
        assert_eq!(stage.next(A).status, Status::RemoteAccess, "{op:?}");
        let state = stage.sides[A].party.qp_state(link.qp[A]);
        assert_eq!(state.expect("known"), QpState::Error);
    } else {
        assert_eq!(
            stage.next(A).status,
            Status::Success,
            "UC does not tell: {op:?}"
        );
    }
    stage.silence();
    // RC reports it instead.
    let counts = stage.capabilities().counted_drops && link.transport != Rc;
    assert!(!counts || stage.drops() > drops, "not counted: {op:?}");
}

/// Checks that a WRITE of `bytes` to `to` is refused on every transport that carries WRITE.
fn write_refused(stage: &mut Stage, bytes: &[u8], to: Remote) -> Result<(), Skip> {
    for transport in stage.dependable(&[Rc, Uc])? {
        let link = stage.link(transport);
        refused(stage, link, write(Payload::Inline(bytes), to));
        // After a refusal it may be of no more use, and there is room for few.
        stage.sides[A].party.destroy_qp(link.qp[A]).expect("ours");
        stage.sides[B].party.destroy_qp(link.qp[B]).expect("ours");
    }
    Ok(())
}

fn untouched(stage: &mut Stage, region: RegionId) {
    let found = stage.sides[B].party.read(region, 0, REGION);
    assert!(found.iter().all(|byte| *byte == 0));
}

pub(crate) fn unknown_rkey_is_refused(mut stage: Stage) -> Result<(), Skip> {
    let region = stage.sides[B].region(Access::WRITE);
    let at = stage.sides[B].remote(region);
    // No bits of a key may be ignored, at either end of it.
    for flip in [1, 0x8000_0000, 0xffff_ffff] {
        let rkey = Rkey(at.rkey.0 ^ flip);
        write_refused(&mut stage, &[1; 8], Remote { rkey, ..at })?;
    }
    untouched(&mut stage, region);
    Ok(())
}

pub(crate) fn freed_region_is_not_accessible(mut stage: Stage) -> Result<(), Skip> {
    let region = stage.sides[B].region(Access::WRITE);
    let at = stage.sides[B].remote(region);
    let transport = stage.dependable(&[Rc, Uc])?[0];
    let link = stage.link(transport);
    stage.perform(link.qp[A], write(Payload::Words(&[1]), at));
    stage.arrived(region, 0, &1u64.to_le_bytes());
    stage.sides[B].party.free_region(region).expect("ours");
    // The old key does not open the memory's next region.
    let next = stage.sides[B].region(Access::WRITE);
    assert_ne!(stage.sides[B].remote(next).rkey, at.rkey);
    write_refused(&mut stage, &[1; 8], at)?;
    untouched(&mut stage, next);
    Ok(())
}

pub(crate) fn ranges_outside_a_region_are_refused(mut stage: Stage) -> Result<(), Skip> {
    let region = stage.sides[B].region(Access::WRITE);
    let at = stage.sides[B].remote(region);
    let end = at.offset(REGION as u64);
    let back = |place: Remote, bytes: u64| Remote {
        addr: place.addr.wrapping_sub(bytes),
        ..place
    };
    // Ranges that begin or end outside, and some whose end overflows.
    let outside = [
        (end, 1),
        (back(end, 7), 8),
        (back(end, 1), 64),
        (back(at, 1), 8),
        (back(at, 1), 1),
        (at.offset(1 << 40), 8),
        (at.offset(1 << 63), 8),
        (
            Remote {
                addr: u64::MAX,
                ..at
            },
            1,
        ),
        (
            Remote {
                addr: u64::MAX - 3,
                ..at
            },
            8,
        ),
        (
            Remote {
                addr: u64::MAX - 7,
                ..at
            },
            8,
        ),
    ];
    for (to, len) in outside {
        write_refused(&mut stage, &[1; 64][..len], to)?;
    }
    untouched(&mut stage, region);
    Ok(())
}

pub(crate) fn rights_not_granted_are_refused(mut stage: Stage) -> Result<(), Skip> {
    for access in [Access::LOCAL, Access::READ] {
        let region = stage.sides[B].region(access);
        let at = stage.sides[B].remote(region);
        write_refused(&mut stage, &[1; 8], at)?;
        untouched(&mut stage, region);
    }
    let into = Local {
        len: 8,
        ..stage.sides[A].buffer(0)
    };
    if stage.capabilities().read {
        let region = stage.sides[B].region(Access::WRITE);
        let from = stage.sides[B].remote(region);
        let link = stage.link(Rc);
        refused(&mut stage, link, SendOp::Read { into, from });
    }
    if stage.capabilities().atomics != Atomics::None {
        // READ and WRITE together do not grant atomics.
        let access = Access {
            remote_atomic: false,
            ..Access::ALL
        };
        let region = stage.sides[B].region(access);
        let at = stage.sides[B].remote(region);
        let link = stage.link(Rc);
        refused(&mut stage, link, SendOp::FetchAdd { into, at, add: 1 });
        untouched(&mut stage, region);
    }
    Ok(())
}

pub(crate) fn scoped_rkey_works_only_for_its_queue_pair(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().scoped_regions, "no scoped rkeys")?;
    for transport in stage.dependable(&[Rc, Uc])? {
        let (one, other) = (stage.link(transport), stage.link(transport));
        let region = stage.sides[B].scoped_region(Access::WRITE, one.qp[B]);
        let at = stage.sides[B].remote(region);
        refused(&mut stage, other, write(Payload::Words(&[9; 4]), at));
        untouched(&mut stage, region);
        stage.perform(one.qp[A], write(Payload::Words(&[1]), at));
        stage.arrived(region, 0, &1u64.to_le_bytes());
    }
    Ok(())
}

pub(crate) fn rkey_of_another_domain_is_refused(mut stage: Stage) -> Result<(), Skip> {
    // If only one side can make domains, that side is the one written to.
    let made = stage.sides[B].party.create_pd();
    let pd = match made {
        Err(ControlError::Unsupported(_)) => {
            stage.sides.swap(A, B);
            stage.sides[B].party.create_pd()
        }
        made => made,
    };
    let pd = pd.expect("one side makes domains");
    let spec = RegionSpec {
        len: REGION,
        access: Access::WRITE,
        scope: Scope::Pd,
    };
    let region = stage.sides[B].party.allocate_region(pd, &spec);
    let region = region.expect("a region");
    let at = stage.sides[B].remote(region);
    write_refused(&mut stage, &[1; 8], at)?;
    untouched(&mut stage, region);
    Ok(())
}

pub(crate) fn local_ranges_out_of_bounds_are_refused(mut stage: Stage) -> Result<(), Skip> {
    // Some ends overflow.
    let ranges = [
        (REGION, 1),
        (REGION - 7, 8),
        (0, REGION + 1),
        (usize::MAX, 1),
        (usize::MAX - 3, 8),
        (8, usize::MAX),
    ];
    for transport in stage.dependable(&TRANSPORTS)? {
        let link = stage.link(transport);
        for (offset, len) in ranges {
            let region = stage.sides[A].outbox;
            let local = Local {
                region,
                offset,
                len,
            };
            let op = link.send(A, Payload::Region(local), None);
            let posted = stage.sides[A]
                .party
                .post_send(link.qp[A], &[signaled(1, op)]);
            assert_eq!(posted, Err(PostError::Bounds), "SEND from {local:?}");
            let recv = herdwick_fabric::RecvWr {
                wr_id: 1,
                into: local,
            };
            let posted = stage.sides[A].party.post_recv(link.qp[A], &[recv]);
            assert_eq!(posted, Err(PostError::Bounds), "RECV into {local:?}");
        }
        let nowhere = Local {
            region: RegionId(u32::MAX),
            offset: 0,
            len: 8,
        };
        let op = link.send(A, Payload::Region(nowhere), None);
        let posted = stage.sides[A]
            .party
            .post_send(link.qp[A], &[signaled(1, op)]);
        assert_eq!(posted, Err(PostError::Bounds));
    }
    stage.silence();
    Ok(())
}

pub(crate) fn payloads_too_long_are_refused(mut stage: Stage) -> Result<(), Skip> {
    let most = stage.capabilities().inline_bytes_max;
    let datagram = stage.capabilities().datagram_bytes_max;
    for transport in stage.dependable(&TRANSPORTS)? {
        let link = stage.link(transport);
        let too_long = vec![0; most + 1];
        let op = link.send(A, Payload::Inline(&too_long), None);
        let posted = stage.sides[A]
            .party
            .post_send(link.qp[A], &[signaled(1, op)]);
        assert_eq!(posted, Err(PostError::Bounds), "inline on {transport:?}");
        stage.sides[B].recv(link.qp[B], 1);
        // The longest that is allowed, and that the buffer holds, is delivered.
        let fits = &too_long[..most.min(datagram).min(256)];
        stage.perform(link.qp[A], link.send(A, Payload::Inline(fits), None));
        stage.success(B);
        if transport == Transport::Ud {
            datagram_too_long_is_refused(&mut stage, link, datagram);
        }
    }
    Ok(())
}

fn datagram_too_long_is_refused(stage: &mut Stage, link: Link, most: usize) {
    let spec = RegionSpec {
        len: most + 1,
        access: Access::LOCAL,
        scope: Scope::Pd,
    };
    let pd = stage.sides[A].party.pd();
    let region = stage.sides[A].party.allocate_region(pd, &spec);
    let local = Local {
        region: region.expect("a region"),
        offset: 0,
        len: most + 1,
    };
    let op = link.send(A, Payload::Region(local), None);
    let posted = stage.sides[A]
        .party
        .post_send(link.qp[A], &[signaled(1, op)]);
    assert_eq!(posted, Err(PostError::Bounds));
}
