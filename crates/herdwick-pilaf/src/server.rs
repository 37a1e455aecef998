//! The server's machine: requests that arrive by SEND, executed in the order of each client, and their
//! replies. GETs by READ do not pass here.

mod execute;
mod peer;

use std::collections::VecDeque;

use herdwick_fabric::{Completion, CqId, Port, PostError, Status};
use herdwick_read::{ClientId, Clients, drain};

use crate::{
    ServerCounters,
    layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX},
    message::{CREDITS, MESSAGE_BYTES_MAX, PARTS_MAX},
    store::Store,
};

use execute::{Line, MessageOutcome};
use peer::{Peer, ScratchBuffers};
pub(crate) use peer::{PeerObjects, REPLY_DEPTH};

/// Completions taken by one call of [`Port::poll`].
const POLLED: usize = 32;

/// The machine.
#[derive(Debug)]
pub struct Server {
    /// The data.
    pub(crate) store: Store,
    /// How often the table has moved.
    pub(crate) generation: u32,
    recv_cq: CqId,
    send_cq: CqId,
    inline_max: usize,
    peers: Clients<Peer>,
    /// Whether a PUT waits for a larger table; and whether there may be one.
    pub(crate) put_waits: bool,
    pub(crate) may_grow: bool,
    scratch: ScratchBuffers,
    /// Room for what a poll takes.
    completions: Vec<Completion>,
    counters: ServerCounters,
}

impl Server {
    pub(crate) fn new(store: Store, clients: u16, cqs: [CqId; 2], inline_max: usize) -> Self {
        let [recv_cq, send_cq] = cqs;
        Self {
            store,
            generation: 0,
            recv_cq,
            send_cq,
            // A message is laid out in a buffer of that size.
            inline_max: inline_max.min(MESSAGE_BYTES_MAX),
            peers: Clients::new(clients),
            put_waits: false,
            may_grow: true,
            scratch: ScratchBuffers {
                message: vec![0; MESSAGE_BYTES_MAX],
                value: vec![0; VALUE_BYTES_MAX],
            },
            completions: vec![Completion::BLANK; POLLED],
            counters: ServerCounters::default(),
        }
    }

    /// Returns the data.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// Goes on with the larger table, and announces it to every client: one without a request under way
    /// would not learn of it.
    pub(crate) fn moved(&mut self) {
        self.store.move_to_larger();
        self.generation = self.generation.wrapping_add(1);
        self.put_waits = false;
        self.counters.growths += 1;
        for index in 0..self.peers.most() {
            if let Some((_, peer)) = self.peers.at(index) {
                peer.announce = true;
            }
        }
    }

    /// Returns the id that the next client has; `None`: there are as many as there may be.
    pub(crate) fn next_id(&self) -> Option<ClientId> {
        self.peers.next_id(|_| true)
    }

    /// Adds the client of [`Server::next_id`], and posts its RECVs.
    pub(crate) fn attach<P: Port>(
        &mut self,
        port: &mut P,
        id: ClientId,
        objects: PeerObjects,
    ) -> Result<(), PostError> {
        let requests = &objects.requests;
        requests.post_all(port, CREDITS as u32, |buffer| id.wr_id(buffer))?;
        let peer = Peer {
            objects,
            due: VecDeque::with_capacity(CREDITS),
            upload: None,
            body: vec![0; KEY_BYTES_MAX + VALUE_BYTES_MAX],
            unsent: None,
            posted: 0,
            completed: 0,
            reply_until: None,
            generation: self.generation,
            connected: false,
            announce: false,
            failed: false,
        };
        self.peers.insert(id, peer);
        Ok(())
    }

