//! Random schedules of leases on one RNIC: clients join, write, leave with work outstanding, die,
//! and go on after their lease was revoked, while ids, queues and memory are reused. Each lease's
//! requests complete once and at no other lease, each client gets its own replies and no others,
//! and at the end there is room for as many leases as at the beginning.
//!
//! A planted bug was found: a completion queue that keeps, of a queue pair that is destroyed, the
//! completions that were put aside while another one was destroyed (`destroy_qp` in `control.rs`).

use std::collections::BTreeSet;

use herdwick_fabric::{
    Access, AddressHandle, Completion, CqId, CqSpec, Device, Local, Opcode, Payload, PdId, Port,
    PortLimits, QpId, QpSpec, RecvWr, RegionId, RegionSpec, Remote, Scope, SendOp, SendWr, Status,
    Transport,
};
use herdwick_mem::Words;
use herdwick_verbs::{VerbsDevice, VerbsPort};
use proptest::prelude::*;

use crate::side::open;

/// Leases at a time.
const LEASES: usize = 3;
/// Requests that a client has outstanding at most.
const WINDOW: u32 = 8;
const RECVS: usize = WINDOW as usize;
const REGION: usize = 4096;
/// An immediate is the lease's tag, and below it this many bits of the request's number.
const NUMBER_BITS: u32 = 16;
/// The tag of a client whose lease was revoked.
const GHOST: u32 = 0xfff;

struct Client {
    port: VerbsPort,
    cq: CqId,
    requests: QpId,
    replies: QpId,
    inbox: RegionId,
    to: Remote,
    written: u32,
    heard: u32,
}

/// The host's objects for a lease.
struct Lease {
    tag: u32,
    pd: PdId,
    requests: QpId,
    memory: RegionId,
    replies: AddressHandle,
    /// Its RECVs that have not completed.
    recvs: BTreeSet<u64>,
    served: u32,
    /// `None`: the client has left or died, which the host has not learned yet.
    client: Option<Client>,
}

struct World {
    device: VerbsDevice,
    host: VerbsPort,
    /// The completion queue of requests, and that of replies.
    cqs: [CqId; 2],
    reply_qp: QpId,
    leases: Vec<Lease>,
    /// A client whose lease was revoked, and that goes on as if it existed.
    ghost: Option<Client>,
    tags: u32,
    recvs: u64,
}

fn qp(pd: PdId, transport: Transport, cq: CqId, recv_depth: usize) -> QpSpec {
    QpSpec {
        pd,
        transport,
        send_cq: cq,
        recv_cq: cq,
        send_depth: 2 * RECVS,
        recv_depth,
    }
}

fn imm(tag: u32, number: u32) -> u32 {
    tag << NUMBER_BITS | number & ((1 << NUMBER_BITS) - 1)
}

impl World {
    fn new() -> Self {
        let device = open().unwrap();
        let limits = PortLimits {
            pds: LEASES + 1,
            qps: LEASES + 1,
            cqs: 2,
            regions: LEASES,
            addresses: LEASES,
        };
        let mut host = device.open_port(&limits).unwrap();
        let pd = device.create_pd(&mut host).unwrap();
        let depths = [LEASES * 3 * RECVS, 2 * RECVS];
        let cqs = depths.map(|depth| device.create_cq(&mut host, &CqSpec { depth }).unwrap());
        let spec = qp(pd, Transport::Ud, cqs[1], 0);
        let reply_qp = device.create_qp(&mut host, &spec).unwrap();
        Self {
            device,
            host,
            cqs,
            reply_qp,
            leases: Vec::new(),
            ghost: None,
            tags: 0,
            recvs: 0,
        }
    }

