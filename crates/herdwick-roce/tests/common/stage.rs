//! Two connected engines, and addresses for a third party that forges packets.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use herdwick_fabric::{
    Access, AddressHandle, Completion, CqId, CqSpec, Local, Opcode, Payload, PdId, PortLimits,
    QpId, QpSpec, RecvWr, RegionId, RegionSpec, Remote, Scope, SendOp, SendWr, Status, Transport,
};
use herdwick_roce::{
    Arrival, Config, Destination, Engine, Mtu, Peer, Peering,
    icrc::{self, IpId, Route},
};

use super::{Memories, Outbox};

/// The UDP port of RoCEv2.
pub const ROCE: u16 = 4791;
/// The addresses of the pair, and one that neither of them knows.
pub const VICTIM: SocketAddr = address(1);
pub const FRIEND: SocketAddr = address(2);
pub const STRANGER: SocketAddr = address(3);
/// Path MTU of all connections.
pub const MTU: usize = 1024;
/// Bytes of each region.
pub const REGION: usize = 8192;
/// RECVs posted to each queue pair of the victim.
const RECVS: usize = 64;
/// Bytes of a RECV.
const BUFFER: usize = 2048;

const fn address(host: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), ROCE)
}

/// One engine with its memory.
pub struct Party {
    pub engine: Engine,
    pub memory: Memories,
    pub wire: Outbox,
    pub address: SocketAddr,
    pub pd: PdId,
    pub cq: CqId,
    /// A region with every right, for the whole protection domain.
    pub open: RegionId,
    pub rc: QpId,
    pub uc: QpId,
    pub ud: QpId,
}

impl Party {
    fn new(address: SocketAddr, seed: u8) -> Self {
        let config = Config {
            limits: PortLimits::default(),
            mtu: Mtu::B1024,
            ..Config::default()
        };
        let mut engine = Engine::new(config, [seed; 16]);
        let pd = engine.create_pd().unwrap();
        let cq = engine.create_cq(&CqSpec { depth: 2048 }).unwrap();
        let mut memory = Memories::default();
        let open = region(&mut engine, &mut memory, pd, Access::ALL, Scope::Pd);
        let mut make = |transport| engine.create_qp(&queue_pair(pd, cq, transport)).unwrap();
        let (rc, uc, ud) = (
            make(Transport::Rc),
            make(Transport::Uc),
            make(Transport::Ud),
        );
        Self {
            engine,
            memory,
            wire: Outbox::default(),
            address,
            pd,
            cq,
            open,
            rc,
            uc,
            ud,
        }
    }

    /// Registers another region.
    pub fn region(&mut self, pd: PdId, access: Access, scope: Scope) -> RegionId {
        region(&mut self.engine, &mut self.memory, pd, access, scope)
    }

    /// Makes another queue pair, not connected.
    pub fn queue_pair(&mut self, transport: Transport) -> QpId {
        let spec = queue_pair(self.pd, self.cq, transport);
        self.engine.create_qp(&spec).unwrap()
    }

    /// Returns the remote address of a region.
    pub fn remote(&self, region: RegionId) -> Remote {
        self.engine.remote(region).unwrap()
    }

    pub fn qpn(&self, qp: QpId) -> u32 {
        self.engine.endpoint(qp).unwrap().qpn.0
    }

    fn connect(&mut self, qp: QpId, peer: &Self, peer_qp: QpId) {
        let endpoint = peer.engine.endpoint(peer_qp).unwrap();
        let peering = Peering {
            peer: peer.peer(),
            qpn: endpoint.qpn,
            psn: endpoint.psn,
            mtu: Mtu::B1024,
            rd_atomic: 16,
            refusals_are_fatal: false,
            key: None,
        };
        self.engine.connect(qp, &peering).unwrap();
    }

    fn peer(&self) -> Peer {
        Peer {
            addr: self.address,
            channel: 0,
        }
    }

    pub fn recv(&mut self, qp: QpId, slot: usize) {
        let into = Local {
            region: self.open,
            offset: slot % 2 * BUFFER,
            len: BUFFER,
        };
        let batch = [RecvWr { wr_id: 0, into }];
        self.engine.post_recv(qp, &batch).unwrap();
    }

    pub fn send(&mut self, qp: QpId, op: SendOp<'_>) {
        let batch = [SendWr {
            wr_id: 0,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        }];
        self.engine
            .post_send(qp, &batch, &self.memory, &mut self.wire)
            .unwrap();
    }

    pub fn poll(&mut self) -> Vec<Completion> {
        let mut room = [Completion::BLANK; 32];
        let count = self.engine.poll(self.cq, &mut room);
        room[..count].to_vec()
    }

