//! Two engines and a simulated link between them, in virtual time, with chosen faults.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use herdwick_check::Rng;
use herdwick_fabric::{
    Access, AddressHandle, Completion, CqId, CqSpec, Local, PdId, QpId, QpSpec, RecvWr, RegionId,
    RegionSpec, Remote, Scope, SendWr, Transport,
};
use herdwick_roce::{
    Arrival, Config, Destination, Engine, FlowId, Memory, Mtu, Peer, Peering, RD_ATOMIC_MAX,
    Secret, Wire, agree,
    icrc::{self, IpId, Route},
};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
/// Bytes of each region of a side.
pub(crate) const REGION: usize = 1 << 16;
pub(crate) const DEPTH: usize = 64;

/// The memory of one engine.
#[derive(Default)]
pub(crate) struct Bank {
    pub(crate) regions: BTreeMap<RegionId, Vec<u8>>,
    /// Region, offset and length of each write, in order.
    pub(crate) log: Vec<(RegionId, usize, usize)>,
}

impl Bank {
    fn word(&mut self, region: RegionId, offset: usize) -> &mut [u8] {
        assert_eq!(offset % 8, 0, "atomics are aligned");
        &mut self.regions.get_mut(&region).expect("registered")[offset..offset + 8]
    }
}

impl Memory for Bank {
    fn write(&mut self, region: RegionId, offset: usize, bytes: &[u8]) {
        self.log.push((region, offset, bytes.len()));
        let memory = self.regions.get_mut(&region).expect("registered");
        memory[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, region: RegionId, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.regions[&region][offset..offset + out.len()]);
    }

    fn fetch_add(&mut self, region: RegionId, offset: usize, add: u64) -> u64 {
        let word = self.word(region, offset);
        let old = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        word.copy_from_slice(&old.wrapping_add(add).to_le_bytes());
        old
    }

    fn compare_swap(&mut self, region: RegionId, offset: usize, expected: u64, new: u64) -> u64 {
        let word = self.word(region, offset);
        let old = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        if old == expected {
            word.copy_from_slice(&new.to_le_bytes());
        }
        old
    }
}

/// Packets that an engine sent and the link has not taken yet.
pub(crate) struct Outbox {
    packets: VecDeque<(FlowId, Vec<u8>)>,
    pub(crate) room: usize,
}

impl Wire for Outbox {
    fn packet(&mut self, flow: FlowId, len: usize, _ordered: bool) -> Option<&mut [u8]> {
        if self.packets.len() == self.room {
            return None;
        }
        self.packets.push_back((flow, vec![0xee; len]));
        self.packets
            .back_mut()
            .map(|(_, bytes)| bytes.as_mut_slice())
    }
}

pub(crate) struct Side {
    pub(crate) engine: Engine,
    pub(crate) bank: Bank,
    pub(crate) outbox: Outbox,
    pub(crate) addr: SocketAddr,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    /// The destination of its RECVs, READs and atomics.
    pub(crate) inbox: RegionId,
    pub(crate) done: VecDeque<Completion>,
}

impl Side {
    fn new(config: Config, index: u8) -> Self {
        let mut engine = Engine::new(config, [index; 16]);
        let pd = engine.create_pd().expect("a domain");
        let cq = engine.create_cq(&CqSpec { depth: 1024 }).expect("a queue");
        let mut side = Self {
            engine,
            bank: Bank::default(),
            outbox: Outbox {
                packets: VecDeque::new(),
                room: usize::MAX,
            },
            addr: SocketAddr::from(([10, 9, 0, index], 49152)),
            pd,
            cq,
            inbox: RegionId(0),
            done: VecDeque::new(),
        };
        side.inbox = side.region(Access::LOCAL);
        side
    }

    pub(crate) fn region(&mut self, access: Access) -> RegionId {
        self.region_of(REGION, access)
    }

    pub(crate) fn region_of(&mut self, len: usize, access: Access) -> RegionId {
        let spec = RegionSpec {
            len,
            access,
            scope: Scope::Pd,
        };
        let region = self.engine.register(self.pd, &spec, 0).expect("a region");
        self.bank.regions.insert(region, vec![0; len]);
        region
    }

    pub(crate) fn remote(&self, region: RegionId) -> Remote {
        self.engine.remote(region).expect("registered")
    }

    pub(crate) fn qp(&mut self, transport: Transport) -> QpId {
        let spec = QpSpec {
            pd: self.pd,
            transport,
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: DEPTH,
            recv_depth: DEPTH,
        };
        self.engine.create_qp(&spec).expect("a queue pair")
    }

