//! PUTs and DELETEs of a client: an entry of its free list is written on all data nodes, then linked behind
//! the last one of the key's chain. No CPU of a data node takes part, and the metadata server's only
//! where a key is new or unknown, and when the free list runs out.

use std::{collections::VecDeque, time::Duration};

use arrayvec::ArrayVec;
use herdwick_fabric::Port;

use crate::{
    ClientCounters, Failure,
    answer::Answer,
    append::{Act, Append, End},
    calls::Caller,
    cursors::{Cursor, Cursors},
    epochs::{Epochs, Stay},
    free_list::FreeList,
    layout::{CLASSES, HEAD_BYTES, KEY_BYTES_MAX, KeyHash, Next, Place, class_of_len, lay_out},
    message::{CallOp, CallStatus, NUMBERS_MAX, Reply},
    nodes::{Landed, Nodes},
};

/// Times that a PUT or DELETE looks for its chain again before it is given up.
const ROUNDS_MAX: u32 = 64;

/// What becomes of a request that needs a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Find(usize),
    Create(usize),
    /// A DELETE for which there is no entry.
    Delete(usize),
}

/// A request that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) user: u64,
    pub(crate) answer: Answer<'static>,
}

#[derive(Clone, Copy, Debug)]
enum MutationStage {
    /// Waits for an entry.
    Entry(Duration),
    /// Waits for a call.
    Asking,
    /// So many WRITEs are on the way.
    Writing(usize),
    Linking(Append),
}

#[derive(Clone, Copy, Debug)]
struct Mutation {
    user: u64,
    hash: KeyHash,
    key_len: usize,
    value_len: usize,
    delete: bool,
    class: usize,
    entry: Place,
    written: bool,
    cursor: Option<Cursor>,
    rounds: u32,
    stay: Option<Stay>,
    stage: MutationStage,
}

/// What the requests share with the rest of the client.
pub(crate) struct Shared<'a> {
    pub(crate) cursors: &'a mut Cursors,
    pub(crate) epochs: &'a mut Epochs,
    pub(crate) counters: &'a mut ClientCounters,
    pub(crate) now: Duration,
}

/// The PUTs and DELETEs in flight.
#[derive(Debug)]
pub(crate) struct Mutations {
    all: Vec<Option<Mutation>>,
    free: Vec<usize>,
    bodies: Vec<u8>,
    body_max: usize,
    scratch: Vec<u8>,
    pub(crate) nodes: Nodes,
    pub(crate) free_list: FreeList,
    /// Entries that there are of each class.
    entries: [u32; CLASSES],
    /// Requests that wait for an entry, in order.
    waiting: VecDeque<usize>,
    pub(crate) needs: VecDeque<Needs>,
    pub(crate) ended: Vec<Ended>,
    /// Slots of keys that have superseded entries.
    pub(crate) superseded: ArrayVec<u32, NUMBERS_MAX>,
    /// When a verb completed last, or none was on the way.
    heard: Duration,
}

