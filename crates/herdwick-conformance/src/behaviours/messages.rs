//! Behaviours of SEND, RECV and immediates: what arrives, in which order, and what a message without a RECV
//! does on each transport.

use herdwick_fabric::{
    Access, Completion, Local, Opcode, Payload, SendOp, Status,
    Transport::{Rc, Uc, Ud},
};

use crate::{
    Skip,
    stage::{A, B, BUFFER, Link, Stage, TRANSPORTS, need, signaled, unsignaled},
};

/// Returns the payload of a receive: from its completion, or from its buffer.
fn payload(stage: &mut Stage, received: &Completion, buffer: Local) -> Vec<u8> {
    let len = usize::try_from(received.byte_len).expect("small");
    let Some(inline) = received.inline else {
        let header = match received.source {
            Some(_) => stage.capabilities().datagram_header_bytes,
            None => 0,
        };
        // A datagram's header precedes the payload.
        let at = buffer.offset + header;
        return stage.sides[B].party.read(buffer.region, at, len);
    };
    assert_eq!(inline.len(), len);
    let mut bytes = vec![0; len];
    inline.copy_to(&mut bytes);
    bytes
}

pub(crate) fn sends_match_recvs_in_order(mut stage: Stage) -> Result<(), Skip> {
    for transport in stage.dependable(&TRANSPORTS)? {
        let link = stage.link(transport);
        // Ids rise over all rounds, so a RECV of an earlier round cannot pass for one of this.
        for round in 0..20u64 {
            let ids = (0..16).map(|i| round * 16 + i);
            ids.clone()
                .for_each(|id| stage.sides[B].recv(link.qp[B], id));
            // Short and long messages alternate, so that neither path may overtake the other.
            let bodies: Vec<Vec<u8>> = ids.clone().map(body).collect();
            let batch = bodies.iter().zip(ids.clone());
            let batch: Vec<_> = batch
                .map(|(body, id)| unsignaled(id, link.send(A, Payload::Inline(body), None)))
                .collect();
            // Only the last one is signaled: its completion covers the others.
            stage.sides[A].post(link.qp[A], &batch[..15]);
            let last = signaled(7, batch[15].op);
            stage.sides[A].post(link.qp[A], &[last]);
            for (id, body) in ids.zip(&bodies) {
                let received = stage.success(B);
                assert_eq!((received.wr_id, received.qp), (id, link.qp[B]));
                assert_eq!((received.opcode, received.imm), (Opcode::Recv, None));
                let buffer = stage.sides[B].buffer(usize::try_from(id).expect("small"));
                assert_eq!(payload(&mut stage, &received, buffer), *body);
            }
            assert_eq!(stage.success(A).wr_id, 7);
        }
        stage.silence();
    }
    Ok(())
}

fn body(id: u64) -> Vec<u8> {
    counting(usize::try_from(id * 37 % 200).expect("small"), id)
}

fn counting(len: usize, from: u64) -> Vec<u8> {
    (from..).take(len).map(|i| i.to_le_bytes()[0]).collect()
}

pub(crate) fn immediates_arrive(mut stage: Stage) -> Result<(), Skip> {
    for transport in stage.dependable(&TRANSPORTS)? {
        let link = stage.link(transport);
        // 0 is a value like any other, not the absence of one.
        for imm in [None, Some(0), Some(1), Some(0x0102_0304), Some(u32::MAX)] {
            stage.sides[B].recv(link.qp[B], 1);
            stage.perform(link.qp[A], link.send(A, Payload::Words(&[1, 2]), imm));
            assert_eq!(stage.success(B).imm, imm);
        }
    }
    Ok(())
}

pub(crate) fn write_with_immediate_consumes_a_recv(mut stage: Stage) -> Result<(), Skip> {
    for transport in stage.dependable(&[Rc, Uc])? {
        let link = stage.link(transport);
        let region = stage.sides[B].region(Access::WRITE);
        let to = stage.sides[B].remote(region).offset(64);
        stage.sides[B].recv(link.qp[B], 3);
        // Two, as the WRITE must take exactly one.
        stage.sides[B].recv(link.qp[B], 4);
        let words = [5, 6, 7];
        let op = SendOp::Write {
            payload: Payload::Words(&words),
            to,
            imm: Some(11),
        };
        stage.perform(link.qp[A], op);
        let received = stage.success(B);
        assert_eq!((received.wr_id, received.opcode), (3, Opcode::RecvWithImm));
        assert_eq!((received.imm, received.byte_len), (Some(11), 24));
        // With a word on either side, which must stay 0.
        let landed = stage.sides[B].party.read(region, 56, 40);
        assert_eq!(landed, [0, 5, 6, 7, 0].map(u64::to_le_bytes).concat());
        let buffer = stage.sides[B].buffer(3);
        let found = stage.sides[B]
            .party
            .read(buffer.region, buffer.offset, buffer.len);
        assert_eq!(found, [0; BUFFER], "the buffer is not touched");
        stage.perform(link.qp[A], link.send(A, Payload::Words(&[1]), None));
        assert_eq!(
            stage.success(B).wr_id,
            4,
            "the next RECV is the next message's"
        );
    }
    Ok(())
}

