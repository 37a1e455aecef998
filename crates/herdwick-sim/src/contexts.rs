//! The RNIC's cache of queue pair contexts: the least recently used one gives way.

use std::collections::BTreeMap;

use herdwick_fabric::Qpn;

/// Contexts in the RNIC's memory.
pub(super) struct Contexts {
    /// 0: all of them fit.
    capacity: usize,
    /// When each was used last, and which was used then.
    used: BTreeMap<Qpn, u64>,
    order: BTreeMap<u64, Qpn>,
    uses: u64,
}

impl Contexts {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            used: BTreeMap::new(),
            order: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Uses a context. `Some` if it was not here and had to be fetched.
    pub(super) fn touch(&mut self, qpn: Qpn) -> Option<()> {
        if self.capacity == 0 {
            return None;
        }
        self.uses += 1;
        let before = self.used.insert(qpn, self.uses);
        self.order.insert(self.uses, qpn);
        if let Some(before) = before {
            self.order.remove(&before);
            return None;
        }
        if self.used.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.used.remove(&oldest);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_gives_way() {
        let mut contexts = Contexts::new(2);
        let mut misses = |qpns: &[u32]| -> Vec<bool> {
            let touch = |qpn: &u32| contexts.touch(Qpn(*qpn)).is_some();
            qpns.iter().map(touch).collect()
        };
        assert_eq!(misses(&[1, 2, 1, 3]), [true, true, false, true]);
        assert_eq!(misses(&[1, 2]), [false, true], "2 gave way to 3");
    }

    #[test]
    fn none_is_missed_without_a_limit() {
        let mut contexts = Contexts::new(0);
        assert!((0..1000).all(|qpn| contexts.touch(Qpn(qpn)).is_none()));
    }
}