impl Mutations {
    /// `entries`: of each class, those that data nodes have.
    pub(crate) fn new(
        (window, idle): (usize, Duration),
        body_max: usize,
        entries: [u32; CLASSES],
        nodes: Nodes,
    ) -> Self {
        Self {
            all: vec![None; window],
            free: (0..window).rev().collect(),
            bodies: vec![0; window * body_max],
            body_max,
            scratch: vec![0; HEAD_BYTES + body_max],
            nodes,
            free_list: FreeList::new(window, idle),
            entries,
            waiting: VecDeque::with_capacity(window),
            needs: VecDeque::with_capacity(window),
            ended: Vec::with_capacity(window),
            superseded: ArrayVec::new(),
            heard: Duration::ZERO,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        // Those that have ended count until `poll` hands their answers out.
        self.all.len() - self.free.len() + self.ended.len()
    }

    /// Begins a PUT of a value, or a DELETE; `false`: as many are in flight as there may be.
    pub(crate) fn begin(
        &mut self,
        (hash, user): (KeyHash, u64),
        key: &[u8],
        value: Option<&[u8]>,
        now: Duration,
    ) -> bool {
        let Some(index) = self.free.pop() else {
            return false;
        };
        let (delete, value) = (value.is_none(), value.unwrap_or_default());
        let body = &mut self.bodies[index * self.body_max..][..key.len() + value.len()];
        let (front, behind) = body.split_at_mut(key.len());
        herdwick_mem::copy(front, key);
        herdwick_mem::copy(behind, value);
        let least = class_of_len(HEAD_BYTES + key.len() + value.len());
        // Of larger entries, if there are none of that size.
        let class = least.and_then(|least| (least..CLASSES).find(|one| self.entries[*one] > 0));
        self.all[index] = Some(Mutation {
            user,
            hash,
            key_len: key.len(),
            value_len: value.len(),
            delete,
            // Without such entries none will be found in the last class either, and the request ends
            // as full.
            class: class.unwrap_or(CLASSES - 1),
            entry: Place::default(),
            written: false,
            cursor: None,
            rounds: 0,
            stay: None,
            stage: MutationStage::Entry(now),
        });
        self.waiting.push_back(index);
        true
    }

    /// Returns the key of a request, and its entry.
    pub(crate) fn key(&self, index: usize) -> (&[u8], Place) {
        let of = |mutation: &Mutation| (mutation.key_len, mutation.entry);
        let (len, entry) = self.all[index]
            .as_ref()
            .map_or_else(|| (0, Place::default()), of);
        (&self.bodies[index * self.body_max..][..len], entry)
    }

    /// Returns a class that should be asked for.
    pub(crate) fn wanting(&self, now: Duration) -> Option<usize> {
        let waits = |class: usize| {
            let mut waiting = self
                .waiting
                .iter()
                .filter_map(|index| self.all[*index].as_ref());
            waiting.any(|mutation| mutation.class == class)
        };
        self.free_list.wanting(now, waits)
    }

    /// Hands entries to requests that wait for them; ends those that have waited for `entry_wait`.
    pub(crate) fn equip<P: Port>(
        &mut self,
        port: &mut P,
        entry_wait: Duration,
        shared: &mut Shared<'_>,
    ) {
        // Each one that waits once: those that go on waiting return to the end, in their order.
        for _ in 0..self.waiting.len() {
            let Some(index) = self.waiting.pop_front() else {
                return;
            };
            let Some(mutation) = &mut self.all[index] else {
                continue;
            };
            if let Some(place) = self.free_list.take(mutation.class, shared.now) {
                mutation.entry = Place {
                    tombstone: mutation.delete,
                    ..place
                };
                // Only now: who waits for an entry must not keep the server from freeing one.
                mutation.stay = Some(shared.epochs.begin());
                mutation.cursor = shared.cursors.get(&mutation.hash);
                shared.counters.cursor_hits += u64::from(mutation.cursor.is_some());
                self.find(port, index);
                continue;
            }
            let late = matches!(mutation.stage, MutationStage::Entry(since)
                if shared.now.saturating_sub(since) > entry_wait);
            // A DELETE frees memory, so it must not wait for memory that only DELETEs free.
            if mutation.delete && (late || self.free_list.is_dry(mutation.class)) {
                mutation.stage = MutationStage::Asking;
                self.needs.push_back(Needs::Delete(index));
            } else if late {
                self.end(index, Answer::Full, shared);
            } else {
                self.waiting.push_back(index);
            }
        }
    }

    /// Goes on with a cursor, or asks for one.
    fn find<P: Port>(&mut self, port: &mut P, index: usize) {
        let Some(mutation) = &mut self.all[index] else {
            return;
        };
        match mutation.cursor {
            Some(_) => self.write(port, index),
            None => {
                mutation.stage = MutationStage::Asking;
                self.needs.push_back(Needs::Find(index));
            }
        }
    }

    /// WRITEs the entry, unless that has been done; then links it, or creates the key.
    fn write<P: Port>(&mut self, port: &mut P, index: usize) {
        let Some(mutation) = &mut self.all[index] else {
            return;
        };
        // What was written does not depend on the chain's end, so another round writes nothing.
        if mutation.written {
            return self.link(port, index);
        }
        let body = &self.bodies[index * self.body_max..][..mutation.key_len + mutation.value_len];
        let (key, value) = body.split_at(mutation.key_len);
        let bytes = &mut self.scratch[..HEAD_BYTES + body.len()];
        lay_out(mutation.entry, key, value, bytes);
        mutation.stage = MutationStage::Writing(self.nodes.count());
        let at = mutation.entry.offset();
        self.nodes.write(port, index, (at, bytes));
    }

    fn link<P: Port>(&mut self, port: &mut P, index: usize) {
        let Some(mutation) = &mut self.all[index] else {
            return;
        };
        let Some(cursor) = mutation.cursor else {
            mutation.stage = MutationStage::Asking;
            return self.needs.push_back(Needs::Create(index));
        };
        let next = Next::Entry(mutation.entry);
        // Only when the WRITEs to all nodes have completed: each node has a queue pair of its own,
        // so nothing else orders them.
        let (append, act) = Append::begin(self.nodes.count(), cursor.place, next);
        mutation.stage = MutationStage::Linking(append);
        self.nodes.act(port, index, act);
    }

    /// Takes the verbs that have completed.
    pub(crate) fn poll<P: Port>(&mut self, port: &mut P, shared: &mut Shared<'_>) {
        let mut landed = ArrayVec::<(Landed, u64), POLLED>::new();
        loop {
            self.nodes.poll_some(port, &mut landed);
            for (landed, word) in &landed {
                self.heard = shared.now;
                self.landed(port, *landed, *word, shared);
            }
            if landed.len() < POLLED {
                break;
            }
            landed.clear();
        }
    }

    fn landed<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        word: u64,
        shared: &mut Shared<'_>,
    ) {
        let index = landed.operation;
        // A request that failed has gone, with verbs still on the way.
        let Some(mutation) = self.all.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        match &mut mutation.stage {
            MutationStage::Writing(left) => {
                *left -= 1;
                if *left == 0 {
                    mutation.written = true;
                    self.link(port, index);
                }
            }
            MutationStage::Linking(append) => match append.found(word) {
                Act::End(end) => self.linked(port, index, end, shared),
                act => self.nodes.act(port, index, act),
            },
            MutationStage::Entry(_) | MutationStage::Asking => {}
        }
    }

