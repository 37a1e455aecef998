//! What the metadata server does in the memory of the data nodes: tasks, each on one key, each a chain
//! of verbs.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use herdwick_fabric::Port;
use herdwick_mem::WORD;

use crate::{
    append::{Act, Append},
    layout::{BadNodes, HEAD_BYTES, HEADER_BYTES, KEY_BYTES_MAX, Place},
    nodes::{Landed, Nodes},
};
use herdwick_read::ClientId;

/// Tasks at a time.
pub(crate) const TASKS: usize = 64;
/// Bytes of a task's buffer: the words of shortcuts that one READ takes, or the front of an entry.
pub(crate) const STRIDE: usize = 512;

/// One task.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// The shortcut of a new key is being written.
    Create(Create),
    /// Superseded entries are taken out of a chain.
    Collect(Collect),
    /// The key of an entry that a client held when it was removed is being READ.
    Orphan { number: u32 },
    /// A chain is being found again.
    Recover(Recover),
    /// Headers are being READ, or changed, on so many nodes.
    Headers { step: HeaderStep, left: usize },
    /// Shortcuts are being READ, or are being written on so many nodes.
    Scan { left: usize },
}

/// A key that is being created.
#[derive(Clone, Copy, Debug)]
pub(super) struct Create {
    pub(super) slot: u32,
    pub(super) client: ClientId,
    pub(super) token: u64,
    /// Nodes but the first that do not have the shortcut yet.
    pub(super) left: usize,
}

/// All tasks, and the verbs that they have on the way.
#[derive(Debug)]
pub(super) struct Tasks {
    all: Vec<Option<Task>>,
    free: ArrayVec<usize, TASKS>,
    pub(super) nodes: Nodes,
}

impl Tasks {
    pub(super) fn new(nodes: Nodes) -> Self {
        Self {
            all: (0..TASKS).map(|_| None).collect(),
            free: (0..TASKS).rev().collect(),
            nodes,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.is_full()
    }

    /// Begins a task with the first verbs that `post` posts. There is room.
    pub(super) fn begin(&mut self, task: Task, post: impl FnOnce(&mut Nodes, usize)) {
        if let Some(index) = self.free.pop() {
            self.all[index] = Some(task);
            post(&mut self.nodes, index);
        }
    }

    /// Takes the task that a completion belongs to; it is given back, or over.
    pub(super) fn take(&mut self, landed: Landed) -> Option<Task> {
        self.all.get_mut(landed.operation)?.take()
    }

    /// The task goes on.
    pub(super) fn keep(&mut self, landed: Landed, task: Task) {
        self.all[landed.operation] = Some(task);
    }

    /// The task is over.
    pub(super) fn end(&mut self, landed: Landed) {
        self.free.push(landed.operation);
    }

    /// Posts the verbs of an append.
    pub(super) fn act<P: Port>(&mut self, port: &mut P, landed: Landed, act: Act) {
        self.nodes.act(port, landed.operation, act);
    }
}

/// Links that a DELETE looks at before it is given up.
pub(super) const LOOKS_MAX: u32 = 1 << 10;
/// Entries that are passed before the shortcut moves.
pub(super) const PASSED_MAX: usize = 16;

/// A chain that is being worked on.
#[derive(Clone, Debug)]
pub(super) struct Collect {
    pub(super) slot: u32,
    /// The entry that is looked at, and those passed since the shortcut moved.
    pub(super) at: Place,
    pub(super) passed: ArrayVec<Place, PASSED_MAX>,
    pub(super) reason: Reason,
    pub(super) stage: CollectStage,
}

/// Why a chain is worked on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reason {
    /// It may have superseded entries.
    Superseded,
    /// The holder of this entry is gone: the entry is retired at the end unless it was in the chain.
    Orphan(u32),
    /// The key is to be deleted.
    Delete(Deleter),
}

/// Who waits for a chain to be closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deleter {
    pub(super) client: ClientId,
    pub(super) token: u64,
    /// Links that were looked at; there are always more while others append.
    pub(super) looks: u32,
    /// The chain is closed, by this task.
    pub(super) closed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CollectStage {
    /// The link is being READ.
    Looking,
    /// The link is being finished.
    Settling(Append),
    /// The shortcut is being moved on so many nodes.
    Moving(usize),
    /// The chain is being closed.
    Closing(Append),
    /// The shortcut is being cleared on so many nodes.
    Clearing(usize),
}

/// Shortcuts that one READ takes.
pub(super) const CHUNK: usize = STRIDE / WORD;
/// Bytes of the front of an entry, with its whole key.
pub(super) const FRONT: usize = (HEAD_BYTES + KEY_BYTES_MAX).next_multiple_of(WORD);

const _: () = assert!(FRONT <= STRIDE && HEADER_BYTES <= STRIDE);

/// How far the start is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// The headers are to be READ, or are being READ or changed.
    Headers(bool),
    /// Shortcuts from here on are to be READ, or are being READ.
    Scan {
        slot: u32,
        reading: bool,
    },
    /// Chains of a chunk of shortcuts are walked, of which those from `next` on have not begun.
    Walk {
        slot: u32,
        next: usize,
    },
    Done,
    /// The nodes do not belong together, or are no data nodes.
    Refused(BadNodes),
}

/// What is done to the headers, on all nodes at once.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeaderStep {
    Read,
    /// The number of the store is written.
    Number,
    /// Generation, index and members are written.
    Member,
}

/// A chain that is being found again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recover {
    pub(super) slot: u32,
    /// The entry that the shortcut names, and the one that is looked at.
    pub(super) first: Place,
    pub(super) at: Place,
    pub(super) stage: RecoverStage,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RecoverStage {
    /// The first entry is being READ.
    Entry,
    /// A link is being READ.
    Looking,
    /// A link is being finished.
    Settling(Append),
    /// The shortcut is being cleared on so many nodes.
    Clearing(usize),
}

/// The search, one entry at a time.
#[derive(Debug)]
pub(super) struct Reaper {
    pub(super) clients: VecDeque<u16>,
    /// The entry that is looked at next, or now.
    pub(super) next: u32,
    pub(super) busy: bool,
}

impl Reaper {
    pub(super) fn new(clients: usize) -> Self {
        Self {
            clients: VecDeque::with_capacity(clients),
            next: 0,
            busy: false,
        }
    }

    pub(super) fn begin(&mut self, client: u16) {
        self.clients.push_back(client);
    }

    /// Returns whether entries of a client of this index may be held still.
    pub(super) fn is_reaping(&self, client: u16) -> bool {
        self.clients.contains(&client)
    }

    /// Returns whether there is nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        self.clients.is_empty()
    }

    /// The entry stays as it is.
    pub(super) fn skip(&mut self) {
        self.busy = false;
        self.next += 1;
    }
}
