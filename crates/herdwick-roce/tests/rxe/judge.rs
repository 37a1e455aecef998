//! The RNIC under test: the engine, with memory in plain vectors, connected to the guest's wire.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Mutex, MutexGuard, OnceLock, mpsc::RecvTimeoutError},
    time::Duration,
};

use herdwick_fabric::{
    Access, AddressHandle, Completion, CqId, CqSpec, InlineData, Local, Opcode, Payload, PdId, Psn,
    QpId, QpSpec, Qpn, RecvWr, RegionId, RegionSpec, Remote, Rkey, Scope, SendOp, SendWr, Status,
    Transport,
};

use herdwick_roce::{
    Arrival, Config, Destination, Engine, Mtu, Peer, Peering, RNR_FOR_EVER, Retry,
    icrc::{self, IpId, Route},
};

use crate::{
    common::{Memories, Outbox},
    guest::{Event, Guest, status},
    link::{Datagram, GUEST, GUEST_V6, Loss, OURS, OURS_V6, ROCE},
};

/// Bytes of its memory.
pub(crate) const MEMORY: usize = 1 << 20;
/// The remote address of its first byte.
const BASE: u64 = 0x7f00_1234_5000;
/// The Q_Key of all UD queue pairs, as Debian's programs have it built in.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// Timeout for the whole life of an RNIC; the guest is slow on a busy host.
const TIMEOUT: Duration = Duration::from_secs(100);
/// Source port of sent packets; receivers do not check it.
const SOURCE_PORT: u16 = 0xc123;
/// Maximum wait for an event in one turn.
const NAP: Duration = Duration::from_millis(20);

/// The IP version of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns the index of the guest's GID; GID 0 is link-local.
    pub(crate) fn gid_index(self) -> usize {
        match self {
            Self::V4 => 1,
            Self::V6 => 2,
        }
    }

    fn ours(self) -> IpAddr {
        match self {
            Self::V4 => OURS.into(),
            Self::V6 => OURS_V6.into(),
        }
    }

    fn guest(self) -> IpAddr {
        match self {
            Self::V4 => GUEST.into(),
            Self::V6 => GUEST_V6.into(),
        }
    }
}

/// What a queue pair has to know of its peer.
#[derive(Clone, Debug)]
pub(crate) struct There {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) gid: Ipv6Addr,
}

impl Default for There {
    fn default() -> Self {
        Self {
            qpn: 0,
            psn: 0,
            rkey: 0,
            addr: 0,
            gid: Ipv6Addr::UNSPECIFIED,
        }
    }
}

/// A completion of the RNIC under test.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) is_receive: bool,
    pub(crate) status: Status,
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
    pub(crate) source: Option<u32>,
    inline: Option<InlineData>,
}

/// The guest's output in one turn.
#[derive(Default)]
pub(crate) struct Turn {
    pub(crate) shell: Option<String>,
    pub(crate) program: Option<Vec<u8>>,
}

/// Makes an engine with timeouts that suit the emulated guest.
fn engine() -> Engine {
    let config = Config {
        mtu: Mtu::B4096,
        datagram: Mtu::B4096,
        retry: Retry {
            ack_timeout: Duration::from_millis(60),
            ack_timeout_max: Duration::from_secs(1),
            rnr_count: RNR_FOR_EVER,
            ..Retry::default()
        },
        ..Config::default()
    };
    Engine::new(config, *b"a judge's engine")
}

fn mtu(bytes: usize) -> Mtu {
    let found = Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes);
    found.expect("a path MTU")
}

/// The guest that all tests share.
static GUEST_MACHINE: OnceLock<Mutex<Guest>> = OnceLock::new();

/// A queue pair of the RNIC under test.
pub(crate) type Place = QpId;

