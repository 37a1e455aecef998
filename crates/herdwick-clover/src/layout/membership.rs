//! Which store a data node's memory belongs to, and which nodes had it last: two words of the header. A
//! metadata server begins with nodes that belong together, or not at all.

use arrayvec::ArrayVec;
use herdwick_read::Bits;

use super::{BadGeometry, HEADER_BYTES};
use crate::nodes::NODES_MAX;

/// Word of the header with the number of the store.
pub const STORE_WORD: usize = 13;
/// Word of the header with generation, index and members.
pub const MEMBER_WORD: usize = 14;

// The fields of the member word, as docs/clover.md draws them.
const GENERATION: Bits = Bits::new(0, 16);
const INDEX: Bits = Bits::new(16, 8);
const MEMBERS: Bits = Bits::new(24, NODES_MAX as u32);

const _: () = assert!(MEMBER_WORD * 8 < HEADER_BYTES && MEMBERS.end() <= 64);

/// What a data node's memory is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The number of the store, drawn when its first metadata server began; 0: none, and no keys.
    pub store: u64,
    /// Grows when a metadata server begins with fewer nodes than the one before. 0 until the store's
    /// number is on all nodes: there are no keys yet.
    pub generation: u16,
    /// The node's place among those that the store began with.
    pub index: u8,
    /// Bits by index: the nodes of this generation.
    pub members: u8,
}

impl Membership {
    /// Returns the two words, from [`STORE_WORD`] on.
    #[must_use]
    pub fn words(&self) -> [u64; 2] {
        let member = GENERATION.put(self.generation.into())
            | INDEX.put(self.index.into())
            | MEMBERS.put(self.members.into());
        [self.store, member]
    }

    /// Parses the two words.
    #[must_use]
    pub fn of([store, member]: [u64; 2]) -> Self {
        Self {
            store,
            generation: GENERATION.of(member) as u16,
            index: INDEX.of(member) as u8,
            members: MEMBERS.of(member) as u8,
        }
    }

    fn has(&self, index: u8) -> bool {
        index < NODES_MAX as u8 && self.members >> index & 1 == 1
    }
}

/// Why a metadata server does not begin with these data nodes. Nodes are counted from 0, in the order in
/// which they were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNodes {
    /// The header of a node makes no sense.
    #[error("data node {0}: {1}")]
    Header(usize, BadGeometry),
    /// A node has no keys, though others have.
    #[error(
        "data node {0} was started again and has lost its keys; start the metadata server without it"
    )]
    Blank(usize),
    /// A node belongs to another store.
    #[error("data node {0} has the keys of another store; start the metadata server without it")]
    Foreign(usize),
    /// A metadata server began without the node, so that it lacks what was stored since.
    #[error(
        "data node {0} lacks what was stored while it was left out; start the metadata server \
         without it"
    )]
    LeftOut(usize),
    /// Nodes were each left out while the others were used.
    #[error(
        "data node {0} and another one were each used without the other; start the metadata server \
         with one of them"
    )]
    Divided(usize),
    /// The nodes are in another order than before.
    #[error("data node {0} stood before the one that is given before it; name them in that order")]
    Order(usize),
}

/// The memberships of all nodes of a metadata server.
pub(crate) type Memberships = ArrayVec<Membership, NODES_MAX>;

/// Returns what has to be in the headers before a metadata server begins with nodes whose headers have
/// `found`, which are at most [`NODES_MAX`]; a new store gets the number `fresh`.
///
/// Headers are changed before anything else is, the store's number on all nodes first. So nodes of an
/// older generation that the newest one counts among its members have missed nothing: the server that
/// began that generation died before it had changed all headers.
pub(crate) fn agree(found: &[Membership], fresh: u64) -> Result<Memberships, BadNodes> {
    // The first of them.
    let newest = found.iter().rev().max_by_key(|node| node.generation);
    let newest = newest.copied().unwrap_or_default();
    if newest.generation == 0 {
        let all = u8::MAX >> (NODES_MAX - found.len());
        let member = |index| Membership {
            store: fresh,
            generation: 1,
            index,
            members: all,
        };
        return Ok((0..found.len() as u8).map(member).collect());
    }
    let indices = indices(found, newest)?;
    let members = indices.iter().fold(0, |mask, index| mask | 1 << index);
    let same = members == newest.members;
    let member = |index| Membership {
        generation: match same {
            true => newest.generation,
            // Servers begin with fewer nodes than before; there are at most 8, so it grows a few
            // times only.
            false => newest.generation.saturating_add(1),
        },
        members,
        index,
        ..newest
    };
    Ok(indices.into_iter().map(member).collect())
}

