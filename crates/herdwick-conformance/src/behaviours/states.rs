//! Life cycles of queue pairs and other objects.

use herdwick_fabric::{
    Access, AddressHandle, ConnectError, ControlError, CqId, CqSpec, ENDPOINT_BYTES_MAX, Endpoint,
    Payload, PdId, PostError, QpId, QpState, RecvWr, RegionId, RegionSpec, Scope, Status,
    Transport::{self, Rc, Uc, Ud},
};
use proptest::{
    prelude::{any, prop},
    test_runner::{Config, TestRunner},
};

use crate::{
    Skip,
    stage::{A, B, Link, REGION, Stage, TRANSPORTS, need, signaled, write},
};

fn state(stage: &mut Stage, side: usize, qp: QpId) -> QpState {
    stage.sides[side].party.qp_state(qp).expect("known")
}

/// The transports that the provider has, lossy or not.
fn present(stage: &Stage, wanted: &[Transport]) -> Vec<Transport> {
    let mut found = wanted.to_vec();
    found.retain(|transport| stage.has(*transport));
    found
}

pub(crate) fn queue_pair_states_follow_create_and_connect(mut stage: Stage) -> Result<(), Skip> {
    for transport in present(&stage, &TRANSPORTS) {
        let qp = [stage.sides[A].qp(transport), stage.sides[B].qp(transport)];
        let ends = stage.endpoints(qp);
        // It is never connected: each message has an address.
        if transport == Ud {
            assert_eq!(state(&mut stage, A, qp[A]), QpState::ReadyToSend);
            let refused = stage.sides[A].party.connect(qp[A], &ends[B]);
            assert!(matches!(refused, Err(ConnectError::Transport(Ud))));
            continue;
        }
        assert_eq!(state(&mut stage, A, qp[A]), QpState::Init);
        let refused = stage.sides[A].party.create_address(qp[A], &ends[B]);
        assert!(matches!(refused, Err(ConnectError::Transport(_))));
        stage.connect(qp);
        assert_eq!(state(&mut stage, A, qp[A]), QpState::ReadyToSend);
        let again = stage.sides[A].party.connect(qp[A], &ends[B]);
        let is_state = matches!(again, Err(ConnectError::State(QpState::ReadyToSend)));
        assert!(is_state, "connected once: {again:?}");
    }
    Ok(())
}

pub(crate) fn unconnected_queue_pair_accepts_recvs_but_no_sends(
    mut stage: Stage,
) -> Result<(), Skip> {
    for transport in stage.dependable(&[Rc, Uc])? {
        let qp = [stage.sides[A].qp(transport), stage.sides[B].qp(transport)];
        let link = Link {
            transport,
            qp,
            to: [None; 2],
        };
        let wr = signaled(1, link.send(A, Payload::Words(&[1]), None));
        let refused = stage.sides[A].party.post_send(qp[A], &[wr]);
        assert_eq!(refused, Err(PostError::State(QpState::Init)));
        stage.sides[B].recv(qp[B], 8);
        stage.connect(qp);
        stage.perform(qp[A], wr.op);
        assert_eq!(stage.success(B).wr_id, 8);
    }
    Ok(())
}

pub(crate) fn a_failed_queue_pair_flushes_and_refuses(mut stage: Stage) -> Result<(), Skip> {
    // Lossy ones, too: no message has to arrive.
    for transport in present(&stage, &TRANSPORTS) {
        let link = stage.link(transport);
        (0..5).for_each(|id| stage.sides[B].recv(link.qp[B], id));
        stage.sides[B].party.fail_qp(link.qp[B]).expect("ours");
        assert_eq!(state(&mut stage, B, link.qp[B]), QpState::Error);
        for id in 0..5 {
            let flushed = stage.next(B);
            assert_eq!((flushed.wr_id, flushed.status), (id, Status::Flushed));
            assert_eq!(flushed.qp, link.qp[B]);
        }
        let wr = signaled(1, link.send(B, Payload::Words(&[1]), None));
        let refused = stage.sides[B].party.post_send(link.qp[B], &[wr]);
        assert_eq!(refused, Err(PostError::State(QpState::Error)));
        let wr = signaled(1, link.send(A, Payload::Words(&[1]), None));
        stage.sides[A].post(link.qp[A], &[wr]);
        let told = stage.next(A).status != Status::Success;
        assert_eq!(told, transport == Rc, "only RC hears of it");
        stage.silence();
    }
    Ok(())
}

pub(crate) fn other_queue_pairs_survive_a_failure(mut stage: Stage) -> Result<(), Skip> {
    for transport in stage.dependable(&TRANSPORTS)? {
        let links = [stage.link(transport), stage.link(transport)];
        stage.sides[B].recv(links[1].qp[B], 1);
        stage.sides[A].party.fail_qp(links[0].qp[A]).expect("ours");
        stage.sides[B].party.fail_qp(links[0].qp[B]).expect("ours");
        let op = links[1].send(A, Payload::Words(&[1]), None);
        stage.perform(links[1].qp[A], op);
        assert_eq!(stage.success(B).qp, links[1].qp[B]);
    }
    Ok(())
}

