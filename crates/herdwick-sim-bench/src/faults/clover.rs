//! Clover under faults: data nodes that are memory alone, and a metadata server that starts again on
//! what they hold.

use std::time::Duration;

use herdwick_clover::{
    ClientEnd, ClientOptions, Hosts, Joined, NodeEnd, NodeOptions, Secret, ServerOptions,
    layout::{CLASSES, Geometry},
};
use herdwick_fabric::Device;
use herdwick_read::Answer;
use herdwick_sim::{Cpu, PartyId, Process, Scheduler, SeededDevice, SeededNetwork, Step};

use super::machine::{Ask, Asks, Machine, Servers, Told};
use crate::{
    client::SPINS,
    keys::{Draws, HASH_KEY},
    run::RunError,
};

const SECRET: Secret = Secret(*b"herdwick's sim's");
/// Data nodes, at most.
const NODES_MAX: u32 = 3;
/// Keys beside one for each of so many requests: more than a run uses.
const SLOTS_TO_SPARE: u32 = 256;
const REQUESTS_PER_SLOT: u64 = 20;
/// Size classes that the keys and values use: the first ones.
const CLASSES_USED: usize = 5;
/// Entries of a class for each client, beside those of every second key.
const ENTRIES_OF_CLIENT: u32 = 64;
/// Uses of an entry before its version is 0 again: what a seed draws from.
const VERSIONS: [u16; 4] = [2, 3, 16, 1 << 14];
/// Cursors of a client: what a seed draws from.
const CURSORS: [usize; 3] = [1, 8, 256];
/// Bytes of the longest value: with its head and key it fits the largest of the classes used, 1 KiB.
const VALUE_BYTES_MAX: usize = 900;
/// How often a client publishes its epoch, and the server looks at a key without a reason.
const PUBLISH: Duration = Duration::from_micros(20);
const SWEEP: Duration = Duration::from_micros(5);
/// Time after which a client that publishes nothing is taken for dead.
const LEASE: Duration = Duration::from_millis(3);
/// Time for which a PUT waits for an entry.
const ENTRY_WAIT: Duration = Duration::from_millis(2);
/// Virtual time in which an empty data node is read.
const START_MAX: Duration = Duration::from_millis(100);

/// Sizes of a run.
pub(super) struct CloverSizes {
    pub(super) clients: usize,
    pub(super) window: usize,
    pub(super) operations: u64,
    /// Time after which a server or data node that does not answer is given up.
    pub(super) timeout: Duration,
}

/// The metadata server and the data nodes.
pub(super) struct CloverServers {
    device: SeededDevice,
    replicas: usize,
    node: NodeOptions,
    server: ServerOptions,
    client: ClientOptions,
    metadata: MetadataServer,
    nodes: Vec<DataNode>,
}

impl CloverServers {
    pub(super) fn new(
        sizes: &CloverSizes,
        draws: &mut Draws,
        (network, device): (&SeededNetwork, SeededDevice),
        cpu: &Cpu,
    ) -> Result<Self, RunError> {
        let clients = sizes.clients;
        let replicas = 1 + draws.below(NODES_MAX) as usize;
        // Those that are gone keep their places until their entries are found.
        let places = 2 * clients;
        let node = NodeOptions {
            geometry: geometry(sizes, VERSIONS[draws.below(VERSIONS.len() as u32) as usize]),
            clients: places + 1,
            secret: SECRET,
        };
        let server = ServerOptions {
            sweep: SWEEP,
            lease: LEASE,
            ..ServerOptions::new(places, HASH_KEY)
        };
        let client = ClientOptions {
            window: sizes.window,
            puts: sizes.window,
            cursors: CURSORS[draws.below(CURSORS.len() as u32) as usize],
            value_max: VALUE_BYTES_MAX,
            publish: PUBLISH,
            entry_wait: ENTRY_WAIT,
            timeout: sizes.timeout,
        };
        let nodes = open_nodes(&device, replicas, &node)?;
        let devices = (device.clone(), device.clone());
        let hosts = Hosts::open(nodes, devices, &server, SECRET)?;
        let mut servers = Self {
            nodes: DataNode::of(&hosts),
            metadata: MetadataServer::new(hosts, cpu),
            device,
            replicas,
            node,
            server,
            client,
        };
        servers.get_ready(network)?;
        Ok(servers)
    }

    /// Has the metadata server read the data nodes.
    fn get_ready(&mut self, network: &SeededNetwork) -> Result<(), RunError> {
        let end = network.now() + START_MAX;
        while !self.takes_clients() {
            let now = network.now();
            if now >= end {
                return Err(RunError::CloverStart);
            }
            Scheduler::new(network, self.workers()).run(now + SWEEP);
        }
        Ok(())
    }
}

fn geometry(sizes: &CloverSizes, versions: u16) -> Geometry {
    // Far below the largest number, since more is added.
    let slots = u32::try_from(sizes.operations / REQUESTS_PER_SLOT).unwrap_or(u32::MAX / 4);
    let slots = slots.min(u32::MAX / 4) + SLOTS_TO_SPARE;
    let mut entries = [0; CLASSES];
    entries[..CLASSES_USED].fill(slots / 2 + ENTRIES_OF_CLIENT * sizes.clients as u32);
    Geometry {
        slots,
        entries,
        versions,
    }
}

fn open_nodes(
    device: &SeededDevice,
    count: usize,
    options: &NodeOptions,
) -> Result<Vec<NodeEnd<SeededDevice>>, RunError> {
    let open = |_| NodeEnd::open(device.clone(), options.clone());
    Ok((0..count).map(open).collect::<Result<_, _>>()?)
}

impl Servers for CloverServers {
    type Lease = Joined;

