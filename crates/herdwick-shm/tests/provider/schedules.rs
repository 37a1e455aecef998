//! Clients that join, work, leave, die and are revoked at any instant, under one host whose tables
//! are so small that everything is soon reused: each client gets its own replies and no others, and
//! no memory stays with former clients.
//!
//! It finds these bugs when they are planted: rings of a domain that outlive it (there is soon no
//! room for another), and files that are not given back at its end because their seals forbid it.

use std::os::fd::OwnedFd;

use herdwick_check::Rng;
use herdwick_fabric::{
    Access, AddressHandle, Armed, Completion, CqId, CqSpec, Device, Local, Payload, PdId, Port,
    PortLimits, QpId, QpSpec, RecvWr, RegionId, Remote, Transport,
};
use herdwick_mem::Words;
use herdwick_shm::{PdSize, ShmDevice};
use rustix::fs::fstat;

use crate::party::{Party, client, connect, is_readable, send, write};

/// Domains at a time.
const LIVES: usize = 3;
const SLOTS: usize = 8;
const RECVS: usize = 16;
const SIZE: PdSize = PdSize {
    host_inbound: 8 << 10,
    host_readable: 0,
    client_inbound: 136 << 10,
    client_regions: 0,
};

/// One domain, at some stage of its set-up.
struct Life {
    tag: u64,
    host_pd: PdId,
    /// The client's files, which it keeps whatever happens to its domain.
    files: Vec<OwnedFd>,
    client: Option<Client>,
    served: Option<Served>,
}

struct Client {
    party: Party,
    requests: QpId,
    replies: QpId,
    buffers: RegionId,
    written: u64,
    heard: u64,
}

/// The host's objects for a connected client.
struct Served {
    lines: RegionId,
    replies: AddressHandle,
    said: u64,
}

struct World {
    host: Party,
    reply_qp: QpId,
    chance: Rng,
    lives: Vec<Life>,
    /// Clients whose domain was revoked.
    ghosts: Vec<(Life, Remote)>,
    next: u64,
}

/// The `n`th request of the client of life `tag`, and its reply.
fn word(tag: u64, n: u64) -> u64 {
    tag << 32 | n
}

impl World {
    fn new(seed: u64) -> Self {
        let device = ShmDevice::host(SIZE);
        let limits = PortLimits {
            pds: LIVES + 1,
            qps: LIVES + 1,
            cqs: 1,
            regions: LIVES,
            addresses: LIVES,
        };
        let mut port = device.open_port(&limits).unwrap();
        let cq: CqId = device
            .create_cq(&mut port, &CqSpec { depth: 4096 })
            .unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let mut host = Party {
            device,
            port,
            pd,
            cq,
        };
        let reply_qp = host.qp(Transport::Ud, 0);
        Self {
            host,
            reply_qp,
            chance: Rng::new(seed),
            lives: Vec::new(),
            ghosts: Vec::new(),
            next: 1,
        }
    }

    /// Makes a new domain; its client reaches a random stage.
    fn join(&mut self) {
        if self.lives.len() == LIVES {
            return;
        }
        let (tag, stage) = (self.next, self.chance.index(4));
        self.next += 1;
        let ticket = self.host.domain();
        let files = ticket.fds[..2].iter().map(|fd| fd.try_clone().unwrap());
        let mut life = Life {
            tag,
            host_pd: self.host.pd,
            files: files.collect(),
            client: None,
            served: None,
        };
        if stage > 0 {
            let mut party = client(ticket);
            let requests = party.qp(Transport::Uc, 0);
            let replies = party.qp(Transport::Ud, RECVS);
            let buffers = party.region(RECVS * 4096, Access::LOCAL);
            party.recvs(replies, buffers, RECVS);
            life.client = Some(Client {
                party,
                requests,
                replies,
                buffers,
                written: 0,
                heard: 0,
            });
        }
        if let (true, Some(client)) = (stage > 1, &mut life.client) {
            let lines = self.host.region(SLOTS * 8, Access::WRITE);
            let span = self.host.port.region(lines).unwrap();
            assert_eq!(
                span.read_words::<SLOTS>(0),
                [0; SLOTS],
                "another's requests"
            );
            let qp = QpSpec {
                pd: self.host.pd,
                transport: Transport::Uc,
                send_cq: self.host.cq,
                recv_cq: self.host.cq,
                send_depth: 1,
                recv_depth: 0,
            };
            let qp = self
                .host
                .device
                .create_qp(&mut self.host.port, &qp)
                .unwrap();
            connect(&mut self.host, qp, &mut client.party, client.requests);
            let replies = self
                .host
                .address(self.reply_qp, &client.party.endpoint(client.replies));
            life.served = Some(Served {
                lines,
                replies,
                said: 0,
            });
        }
        self.lives.push(life);
    }

    /// Makes a client write a request, which wakes the host if it sleeps.
    fn ask(&mut self, which: usize) {
        let Some(life) = self.lives.get_mut(which) else {
            return;
        };
        let (Some(client), Some(served)) = (&mut life.client, &life.served) else {
            return;
        };
        // At most as many requests as the client has RECVs for replies.
        if client.written - client.heard >= SLOTS as u64 {
            return;
        }
        let to = self
            .host
            .remote(served.lines)
            .offset(client.written % SLOTS as u64 * 8);
        client.written += 1;
        let words = [word(life.tag, client.written)];
        let sleeps = self.host.port.arm(self.host.cq) == Armed::Yes;
        let batch = [write(Payload::Words(&words), to)];
        client
            .party
            .port
            .post_send(client.requests, &batch)
            .unwrap();
        assert!(
            !sleeps || is_readable(self.host.port.wait_fd().unwrap()),
            "not woken"
        );
        self.host.port.disarm(self.host.cq);
        assert!(
            !is_readable(self.host.port.wait_fd().unwrap()),
            "woken for ever"
        );
    }

