//! The memory that connections may hold besides the store, and which connections are closed to
//! bound it. A connection that needs much memory waits until there is room; one that makes others
//! wait is closed only if it stalls.

use std::{cmp::Reverse, time::Duration};

use herdwick_memcache::GET_LINE_BYTES_MAX;

use crate::{
    runtime::{upload_permits::WorkerPermits, wait_queue::WaitQueue},
    settings::config::Timeouts,
    telemetry::snapshot::{Closed, WorkerCounters},
};

use super::connection::{Connection, Room, SMALL_BYTES, Share};

/// The buffers of all connections together may take one part in this many of `-m` ...
const AMPLE_PART: usize = 4;
/// ... but at least and at most this many bytes. The rest of 64 MiB is for forwarded batches, code
/// and stacks.
const AMPLE_MIN: usize = 16 << 20;
const AMPLE_MAX: usize = 32 << 20;
/// Hard limit, as a multiple of that; small buffers and waiting connections can reach it. Beyond it
/// the next check closes the connections that have stalled longest, then the youngest of those that
/// wait. Only the check does, because the replies that return in the forwarded batches of one pass
/// may exceed the limit for a moment.
const HARD: usize = 2;
/// Interval of the checks for stalled connections while others wait.
pub(super) const CHECK: Duration = Duration::from_millis(100);

/// The memory of one worker's connections.
pub(super) struct Budget {
    ample: usize,
    /// Bytes of buffers that all connections hold.
    held: usize,
    /// The part of `held` of connections that wait. Room is computed without it; otherwise waiting
    /// connections could wait for one another.
    waiting: usize,
    /// Number of connections that do not wait and hold more than [`SMALL_BYTES`].
    holders: usize,
    /// Bytes that live as long as their connections (TLS sessions), which no wait frees.
    besides: usize,
    item_bytes_max: usize,
    /// The connections that wait for room, in order of arrival.
    queue: WaitQueue,
    /// Number of connections that have been granted room and have not used it yet.
    granted: usize,
    /// The second of the last check of timeouts.
    second: u32,
    next_check: Duration,
    /// Memory or permits were short at the last check.
    short: bool,
}

impl Budget {
    /// Creates the budget of one of `workers`, which share the total evenly.
    pub(super) fn new(memory_bytes: usize, workers: usize, item_bytes_max: usize) -> Self {
        let all = (memory_bytes / AMPLE_PART).clamp(AMPLE_MIN, AMPLE_MAX);
        Self {
            // Two, so that one value can arrive while the reply with another leaves.
            ample: (all / workers).max(2 * item_bytes_max),
            held: 0,
            waiting: 0,
            holders: 0,
            besides: 0,
            // What a connection may be granted is either; each grant is counted as the larger.
            item_bytes_max: item_bytes_max.max(GET_LINE_BYTES_MAX),
            queue: WaitQueue::default(),
            granted: 0,
            second: 0,
            next_check: Duration::ZERO,
            short: false,
        }
    }

    /// Records the end of a connection's turn at second `now`.
    pub(super) fn note(&mut self, connection: &mut Connection, now: u32) {
        let (half_sent, quiet) = (connection.is_half_sent(), connection.is_quiet());
        connection.activity.note(now, half_sent, quiet);
        self.count(connection);
    }

    /// Updates the counts of what a connection holds.
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

    /// Returns the bytes of memory that all connections hold.
    pub(super) fn held(&self) -> usize {
        self.held + self.besides
    }

    /// Returns the bytes of buffers of connections that do not wait.
    fn busy(&self) -> usize {
        self.held - self.waiting
    }

    /// Removes the connection at `place` from the counts and the queue.
    pub(super) fn forget(&mut self, connection: &Connection, place: u32) {
        self.uncount(connection.share);
        match connection.room {
            Room::Waiting => {
                self.queue.remove(place);
            }
            Room::Granted => self.granted -= 1,
            Room::Enough | Room::Wanted => {}
        }
    }

    /// Returns whether a connection may hold much: a large value, or a long line. A connection that
    /// already holds replies behind a value may always have that value: it frees nothing before.
    pub(super) fn allows(&self, connection: &Connection) -> bool {
        connection.room == Room::Granted
            || connection
                .behind
                .as_ref()
                .is_some_and(|behind| behind.holds())
            || self.queue.is_empty() && self.has_room()
    }

    /// Returns whether a connection may hold a large value from each worker at a time.
    pub(super) fn is_plentiful(&self) -> bool {
        self.busy() < self.ample / 2
    }

    fn has_room(&self) -> bool {
        // What was granted and is not held yet counts in full: otherwise each waiting connection
        // would find the same room free.
        self.busy() + self.granted * self.item_bytes_max < self.ample
    }

    /// Queues the connection at `place` until there is room.
    pub(super) fn wait(&mut self, connection: &mut Connection, place: u32) {
        connection.room = Room::Waiting;
        self.queue.push_back(place);
    }

