//! A fixed-size table of objects whose ids carry a generation, so that a stale id names nothing.

/// Maximum items in a [`Slab`]: the low 16 bits of an id are the slot number.
pub const SLOTS_MAX: usize = 1 << 16;

/// A bounded table whose ids carry a generation, so that an id used after its item is gone names
/// nothing, until 65,535 others have had its place. Sized once; never grows.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    /// Generation in the high 16 bits, slot number in the low 16.
    id: u32,
    item: Option<T>,
}

impl<T> Slab<T> {
    /// Makes a table for `limit` items, at most [`SLOTS_MAX`].
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let limit = u32::try_from(limit.min(SLOTS_MAX)).unwrap_or(0);
        let slot = |n| Slot {
            // Generation 1, for no id may be 0.
            id: 1 << 16 | n,
            item: None,
        };
        Self {
            slots: (0..limit).map(slot).collect(),
            // So that the lowest slots are handed out first.
            free: (0..limit).rev().collect(),
        }
    }

    /// Returns the maximum number of items.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether another item fits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the id that the next [`Slab::insert`] will return; `None` when the table is full.
    #[must_use]
    pub fn next_id(&self) -> Option<u32> {
        self.free.last().map(|n| self.slots[*n as usize].id)
    }

    /// Stores `item` and returns its id.
    ///
    /// # Errors
    /// Returns the item when there is no room.
    pub fn insert(&mut self, item: T) -> Result<u32, T> {
        // The slot freed last: its memory is likely in the cache.
        let Some(n) = self.free.pop() else {
            return Err(item);
        };
        let slot = &mut self.slots[n as usize];
        slot.item = Some(item);
        Ok(slot.id)
    }

    /// Removes and returns an item; its id is invalid from now on.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let slot = self.slots.get_mut((id & 0xffff) as usize)?;
        // An id of an earlier generation frees nothing.
        if slot.id != id {
            return None;
        }
        let item = slot.item.take()?;
        self.free.push(id & 0xffff);
        // The next generation. It is never 0, so that no id is 0.
        let generation = (id >> 16) % 0xffff + 1;
        slot.id = generation << 16 | id & 0xffff;
        Some(item)
    }

    /// Returns the item with `id`.
    #[inline]
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&T> {
        let slot = self.slots.get((id & 0xffff) as usize)?;
        if slot.id == id {
            slot.item.as_ref()
        } else {
            None
        }
    }

    /// Returns the item with `id`, for changing.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((id & 0xffff) as usize)?;
        if slot.id == id {
            slot.item.as_mut()
        } else {
            None
        }
    }

    /// Iterates over the items with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots
            .iter()
            .filter_map(|slot| Some((slot.id, slot.item.as_ref()?)))
    }

    /// Iterates over the items with their ids, for changing.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots
            .iter_mut()
            .filter_map(|slot| Some((slot.id, slot.item.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_invalid_after_removal() {
        let mut slab = Slab::new(2);
        let a = slab.insert('a').unwrap();
        let b = slab.insert('b').unwrap();
        assert_eq!(slab.insert('c'), Err('c'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let c = slab.insert('c').unwrap();
        assert_eq!(slab.get(a), None);
        assert_eq!((slab.get(b), slab.get(c)), (Some(&'b'), Some(&'c')));
        assert_eq!(slab.get(u32::MAX), None);
    }

    #[test]
    fn generation_wrap_skips_id_zero() {
        let mut slab = Slab::new(1);
        for _ in 0..70_000 {
            let id = slab.insert(()).unwrap();
            assert_ne!(id, 0);
            assert_ne!(id >> 16, 0);
            slab.remove(id).unwrap();
        }
    }
}