    fn linked<P: Port>(&mut self, port: &mut P, index: usize, end: End, shared: &mut Shared<'_>) {
        let Some(mutation) = &mut self.all[index] else {
            return;
        };
        let Some(cursor) = mutation.cursor else {
            return;
        };
        match end {
            End::Linked(tail) => {
                if tail != cursor.place {
                    shared.counters.overtaken += 1;
                }
                let (missing, slot) = (mutation.delete && tail.tombstone, cursor.slot);
                let place = mutation.entry;
                shared.cursors.put(&mutation.hash, Cursor { slot, place });
                self.hint(slot, shared);
                let answer = if missing {
                    Answer::Missing
                } else {
                    Answer::Done
                };
                self.end(index, answer, shared);
            }
            End::Overtaken(place) => {
                mutation.cursor = Some(Cursor { place, ..cursor });
                self.again(port, index, shared);
            }
            End::Divided => {
                shared.cursors.forget(&mutation.hash);
                self.end(index, Answer::Failed(Failure::Divided), shared);
            }
            End::Closed | End::Stale => {
                shared.counters.recycled += 1;
                // The cursor leads nowhere. The entry is written already: it is linked behind the
                // chain that the server names, or begins one.
                shared.cursors.forget(&mutation.hash);
                mutation.cursor = None;
                self.again(port, index, shared);
            }
        }
    }

    fn hint(&mut self, slot: u32, shared: &mut Shared<'_>) {
        // A hint is dropped if there is no room: the server looks at each key in its turn anyway.
        if !self.superseded.contains(&slot) && self.superseded.try_push(slot).is_err() {
            shared.counters.hints_dropped += 1;
        }
    }