    const ASKS: Asks = Asks {
        conditional: false,
        sizes: &[8, 24, 60, 200, VALUE_BYTES_MAX],
        key_bytes_max: 60,
    };

    /// The data nodes' items outlive the metadata server.
    const ITEMS_OUTLIVE: bool = true;

    /// The metadata server, and the data nodes of the start.
    fn workers(&mut self) -> Vec<&mut dyn Process> {
        let mut workers: Vec<&mut dyn Process> = vec![&mut self.metadata];
        workers.extend(self.nodes.iter_mut().map(|node| node as &mut dyn Process));
        workers
    }

    fn killed(&mut self) -> Vec<PartyId> {
        let server = &self.metadata.hosts.server;
        vec![server.port.party(), server.node_port.party()]
    }

    fn takes_clients(&self) -> bool {
        let server = self.metadata.hosts.server.server();
        server.is_ready() && !server.is_reclaiming()
    }

    fn join(
        &mut self,
        device: &SeededDevice,
        _: u16,
    ) -> Result<(Box<dyn Machine>, Joined), RunError> {
        let hosts = &mut self.metadata.hosts;
        let (end, joined) = hosts.join(device.clone(), &self.client)?;
        let machine = CloverMachine {
            end,
            polled: Duration::ZERO,
        };
        Ok((Box::new(machine), joined))
    }

    fn dismiss(&mut self, lease: Joined) {
        // A node whose device is lost may refuse, and is left out by the next restart.
        let _ = self.metadata.hosts.remove(&lease);
    }

    fn hears(&self, lease: &Joined) -> bool {
        self.metadata.lapsed != Some(lease.server)
    }

    fn is_lost(&self) -> bool {
        let Hosts { nodes, server, .. } = &self.metadata.hosts;
        let lost = |node: &NodeEnd<SeededDevice>| self.device.health(&node.port).lost;
        self.device.health(&server.port).lost
            || server.server().failed().is_some()
            || nodes.iter().any(lost)
    }

    /// The data nodes that are left have all items; with none, empty ones take their place.
    fn restart(&mut self, _: bool) -> Result<bool, RunError> {
        let hosts = &mut self.metadata.hosts;
        let device = &self.device;
        hosts.nodes.retain(|node| !device.health(&node.port).lost);
        let keeps = !hosts.nodes.is_empty();
        if !keeps {
            hosts.nodes = open_nodes(device, self.replicas, &self.node)?;
            self.nodes = DataNode::of(hosts);
        }
        hosts.restart((device.clone(), device.clone()), &self.server)?;
        self.metadata.lapsed = None;
        Ok(keeps)
    }

    fn step_clock(&mut self, _: u32) {}
}

struct MetadataServer {
    hosts: Hosts<SeededDevice>,
    /// A client that is to be removed.
    lapsed: Option<herdwick_clover::ClientId>,
    cpu: Cpu,
    spins: u32,
}

impl MetadataServer {
    fn new(hosts: Hosts<SeededDevice>, cpu: &Cpu) -> Self {
        Self {
            hosts,
            lapsed: None,
            cpu: cpu.clone(),
            spins: 0,
        }
    }
}

impl Process for MetadataServer {
    fn party(&self) -> PartyId {
        self.hosts.server.port.party()
    }

    fn other_party(&self) -> Option<PartyId> {
        Some(self.hosts.server.node_port.party())
    }

    fn step(&mut self, now: Duration) -> Step {
        let served = self.hosts.server.pass(now) as u32;
        self.lapsed = self.hosts.server.lapsed();
        self.spins = if served > 0 { 0 } else { self.spins + 1 };
        Step {
            moved: self.spins <= SPINS,
            cost_ns: self.cpu.pass_ns + f64::from(served) * self.cpu.request_ns,
            deadline: Some(now + SWEEP),
        }
    }
}

/// A data node's process, which does nothing; its device may fail.
struct DataNode(PartyId);

impl DataNode {
    fn of(hosts: &Hosts<SeededDevice>) -> Vec<Self> {
        let nodes = hosts.nodes.iter();
        nodes.map(|node| Self(node.port.party())).collect()
    }
}

impl Process for DataNode {
    fn party(&self) -> PartyId {
        self.0
    }

    fn step(&mut self, _: Duration) -> Step {
        Step::default()
    }
}

struct CloverMachine {
    end: ClientEnd<SeededDevice>,
    /// The last poll.
    polled: Duration,
}

impl Machine for CloverMachine {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn submit(&mut self, now: Duration, key: &[u8], ask: Ask<'_>, token: u64) -> bool {
        let client = &mut self.end.client;
        let begun = match ask {
            Ask::Get => client.get(key, token),
            Ask::Put(value) => client.put(key, value, token, now),
            Ask::Delete => client.delete(key, token, now),
            Ask::Add(_) | Ask::Increment(_) => return false,
        };
        begun.is_ok()
    }

    fn flush(&mut self, now: Duration) {
        self.end.client.post(&mut self.end.port, now);
    }

    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Told<'_>)) {
        self.polled = now;
        let ClientEnd { client, port, .. } = &mut self.end;
        client.poll(port, now, &mut |token, answer| {
            // Entries that a client held wait for its lease to lapse.
            let told = match answer {
                Answer::Full => Told::Nothing,
                answer => Told::of(answer),
            };
            sink(token, told);
        });
    }

    /// Often enough to publish epochs.
    fn deadline(&self) -> Option<Duration> {
        Some(self.polled + PUBLISH)
    }

    fn is_broken(&self) -> bool {
        self.end.client.failed().is_some()
    }

    fn close(&mut self, _: Duration, _: &mut dyn FnMut(u64, Told<'_>)) {}
}
