//! A client's calls, executed in their order, as long as there is room for the replies. A call is copied
//! before it is checked, since its client can change the buffer.

use arrayvec::ArrayVec;
use herdwick_fabric::Port;
use herdwick_mem::WORD;
use herdwick_read::ClientId;

use super::{
    Ports, Server,
    index::Phase,
    tasks::{Create, Deleter, Reason, Task},
};
use crate::{
    Right,
    layout::{CLASSES, KeyHash, Place},
    message::{
        BATCH, BadMessage, CALL_BYTES_MAX, Call, CallOp, CallStatus, MESSAGE_HEAD_BYTES, Reply,
        words_of,
    },
    nodes::Landed,
};

/// Most entries that a client holds: taken, and not found in a chain yet.
const HELD_MAX: u32 = 1 << 13;

type Body = ArrayVec<u64, BATCH>;

/// What became of a call.
enum Executed {
    Answered(CallStatus, Body),
    /// The reply comes when a task has ended.
    Later,
    /// To be executed later.
    NotYet,
}

impl Server {
    /// Executes the calls of a client, as long as there is room for the replies.
    pub(super) fn serve<P: Port>(&mut self, ports: &mut Ports<'_, P>, index: u16) {
        let Some((id, _)) = self.peers.at(index) else {
            return;
        };
        loop {
            let Some(peer) = self.peers.get_mut(id).filter(|peer| !peer.failed) else {
                return;
            };
            // Replies first: a client that does not take them is executed no further calls.
            if peer.send(ports.clients, id) {
                self.counters.replies_held += 1;
                return;
            }
            let Some(peer) = self.peers.get_mut(id) else {
                return;
            };
            let due = peer.due.front().copied().filter(|_| peer.has_room());
            let Some((buffer, len)) = due else {
                return;
            };
            let mut message = [0; CALL_BYTES_MAX];
            // A private copy: what is checked is what is executed.
            peer.objects.calls.read(buffer, &mut message[..len]);
            if !self.execute(ports.nodes, id, &message[..len]) {
                return;
            }
            let Some(peer) = self.peers.get_mut(id) else {
                return;
            };
            // Only now: a call that is put off is copied and checked anew.
            peer.due.pop_front();
            let (calls, wr_id) = (&peer.objects.calls, id.wr_id(buffer));
            peer.failed |= calls.post(ports.clients, wr_id, buffer).is_err();
        }
    }

