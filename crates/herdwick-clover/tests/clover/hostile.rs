//! Clients that send arbitrary messages, write without the right, or hoard; and those that only stop.

use herdwick_check::Rng;
use std::time::Duration;

use herdwick_clover::{
    ClientId, NodeEnd, OptionsError, Refused, Secret, ServerEnd, SetupError,
    layout::{Place, class_of_len},
    message::{CALL_BYTES_MAX, Call, CallOp, CallStatus, REPLY_BYTES_MAX},
};
use herdwick_conformance::seeded::{SeededDevice, SeededNetwork, SeededPort};
use herdwick_fabric::{
    Access, Completion, CqId, CqSpec, Device, Local, Payload, Port, PortLimits, QpId, QpSpec,
    RecvWr, RegionId, RegionSpec, Scope, SendOp, SendWr, Status, Transport,
};

use crate::fixture::{Kept, SECRET, World, geometry, join, key, poke};

/// A client that makes its messages itself.
struct Raw {
    id: ClientId,
    port: SeededPort,
    qp: QpId,
    cq: CqId,
    region: RegionId,
    token: u64,
}

const REPLIES_AT: usize = CALL_BYTES_MAX;

impl Raw {
    fn new(world: &mut World<SeededNetwork>) -> Self {
        Self::with(world, Some(&SECRET)).receives()
    }

    /// Connects a client that may write if it has the secret.
    fn with(world: &mut World<SeededNetwork>, secret: Option<&Secret>) -> Self {
        let device = world.fabric.device();
        let server = &mut world.server;
        let room = ServerEnd::<SeededDevice>::pd_room();
        let pd = server
            .device
            .create_pd_for(&mut server.port, &room)
            .unwrap();
        let ticket = server.device.export_pd(&mut server.port, pd).unwrap();
        let (id, grant) = server.admit(pd, secret).unwrap();
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.import_pd(&mut port, ticket).unwrap();
        let cq = device.create_cq(&mut port, &CqSpec { depth: 128 }).unwrap();
        let spec = QpSpec {
            pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            send_depth: 64,
            recv_depth: 64,
        };
        let qp = device.create_qp(&mut port, &spec).unwrap();
        let len = REPLIES_AT + 64 * REPLY_BYTES_MAX;
        let region = device
            .allocate_region(&mut port, pd, &RegionSpec::local(len))
            .unwrap();
        device.connect(&mut port, qp, &grant.calls).unwrap();
        let calls = device.endpoint(&port, qp).unwrap();
        server
            .connect(id, &herdwick_clover::Accept { calls })
            .unwrap();
        Self {
            id,
            port,
            qp,
            cq,
            region,
            token: 0,
        }
    }

    /// Posts RECVs.
    fn receives(mut self) -> Self {
        (0..64).for_each(|buffer| self.receive(buffer));
        self
    }

    fn receive(&mut self, buffer: u64) {
        let into = Local {
            region: self.region,
            offset: REPLIES_AT + buffer as usize * REPLY_BYTES_MAX,
            len: REPLY_BYTES_MAX,
        };
        let wr = RecvWr {
            wr_id: 1000 + buffer,
            into,
        };
        self.port.post_recv(self.qp, &[wr]).unwrap();
    }

