//! The search for an order: Wing and Gong's, with Lowe's memory of what was tried. A configuration
//! is the set of answered operations that have taken effect, and what the key may be then. One that
//! led nowhere is not entered again.
//!
//! Operations without an answer are no part of that set: there may be many, each may come anywhere
//! or never, and their subsets would make the search exponential. They take effect only where one
//! is needed to reach a value, and a [`State`] remembers which. Of those with the same action, as many
//! increments by one, the earliest call is taken first: it may come wherever a later one may, so the others
//! in its place lead no further.

use std::{
    cmp::Reverse,
    collections::HashSet,
    hash::{BuildHasherDefault, Hasher},
};

use crate::{
    mix,
    operation::Operation,
    register::{Action, Register, Value, effect},
};

/// Returns whether some order explains all answers.
pub(crate) fn is_linearizable(register: Register, history: &[Operation]) -> bool {
    search(register, history, u64::MAX).unwrap_or(true)
}

/// Returns whether some order explains all answers; `None` if the search reaches more than `effort`
/// states. Unknown outcomes are what makes it long.
pub(crate) fn search(register: Register, history: &[Operation], effort: u64) -> Option<bool> {
    let mut answered = history.to_vec();
    answered.sort_by_key(|operation| operation.called);
    let unanswered = answered.extract_if(.., |one| one.answered.is_none());
    let unanswered: Vec<_> = unanswered.collect();
    Search {
        register,
        same_before: same_before(&unanswered),
        unanswered,
        answered,
        tried: HashSet::default(),
        effort,
    }
    .finds_an_order()
}

/// Returns, for each operation, the last one before it with the same action.
fn same_before(operations: &[Operation]) -> Vec<Option<usize>> {
    let same = |index: usize| {
        let mut before = operations[..index].iter();
        before.rposition(|one| one.action == operations[index].action)
    };
    (0..operations.len()).map(same).collect()
}

/// A set of operations, a bit each. Short histories need no memory of their own for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Set {
    first: u64,
    rest: Vec<u64>,
}

impl Set {
    fn has(&self, index: usize) -> bool {
        let word = match (index / 64).checked_sub(1) {
            None => Some(&self.first),
            Some(place) => self.rest.get(place),
        };
        word.is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    fn with(&self, index: usize) -> Self {
        let mut set = self.clone();
        let word = match (index / 64).checked_sub(1) {
            None => &mut set.first,
            Some(place) => {
                set.rest.resize(set.rest.len().max(place + 1), 0);
                &mut set.rest[place]
            }
        };
        *word |= 1 << (index % 64);
        set
    }

    fn is_within(&self, other: &Self) -> bool {
        let theirs = other.rest.iter().copied().chain(std::iter::repeat(0));
        let mut rest = self.rest.iter().zip(theirs);
        self.first & !other.first == 0 && rest.all(|(ours, theirs)| ours & !theirs == 0)
    }
}

/// A value that the key may have, and the unanswered operations that had to take effect for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct State {
    value: Value,
    used: Set,
}

/// Adds a state, unless one with the same value has used less. Returns whether it did.
fn add(states: &mut Vec<State>, new: State) -> bool {
    let covers =
        |one: &State, other: &State| one.value == other.value && one.used.is_within(&other.used);
    if states.iter().any(|state| covers(state, &new)) {
        return false;
    }
    states.retain(|state| !covers(&new, state));
    states.push(new);
    true
}

/// Hashes what a search has tried, a word at a time: half of its time would go to a hash that withstands
/// attacks.
#[derive(Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        // Added, so that a hash of 0 and a word of 0 are not left as they are.
        self.0 = mix(self.0 ^ word).wrapping_add(word).wrapping_add(1);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

struct Search {
    register: Register,
    /// By the time of their call, as are the others.
    answered: Vec<Operation>,
    unanswered: Vec<Operation>,
    /// For each of these, the one that takes effect before it: see [`same_before`].
    same_before: Vec<Option<usize>>,
    tried: HashSet<(Set, Vec<State>), BuildHasherDefault<WordHasher>>,
    /// States that may still be reached.
    effort: u64,
}

/// A configuration, and the next operation to try in it.
struct Step {
    taken: Set,
    /// What the key may be when the next operation takes effect.
    states: Vec<State>,
    /// All operations before this one are in `taken`.
    first: usize,
    /// The operations that may come next and were not tried: the next one at the end.
    candidates: Vec<usize>,
}

