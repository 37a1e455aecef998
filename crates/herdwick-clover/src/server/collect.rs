//! Removes superseded entries from a chain: its shortcut moves to the last entry, on all data nodes;
//! then the entries before that are retired. A chain that ends with a tombstone is closed, and its key
//! forgotten. Uncommitted links found on the walk are completed.

use arrayvec::ArrayVec;
use herdwick_fabric::Port;
use herdwick_mem::WORD;

use super::{
    Server,
    index::Phase,
    tasks::{Collect, CollectStage, Deleter, LOOKS_MAX, Reason, Task},
};
use crate::{
    append::{Act, Append, End},
    layout::{Link, Next, Place},
    message::CallStatus,
    nodes::Landed,
};

impl Server {
    /// Begins with a slot that the caller has reserved. There is room for a task.
    pub(super) fn collect<P: Port>(&mut self, port: &mut P, slot: u32, reason: Reason) {
        let at = self.index.slot(slot).place;
        let collect = Collect {
            slot,
            at,
            passed: ArrayVec::new(),
            reason,
            stage: CollectStage::Looking,
        };
        self.tasks.begin(Task::Collect(collect), |nodes, index| {
            nodes.read(port, index, at.offset(), WORD);
        });
    }

    pub(super) fn collected<P: Port>(
        &mut self,
        port: &mut P,
        (landed, word): (Landed, u64),
        mut collect: Collect,
    ) {
        let goes_on = match collect.stage {
            CollectStage::Looking => self.looked(port, landed, word, &mut collect),
            CollectStage::Settling(mut append) => {
                let act = append.found(word);
                collect.stage = CollectStage::Settling(append);
                self.settled(port, landed, act, &mut collect)
            }
            CollectStage::Closing(mut append) => {
                let act = append.found(word);
                collect.stage = CollectStage::Closing(append);
                self.closing(port, landed, act, &mut collect)
            }
            CollectStage::Moving(left) if left > 1 => {
                collect.stage = CollectStage::Moving(left - 1);
                true
            }
            CollectStage::Moving(_) => {
                self.moved(&mut collect);
                self.look(port, landed, &mut collect)
            }
            CollectStage::Clearing(left) if left > 1 => {
                collect.stage = CollectStage::Clearing(left - 1);
                true
            }
            CollectStage::Clearing(_) => {
                self.cleared(&mut collect);
                false
            }
        };
        if goes_on {
            return self.tasks.keep(landed, Task::Collect(collect));
        }
        self.tasks.end(landed);
        match collect.reason {
            Reason::Superseded => {}
            Reason::Orphan(number) => self.reaped(number),
            Reason::Delete(deleter) => {
                // A tombstone was there before.
                let status = match deleter.closed {
                    true => CallStatus::Done,
                    false => CallStatus::NotFound,
                };
                self.deleted(deleter, status);
            }
        }
    }

    fn deleted(&mut self, deleter: Deleter, status: CallStatus) {
        self.counters.deletes += u64::from(status == CallStatus::Done);
        self.answer_later((deleter.client, deleter.token), status, ArrayVec::new());
    }

    fn look<P: Port>(&mut self, port: &mut P, landed: Landed, collect: &mut Collect) -> bool {
        collect.stage = CollectStage::Looking;
        let at = collect.at.offset();
        self.tasks.nodes.read(port, landed.operation, at, WORD);
        true
    }