    fn send(&mut self, message: &[u8]) {
        let op = SendOp::Send {
            payload: Payload::Inline(&message[..message.len().min(256)]),
            imm: None,
            to: None,
        };
        let wr = SendWr {
            wr_id: 0,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.port.post_send(self.qp, &[wr]).unwrap();
    }

    /// Sends a message and returns the words of the reply.
    fn ask(&mut self, world: &mut World<SeededNetwork>, message: &[u8]) -> Vec<u64> {
        self.send(message);
        let mut done = [Completion::BLANK; 8];
        for _ in 0..100_000 {
            world.pass();
            self.port.progress(world.now);
            let count = self.port.poll(self.cq, &mut done);
            for completion in &done[..count] {
                assert_eq!(completion.status, Status::Success);
                if completion.wr_id >= 1000 {
                    let buffer = completion.wr_id - 1000;
                    let mut bytes = vec![0; completion.byte_len as usize];
                    match &completion.inline {
                        Some(inline) => inline.copy_to(&mut bytes),
                        None => {
                            let at = REPLIES_AT + buffer as usize * REPLY_BYTES_MAX;
                            self.port
                                .region(self.region)
                                .unwrap()
                                .read_bytes(at, &mut bytes);
                        }
                    }
                    self.receive(buffer);
                    let words = bytes.chunks_exact(8);
                    return words
                        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                        .collect();
                }
            }
        }
        panic!("no reply");
    }

    fn call(&mut self, world: &mut World<SeededNetwork>, call: Call, body: &[u8]) -> Vec<u64> {
        self.token += 1;
        let call = Call {
            token: self.token,
            len: body.len(),
            ..call
        };
        let mut message: Vec<u8> = call
            .words()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        message.extend_from_slice(body);
        message.resize(message.len().next_multiple_of(8), 0);
        let reply = self.ask(world, &message);
        assert_eq!(reply[1], self.token);
        reply
    }
}

fn of(op: CallOp) -> Call {
    Call {
        op,
        len: 0,
        class: 0,
        token: 0,
        published: 0,
        entry: 0,
    }
}

fn status(reply: &[u64]) -> u64 {
    reply[0] & 0xffff
}

fn world(seed: u64) -> World<SeededNetwork> {
    World::new(SeededNetwork::new(seed), (1, 1), geometry(64, 600, 100))
}

#[test]
fn messages_that_make_no_sense_are_refused_and_others_are_served() {
    let mut world = world(1);
    assert_eq!(world.put(0, &key(1), b"kept"), Kept::Done);
    let (mut raw, mut draw) = (Raw::new(&mut world), Rng::new(5));
    let mut malformed = 0;
    for n in 0..400 {
        let len = draw.below(250) as usize;
        let mut message: Vec<u8> = (0..len).map(|_| draw.below(256) as u8).collect();
        if n % 2 == 0 && len > 3 {
            // An operation that exists, and a length that may fit.
            message[..4].copy_from_slice(&[
                1 + draw.below(5) as u8,
                0,
                (len.saturating_sub(32)) as u8,
                0,
            ]);
        }
        let reply = raw.ask(&mut world, &message);
        malformed += u64::from(status(&reply) == CallStatus::Malformed as u64);
    }
    let counters = world.server.server().counters();
    assert!(malformed > 200 && counters.bad_length + counters.bad_unknown > 200);
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"kept".to_vec()));
    assert_eq!(world.put(0, &key(1), b"new"), Kept::Done);
}

