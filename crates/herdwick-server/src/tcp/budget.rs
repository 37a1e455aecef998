//! What connections may hold in memory beside the store, and who is given up for it. Whoever needs
//! much waits until there is room; only who keeps others waiting, and does not move, is cut.

use std::{cmp::Reverse, collections::VecDeque, time::Duration};

use herdwick_memcache::GET_LINE_BYTES_MAX;

use crate::{
    config::Timeouts,
    counters::{Closed, WorkerCounters},
};

use super::{
    connection::{Connection, Room},
    lots::WorkerLots,
};

/// For buffers of all connections together: this part of `-m` ...
const AMPLE_PART: usize = 4;
/// ... but not less, and not more. What remains of 64 MiB is for forwarded batches, code and
/// stacks.
const AMPLE_MIN: usize = 16 << 20;
const AMPLE_MAX: usize = 32 << 20;
/// At this many times as much, which small buffers and those that wait can come to, whoever has
/// stalled longest is given up at the next look, and then the youngest of those that wait. Not
/// before: the replies that come back in the forwarded batches of one pass may be more than that
/// for a moment.
const HARD: usize = 2;
/// What a connection holds that is not worth giving it up for.
const SMALL_BYTES: usize = 4 << 10;
/// While some wait, those that hold what they wait for are looked at so often.
pub(super) const CHECK: Duration = Duration::from_millis(100);

/// The memory of one worker's connections.
pub(super) struct Budget {
    ample: usize,
    /// Bytes of buffers held now.
    held: usize,
    /// Of those, the ones of connections that wait. They hold nobody up: what there is room for is
    /// reckoned without them, or else those that wait could wait for one another.
    waiting: usize,
    /// Connections that do not wait and hold more than is small.
    holders: usize,
    /// Bytes that no waiting and no reading of the peer's would give back.
    besides: usize,
    item_bytes_max: usize,
    /// The connections that wait until there is room, in the order of their coming.
    queue: VecDeque<u32>,
    /// How many have been told that there is room and have not used it yet.
    granted: usize,
    /// The second last looked at.
    second: u32,
    next_check: Duration,
    /// At the last look, somebody waited.
    short: bool,
}

/// What a connection holds, as last counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    buffers: usize,
    besides: usize,
    waits: bool,
}

impl Share {
    fn of(connection: &Connection) -> Self {
        Self {
            buffers: connection.buffers(),
            besides: connection.stream.memory(),
            waits: connection.waits(),
        }
    }

    fn is_holder(self) -> bool {
        !self.waits && self.buffers > SMALL_BYTES
    }
}

impl Budget {
    /// For one of `workers` that share what is ample.
    pub(super) fn new(memory_bytes: usize, workers: usize, item_bytes_max: usize) -> Self {
        let all = (memory_bytes / AMPLE_PART).clamp(AMPLE_MIN, AMPLE_MAX);
        Self {
            ample: (all / workers).max(2 * item_bytes_max),
            held: 0,
            waiting: 0,
            holders: 0,
            besides: 0,
            item_bytes_max: item_bytes_max.max(GET_LINE_BYTES_MAX),
            queue: VecDeque::new(),
            granted: 0,
            second: 0,
            next_check: Duration::ZERO,
            short: false,
        }
    }

    /// Notes the end of a connection's turn at second `now`.
    pub(super) fn note(&mut self, connection: &mut Connection, now: u32) {
        let (half_sent, quiet) = (connection.is_half_sent(), connection.is_quiet());
        connection.activity.note(now, half_sent, quiet);
        self.count(connection);
    }

    /// Counts what a connection holds.
    pub(super) fn count(&mut self, connection: &mut Connection) {
        let share = Share::of(connection);
        self.uncount(connection.share);
        self.held += share.buffers;
        self.besides += share.besides;
        self.waiting += if share.waits { share.buffers } else { 0 };
        self.holders += usize::from(share.is_holder());
        connection.share = share;
    }

    fn uncount(&mut self, share: Share) {
        self.held -= share.buffers;
        self.besides -= share.besides;
        self.waiting -= if share.waits { share.buffers } else { 0 };
        self.holders -= usize::from(share.is_holder());
    }

    /// Bytes of memory held now.
    pub(super) fn held(&self) -> usize {
        self.held + self.besides
    }

    /// Bytes held by those that do not wait.
    fn busy(&self) -> usize {
        self.held - self.waiting
    }

    /// Forgets what the connection at `place` held, or waited for.
    pub(super) fn forget(&mut self, connection: &Connection, place: u32) {
        self.uncount(connection.share);
        match connection.room {
            Room::Waiting => self.queue.retain(|&waits| waits != place),
            Room::Granted => self.granted -= 1,
            Room::Enough | Room::Wanted => {}
        }
    }

    /// Whether a connection may hold much: a large value, or a long line. One that already holds
    /// replies behind a value may always have that: it gives nothing back before.
    pub(super) fn allows(&self, connection: &Connection) -> bool {
        connection.room == Room::Granted
            || connection.behind.is_some()
            || self.queue.is_empty() && self.has_room()
    }

    /// Whether a connection may hold a large value of each worker at a time.
    pub(super) fn is_plentiful(&self) -> bool {
        self.busy() < self.ample / 2
    }

    fn has_room(&self) -> bool {
        self.busy() + self.granted * self.item_bytes_max < self.ample
    }

    /// The connection at `place` goes on when there is room.
    pub(super) fn wait(&mut self, connection: &mut Connection, place: u32) {
        connection.room = Room::Waiting;
        self.queue.push_back(place);
    }

