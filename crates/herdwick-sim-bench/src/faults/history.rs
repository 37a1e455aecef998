//! The history of each key, of clients' requests and replies, and whether it is linearizable.
//!
//! A key is used for a bounded number of requests, then another takes its place, so each history stays
//! short and is checked as soon as its last request has ended. When a server starts again without its
//! items, other keys take the place of all, so nothing may be lost in any history.

use herdwick_check::{Action, Operation, Register, check};

use super::machine::{Ask, Asks, Told};
use crate::keys::{self, Draws};

/// Requests for a key.
const REQUESTS_PER_KEY: usize = 24;
/// Requests under way for each key in use, about, and fewest keys in use.
const CONTENTION: usize = 6;
const KEYS_MIN: usize = 4;
/// Values are so far apart that increments do not make one into another.
const VALUE_STEP: u64 = 10_000;
/// Bytes of the longest value.
const VALUE_BYTES_MAX: usize = 1024;

/// What clients do to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// GET and PUT alone.
    Register,
    /// And DELETE, and ADD if there is one.
    Item,
    /// INCREMENT, ADD, DELETE and GET, of decimal digits.
    Counter,
}

struct History {
    key: Vec<u8>,
    used: Use,
    operations: Vec<Operation>,
    begun: usize,
    /// Requests under way.
    open: usize,
    retired: bool,
}

/// A request under way.
#[derive(Clone, Copy)]
struct OpenCall {
    history: usize,
    client: usize,
    called: u64,
    /// Its outcome unknown; of a read, a miss.
    action: Action,
}

/// How requests ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcomes {
    pub(super) begun: u64,
    pub(super) answered: u64,
    pub(super) unknown: u64,
    pub(super) nothing: u64,
    pub(super) keys: u64,
}

/// All histories.
pub(super) struct Histories {
    asks: Asks,
    draws: Draws,
    histories: Vec<History>,
    free: Vec<usize>,
    /// The histories of the keys in use.
    active: Vec<usize>,
    calls: Vec<Option<OpenCall>>,
    free_calls: Vec<u64>,
    /// The requests under way of each client.
    of_client: Vec<Vec<u64>>,
    values: u64,
    keys: u32,
    value: Vec<u8>,
    pub(super) outcomes: Outcomes,
    pub(super) violation: Option<String>,
}

impl Histories {
    /// Makes histories for so many requests under way at a time.
    pub(super) fn new(seed: u64, asks: Asks, under_way: usize) -> Self {
        let mut histories = Self {
            asks,
            // `history` in ASCII: a sequence of its own beside the others of the seed.
            draws: Draws::new(seed ^ 0x6869_7374_6f72_7900),
            histories: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            calls: Vec::new(),
            free_calls: Vec::new(),
            of_client: Vec::new(),
            values: 0,
            keys: 0,
            value: Vec::with_capacity(VALUE_BYTES_MAX),
            outcomes: Outcomes::default(),
            violation: None,
        };
        for _ in 0..(under_way / CONTENTION).max(KEYS_MIN) {
            let history = histories.open_key();
            histories.active.push(history);
        }
        histories
    }

    /// Requests under way.
    pub(super) fn open(&self) -> usize {
        self.calls.len() - self.free_calls.len()
    }

