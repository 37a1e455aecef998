//! The table of requests in flight: a token for each, reused after the answer.

use crate::workload::Step;

/// The request behind each token in flight. Tokens are reused, so that the table stays as small as
/// the largest number of requests in flight at a time.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Free tokens; the last one freed is reused first, since its slot is still in the cache.
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    step: Step,
    start_ns: u64,
    taken: bool,
}

impl Slots {
    /// Returns the token that [`Slots::take`] assigns next.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.free
            .last()
            .map_or(self.slots.len() as u64, |token| u64::from(*token))
    }

    /// Assigns the next token to a request.
    #[inline]
    pub(super) fn take(&mut self, step: Step, start_ns: u64) {
        let slot = Slot {
            step,
            start_ns,
            taken: true,
        };
        match self.free.pop() {
            Some(token) => self.slots[token as usize] = slot,
            None => self.slots.push(slot),
        }
    }

    /// Frees a token; returns its request and due time, or `None` if it was not in use.
    #[inline]
    pub(super) fn release(&mut self, token: u64) -> Option<(Step, u64)> {
        let slot = self
            .slots
            .get_mut(token as usize)
            .filter(|slot| slot.taken)?;
        slot.taken = false;
        self.free.push(token as u32);
        Some((slot.step, slot.start_ns))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Returns the due time of each request in flight.
    pub(super) fn started(&self) -> impl Iterator<Item = u64> + '_ {
        let taken = self.slots.iter().filter(|slot| slot.taken);
        taken.map(|slot| slot.start_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_tokens_are_reused() {
        let mut slots = Slots::default();
        let tokens: Vec<u64> = (0..3)
            .map(|i| {
                let token = slots.next();
                slots.take(Step::get(i), u64::from(i) * 10);
                token
            })
            .collect();
        assert_eq!(tokens, [0, 1, 2]);
        assert_eq!(slots.release(1), Some((Step::get(1), 10)));
        assert_eq!(slots.release(1), None, "freed already");
        assert_eq!(slots.release(9), None, "never allocated");
        assert_eq!(slots.started().collect::<Vec<_>>(), [0, 20]);
        assert_eq!(slots.next(), 1);
        slots.take(Step::put(7), 70);
        assert_eq!(slots.release(1), Some((Step::put(7), 70)));
        assert!(!slots.is_empty());
        assert!(slots.release(0).is_some() && slots.release(2).is_some());
        assert!(slots.is_empty());
    }
}