/// The RNIC under test, and the guest that it is connected to.
pub(crate) struct Judge {
    pub(crate) guest: MutexGuard<'static, Guest>,
    pub(crate) family: Family,
    engine: Engine,
    memory: Memories,
    wire: Outbox,
    pd: PdId,
    cq: CqId,
    region: RegionId,
    /// The destination of its datagrams.
    address: Option<AddressHandle>,
    loss: Loss,
    /// The identification of the last packet sent.
    ip_id: u16,
    arrivals: u64,
    begin: Duration,
}

impl Judge {
    /// Connects a new RNIC to the wire, which loses packets as `loss` specifies.
    pub(crate) fn new(family: Family, loss: Loss) -> Self {
        let guest = GUEST_MACHINE.get_or_init(|| Mutex::new(Guest::boot()));
        let guest = guest.lock().expect("no earlier test failed");
        let begin = guest.now();
        let mut engine = engine();
        let mut memory = Memories::default();
        let pd = engine.create_pd().expect("there is room");
        let cq = engine
            .create_cq(&CqSpec { depth: 1024 })
            .expect("there is room");
        let spec = RegionSpec {
            len: MEMORY,
            access: Access::ALL,
            scope: Scope::Pd,
        };
        let region = engine.register(pd, &spec, BASE).expect("there is room");
        memory.add(region, MEMORY);
        Self {
            guest,
            family,
            engine,
            memory,
            wire: Outbox::default(),
            pd,
            cq,
            region,
            address: None,
            loss,
            ip_id: 0,
            arrivals: 0,
            begin,
        }
    }

    pub(crate) fn queue_pair(&mut self, transport: Transport, depth: usize, qkey: u32) -> Place {
        let spec = QpSpec {
            pd: self.pd,
            transport,
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: depth,
            recv_depth: depth,
        };
        let qp = self.engine.create_qp(&spec).expect("there is room");
        self.engine.set_qkey(qp, qkey).expect("it exists");
        qp
    }

    /// Connects a queue pair to the guest's.
    pub(crate) fn connect(&mut self, qp: Place, there: &There, path_mtu: usize) {
        assert_eq!(there.gid.to_canonical(), self.family.guest());
        let peer = Peer {
            addr: (self.family.guest(), ROCE).into(),
            channel: 0,
        };
        let qpn = Qpn(there.qpn);
        if self.engine.endpoint(qp).expect("it exists").transport == Transport::Ud {
            let to = Destination {
                peer,
                qpn,
                qkey: QKEY,
                key: None,
            };
            let (address, _) = self.engine.create_address(qp, &to).expect("there is room");
            self.address = Some(address);
            return;
        }
        let peering = Peering {
            peer,
            qpn,
            psn: Psn(there.psn),
            mtu: mtu(path_mtu),
            rd_atomic: 16,
            refusals_are_fatal: true,
            key: None,
        };
        self.engine
            .connect(qp, &peering)
            .expect("the endpoint is valid");
    }

    /// Returns what the guest has to know to reach a queue pair and all memory here.
    pub(crate) fn here(&self, qp: Place) -> There {
        let endpoint = self.engine.endpoint(qp).expect("it exists");
        let remote = self.engine.remote(self.region).expect("it exists");
        There {
            qpn: endpoint.qpn.0,
            psn: endpoint.psn.0,
            rkey: remote.rkey.0,
            addr: remote.addr,
            gid: match self.family.ours() {
                IpAddr::V4(ours) => ours.to_ipv6_mapped(),
                IpAddr::V6(ours) => ours,
            },
        }
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        self.memory.of(self.region)[at..at + len].to_vec()
    }