    pub(crate) fn post(&mut self, qp: QpId, batch: &[SendWr<'_>]) {
        let posted = self
            .engine
            .post_send(qp, batch, &self.bank, &mut self.outbox);
        posted.expect("room");
    }

    /// Posts RECV `wr_id` with 1 KiB of the inbox.
    pub(crate) fn recv(&mut self, qp: QpId, wr_id: u64) {
        let into = Local {
            region: self.inbox,
            offset: wr_id as usize % 64 * 1024,
            len: 1024,
        };
        let posted = self.engine.post_recv(qp, &[RecvWr { wr_id, into }]);
        posted.expect("room");
    }

    pub(crate) fn collect(&mut self) {
        let mut out = [Completion::BLANK; 32];
        loop {
            let count = self.engine.poll(self.cq, &mut out);
            self.done.extend(&out[..count]);
            if count == 0 {
                break;
            }
        }
    }
}

/// Probabilities in parts per thousand.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) drop: u64,
    pub(crate) duplicate: u64,
    pub(crate) reorder: u64,
    pub(crate) corrupt: u64,
}

type Filter = Box<dyn FnMut(usize, &mut Vec<u8>) -> bool>;

struct Flying {
    to: usize,
    bytes: Vec<u8>,
}

/// Two sides and the packets in flight between them.
pub(crate) struct World {
    pub(crate) sides: [Side; 2],
    pub(crate) now: Duration,
    pub(crate) faults: Faults,
    /// Sees each packet that is sent, and may drop or change it.
    pub(crate) filter: Option<Filter>,
    pub(crate) sent: [u64; 2],
    /// Whether new peerings are keyed.
    pub(crate) keyed: bool,
    /// Type of service of arriving packets.
    pub(crate) tos: u8,
    /// Path MTU of new peerings.
    pub(crate) mtu: Mtu,
    /// Bytes that the receive buffer of a side holds between two passes; packets beyond it are
    /// lost.
    pub(crate) buffer: usize,
    buffered: [usize; 2],
    /// Packets lost because the buffer was full.
    pub(crate) overflowed: u64,
    flying: BTreeMap<(Duration, u64), Flying>,
    launched: u64,
    chance: Rng,
}

const TRAVEL: Duration = Duration::from_micros(10);
const STEP: Duration = Duration::from_micros(5);

impl World {
    pub(crate) fn new(seed: u64, config: &Config) -> Self {
        Self {
            sides: [1, 2].map(|index| Side::new(config.clone(), index)),
            now: Duration::ZERO,
            faults: Faults::default(),
            filter: None,
            sent: [0; 2],
            keyed: false,
            tos: 0,
            mtu: Mtu::B256,
            buffer: usize::MAX,
            buffered: [0; 2],
            overflowed: 0,
            flying: BTreeMap::new(),
            launched: 0,
            chance: Rng::new(seed),
        }
    }

    pub(crate) fn random(&mut self, below: u64) -> u64 {
        self.chance.below(below)
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        per_mille > 0 && self.random(1000) < per_mille
    }

    pub(crate) fn peer(&self, side: usize) -> Peer {
        Peer {
            addr: self.sides[side].addr,
            channel: 0,
        }
    }

    fn key(&self) -> Option<Secret> {
        self.keyed
            .then(|| agree(&Secret([1; 16]), &Secret([2; 16])))
    }

    /// Returns the peering with which the other side connects to `qp` of side `other`.
    pub(crate) fn peering(&self, other: usize, qp: QpId) -> Peering {
        let endpoint = self.sides[other].engine.endpoint(qp).expect("known");
        Peering {
            peer: self.peer(other),
            qpn: endpoint.qpn,
            psn: endpoint.psn,
            mtu: self.mtu,
            rd_atomic: RD_ATOMIC_MAX,
            refusals_are_fatal: true,
            key: self.key(),
        }
    }

    /// Makes a queue pair on each side and connects them.
    pub(crate) fn connected(&mut self, transport: Transport) -> [QpId; 2] {
        let qps = [A, B].map(|side| self.sides[side].qp(transport));
        for side in [A, B] {
            let peering = self.peering(1 - side, qps[1 - side]);
            let connected = self.sides[side].engine.connect(qps[side], &peering);
            connected.expect("a connection");
        }
        qps
    }

