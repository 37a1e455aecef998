//! What a client can know of one of its keys: every state that agrees with all replies so far.

use std::collections::VecDeque;

use herdwick_herd::{Answer, Outcome, wire::ReplyStatus};
use herdwick_request::{Arith, Delete, EXPTIME_PAST, Get, Mode, Op, Put};

use crate::{fixture::REPLY_BYTES_MAX, model::Stored};

/// An item, or `None`.
type State = Option<Item>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) value: Vec<u8>,
    pub(crate) flags: u32,
    /// Unknown after a change without a reply.
    pub(crate) version: Option<u64>,
}

/// An operation, as its schedule generated it.
#[derive(Clone, Debug)]
pub(crate) enum Doing {
    Get,
    Touch(u32),
    Put(Mode, Vec<u8>, u32, Option<u64>),
    Delete(Option<u64>),
    Incr(u64),
}

impl Doing {
    pub(crate) fn op(&self) -> Op<'_> {
        match self {
            Self::Get => Op::Get(Get::default()),
            Self::Touch(exptime) => Op::Get(Get {
                touch: Some(*exptime),
                ..Get::default()
            }),
            Self::Put(mode, value, flags, compare) => Op::Put(Put {
                mode: *mode,
                value,
                flags: *flags,
                compare: *compare,
                ..Put::default()
            }),
            Self::Delete(compare) => Op::Delete(Delete {
                compare: *compare,
                ..Delete::default()
            }),
            Self::Incr(delta) => Op::Arith(Arith {
                delta: *delta,
                vivify: Some(0),
                initial: 1,
                ..Arith::default()
            }),
        }
    }

    fn is_read(&self) -> bool {
        matches!(self, Self::Get)
    }

    fn compare(&self) -> Option<u64> {
        match self {
            Self::Put(_, _, _, compare) | Self::Delete(compare) => *compare,
            Self::Get | Self::Touch(_) | Self::Incr(_) => None,
        }
    }

    /// Every possible status if it finds `state`, each with the state after it.
    fn ends(&self, state: &State) -> Vec<(ReplyStatus, State)> {
        let exists = (ReplyStatus::Exists, state.clone());
        match (state, self.compare()) {
            (None, Some(_)) => return vec![(ReplyStatus::NotFound, None)],
            (Some(item), Some(version)) => match item.version {
                Some(known) if known == version => {}
                Some(_) => return vec![exists],
                None => return vec![exists, self.end(state)],
            },
            (_, None) => {}
        }
        vec![self.end(state)]
    }

    /// Its status and the state after it if no version comparison fails.
    fn end(&self, state: &State) -> (ReplyStatus, State) {
        let stored = |value: Vec<u8>, flags| {
            let version = None;
            let item = Item {
                value,
                flags,
                version,
            };
            (ReplyStatus::Done, Some(item))
        };
        match (self, state) {
            (Self::Get | Self::Touch(_) | Self::Delete(_), None) => (ReplyStatus::NotFound, None),
            (Self::Touch(EXPTIME_PAST) | Self::Delete(_), _) => (ReplyStatus::Done, None),
            (Self::Get | Self::Touch(_), _) => (ReplyStatus::Done, state.clone()),
            (Self::Put(Mode::Add, ..), Some(_))
            | (Self::Put(Mode::Replace | Mode::Append | Mode::Prepend, ..), None) => {
                (ReplyStatus::NotStored, state.clone())
            }
            (Self::Put(Mode::Append, more, ..), Some(item)) => {
                stored([&item.value[..], more].concat(), item.flags)
            }
            (Self::Put(_, value, flags, _), _) => stored(value.clone(), *flags),
            (Self::Incr(_), None) => stored(b"1".to_vec(), 0),
            (Self::Incr(delta), Some(item)) => {
                let number = item.number().wrapping_add(*delta);
                stored(number.to_string().into_bytes(), item.flags)
            }
        }
    }

    /// The states after it that agree with `answer`, if it found `state`.
    fn told(&self, state: &State, answer: &Answer<'_>) -> Vec<State> {
        let agrees = |(status, after): (ReplyStatus, State)| {
            let answered = match answer.status {
                ReplyStatus::ReplyTooLarge => ReplyStatus::Done,
                status => status,
            };
            (status == answered).then_some(())?;
            if status == ReplyStatus::Done {
                return self.shown(state, after, answer);
            }
            (answer.status == status).then_some(after)
        };
        self.ends(state).into_iter().filter_map(agrees).collect()
    }

    /// The state after it was done, if `answer` shows what it would show.
    fn shown(&self, before: &State, after: State, answer: &Answer<'_>) -> Option<State> {
        match (self, before) {
            (Self::Get | Self::Touch(_), Some(item)) => {
                let same = item
                    .version
                    .is_none_or(|known| Some(known) == answer.number);
                let whole = (answer.value, answer.flags()) == (&item.value[..], item.flags);
                let too_large = item.value.len() + 16 > REPLY_BYTES_MAX
                    && answer.value_len == item.value.len() as u64;
                // What a touch has read may have changed before its retry.
                let gone = matches!(self, Self::Touch(_)) && answer.value_len == 0;
                let fits = match answer.status {
                    ReplyStatus::ReplyTooLarge => too_large || gone,
                    _ => whole,
                };
                (same && fits).then(|| after.map(|item| item.of(answer.number)))
            }
            (Self::Incr(_), _) => {
                let item = after?;
                (answer.number == Some(item.number())).then_some(Some(item))
            }
            (Self::Put(..), _) => Some(after.map(|item| item.of(answer.number))),
            _ => Some(after),
        }
    }
}

