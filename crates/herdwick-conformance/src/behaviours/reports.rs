//! Behaviours of reports of WRITEs: every one into a watched range is reported once, and no other.

use herdwick_fabric::{
    Access, Armed, Local, Payload, RegionId,
    Transport::{Rc, Uc},
    WriteReport,
};

use crate::{
    Skip,
    stage::{A, B, Link, REGION, Side, Stage, need, signaled, write},
};

/// Bytes of the watched range, from the start of a region.
const WATCHED: usize = 1024;

/// Makes a link of which B watches the start of a region under `token`.
fn watched(stage: &mut Stage, token: u64) -> Result<(Link, RegionId), Skip> {
    need(
        stage.capabilities().reports_writes,
        "WRITEs are not reported",
    )?;
    let transport = stage.dependable(&[Uc, Rc])?[0];
    let link = stage.link(transport);
    let region = stage.sides[B].region(Access::WRITE);
    watch(&mut stage.sides[B], link, region, token);
    Ok((link, region))
}

fn watch(side: &mut Side, link: Link, region: RegionId, token: u64) {
    let range = Local {
        region,
        offset: 0,
        len: WATCHED,
    };
    assert!(side.party.watch_writes(link.qp[B], range, token));
}

/// A WRITEs `bytes` bytes at `offset` of B's region, and waits until they are there.
fn perform(stage: &mut Stage, link: Link, (region, offset, len): (RegionId, u64, usize), byte: u8) {
    let to = stage.sides[B].remote(region).offset(offset);
    let bytes = vec![byte; len];
    stage.perform(link.qp[A], write(Payload::Inline(&bytes), to));
    stage.arrived(region, offset as usize, &bytes);
}

fn reports(stage: &mut Stage) -> Vec<WriteReport> {
    stage.sides[B].party.written()
}

pub(crate) fn writes_into_a_watched_range_are_reported(mut stage: Stage) -> Result<(), Skip> {
    let (link, region) = watched(&mut stage, 7 << 40)?;
    let (other, beside) = watched(&mut stage, 8)?;
    assert_eq!(reports(&mut stage), []);
    for byte in 1..=3 {
        perform(&mut stage, link, (region, 64, 64), byte);
    }
    // At the first and at the last byte; before and behind it are others' bytes.
    perform(&mut stage, other, (beside, 0, 1), 1);
    perform(&mut stage, other, (beside, WATCHED as u64 - 1, 16), 2);
    let expected = [(7 << 40, 3), (8, 2)];
    let expected = expected.map(|(token, writes)| WriteReport { token, writes });
    assert_eq!(reports(&mut stage), expected);
    perform(&mut stage, other, (beside, WATCHED as u64, 64), 3);
    perform(&mut stage, link, (beside, 0, 64), 4);
    assert_eq!(
        reports(&mut stage),
        [],
        "outside of the range, or of the queue pair"
    );
    perform(&mut stage, link, (region, WATCHED as u64 - 8, 8), 5);
    let report = WriteReport {
        token: 7 << 40,
        writes: 1,
    };
    assert_eq!(reports(&mut stage), [report]);
    Ok(())
}

/// WRITEs of many packets are reported once, when they are whole.
pub(crate) fn a_long_write_is_reported_when_it_is_whole(mut stage: Stage) -> Result<(), Skip> {
    let (link, region) = watched(&mut stage, 1)?;
    let at = stage.sides[B].remote(region);
    let from = Local {
        region: stage.sides[A].outbox,
        offset: 0,
        len: REGION,
    };
    for round in 1..=20_u8 {
        let bytes = vec![round; REGION];
        let outbox = from.region;
        stage.sides[A].party.write(outbox, 0, &bytes);
        let op = write(Payload::Region(from), at);
        stage.sides[A].post(link.qp[A], &[signaled(1, op)]);
        let mut found = Vec::new();
        for _ in 0..stage.timeout() {
            found = reports(&mut stage);
            if !found.is_empty() {
                break;
            }
            stage.pass();
        }
        let report = WriteReport {
            token: 1,
            writes: 1,
        };
        assert_eq!(found, [report]);
        assert!(
            stage.sides[B].party.read(region, 0, REGION) == bytes,
            "half"
        );
        stage.success(A);
    }
    Ok(())
}

pub(crate) fn a_port_with_a_report_does_not_sleep(mut stage: Stage) -> Result<(), Skip> {
    let (link, region) = watched(&mut stage, 1)?;
    perform(&mut stage, link, (region, 0, 8), 1);
    let b = &mut stage.sides[B];
    let armed = b.party.arm(b.cq);
    assert_ne!(armed, Armed::Yes);
    b.party.disarm(b.cq);
    need(armed != Armed::Never, "the port can only be polled")?;
    assert_eq!(b.party.written().len(), 1);
    assert_eq!(b.party.arm(b.cq), Armed::Yes);
    b.party.disarm(b.cq);
    Ok(())
}

/// A queue pair that takes the place of a destroyed one reports under its own token alone.
pub(crate) fn a_destroyed_queue_pair_reports_nothing(mut stage: Stage) -> Result<(), Skip> {
    for token in 0..20 {
        let (link, region) = watched(&mut stage, token)?;
        perform(&mut stage, link, (region, 0, 8), 1);
        if token % 2 == 0 {
            let report = WriteReport { token, writes: 1 };
            assert_eq!(reports(&mut stage), [report]);
        }
        for side in [A, B] {
            stage.sides[side]
                .party
                .destroy_qp(link.qp[side])
                .expect("ours");
        }
        stage.sides[B].party.free_region(region).expect("ours");
        assert_eq!(reports(&mut stage), []);
        let range = Local {
            region,
            offset: 0,
            len: WATCHED,
        };
        let b = &mut stage.sides[B].party;
        assert!(!b.watch_writes(link.qp[B], range, token), "destroyed");
    }
    Ok(())
}

pub(crate) fn watching_again_drops_what_was_to_be_reported(mut stage: Stage) -> Result<(), Skip> {
    let (link, region) = watched(&mut stage, 1)?;
    perform(&mut stage, link, (region, 0, 8), 1);
    watch(&mut stage.sides[B], link, region, 2);
    assert_eq!(reports(&mut stage), []);
    perform(&mut stage, link, (region, 0, 8), 2);
    let report = WriteReport {
        token: 2,
        writes: 1,
    };
    assert_eq!(reports(&mut stage), [report]);
    Ok(())
}
