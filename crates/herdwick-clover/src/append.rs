//! How an entry becomes the successor of a chain's last one, on all data nodes: one machine for the
//! PUTs and DELETEs of clients and for the metadata server, which closes the chains of deleted keys.
//!
//! With one data node a CAS of the last entry's link does it. With more, the link on the first node
//! decides, but does not count until all nodes have it:
//!
//! 1. CAS on the first node: no successor, to an *uncommitted* link. It locks the entry, and names the
//!    successor already.
//! 2. CAS on the other nodes, one after the other: no successor, to the link. So a node has every link
//!    that a later one has, and can take the place of the first.
//! 3. CAS on the first node: the uncommitted link, to a *committed* one.
//!
//! Readers ignore an uncommitted link: the entry is still the last one. An appender that finds one
//! completes steps 2 and 3 itself. They are idempotent, so a client that dies between steps delays no
//! other.

use crate::layout::{Link, Next, Place};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// CAS the link of the entry at `tail` on a node.
    Cas {
        tail: Place,
        node: usize,
        expected: u64,
        new: u64,
    },
    /// It is over.
    End(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Done, behind this entry.
    Linked(Place),
    /// The chain has ended.
    Closed,
    /// The entry's memory has another use.
    Stale,
    /// Others append faster; this entry was the last one a moment ago.
    Overtaken(Place),
    /// The first node names the successor, and another node has another link: whether it counts is not
    /// known.
    Divided,
}

#[derive(Clone, Copy, Debug)]
enum AppendStage {
    /// The CAS that decides is on the way.
    Deciding,
    /// This node is getting the link.
    Copying(Link, usize),
    /// The first node's link is being committed.
    Committing(Link),
}

/// One successor that is being linked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Append {
    nodes: usize,
    tail: Place,
    next: Next,
    hops: usize,
    /// The first node names the successor.
    decided: bool,
    stage: AppendStage,
}

/// Entries that others append meanwhile before it is given up.
pub(crate) const HOPS_MAX: usize = 256;

impl Append {
    /// Begins behind `tail`.
    pub(crate) fn begin(nodes: usize, tail: Place, next: Next) -> (Self, Act) {
        let mut append = Self {
            nodes,
            tail,
            next,
            hops: 0,
            decided: false,
            stage: AppendStage::Deciding,
        };
        let act = append.decide();
        (append, act)
    }

    /// Begins with a link that was found: it is copied and committed, as by who made it.
    pub(crate) fn settle(nodes: usize, tail: Place, link: Link) -> Option<(Self, Act)> {
        let mut append = Self {
            nodes,
            tail,
            next: link.next?,
            hops: 0,
            decided: false,
            stage: AppendStage::Deciding,
        };
        // From node 1 on: the link was found on the first node.
        let act = append.copy(link, 1);
        Some((append, act))
    }

    /// Returns the successor that is being linked.
    pub(crate) fn next(&self) -> Next {
        self.next
    }

    fn link(&self) -> Link {
        Link {
            own: self.tail.version,
            next: Some(self.next),
            committed: self.nodes == 1,
        }
    }

    fn decide(&mut self) -> Act {
        self.stage = AppendStage::Deciding;
        Act::Cas {
            tail: self.tail,
            node: 0,
            // Bits of the version are in the word, so the CAS fails where the entry has another
            // use.
            expected: self.tail.unlinked().word(),
            new: self.link().word(),
        }
    }

    /// Copies the link to this node and those behind it.
    fn copy(&mut self, link: Link, node: usize) -> Act {
        if node == self.nodes {
            return self.commit(link);
        }
        self.stage = AppendStage::Copying(link, node);
        Act::Cas {
            tail: self.tail,
            node,
            expected: self.tail.unlinked().word(),
            new: link.settled().word(),
        }
    }