pub(crate) fn destroyed_queue_pairs_leave_no_completions(mut stage: Stage) -> Result<(), Skip> {
    // Lossy ones, too: no message has to arrive.
    for transport in present(&stage, &TRANSPORTS) {
        let link = stage.link(transport);
        (0..5).for_each(|id| stage.sides[B].recv(link.qp[B], id));
        stage.sides[B].party.destroy_qp(link.qp[B]).expect("ours");
        stage.silence();
        let wr = signaled(1, link.send(A, Payload::Words(&[1]), None));
        // A provider may know already, or find out when it sends.
        if stage.sides[A].party.post_send(link.qp[A], &[wr]).is_ok() {
            let told = stage.next(A).status != Status::Success;
            assert_eq!(told, transport == Rc, "only RC hears of it");
        }
        stage.silence();
        let next = stage.link(transport);
        assert_ne!(next.qp[B], link.qp[B], "an id is not used again at once");
    }
    Ok(())
}

fn unknown<T: std::fmt::Debug>(answer: Result<T, ControlError>) {
    let is_unknown = matches!(answer, Err(ControlError::Unknown(_)));
    assert!(is_unknown, "{answer:?}");
}

pub(crate) fn destroyed_ids_are_unknown(mut stage: Stage) -> Result<(), Skip> {
    let transport = stage.dependable(&TRANSPORTS)?[0];
    let side = &mut stage.sides[A];
    let cq = side.party.create_cq(&CqSpec { depth: 4 }).expect("a queue");
    let (qp, region) = (side.qp(transport), side.region(Access::WRITE));
    let party = &mut side.party;
    party.destroy_cq(cq).expect("unused");
    party.destroy_qp(qp).expect("ours");
    party.free_region(region).expect("ours");
    // And ids that never were.
    for (cq, qp, region) in [(cq, qp, region), (CqId(999), QpId(999), RegionId(999))] {
        unknown(party.destroy_cq(cq));
        unknown(party.destroy_qp(qp));
        unknown(party.fail_qp(qp));
        unknown(party.qp_state(qp));
        unknown(party.endpoint(qp));
        unknown(party.free_region(region));
        unknown(party.remote(region));
        assert!(!party.has_region(region));
        assert!(party.poll(cq).is_empty());
        assert_eq!(party.post_send(qp, &[]), Err(PostError::UnknownQp));
        assert_eq!(party.post_recv(qp, &[]), Err(PostError::UnknownQp));
    }
    unknown(party.destroy_address(AddressHandle(999)));
    unknown(party.destroy_pd(PdId(999)));
    Ok(())
}

pub(crate) fn objects_in_use_are_not_destroyed(mut stage: Stage) -> Result<(), Skip> {
    let transport = stage.dependable(&TRANSPORTS)?[0];
    let link = stage.link(transport);
    for side in &mut stage.sides {
        let refused = side.party.destroy_cq(side.cq);
        assert!(
            matches!(refused, Err(ControlError::InUse(_))),
            "{refused:?}"
        );
    }
    // The refused destruction has changed nothing.
    stage.sides[B].recv(link.qp[B], 1);
    stage.perform(link.qp[A], link.send(A, Payload::Words(&[1]), None));
    stage.success(B);
    Ok(())
}

pub(crate) fn destroying_a_domain_destroys_everything_in_it(mut stage: Stage) -> Result<(), Skip> {
    let transport = stage.dependable(&[Uc, Rc])?[0];
    let link = stage.link(transport);
    let region = stage.sides[B].region(Access::WRITE);
    let at = stage.sides[B].remote(region);
    stage.sides[B].recv(link.qp[B], 1);
    let pd = stage.sides[B].party.pd();
    let (inbox, cq) = (stage.sides[B].inbox, stage.sides[B].cq);
    let party = &mut stage.sides[B].party;
    party.destroy_pd(pd).expect("ours");
    unknown(party.destroy_pd(pd));
    unknown(party.qp_state(link.qp[B]));
    unknown(party.remote(region));
    assert!(!party.has_region(region) && !party.has_region(inbox));
    let spec = RegionSpec {
        len: REGION,
        access: Access::LOCAL,
        scope: Scope::Pd,
    };
    unknown(party.allocate_region(pd, &spec));
    party.destroy_cq(cq).expect("nothing uses it any more");
    // The peer, which has not learned of it, is not harmed.
    let wr = signaled(1, write(Payload::Words(&[1]), at));
    if stage.sides[A].party.post_send(link.qp[A], &[wr]).is_ok() {
        let told = stage.next(A).status != Status::Success;
        assert_eq!(told, transport == Rc, "only RC hears of it");
    }
    Ok(())
}

/// A queue pair of A for each transport, to connect with endpoints.
struct Suitors {
    stage: Stage,
    qps: Vec<(Transport, QpId)>,
}

impl Suitors {
    fn new(mut stage: Stage) -> Self {
        let made = present(&stage, &TRANSPORTS).into_iter();
        let qps = made.map(|transport| (transport, stage.sides[A].qp(transport)));
        Self {
            qps: qps.collect(),
            stage,
        }
    }

