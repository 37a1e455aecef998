//! Data nodes, a metadata server and clients on devices of one fabric, driven by one thread.

use std::time::Duration;

use herdwick_clover::{
    Answer, ClientEnd, ClientId, ClientOptions, Failure, Grants, NodeAccept, NodeClientId, NodeEnd,
    NodeOptions, Secret, ServerEnd, ServerOptions,
    layout::{CLASSES, Geometry},
};
use herdwick_conformance::seeded::{SeededDevice, SeededNetwork};
use herdwick_fabric::{
    Completion, CqSpec, Device, Payload, PdId, Port, PortLimits, QpSpec, SendOp, SendWr, Status,
    Transport,
};
use herdwick_request::HashKey;
use herdwick_roce_udp::{RoceDevice, RoceOptions};
use herdwick_shm::{PdSize, ShmDevice};

/// Time of one pass.
const PASS: Duration = Duration::from_micros(1);
pub(crate) const SECRET: Secret = Secret([7; 16]);

/// Entries of the first six classes, so many of each.
pub(crate) fn geometry(slots: u32, entries: u32, versions: u16) -> Geometry {
    let mut counts = [0; CLASSES];
    counts[..6].fill(entries);
    Geometry {
        slots,
        entries: counts,
        versions,
    }
}

pub(crate) fn server_options() -> ServerOptions {
    ServerOptions {
        sweep: Duration::from_micros(5),
        lease: Duration::from_millis(50),
        ..ServerOptions::new(6, HashKey([3, 4]))
    }
}

pub(crate) fn client_options() -> ClientOptions {
    ClientOptions {
        window: 16,
        puts: 8,
        cursors: 64,
        value_max: 1500,
        publish: Duration::from_micros(20),
        entry_wait: Duration::from_millis(20),
        timeout: Duration::from_secs(1),
    }
}

/// An answer, kept.
pub(crate) type Kept = herdwick_read::Answer<Vec<u8>, Failure>;

/// A client and its names.
pub(crate) struct Member<D: Device> {
    pub(crate) id: ClientId,
    pub(crate) node_ids: Vec<NodeClientId>,
    pub(crate) end: ClientEnd<D>,
}

/// Where devices of the fabric come from.
pub(crate) trait Fabric {
    type Device: Device;
    fn host(&self) -> Self::Device;
    fn guest(&self) -> Self::Device;
}

impl Fabric for SeededNetwork {
    type Device = SeededDevice;
    fn host(&self) -> SeededDevice {
        self.device()
    }
    fn guest(&self) -> SeededDevice {
        self.device()
    }
}

pub(crate) struct Shm;

impl Fabric for Shm {
    type Device = ShmDevice;
    fn host(&self) -> ShmDevice {
        ShmDevice::host(PdSize::NONE)
    }
    fn guest(&self) -> ShmDevice {
        ShmDevice::client()
    }
}

pub(crate) struct Roce;

impl Fabric for Roce {
    type Device = RoceDevice;
    fn host(&self) -> RoceDevice {
        let loopback = ([127, 0, 0, 1], 0).into();
        RoceDevice::bind(RoceOptions::new(loopback)).unwrap()
    }
    fn guest(&self) -> RoceDevice {
        self.host()
    }
}

/// All parties.
pub(crate) struct World<F: Fabric> {
    pub(crate) fabric: F,
    pub(crate) nodes: Vec<NodeEnd<F::Device>>,
    pub(crate) server: ServerEnd<F::Device>,
    pub(crate) clients: Vec<Member<F::Device>>,
    pub(crate) geometry: Geometry,
    pub(crate) now: Duration,
    /// Whether the data nodes' CPUs do anything.
    pub(crate) nodes_run: bool,
    /// A client that does nothing.
    pub(crate) paused: Option<usize>,
    pub(crate) server_options: ServerOptions,
    pub(crate) client_options: ClientOptions,
}

/// Makes a domain at a data node, and the client's side of it.
pub(crate) fn enter<D: Device>(
    node: &mut NodeEnd<D>,
    (device, port): (&D, &mut D::Port),
    secret: Option<&Secret>,
) -> (NodeClientId, PdId, herdwick_clover::NodeGrant) {
    let room = NodeEnd::<D>::pd_room();
    let pd = node.device.create_pd_for(&mut node.port, &room).unwrap();
    let ticket = node.device.export_pd(&mut node.port, pd).unwrap();
    let (id, grant) = node.admit(pd, secret).unwrap();
    let pd = device.import_pd(port, ticket).unwrap();
    (id, pd, grant)
}