/// Returns the nodes' indices, if they belong together.
fn indices(found: &[Membership], newest: Membership) -> Result<ArrayVec<u8, NODES_MAX>, BadNodes> {
    let mut indices = ArrayVec::<u8, NODES_MAX>::new();
    // Of a store that has just begun, a node may have the number alone.
    let began = newest.generation == 1 && found.len() as u32 == newest.members.count_ones();
    for (position, node) in found.iter().enumerate() {
        let index = match node.generation {
            0 if !began || node.store != newest.store => return Err(BadNodes::Blank(position)),
            _ if node.store != newest.store => return Err(BadNodes::Foreign(position)),
            // A node that got the number and no members yet: its place is where it is named.
            0 => position as u8,
            _ => node.index,
        };
        if node.generation == newest.generation && node.members != newest.members {
            return Err(BadNodes::Divided(position));
        }
        if !newest.has(index) {
            return Err(BadNodes::LeftOut(position));
        }
        // An index that comes twice is refused, too.
        if indices.last().is_some_and(|last| *last >= index) {
            return Err(BadNodes::Order(position));
        }
        indices.push(index);
    }
    Ok(indices)
}

/// Returns whether `found` are all nodes of one store and generation, in their order.
pub(crate) fn is_whole(found: &[Membership]) -> bool {
    let agreed = agree(found, 0);
    agreed.is_ok_and(|agreed| agreed[..] == *found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLANK: Membership = Membership {
        store: 0,
        generation: 0,
        index: 0,
        members: 0,
    };

    fn node(generation: u16, index: u8, members: u8) -> Membership {
        Membership {
            store: 7,
            generation,
            index,
            members,
        }
    }

    #[test]
    fn nodes_that_do_not_belong_together_are_refused() {
        let [a, b, c] = [0, 1, 2].map(|index| node(1, index, 0b111));
        let (later, number) = (node(2, 0, 0b101), Membership { store: 7, ..BLANK });
        let foreign = Membership { store: 8, ..b };
        for (found, why) in [
            (&[a, BLANK, c][..], BadNodes::Blank(1)),
            (&[BLANK, b, c], BadNodes::Blank(0)),
            (
                &[a, Membership { store: 9, ..BLANK }, c],
                BadNodes::Blank(1),
            ),
            (&[a, foreign, c], BadNodes::Foreign(1)),
            (&[later, b, node(2, 2, 0b101)], BadNodes::LeftOut(1)),
            (&[later, node(2, 2, 0b100)], BadNodes::Divided(1)),
            (&[b, a, c], BadNodes::Order(1)),
            (&[a, a], BadNodes::Order(1)),
            // Fewer than began: what has the number alone is blank.
            (&[a, number], BadNodes::Blank(1)),
            (&[node(1, 9, 0b111), b], BadNodes::LeftOut(0)),
        ] {
            assert_eq!(agree(found, 5), Err(why), "{found:?}");
        }
        // All, fewer, and those that a dead server had begun to change.
        for (found, agreed) in [
            (&[BLANK, number][..], [node(1, 0, 0b11), node(1, 1, 0b11)]),
            (
                &[node(1, 0, 0b11), number],
                [node(1, 0, 0b11), node(1, 1, 0b11)],
            ),
            (&[a, c], [node(2, 0, 0b101), node(2, 2, 0b101)]),
            (&[later, c], [node(2, 0, 0b101), node(2, 2, 0b101)]),
        ] {
            assert_eq!(agree(found, 7).unwrap()[..], agreed, "{found:?}");
        }
        assert!(is_whole(&[a, b, c]) && !is_whole(&[a, c]) && !is_whole(&[BLANK, BLANK]));
    }

    proptest! {
        #[test]
        fn memberships_survive_their_words(
            (store, generation, index, members) in any::<(u64, u16, u8, u8)>(),
        ) {
            let membership = Membership { store, generation, index, members };
            prop_assert_eq!(Membership::of(membership.words()), membership);
        }

        /// Servers begin with some of the nodes, and die before they have changed all headers; nodes come
        /// back blank. Who begins has all that was stored by those that began before.
        #[test]
        fn whoever_begins_has_what_was_stored(
            starts in prop::collection::vec((1..16_u8, 0..10_usize, any::<u8>()), 1..12),
        ) {
            let mut nodes = [BLANK; 4];
            // The number of the last start that ended, as each node knows it.
            let (mut stored, mut last) = ([0; 4], 0);
            for (start, (chosen, steps, lost)) in (1..).zip(starts) {
                if lost < 8 {
                    let lost = usize::from(lost % 4);
                    (nodes[lost], stored[lost]) = (BLANK, 0);
                }
                let given: Vec<_> = (0..4).filter(|n| chosen >> n & 1 == 1).collect();
                let found: Vec<_> = given.iter().map(|n| nodes[*n]).collect();
                let Ok(agreed) = agree(&found, start) else { continue };
                let writes = (given.iter().zip(&agreed)).map(|(n, to)| (*n, Membership { store: to.store, ..nodes[*n] }));
                let writes = writes.chain(given.iter().copied().zip(agreed.iter().copied())).collect::<Vec<_>>();
                for (n, to) in writes.iter().take(steps) {
                    nodes[*n] = *to;
                }
                if steps >= writes.len() {
                    // A store of one's own, or all of the newest.
                    let newest = given.iter().map(|n| stored[*n]).max().unwrap_or(0);
                    for n in &given {
                        prop_assert_eq!(stored[*n], newest, "{:?} {:?}", nodes, given);
                    }
                    last += 1;
                    given.iter().for_each(|n| stored[*n] = last);
                }
            }
        }
    }
}
