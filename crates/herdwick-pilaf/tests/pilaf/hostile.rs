//! A client that sends messages of its own making, and reaches for what it must not.

use herdwick_check::Rng;
use herdwick_conformance::seeded::{SeededDevice, SeededNetwork, SeededPort};
use herdwick_fabric::{
    Access, Completion, CqId, CqSpec, Device, Local, Payload, Port, PortLimits, QpId, QpSpec,
    RecvWr, RegionId, RegionSpec, Scope, SendOp, SendWr, Status, Transport,
};
use herdwick_pilaf::{Accept, ClientId, Grant, ServerEnd, ServerOptions, pd_room};

use crate::fixture::{Kept, World, join, key, seeded, server_options};

/// A client without a machine.
struct Raw {
    id: ClientId,
    grant: Grant,
    port: SeededPort,
    cq: CqId,
    requests: QpId,
    reads: QpId,
    memory: RegionId,
    replies: usize,
}

impl Raw {
    fn join(network: &SeededNetwork, server: &mut ServerEnd<SeededDevice>) -> Self {
        let (mut raw, accept) = Self::admitted(network, server);
        server.connect(raw.id, &accept).unwrap();
        (0..100).for_each(|_| raw.recv());
        raw
    }

    /// Returns a client to which the server is not connected yet.
    fn admitted(network: &SeededNetwork, server: &mut ServerEnd<SeededDevice>) -> (Self, Accept) {
        let pd = server
            .device
            .create_pd_for(&mut server.port, &pd_room())
            .unwrap();
        let (id, grant) = server.admit(pd).unwrap();
        let device = network.device();
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let cq = device
            .create_cq(&mut port, &CqSpec { depth: 1024 })
            .unwrap();
        let spec = QpSpec {
            pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            send_depth: 256,
            recv_depth: 128,
        };
        let [requests, reads] = [(); 2].map(|()| device.create_qp(&mut port, &spec).unwrap());
        let spec = RegionSpec {
            len: 1 << 20,
            access: Access::LOCAL,
            scope: Scope::Pd,
        };
        let memory = device.allocate_region(&mut port, pd, &spec).unwrap();
        device
            .connect(&mut port, requests, &grant.requests)
            .unwrap();
        device.connect(&mut port, reads, &grant.reads).unwrap();
        let accept = Accept {
            requests: device.endpoint(&port, requests).unwrap(),
            reads: device.endpoint(&port, reads).unwrap(),
        };
        let raw = Self {
            id,
            grant,
            port,
            cq,
            requests,
            reads,
            memory,
            replies: 0,
        };
        (raw, accept)
    }

    fn recv(&mut self) {
        let into = Local {
            region: self.memory,
            offset: 0,
            len: 4096,
        };
        self.port
            .post_recv(self.requests, &[RecvWr { wr_id: 1, into }])
            .unwrap();
    }

    fn send(&mut self, head: [u64; 4], body: usize) {
        let span = self.port.region(self.memory).unwrap();
        span.write_words(8192 / 8, &head);
        let payload = Payload::Region(Local {
            region: self.memory,
            offset: 8192,
            len: 32 + body,
        });
        self.post(
            self.requests,
            SendOp::Send {
                payload,
                imm: None,
                to: None,
            },
        );
    }

