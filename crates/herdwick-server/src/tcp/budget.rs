//! What connections may hold in memory beside the store, and who is given up for it. Whoever needs
//! much waits until there is room; only who keeps others waiting, and does not move, is cut.

use std::{cmp::Reverse, collections::VecDeque, time::Duration};

use herdwick_memcache::GET_LINE_BYTES_MAX;

use crate::{
    config::Patience,
    tally::{Closed, Tally},
};

use super::{
    connection::{Connection, Room},
    lots::Desk,
};

/// For buffers of all connections together: this part of `-m` ...
const AMPLE_PART: usize = 4;
/// ... but not less, and not more. What remains of 64 MiB is for parcels, code and stacks.
const AMPLE_MIN: usize = 16 << 20;
const AMPLE_MAX: usize = 32 << 20;
/// At this many times as much, which small buffers alone can come to, whoever has stalled longest is
/// given up at once.
const HARD: usize = 2;
/// What a connection holds that is not worth giving it up for.
const SMALL_BYTES: usize = 4 << 10;
/// While some wait, those that hold what they wait for are looked at so often.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// The memory of one worker's connections.
pub(super) struct Budget {
    ample: usize,
    /// Bytes held now.
    held: usize,
    item_bytes_max: usize,
    /// The connections that wait until there is room, in the order of their coming.
    queue: VecDeque<u32>,
    /// How many have been told that there is room and have not used it yet.
    granted: usize,
    /// The second last looked at.
    second: u32,
    next_look: Duration,
    /// At the last look, somebody waited.
    short: bool,
}

impl Budget {
    /// For one of `workers` that share what is ample.
    pub(super) fn new(memory_bytes: usize, workers: usize, item_bytes_max: usize) -> Self {
        let all = (memory_bytes / AMPLE_PART).clamp(AMPLE_MIN, AMPLE_MAX);
        Self {
            ample: (all / workers).max(2 * item_bytes_max),
            held: 0,
            item_bytes_max: item_bytes_max.max(GET_LINE_BYTES_MAX),
            queue: VecDeque::new(),
            granted: 0,
            second: 0,
            next_look: Duration::ZERO,
            short: false,
        }
    }

    /// Notes the end of a connection's turn at second `now`.
    pub(super) fn note(&mut self, connection: &mut Connection, now: u32) {
        let half_sent = connection.is_half_sent();
        connection.pulse.note(now, half_sent);
        let memory = connection.memory();
        self.held = self.held - connection.held + memory;
        connection.held = memory;
    }

    /// Bytes held now.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Forgets what the connection at `place` held, or waited for.
    pub(super) fn forget(&mut self, connection: &Connection, place: u32) {
        self.held -= connection.held;
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
        self.held < self.ample / 2
    }

    fn has_room(&self) -> bool {
        self.held + self.granted * self.item_bytes_max < self.ample
    }

    /// The connection at `place` goes on when there is room.
    pub(super) fn wait(&mut self, connection: &mut Connection, place: u32) {
        connection.room = Room::Waiting;
        self.queue.push_back(place);
    }

    /// A connection that has waited, and waits no longer.
    pub(super) fn next(&mut self) -> Option<u32> {
        if self.queue.is_empty() || !self.has_room() {
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
        second != self.second || now >= self.next_look || self.held > HARD * self.ample
    }

    /// The places of those that are to be given up, counted by reason.
    #[cold]
    pub(super) fn look(
        &mut self,
        connections: &mut [Option<Connection>],
        desk: &Desk,
        patience: Patience,
        (now, second): (Duration, u32),
        tally: &mut Tally,
    ) -> Vec<(u32, Closed)> {
        let mut given_up = Vec::new();
        if second != self.second {
            self.second = second;
            let late = |connection: &Connection| verdict(connection, patience, second);
            let live = connections.iter().zip(0u32..);
            given_up.extend(live.filter_map(|(c, place)| Some((place, late(c.as_ref()?)?))));
        }
        if now >= self.next_look {
            self.next_look = now + LOOK;
            self.shed(connections, desk, &mut given_up);
        }
        for (_, reason) in &given_up {
            tally.closed(*reason);
        }
        given_up
    }

    /// Adds those that stall longest, until nobody has to wait for what they hold.
    fn shed(
        &mut self,
        connections: &mut [Option<Connection>],
        desk: &Desk,
        given_up: &mut Vec<(u32, Closed)>,
    ) {
        let buffers = self.waits() || self.held > self.ample;
        let short = buffers || desk.any_wanted();
        let begins = short && !std::mem::replace(&mut self.short, short);
        if !short {
            return;
        }
        let at_once = self.held > HARD * self.ample;
        let mut stalled = Vec::new();
        for (connection, place) in connections.iter_mut().zip(0u32..) {
            let Some(connection) = connection else {
                continue;
            };
            let stalls = connection.peer_is_late();
            connection.pulse.look(begins, stalls);
            if stalls && (at_once || connection.pulse.has_stalled()) {
                stalled.push((connection.pulse.missed(), connection.buffers(), place));
            }
        }
        stalled.sort_unstable_by_key(|&(missed, held, _)| Reverse((missed, held)));
        let mut held = self.held;
        let mut wanted = desk.wanted();
        for (_, bytes, place) in stalled {
            let Some(connection) = &connections[place as usize] else {
                continue;
            };
            let frees_lot = connection.lot().and_then(|owner| wanted.get_mut(owner));
            let frees_lot = frees_lot.is_some_and(|wanted| {
                let is_wanted = *wanted > 0;
                *wanted = wanted.saturating_sub(1);
                is_wanted
            });
            let frees_room = buffers && bytes > SMALL_BYTES && held >= self.ample;
            if frees_lot || frees_room {
                held -= bytes;
                given_up.push((place, Closed::Stalled));
            }
        }
    }
}

/// Whether, and why, a connection has waited too long.
fn verdict(connection: &Connection, patience: Patience, now: u32) -> Option<Closed> {
    let pulse = &connection.pulse;
    let seconds = patience.request.as_secs();
    if pulse.is_overdue(now, seconds) {
        return Some(Closed::HalfSent);
    }
    if connection.dump.is_some() && u64::from(pulse.stalled(now)) > seconds {
        return Some(Closed::Stalled);
    }
    let idle = patience.idle?.as_secs();
    let quiet = connection.gather.is_none() && !connection.waits();
    (quiet && u64::from(pulse.idle(now)) > idle).then_some(Closed::Idle)
}