/// A client of a data node that posts a WRITE of its own.
pub(crate) struct Poker<D: Device> {
    pub(crate) id: NodeClientId,
    pub(crate) pd: PdId,
    pub(crate) device: D,
    pub(crate) port: D::Port,
    /// How its WRITE ended.
    pub(crate) status: Status,
}

/// Overwrites a word of a node's memory, given by its number, as a client with or without the secret.
pub(crate) fn poke(
    world: &mut World<SeededNetwork>,
    (node, secret): (usize, Option<&Secret>),
    (index, word): (usize, u64),
) -> Poker<SeededDevice> {
    let device = world.fabric.device();
    let mut port = device.open_port(&PortLimits::default()).unwrap();
    let (id, pd, grant) = enter(&mut world.nodes[node], (&device, &mut port), secret);
    let cq = device.create_cq(&mut port, &CqSpec { depth: 4 }).unwrap();
    let spec = QpSpec {
        pd,
        transport: Transport::Rc,
        send_cq: cq,
        recv_cq: cq,
        send_depth: 2,
        recv_depth: 0,
    };
    let qp = device.create_qp(&mut port, &spec).unwrap();
    device.connect(&mut port, qp, &grant.writes).unwrap();
    let writes = device.endpoint(&port, qp).unwrap();
    let accept = NodeAccept {
        writes,
        reads: None,
    };
    world.nodes[node].connect(id, &accept).unwrap();
    let op = SendOp::Write {
        payload: Payload::Words(&[word]),
        to: grant.memory.offset(index as u64 * 8),
        imm: None,
    };
    let wr = SendWr {
        wr_id: 1,
        op,
        signaled: true,
        solicited: false,
        fence: false,
    };
    port.post_send(qp, &[wr]).unwrap();
    let mut done = [Completion::BLANK; 1];
    while port.poll(cq, &mut done) == 0 {
        world.pass();
        port.progress(world.now);
    }
    Poker {
        id,
        pd,
        device,
        port,
        status: done[0].status,
    }
}

/// Connects a client of `device`; with no secret it may only read.
pub(crate) fn join<D: Device>(
    (nodes, server): (&mut [NodeEnd<D>], &mut ServerEnd<D>),
    device: D,
    (secret, options): (Option<&Secret>, &ClientOptions),
) -> Member<D> {
    let mut port = ClientEnd::open_port(&device, nodes.len()).unwrap();
    let room = ServerEnd::<D>::pd_room();
    let pd = server
        .device
        .create_pd_for(&mut server.port, &room)
        .unwrap();
    let ticket = server.device.export_pd(&mut server.port, pd).unwrap();
    let (id, grant) = server.admit(pd, secret).unwrap();
    let pd = device.import_pd(&mut port, ticket).unwrap();
    let (mut node_ids, mut grants) = (Vec::new(), Vec::new());
    for node in nodes.iter_mut() {
        let (id, pd, grant) = enter(node, (&device, &mut port), secret);
        node_ids.push(id);
        grants.push((pd, grant));
    }
    let grants = Grants {
        server: (pd, grant),
        nodes: grants,
    };
    let (end, accept, accepts) = ClientEnd::open(device, (port, grants), options).unwrap();
    server.connect(id, &accept).unwrap();
    for ((node, id), accept) in nodes.iter_mut().zip(&node_ids).zip(&accepts) {
        node.connect(*id, accept).unwrap();
    }
    Member { id, node_ids, end }
}

/// Connects a metadata server.
pub(crate) fn serve<D: Device>(
    nodes: &mut [NodeEnd<D>],
    (host, device): (D, D),
    options: &ServerOptions,
) -> ServerEnd<D> {
    let mut port = ServerEnd::open_port(&device, nodes.len()).unwrap();
    let entered: Vec<_> = nodes
        .iter_mut()
        .map(|node| enter(node, (&device, &mut port), Some(&SECRET)))
        .collect();
    let (ids, grants): (Vec<_>, Vec<_>) = entered
        .into_iter()
        .map(|(id, pd, grant)| (id, (pd, grant)))
        .unzip();
    let (server, accepts) =
        ServerEnd::open((host, device), (port, grants), (options, SECRET)).unwrap();
    for ((node, id), accept) in nodes.iter_mut().zip(ids).zip(&accepts) {
        node.connect(id, accept).unwrap();
    }
    server
}