pub(crate) fn small_receives_are_inline_in_the_completion(mut stage: Stage) -> Result<(), Skip> {
    let most = stage.capabilities().inline_receive_bytes;
    need(most > 0, "no inline receive")?;
    for transport in stage.dependable(&TRANSPORTS)? {
        let link = stage.link(transport);
        let buffer = stage.sides[B].buffer(1);
        let inbox = (buffer.region, buffer.offset);
        stage.sides[B]
            .party
            .write(inbox.0, inbox.1, &[0xee; BUFFER]);
        // An empty message is inline, too.
        for len in 0..=most {
            let bytes = vec![u8::try_from(len).expect("small"); len];
            stage.sides[B].recv(link.qp[B], 1);
            stage.perform(link.qp[A], link.send(A, Payload::Inline(&bytes), None));
            let received = stage.success(B);
            assert!(received.inline.is_some(), "{len} bytes");
            assert_eq!(payload(&mut stage, &received, buffer), bytes);
            let untouched = stage.sides[B].party.read(inbox.0, inbox.1, BUFFER);
            assert_eq!(untouched, [0xee; BUFFER], "after {len} bytes");
        }
    }
    Ok(())
}

pub(crate) fn large_receives_are_in_the_buffer(mut stage: Stage) -> Result<(), Skip> {
    let most = stage.capabilities().inline_receive_bytes;
    for transport in stage.dependable(&TRANSPORTS)? {
        let link = stage.link(transport);
        let outbox = stage.sides[A].outbox;
        // An odd start, and room after the message: only the message may change.
        let whole = stage.sides[B].buffer(1);
        let start = 5 + stage.header(transport);
        for len in [most + 1, most + 8, 100, 255, 256, 300, 456] {
            let into = Local {
                offset: whole.offset + 5,
                len: whole.len - 5,
                ..whole
            };
            stage.sides[B]
                .party
                .write(whole.region, whole.offset, &[0xee; BUFFER]);
            let bytes = counting(len, 1);
            stage.sides[A].party.write(outbox, 7, &bytes);
            stage.sides[B].recv_into(link.qp[B], 1, into);
            let local = Local {
                region: outbox,
                offset: 7,
                len,
            };
            stage.perform(link.qp[A], link.send(A, Payload::Region(local), None));
            let received = stage.success(B);
            assert!(received.inline.is_none(), "{len} bytes");
            let found = stage.sides[B]
                .party
                .read(whole.region, whole.offset, BUFFER);
            let mut model = [0xee; BUFFER];
            // What the header holds is up to the provider.
            model[5..start].copy_from_slice(&found[5..start]);
            model[start..start + len].copy_from_slice(&bytes);
            assert_eq!(found, model, "{len} bytes");
        }
    }
    Ok(())
}

pub(crate) fn short_recv_buffer_receives_nothing(mut stage: Stage) -> Result<(), Skip> {
    // Too long to be delivered inline, so that the buffer's length counts.
    let len = stage.capabilities().inline_receive_bytes + 9;
    for transport in stage.dependable(&TRANSPORTS)? {
        let link = stage.link(transport);
        let whole = stage.sides[B].buffer(2);
        let short = stage.header(transport) + len - 1;
        let into = Local {
            len: short,
            ..whole
        };
        let bytes = vec![0xaa; len];
        stage.sides[B].recv_into(link.qp[B], 1, into);
        let drops = stage.drops();
        let op = link.send(A, Payload::Inline(&bytes), None);
        stage.sides[A].post(link.qp[A], &[signaled(1, op)]);
        if transport == Rc {
            assert_eq!(stage.next(B).status, Status::LengthError);
            let told = stage.next(A).status != Status::Success;
            // Where a SEND is done before a RECV takes it, its sender does not learn of it.
            assert_eq!(told, stage.capabilities().acknowledged_sends);
        } else {
            stage.success(A);
            short_is_dropped(&mut stage, link, drops);
        }
        let behind = stage.sides[B]
            .party
            .read(whole.region, whole.offset + short, 64);
        assert_eq!(behind, [0; 64], "nothing behind the buffer");
    }
    Ok(())
}