    fn looked<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        word: u64,
        collect: &mut Collect,
    ) -> bool {
        let link = Link::of(word);
        if let Reason::Delete(deleter) = &mut collect.reason {
            deleter.looks += 1;
            if deleter.looks > LOOKS_MAX && !deleter.closed {
                let deleter = *deleter;
                // The task goes on without the client, which has its answer.
                collect.reason = Reason::Superseded;
                self.deleted(deleter, CallStatus::Contended);
            }
        }
        if link.own != collect.at.version {
            return self.corrupted(collect);
        }
        if !link.committed {
            self.counters.settled += 1;
            let begun = Append::settle(self.tasks.nodes.count(), collect.at, link);
            let Some((append, act)) = begun else {
                return self.corrupted(collect);
            };
            collect.stage = CollectStage::Settling(append);
            return self.settled(port, landed, act, collect);
        }
        match link.next {
            Some(Next::Entry(next)) => self.passed(port, landed, next, collect),
            Some(Next::Closed) => self.clear(port, landed, collect),
            // The last entry: first the shortcut moves there, then the entry is looked at once
            // more.
            None if !collect.passed.is_empty() => self.advance(port, landed, collect),
            // A DELETE without an entry for a tombstone closes a chain that ends with a value.
            None if collect.at.tombstone || matches!(collect.reason, Reason::Delete(_)) => {
                let nodes = self.tasks.nodes.count();
                let (append, act) = Append::begin(nodes, collect.at, Next::Closed);
                collect.stage = CollectStage::Closing(append);
                // Before the CAS: calls for the key wait from here on for what becomes of it.
                self.index.slot(collect.slot).phase = Phase::Forgetting;
                self.tasks.act(port, landed, act);
                true
            }
            None => {
                self.index.slot(collect.slot).busy = false;
                false
            }
        }
    }

    /// An entry has a successor.
    fn passed<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        next: Place,
        collect: &mut Collect,
    ) -> bool {
        // What is found in a chain is held by no client any more. An entry that cannot be there was
        // written by a client that should not.
        if !self.entries.link(next) {
            return self.corrupted(collect);
        }
        collect.passed.push(collect.at);
        collect.at = next;
        if collect.passed.is_full() {
            return self.advance(port, landed, collect);
        }
        self.look(port, landed, collect)
    }

    /// Has the shortcut name the entry that was reached.
    fn advance<P: Port>(&mut self, port: &mut P, landed: Landed, collect: &mut Collect) -> bool {
        collect.stage = CollectStage::Moving(self.tasks.nodes.count());
        let at = self.entries.geometry().shortcut(collect.slot);
        let word = collect.at.word();
        self.tasks
            .nodes
            .write_word(port, landed.operation, (at, word));
        true
    }

    /// The shortcut names the entry that was reached: no client finds those before it any more.
    fn moved(&mut self, collect: &mut Collect) {
        // In this order: the shortcut on all nodes, the index, then the entries before it.
        self.index.slot(collect.slot).place = collect.at;
        for place in collect.passed.drain(..) {
            self.counters.superseded += u64::from(self.entries.retire(place));
        }
    }

    fn settled<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        act: Act,
        collect: &mut Collect,
    ) -> bool {
        match act {
            // Looked at anew, whatever the link is now: another party may have finished it.
            Act::End(End::Linked(_) | End::Closed) => self.look(port, landed, collect),
            Act::End(End::Stale | End::Divided | End::Overtaken(_)) => self.corrupted(collect),
            act => {
                self.tasks.act(port, landed, act);
                true
            }
        }
    }

    fn closing<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        act: Act,
        collect: &mut Collect,
    ) -> bool {
        match act {
            // Closed, or a client has appended another entry, behind which the append would continue:
            // the chain stays open then.
            Act::End(End::Linked(_) | End::Closed) => {
                if let Reason::Delete(deleter) = &mut collect.reason {
                    // A chain that ended with a tombstone had nothing to delete.
                    deleter.closed = !collect.at.tombstone;
                }
                self.look(port, landed, collect)
            }
            Act::Cas { tail, .. } if tail != collect.at => {
                self.index.slot(collect.slot).phase = Phase::Live;
                self.look(port, landed, collect)
            }
            Act::End(End::Stale | End::Divided | End::Overtaken(_)) => self.corrupted(collect),
            act => {
                self.tasks.act(port, landed, act);
                true
            }
        }
    }

    fn clear<P: Port>(&mut self, port: &mut P, landed: Landed, collect: &mut Collect) -> bool {
        self.index.slot(collect.slot).phase = Phase::Forgetting;
        collect.stage = CollectStage::Clearing(self.tasks.nodes.count());
        let at = self.entries.geometry().shortcut(collect.slot);
        self.tasks.nodes.write_word(port, landed.operation, (at, 0));
        true
    }

    /// The chain has ended, and no shortcut names it.
    fn cleared(&mut self, collect: &mut Collect) {
        // The last entry goes, too.
        collect.passed.push(collect.at);
        for place in collect.passed.drain(..) {
            self.counters.superseded += u64::from(self.entries.retire(place));
        }
        self.index.slot(collect.slot).busy = false;
        self.index.forget(collect.slot);
        self.counters.forgotten += 1;
    }

    /// The chain was overwritten: it is left as it is, and no entry of it is used again.
    #[cold]
    fn corrupted(&mut self, collect: &mut Collect) -> bool {
        self.counters.corrupt += 1;
        match std::mem::replace(&mut collect.reason, Reason::Superseded) {
            Reason::Superseded => {}
            // It may be in the chain. No client holds it any more, and it is not used again.
            Reason::Orphan(number) => self.abandoned(number),
            Reason::Delete(deleter) => {
                let status = match deleter.closed {
                    true => CallStatus::Done,
                    false => CallStatus::Contended,
                };
                self.deleted(deleter, status);
            }
        }
        let slot = self.index.slot(collect.slot);
        (slot.phase, slot.busy) = (Phase::Broken, false);
        false
    }
}