/// It finds these bugs when they are planted: `Entries::create` takes an entry in any state, or one that
/// another client holds; `hand_out` knows no `HELD_MAX`.
#[test]
fn claims_are_checked_and_hoards_bounded() {
    let geometry = geometry(64, 10_000, 100);
    let mut world = World::new(SeededNetwork::new(2), (1, 1), geometry);
    assert_eq!(world.put(0, &key(1), b"kept"), Kept::Done);
    let free = world.server.server().free_entries(0);
    let mut raw = Raw::new(&mut world);
    let full = |reply: &[u64]| status(reply) == CallStatus::Malformed as u64;
    // Of no class, in a chain, in the free list of another, free, and behind the last one. Entries are handed
    // out by their numbers, of the class of the value first.
    assert_eq!(class_of_len(24 + 16 + 4), Some(0));
    assert!(free < 9_998, "the client has some in its free list: {free}");
    let [linked, held, unused] = [0, 1, 9_999].map(|number| geometry.target_of(number));
    for target in [1, linked, held, unused, 1 << 20] {
        let place = Place {
            target,
            version: 0,
            tombstone: false,
        };
        let create = Call {
            entry: place.word(),
            ..of(CallOp::Create)
        };
        assert!(full(&raw.call(&mut world, create, b"forged")));
    }
    let class = 1000;
    assert!(full(&raw.call(
        &mut world,
        Call {
            class,
            ..of(CallOp::Take)
        },
        &[]
    )));
    let nowhere = u64::MAX.to_le_bytes();
    raw.call(&mut world, of(CallOp::Superseded), &nowhere);
    assert_eq!(world.server.server().counters().bad_claim, 7);
    // It takes all that it can get, and publishes what it has not seen.
    let mut taken = 0;
    loop {
        let take = Call {
            published: u64::MAX,
            ..of(CallOp::Take)
        };
        let reply = raw.call(&mut world, take, &[]);
        if reply.len() == 4 {
            break;
        }
        taken += reply.len() - 4;
    }
    assert_eq!(taken, 8192);
    assert_eq!(world.server.server().counters().bad_hoard, 1);
    assert_eq!(world.put(0, &key(1), b"new"), Kept::Done);
    // It gets them all back when the client is gone.
    world.server.remove(raw.id);
    for _ in 0..100_000 {
        if world.server.server().free_entries(0) >= free {
            break;
        }
        world.pass();
    }
    assert!(world.server.server().free_entries(0) >= free);
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"new".to_vec()));
}

/// A client that sends calls and takes no replies delays no other.
#[test]
fn a_client_that_takes_no_replies_is_bounded() {
    let mut world = world(3);
    // No RECVs.
    let mut raw = Raw::with(&mut world, Some(&SECRET));
    let find: Vec<u8> = Call {
        len: 8,
        ..of(CallOp::Find)
    }
    .words()
    .iter()
    .flat_map(|word| word.to_le_bytes())
    .chain([7; 8])
    .collect();
    for _ in 0..60 {
        raw.send(&find);
    }
    let mut passes = 0;
    while world.server.lapsed().is_none() {
        world.pass();
        raw.port.progress(world.now);
        passes += 1;
        assert!(passes < 200_000);
        if passes == 200 {
            assert_eq!(world.put(0, &key(2), b"x"), Kept::Done);
        }
    }
    assert_eq!(world.server.lapsed(), Some(raw.id));
    assert!(world.server.server().counters().replies_held > 0);
    world.server.remove(raw.id);
    assert_eq!(world.put(0, &key(2), b"y"), Kept::Done);
}

/// Without the secret a client takes no entries, creates no keys, and has the server delete none.
#[test]
fn without_the_secret_a_client_asks_where_keys_are_and_nothing_else() {
    let mut world = world(5);
    assert_eq!(world.put(0, &key(1), b"kept"), Kept::Done);
    let mut raw = Raw::with(&mut world, None).receives();
    let place = Place {
        target: world.geometry.target_of(0),
        version: 0,
        tombstone: false,
    };
    let create = Call {
        entry: place.word(),
        ..of(CallOp::Create)
    };
    let (one, word) = (key(1), place.word().to_le_bytes());
    for (call, body) in [
        (of(CallOp::Take), &[][..]),
        (create, b"forged"),
        (of(CallOp::Give), &word),
        (of(CallOp::Superseded), &[0; 8]),
        (of(CallOp::Delete), &one),
    ] {
        let reply = raw.call(&mut world, call, body);
        assert_eq!(status(&reply), CallStatus::Malformed as u64, "{call:?}");
    }
    let found = raw.call(&mut world, of(CallOp::Find), &one);
    assert_eq!(status(&found), CallStatus::Done as u64);
    let published = raw.call(&mut world, of(CallOp::Publish), &[]);
    assert_eq!(status(&published), CallStatus::Done as u64);
    assert_eq!(world.server.server().counters().bad_right, 5);
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"kept".to_vec()));
    // A wrong secret is refused here, too.
    let pd = herdwick_fabric::PdId(0);
    let wrong = world.server.admit(pd, Some(&Secret([8; 16]))).unwrap_err();
    assert!(matches!(wrong, SetupError::Refused(OptionsError::Secret)));
}