    /// Begins another round, unless there were too many.
    fn again<P: Port>(&mut self, port: &mut P, index: usize, shared: &mut Shared<'_>) {
        let Some(mutation) = &mut self.all[index] else {
            return;
        };
        mutation.rounds += 1;
        if mutation.rounds > ROUNDS_MAX {
            return self.end(index, Answer::Contended, shared);
        }
        self.find(port, index);
    }

    /// Takes the reply to a call of [`Needs`].
    pub(crate) fn replied<P: Port>(
        &mut self,
        port: &mut P,
        index: usize,
        (reply, op): (&Reply, CallOp),
        shared: &mut Shared<'_>,
    ) {
        let Some(mutation) = &mut self.all[index] else {
            return;
        };
        let known = cursor_of(reply);
        match (reply.status, known) {
            (CallStatus::Done, _) if op == CallOp::Delete => {
                shared.cursors.forget(&mutation.hash);
                self.end(index, Answer::Done, shared);
            }
            (CallStatus::Contended, _) => self.end(index, Answer::Contended, shared),
            (CallStatus::Done, Some(cursor)) if op == CallOp::Create => {
                shared.cursors.put(&mutation.hash, cursor);
                self.end(index, Answer::Done, shared);
            }
            // Exists: another client has created the key meanwhile. The entry is linked behind its
            // own.
            (CallStatus::Done | CallStatus::Exists, Some(cursor)) => {
                mutation.cursor = Some(cursor);
                self.write(port, index);
            }
            (CallStatus::NotFound, _) if mutation.delete => {
                self.end(index, Answer::Missing, shared);
            }
            // Without a cursor the entry is written first, and then the key created (`link`).
            (CallStatus::NotFound, _) => self.write(port, index),
            (CallStatus::Full, _) => self.end(index, Answer::Full, shared),
            _ => self.end(index, Answer::Refused, shared),
        }
    }

    /// Ends a request. An entry that no other party can reach returns to the free list.
    fn end(&mut self, index: usize, answer: Answer<'static>, shared: &mut Shared<'_>) {
        let Some(mutation) = self.all[index].take() else {
            return;
        };
        // A CAS that was posted may have taken effect, whatever the answer, unless every round is
        // known to be lost.
        let linked = matches!(mutation.stage, MutationStage::Linking(_))
            && answer != Answer::Contended
            || answer == Answer::Done;
        if mutation.entry.target > 0 && !linked {
            let place = Place {
                tombstone: false,
                ..mutation.entry
            };
            self.free_list.put_back(mutation.class, place);
        }
        if let Some(stay) = mutation.stay {
            shared.epochs.end(stay);
        }
        self.free.push(index);
        let user = mutation.user;
        self.ended.push(Ended { user, answer });
    }

    /// Ends all requests, after a failure.
    pub(crate) fn fail(&mut self, answer: Answer<'static>, shared: &mut Shared<'_>) {
        self.needs.clear();
        self.waiting.clear();
        for index in 0..self.all.len() {
            self.end(index, answer, shared);
        }
    }

    /// Returns whether no verb has completed for longer than `timeout` though some are on the way.
    pub(crate) fn is_silent(&mut self, timeout: Duration, now: Duration) -> bool {
        let mut stages = self.all.iter().flatten().map(|mutation| mutation.stage);
        if !stages
            .any(|stage| matches!(stage, MutationStage::Writing(_) | MutationStage::Linking(_)))
        {
            self.heard = now;
        }
        now.saturating_sub(self.heard) > timeout
    }
}

/// Completions taken at a time.
const POLLED: usize = 32;

/// Returns the position of a chain that a reply names.
pub(crate) fn cursor_of(reply: &Reply) -> Option<Cursor> {
    match reply.words[..] {
        [slot, word] => Some(Cursor {
            slot: u32::try_from(slot).ok()?,
            place: Place::of(word)?,
        }),
        _ => None,
    }
}

/// Returns the bytes that a request needs for a key and a value of up to `value_max`.
pub(crate) fn body_max(value_max: usize) -> usize {
    KEY_BYTES_MAX + value_max
}

impl Needs {
    pub(crate) fn caller(self) -> Caller {
        match self {
            Self::Find(index) | Self::Create(index) | Self::Delete(index) => {
                Caller::Mutation(index)
            }
        }
    }
}