impl Search {
    fn finds_an_order(mut self) -> Option<bool> {
        let absent = State {
            value: None,
            used: Set::default(),
        };
        let mut steps = vec![self.step(Set::default(), vec![absent], 0)?];
        while let Some(step) = steps.last_mut() {
            if step.first == self.answered.len() {
                return Some(true);
            }
            let Some(index) = step.candidates.pop() else {
                steps.pop();
                continue;
            };
            let mut states = Vec::new();
            for State { value, used } in &step.states {
                if let Some(value) = effect(self.answered[index].action, *value) {
                    let used = used.clone();
                    add(&mut states, State { value, used });
                }
            }
            if states.is_empty() {
                continue;
            }
            // In one order, so that `tried` recognizes the same states.
            states.sort_unstable();
            let (taken, first) = (step.taken.with(index), step.first);
            if self.tried.insert((taken.clone(), states.clone())) {
                steps.push(self.step(taken, states, first)?);
            }
        }
        Some(false)
    }

    fn step(&mut self, taken: Set, states: Vec<State>, mut first: usize) -> Option<Step> {
        while first < self.answered.len() && taken.has(first) {
            first += 1;
        }
        // Latest call of an operation that may come next: the first answer of those that are left.
        let mut bound = u64::MAX;
        let mut candidates = Vec::new();
        for (index, operation) in self.answered.iter().enumerate().skip(first) {
            // Sorted by call: none of the others may come next.
            if operation.called > bound {
                break;
            }
            if !taken.has(index) {
                bound = bound.min(operation.answered.unwrap_or(u64::MAX));
                candidates.push(index);
            }
        }
        // The bound has fallen since the first ones were added.
        candidates.retain(|index| self.answered[*index].called <= bound);
        let states = self.reached(states, bound)?;
        self.order(&mut candidates, &states);
        Some(Step {
            taken,
            states,
            first,
            candidates,
        })
    }

    /// Puts those first, at the end, that are most likely to lead to an order: what changes nothing, then what
    /// was answered first. An operation that changes nothing and fits whatever the key may be now loses
    /// nothing by coming now, so it is the only one.
    fn order(&self, candidates: &mut Vec<usize>, states: &[State]) {
        let operation = |index: &usize| &self.answered[*index];
        let fits = |action, state: &State| effect(action, state.value) == Some(state.value);
        let free = candidates.iter().copied().find(|index| {
            let action = operation(index).action;
            is_read(action) && states.iter().all(|state| fits(action, state))
        });
        if let Some(free) = free {
            candidates.clear();
            candidates.push(free);
            return;
        }
        let rank = |index: &usize| {
            (
                is_read(operation(index).action),
                Reverse(operation(index).answered),
            )
        };
        // The last is tried first: a read, and of these the one that was answered first.
        candidates.sort_by_key(rank);
    }

    /// Returns what the key may become without an answered operation: by evictions, and by
    /// unanswered operations that were called in time; `None` if that takes too much effort.
    fn reached(&mut self, mut states: Vec<State>, bound: u64) -> Option<Vec<State>> {
        let mut fresh = states.clone();
        while let Some(State { value, used }) = fresh.pop() {
            self.effort = self.effort.checked_sub(1)?;
            let evicted = self.register.evicts().then(|| (None, used.clone()));
            let callable = (0..).zip(&self.unanswered);
            let callable = callable.take_while(|(_, one)| one.called <= bound);
            let unused = callable.filter(|(index, _)| {
                let is_next = |before: usize| used.has(before);
                !used.has(*index) && self.same_before[*index].is_none_or(is_next)
            });
            let changed = unused
                .filter_map(|(index, one)| Some((effect(one.action, value)?, used.with(index))));
            for (value, used) in evicted.into_iter().chain(changed) {
                let state = State { value, used };
                if add(&mut states, state.clone()) {
                    fresh.push(state);
                }
            }
        }
        Some(states)
    }
}

/// Whether an answered operation changes nothing.
fn is_read(action: Action) -> bool {
    match action {
        Action::Get { .. } => true,
        Action::Put { done, .. } | Action::Add { done, .. } | Action::Delete { done } => {
            done == Some(false)
        }
        Action::Increment { sum, .. } => sum == Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each subset of them would be 2^30 states.
    #[test]
    fn unknown_increments_are_searched_by_their_number() {
        let at = |called, answered, action| Operation {
            client: 0,
            called,
            answered,
            action,
        };
        let put = Action::Put {
            value: 10,
            done: Some(true),
        };
        let get = |value| Action::Get { value: Some(value) };
        let mut history = vec![at(0, Some(1), put), at(40, Some(41), get(25))];
        let unknown = Action::Increment { by: 1, sum: None };
        history.extend((2..32).map(|called| at(called, None, unknown)));
        let within = |history: &[Operation]| search(Register::KEEPS, history, 5000);
        assert_eq!(within(&history), Some(true));
        let more = [history.clone(), vec![at(42, Some(43), get(40))]].concat();
        assert_eq!(within(&more), Some(true), "all thirty");
        let too_many = [history, vec![at(42, Some(43), get(41))]].concat();
        assert_eq!(within(&too_many), Some(false), "one more than there are");
    }
}
