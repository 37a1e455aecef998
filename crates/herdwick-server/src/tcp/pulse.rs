//! Who stalls, and for how long: what is held for them is bounded, and nothing waits for ever.

use crate::{
    config::Patience,
    tally::{Closed, Tally},
};

use super::connection::Connection;

/// What comes in for each second more that a command may take.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// A connection's conversation in time. Bytes are noted as they move, seconds once a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pulse {
    /// Something moved in this turn.
    moved: bool,
    /// A command was taken in this turn.
    took: bool,
    /// Bytes of the command under way.
    came: u64,
    /// When it began.
    began: Option<u32>,
    /// When a byte last moved.
    last_move: u32,
    /// When a command was last taken.
    last_command: u32,
}

impl Pulse {
    /// Of a connection made at second `now`.
    pub(crate) fn new(now: u32) -> Self {
        Self {
            last_move: now,
            last_command: now,
            ..Self::default()
        }
    }

    pub(crate) fn came(&mut self, count: usize) {
        self.moved = true;
        self.came += count as u64;
    }

    pub(crate) fn went(&mut self, count: usize) {
        self.moved |= count > 0;
    }

    pub(crate) fn used(&mut self, count: usize) {
        self.took |= count > 0;
    }

    /// The end of a turn at second `now`.
    pub(crate) fn note(&mut self, now: u32, half_sent: bool) {
        if std::mem::take(&mut self.moved) {
            self.last_move = now;
        }
        if std::mem::take(&mut self.took) {
            self.last_command = now;
            self.began = None;
        }
        if !half_sent {
            self.began = None;
            self.came = 0;
        } else if self.began.is_none() {
            self.began = Some(now);
            self.came = 0;
        }
    }

    /// Seconds since a command was last taken.
    pub(crate) fn idle(&self, now: u32) -> u32 {
        now.saturating_sub(self.last_command)
    }

    fn stalled(&self, now: u32) -> u32 {
        now.saturating_sub(self.last_move)
    }

    fn is_overdue(&self, now: u32, seconds: u64) -> bool {
        let allowed = seconds + self.came / BYTES_PER_SECOND_MIN;
        self.began
            .is_some_and(|began| u64::from(now.saturating_sub(began)) > allowed)
    }
}

/// What stalling connections of one worker may hold, and for how long.
pub(crate) struct Watch {
    /// Above this, those that stall for a second are given up, the longest first ...
    ample: usize,
    /// Bytes held now.
    held: usize,
    /// The second last looked at.
    second: u32,
}

/// For buffers of all connections together, the least: sixteen of the largest values.
const AMPLE_BYTES: usize = 16 << 20;
/// ... and at this many times as much, whoever stalls longest is given up at once.
const HARD: usize = 4;
/// What a connection holds that is not worth giving it up for.
const SMALL_BYTES: usize = 4 << 10;

impl Watch {
    /// For one of `workers` that share what is ample.
    pub(crate) fn new(workers: usize, item_bytes_max: usize) -> Self {
        Self {
            ample: (AMPLE_BYTES / workers).max(2 * item_bytes_max),
            held: 0,
            second: 0,
        }
    }

    /// Notes the end of a connection's turn at second `now`.
    pub(crate) fn note(&mut self, connection: &mut Connection, now: u32) {
        let half_sent = connection.is_half_sent();
        connection.pulse.note(now, half_sent);
        let memory = connection.memory();
        self.held = self.held - connection.held + memory;
        connection.held = memory;
    }

    /// Bytes held now.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Forgets what a connection held.
    pub(crate) fn forget(&mut self, connection: &Connection) {
        self.held -= connection.held;
    }

    /// Whether it is time to look: a new second, or too much held.
    pub(crate) fn is_due(&self, now: u32) -> bool {
        now != self.second || self.held > HARD * self.ample
    }

    /// The places of those that are to be given up at second `now`, counted by reason.
    #[cold]
    pub(crate) fn look(
        &mut self,
        connections: &[Option<Connection>],
        patience: Patience,
        now: u32,
        tally: &mut Tally,
    ) -> Vec<(u32, Closed)> {
        self.second = now;
        let mut given_up = Vec::new();
        let mut stalled = Vec::new();
        let live = connections.iter().enumerate();
        for (place, connection) in live.filter_map(|(place, c)| Some((place as u32, c.as_ref()?))) {
            if let Some(reason) = verdict(connection, patience, now) {
                given_up.push((place, reason));
            } else if connection.held > SMALL_BYTES && connection.gather.is_none() {
                stalled.push((connection.pulse.stalled(now), place, connection.held));
            }
        }
        self.shed(stalled, &mut given_up);
        for (_, reason) in &given_up {
            tally.closed(*reason);
        }
        given_up
    }

    /// Adds those that stall longest, until what is held is ample again.
    fn shed(&self, mut stalled: Vec<(u32, u32, usize)>, given_up: &mut Vec<(u32, Closed)>) {
        if self.held <= self.ample {
            return;
        }
        let at_once = self.held > HARD * self.ample;
        stalled.sort_unstable_by_key(|&(seconds, _, held)| std::cmp::Reverse((seconds, held)));
        let mut held = self.held;
        for (seconds, place, bytes) in stalled {
            if held <= self.ample || seconds == 0 && !at_once {
                return;
            }
            given_up.push((place, Closed::Stalled));
            held -= bytes;
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
    let quiet = connection.gather.is_none();
    (quiet && u64::from(pulse.idle(now)) > idle).then_some(Closed::Idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_longer_the_more_of_it_comes() {
        let mut pulse = Pulse::new(10);
        pulse.came(5);
        pulse.note(10, true);
        assert!(!pulse.is_overdue(40, 30));
        assert!(pulse.is_overdue(41, 30));
        for second in 11..=41 {
            pulse.came(100);
            pulse.note(second, true);
        }
        assert!(pulse.is_overdue(41, 30), "a trickle earns nothing");
        pulse.came(640 << 10);
        pulse.note(41, true);
        assert!(!pulse.is_overdue(50, 30));
        assert!(pulse.is_overdue(51, 30));
        pulse.used(1 << 20);
        pulse.note(51, false);
        assert!(!pulse.is_overdue(1000, 30));
    }

    #[test]
    fn a_new_command_begins_where_the_last_one_ended() {
        let mut pulse = Pulse::new(0);
        for second in 0..100 {
            pulse.came(10);
            pulse.used(10);
            pulse.note(second, true);
            assert!(!pulse.is_overdue(second, 1));
            assert_eq!(pulse.idle(second), 0);
        }
        assert_eq!(pulse.idle(105), 6);
    }
}