    fn commit(&mut self, link: Link) -> Act {
        if link.committed {
            return self.committed(link);
        }
        self.stage = AppendStage::Committing(link);
        Act::Cas {
            tail: self.tail,
            node: 0,
            expected: link.word(),
            new: link.settled().word(),
        }
    }

    /// Takes the word that a CAS found. Returns what to do next.
    pub(crate) fn found(&mut self, word: u64) -> Act {
        let (found, free) = (Link::of(word), self.tail.unlinked().word());
        // The memory has another use: the CAS has changed nothing, since the version is in the
        // word.
        if found.own != self.tail.version {
            return self.stale();
        }
        match self.stage {
            AppendStage::Deciding if word == free => {
                self.decided = true;
                match self.nodes {
                    // A link on one node is committed at once (`link`).
                    1 => Act::End(End::Linked(self.tail)),
                    _ => self.copy(self.link(), 1),
                }
            }
            AppendStage::Deciding if found.committed => self.committed(found),
            // Uncommitted, of another appender, which may have died: it is finished here first.
            AppendStage::Deciding => self.copy(found, 1),
            // The other nodes' links are changed only to what the first node's link names.
            AppendStage::Copying(link, node) if word == free || found.next == link.next => {
                self.copy(link, node + 1)
            }
            // The CAS succeeded, or another appender has committed the same link: either way it counts
            // now.
            AppendStage::Committing(link) if found.next == link.next => {
                self.committed(link.settled())
            }
            AppendStage::Copying(..) | AppendStage::Committing(_) => self.stale(),
        }
    }

    /// The link makes no sense here.
    fn stale(&self) -> Act {
        Act::End(match self.decided {
            true => End::Divided,
            false => End::Stale,
        })
    }

    /// A link of this tail counts now: ours, or another one, behind which we go on.
    fn committed(&mut self, link: Link) -> Act {
        match link.next {
            next if next == Some(self.next) => Act::End(End::Linked(self.tail)),
            Some(Next::Entry(place)) => {
                self.tail = place;
                // Each hop is a PUT or DELETE of another client that has succeeded.
                self.hops += 1;
                if self.hops > HOPS_MAX {
                    return Act::End(End::Overtaken(place));
                }
                self.decide()
            }
            Some(Next::Closed) => Act::End(End::Closed),
            None => self.stale(),
        }
    }
}

#[cfg(test)]
mod tests {
    use herdwick_check::Rng;

    use super::*;

    fn place(target: u32) -> Place {
        Place {
            target,
            version: 1,
            tombstone: false,
        }
    }

    /// Runs all machines, one CAS after the other in the order that `choose` says; some stop for good
    /// after so many CASes. Returns how each ended, and the chain on each node.
    fn run(
        nodes: usize,
        stops: &[usize],
        mut choose: impl FnMut(usize) -> usize,
    ) -> Vec<Option<End>> {
        let mut memory = vec![std::collections::BTreeMap::new(); nodes];
        let mut machines: Vec<_> = (0..stops.len())
            .map(|n| {
                let (machine, act) =
                    Append::begin(nodes, place(1), Next::Entry(place(10 + n as u32)));
                (machine, vec![act], None, stops[n])
            })
            .collect();
        loop {
            let able = |(_, acts, end, left): &(Append, Vec<Act>, Option<End>, usize)| {
                !acts.is_empty() && end.is_none() && *left > 0
            };
            let ready: Vec<_> = (0..machines.len())
                .filter(|n| able(&machines[*n]))
                .collect();
            if ready.is_empty() {
                break;
            }
            let (machine, acts, end, left) = &mut machines[ready[choose(ready.len())]];
            *left -= 1;
            let Act::Cas {
                tail,
                node,
                expected,
                new,
            } = acts.remove(0)
            else {
                unreachable!("only CASes are kept");
            };
            let word = memory[node]
                .entry(tail.target)
                .or_insert_with(|| place(0).unlinked().word());
            let old = *word;
            if old == expected {
                *word = new;
            }
            match machine.found(old) {
                Act::End(ended) => *end = Some(ended),
                act => acts.push(act),
            }
        }
        // The nodes agree on all that counts.
        for (target, word) in &memory[0] {
            let link = Link::of(*word);
            if let Some(next) = link.successor() {
                for other in &memory[1..] {
                    assert_eq!(Link::of(other[target]).next, Some(next));
                }
            }
        }
        // Each can take the place of those before it.
        for pair in memory.windows(2) {
            for (target, word) in &pair[1] {
                let next = Link::of(*word).next;
                assert!(next.is_none() || Link::of(pair[0][target]).next == next);
            }
        }
        machines.into_iter().map(|(_, _, end, _)| end).collect()
    }

