//! When a connection is closed for its timing: how long it has been idle, whether a command is overdue, and
//! whether its peer stalls while other connections wait for memory.

/// Minimum rate of a command: each 64 KiB received extend its timeout by a second.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// While others wait for memory, a peer that sends nothing in this many consecutive checks has
/// stalled: one second, at ten checks a second.
const SENDER_CHECKS: u32 = 10;
/// A peer that takes nothing of its replies in this many has stalled, after the checks that it has
/// earned. The kernel of a peer acknowledges what the application reads in steps of a segment (64
/// KiB on a loopback interface) or a 16th of the receive buffer, so this is what one segment takes
/// at 16 KiB a second.
const READER_CHECKS: u32 = 40;
/// A peer that takes n bytes may then pause for as long as n bytes last at 16 KiB a second. Until its
/// first pause it is filling its receive buffer, so only this part of what it takes counts.
const STEP_PART: u64 = 16;
/// A peer cannot earn more checks than this.
const EARNED_CHECKS_MAX: u64 = 90;
/// A peer that moves less than this between two checks (16 KiB a second) falls behind by the
/// difference ...
const CHECK_BYTES: u64 = (16 << 10) / 10;
/// ... and has stalled once it is this far behind: ten seconds' worth.
const BEHIND_BYTES: u64 = 160 << 10;

/// The timing of one connection. Bytes are recorded as they move, seconds once a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ActivityTimer {
    /// Bytes moved in this turn.
    moved: bool,
    /// A command was taken in this turn.
    took: bool,
    /// Bytes received of the current command.
    came: u64,
    /// When it began.
    began: Option<u32>,
    /// When a byte last moved.
    last_move: u32,
    /// When a command was last taken.
    last_command: u32,
    /// After the last turn no request or reply was pending; ...
    quiet: bool,
    /// ... and the last second in which one was.
    last_busy: u32,
    /// Bytes that have moved between the connection and its socket since the last check.
    moved_bytes: u64,
    /// Bytes in the socket that the peer had not taken at the last check, if the check asked.
    untaken: Option<u64>,
    /// Checks that may pass without movement before they count as missed.
    earned: u64,
    /// It has paused since the shortage began.
    has_paused: bool,
    /// Consecutive checks in which the peer moved nothing, after those.
    missed: u32,
    /// Bytes by which it is behind the minimum rate.
    behind: u64,
}

impl ActivityTimer {
    /// Creates the timer of a connection accepted at second `now`.
    pub(crate) fn new(now: u32) -> Self {
        Self {
            last_move: now,
            last_command: now,
            last_busy: now,
            ..Self::default()
        }
    }

    pub(crate) fn came(&mut self, count: usize) {
        self.moved = true;
        self.came += count as u64;
        self.moved_bytes += count as u64;
    }

    pub(crate) fn went(&mut self, count: usize) {
        self.moved |= count > 0;
        self.moved_bytes += count as u64;
    }

    pub(crate) fn used(&mut self, count: usize) {
        self.took |= count > 0;
    }

