//! The metadata server's machine: it knows the keys, hands out free entries, takes superseded ones out of
//! their chains, and gives them another use when no client can use them any more. GETs, PUTs and DELETEs
//! of known keys do not pass here.

mod collect;
mod entries;
mod execute;
mod headers;
mod index;
mod lease;
mod peer;
mod reap;
mod recover;
mod tasks;

use std::time::Duration;

use arrayvec::ArrayVec;
use herdwick_fabric::{Completion, CqId, Port, PostError, Status};
use herdwick_read::{ClientId, Clients, drain};
use herdwick_request::HashKey;

use crate::{
    Right, ServerCounters,
    layout::{BadNodes, Geometry, Memberships},
    message::CALLS_MAX,
    nodes::{Landed, Nodes},
};

use entries::Entries;
use index::Index;
use lease::Lease;
use peer::Peer;
pub(crate) use peer::{PeerObjects, REPLY_DEPTH};
use tasks::{CHUNK, Reaper, Reason, Start, Task, Tasks};
pub(crate) use tasks::{STRIDE, TASKS};

/// Completions taken by one call of [`Port::poll`].
const POLLED: usize = 32;

/// The machine.
#[derive(Debug)]
pub struct Server {
    index: Index,
    entries: Entries,
    tasks: Tasks,
    reaper: Reaper,
    start: Start,
    /// The memberships that were read from the headers; then those to write into them.
    members: Memberships,
    /// The shortcuts whose chains are walked at the start.
    chunk: [u64; CHUNK],
    hash_key: HashKey,
    recv_cq: CqId,
    send_cq: CqId,
    peers: Clients<Peer>,
    /// Room for what a poll takes.
    completions: Vec<Completion>,
    /// Whether a client asked for entries of a class that has none.
    take_failed: bool,
    /// When a key was last looked at without a reason, and how often that is done.
    swept: Duration,
    sweep: Duration,
    lease: Lease,
    now: Duration,
    counters: ServerCounters,
}

/// The ports to the clients and to the data nodes: some providers have a device for each side.
pub(crate) struct Ports<'a, P> {
    pub(crate) clients: &'a mut P,
    pub(crate) nodes: &'a mut P,
}

/// What a server is made of.
#[derive(Debug)]
pub(crate) struct ServerParts {
    pub(crate) geometry: Geometry,
    pub(crate) nodes: Nodes,
    pub(crate) clients: u16,
    pub(crate) cqs: [CqId; 2],
    pub(crate) hash_key: HashKey,
    pub(crate) sweep: Duration,
    pub(crate) lease: Duration,
}

impl Server {
    pub(crate) fn new(parts: ServerParts) -> Self {
        let [recv_cq, send_cq] = parts.cqs;
        let clients = usize::from(parts.clients);
        Self {
            index: Index::new(parts.geometry.slots),
            entries: Entries::new(parts.geometry, clients),
            tasks: Tasks::new(parts.nodes),
            reaper: Reaper::new(clients),
            start: Start::Headers(false),
            members: Memberships::new(),
            chunk: [0; CHUNK],
            hash_key: parts.hash_key,
            recv_cq,
            send_cq,
            peers: Clients::new(parts.clients),
            completions: vec![Completion::BLANK; POLLED],
            take_failed: false,
            swept: Duration::ZERO,
            sweep: parts.sweep,
            lease: Lease::new(parts.lease),
            now: Duration::ZERO,
            counters: ServerCounters::default(),
        }
    }

    /// Returns the bytes of memory that a server's tables have, at most, for data nodes of these
    /// dimensions.
    #[must_use]
    pub fn memory(geometry: &Geometry) -> usize {
        Index::bytes(geometry.slots as usize) + Entries::bytes(geometry.count() as usize)
    }

