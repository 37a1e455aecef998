//! Blocks of lines for values out of the table: a buddy allocator over a bounded number of lines.

use crate::layout::{DATA, VALUE_BYTES_MAX};

/// Orders of blocks: of 1, 2, 4 ... lines, up to what the longest value needs.
const ORDERS: usize = VALUE_BYTES_MAX
    .div_ceil(DATA.bytes)
    .next_power_of_two()
    .trailing_zeros() as usize
    + 1;
/// No line.
const NONE: u32 = u32::MAX;
/// No free block begins at the line.
const TAKEN: u8 = u8::MAX;

/// The free blocks, each in the list of its order.
pub(super) struct Blocks {
    /// First line of each list.
    first: [u32; ORDERS],
    /// Of a line at which a free block begins: its neighbours in the list.
    before: Vec<u32>,
    after: Vec<u32>,
    /// Order of the free block that begins at a line, or [`TAKEN`].
    order: Vec<u8>,
    free_lines: usize,
}

impl Blocks {
    pub(super) fn new(lines: usize) -> Self {
        let mut blocks = Self {
            first: [NONE; ORDERS],
            before: vec![NONE; lines],
            after: vec![NONE; lines],
            order: vec![TAKEN; lines],
            free_lines: lines,
        };
        let mut line = 0;
        while line < lines {
            let fits =
                |order: &usize| line.is_multiple_of(1 << order) && line + (1 << order) <= lines;
            // Order 0 fits each line.
            let order = (0..ORDERS).rev().find(fits).unwrap_or(0);
            blocks.insert(line as u32, order);
            line += 1 << order;
        }
        blocks
    }

    pub(super) fn free_lines(&self) -> usize {
        self.free_lines
    }

    /// Takes a block of at least `lines` lines; returns its first one, or `None` if none is free.
    pub(super) fn take(&mut self, lines: usize) -> Option<u32> {
        let wanted = order_of(lines);
        let found = (wanted..ORDERS).find(|order| self.first[*order] != NONE)?;
        let block = self.first[found];
        self.remove(block, found);
        // The upper halves of what is more than wanted stay free.
        for order in (wanted..found).rev() {
            self.insert(block + (1 << order), order);
        }
        self.free_lines -= 1 << wanted;
        Some(block)
    }

    /// Gives back a block that [`Blocks::take`] returned for as many lines.
    pub(super) fn give(&mut self, block: u32, lines: usize) {
        let (mut block, mut order) = (block, order_of(lines));
        self.free_lines += 1 << order;
        while order + 1 < ORDERS {
            let buddy = block ^ (1 << order);
            // Beyond the last line there is no buddy.
            if self.order.get(buddy as usize) != Some(&(order as u8)) {
                break;
            }
            self.remove(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.insert(block, order);
    }

    fn insert(&mut self, block: u32, order: usize) {
        let (at, next) = (block as usize, self.first[order]);
        (self.before[at], self.after[at], self.order[at]) = (NONE, next, order as u8);
        if let Some(before) = self.before.get_mut(next as usize) {
            *before = block;
        }
        self.first[order] = block;
    }

    fn remove(&mut self, block: u32, order: usize) {
        let at = block as usize;
        let (before, after) = (self.before[at], self.after[at]);
        match self.after.get_mut(before as usize) {
            Some(link) => *link = after,
            None => self.first[order] = after,
        }
        if let Some(link) = self.before.get_mut(after as usize) {
            *link = before;
        }
        self.order[at] = TAKEN;
    }
}

fn order_of(lines: usize) -> usize {
    lines.next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Blocks that are taken never overlap, and all lines come back as they were.
        #[test]
        fn blocks_do_not_overlap(
            lines in 1usize..200,
            steps in prop::collection::vec((any::<bool>(), 1usize..=22, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut blocks = Blocks::new(lines);
            let (mut owner, mut held) = (vec![false; lines], Vec::new());
            for (take, count, which) in steps {
                if take {
                    let Some(block) = blocks.take(count) else { continue };
                    let range = block as usize..block as usize + (1 << order_of(count));
                    prop_assert!(range.end <= lines);
                    prop_assert!(owner[range.clone()].iter().all(|taken| !taken));
                    owner[range].fill(true);
                    held.push((block, count));
                } else if !held.is_empty() {
                    let (block, count) = held.swap_remove(which.index(held.len()));
                    owner[block as usize..block as usize + (1 << order_of(count))].fill(false);
                    blocks.give(block, count);
                }
                prop_assert_eq!(blocks.free_lines(), owner.iter().filter(|taken| !**taken).count());
            }
            for (block, count) in held {
                blocks.give(block, count);
            }
            let fresh = Blocks::new(lines);
            prop_assert_eq!(&blocks.order, &fresh.order);
            prop_assert_eq!(blocks.free_lines(), lines);
        }
    }
}