    /// Grants room to the first connection of the queue, if there is room; returns its place.
    pub(super) fn next(&mut self) -> Option<u32> {
        // No connection is closed for a small buffer, so small buffers alone must not block the
        // queue forever: one connection is granted room in any case.
        let alone = self.granted == 0 && self.holders == 0;
        if self.queue.is_empty() || !alone && !self.has_room() {
            return None;
        }
        self.granted += 1;
        self.queue.pop_front()
    }

    /// Records that the connection holds what it was granted.
    pub(super) fn used(&mut self, connection: &mut Connection) {
        match connection.room {
            Room::Granted => self.granted -= 1,
            Room::Wanted => {}
            Room::Enough | Room::Waiting => return,
        }
        connection.room = Room::Enough;
    }

    /// Returns whether a connection waits.
    pub(super) fn waits(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether a check is due.
    #[inline]
    pub(super) fn is_due(&self, now: Duration, second: u32) -> bool {
        second != self.second || now >= self.next_check
    }

    fn is_over(&self) -> bool {
        self.held > HARD * self.ample
    }

    /// Returns the connections to close and why, and counts them by reason.
    #[cold]
    pub(super) fn check(
        &mut self,
        connections: &mut [Option<Connection>],
        permits: &mut WorkerPermits,
        timeout: Timeouts,
        (now, second): (Duration, u32),
        counters: &mut WorkerCounters,
    ) -> Vec<(u32, Closed)> {
        let mut given_up = Vec::new();
        // Timeouts have a resolution of a second; stalls that make others wait are looked for ten
        // times as often.
        if second != self.second {
            self.second = second;
            let late = |connection: &Connection| verdict(connection, timeout, second);
            let live = connections.iter().zip(0u32..);
            given_up.extend(live.filter_map(|(c, place)| Some((place, late(c.as_ref()?)?))));
        }
        if now >= self.next_check {
            self.next_check = now + CHECK;
            self.check_activity(connections, permits);
            self.shed(connections, permits, &mut given_up);
        }
        for (_, reason) in &given_up {
            counters.closed(*reason);
        }
        given_up
    }

    /// Checks each connection's progress while others wait.
    fn check_activity(&mut self, connections: &mut [Option<Connection>], permits: &WorkerPermits) {
        let short = self.is_short() || permits.any_wanted();
        let begins = short && !std::mem::replace(&mut self.short, short);
        if short {
            // Outside of a shortage no socket is asked how much its peer has taken: that is a
            // system call for each connection.
            for connection in connections.iter_mut().flatten() {
                let stalls = connection.peer_is_late();
                let untaken = connection.untaken();
                connection.activity.check(begins, stalls, untaken);
            }
        }
    }

    /// Returns whether too much memory is held, or a connection waits for room.
    fn is_short(&self) -> bool {
        self.waits() || self.busy() > self.ample || self.is_over()
    }

    /// Adds to `given_up` the stalled connections, the longest stalled first, until no other has to
    /// wait for what they hold; if memory is still beyond the hard limit, the youngest waiting
    /// ones.
    fn shed(
        &mut self,
        connections: &[Option<Connection>],
        permits: &mut WorkerPermits,
        given_up: &mut Vec<(u32, Closed)>,
    ) {
        let short = self.is_short();
        if !short && !permits.any_wanted() {
            permits.none_stalled();
            return;
        }
        let most = HARD * self.ample;
        let (mut held, mut busy) = (self.held, self.busy());
        let stalled = stalled(connections, self.is_over());
        let mut wanted = permits.wanted();
        permits.limit(&mut wanted, stalled.iter().filter_map(|(_, c)| c.permit()));
        for (place, connection) in stalled {
            let bytes = connection.buffers();
            let frees_permit = connection
                .permit()
                .is_some_and(|(owner, permit)| wanted[owner].take(permit));
            let is_short = busy >= self.ample || held > most;
            let frees_room = short && bytes > SMALL_BYTES && is_short;
            if frees_permit || frees_room {
                held = held.saturating_sub(bytes);
                busy = busy.saturating_sub(bytes);
                given_up.push((place, Closed::Stalled));
            }
        }
        // The excess may also be replies that clients are reading. Waiting connections are closed
        // only as far as they hold more than the soft limit themselves.
        let mut waiting = self.waiting;
        let youngest = self.queue.youngest().chain(permits.youngest());
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

/// Returns the connections that wait for their peers and have stalled, the longest stalled first;
/// if `is_over` the hard limit, also those that have not stalled yet.
fn stalled(connections: &[Option<Connection>], is_over: bool) -> Vec<(u32, &Connection)> {
    let all = (0u32..).zip(connections);
    let late = |connection: &&Connection| {
        connection.peer_is_late() && (is_over || connection.activity.has_stalled())
    };
    let late = all.filter_map(|(place, c)| Some((place, c.as_ref().filter(late)?)));
    let mut stalled: Vec<_> = late.collect();
    // Among those that stalled equally long, the one that holds most goes first.
    stalled.sort_by_cached_key(|(_, c)| Reverse((c.activity.missed(), c.buffers())));
    stalled
}

/// Returns why a connection has timed out, if it has.
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