    /// Returns the number of dropped packets, for all reasons.
    pub fn dropped(&self) -> u64 {
        self.engine.counters().drops().map(|(_, count)| count).sum()
    }
}

fn queue_pair(pd: PdId, cq: CqId, transport: Transport) -> QpSpec {
    QpSpec {
        pd,
        transport,
        send_cq: cq,
        recv_cq: cq,
        send_depth: 64,
        recv_depth: RECVS,
    }
}

fn region(
    engine: &mut Engine,
    memory: &mut Memories,
    pd: PdId,
    access: Access,
    scope: Scope,
) -> RegionId {
    let len = REGION;
    let spec = RegionSpec { len, access, scope };
    let region = engine.register(pd, &spec, 0).unwrap();
    memory.add(region, len);
    region
}

/// Two engines, connected over RC and UC, with an address handle for UD.
pub struct Stage {
    pub victim: Party,
    pub friend: Party,
    pub to_victim: AddressHandle,
    pub now: Duration,
    /// Type of service of packets that the victim receives.
    pub tos: u8,
    /// What the friend sent to the victim, sealed, oldest first; recorded if `Some`.
    pub recorded: Option<Vec<Vec<u8>>>,
    /// The next PSN that the victim expects from the friend, on RC and on UC.
    pub next_rc: u32,
    pub next_uc: u32,
    rounds: u64,
    /// Datagrams delivered to the victim.
    handed: u64,
}

impl Stage {
    pub fn new() -> Self {
        Self::of(1)
    }

    pub fn of(seed: u8) -> Self {
        let mut victim = Party::new(VICTIM, seed);
        let mut friend = Party::new(FRIEND, seed.wrapping_add(100));
        for (ours, theirs) in [(victim.rc, friend.rc), (victim.uc, friend.uc)] {
            victim.connect(ours, &friend, theirs);
            friend.connect(theirs, &victim, ours);
        }
        let endpoint = victim.engine.endpoint(victim.ud).unwrap();
        let destination = Destination {
            peer: victim.peer(),
            qpn: endpoint.qpn,
            qkey: endpoint.qkey,
            key: None,
        };
        let to_victim = friend.engine.create_address(friend.ud, &destination);
        for qp in [victim.rc, victim.uc, victim.ud] {
            (0..RECVS / 2).for_each(|slot| victim.recv(qp, slot));
        }
        let psn = |qp| friend.engine.endpoint(qp).unwrap().psn.0;
        Self {
            next_rc: psn(friend.rc),
            next_uc: psn(friend.uc),
            to_victim: to_victim.unwrap().0,
            victim,
            friend,
            now: Duration::ZERO,
            tos: 0,
            recorded: None,
            rounds: 0,
            handed: 0,
        }
    }

    /// Delivers a datagram's payload to the victim; returns its answers with their destinations.
    pub fn hand(&mut self, from: SocketAddr, bytes: &[u8]) -> Vec<(SocketAddr, Vec<u8>)> {
        let arrival = Arrival {
            from,
            to: VICTIM,
            bytes,
            ip_id: IpId::Known(0),
            tos: self.tos,
        };
        let victim = &mut self.victim;
        let (memory, wire) = (&mut victim.memory, &mut victim.wire);
        self.handed += 1;
        // Every other datagram is delivered as a GRO batch of one.
        if self.handed.is_multiple_of(2) && !bytes.is_empty() {
            let segment = bytes.len();
            victim
                .engine
                .handle_batch(self.now, &arrival, segment, memory, wire);
        } else {
            victim
                .engine
                .handle_packet(self.now, &arrival, memory, wire);
        }
        victim
            .engine
            .poll_transmit(self.now, &victim.memory, &mut victim.wire);
        sealed(victim)
    }