    #[test]
    fn whoever_stops_blocks_nobody() {
        for nodes in 1..=3 {
            for seed in 0..2000_u64 {
                let mut chance = Rng::new(seed);
                let mut draw = |below: usize| chance.index(below);
                let stops = [draw(4), draw(6), usize::MAX, usize::MAX];
                let ends = run(nodes, &stops, draw);
                for end in &ends[2..] {
                    assert!(
                        matches!(end, Some(End::Linked(_))),
                        "{nodes} nodes: {ends:?}"
                    );
                }
                let mut behind: Vec<_> = ends
                    .iter()
                    .flatten()
                    .map(|end| match end {
                        End::Linked(tail) => tail.target,
                        other => panic!("{other:?}"),
                    })
                    .collect();
                behind.sort_unstable();
                behind.dedup();
                assert_eq!(
                    behind.len(),
                    ends.iter().flatten().count(),
                    "two behind one"
                );
            }
        }
    }

    /// The first node names the entry, and the second has another link: the entry must not be used for
    /// anything else.
    #[test]
    fn an_entry_that_a_node_names_is_not_free() {
        let other = Link {
            own: 1,
            next: Some(Next::Entry(place(3))),
            committed: true,
        };
        let (mut append, _) = Append::begin(2, place(1), Next::Entry(place(2)));
        let act = append.found(place(1).unlinked().word());
        assert!(matches!(act, Act::Cas { node: 1, .. }), "{act:?}");
        assert_eq!(append.found(other.word()), Act::End(End::Divided));
        // Of one that others began nothing is known but that it is not there.
        let (mut append, _) = Append::settle(2, place(1), other).unwrap();
        let foreign = Link {
            next: Some(Next::Entry(place(4))),
            ..other
        };
        assert_eq!(append.found(foreign.word()), Act::End(End::Stale));
    }

    /// A CAS that finds bits that no link has did not change the word.
    #[test]
    fn a_word_that_was_not_the_expected_one_is_not_linked() {
        for (nodes, bit) in [(1, 32), (1, 62), (2, 63), (2, 60)] {
            let (mut append, _) = Append::begin(nodes, place(1), Next::Entry(place(2)));
            let act = append.found(place(1).unlinked().word() | 1 << bit);
            assert!(!matches!(act, Act::End(End::Linked(_))), "{bit}: {act:?}");
            if let Act::Cas { .. } = act {
                let end = append.found(place(1).unlinked().word());
                assert!(!matches!(end, Act::End(End::Linked(_))), "{bit}: {end:?}");
            }
        }
    }

    #[test]
    fn another_use_of_the_memory_and_a_closed_chain_end_it() {
        let (mut append, _) = Append::begin(1, place(1), Next::Entry(place(2)));
        let other = Place {
            version: 2,
            ..place(1)
        };
        assert_eq!(append.found(other.unlinked().word()), Act::End(End::Stale));
        let (mut append, _) = Append::begin(2, place(1), Next::Entry(place(2)));
        let closed = Link {
            own: 1,
            next: Some(Next::Closed),
            committed: true,
        };
        assert_eq!(append.found(closed.word()), Act::End(End::Closed));
    }
}