    pub(crate) fn fill_with(&mut self, at: usize, bytes: &[u8]) {
        self.memory.of_mut(self.region)[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the bytes of a message whose buffer begins at `at`.
    pub(crate) fn received(&self, done: &Done, at: usize, len: usize) -> Vec<u8> {
        match done.inline {
            Some(inline) => {
                let mut bytes = vec![0; inline.len()];
                inline.copy_to(&mut bytes);
                bytes
            }
            None if done.source.is_some() => self.bytes(at + 40, len),
            None => self.bytes(at, len),
        }
    }

    /// Runs a program in the guest's shell that connects back to the port it is given.
    pub(crate) fn start(&mut self, command: impl FnOnce(u16) -> String) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a listener's option");
        let port = listener.local_addr().expect("the socket is bound").port();
        self.guest.start(&format!("timeout 100 {}", command(port)));
        loop {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false).expect("a socket's option");
                stream.set_nodelay(true).expect("a socket's option");
                return stream;
            }
            if let Some(line) = self.turn().shell {
                println!("    {line}");
                assert!(status(&line).is_none(), "the program ended without output");
            }
        }
    }

    /// Returns the number of packets lost on the wire.
    pub(crate) fn lost(&self) -> usize {
        self.loss.lost
    }

    /// Waits for one completion.
    pub(crate) fn wait(&mut self) -> Done {
        loop {
            if let Some(done) = self.completion() {
                return done;
            }
            self.turn();
        }
    }

    /// Makes turns until the condition holds.
    pub(crate) fn until(&mut self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            self.turn();
        }
    }

    /// Makes turns for a while, in which no request should complete.
    pub(crate) fn idle(&mut self) {
        let begin = self.guest.now();
        while self.guest.now() - begin < 5 * NAP {
            self.turn();
            assert!(self.completion().is_none());
        }
    }

    /// Waits for the shell's command to succeed.
    pub(crate) fn shell_ends(&mut self) {
        loop {
            if let Some(line) = self.turn().shell {
                match status(&line) {
                    Some(exit) => return assert_eq!(exit, 0),
                    None => println!("    {line}"),
                }
            }
        }
    }

    pub(crate) fn completions(&mut self) -> Vec<Done> {
        std::iter::from_fn(|| self.completion()).collect()
    }

    fn completion(&mut self) -> Option<Done> {
        let mut one = [Completion::BLANK];
        let found = self.engine.poll(self.cq, &mut one) == 1;
        found.then(|| Done {
            is_receive: matches!(one[0].opcode, Opcode::Recv | Opcode::RecvWithImm),
            status: one[0].status,
            len: one[0].byte_len as usize,
            imm: one[0].imm,
            source: one[0].source.map(|source| source.qpn.0),
            inline: one[0].inline,
        })
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        self.guest.link.flush();
    }
}

/// Posting of work requests.
impl Judge {
    fn local(&self, offset: usize, len: usize) -> Local {
        Local {
            region: self.region,
            offset,
            len,
        }
    }

    fn post(&mut self, qp: Place, op: SendOp<'_>) {
        let batch = [SendWr {
            wr_id: 0,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        }];
        self.engine
            .post_send(qp, &batch, &self.memory, &mut self.wire)
            .expect("the queue has room");
        self.transmit();
    }

    pub(crate) fn post_recv(&mut self, qp: Place, at: usize, len: usize) {
        let batch = [RecvWr {
            wr_id: 0,
            into: self.local(at, len),
        }];
        self.engine
            .post_recv(qp, &batch)
            .expect("the queue has room");
    }

    pub(crate) fn post_send(&mut self, qp: Place, at: usize, len: usize) {
        self.post_send_imm(qp, at, len, 0);
    }

    /// Posts a SEND, without an immediate if `imm` is 0.
    pub(crate) fn post_send_imm(&mut self, qp: Place, at: usize, len: usize, imm: u32) {
        let payload = Payload::Region(self.local(at, len));
        let to = self.address;
        self.post(
            qp,
            SendOp::Send {
                payload,
                imm: (imm != 0).then_some(imm),
                to,
            },
        );
    }

    pub(crate) fn post_write(&mut self, qp: Place, at: usize, len: usize, to: At, imm: u32) {
        let payload = Payload::Region(self.local(at, len));
        self.post(
            qp,
            SendOp::Write {
                payload,
                to: remote(to),
                imm: (imm != 0).then_some(imm),
            },
        );
    }