    /// Connects every queue pair with the endpoint `blob`. One that refuses must be unchanged; one
    /// that accepts is replaced.
    fn offer(&mut self, blob: &[u8]) -> Vec<Result<(), ConnectError>> {
        let peer = Endpoint::new(blob).expect("short enough");
        let side = &mut self.stage.sides[A];
        let mut answers = Vec::new();
        for (transport, qp) in &mut self.qps {
            if *transport == Ud {
                let made = side.party.create_address(*qp, &peer);
                answers.push(made.map(|made| side.party.destroy_address(made).expect("ours")));
                continue;
            }
            let answer = side.party.connect(*qp, &peer);
            let connected = side.party.qp_state(*qp).expect("known") == QpState::ReadyToSend;
            assert_eq!(connected, answer.is_ok());
            if connected {
                side.party.destroy_qp(*qp).expect("ours");
                *qp = side.qp(*transport);
            }
            answers.push(answer);
        }
        answers
    }
}

pub(crate) fn endpoint_garbage_is_an_error(stage: Stage) -> Result<(), Skip> {
    // The runner takes an `Fn`, which cannot change what it captures.
    let suitors = std::cell::RefCell::new(Suitors::new(stage));
    let mut runner = TestRunner::new(Config {
        cases: 500,
        failure_persistence: None,
        ..Config::default()
    });
    let blobs = prop::collection::vec(any::<u8>(), 0..=ENDPOINT_BYTES_MAX);
    let ran = runner.run(&blobs, |blob| {
        for answer in suitors.borrow_mut().offer(&blob) {
            assert!(
                matches!(answer, Err(ConnectError::Endpoint(_))),
                "{answer:?}"
            );
        }
        Ok(())
    });
    ran.expect("garbage is an error");
    Ok(())
}

pub(crate) fn damaged_endpoints_never_panic(mut stage: Stage) -> Result<(), Skip> {
    let mut theirs = Vec::new();
    for transport in present(&stage, &TRANSPORTS) {
        let qp = stage.sides[B].qp(transport);
        theirs.push(stage.sides[B].party.endpoint(qp).expect("an endpoint"));
    }
    let mut suitors = Suitors::new(stage);
    for (index, end) in theirs.iter().enumerate() {
        let whole = end.as_bytes();
        for cut in 0..whole.len() {
            suitors.offer(&whole[..cut]);
        }
        for bit in 0..whole.len() * 8 {
            let mut blob = whole.to_vec();
            blob[bit / 8] ^= 1 << (bit % 8);
            // It may be accepted: not every damage can be detected.
            suitors.offer(&blob);
        }
        // A byte more, where an endpoint can be that long.
        if whole.len() < ENDPOINT_BYTES_MAX {
            suitors.offer(&[whole, &[0]].concat());
        }
        // After all that, the true endpoint still works, and only for its own transport.
        let answers = suitors.offer(whole).into_iter().enumerate();
        for (other, answer) in answers {
            assert_eq!(answer.is_ok(), other == index, "{answer:?}");
        }
    }
    Ok(())
}

pub(crate) fn queue_pair_survives_the_end_of_its_peer(mut stage: Stage) -> Result<(), Skip> {
    need(stage.timeout() > 0, "no timeout")?;
    let links: Vec<Link> = present(&stage, &TRANSPORTS)
        .into_iter()
        .map(|transport| stage.link(transport))
        .collect();
    let region = stage.sides[B].region(Access::WRITE);
    let at = stage.sides[B].remote(region);
    let timeout = stage.timeout();
    let (mut now, [mut a, b]) = (stage.now, stage.sides);
    // With its port and its memory, as at the end of a process.
    drop(b);
    for link in links {
        let into = a.buffer(0);
        let recv = RecvWr { wr_id: 9, into };
        let mut op = link.send(A, Payload::Words(&[1]), None);
        if link.transport != Ud {
            op = write(Payload::Words(&[1]), at);
        }
        // A provider may know already, and refuse.
        let posted = a.party.post_recv(link.qp[A], &[recv]).is_ok()
            && a.party.post_send(link.qp[A], &[signaled(1, op)]).is_ok();
        let mut ends = Vec::new();
        for _ in 0..timeout {
            if !posted
                || ends
                    .iter()
                    .any(|end: &herdwick_fabric::Completion| end.wr_id == 1)
            {
                break;
            }
            now += std::time::Duration::from_micros(1);
            a.party.progress(now);
            ends.extend(a.party.poll(a.cq));
        }
        let end = ends.iter().find(|end| end.wr_id == 1);
        let told = end.is_some_and(|end| end.status != Status::Success);
        assert!(!posted || end.is_some(), "every signaled send ends");
        assert!(told || !posted || link.transport != Rc, "RC hears of it");
        a.party.destroy_qp(link.qp[A]).expect("ours");
        // The port itself has not failed.
        let fresh = a.qp(link.transport);
        a.party.destroy_qp(fresh).expect("ours");
    }
    let region = a.region(Access::LOCAL);
    a.party.free_region(region).expect("ours");
    Ok(())
}