/// A client that leaves one epoch after the other, as late as it may, keeps all memory that was retired
/// since: it lapses.
#[test]
fn a_client_that_crawls_from_epoch_to_epoch_lapses() {
    let mut world = world(7);
    world.server_options.lease = Duration::from_millis(2);
    world.restart();
    world.join();
    let mut raw = Raw::new(&mut world);
    let (lease, begun, mut published) = (world.server_options.lease, world.now, 0);
    let mut next = begun;
    while world.server.lapsed().is_none() {
        assert!(world.now < begun + 4 * lease, "it holds everything up");
        world.put(0, &key(1), b"x");
        if world.now >= next {
            next = world.now + lease * 9 / 10;
            let publish = Call {
                published,
                ..of(CallOp::Publish)
            };
            let reply = raw.call(&mut world, publish, &[]);
            let epoch = reply[2];
            published = if published == 0 { epoch } else { published + 1 };
            assert!(published <= epoch);
        }
    }
    assert_eq!(world.server.lapsed(), Some(raw.id));
}

/// What a client does not hold it cannot give back, nor what it holds twice.
#[test]
fn entries_that_are_given_back_are_checked() {
    let mut world = world(6);
    assert_eq!(world.put(0, &key(1), b"kept"), Kept::Done);
    let mut raw = Raw::new(&mut world);
    let taken = raw.call(&mut world, of(CallOp::Take), &[]);
    let mut body = Vec::new();
    let others = [0, 1, 599].map(|number| Place {
        target: world.geometry.target_of(number),
        version: 0,
        tombstone: false,
    });
    for word in others
        .iter()
        .map(|place| place.word())
        .chain([taken[4], taken[4], u64::MAX])
    {
        body.extend_from_slice(&word.to_le_bytes());
    }
    raw.call(&mut world, of(CallOp::Give), &body);
    let counters = world.server.server().counters();
    assert_eq!((counters.given, counters.bad_claim), (1, 5));
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"kept".to_vec()));
}

#[test]
fn without_the_secret_a_client_reads_and_nothing_else() {
    let mut world = world(4);
    assert_eq!(world.put(0, &key(1), b"kept"), Kept::Done);
    let (device, options) = (world.fabric.device(), world.client_options);
    let reader = join(
        (&mut world.nodes, &mut world.server),
        device,
        (None, &options),
    );
    world.clients.push(reader);
    assert_eq!(world.get(1, &key(1)), Kept::Value(b"kept".to_vec()));
    let now = world.now;
    let refused = world.clients[1].end.client.put(&key(1), b"x", 0, now);
    assert_eq!(refused, Err(Refused::ReadOnly));
    // A wrong secret is refused.
    let node = &mut world.nodes[0];
    let room = NodeEnd::<SeededDevice>::pd_room();
    let pd = node.device.create_pd_for(&mut node.port, &room).unwrap();
    let wrong = node.admit(pd, Some(&Secret([8; 16]))).unwrap_err();
    assert!(
        matches!(wrong, SetupError::Refused(OptionsError::Secret)),
        "{wrong}"
    );
    // And the node refuses a WRITE, whatever the client's machine thinks.
    let mut poker = poke(&mut world, (0, None), (16, u64::MAX));
    assert_eq!(poker.status, Status::RemoteAccess);
    let spec = RegionSpec {
        len: 8,
        access: Access::LOCAL,
        scope: Scope::Pd,
    };
    let room = poker
        .device
        .allocate_region(&mut poker.port, poker.pd, &spec);
    assert!(room.is_ok());
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"kept".to_vec()));
}