    /// Makes a client with two queue pairs, and RECVs for its replies.
    fn client(&self) -> Client {
        let device = &self.device;
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let depth = 6 * RECVS;
        let cq = device.create_cq(&mut port, &CqSpec { depth }).unwrap();
        let mut create = |transport, recvs| {
            let spec = qp(pd, transport, cq, recvs);
            device.create_qp(&mut port, &spec).unwrap()
        };
        let (requests, replies) = (create(Transport::Uc, 0), create(Transport::Ud, RECVS));
        let spec = RegionSpec {
            len: REGION,
            access: Access::LOCAL,
            scope: Scope::Pd,
        };
        let inbox = device.allocate_region(&mut port, pd, &spec).unwrap();
        let mut client = Client {
            port,
            cq,
            requests,
            replies,
            inbox,
            to: Remote {
                rkey: herdwick_fabric::Rkey(0),
                addr: 0,
            },
            written: 0,
            heard: 0,
        };
        (0..RECVS as u64).for_each(|n| client.recv(n));
        client
    }

    fn join(&mut self) {
        if self.leases.len() == LEASES {
            return;
        }
        self.tags = self.tags % (GHOST - 1) + 1;
        let mut client = self.client();
        let (device, host) = (&self.device, &mut self.host);
        let pd = device.create_pd(host).unwrap();
        let spec = qp(pd, Transport::Uc, self.cqs[0], RECVS);
        let requests = device.create_qp(host, &spec).unwrap();
        let spec = RegionSpec {
            len: REGION,
            access: Access::WRITE,
            scope: Scope::Pd,
        };
        let memory = device.allocate_region(host, pd, &spec).unwrap();
        let theirs = device.endpoint(&client.port, client.requests).unwrap();
        device.connect(host, requests, &theirs).unwrap();
        let ours = device.endpoint(host, requests).unwrap();
        let connected = device.connect(&mut client.port, client.requests, &ours);
        connected.unwrap();
        client.to = device.remote(host, memory).unwrap();
        let replies = device.endpoint(&client.port, client.replies).unwrap();
        let mut lease = Lease {
            tag: self.tags,
            pd,
            requests,
            memory,
            replies: device
                .create_address(host, self.reply_qp, &replies)
                .unwrap(),
            recvs: BTreeSet::new(),
            served: 0,
            client: Some(client),
        };
        for _ in 0..RECVS {
            self.recvs += 1;
            lease.recv(&mut self.host, self.recvs);
        }
        self.leases.push(lease);
    }

    /// Completes what has arrived, at most `most`, and replies to it.
    fn serve(&mut self, most: usize) {
        let mut out = [Completion::BLANK; 16];
        let count = self.host.poll(self.cqs[0], &mut out[..most]);
        for done in &out[..count] {
            let mut leases = self.leases.iter_mut();
            let lease = leases.find(|lease| lease.requests == done.qp);
            let lease = lease.expect("a completion of no lease that is");
            assert!(
                lease.recvs.remove(&done.wr_id),
                "{done:?} twice, or another's"
            );
            assert_eq!(
                (done.status, done.opcode),
                (Status::Success, Opcode::RecvWithImm)
            );
            lease.served += 1;
            assert_eq!(done.imm, Some(imm(lease.tag, lease.served)));
            let memory = self.host.region(lease.memory).unwrap();
            let word = memory.load((lease.served % WINDOW) as usize);
            assert_eq!(
                word >> NUMBER_BITS,
                u64::from(lease.tag),
                "another's request"
            );
            let reply = SendWr {
                wr_id: done.wr_id,
                op: SendOp::Send {
                    payload: Payload::Words(&[word]),
                    imm: done.imm,
                    to: Some(lease.replies),
                },
                signaled: true,
                solicited: false,
                fence: false,
            };
            self.host.post_send(self.reply_qp, &[reply]).unwrap();
            let sent = self.host.poll(self.cqs[1], &mut [Completion::BLANK; 2]);
            assert_eq!(sent, 1, "a reply is sent at once");
            self.recvs += 1;
            lease.recv(&mut self.host, self.recvs);
        }
    }

