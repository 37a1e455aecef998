//! The server's machine: requests that arrive by SEND, executed in the order of each client, and their
//! replies. GETs by READ do not pass here.

mod execute;
mod peer;

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use herdwick_fabric::{Completion, CqId, Port, PostError, RecvWr, Status};

use crate::{
    ServerCounters,
    layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX},
    message::{CREDITS, MESSAGE_BYTES_MAX, PARTS_MAX},
    store::Store,
};

use execute::{Line, MessageOutcome};
pub use peer::ClientId;
use peer::{Peer, ScratchBuffers, recv};
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
    peers: Vec<Peers>,
    /// Whether a PUT waits for a larger table; and whether there may be one.
    pub(crate) starved: bool,
    pub(crate) may_grow: bool,
    scratch: ScratchBuffers,
    /// Room for what a poll takes.
    completions: Vec<Completion>,
    counters: ServerCounters,
}

#[derive(Debug)]
struct Peers {
    turn: u16,
    peer: Option<Peer>,
}

impl Server {
    pub(crate) fn new(store: Store, clients: u16, cqs: [CqId; 2], inline_max: usize) -> Self {
        let [recv_cq, send_cq] = cqs;
        let free = |_| Peers {
            turn: 0,
            peer: None,
        };
        Self {
            store,
            generation: 0,
            recv_cq,
            send_cq,
            inline_max: inline_max.min(MESSAGE_BYTES_MAX),
            peers: (0..clients).map(free).collect(),
            starved: false,
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

    pub(crate) fn count_growth(&mut self) {
        self.counters.growths += 1;
    }

    /// Returns the id that the next client has; `None`: there are as many as there may be.
    pub(crate) fn next_id(&self) -> Option<ClientId> {
        let index = self.peers.iter().position(|slot| slot.peer.is_none())?;
        let turn = self.peers[index].turn;
        Some(ClientId {
            index: index as u16,
            turn,
        })
    }

    /// Adds the client of [`Server::next_id`], and posts its RECVs.
    pub(crate) fn attach<P: Port>(
        &mut self,
        port: &mut P,
        id: ClientId,
        objects: PeerObjects,
    ) -> Result<(), PostError> {
        let recvs: ArrayVec<RecvWr, CREDITS> = (0..CREDITS as u32)
            .map(|buffer| recv(id, &objects, buffer))
            .collect();
        port.post_recv(objects.qp, &recvs)?;
        self.peers[usize::from(id.index)].peer = Some(Peer {
            objects,
            due: VecDeque::with_capacity(CREDITS),
            upload: None,
            body: vec![0; KEY_BYTES_MAX + VALUE_BYTES_MAX],
            unsent: None,
            posted: 0,
            completed: 0,
            reply_until: None,
            generation: self.generation,
            failed: false,
        });
        Ok(())
    }

    /// Forgets a client.
    pub(crate) fn detach(&mut self, id: ClientId) {
        if self.peer(id).is_some() {
            let slot = &mut self.peers[usize::from(id.index)];
            slot.turn = slot.turn.wrapping_add(1);
            slot.peer = None;
        }
    }

    /// Returns the generation of the table that a client READs; `None` if it has failed.
    pub(crate) fn generation_of(&mut self, id: ClientId) -> Option<u32> {
        let peer = self.peer(id)?;
        (!peer.failed).then_some(peer.generation)
    }

    /// Counts a client that is about to be detached because it failed.
    pub(crate) fn count_failed(&mut self) {
        self.counters.clients_failed += 1;
    }

    fn peer(&mut self, id: ClientId) -> Option<&mut Peer> {
        let slot = self.peers.get_mut(usize::from(id.index))?;
        slot.peer.as_mut().filter(|_| slot.turn == id.turn)
    }

    /// Takes completions, executes what has arrived, and replies. Returns the number of messages that
    /// arrived.
    pub(crate) fn pass<P: Port>(&mut self, port: &mut P) -> usize {
        self.take_sends(port);
        let arrived = self.take_requests(port);
        for index in 0..self.peers.len() {
            self.serve(port, index);
        }
        arrived
    }

    fn take_sends<P: Port>(&mut self, port: &mut P) {
        let mut done = std::mem::take(&mut self.completions);
        loop {
            let count = port.poll(self.send_cq, &mut done);
            for completion in &done[..count] {
                let (id, number) = ClientId::of(completion.wr_id);
                let Some(peer) = self.peer(id) else {
                    continue;
                };
                peer.failed |= completion.status != Status::Success;
                peer.completed = number;
                if peer.reply_until == Some(number) {
                    peer.reply_until = None;
                }
            }
            if count < POLLED {
                break;
            }
        }
        self.completions = done;
    }

    fn take_requests<P: Port>(&mut self, port: &mut P) -> usize {
        let generation = self.generation;
        let (mut done, mut arrived) = (std::mem::take(&mut self.completions), 0);
        loop {
            let count = port.poll(self.recv_cq, &mut done);
            for completion in &done[..count] {
                let (id, buffer) = ClientId::of(completion.wr_id);
                let Some(peer) = self.peer(id) else {
                    continue;
                };
                if completion.status != Status::Success {
                    peer.failed = true;
                    continue;
                }
                let at = buffer as usize * MESSAGE_BYTES_MAX;
                if let Some(inline) = &completion.inline {
                    peer.objects.requests.1.write_words(at / 8, inline.words());
                }
                let len = (completion.byte_len as usize).min(MESSAGE_BYTES_MAX);
                // What it says of the table counts before its turn: that may have to wait for it.
                let [_, _, place, _] = peer.objects.requests.1.read_words::<4>(at / 8);
                peer.reads(place as u32, generation);
                peer.due.push_back((buffer, len));
                arrived += 1;
            }
            if count < POLLED {
                break;
            }
        }
        self.completions = done;
        arrived
    }

    /// Executes the requests of a client, as long as it can take the replies.
    fn serve<P: Port>(&mut self, port: &mut P, index: usize) {
        let Self {
            peers,
            store,
            scratch,
            counters,
            ..
        } = self;
        let slot = &mut peers[index];
        let id = ClientId {
            index: index as u16,
            turn: slot.turn,
        };
        let Some(peer) = slot.peer.as_mut().filter(|peer| !peer.failed) else {
            return;
        };
        let mut line = Line {
            id,
            inline_max: self.inline_max,
            generation: self.generation,
            may_grow: self.may_grow,
            starved: &mut self.starved,
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
            if peer.posted.wrapping_sub(peer.completed) as usize + PARTS_MAX > REPLY_DEPTH {
                return;
            }
            let Some((buffer, len)) = peer.due.front().copied() else {
                return;
            };
            match line.execute(port, peer, buffer, len) {
                MessageOutcome::NotYet => return,
                MessageOutcome::Silently => {}
                MessageOutcome::Answered(reply) => peer.unsent = Some(reply),
            }
            peer.due.pop_front();
            let again = [recv(id, &peer.objects, buffer)];
            peer.failed |= port.post_recv(peer.objects.qp, &again).is_err();
        }
    }
}
