//! The start, after the headers: the server READs all shortcuts, walks each chain, and so learns its keys and which entries
//! are in use. All others are free. The first data node decides: its shortcuts are copied to the others,
//! and a link that is not on all nodes yet is finished. No client is connected meanwhile.

use herdwick_fabric::Port;
use herdwick_mem::WORD;

use super::{
    Server,
    index::Phase,
    tasks::{CHUNK, FRONT, Recover, RecoverStage, STRIDE, Start, Task},
};
use crate::{
    append::{Act, Append, End},
    layout::{Entry, KeyHash, Link, Next, Place, UNIT},
    message::words_of,
    nodes::Landed,
};

impl Server {
    /// Goes on with the start.
    pub(super) fn start<P: Port>(&mut self, port: &mut P) {
        match self.start {
            Start::Headers(false) => self.read_headers(port),
            Start::Scan {
                slot,
                reading: false,
            } => self.scan(port, slot),
            Start::Walk { slot, next } => self.walk(port, slot, next),
            Start::Headers(true) | Start::Scan { .. } | Start::Done | Start::Refused(_) => {}
        }
    }

    fn scan<P: Port>(&mut self, port: &mut P, slot: u32) {
        let slots = self.entries.geometry().slots;
        // All chains were walked: what none of them has is free.
        if slot >= slots {
            self.entries.open();
            self.index.open();
            self.start = Start::Done;
            return;
        }
        self.start = Start::Scan {
            slot,
            reading: true,
        };
        let at = self.entries.geometry().shortcut(slot);
        let len = (slots - slot).min(CHUNK as u32) as usize * WORD;
        self.tasks.begin(Task::Scan { left: 0 }, |nodes, index| {
            nodes.read(port, index, at, len);
        });
    }

    /// Takes what [`Task::Scan`] has READ, or that shortcuts are on so many nodes but one.
    pub(super) fn scanned<P: Port>(&mut self, port: &mut P, landed: Landed, left: usize) {
        let mut bytes = [0; STRIDE];
        match (&self.start, left) {
            (Start::Scan { slot, .. }, 0) => {
                let slot = *slot;
                let left = (self.entries.geometry().slots - slot) as usize;
                let bytes = &mut bytes[..left.min(CHUNK) * WORD];
                // The first node's shortcuts are written to all nodes, itself included: then all
                // have the same.
                self.tasks.nodes.bytes(landed, bytes);
                let left = self.tasks.nodes.count();
                self.tasks.keep(landed, Task::Scan { left });
                let at = self.entries.geometry().shortcut(slot);
                let nodes = &mut self.tasks.nodes;
                nodes.write(port, landed.operation, (at, bytes));
            }
            (Start::Scan { slot, .. }, 1) => {
                let slot = *slot;
                self.tasks.nodes.bytes(landed, &mut bytes);
                self.tasks.end(landed);
                let left = (self.entries.geometry().slots - slot) as usize;
                let mut words = words_of::<CHUNK>(&bytes).unwrap_or([0; CHUNK]);
                // Behind the last shortcut the entries begin: those words are none.
                words[left.min(CHUNK)..].fill(0);
                self.chunk = words;
                self.start = Start::Walk { slot, next: 0 };
            }
            _ => {
                let left = left.saturating_sub(1);
                self.tasks.keep(landed, Task::Scan { left });
            }
        }
    }

    fn walk<P: Port>(&mut self, port: &mut P, slot: u32, mut next: usize) {
        while let Some(word) = self.chunk.get(next).copied() {
            if word != 0 && !self.tasks.has_room() {
                break;
            }
            if word != 0 {
                self.recover(port, slot + next as u32, word);
            }
            next += 1;
        }
        self.start = match next {
            // The chunk is one buffer: all its chains have ended before the next one is read.
            CHUNK if self.tasks.is_idle() => Start::Scan {
                slot: slot.saturating_add(CHUNK as u32),
                reading: false,
            },
            _ => Start::Walk { slot, next },
        };
    }