    /// Records the end of a turn at second `now`. `half_sent`: the peer owes the rest of a command;
    /// `quiet`: no request or reply is pending.
    pub(crate) fn note(&mut self, now: u32, half_sent: bool, quiet: bool) {
        // `last_busy` moves on while the connection is busy, and once more with the turn that ends
        // it.
        if !(quiet && std::mem::replace(&mut self.quiet, quiet)) {
            (self.quiet, self.last_busy) = (quiet, now);
        }
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

    /// Returns the seconds since a command was last taken.
    pub(crate) fn idle(&self, now: u32) -> u32 {
        now.saturating_sub(self.last_command)
    }

    /// Returns the seconds since a command was last taken or a reply was last pending.
    pub(super) fn quiet(&self, now: u32) -> u32 {
        now.saturating_sub(self.last_command.max(self.last_busy))
    }

    /// Checks progress while others wait. `begins`: it is the first check of the shortage;
    /// `stalls`: the server waits for the peer; `untaken`: the bytes in the socket that the peer
    /// has not taken. What the peer takes of them counts, not what is written to the socket: Linux
    /// reports a socket as writable only once a third of its send buffer is free, which takes a
    /// steady reader seconds.
    pub(super) fn check(&mut self, begins: bool, stalls: bool, untaken: Option<usize>) {
        let moved = self.moved(untaken);
        if begins {
            (self.earned, self.has_paused, self.behind) = (0, false, 0);
        }
        if moved > 0 && self.untaken.is_some() {
            let step = moved / if self.has_paused { 1 } else { STEP_PART };
            self.earned = (self.earned + step / CHECK_BYTES).min(EARNED_CHECKS_MAX);
        }
        if begins || !stalls || moved > 0 {
            self.missed = 0;
        } else {
            self.has_paused = true;
            // A check that was earned is used up instead of missed.
            self.missed += u32::from(self.earned == 0);
            self.earned = self.earned.saturating_sub(1);
        }
        if !begins && stalls {
            // A peer that moves more than the rate is not ahead: it cannot save up for a stall.
            self.behind = (self.behind + CHECK_BYTES).saturating_sub(moved);
        }
    }

    /// Returns the bytes that the peer has sent or taken since the last call.
    fn moved(&mut self, untaken: Option<usize>) -> u64 {
        let untaken = untaken.map(|bytes| bytes as u64);
        let before = std::mem::replace(&mut self.untaken, untaken);
        let moved = std::mem::take(&mut self.moved_bytes);
        match untaken {
            // What went into the socket, less what its queue has grown by, is what the peer has
            // taken.
            Some(now) => (moved + before.unwrap_or(0)).saturating_sub(now),
            None => moved,
        }
    }

    /// Returns the number of consecutive checks in which nothing had moved.
    pub(super) fn missed(&self) -> u32 {
        self.missed
    }

    /// Returns whether the peer has stalled.
    pub(super) fn has_stalled(&self) -> bool {
        let checks = match self.untaken {
            Some(_) => READER_CHECKS,
            None => SENDER_CHECKS,
        };
        self.missed >= checks || self.behind >= BEHIND_BYTES
    }

    /// Returns the seconds since a byte last moved.
    pub(super) fn stalled(&self, now: u32) -> u32 {
        now.saturating_sub(self.last_move)
    }

    pub(super) fn is_overdue(&self, now: u32, seconds: u64) -> bool {
        let allowed = seconds + self.came / BYTES_PER_SECOND_MIN;
        self.began
            .is_some_and(|began| u64::from(now.saturating_sub(began)) > allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_deadline_extends_with_the_bytes_received() {
        let mut activity = ActivityTimer::new(10);
        activity.came(5);
        activity.note(10, true, false);
        assert!(!activity.is_overdue(40, 30));
        assert!(activity.is_overdue(41, 30));
        for second in 11..=41 {
            activity.came(100);
            activity.note(second, true, false);
        }
        assert!(activity.is_overdue(41, 30), "a trickle earns nothing");
        activity.came(640 << 10);
        activity.note(41, true, false);
        assert!(!activity.is_overdue(50, 30));
        assert!(activity.is_overdue(51, 30));
        activity.used(1 << 20);
        activity.note(51, false, false);
        assert!(!activity.is_overdue(1000, 30));
    }

    #[test]
    fn connection_that_makes_progress_is_not_stalled() {
        let mut steady = ActivityTimer::new(0);
        steady.check(true, true, None);
        for n in 0..1000 {
            // 16 KiB, nine checks apart.
            steady.came(if n % 9 == 0 { 16 << 10 } else { 0 });
            steady.check(false, true, None);
            assert!(!steady.has_stalled(), "{n}");
        }
        for _ in 0..9 {
            steady.check(false, true, None);
        }
        steady.check(false, false, None);
        assert!(!steady.has_stalled(), "it was not the peer's turn");
        let still = |checks| {
            let mut activity = ActivityTimer::new(0);
            activity.came(1 << 20);
            activity.check(true, true, None);
            (0..checks).for_each(|_| activity.check(false, true, None));
            activity.has_stalled()
        };
        assert!(!still(9) && still(10));
        let mut trickle = ActivityTimer::new(0);
        let checks = (0..200).take_while(|_| {
            trickle.came(100);
            trickle.check(false, true, None);
            !trickle.has_stalled()
        });
        assert_eq!(checks.count(), 106, "a little more than ten seconds");
    }

    /// Returns the check at which a reader has stalled that takes `step` bytes of a full socket
    /// every `period` checks, the first time at check `first`.
    fn stalls_at(filled: usize, step: usize, period: u32, first: u32) -> Option<u32> {
        const SOCKET: usize = 2 << 20;
        let mut reader = ActivityTimer::new(0);
        reader.went(SOCKET + filled);
        reader.check(true, true, Some(SOCKET));
        let mut untaken = SOCKET;
        (1..1000).find(|&n| {
            untaken -= if n % period == first % period {
                step
            } else {
                0
            };
            // Linux reports the socket as writable once a third of it is free.
            if untaken < SOCKET - SOCKET / 3 {
                reader.went(SOCKET - untaken);
                untaken = SOCKET;
            }
            reader.check(false, true, Some(untaken));
            reader.has_stalled()
        })
    }

    #[test]
    fn readers_are_judged_by_what_they_take_from_the_socket() {
        for first in 0..40 {
            let steady = stalls_at(64 << 10, 80 << 10, 1, first);
            assert_eq!(
                steady, None,
                "800 KiB/s; the socket is writable every 9th check"
            );
            let coarse = stalls_at(64 << 10, 64 << 10, 39, first);
            assert_eq!(
                coarse, None,
                "16.4 KiB/s in segments of a loopback interface"
            );
            let large = stalls_at(4 << 20, 256 << 10, 100, first);
            assert_eq!(large, None, "26 KiB/s in steps of a 16th of 4 MiB");
        }
        assert_eq!(stalls_at(64 << 10, 0, 1, 0), Some(42), "two for 64 KiB");
        assert_eq!(stalls_at(4 << 20, 0, 1, 0), Some(101), "ten seconds behind");
        assert_eq!(
            stalls_at(64 << 10, 100, 1, 0),
            Some(107),
            "ten seconds behind"
        );
    }

    #[test]
    fn what_the_socket_accepts_is_not_taken_by_the_peer() {
        let mut filled = ActivityTimer::new(0);
        filled.check(true, true, Some(0));
        let stalls = (1..100).find(|&n| {
            filled.went(1 << 20);
            filled.check(false, true, Some(n << 20));
            filled.has_stalled()
        });
        assert_eq!(stalls, Some(40));
    }

    #[test]
    fn deadline_of_a_new_command_starts_at_the_end_of_the_last() {
        let mut activity = ActivityTimer::new(0);
        for second in 0..100 {
            activity.came(10);
            activity.used(10);
            activity.note(second, true, false);
            assert!(!activity.is_overdue(second, 1));
            assert_eq!(activity.idle(second), 0);
        }
        assert_eq!(activity.idle(105), 6);
        activity.note(120, false, true);
        activity.note(125, false, true);
        assert_eq!(
            (activity.idle(130), activity.quiet(130)),
            (31, 10),
            "the connection was active until second 120"
        );
    }
}
