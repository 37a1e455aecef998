//! A growing, bounded table of objects with generation-counted ids.

use alloc::vec::Vec;

/// Bits of an id that are the index. The others count how often the index was used, so that an id
/// does not recur before its index was used 4,096 times.
const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Returns the table index of an id.
#[inline]
pub(crate) const fn index(id: u32) -> usize {
    (id & INDEX_MASK) as usize
}

/// A bounded table whose ids become invalid when their object is removed.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: usize,
}

struct Slot<T> {
    id: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// Makes a table for `limit` objects, at most 2^20.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            limit: limit.min(1 << INDEX_BITS),
        }
    }

    /// Returns the maximum number of objects.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Stores `value` and returns its id; `None` when the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        // The slot has advanced its id when it was freed.
        if let Some(place) = self.free.pop() {
            let slot = &mut self.slots[place as usize];
            slot.value = Some(value);
            return Some(slot.id);
        }
        let id = u32::try_from(self.slots.len()).ok()?;
        if self.slots.len() == self.limit {
            return None;
        }
        self.slots.push(Slot {
            id,
            value: Some(value),
        });
        Some(id)
    }

    /// Returns whether the table is full.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() == self.limit
    }

    /// Removes and returns the object; its id is invalid from now on.
    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        let slot = self.slots.get_mut(index(id))?;
        if slot.id != id {
            return None;
        }
        let value = slot.value.take()?;
        // The index, in the low bits, is unaffected.
        slot.id = id.wrapping_add(1 << INDEX_BITS);
        self.free.push(id & INDEX_MASK);
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        let slot = self.slots.get(index(id))?;
        if slot.id == id {
            slot.value.as_ref()
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(index(id))?;
        if slot.id == id {
            slot.value.as_mut()
        } else {
            None
        }
    }

    /// Returns the object at an index, whatever its id.
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.slots.get_mut(place)?.value.as_mut()
    }

    /// Returns the ids of all objects for which `which` returns true.
    pub(crate) fn ids(&self, which: impl Fn(&T) -> bool) -> Vec<u32> {
        let picked = |slot: &&Slot<T>| slot.value.as_ref().is_some_and(&which);
        let slots = self.slots.iter().filter(picked);
        slots.map(|slot| slot.id).collect()
    }
}