    /// Moves packets between the two until none are left and no timer is pending.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            if self.exchange() {
                continue;
            }
            let timeouts = [&self.victim, &self.friend].map(|party| party.engine.poll_timeout());
            let Some(next) = timeouts.into_iter().flatten().min() else {
                return;
            };
            self.now = self.now.max(next);
            for party in [&mut self.victim, &mut self.friend] {
                party.engine.handle_timeout(self.now);
            }
        }
        panic!("the network does not become idle");
    }

    /// Moves packets once in each direction; returns whether there were any.
    fn exchange(&mut self) -> bool {
        let friend = &mut self.friend;
        friend
            .engine
            .poll_transmit(self.now, &friend.memory, &mut friend.wire);
        let mut answers = Vec::new();
        let requests = sealed(friend);
        let moved = !requests.is_empty();
        for (to, bytes) in requests {
            assert_eq!(to, VICTIM);
            self.record(&bytes);
            answers.extend(self.hand(FRIEND, &bytes));
        }
        answers.extend(sealed(&mut self.victim));
        let moved = moved || !answers.is_empty();
        for (to, bytes) in answers {
            assert_eq!(to, FRIEND);
            let arrival = Arrival {
                from: VICTIM,
                to: FRIEND,
                bytes: &bytes,
                ip_id: IpId::Known(0),
                tos: 0,
            };
            let friend = &mut self.friend;
            friend
                .engine
                .handle_packet(self.now, &arrival, &mut friend.memory, &mut friend.wire);
        }
        moved
    }

    fn record(&mut self, bytes: &[u8]) {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let next = (word(8) + 1) & 0xff_ffff;
        let qpn = word(4) & 0xff_ffff;
        if qpn == self.victim.qpn(self.victim.rc) {
            // A response takes no PSN of its own.
            let answers = (0x0d..=0x12).contains(&bytes[0]);
            self.next_rc = if answers { self.next_rc } else { next };
        } else if qpn == self.victim.qpn(self.victim.uc) {
            self.next_uc = next;
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.push(bytes.to_vec());
        }
    }

    /// Executes every verb on every queue pair: all succeed, and each byte is where it belongs.
    pub fn honest(&mut self) {
        self.rounds += 1;
        let open = self.victim.remote(self.victim.open);
        let [line, long] = [64, 2500].map(|len| pattern(self.rounds, len));
        let region = self.friend.open;
        let scratch = |offset, len| Local {
            region,
            offset,
            len,
        };
        self.friend.memory.of_mut(region)[..long.len()].copy_from_slice(&long);
        let word = self.victim.memory.of(self.victim.open)[8000..8008].try_into();
        let word = u64::from_le_bytes(word.unwrap());
        let (rc, uc, ud) = (self.friend.rc, self.friend.uc, self.friend.ud);
        let to = Some(self.to_victim);
        let send = |to| SendOp::Send {
            payload: Payload::Inline(&line),
            imm: Some(7),
            to,
        };
        let write = |payload, offset| SendOp::Write {
            payload,
            to: open.offset(offset),
            imm: None,
        };
        self.friend.send(rc, send(None));
        self.friend
            .send(rc, write(Payload::Region(scratch(0, long.len())), 4096));
        let at = open.offset(8000);
        let (into, add) = (scratch(4000, 8), 3);
        self.friend.send(rc, SendOp::FetchAdd { into, at, add });
        let (into, from) = (scratch(5000, 64), open.offset(4096));
        self.friend.send(rc, SendOp::Read { into, from });
        self.friend.send(uc, send(None));
        self.friend.send(uc, write(Payload::Inline(&line), 7000));
        self.friend.send(ud, send(to));
        self.settle();
        for done in self.friend.poll() {
            assert_eq!(done.status, Status::Success, "{:?}", done.opcode);
        }
        self.received(&line);
        let memory = self.victim.memory.of(self.victim.open);
        assert!(memory[4096..4096 + long.len()] == long && memory[7000..7064] == line);
        assert_eq!(memory[8000..8008], (word + 3).to_le_bytes());
        let read = self.friend.memory.of(region);
        assert!(read[4000..4008] == word.to_le_bytes() && read[5000..5064] == long[..64]);
    }

    /// Checks that the victim received `line` on each of its queue pairs.
    fn received(&mut self, line: &[u8]) {
        let mut got = Vec::new();
        for done in self.victim.poll() {
            assert_eq!((done.status, done.opcode), (Status::Success, Opcode::Recv));
            if done.byte_len as usize == line.len() && done.imm == Some(7) {
                got.push(done.qp);
            }
            self.victim.recv(done.qp, 0);
        }
        let Party { rc, uc, ud, .. } = self.victim;
        for qp in [rc, uc, ud] {
            assert!(got.contains(&qp), "{qp:?} of {got:?}");
        }
    }
}

/// Returns the packets that an engine sends, with their ICRCs.
fn sealed(party: &mut Party) -> Vec<(SocketAddr, Vec<u8>)> {
    let packets = std::mem::take(&mut party.wire.packets);
    let seal = |(flow, mut bytes): (_, Vec<u8>)| {
        let destination = party.engine.peer(flow).unwrap().addr;
        let route = Route {
            source: party.address,
            destination,
            dont_fragment: true,
        };
        icrc::seal(&mut bytes, &route, 0);
        (destination, bytes)
    };
    packets.into_iter().map(seal).collect()
}

/// Returns the bytes of one round.
fn pattern(round: u64, len: usize) -> Vec<u8> {
    let byte = |i: usize| (round as u8).wrapping_mul(31).wrapping_add(i as u8);
    (0..len).map(byte).collect()
}
