//! Sessions with full windows, in bursts, that leave at any time: idle, or with everything in
//! flight.

use std::{collections::HashMap, time::Duration};

use herdwick::{Answer, Key, Mode, Op, Put, Session, Ticket};

use crate::{
    model::{Expected, Own},
    stage::{Stage, Visit},
    transports::Kind,
};

/// Few enough that several requests for one key are in flight together.
const KEYS: usize = 24;
/// Values above this length may be too large for a fabric's reply.
const REPLY_BYTES_MAX: usize = 4000;
/// Most requests in flight over text, where nothing else bounds them.
const IN_FLIGHT_MAX: usize = 512;

/// A session with a window that is kept full, and what is expected of each answer.
pub(crate) struct Full {
    session: Session,
    own: Own,
    asked: HashMap<Ticket, Asked>,
    /// Whether the session may end, because its process is stopped from time to time.
    may_end: bool,
    pub(crate) answered: u64,
    kind: Kind,
}

struct Asked {
    index: usize,
    expected: Expected,
    what: What,
    at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Get,
    Set,
    Delete,
}

impl Full {
    /// Opens a session; `None` if there are no leases left.
    pub(crate) fn open(visit: &mut Visit<'_>, kind: Kind, may_end: bool) -> Option<Self> {
        let window = [1, 8, 32, 64, 128][visit.chance.below(5)];
        Some(Self {
            session: visit.stage.places.session(kind, window)?,
            own: Own::new(visit, kind, KEYS),
            asked: HashMap::new(),
            may_end,
            answered: 0,
            kind,
        })
    }

    /// Continues with another session, under other names: requests in flight may still be executed.
    pub(crate) fn reopen(&mut self, visit: &mut Visit<'_>, kind: Kind, number: u64) -> bool {
        let Some(session) = visit.stage.places.session(kind, 32) else {
            return false;
        };
        self.session = session;
        self.own.rename(number);
        self.asked.clear();
        true
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.session.broken().is_some()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.asked.len()
    }

    /// Submits as many requests as the session accepts.
    pub(crate) fn fill(&mut self, visit: &mut Visit<'_>) {
        let now = visit.stage.clock.now();
        while self.asked.len() < IN_FLIGHT_MAX && self.submit(visit, now) {}
        self.session.flush(now);
    }

    fn submit(&mut self, visit: &mut Visit<'_>, now: Duration) -> bool {
        let index = visit.chance.below(KEYS);
        let (name, before) = (self.own.key(index), self.own.expected(index));
        let key = Key::new(name.as_bytes()).unwrap();
        let (what, ticket) = match visit.chance.below(8) {
            0..3 => {
                let len = match visit.percent(90) {
                    true => 1 + visit.chance.below(4090),
                    false => visit.length(20_000),
                };
                // Recorded as stored only if it is accepted.
                let value = self.own.peek(index, len);
                let op = Op::Store(Mode::Set, Put::new(&value));
                let ticket = self.session.submit(now, key, &op);
                if ticket.is_some() {
                    self.own.store(index, len);
                }
                (What::Set, ticket)
            }
            3 => {
                let ticket = self.session.submit(now, key, &Op::Delete);
                if ticket.is_some() {
                    self.own.delete(index);
                }
                (What::Delete, ticket)
            }
            _ => (What::Get, self.session.submit(now, key, &Op::Get)),
        };
        let Some(ticket) = ticket else {
            return false;
        };
        let asked = Asked {
            index,
            expected: before,
            what,
            at: now,
        };
        self.asked.insert(ticket, asked);
        true
    }

    /// Takes the answers that have arrived, or waits for some.
    pub(crate) fn take(&mut self, stage: &Stage) {
        self.session.wait(stage.clock.now());
        let now = stage.clock.now();
        let Self {
            session,
            own,
            asked,
            may_end,
            answered,
            kind,
        } = self;
        session.poll(now, &mut |ticket, answer| {
            let asked = asked.remove(&ticket).expect("one answer to each");
            *answered += 1;
            let key = own.key(asked.index);
            match (asked.what, answer) {
                (What::Get, Answer::Hit(hit)) if late(*kind, asked.expected) => {
                    own.check_late(stage, asked.index, (asked.expected, Some(hit.value)));
                }
                // Deleted since, or it counts as missing.
                (What::Get, Answer::Miss) if late(*kind, asked.expected) => {
                    own.check_late(stage, asked.index, (asked.expected, None));
                }
                (What::Get, Answer::Hit(hit)) => {
                    let judged = (asked.expected, Some(hit.value));
                    own.check(stage, asked.index, judged, [asked.at, now]);
                }
                (What::Get, Answer::Miss) => {
                    own.check(stage, asked.index, (asked.expected, None), [asked.at, now]);
                }
                (What::Set, Answer::Done) | (What::Delete, Answer::Done | Answer::Miss) => {}
                (_, Answer::Lost(_)) if *may_end => {}
                (what, other) => panic!("{key}: {what:?} has the outcome {other:?}"),
            }
        });
    }
}

/// Whether a read is answered as text, after the fabric has replied that the value is too large.
/// Requests that the session has submitted since then are executed first.
fn late(kind: Kind, expected: Expected) -> bool {
    let large = matches!(expected, Expected::Stored { len, .. } if len > REPLY_BYTES_MAX);
    kind.is_lease() && large
}

/// Connects, keeps its window full from time to time, and leaves.
pub(crate) fn visit(visit: &mut Visit<'_>) {
    let kind = visit.kind(Kind::is_session);
    let Some(mut full) = Full::open(visit, kind, false) else {
        visit.stage.count("refused a lease", 1);
        return;
    };
    for _ in 0..visit.between(1, 6) {
        burst(visit, &mut full);
        if visit.percent(50) {
            drain(visit.stage, &mut full);
        }
        visit.rest(100);
    }
    // The other clients leave with requests in flight.
    if visit.percent(40) {
        drain(visit.stage, &mut full);
    } else {
        full.fill(visit);
        visit.in_doubt = true;
        visit.stage.count("left with full windows", 1);
    }
    visit
        .stage
        .count(&format!("windows over {kind:?}"), full.answered);
}

/// Keeps the window full for a moment.
pub(crate) fn burst(visit: &mut Visit<'_>, full: &mut Full) {
    let end = visit.stage.clock.now() + Duration::from_millis(visit.between(2, 60));
    while visit.stage.lasts() && visit.stage.clock.now() < end && !full.has_ended() {
        full.fill(visit);
        full.take(visit.stage);
    }
}

/// Takes answers until nothing is in flight.
pub(crate) fn drain(stage: &Stage, full: &mut Full) {
    while full.in_flight() > 0 && !full.has_ended() {
        full.take(stage);
    }
}