    /// Executes a message; `false`: later.
    fn execute<P: Port>(&mut self, port: &mut P, id: ClientId, message: &[u8]) -> bool {
        let (epoch, _) = self.entries.epochs();
        let (token, executed) = match Call::parse(message) {
            Ok(call) => {
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.publish(call.published, epoch);
                }
                let body = &message[MESSAGE_HEAD_BYTES..][..call.len];
                (call.token, self.run(port, id, &call, body))
            }
            Err(bad) => {
                *match bad {
                    BadMessage::Length => &mut self.counters.bad_length,
                    BadMessage::Unknown => &mut self.counters.bad_unknown,
                } += 1;
                // By its token the client finds the call, if the message has one.
                let [_, token] = words_of(message).unwrap_or_default();
                (
                    token,
                    Executed::Answered(CallStatus::Malformed, Body::new()),
                )
            }
        };
        match executed {
            Executed::NotYet => return false,
            Executed::Later => {}
            Executed::Answered(status, words) => self.answer(id, token, status, words),
        }
        self.counters.calls += 1;
        true
    }

    /// Queues a reply.
    pub(super) fn answer(&mut self, id: ClientId, token: u64, status: CallStatus, words: Body) {
        let (epoch, flush) = self.entries.epochs();
        if let Some(peer) = self.peers.get_mut(id) {
            peer.replies.push_back(Reply {
                status,
                token,
                epoch,
                flush,
                words,
            });
        }
    }

    fn run<P: Port>(&mut self, port: &mut P, id: ClientId, call: &Call, body: &[u8]) -> Executed {
        let right = self
            .peers
            .get_mut(id)
            .map_or(Right::Read, |peer| peer.right);
        // A client that may not write has no use for the others, and each of them changes what
        // writers have.
        if right == Right::Read && !matches!(call.op, CallOp::Find | CallOp::Publish) {
            self.counters.bad_right += 1;
            return Executed::Answered(CallStatus::Malformed, Body::new());
        }
        match call.op {
            CallOp::Find => self.find(body),
            CallOp::Take => self.hand_out(id, call.class),
            CallOp::Create => self.create(port, id, call, body),
            CallOp::Superseded => {
                for slot in body.chunks_exact(WORD).filter_map(words_of::<1>) {
                    // A slot that is free may have had a key when the client reported: only one
                    // that does not exist is counted.
                    let known = self.index.hint(slot[0]);
                    self.counters.bad_claim += u64::from(!known);
                }
                Executed::Answered(CallStatus::Done, Body::new())
            }
            CallOp::Give => self.take_back(id, body),
            CallOp::Delete => self.delete(port, id, call, body),
            CallOp::Publish => Executed::Answered(CallStatus::Done, Body::new()),
        }
    }

    fn find(&mut self, key: &[u8]) -> Executed {
        let hash = KeyHash::of(&self.hash_key, key);
        let Some(slot) = self.index.find(&hash) else {
            return Executed::Answered(CallStatus::NotFound, Body::new());
        };
        let one = *self.index.slot(slot);
        match one.phase {
            Phase::Live | Phase::Broken => {
                let body = [slot.into(), one.place.word()];
                Executed::Answered(CallStatus::Done, body.into_iter().collect())
            }
            // A client that knew the slot from an earlier use of the key may see the new entry already,
            // or the old ones still. The reply is sent when all clients see the same.
            Phase::Creating | Phase::Forgetting | Phase::Free => Executed::NotYet,
        }
    }

    fn hand_out(&mut self, id: ClientId, class: usize) -> Executed {
        let mut places = Body::new();
        if class >= CLASSES {
            self.counters.bad_claim += 1;
            return Executed::Answered(CallStatus::Malformed, places);
        }
        if self.entries.held(id.index()) >= HELD_MAX {
            // Answered as if there were none: the client asks again, and gets some when its entries
            // were found in chains.
            self.counters.bad_hoard += 1;
            return Executed::Answered(CallStatus::Done, places);
        }
        // Of few entries each client gets its part.
        let clients = self.peers.iter();
        let part = self.entries.free(class) / clients.count().max(1);
        // At least one, however many clients there are: the one that asks has a request that waits.
        for _ in 0..part.clamp(1, BATCH) {
            let Some(place) = self.entries.take(class, id.index()) else {
                break;
            };
            places.push(place.word());
        }
        self.counters.taken += places.len() as u64;
        self.take_failed |= places.is_empty();
        self.counters.empty_takes += u64::from(places.is_empty());
        Executed::Answered(CallStatus::Done, places)
    }

    /// Entries come back from a client. Its WRITEs of them may still be on the way: they are retired, as
    /// if they had been used.
    fn take_back(&mut self, id: ClientId, body: &[u8]) -> Executed {
        for [word] in body.chunks_exact(WORD).filter_map(words_of::<1>) {
            let place = Place::of(word).unwrap_or_default();
            let held = self.entries.is_held(place, id.index()) && self.entries.retire(place);
            *match held {
                true => &mut self.counters.given,
                false => &mut self.counters.bad_claim,
            } += 1;
        }
        Executed::Answered(CallStatus::Done, Body::new())
    }

    /// Has a task close the chain of a key.
    fn delete<P: Port>(&mut self, port: &mut P, id: ClientId, call: &Call, key: &[u8]) -> Executed {
        let hash = KeyHash::of(&self.hash_key, key);
        let Some(slot) = self.index.find(&hash) else {
            return Executed::Answered(CallStatus::NotFound, Body::new());
        };
        // The chain was overwritten: it is not changed any more.
        if self.index.slot(slot).phase == Phase::Broken {
            return Executed::Answered(CallStatus::Contended, Body::new());
        }
        if !self.tasks.has_room() || !self.index.reserve(slot) {
            return Executed::NotYet;
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.later += 1;
        }
        let deleter = Deleter {
            client: id,
            token: call.token,
            looks: 0,
            closed: false,
        };
        self.collect(port, slot, Reason::Delete(deleter));
        Executed::Later
    }

    /// Replies to a call whose reply came later.
    pub(super) fn answer_later(
        &mut self,
        (client, token): (ClientId, u64),
        status: CallStatus,
        words: Body,
    ) {
        if let Some(peer) = self.peers.get_mut(client) {
            peer.later -= 1;
            self.answer(client, token, status, words);
        }
    }

    fn create<P: Port>(&mut self, port: &mut P, id: ClientId, call: &Call, key: &[u8]) -> Executed {
        let hash = KeyHash::of(&self.hash_key, key);
        if let Some(slot) = self.index.find(&hash) {
            let one = *self.index.slot(slot);
            return match one.phase {
                Phase::Live | Phase::Broken => {
                    let body = [slot.into(), one.place.word()];
                    Executed::Answered(CallStatus::Exists, body.into_iter().collect())
                }
                Phase::Creating | Phase::Forgetting | Phase::Free => Executed::NotYet,
            };
        }
        if !self.tasks.has_room() {
            return Executed::NotYet;
        }
        let place = Place::of(call.entry).unwrap_or_default();
        // A new key begins with a value.
        if place.tombstone || !self.entries.create(place, id.index()) {
            self.counters.bad_claim += 1;
            return Executed::Answered(CallStatus::Malformed, Body::new());
        }
        let Some(slot) = self.index.create(hash, place) else {
            self.entries.uncreate(place, id.index());
            return Executed::Answered(CallStatus::Full, Body::new());
        };
        let create = Create {
            slot,
            client: id,
            token: call.token,
            left: self.tasks.nodes.count() - 1,
        };
        let word = (self.entries.geometry().shortcut(slot), place.word());
        self.tasks
            .begin(Task::Create(create), |nodes, index| match create.left {
                0 => nodes.write_word_of(port, (index, 0), word),
                others => {
                    (1..=others).for_each(|node| nodes.write_word_of(port, (index, node), word))
                }
            });
        if let Some(peer) = self.peers.get_mut(id) {
            peer.later += 1;
        }
        Executed::Later
    }

    /// The shortcut of a new key is on one more node. The first node, from which clients READ, has it
    /// last: who sees the key sees what all nodes have.
    pub(super) fn creating<P: Port>(&mut self, port: &mut P, landed: Landed, mut create: Create) {
        if create.left == 0 {
            self.tasks.end(landed);
            return self.created(create);
        }
        create.left -= 1;
        if create.left == 0 {
            let word = self.index.slot(create.slot).place.word();
            let at = self.entries.geometry().shortcut(create.slot);
            let nodes = &mut self.tasks.nodes;
            nodes.write_word_of(port, (landed.operation, 0), (at, word));
        }
        self.tasks.keep(landed, Task::Create(create));
    }

    /// The shortcut of a new key is on all nodes.
    fn created(&mut self, create: Create) {
        let Create {
            slot,
            client,
            token,
            ..
        } = create;
        let one = self.index.slot(slot);
        (one.phase, one.busy) = (Phase::Live, false);
        let place = one.place;
        self.entries.link(place);
        self.counters.creates += 1;
        let body = [slot.into(), place.word()];
        self.answer_later(
            (client, token),
            CallStatus::Done,
            body.into_iter().collect(),
        );
    }
}
