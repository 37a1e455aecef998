//! Reads from several servers at once: all requests are sent before the first answer is awaited, and one
//! server that is slow, or has to be dialled, does not delay what the others answer.

use super::{
    Client,
    caller::{Attempts, Caller, Reads, Surroundings},
};
use crate::{Error, Hit, Item, Key, sleep::Sleep};

/// What is read from one server, and its answer.
pub(crate) struct Part<'a> {
    pub(crate) client: &'a mut Client,
    pub(crate) keys: Vec<Key<'a>>,
}

/// Reads all of `parts`. Returns the items of each, in the order of its keys, or why there are none.
pub(crate) fn read(parts: &mut [Part<'_>]) -> Vec<Result<Vec<Option<Item>>, Error>> {
    let callers = parts.iter_mut().map(|part| Share {
        attempts: part.client.caller.attempts(),
        caller: &mut part.client.caller,
        keys: &part.keys,
        reads: Reads::new(&part.keys),
        items: vec![None; part.keys.len()],
        outcome: None,
    });
    let mut shares: Vec<_> = callers.collect();
    // Those that are connected go first: to dial takes longer than all that they do.
    run(&mut shares, |share| share.is_connected());
    // Whatever has lost its session by now dials again, until it has an outcome.
    while shares.iter().any(|share| share.outcome.is_none()) {
        run(&mut shares, |_| true);
    }
    let outcomes = shares.into_iter().filter_map(|share| share.outcome);
    outcomes.collect()
}

/// The part of one server.
struct Share<'a, S> {
    caller: &'a mut Caller<S>,
    attempts: Attempts,
    keys: &'a [Key<'a>],
    reads: Reads<'a>,
    items: Vec<Option<Item>>,
    outcome: Option<Result<Vec<Option<Item>>, Error>>,
}

/// Where a share is after a step.
#[derive(PartialEq, Eq)]
enum Step {
    Waiting,
    /// It has an outcome, or needs another session.
    Over,
}

/// Gives a session to each share that `chosen` accepts and has no outcome, and reads until each has
/// one, or has lost its session.
fn run<S: Surroundings>(shares: &mut [Share<'_, S>], chosen: impl Fn(&Share<'_, S>) -> bool) {
    let mut waiting: Vec<_> = shares
        .iter_mut()
        .filter(|share| share.outcome.is_none() && chosen(share))
        .collect();
    // Sessions are begun one after the other, each in its share of the time that is left.
    let mut parts = waiting.len() as u32;
    waiting.retain_mut(|share| {
        let has_session = share.start(parts);
        // What this one has left of its share is for the others.
        parts -= 1;
        has_session
    });
    loop {
        waiting.retain_mut(|share| share.step() == Step::Waiting);
        if waiting.is_empty() {
            return;
        }
        sleep(&mut waiting);
    }
}

impl<S: Surroundings> Share<'_, S> {
    fn is_connected(&self) -> bool {
        self.caller.session().is_some()
    }

    /// Finds a session, for which it may use one `parts`th of the time left. Whether it has one.
    fn start(&mut self, parts: u32) -> bool {
        // What a lost session has answered is read again: reads change nothing.
        self.reads = Reads::new(self.keys);
        let found = self.caller.next_session(&mut self.attempts, parts);
        self.outcome = found.err().map(Err);
        self.outcome.is_none()
    }

    fn step(&mut self) -> Step {
        let Some((session, call)) = self.caller.current(&self.attempts) else {
            return Step::Over;
        };
        let items = &mut self.items;
        let mut keep = |place: usize, hit: Option<Hit<'_>>| items[place] = hit.map(Item::from);
        let lost = match self.reads.step(session, &call, &mut keep) {
            Ok(false) => return Step::Waiting,
            Ok(true) => {
                let read = std::mem::replace(&mut self.reads, Reads::new(&[])).finish();
                self.outcome = Some(read.map(|()| std::mem::take(&mut self.items)));
                return Step::Over;
            }
            Err(lost) => lost,
        };
        let repeats = self.caller.after_loss(&self.attempts, lost);
        self.outcome = repeats.err().map(Err);
        Step::Over
    }
}

/// Sleeps until one of `waiting` has something to do.
fn sleep<S: Surroundings>(waiting: &mut [&mut Share<'_, S>]) {
    let sleeps = waiting.iter_mut().map(|share| {
        let (session, call) = share.caller.current(&share.attempts)?;
        session.sleep(call.now())
    });
    // If one has something to do now, none sleeps.
    let sleeps: Option<Vec<_>> = sleeps.collect();
    if let Some(sleeps) = sleeps {
        Sleep::run_all(&sleeps);
    }
    for share in waiting {
        if let Some((session, _)) = share.caller.current(&share.attempts) {
            session.disarm();
        }
    }
}