    /// Returns whether the start is over, and clients may be admitted.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.start, Start::Done)
    }

    /// Returns why the data nodes are refused. Their memory is as it was.
    #[must_use]
    pub fn refused(&self) -> Option<BadNodes> {
        match self.start {
            Start::Refused(bad) => Some(bad),
            _ => None,
        }
    }

    /// Returns the status with which a data node's queue pair failed. Nothing works any more: the
    /// clients have to be removed from all data nodes, and a server begins anew with those that are
    /// left.
    #[must_use]
    pub fn failed(&self) -> Option<Status> {
        self.tasks.nodes.failed()
    }

    /// Returns the number of keys, deleted ones included that have not been forgotten yet.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.index.len()
    }

    /// Returns the number of free entries of a size class.
    #[must_use]
    pub fn free_entries(&self, class: usize) -> usize {
        self.entries.free(class)
    }

    /// Returns whether nothing is under way: what comes next is a call, or a sweep.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tasks.is_idle() && !self.is_reclaiming()
    }

    pub(crate) fn node_cq(&self) -> CqId {
        self.tasks.nodes.cq()
    }

    /// Returns whether entries of clients that are gone are being looked for.
    #[must_use]
    pub fn is_reclaiming(&self) -> bool {
        !self.reaper.is_idle()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        ServerCounters {
            recycled: self.entries.recycled,
            wraps: self.entries.wraps,
            ..self.counters
        }
    }

    /// Returns the id that the next client has; `None`: there are as many as there may be, or entries
    /// that a client held are still being looked for.
    pub(crate) fn next_id(&self) -> Option<ClientId> {
        self.peers.next_id(|index| !self.reaper.is_reaping(index))
    }

    /// Adds the client of [`Server::next_id`], and posts its RECVs.
    pub(crate) fn attach<P: Port>(
        &mut self,
        port: &mut P,
        id: ClientId,
        (objects, right): (PeerObjects, Right),
    ) -> Result<(), PostError> {
        let calls = &objects.calls;
        calls.post_all(port, CALLS_MAX as u32, |buffer| id.wr_id(buffer))?;
        self.peers.insert(id, Peer::new((objects, right), self.now));
        Ok(())
    }

    /// Notes that a client is connected: from here on, reuse waits for what it publishes.
    pub(crate) fn connected(&mut self, id: ClientId) {
        let (epoch, _) = self.entries.epochs();
        if let Some(peer) = self.peers.get_mut(id) {
            peer.connected(epoch, self.now);
        }
    }

    /// Forgets a client, which no data node serves any more: entries that it held find another use.
    pub(crate) fn detach(&mut self, id: ClientId) {
        if self.peers.remove(id).is_some() {
            self.reaper.begin(id.index());
        }
    }

    /// Returns a client whose connection failed or whose lease is over. It keeps entries from another use
    /// until it is removed.
    pub(crate) fn lapsed(&self) -> Option<ClientId> {
        let over = |peer: &Peer| self.lease.is_over(peer, self.now);
        let found = self.peers.iter().find(|(_, peer)| over(peer));
        found.map(|(id, _)| id)
    }

    /// Counts a client that is about to be removed, if its lease is over.
    pub(crate) fn count_lapsed(&mut self, id: ClientId) {
        let mut peers = self.peers.iter();
        let over = |peer: &Peer| self.lease.is_over(peer, self.now);
        self.counters.lapsed += u64::from(peers.any(|(other, peer)| other == id && over(peer)));
    }

    /// Takes completions, executes what has arrived, goes on with its tasks. Returns the number of
    /// calls that arrived.
    pub(crate) fn pass<P: Port>(&mut self, ports: &mut Ports<'_, P>, now: Duration) -> usize {
        self.now = now;
        self.land(ports.nodes);
        if !self.is_ready() {
            self.start(ports.nodes);
            return 0;
        }
        self.take_sends(ports.clients);
        let arrived = self.take_calls(ports.clients);
        for index in 0..self.peers.most() {
            self.serve(ports, index);
        }
        self.reap(ports.nodes);
        self.tidy(ports.nodes);
        // The client that is slowest decides. Without clients nothing waits.
        let published = self.peers.iter().map(|(_, peer)| peer.published).min();
        self.entries.advance(published.unwrap_or(u64::MAX));
        let (epoch, _) = self.entries.epochs();
        self.lease.note(epoch, now);
        arrived
    }

    /// Begins to take superseded entries out of the chains that have some.
    fn tidy<P: Port>(&mut self, port: &mut P) {
        let due = self.now.saturating_sub(self.swept) >= self.sweep;
        // A key is looked at sooner when clients find no entries: superseded ones may be among its
        // chain.
        if due || std::mem::take(&mut self.take_failed) {
            self.swept = self.now;
            self.index.sweep();
        }
        while self.tasks.has_room() {
            let Some(slot) = self.index.next() else {
                return;
            };
            self.collect(port, slot, Reason::Superseded);
        }
    }

    /// Takes the verbs of tasks that have completed.
    fn land<P: Port>(&mut self, port: &mut P) {
        let mut landed = ArrayVec::<(Landed, u64), POLLED>::new();
        loop {
            self.tasks.nodes.poll_some(port, &mut landed);
            for (landed, word) in &landed {
                self.landed(port, *landed, *word);
            }
            if landed.len() < POLLED {
                return;
            }
            landed.clear();
        }
    }

    fn landed<P: Port>(&mut self, port: &mut P, landed: Landed, word: u64) {
        match self.tasks.take(landed) {
            None => {}
            Some(Task::Create(create)) => self.creating(port, landed, create),
            Some(Task::Collect(collect)) => self.collected(port, (landed, word), collect),
            Some(Task::Orphan { number }) => self.orphaned(port, landed, number),
            Some(Task::Recover(recover)) => self.recovered(port, (landed, word), recover),
            Some(Task::Headers { step, left }) => self.header(port, landed, (step, left - 1)),
            Some(Task::Scan { left }) => self.scanned(port, landed, left),
        }
    }

    fn take_sends<P: Port>(&mut self, port: &mut P) {
        let Self {
            peers, completions, ..
        } = self;
        drain(port, self.send_cq, completions, |_, completion| {
            let (id, _) = ClientId::of(completion.wr_id);
            // A client that was removed has none: its completions may come later.
            if let Some(peer) = peers.get_mut(id) {
                peer.failed |= completion.status != Status::Success;
            }
        });
    }

    fn take_calls<P: Port>(&mut self, port: &mut P) -> usize {
        let Self {
            peers, completions, ..
        } = self;
        let (now, mut arrived) = (self.now, 0);
        drain(port, self.recv_cq, completions, |_, completion| {
            let (id, buffer) = ClientId::of(completion.wr_id);
            let Some(peer) = peers.get_mut(id) else {
                return;
            };
            if completion.status == Status::Success {
                peer.arrived(completion, buffer, now);
                arrived += 1;
            } else {
                peer.failed = true;
            }
        });
        arrived
    }
}