    /// Draws a request, hands it to `submit`, and records it if that returns true.
    pub(super) fn begin(
        &mut self,
        client: usize,
        now: u64,
        submit: impl FnOnce(&[u8], Ask<'_>, u64) -> bool,
    ) -> bool {
        let place = self.draws.below(self.active.len() as u32) as usize;
        let index = self.active[place];
        let action = self.draw(self.histories[index].used);
        self.fill(self.histories[index].used, action);
        let token = self.free_calls.pop().unwrap_or_else(|| {
            self.calls.push(None);
            self.calls.len() as u64 - 1
        });
        let ask = match action {
            Action::Get { .. } => Ask::Get,
            Action::Put { .. } => Ask::Put(&self.value),
            Action::Add { .. } => Ask::Add(&self.value),
            Action::Delete { .. } => Ask::Delete,
            Action::Increment { by, .. } => Ask::Increment(by),
        };
        if !submit(&self.histories[index].key, ask, token) {
            self.free_calls.push(token);
            return false;
        }
        self.calls[token as usize] = Some(OpenCall {
            history: index,
            client,
            called: now,
            action,
        });
        if self.of_client.len() <= client {
            self.of_client.resize(client + 1, Vec::new());
        }
        self.of_client[client].push(token);
        self.outcomes.begun += 1;
        let history = &mut self.histories[index];
        history.begun += 1;
        history.open += 1;
        if history.begun == REQUESTS_PER_KEY {
            history.retired = true;
            self.active[place] = self.open_key();
        }
        true
    }

    fn open_key(&mut self) -> usize {
        self.keys += 1;
        let mut key = keys::key(self.keys).to_vec();
        let used = match self.draws.below(3) {
            0 => Use::Register,
            1 if self.asks.conditional => Use::Counter,
            _ => Use::Item,
        };
        // Some keys do not fit the head of a request line.
        if self.draws.below(8) == 0 {
            key.resize(self.asks.key_bytes_max, b'k');
        }
        let history = History {
            key,
            used,
            operations: Vec::with_capacity(REQUESTS_PER_KEY),
            begun: 0,
            open: 0,
            retired: false,
        };
        if let Some(index) = self.free.pop() {
            self.histories[index] = history;
            return index;
        }
        self.histories.push(history);
        self.histories.len() - 1
    }

    fn draw(&mut self, used: Use) -> Action {
        self.values += 1;
        let value = self.values * VALUE_STEP;
        let put = Action::Put { value, done: None };
        let add = Action::Add { value, done: None };
        let delete = Action::Delete { done: None };
        let get = Action::Get { value: None };
        match (used, self.draws.below(8)) {
            (_, 0..=2) => get,
            (Use::Register, _) => put,
            (Use::Item, 3) if self.asks.conditional => add,
            (Use::Item, 3 | 4) => delete,
            (Use::Item, _) => put,
            (Use::Counter, 3) => delete,
            (Use::Counter, 4) => add,
            (Use::Counter, _) => Action::Increment { by: 1, sum: None },
        }
    }

    /// Makes the value of an action: decimal digits, or bytes that identify the value.
    fn fill(&mut self, used: Use, action: Action) {
        let (Action::Put { value, .. } | Action::Add { value, .. }) = action else {
            return;
        };
        self.value.clear();
        if used == Use::Counter {
            self.value.extend(value.to_string().into_bytes());
        } else {
            content(self.asks.sizes, value, &mut self.value);
        }
    }

    /// Ends a request.
    pub(super) fn end(&mut self, token: u64, now: u64, told: Told<'_>) {
        let call = usize::try_from(token).ok();
        let call = call.and_then(|token| self.calls.get_mut(token)?.take());
        let Some(call) = call else {
            self.violate("a request ended twice, or was never made".to_owned());
            return;
        };
        self.free_calls.push(token);
        self.of_client[call.client].retain(|other| *other != token);
        let used = self.histories[call.history].used;
        match explained(call.action, self.value_of(used, told), told) {
            Ok(Some((action, answered))) => {
                let unknown = u64::from(!answered);
                self.outcomes.unknown += unknown;
                self.outcomes.answered += 1 - unknown;
                self.histories[call.history].operations.push(Operation {
                    client: call.client,
                    called: call.called,
                    answered: answered.then_some(now),
                    action,
                });
            }
            Ok(None) => self.outcomes.nothing += 1,
            Err(odd) => self.violate(format!("{:?} was answered by {odd}", call.action)),
        }
        let history = &mut self.histories[call.history];
        history.open -= 1;
        if history.retired && history.open == 0 {
            self.finish(call.history);
        }
    }

    /// Ends every request of a client that is gone, or may not learn more.
    pub(super) fn abandon(&mut self, client: usize, now: u64) {
        let open = self.of_client.get_mut(client).map(std::mem::take);
        let mut open = open.unwrap_or_default();
        open.sort_unstable();
        for token in open {
            self.end(token, now, Told::Unknown);
        }
    }

    /// Takes other keys into use.
    pub(super) fn retire_all(&mut self) {
        for place in 0..self.active.len() {
            let old = self.active[place];
            self.histories[old].retired = true;
            if self.histories[old].open == 0 {
                self.finish(old);
            }
            self.active[place] = self.open_key();
        }
    }

    /// Checks a history, and frees it.
    fn finish(&mut self, index: usize) {
        self.free.push(index);
        self.outcomes.keys += 1;
        let history = &mut self.histories[index];
        let mut operations = std::mem::take(&mut history.operations);
        if history.used == Use::Register {
            forget_unread(&mut operations);
        }
        if let Err(violation) = check(Register::KEEPS, &operations) {
            let key = String::from_utf8_lossy(&history.key).into_owned();
            self.violate(format!("key {key}: {violation}"));
        }
    }

    pub(super) fn violate(&mut self, what: String) {
        // Others may follow from the first one.
        self.violation.get_or_insert(what);
    }

    /// The value that a GET found; `Err` if it is none that was stored.
    fn value_of(&self, used: Use, told: Told<'_>) -> Result<Option<u64>, &'static str> {
        let Told::Value(bytes) = told else {
            return Ok(None);
        };
        if used == Use::Counter {
            let digits = std::str::from_utf8(bytes).ok();
            let number = digits.and_then(|digits| digits.parse().ok());
            return number.map(Some).ok_or("a value that is no number");
        }
        let Some(head) = bytes.first_chunk::<8>() else {
            return Err("a value that is too short");
        };
        let value = u64::from_le_bytes(*head);
        let mut whole = Vec::with_capacity(bytes.len());
        content(self.asks.sizes, value, &mut whole);
        // Size and bytes follow from the number, so a mixture of two values is none.
        let same = whole == bytes;
        same.then_some(Some(value)).ok_or("a torn value")
    }
}

/// Writes the bytes of a value: its number, then bytes that depend on it.
fn content(sizes: &[usize], value: u64, out: &mut Vec<u8>) {
    let mut draws = Draws::new(value);
    let size = sizes[draws.below(sizes.len() as u32) as usize];
    out.extend(value.to_le_bytes());
    while out.len() < size {
        out.extend(draws.next().to_le_bytes());
    }
    out.truncate(size.max(8));
}

/// A PUT of unknown outcome whose value no GET found explains nothing where there are only GETs and
/// PUTs: without it the search is short.
fn forget_unread(operations: &mut Vec<Operation>) {
    let read: Vec<u64> = operations
        .iter()
        .filter_map(|operation| match operation.action {
            Action::Get { value } => value,
            _ => None,
        })
        .collect();
    operations.retain(|operation| match operation.action {
        Action::Put { value, done: None } => read.contains(&value),
        _ => true,
    });
}

/// Returns an action with its answer, and whether there was one; `None` if it had no effect.
fn explained(
    action: Action,
    found: Result<Option<u64>, &'static str>,
    told: Told<'_>,
) -> Result<Option<(Action, bool)>, String> {
    let found = found.map_err(str::to_owned)?;
    let answered = match (action, told) {
        // A GET without an answer says nothing of the key.
        (_, Told::Nothing) | (Action::Get { .. }, Told::Unknown) => return Ok(None),
        // It may take effect at any time after its call, or never: the check assumes
        // what the answers need.
        (_, Told::Unknown) => return Ok(Some((action, false))),
        (Action::Get { .. }, Told::Value(_)) => Action::Get { value: found },
        (Action::Get { .. }, Told::NotDone) => Action::Get { value: None },
        (Action::Put { value, .. }, Told::NoRoom) => Action::Put {
            value,
            done: Some(false),
        },
        // Another store than one that may be full has room for all, so a PUT that is not done is a violation.
        (Action::Put { value, .. }, Told::Done | Told::DoneWith(_)) => Action::Put {
            value,
            done: Some(true),
        },
        (Action::Add { value, .. }, Told::Done | Told::DoneWith(_) | Told::NotDone) => {
            Action::Add {
                value,
                done: Some(!matches!(told, Told::NotDone)),
            }
        }
        (Action::Delete { .. }, Told::Done | Told::DoneWith(_) | Told::NotDone) => Action::Delete {
            done: Some(!matches!(told, Told::NotDone)),
        },
        (Action::Increment { by, .. }, Told::DoneWith(sum)) => Action::Increment {
            by,
            sum: Some(Some(sum)),
        },
        (Action::Increment { by, .. }, Told::NotDone) => Action::Increment {
            by,
            sum: Some(None),
        },
        (_, Told::Odd(what)) => return Err(what.to_owned()),
        (_, told) => return Err(format!("{told:?}")),
    };
    Ok(Some((answered, true)))
}
