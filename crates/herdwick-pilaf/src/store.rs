//! The server's data: the table, its extents, and the operations on them. Single-threaded; readers see
//! each change through the memory alone.

use herdwick_mem::{Span, crc64};
use herdwick_request::HashKey;

use crate::{
    arena::ExtentArena,
    growth::{Growth, GrowthState, Retiring},
    layout::{
        CuckooHash, ENTRY_BYTES, EXTENT_BYTES_MAX, Entry, KEY_BYTES_MAX, State, VALUE_BYTES_MAX,
    },
    table::Table,
};

/// A value cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// No memory for the extent.
    #[error("the memory of extents is full; start the server with more")]
    Extents,
    /// No place in the table, which has to grow first.
    #[error("the table is full; it grows up to its limit of buckets")]
    Table,
}

/// Tables and extents of one server.
#[derive(Debug)]
pub struct Store {
    table: Table,
    /// A larger table that is being made, and the one before this one, of which some buckets do not say
    /// yet that it has moved. There is at most one of both.
    growth: Option<Growth>,
    retiring: Option<Retiring>,
    extents: Span,
    arena: ExtentArena,
    hash_key: HashKey,
    /// A key and its value, or the key of a stored entry, while they are looked at.
    scratch: Vec<u8>,
}

impl Store {
    /// Makes an empty store in two memories: of buckets and of extents.
    #[must_use]
    pub fn new(table: Span, extents: Span, hash_key: HashKey) -> Self {
        // What an entry's offset can name.
        let usable = usize::try_from(EXTENT_BYTES_MAX).unwrap_or(usize::MAX);
        Self {
            table: Table::new(table),
            growth: None,
            retiring: None,
            arena: ExtentArena::new(extents.len().min(usable)),
            extents,
            hash_key,
            scratch: vec![0; KEY_BYTES_MAX + VALUE_BYTES_MAX],
        }
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.table.used()
    }

    /// Returns the number of buckets.
    #[must_use]
    pub fn buckets(&self) -> u64 {
        self.table.buckets()
    }

    /// Returns the bytes of extents in use.
    #[must_use]
    pub fn extent_bytes(&self) -> usize {
        self.arena.used_bytes()
    }

    /// Returns the key by which keys are hashed.
    #[must_use]
    pub fn hash_key(&self) -> &HashKey {
        &self.hash_key
    }

    /// Returns the bytes that a table of `buckets` buckets takes.
    #[must_use]
    pub fn table_bytes(buckets: u64) -> usize {
        usize::try_from(buckets).map_or(usize::MAX, |n| n.saturating_mul(ENTRY_BYTES))
    }

    fn find(&mut self, hash: &CuckooHash, key: &[u8]) -> Option<(u64, Entry)> {
        let Self {
            table,
            extents,
            scratch,
            ..
        } = self;
        let bucket = table.find(hash, |entry| {
            let found = &mut scratch[..key.len()];
            extents.read_bytes(entry.offset as usize, found);
            entry.key_len == key.len() && herdwick_mem::same(found, key)
        })?;
        Some((bucket, table.entry(bucket)))
    }

    /// Copies the value of `key` to `out`, which has room for the longest; returns its length, or `None`
    /// if the key is not stored.
    ///
    /// # Panics
    /// When the value is longer than `out`.
    pub fn get(&mut self, key: &[u8], out: &mut [u8]) -> Option<usize> {
        let hash = CuckooHash::of(&self.hash_key, key);
        let (_, entry) = self.find(&hash, key)?;
        let out = &mut out[..entry.value_len];
        self.extents
            .read_bytes(entry.offset as usize + entry.key_len, out);
        Some(entry.value_len)
    }

    /// Stores a value. The old one stays readable until the new one can be.
    ///
    /// # Errors
    /// [`PutError`]; the key has its old value then.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PutError> {
        let hash = CuckooHash::of(&self.hash_key, key);
        self.mark_retiring(&hash);
        let old = self.find(&hash, key);
        let len = key.len() + value.len();
        let offset = self.arena.take(len).ok_or(PutError::Extents)?;
        let extent = &mut self.scratch[..len];
        let (front, behind) = extent.split_at_mut(key.len());
        herdwick_mem::copy(front, key);
        herdwick_mem::copy(behind, value);
        let entry = Entry {
            state: State::Used,
            version: 0,
            place: 0,
            tag: hash.tag(),
            offset,
            key_len: key.len(),
            value_len: value.len(),
            extent_crc: crc64(0, extent),
        };
        // The extent is complete before its entry is there: both are stored in program order, the last
        // word of each with release.
        self.extents.write_bytes(offset as usize, extent);
        if let Some((bucket, old)) = old {
            self.table.replace(bucket, &entry);
            if let Some(growth) = &mut self.growth {
                growth.replaced(&hash, &old, &entry);
            }
            // At once, although a client may be reading it: the checksum in its entry shows what came
            // after.
            self.arena.give(old.offset, old.extent_len());
        } else if !self.insert(&hash, &entry) {
            self.arena.give(offset, len);
            return Err(PutError::Table);
        }
        Ok(())
    }

    /// Stores the entry of a new key; returns whether there was a place for it.
    fn insert(&mut self, hash: &CuckooHash, entry: &Entry) -> bool {
        let Self { table, growth, .. } = self;
        let mut follow = |bucket, entry: &Entry, hash| {
            if let Some(growth) = growth {
                growth.stored(bucket, entry, hash);
            }
        };
        let Some(at) = table.make_room(hash, &mut follow) else {
            return false;
        };
        table.insert(at, entry, *hash);
        follow(at.bucket, entry, *hash);
        true
    }

    /// Tells readers of the table before this one that they look up a key in vain: it may change now.
    fn mark_retiring(&self, hash: &CuckooHash) {
        if let Some(retiring) = &self.retiring {
            retiring.mark(hash);
        }
    }

    /// Removes a key; returns whether it was stored.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let hash = CuckooHash::of(&self.hash_key, key);
        self.mark_retiring(&hash);
        let Some((bucket, entry)) = self.find(&hash, key) else {
            return false;
        };
        self.table.remove(bucket);
        if let Some(growth) = &mut self.growth {
            growth.removed(&hash, &entry);
        }
        // After the entry that named it is gone.
        self.arena.give(entry.offset, entry.extent_len());
        true
    }

    /// Begins to copy the table to another memory, which is all zeros.
    pub(crate) fn begin_growth(&mut self, larger: Span) {
        self.growth = Some(Growth::new(larger));
    }

    /// Copies at most `buckets` buckets. `None`: no larger table is being made.
    pub(crate) fn grow(&mut self, buckets: u64) -> Option<GrowthState> {
        let Self { table, growth, .. } = self;
        growth.as_mut().map(|growth| growth.step(table, buckets))
    }

    /// Gives the larger table up.
    pub(crate) fn abandon_growth(&mut self) {
        self.growth = None;
    }

    /// Goes on with the larger table, which is complete. Readers of the old one find it complete, too, but
    /// for buckets that say that it has moved: all, after [`Store::retire`].
    pub(crate) fn move_to_larger(&mut self) {
        if let Some(growth) = self.growth.take() {
            let old = std::mem::replace(&mut self.table, growth.into_table());
            self.retiring = Some(Retiring::new(old));
        }
    }

    /// Sets some buckets of the old table to *moved*; returns whether there are others left.
    pub(crate) fn retire(&mut self, buckets: u64) -> bool {
        let Some(retiring) = &mut self.retiring else {
            return false;
        };
        if retiring.step(buckets) {
            self.retiring = None;
        }
        true
    }
}