impl<F: Fabric> World<F> {
    pub(crate) fn new(fabric: F, (nodes, clients): (usize, usize), geometry: Geometry) -> Self {
        let options = NodeOptions {
            geometry,
            clients: 8,
            secret: SECRET,
        };
        let mut nodes: Vec<_> = (0..nodes)
            .map(|_| NodeEnd::open(fabric.host(), options.clone()).unwrap())
            .collect();
        let server = serve(
            &mut nodes,
            (fabric.host(), fabric.guest()),
            &server_options(),
        );
        let mut world = Self {
            fabric,
            nodes,
            server,
            clients: Vec::new(),
            geometry,
            now: Duration::ZERO,
            nodes_run: true,
            paused: None,
            server_options: server_options(),
            client_options: client_options(),
        };
        world.get_ready();
        for _ in 0..clients {
            world.join();
        }
        world
    }

    pub(crate) fn get_ready(&mut self) {
        for _ in 0..1_000_000 {
            if self.server.server().is_ready() {
                return;
            }
            assert_eq!(self.server.server().failed(), None);
            self.pass();
        }
        panic!("the server does not start");
    }

    pub(crate) fn join(&mut self) {
        let device = self.fabric.guest();
        let member = join(
            (&mut self.nodes, &mut self.server),
            device,
            (Some(&SECRET), &self.client_options),
        );
        self.clients.push(member);
    }

    /// Removes a client that is gone.
    pub(crate) fn remove(&mut self, index: usize) -> Member<F::Device> {
        let member = self.clients.remove(index);
        for (node, id) in self.nodes.iter_mut().zip(&member.node_ids) {
            node.remove(*id).unwrap();
        }
        self.server.remove(member.id);
        member
    }

    /// Another server takes over; all clients are gone.
    pub(crate) fn restart(&mut self) {
        for node in &mut self.nodes {
            node.remove_all().unwrap();
        }
        self.clients.clear();
        let devices = (self.fabric.host(), self.fabric.guest());
        self.server = serve(&mut self.nodes, devices, &self.server_options);
        self.get_ready();
    }

    /// One pass of every party's loop; returns every answer with its client.
    pub(crate) fn pass(&mut self) -> Vec<(usize, u64, Kept)> {
        self.now += PASS;
        if self.nodes_run {
            for node in &mut self.nodes {
                node.port.progress(self.now);
            }
        }
        self.server.port.progress(self.now);
        self.server.node_port.progress(self.now);
        self.server.pass(self.now);
        let mut answers = Vec::new();
        let clients = self.clients.iter_mut().enumerate();
        for (index, Member { end, .. }) in clients.filter(|(index, _)| self.paused != Some(*index))
        {
            end.client.post(&mut end.port, self.now);
            end.port.progress(self.now);
            let sink = &mut |user, answer: Answer<'_>| answers.push((index, user, answer.copied()));
            end.client.poll(&mut end.port, self.now, sink);
        }
        answers
    }

    /// Runs until the only request in flight is answered.
    pub(crate) fn answer(&mut self) -> Kept {
        for _ in 0..2_000_000 {
            if let Some((_, _, kept)) = self.pass().pop() {
                return kept;
            }
        }
        panic!("no answer");
    }

    pub(crate) fn get(&mut self, client: usize, key: &[u8]) -> Kept {
        self.clients[client].end.client.get(key, 0).unwrap();
        self.answer()
    }

    pub(crate) fn put(&mut self, client: usize, key: &[u8], value: &[u8]) -> Kept {
        let now = self.now;
        let end = &mut self.clients[client].end;
        end.client.put(key, value, 0, now).unwrap();
        self.answer()
    }

    pub(crate) fn delete(&mut self, client: usize, key: &[u8]) -> Kept {
        let now = self.now;
        self.clients[client].end.client.delete(key, 0, now).unwrap();
        self.answer()
    }
}

pub(crate) fn key(n: u64) -> Vec<u8> {
    format!("{n:016}").into_bytes()
}
