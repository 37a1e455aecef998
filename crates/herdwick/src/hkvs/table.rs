//! The keys that the secondary store has, as far as this client knows: a bounded number, by their hashes.
//!
//! A hash that two keys share sends a read to where the key is not, and from there to the primary.

use herdwick_request::KeyHash;

/// Entries of a set: those whose hashes agree in the bits that select it.
const WAYS: usize = 4;
/// Keys.
const KEYS: usize = 1 << 16;
/// Groups of keys of which the last write is remembered.
const GROUPS: usize = 1 << 10;

/// The table. It has memory once there is a key in it.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Sets of [`WAYS`], the one used last first.
    entries: Vec<KnownKey>,
    /// The ticket of the last write to a key of each group.
    writes: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct KnownKey {
    /// 0: no entry.
    hash: u64,
    /// The newest that the client has seen of the item.
    version: u64,
}

impl Table {
    fn set(&mut self, hash: KeyHash) -> Option<&mut [KnownKey]> {
        let set = (hash.0 as usize % (KEYS / WAYS)) * WAYS;
        self.entries.get_mut(set..set + WAYS)
    }

    fn group(hash: KeyHash) -> usize {
        // Other bits than those that select the set.
        (hash.0 >> 20) as usize % GROUPS
    }

    /// Returns the newest version that the client has seen of a key that the secondary store has.
    #[inline]
    pub(super) fn get(&mut self, hash: KeyHash) -> Option<u64> {
        let set = self.set(hash)?;
        let way = set.iter().position(|entry| entry.hash == hash.0)?;
        set[..=way].rotate_right(1);
        Some(set[0].version)
    }

    /// Notes that a read, whose ticket this is, has found a key that the secondary store has. Without effect if
    /// the key was written since the read began: the secondary store may have what was there before.
    pub(super) fn found(&mut self, hash: KeyHash, version: u64, ticket: u64) {
        if self
            // A write that was submitted after the read was begun.
            .writes
            .get(Self::group(hash))
            .is_some_and(|write| *write > ticket)
            // It would be no entry.
            || hash.0 == 0
        {
            return;
        }
        if self.entries.is_empty() {
            self.entries = vec![KnownKey::default(); KEYS];
        }
        if let Some(known) = self.get(hash) {
            return self.saw(hash, known.max(version));
        }
        if let Some(set) = self.set(hash) {
            set.rotate_right(1);
            let hash = hash.0;
            set[0] = KnownKey { hash, version };
        }
    }

    /// Notes a version of a key in the table.
    pub(super) fn saw(&mut self, hash: KeyHash, version: u64) {
        let known = self
            .set(hash)
            .and_then(|set| set.iter_mut().find(|it| it.hash == hash.0));
        if let Some(entry) = known {
            entry.version = entry.version.max(version);
        }
    }

    /// Forgets a key.
    pub(super) fn remove(&mut self, hash: KeyHash) {
        if let Some(set) = self.set(hash)
            && let Some(way) = set.iter().position(|entry| entry.hash == hash.0)
        {
            set[way] = KnownKey::default();
            // Free places are behind the entries.
            set[way..].rotate_left(1);
        }
    }

    /// Forgets a key that a request with this ticket writes, or reads without finding it in the secondary store.
    pub(super) fn write(&mut self, hash: KeyHash, ticket: u64) {
        self.remove(hash);
        if self.writes.is_empty() {
            self.writes = vec![0; GROUPS];
        }
        // Replies of a pipeline come after later writes of the group.
        let last = &mut self.writes[Self::group(hash)];
        *last = ticket.max(*last);
    }

    /// Forgets all keys, which a request with this ticket removes.
    pub(super) fn flush(&mut self, ticket: u64) {
        self.clear();
        self.writes.resize(GROUPS, 0);
        for last in &mut self.writes {
            *last = ticket.max(*last);
        }
    }

    /// Forgets all keys.
    pub(super) fn clear(&mut self) {
        self.entries.fill(KnownKey::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ones_used_last_stay_and_versions_do_not_go_back() {
        let mut table = Table::default();
        let hash = |n: u64| KeyHash(1 + n * KEYS as u64);
        assert_eq!(table.get(hash(0)), None);
        (0..4).for_each(|n| table.found(hash(n), 10 + n, n));
        assert_eq!(table.get(hash(0)), Some(10));
        table.found(hash(4), 14, 5);
        let left = [0, 1, 2, 3, 4].map(|n| table.get(hash(n)));
        assert_eq!(left, [Some(10), None, Some(12), Some(13), Some(14)]);
        table.found(hash(2), 9, 6);
        assert_eq!(table.get(hash(2)), Some(12));
        table.saw(hash(2), 20);
        table.saw(hash(1), 20);
        assert_eq!((table.get(hash(2)), table.get(hash(1))), (Some(20), None));
        table.remove(hash(3));
        assert_eq!(table.get(hash(3)), None);
        assert_eq!([0, 2, 4].map(|n| table.get(hash(n)).is_some()), [true; 3]);
        table.clear();
        assert!((0..5).all(|n| table.get(hash(n)).is_none()));
    }

    /// The reply to a read comes after a later request has written a key of its group, as in a pipeline.
    #[test]
    fn the_last_write_of_a_group_is_not_forgotten_for_an_older_read() {
        let mut table = Table::default();
        let (written, other) = (KeyHash(77), KeyHash(78));
        assert_eq!(Table::group(written), Table::group(other));
        table.write(written, 5);
        table.write(other, 3);
        table.found(written, 1, 4);
        assert_eq!(table.get(written), None, "that read began before the write");
        table.found(written, 2, 6);
        assert_eq!(table.get(written), Some(2));
    }

    #[test]
    fn what_a_read_found_before_a_write_is_not_looked_for_in_the_secondary_store() {
        let (mut table, hash) = (Table::default(), KeyHash(77));
        table.found(hash, 1, 3);
        table.write(hash, 5);
        assert_eq!(table.get(hash), None);
        table.found(hash, 1, 4);
        assert_eq!(table.get(hash), None, "that read began before the write");
        table.found(hash, 2, 6);
        assert_eq!(table.get(hash), Some(2));
        table.flush(8);
        table.found(hash, 2, 7);
        assert_eq!(table.get(hash), None, "that read began before the flush");
        table.found(hash, 3, 9);
        assert_eq!(table.get(hash), Some(3));
    }
}