    /// Ends a lease, with requests in its memory and completions in the queue. Its client may not
    /// know.
    fn revoke(&mut self, which: usize) {
        if which < self.leases.len() {
            let lease = self.leases.swap_remove(which);
            self.device.destroy_pd(&mut self.host, lease.pd).unwrap();
            let gone = self.device.destroy_address(&mut self.host, lease.replies);
            gone.unwrap();
            self.ghost = lease.client.or_else(|| self.ghost.take());
        }
    }

    fn haunt(&mut self) {
        if let Some(ghost) = &mut self.ghost {
            ghost.write(GHOST);
            ghost.listen(None);
        }
    }

    fn step(&mut self, step: u8, which: usize, most: usize) {
        let lease = self.leases.get_mut(which);
        let client = lease.and_then(|lease| Some((lease.tag, lease.client.as_mut()?)));
        match (step, client) {
            (0..2, _) => self.join(),
            (2..9, Some((tag, client))) => client.write(tag),
            (9..12, _) => self.serve(most),
            (12..15, Some((tag, client))) => client.listen(Some(tag)),
            (15, _) => self.revoke(which),
            (16, _) => self.haunt(),
            // It dies, or leaves, with requests under way.
            (17, Some(_)) => self.leases[which].client = None,
            _ => {}
        }
    }
}

impl Lease {
    fn recv(&mut self, host: &mut VerbsPort, wr_id: u64) {
        let into = Local {
            region: self.memory,
            offset: 0,
            len: 0,
        };
        host.post_recv(self.requests, &[RecvWr { wr_id, into }])
            .unwrap();
        self.recvs.insert(wr_id);
    }
}

impl Client {
    fn recv(&mut self, n: u64) {
        let into = Local {
            region: self.inbox,
            offset: n as usize * 64,
            len: 64,
        };
        let recv = RecvWr { wr_id: n, into };
        self.port.post_recv(self.replies, &[recv]).unwrap();
    }

    /// Writes a request, if the window has room.
    fn write(&mut self, tag: u32) {
        if self.written - self.heard == WINDOW {
            return;
        }
        self.written += 1;
        let word = u64::from(tag) << NUMBER_BITS | u64::from(self.written);
        let write = SendWr {
            wr_id: u64::MAX,
            op: SendOp::Write {
                payload: Payload::Words(&[word]),
                to: self.to.offset(u64::from(self.written % WINDOW) * 8),
                imm: Some(imm(tag, self.written)),
            },
            signaled: true,
            solicited: false,
            fence: false,
        };
        // The queue pair of a client without a lease may have failed.
        let posted = self.port.post_send(self.requests, &[write]);
        assert!(posted.is_ok() || tag == GHOST, "{posted:?}");
    }

    /// Takes the replies, which are to this client's requests, in their order; of a client without
    /// a lease there may be some that were on their way.
    fn listen(&mut self, tag: Option<u32>) {
        let mut out = [Completion::BLANK; 6 * RECVS];
        let count = self.port.poll(self.cq, &mut out);
        let replies = self.replies;
        for done in out[..count].iter().filter(|done| done.qp == replies) {
            self.heard += 1;
            assert_eq!(done.status, Status::Success);
            assert!(self.heard <= self.written, "a reply to nothing");
            if let Some(tag) = tag {
                assert_eq!(done.imm, Some(imm(tag, self.heard)), "another's reply");
            }
            self.recv(done.wr_id);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn leases_that_come_and_go_complete_their_own_requests_only(
        steps in prop::collection::vec((0u8..18, 0..LEASES, 1usize..16), 100..600),
    ) {
        let mut world = World::new();
        for (step, which, most) in steps {
            world.step(step, which, most);
        }
        while !world.leases.is_empty() {
            world.revoke(0);
        }
        (0..LEASES).for_each(|_| world.join());
        prop_assert_eq!(world.leases.len(), LEASES);
        for which in 0..LEASES {
            world.step(2, which, 0);
            world.serve(16);
            world.step(12, which, 0);
            let client = world.leases[which].client.as_ref().expect("it has joined");
            prop_assert_eq!(client.heard, 1);
        }
    }
}