impl Item {
    fn number(&self) -> u64 {
        std::str::from_utf8(&self.value).unwrap().parse().unwrap()
    }

    fn of(self, version: Option<u64>) -> Self {
        Self { version, ..self }
    }
}

/// One key, used by one client at a time.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: Vec<u8>,
    pub(crate) is_counter: bool,
    /// At least one of these states is the actual one.
    possible: Vec<State>,
    /// Outstanding operations, in the order of submission.
    outstanding: VecDeque<(u64, Doing)>,
}

impl Key {
    pub(crate) fn new(name: Vec<u8>, is_counter: bool) -> Self {
        Self {
            name,
            is_counter,
            possible: vec![None],
            outstanding: VecDeque::new(),
        }
    }

    /// The item that is likely stored.
    pub(crate) fn guess(&self) -> Option<&Item> {
        self.possible.last().and_then(Option::as_ref)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    pub(crate) fn submitted(&mut self, token: u64, doing: Doing) {
        self.outstanding.push_back((token, doing));
    }

    /// Checks an outcome against all possible states, and replaces them by those after it.
    pub(crate) fn end(&mut self, token: u64, outcome: &Outcome<'_>) {
        let place = self.outstanding.iter().position(|(of, _)| *of == token);
        let place = place.expect("one outcome for each request");
        let (_, doing) = self.outstanding.remove(place).unwrap();
        let after: Vec<State> = match outcome {
            Outcome::Timeout => return,
            Outcome::Answered(answer) => {
                let told = self
                    .possible
                    .iter()
                    .flat_map(|state| doing.told(state, answer));
                told.collect()
            }
            Outcome::Unknown => {
                assert!(!doing.is_read(), "reads change nothing");
                let ends = self.possible.iter().flat_map(|state| doing.ends(state));
                let after = ends.map(|(_, after)| after);
                self.possible.iter().cloned().chain(after).collect()
            }
        };
        assert!(
            !after.is_empty(),
            "{doing:?} gave {outcome:?} of {:?}",
            self.possible
        );
        let mut overtaken = self.outstanding.iter().take(place);
        let in_order = place == 0 || doing.is_read() && overtaken.all(|(_, doing)| doing.is_read());
        assert!(in_order, "{doing:?} overtook {:?}", self.outstanding);
        self.possible.clear();
        for state in after {
            if !self.possible.contains(&state) {
                self.possible.push(state);
            }
        }
    }

    /// Whether `stored` is one of the possible states.
    pub(crate) fn may_be(&self, stored: Option<&Stored>) -> bool {
        self.possible.iter().any(|state| match (state, stored) {
            (None, None) => true,
            (Some(item), Some(stored)) => {
                let same = item.version.is_none_or(|known| known == stored.version);
                (&item.value, item.flags) == (&stored.value, stored.flags) && same
            }
            _ => false,
        })
    }
}