    fn recover<P: Port>(&mut self, port: &mut P, slot: u32, word: u64) {
        // A word that names no entry becomes place 0, which has no class.
        let place = Place::of(word).unwrap_or_default();
        let mut recover = Recover {
            slot,
            first: place,
            at: place,
            stage: RecoverStage::Entry,
        };
        let class = self.entries.geometry().class_at(place.target);
        if class.is_none() {
            self.counters.corrupt += 1;
            recover.stage = RecoverStage::Clearing(self.tasks.nodes.count());
        }
        let shortcut = self.entries.geometry().shortcut(slot);
        self.tasks
            .begin(Task::Recover(recover), |nodes, index| match class {
                // The front has the whole key; the value is not needed.
                Some(class) => nodes.read(port, index, place.offset(), FRONT.min(UNIT << class)),
                None => nodes.write_word(port, index, (shortcut, 0)),
            });
    }

    pub(super) fn recovered<P: Port>(
        &mut self,
        port: &mut P,
        (landed, word): (Landed, u64),
        mut recover: Recover,
    ) {
        let goes_on = match recover.stage {
            RecoverStage::Entry => self.found_entry(port, landed, &mut recover),
            RecoverStage::Looking => self.found_link(port, landed, Link::of(word), &mut recover),
            RecoverStage::Settling(mut append) => {
                let act = append.found(word);
                recover.stage = RecoverStage::Settling(append);
                self.recover_link(port, landed, act, &mut recover)
            }
            RecoverStage::Clearing(left) => {
                recover.stage = RecoverStage::Clearing(left - 1);
                left > 1
            }
        };
        match goes_on {
            true => self.tasks.keep(landed, Task::Recover(recover)),
            false => self.tasks.end(landed),
        }
    }

    fn found_entry<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        recover: &mut Recover,
    ) -> bool {
        let mut bytes = [0; FRONT];
        self.tasks.nodes.bytes(landed, &mut bytes);
        // Without the checksum, which covers the value: a client that reads the entry checks it.
        let entry = Entry::parsed(recover.first, &bytes);
        let hash = entry.map(|entry| KeyHash::of(&self.hash_key, entry.key));
        let is_new = hash.is_some_and(|hash| {
            self.entries.recover(recover.first)
                && (self.index).occupy(recover.slot, hash, recover.first, Phase::Live)
        });
        let (Some(entry), true) = (entry, is_new) else {
            self.counters.corrupt += 1;
            return self.clear_shortcut(port, landed, recover);
        };
        self.counters.recovered += 1;
        self.found_link(port, landed, entry.link, recover)
    }

    fn found_link<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        link: Link,
        recover: &mut Recover,
    ) -> bool {
        let nodes = self.tasks.nodes.count();
        // Each link is finished, committed ones too: a later node may lack it.
        let begun = Append::settle(nodes, recover.at, link);
        let Some((append, act)) = begun.filter(|_| link.own == recover.at.version) else {
            // The last entry.
            // What is superseded in the chain is collected after the start.
            self.index.hint(recover.slot.into());
            return false;
        };
        self.counters.settled += u64::from(!link.committed);
        recover.stage = RecoverStage::Settling(append);
        self.recover_link(port, landed, act, recover)
    }

    fn recover_link<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        act: Act,
        recover: &mut Recover,
    ) -> bool {
        let RecoverStage::Settling(append) = recover.stage else {
            return false;
        };
        match (act, append.next()) {
            (Act::End(End::Linked(_)), Next::Entry(next)) if self.entries.recover(next) => {
                recover.at = next;
                recover.stage = RecoverStage::Looking;
                let nodes = &mut self.tasks.nodes;
                nodes.read(port, landed.operation, next.offset(), WORD);
                true
            }
            (Act::End(End::Linked(_)), Next::Closed) => {
                // Closed by an earlier server, which did not come to forget the key.
                self.index.slot(recover.slot).phase = Phase::Forgetting;
                self.index.hint(recover.slot.into());
                false
            }
            (Act::End(_), _) => {
                self.counters.corrupt += 1;
                self.index.slot(recover.slot).phase = Phase::Broken;
                false
            }
            (act, _) => {
                self.tasks.act(port, landed, act);
                true
            }
        }
    }

    /// The shortcut names nothing that makes sense.
    fn clear_shortcut<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        recover: &mut Recover,
    ) -> bool {
        recover.stage = RecoverStage::Clearing(self.tasks.nodes.count());
        let at = self.entries.geometry().shortcut(recover.slot);
        let nodes = &mut self.tasks.nodes;
        nodes.write_word(port, landed.operation, (at, 0));
        true
    }
}
