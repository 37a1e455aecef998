//! The search for an order: Wing and Gong's, with Lowe's memory of what was tried. A configuration
//! is the set of answered operations that have taken effect, and what the key may be then. One that
//! led nowhere is not entered again.
//!
//! Operations without an answer are no part of that set: there may be many, each may come anywhere
//! or never, and their subsets would make the search exponential. They take effect only where one
//! is needed to reach a value, and a [`State`] remembers which. Of those with the same action, as many
//! increments by one, the earliest call is taken first: it may come wherever a later one may, so the others
//! in its place lead no further.

use std::collections::HashSet;

use crate::{
    operation::Operation,
    register::{Register, Value, effect},
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
        tried: HashSet::new(),
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

/// A set of operations, a bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Set(Vec<u64>);

impl Set {
    fn has(&self, index: usize) -> bool {
        let word = self.0.get(index / 64);
        word.is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    fn with(&self, index: usize) -> Self {
        let mut words = self.0.clone();
        words.resize(words.len().max(index / 64 + 1), 0);
        words[index / 64] |= 1 << (index % 64);
        Self(words)
    }

    fn is_within(&self, other: &Self) -> bool {
        let theirs = other.0.iter().copied().chain(std::iter::repeat(0));
        self.0
            .iter()
            .zip(theirs)
            .all(|(ours, theirs)| ours & !theirs == 0)
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

struct Search {
    register: Register,
    /// By the time of their call, as are the others.
    answered: Vec<Operation>,
    unanswered: Vec<Operation>,
    /// For each of these, the one that takes effect before it: see [`same_before`].
    same_before: Vec<Option<usize>>,
    tried: HashSet<(Set, Vec<State>)>,
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
    next: usize,
    /// Latest call of an operation that may come next: the first answer of those that are left.
    bound: u64,
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
            let Some(index) = Self::candidate(&self.answered, step) else {
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
        let mut bound = u64::MAX;
        for index in first..self.answered.len() {
            if self.answered[index].called > bound {
                break;
            }
            if !taken.has(index) {
                bound = bound.min(self.answered[index].answered.unwrap_or(u64::MAX));
            }
        }
        Some(Step {
            taken,
            states: self.reached(states, bound)?,
            first,
            next: first,
            bound,
        })
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

    /// Returns the next operation that may take effect in a configuration.
    fn candidate(answered: &[Operation], step: &mut Step) -> Option<usize> {
        while let Some(operation) = answered.get(step.next) {
            if operation.called > step.bound {
                return None;
            }
            step.next += 1;
            if !step.taken.has(step.next - 1) {
                return Some(step.next - 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::Action;

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