    /// Makes a UD queue pair on each side, and an address handle on A for B's.
    pub(crate) fn datagrams(&mut self) -> ([QpId; 2], AddressHandle) {
        let qps = [A, B].map(|side| self.sides[side].qp(Transport::Ud));
        (qps, self.address(A, qps[A], B, qps[B]))
    }

    /// Makes an address handle of `side`'s `qp` for `other_qp` of the other side.
    pub(crate) fn address(
        &mut self,
        side: usize,
        qp: QpId,
        other: usize,
        other_qp: QpId,
    ) -> AddressHandle {
        let endpoint = self.sides[other].engine.endpoint(other_qp).expect("known");
        let to = Destination {
            peer: self.peer(other),
            qpn: endpoint.qpn,
            qkey: endpoint.qkey,
            key: self.key(),
        };
        let address = self.sides[side].engine.create_address(qp, &to);
        address.expect("an address").0
    }

    /// Makes one pass of both drivers.
    pub(crate) fn step(&mut self) {
        self.now += STEP;
        self.buffered = [0; 2];
        for side in [A, B] {
            self.drain(side);
        }
        while let Some(next) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
            let flying = next.remove();
            self.buffered[flying.to] += flying.bytes.len();
            if self.buffered[flying.to] <= self.buffer {
                self.deliver(flying.to, &flying.bytes);
            } else {
                self.overflowed += 1;
            }
        }
        for side in &mut self.sides {
            let (engine, bank, outbox) = (&mut side.engine, &mut side.bank, &mut side.outbox);
            engine.handle_timeout(self.now);
            engine.poll_transmit(self.now, bank, outbox);
            side.collect();
        }
    }

    /// Removes and returns the packets that `side` has sent, instead of delivering them.
    pub(crate) fn caught(&mut self, side: usize) -> Vec<Vec<u8>> {
        let caught = self.sides[side].outbox.packets.drain(..);
        caught.map(|(_, bytes)| bytes).collect()
    }

    pub(crate) fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    /// Makes passes until `side` has a completion.
    pub(crate) fn next(&mut self, side: usize) -> Completion {
        for _ in 0..200_000 {
            if let Some(done) = self.sides[side].done.pop_front() {
                return done;
            }
            self.step();
        }
        panic!("no completion");
    }

    /// Delivers a packet to an engine as if its peer had sent it, with a correct ICRC.
    pub(crate) fn forge(&mut self, side: usize, packet: &[u8]) {
        let mut sealed = packet.to_vec();
        icrc::seal(&mut sealed, &self.route(side), 0);
        self.deliver(side, &sealed);
    }

    fn route(&self, to: usize) -> Route {
        Route {
            source: self.sides[1 - to].addr,
            destination: self.sides[to].addr,
            dont_fragment: true,
        }
    }

    /// Puts the packets that `from` has sent into flight.
    pub(crate) fn drain(&mut self, from: usize) {
        while let Some((flow, mut bytes)) = self.sides[from].outbox.packets.pop_front() {
            self.sent[from] += 1;
            let to = 1 - from;
            let peer = self.sides[from].engine.peer(flow).expect("a living flow");
            assert_eq!(peer.addr, self.sides[to].addr);
            if let Some(filter) = &mut self.filter
                && !filter(from, &mut bytes)
            {
                continue;
            }
            let ip_id = self.random(1 << 16);
            icrc::seal(&mut bytes, &self.route(to), ip_id as u16);
            self.fly(to, bytes);
        }
    }

    fn fly(&mut self, to: usize, mut bytes: Vec<u8>) {
        if self.chance(self.faults.drop) {
            return;
        }
        if self.chance(self.faults.duplicate) {
            self.fly(to, bytes.clone());
        }
        if self.chance(self.faults.corrupt) {
            let bit = self.random(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let mut at = self.now + TRAVEL;
        if self.chance(self.faults.reorder) {
            at += Duration::from_micros(self.random(100));
        }
        self.launched += 1;
        self.flying
            .insert((at, self.launched), Flying { to, bytes });
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let route = self.route(to);
        let arrival = Arrival {
            from: route.source,
            to: route.destination,
            bytes,
            ip_id: IpId::Unknown,
            tos: self.tos,
        };
        let side = &mut self.sides[to];
        let (engine, bank, outbox) = (&mut side.engine, &mut side.bank, &mut side.outbox);
        engine.handle_packet(self.now, &arrival, bank, outbox);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for side in &self.sides {
                let counters = side.engine.counters();
                let drops: Vec<_> = counters.drops().filter(|(_, count)| *count > 0).collect();
                eprintln!("{counters:?}\n  drops: {drops:?}");
            }
        }
    }
}