    /// Goes on with a client whose queue pairs are connected: only now it can be sent to.
    pub(crate) fn connected(&mut self, id: ClientId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.connected = true;
        }
    }

    /// Forgets a client.
    pub(crate) fn detach(&mut self, id: ClientId) {
        self.peers.remove(id);
    }

    /// Returns the generation of the table that a client READs; `None` if it has failed.
    pub(crate) fn generation_of(&mut self, id: ClientId) -> Option<u32> {
        let peer = self.peers.get_mut(id)?;
        (!peer.failed).then_some(peer.generation)
    }

    /// Counts a client that is about to be detached because it failed.
    pub(crate) fn count_failed(&mut self) {
        self.counters.clients_failed += 1;
    }

    /// Takes completions, executes what has arrived, and replies. Returns the number of messages that
    /// arrived.
    pub(crate) fn pass<P: Port>(&mut self, port: &mut P) -> usize {
        self.take_sends(port);
        let arrived = self.take_requests(port);
        // Those that wait say so again: one that waited may have found a place, or its client have gone.
        self.put_waits = false;
        for index in 0..self.peers.most() {
            self.serve(port, index);
        }
        arrived
    }

    fn take_sends<P: Port>(&mut self, port: &mut P) {
        let Self {
            peers, completions, ..
        } = self;
        drain(port, self.send_cq, completions, |_, completion| {
            let (id, number) = ClientId::of(completion.wr_id);
            let Some(peer) = peers.get_mut(id) else {
                return;
            };
            peer.failed |= completion.status != Status::Success;
            peer.completed = number;
            if peer.reply_until == Some(number) {
                peer.reply_until = None;
            }
        });
    }

    fn take_requests<P: Port>(&mut self, port: &mut P) -> usize {
        let Self {
            peers,
            completions,
            generation,
            ..
        } = self;
        let mut arrived = 0;
        drain(port, self.recv_cq, completions, |_, completion| {
            let (id, buffer) = ClientId::of(completion.wr_id);
            let Some(peer) = peers.get_mut(id) else {
                return;
            };
            if completion.status != Status::Success {
                peer.failed = true;
                return;
            }
            let requests = &peer.objects.requests;
            let len = requests.arrived(completion, buffer);
            // Apply the table generation in the head now: the request itself may wait for the old table
            // to be released.
            let [_, _, place, _] = requests.words::<4>(buffer);
            peer.reads(place as u32, *generation);
            peer.due.push_back((buffer, len));
            arrived += 1;
        });
        arrived
    }

    /// Executes the requests of a client, as long as it can take the replies.
    fn serve<P: Port>(&mut self, port: &mut P, index: u16) {
        let Self {
            peers,
            store,
            scratch,
            counters,
            ..
        } = self;
        let live = |peer: &Peer| peer.connected && !peer.failed;
        let Some((id, peer)) = peers.at(index).filter(|(_, peer)| live(peer)) else {
            return;
        };
        let mut line = Line {
            id,
            inline_max: self.inline_max,
            generation: self.generation,
            may_grow: self.may_grow,
            put_waits: &mut self.put_waits,
            store,
            scratch,
            counters,
        };
        loop {
            if let Some(reply) = peer.unsent.take()
                && !line.answer(port, peer, reply)
            {
                return;
            }
            // Room for the longest reply, so that nothing is executed whose reply has none.
            if peer.posted.wrapping_sub(peer.completed) as usize + PARTS_MAX > REPLY_DEPTH {
                return;
            }
            if std::mem::take(&mut peer.announce) {
                peer.unsent = Some(line.announcement());
                continue;
            }
            let Some((buffer, len)) = peer.due.front().copied() else {
                return;
            };
            match line.execute(port, peer, buffer, len) {
                MessageOutcome::NotYet => return,
                MessageOutcome::Silently => {}
                MessageOutcome::Answered(reply) => peer.unsent = Some(reply),
            }
            // It was read, so its buffer may receive another message.
            peer.due.pop_front();
            let requests = &peer.objects.requests;
            peer.failed |= requests.post(port, id.wr_id(buffer), buffer).is_err();
        }
    }
}
