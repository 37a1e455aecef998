//! The start: the server READs the headers of all data nodes, refuses nodes that do not belong together,
//! and writes into the headers which nodes it has. Nothing else is changed before that.

use herdwick_fabric::Port;
use herdwick_mem::WORD;

use super::{
    Server,
    tasks::{HeaderStep, STRIDE, Start, Task},
};
use crate::{
    layout::{
        BadGeometry, BadNodes, Geometry, HEADER_BYTES, KeyHash, MEMBER_WORD, Membership,
        STORE_WORD, agree,
    },
    message::words_of,
    nodes::{Landed, Nodes},
};

impl Server {
    pub(super) fn read_headers<P: Port>(&mut self, port: &mut P) {
        self.start = Start::Headers(true);
        let left = self.tasks.nodes.count();
        self.members = (0..left).map(|_| Membership::default()).collect();
        let step = HeaderStep::Read;
        let read = |nodes: &mut Nodes, index| {
            (0..left).for_each(|node| nodes.read_of(port, (index, node), 0, HEADER_BYTES));
        };
        self.tasks.begin(Task::Headers { step, left }, read);
    }

    /// A step is done on one node, and not yet on `left`.
    pub(super) fn header<P: Port>(
        &mut self,
        port: &mut P,
        landed: Landed,
        (step, left): (HeaderStep, usize),
    ) {
        if matches!(step, HeaderStep::Read)
            && let Err(bad) = self.read_header(landed)
        {
            self.start = Start::Refused(BadNodes::Header(landed.node, bad));
        }
        // All nodes are heard first, although the start is refused already: their READs land in
        // buffers that are still used.
        if left > 0 {
            return self.tasks.keep(landed, Task::Headers { step, left });
        }
        if let Start::Refused(_) = self.start {
            return self.tasks.end(landed);
        }
        match step {
            HeaderStep::Read => self.agree(port, landed),
            HeaderStep::Number => self.write_headers(port, landed, HeaderStep::Member),
            HeaderStep::Member => self.begin_scan(landed),
        }
    }

    fn read_header(&mut self, landed: Landed) -> Result<(), BadGeometry> {
        let mut bytes = [0; STRIDE];
        self.tasks.nodes.bytes(landed, &mut bytes);
        let words = words_of(&bytes).ok_or(BadGeometry::Absurd)?;
        if Geometry::of(&words)? != *self.entries.geometry() {
            return Err(BadGeometry::Absurd);
        }
        let words = words_of(&bytes[STORE_WORD * WORD..]).ok_or(BadGeometry::Absurd)?;
        self.members[landed.node] = Membership::of(words);
        Ok(())
    }

    fn agree<P: Port>(&mut self, port: &mut P, landed: Landed) {
        // Another hash under the same key reveals nothing about the key.
        // 0 stands for no store.
        let fresh = KeyHash::of(&self.hash_key, b"store").0[0].max(1);
        match agree(&self.members, fresh) {
            Ok(agreed) if agreed == self.members => self.begin_scan(landed),
            Ok(agreed) => {
                self.members = agreed;
                // The store's number first, on all nodes, then the members: so a blank node is
                // distinguished from one of this store (`agree`).
                self.write_headers(port, landed, HeaderStep::Number);
            }
            Err(bad) => {
                self.start = Start::Refused(bad);
                self.tasks.end(landed);
            }
        }
    }

    fn write_headers<P: Port>(&mut self, port: &mut P, landed: Landed, step: HeaderStep) {
        let left = self.members.len();
        self.tasks.keep(landed, Task::Headers { step, left });
        for (node, member) in self.members.iter().enumerate() {
            let [store, of_member] = member.words();
            let (at, word) = match step {
                HeaderStep::Member => (MEMBER_WORD, of_member),
                HeaderStep::Read | HeaderStep::Number => (STORE_WORD, store),
            };
            let nodes = &mut self.tasks.nodes;
            nodes.write_word_of(port, (landed.operation, node), ((at * WORD) as u64, word));
        }
    }

    fn begin_scan(&mut self, landed: Landed) {
        self.tasks.end(landed);
        self.start = Start::Scan {
            slot: 0,
            reading: false,
        };
    }
}