    pub(crate) fn post_read(&mut self, qp: Place, into: usize, len: usize, from: At) {
        let into = self.local(into, len);
        self.post(
            qp,
            SendOp::Read {
                into,
                from: remote(from),
            },
        );
    }

    pub(crate) fn post_add(&mut self, qp: Place, into: usize, at: At, add: u64) {
        let into = self.local(into, 8);
        self.post(
            qp,
            SendOp::FetchAdd {
                into,
                at: remote(at),
                add,
            },
        );
    }

    pub(crate) fn post_swap(&mut self, qp: Place, into: usize, at: At, expected: u64, new: u64) {
        let into = self.local(into, 8);
        self.post(
            qp,
            SendOp::CompareSwap {
                into,
                at: remote(at),
                expected,
                new,
            },
        );
    }
}

/// An address in the guest's memory, and its rkey.
pub(crate) type At = (u64, u32);

fn remote((addr, rkey): At) -> Remote {
    Remote {
        rkey: Rkey(rkey),
        addr,
    }
}

/// Moving packets.
impl Judge {
    /// Waits for one event, and lets the engine process it.
    pub(crate) fn turn(&mut self) -> Turn {
        let mut turn = Turn::default();
        let now = self.guest.now();
        let counters = self.engine.counters();
        assert!(
            now - self.begin < TIMEOUT,
            "no completion arrives: {counters:?}"
        );
        let due = self
            .engine
            .poll_timeout()
            .map_or(NAP, |at| at.saturating_sub(now));
        match self.guest.events.recv_timeout(due.min(NAP)) {
            Ok(Event::Frame(frame)) => self.arrive(&frame),
            Ok(Event::Shell(line)) => turn.shell = Some(line),
            Ok(Event::Program(piece)) => turn.program = Some(piece),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("the guest ended"),
        }
        let now = self.guest.now();
        if self.engine.poll_timeout().is_some_and(|at| at <= now) {
            self.engine.handle_timeout(now);
        }
        self.transmit();
        turn
    }

    fn arrive(&mut self, frame: &[u8]) {
        let now = self.guest.now();
        self.guest.link.keep(now, frame);
        let Some(datagram) = Datagram::from_frame(frame) else {
            return;
        };
        if datagram.to != (self.family.ours(), ROCE).into() || self.loss.loses() {
            return;
        }
        self.arrivals += 1;
        // A socket does not show the identification: for half of the packets the engine has to
        // solve for it.
        let ip_id = match self.arrivals % 2 {
            0 => IpId::Known(datagram.ip_id),
            _ => IpId::Unknown,
        };
        let arrival = Arrival {
            from: datagram.from,
            to: datagram.to,
            bytes: &datagram.bytes,
            ip_id,
            tos: datagram.tos,
        };
        self.engine
            .handle_packet(now, &arrival, &mut self.memory, &mut self.wire);
    }

    fn transmit(&mut self) {
        let now = self.guest.now();
        self.engine.poll_transmit(now, &self.memory, &mut self.wire);
        while let Some((flow, bytes)) = self.wire.packets.pop_front() {
            let to = self.engine.peer(flow).expect("it exists").addr;
            assert_eq!(to, (self.family.guest(), ROCE).into());
            if !self.loss.loses() {
                self.send(now, to, bytes);
            }
        }
    }

    fn send(&mut self, now: Duration, to: SocketAddr, mut bytes: Vec<u8>) {
        let from = (self.family.ours(), SOURCE_PORT).into();
        self.ip_id = self.ip_id.wrapping_add(1);
        let route = Route {
            source: from,
            destination: to,
            dont_fragment: true,
        };
        icrc::seal(&mut bytes, &route, self.ip_id);
        let datagram = Datagram {
            from,
            to,
            ip_id: self.ip_id,
            tos: 0,
            bytes,
        };
        self.guest.link.send(now, &datagram.to_frame());
    }
}