/// Checks a UC or UD message too long for its RECV: either the RECV ends with a `LengthError`, or
/// the loss is counted and the RECV remains for a message that fits. A datagram of any length fails
/// no queue pair.
fn short_is_dropped(stage: &mut Stage, link: Link, drops: u64) {
    let received = stage.maybe(B);
    if let Some(received) = received {
        assert_eq!(received.status, Status::LengthError);
        // Its queue pair may have failed with it.
        if link.transport == Uc {
            return;
        }
        // The error has used up the RECV.
        stage.sides[B].recv(link.qp[B], 1);
    } else {
        counted(stage, drops, 1);
    }
    stage.perform(link.qp[A], link.send(A, Payload::Words(&[1]), None));
    assert_eq!(stage.success(B).wr_id, 1);
}

/// Checks that `lost` drops were counted since `before`, if the provider counts drops.
fn counted(stage: &mut Stage, before: u64, lost: u64) {
    let counts = stage.capabilities().counted_drops;
    assert!(!counts || stage.drops() >= before + lost, "not counted");
}

pub(crate) fn datagrams_name_their_source(mut stage: Stage) -> Result<(), Skip> {
    stage.dependable(&[Ud])?;
    let links = [stage.link(Ud), stage.link(Ud)];
    // Both of A's queue pairs send to the first of B's.
    let ends = stage.endpoints(links[0].qp);
    let other = stage.sides[A]
        .party
        .create_address(links[1].qp[A], &ends[B]);
    let to = [links[0].to[A], Some(other.expect("an address"))];
    let stranger = stage.endpoints(links[1].qp)[A];
    // A receiver may refuse datagrams of a peer that it has not accepted.
    let accepted = stage.sides[B].party.accept_from(links[0].qp[B], &stranger);
    accepted.expect("room for a peer");
    let mut sources = Vec::new();
    for round in 0..6 {
        stage.sides[B].recv(links[0].qp[B], 1);
        let op = SendOp::Send {
            payload: Payload::Words(&[1]),
            imm: None,
            to: to[round % 2],
        };
        stage.perform(links[round % 2].qp[A], op);
        let received = stage.success(B);
        assert_eq!(received.qp, links[0].qp[B]);
        sources.push(received.source.expect("a datagram has a source").qpn);
    }
    assert_ne!(sources[0], sources[1], "two senders, two names");
    assert!(sources.chunks(2).all(|pair| pair == &sources[..2]));
    for (sender, link) in sources.iter().zip(links) {
        let end = stage.endpoints(link.qp)[A];
        let told = stage.sides[B].party.source(&end);
        assert_eq!(told.expect("an endpoint").qpn, *sender, "known beforehand");
    }
    Ok(())
}

pub(crate) fn datagrams_without_recv_are_dropped_and_counted(mut stage: Stage) -> Result<(), Skip> {
    stage.dependable(&[Ud])?;
    let link = stage.link(Ud);
    let drops = stage.drops();
    for _ in 0..3 {
        stage.perform(link.qp[A], link.send(A, Payload::Words(&[1]), Some(1)));
    }
    stage.silence();
    counted(&mut stage, drops, 3);
    stage.sides[B].recv(link.qp[B], 1);
    stage.perform(link.qp[A], link.send(A, Payload::Words(&[2]), Some(2)));
    assert_eq!(
        stage.success(B).imm,
        Some(2),
        "what was dropped stays dropped"
    );
    stage.silence();
    Ok(())
}

pub(crate) fn reliable_sends_wait_for_a_recv(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().rc, "no RC")?;
    let link = stage.link(Rc);
    let op = link.send(A, Payload::Words(&[1]), Some(1));
    stage.sides[A].post(link.qp[A], &[signaled(1, op)]);
    // The message waits through these passes.
    for _ in 0..20 {
        stage.pass();
    }
    stage.sides[B].recv(link.qp[B], 1);
    assert_eq!(stage.success(B).imm, Some(1));
    stage.success(A);
    Ok(())
}

pub(crate) fn sender_fails_if_the_receiver_is_never_ready(mut stage: Stage) -> Result<(), Skip> {
    need(stage.capabilities().rc, "no RC")?;
    let told = stage.capabilities().acknowledged_sends;
    need(told, "a SEND is done before a RECV takes it")?;
    let link = stage.link(Rc);
    let op = link.send(A, Payload::Words(&[1]), None);
    stage.sides[A].post(link.qp[A], &[signaled(1, op)]);
    assert_eq!(stage.next(A).status, Status::ReceiverNotReady);
    Ok(())
}