    fn post(&mut self, qp: QpId, op: SendOp<'_>) {
        let wr = SendWr {
            wr_id: 2,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.port.post_send(qp, &[wr]).unwrap();
    }

    /// Runs until everything is quiet; returns the status of the last send.
    fn settle(&mut self, world: &mut World<SeededDevice>) -> Option<Status> {
        let mut sent = None;
        for _ in 0..50 {
            world.pass();
            self.port.progress(world.now);
            let mut done = [Completion::BLANK; 64];
            let count = self.port.poll(self.cq, &mut done);
            for completion in &done[..count] {
                if completion.wr_id == 2 {
                    sent = Some(completion.status);
                } else if completion.status == Status::Success {
                    self.replies += 1;
                    self.recv();
                }
            }
        }
        sent
    }
}

const PUT: u64 = 2;

fn lengths(op: u64, key: u64, value: u64) -> u64 {
    op | key << 16 | value << 32
}

/// A session between processes connects some passes after it was admitted.
#[test]
fn a_client_that_joins_while_the_table_moves_is_told_once_it_is_connected() {
    let options = ServerOptions {
        buckets_max: 64,
        ..server_options(16)
    };
    let (network, mut world) = seeded(2, 1, options);
    let (mut raw, accept) = Raw::admitted(&network, &mut world.server);
    let mut n = 0;
    while world.server.server().counters().growths == 0 {
        assert_eq!(world.put(0, &key(n), b"x"), Kept::Done);
        n += 1;
    }
    assert_eq!(raw.settle(&mut world), None);
    world.server.connect(raw.id, &accept).unwrap();
    (0..100).for_each(|_| raw.recv());
    raw.settle(&mut world);
    assert_eq!(
        (raw.replies, world.server.clients()),
        (1, 2),
        "the announcement"
    );
    assert_eq!(world.server.server().counters().clients_failed, 0);
}

#[test]
fn absurd_messages_are_counted_and_refused() {
    let (network, mut world) = seeded(1, 1, server_options(256));
    let mut raw = Raw::join(&network, &mut world.server);
    let counts = |world: &World<SeededDevice>| {
        let counters = world.server.server().counters();
        [
            counters.bad_absurd,
            counters.bad_length,
            counters.bad_unknown,
            counters.bad_part,
        ]
    };
    // A head, the bytes behind it, and which counter counts it.
    let rows = [
        ([lengths(PUT, 16, (64 << 10) + 1), 1, 0, 0], 4064, 0),
        ([lengths(PUT, 16, u32::MAX.into()), 1, 0, 0], 4064, 0),
        ([lengths(PUT, 1025, 0), 1, 0, 0], 1025, 0),
        ([lengths(PUT, 0, 8), 1, 0, 0], 8, 0),
        ([lengths(1, 16, 8), 1, 0, 0], 24, 0),
        ([lengths(PUT, 16, 8), 1, 0, 0], 23, 1),
        ([lengths(PUT, 16, 8), 1, 0, 0], 25, 1),
        ([lengths(PUT, 16, 8), 1, 1 << 32, 0], 24, 1),
        ([lengths(PUT, 16, 8), 1, u64::MAX, 0], 24, 1),
        ([lengths(0, 16, 8), 1, 0, 0], 24, 2),
        ([lengths(9, 16, 8), 1, 0, 0], 24, 2),
        ([lengths(PUT | 1 << 8, 16, 8), 1, 0, 0], 24, 2),
        ([lengths(PUT, 16, 8), 1, 0, 1], 24, 2),
        // The second part of a request without a first.
        ([lengths(PUT, 16, 8000), 1, 1 << 32, 0], 8016 - 4064, 3),
    ];
    for (number, (head, body, counter)) in rows.into_iter().enumerate() {
        let mut expected = counts(&world);
        expected[counter] += 1;
        raw.send(head, body);
        assert_eq!(raw.settle(&mut world), Some(Status::Success));
        assert_eq!(counts(&world), expected, "row {number}");
        assert_eq!(raw.replies, number + 1, "row {number}");
    }
    // A request that another one interrupts; then the rest of the first.
    for (lengths, token, part, body) in [
        (lengths(PUT, 16, 8000), 1, 0, 4064),
        (lengths(PUT, 16, 8), 2, 0, 24),
        (lengths(PUT, 16, 8000), 1, 1 << 32, 8016 - 4064),
    ] {
        raw.send([lengths, token, part, 0], body);
        raw.settle(&mut world);
    }
    assert_eq!(counts(&world)[3], 3);
    assert_eq!(world.server.server().store().keys(), 0);
    // The connection still works.
    raw.send([lengths(PUT, 16, 8), 3, 0, 0], 24);
    raw.settle(&mut world);
    assert_eq!(world.server.server().store().keys(), 1);
    assert_eq!(world.put(0, &key(1), b"x"), Kept::Done);
}

#[test]
fn random_messages_harm_nobody() {
    let (network, mut world) = seeded(2, 1, server_options(256));
    assert_eq!(world.put(0, &key(1), b"kept"), Kept::Done);
    let (mut raw, mut draw) = (Raw::join(&network, &mut world.server), Rng::new(9));
    for _ in 0..3000 {
        let word = |draw: &mut Rng| match draw.below(3) {
            0 => draw.below(4),
            1 => lengths(draw.below(6), draw.below(40), draw.below(9000)),
            _ => draw.below(u64::MAX),
        };
        let head = std::array::from_fn(|_| word(&mut draw));
        raw.send(head, draw.below(4064) as usize);
        raw.settle(&mut world);
    }
    assert_eq!(world.server.clients(), 2);
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"kept".to_vec()));
}

#[test]
fn tables_cannot_be_written_and_a_message_too_many_ends_only_its_sender() {
    let (network, mut world) = seeded(3, 1, server_options(256));
    assert_eq!(world.put(0, &key(1), b"kept"), Kept::Done);
    for to in [true, false] {
        let mut raw = Raw::join(&network, &mut world.server);
        let to = if to {
            raw.grant.table.view.table
        } else {
            raw.grant.extents.extents
        };
        let payload = Payload::Words(&[7; 4]);
        raw.post(
            raw.reads,
            SendOp::Write {
                payload,
                to,
                imm: None,
            },
        );
        assert_eq!(raw.settle(&mut world), Some(Status::RemoteAccess));
        world.server.remove(raw.id);
    }
    // A longer message than a RECV takes.
    let mut raw = Raw::join(&network, &mut world.server);
    raw.send([lengths(PUT, 16, 8), 1, 0, 0], 8000);
    raw.settle(&mut world);
    assert_eq!(world.server.clients(), 1, "it is dropped");
    assert_eq!(world.server.server().counters().clients_failed, 1);
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"kept".to_vec()));
    join(
        &mut world.server,
        network.device(),
        &herdwick_pilaf::ClientOptions::default(),
    );
}