    /// A connection that has waited, and waits no longer.
    pub(super) fn next(&mut self) -> Option<u32> {
        // Small buffers are nobody's to be cut for, and must not hold the queue up for good.
        let alone = self.granted == 0 && self.holders == 0;
        if self.queue.is_empty() || !alone && !self.has_room() {
            return None;
        }
        self.granted += 1;
        self.queue.pop_front()
    }

    /// The connection has begun to hold what it was granted.
    pub(super) fn used(&mut self, connection: &mut Connection) {
        match connection.room {
            Room::Granted => self.granted -= 1,
            Room::Wanted => {}
            Room::Enough | Room::Waiting => return,
        }
        connection.room = Room::Enough;
    }

    /// Whether somebody waits.
    pub(super) fn waits(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether it is time to look.
    #[inline]
    pub(super) fn is_due(&self, now: Duration, second: u32) -> bool {
        second != self.second || now >= self.next_check
    }

    fn is_over(&self) -> bool {
        self.held > HARD * self.ample
    }

    /// The places of those that are to be given up, counted by reason.
    #[cold]
    pub(super) fn check(
        &mut self,
        connections: &mut [Option<Connection>],
        lots: &WorkerLots,
        timeout: Timeouts,
        (now, second): (Duration, u32),
        counters: &mut WorkerCounters,
    ) -> Vec<(u32, Closed)> {
        let mut given_up = Vec::new();
        if second != self.second {
            self.second = second;
            let late = |connection: &Connection| verdict(connection, timeout, second);
            let live = connections.iter().zip(0u32..);
            given_up.extend(live.filter_map(|(c, place)| Some((place, late(c.as_ref()?)?))));
        }
        if now >= self.next_check {
            self.next_check = now + CHECK;
            self.check_activity(connections, lots);
            self.shed(connections, lots, &mut given_up);
        }
        for (_, reason) in &given_up {
            counters.closed(*reason);
        }
        given_up
    }

    /// Notes who moves and who does not while others wait.
    fn check_activity(&mut self, connections: &mut [Option<Connection>], lots: &WorkerLots) {
        let short = self.is_short() || lots.any_wanted();
        let begins = short && !std::mem::replace(&mut self.short, short);
        if short {
            for connection in connections.iter_mut().flatten() {
                let stalls = connection.peer_is_late();
                connection.activity.check(begins, stalls);
            }
        }
    }

    /// Whether more is held than should be, or somebody waits for less to be.
    fn is_short(&self) -> bool {
        self.waits() || self.busy() > self.ample || self.is_over()
    }

    /// Adds those that stall longest, until nobody has to wait for what they hold; and if that is
    /// not enough, those that have waited least.
    fn shed(
        &mut self,
        connections: &[Option<Connection>],
        lots: &WorkerLots,
        given_up: &mut Vec<(u32, Closed)>,
    ) {
        let short = self.is_short();
        if !short && !lots.any_wanted() {
            return;
        }
        let most = HARD * self.ample;
        let (mut held, mut busy) = (self.held, self.busy());
        let mut wanted = lots.wanted();
        for (place, connection) in stalled(connections, self.is_over()) {
            let bytes = connection.buffers();
            let frees_lot = connection
                .lot()
                .is_some_and(|(owner, lot)| wanted[owner].take(lot));
            let is_short = busy >= self.ample || held > most;
            let frees_room = short && bytes > SMALL_BYTES && is_short;
            if frees_lot || frees_room {
                held = held.saturating_sub(bytes);
                busy = busy.saturating_sub(bytes);
                given_up.push((place, Closed::Stalled));
            }
        }
        // What is over may also be replies that are being read: those that wait give way for what
        // they hold themselves.
        let mut waiting = self.waiting;
        let youngest = self.queue.iter().rev().copied().chain(lots.youngest());
        for place in youngest {
            if held <= most || waiting <= self.ample {
                break;
            }
            if let Some(connection) = &connections[place as usize] {
                let bytes = connection.buffers();
                held = held.saturating_sub(bytes);
                waiting = waiting.saturating_sub(bytes);
                given_up.push((place, Closed::Stalled));
            }
        }
    }
}

/// Those whose peers are late, and, unless more is held than may be (`is_over`), have stalled; the
/// longest first.
fn stalled(connections: &[Option<Connection>], is_over: bool) -> Vec<(u32, &Connection)> {
    let all = (0u32..).zip(connections);
    let late = |connection: &&Connection| {
        connection.peer_is_late() && (is_over || connection.activity.has_stalled())
    };
    let late = all.filter_map(|(place, c)| Some((place, c.as_ref().filter(late)?)));
    let mut stalled: Vec<_> = late.collect();
    stalled.sort_by_cached_key(|(_, c)| Reverse((c.activity.missed(), c.buffers())));
    stalled
}

/// Whether, and why, a connection has waited too long.
fn verdict(connection: &Connection, timeout: Timeouts, now: u32) -> Option<Closed> {
    let activity = &connection.activity;
    let seconds = timeout.request.as_secs();
    if activity.is_overdue(now, seconds) {
        return Some(Closed::HalfSent);
    }
    if connection.dump.is_some() && u64::from(activity.stalled(now)) > seconds {
        return Some(Closed::Stalled);
    }
    let idle = timeout.idle?.as_secs();
    (connection.is_quiet() && u64::from(activity.quiet(now)) > idle).then_some(Closed::Idle)
}
