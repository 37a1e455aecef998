//! Items that are live in a file are entered in a part of the index.

use herdwick_layout::bucket::Offset;
use herdwick_request::KeyHash;

use crate::{index::Part, items::Items};

/// Items with buckets that are prefetched together.
const TOGETHER: usize = 32;

/// What came of it.
#[derive(Default)]
pub(super) struct Filled {
    /// Entries that were added.
    pub(super) added: usize,
    /// Items of which there is a later one, or a copy.
    pub(super) dead: Vec<Offset>,
    /// Items whose slots others have, as the index had no more.
    pub(super) replaced: Vec<Offset>,
}

/// Enters items in a part of the index. If it has no slot for one, that with the greatest `age` is replaced.
pub(super) fn fill<'a>(
    mut part: Part<'_>,
    found: impl Iterator<Item = &'a [(Offset, KeyHash)]>,
    items: &Items,
    age: impl Fn(Offset) -> usize,
) -> Filled {
    let mut filled = Filled::default();
    for found in found.flat_map(|found| found.chunks(TOGETHER)) {
        // In three passes: buckets are fetched while those of items before them are used.
        let mut firsts = [0; TOGETHER];
        for (&(_, hash), first) in found.iter().zip(&mut firsts) {
            *first = part.prefetch_first(hash);
        }
        for (&(_, hash), &first) in found.iter().zip(&firsts) {
            part.prefetch_other(hash, first);
        }
        for (&(at, hash), &first) in found.iter().zip(&firsts) {
            enter(&mut part, items, (at, hash, first), &age, &mut filled);
        }
    }
    filled.added = part.added;
    filled
}

/// Enters an item. A kill between the copy of an item and the end of the old one leaves two; so does one while an
/// item is replaced in a store that evicts nothing.
#[inline]
fn enter(
    part: &mut Part<'_>,
    items: &Items,
    (at, hash, first): (Offset, KeyHash, usize),
    age: impl Fn(Offset) -> usize,
    filled: &mut Filled,
) {
    let double = part.find(hash, first, |it| items.is(it, items.key(at)));
    let Some((place, other)) = double else {
        // No request waits: it evicts only where nothing else helps.
        filled.replaced.extend(part.insert(hash, first, at, age));
        return;
    };
    // Of equal versions one is a copy: it does not matter which stays.
    if items.header(other).version > items.header(at).version {
        filled.dead.push(at);
    } else {
        part.point(place, hash, at);
        filled.dead.push(other);
    }
}