    /// Makes the host answer the requests in a client's lines, some with long replies.
    fn serve(&mut self, which: usize) {
        let length = self.chance.index(3) * 2000;
        let Some(life) = self.lives.get_mut(which) else {
            return;
        };
        let Some(served) = &mut life.served else {
            return;
        };
        let span = self.host.port.region(served.lines).unwrap().clone();
        loop {
            let n = served.said + 1;
            let found = span.load_acquire((served.said % SLOTS as u64) as usize);
            if found != word(life.tag, n) {
                assert!(
                    found == 0 || found == word(life.tag, n - SLOTS as u64),
                    "{found:x}"
                );
                return;
            }
            served.said = n;
            let mut bytes = vec![0; length.max(8)];
            bytes[..8].copy_from_slice(&found.to_le_bytes());
            let batch = [send(
                Payload::Inline(&bytes),
                Some(n as u32),
                Some(served.replies),
            )];
            self.host.port.post_send(self.reply_qp, &batch).unwrap();
        }
    }

    /// Makes a client poll: it must get its own replies, in order.
    fn listen(&mut self, which: usize) {
        if let Some(life) = self.lives.get_mut(which)
            && let Some(client) = &mut life.client
        {
            client.listen(life.tag);
        }
    }

    /// Makes the host end a domain: in order, or with all objects in it.
    fn revoke(&mut self, which: usize) {
        if which >= self.lives.len() {
            return;
        }
        let mut life = self.lives.swap_remove(which);
        let (host, device) = (&mut self.host.port, &self.host.device);
        let mut remote = None;
        if let Some(served) = life.served.take() {
            remote = Some(device.remote(host, served.lines).unwrap());
            if self.chance.index(2) == 0 {
                device.destroy_address(host, served.replies).unwrap();
            }
        }
        device.destroy_pd(host, life.host_pd).unwrap();
        let held = |file: &OwnedFd| fstat(file).unwrap().st_blocks;
        assert!(
            life.files.iter().all(|file| held(file) == 0),
            "memory is held"
        );
        if let (Some(_), Some(remote)) = (&life.client, remote) {
            self.ghosts.push((life, remote));
        }
    }

    /// Makes a client whose domain was revoked go on as if it existed.
    fn haunt(&mut self) {
        let Some((life, remote)) = self.ghosts.last_mut() else {
            return;
        };
        let client = life.client.as_mut().expect("ghosts are clients");
        let words = [word(life.tag, 99)];
        let batch = [write(Payload::Words(&words), *remote)];
        // Its queue pair may have learned of the end.
        let _ = client.party.port.post_send(client.requests, &batch);
        client.listen(life.tag);
        if self.chance.index(3) == 0 {
            self.ghosts.pop();
        }
    }

    fn step(&mut self) {
        let which = self.chance.index(LIVES);
        match self.chance.index(20) {
            0..2 => self.join(),
            2..8 => self.ask(which),
            8..13 => self.serve(which),
            13..17 => self.listen(which),
            17 => self.revoke(which),
            18 => self.haunt(),
            _ => {
                // A client dies: its process does nothing more.
                if self.chance.index(4) == 0
                    && let Some(life) = self.lives.get_mut(which)
                {
                    life.client = None;
                }
            }
        }
    }
}

impl Client {
    fn listen(&mut self, tag: u64) {
        let mut out = [Completion::BLANK; 8];
        let count = self.party.port.poll(self.party.cq, &mut out);
        for completion in out.iter().take(count).filter(|it| it.imm.is_some()) {
            self.heard += 1;
            let heard = match completion.inline {
                Some(inline) => inline.words()[0],
                None => {
                    let span = self.party.port.region(self.buffers).unwrap();
                    span.load(completion.wr_id as usize * 512)
                }
            };
            assert_eq!(
                heard,
                word(tag, self.heard),
                "another's answer, or out of order"
            );
            assert_eq!(u64::from(completion.imm.unwrap()), self.heard);
            let into = Local {
                region: self.buffers,
                offset: completion.wr_id as usize * 4096,
                len: 4096,
            };
            let recv = RecvWr {
                wr_id: completion.wr_id,
                into,
            };
            self.party.port.post_recv(self.replies, &[recv]).unwrap();
        }
    }
}

#[test]
fn random_clients_receive_only_their_messages_and_leave_nothing() {
    let mut revoked = 0;
    for seed in 1..=40_u64 {
        let mut world = World::new(seed);
        for _ in 0..1500 {
            world.step();
        }
        for which in 0..LIVES {
            world.serve(which);
            world.listen(which);
            world.listen(which);
            let life = world.lives.get(which);
            let ends = life.and_then(|life| life.client.as_ref().zip(life.served.as_ref()));
            if let Some((client, served)) = ends {
                assert_eq!(
                    (client.heard, served.said),
                    (client.written, client.written)
                );
            }
        }
        while !world.lives.is_empty() {
            world.revoke(0);
        }
        revoked += world.next - 1;
        for (what, count) in world.host.port.drops() {
            assert!(count == 0 || what == "drop_no_peer", "{what}: {count}");
        }
    }
    assert!(
        revoked > 40 * 50,
        "{revoked} domains were created and revoked"
    );
}
