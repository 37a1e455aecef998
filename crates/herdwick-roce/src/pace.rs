//! Rate control of a flow after losses and congestion notifications (CNPs).

use core::time::Duration;

/// The send rate of a flow after a loss or a congestion notification.
///
/// The rate starts at half the measured one, halves again with each loss, and grows in equal steps;
/// when it reaches the former rate, pacing ends. Unused credit is bounded, so that a flow that was
/// idle does not send a burst.
pub(crate) struct Pace {
    /// Set while the flow is slowed down.
    slowed: Option<Slowed>,
    /// The time of the last reduction.
    cut: Option<Duration>,
    /// The time of the last CNP to the peer.
    told: Option<Duration>,
    /// Start of the current measurement, bytes sent since, and the rate of the previous one in
    /// bytes per second.
    since: Duration,
    sent: u64,
    measured: u64,
}

struct Slowed {
    /// Current rate and the rate before the first reduction, in bytes per second.
    rate: u64,
    peak: u64,
    /// Bytes that may be sent, the time they were last refilled, and the time the rate last grew.
    credit: u64,
    credited: Duration,
    grown: Duration,
}

/// Duration of a rate measurement, and the interval between growth steps.
const TICK: Duration = Duration::from_millis(1);
/// Ticks in which a rate would grow from zero to the former one: about a quarter of a second.
const GROWTH_TICKS: u64 = 256;
/// Losses within this time count as one: they are of packets sent before the reduction.
const CUT_EVERY: Duration = Duration::from_millis(10);
/// Minimum rate: this many bytes per second, or this fraction of the former rate, if more.
const FLOOR: u64 = 1_000_000;
const FLOOR_PART: u64 = 16;
/// Minimum burst at any rate: a packet of the largest MTU with its headers.
const BURST_MIN: u64 = 8192;
/// Minimum interval between CNPs to a peer.
const TELL_EVERY: Duration = Duration::from_micros(50);

impl Pace {
    pub(crate) fn new() -> Self {
        Self {
            slowed: None,
            cut: None,
            told: None,
            since: Duration::ZERO,
            sent: 0,
            measured: 0,
        }
    }

    /// Returns whether `bytes` may be sent at `now`, or else when they may.
    #[inline]
    pub(crate) fn admit(&mut self, now: Duration, bytes: usize) -> Result<(), Duration> {
        if self.slowed.is_none() {
            return Ok(());
        }
        self.admit_slowly(now, bytes as u64)
    }

    #[cold]
    fn admit_slowly(&mut self, now: Duration, bytes: u64) -> Result<(), Duration> {
        let Some(slowed) = &mut self.slowed else {
            return Ok(());
        };
        slowed.grow(now);
        // The path carries the former rate again. Beyond it nothing is known, so the flow is free.
        if slowed.rate >= slowed.peak {
            self.slowed = None;
            return Ok(());
        }
        slowed.refill(now);
        // The whole packet must be covered. `BURST_MIN` exceeds the largest packet, so it is
        // reached at any rate.
        match bytes.checked_sub(slowed.credit) {
            None | Some(0) => Ok(()),
            Some(missing) => Err(now + time(missing, slowed.rate)),
        }
    }

    /// Counts `bytes` that were sent.
    #[inline]
    pub(crate) fn spend(&mut self, now: Duration, bytes: usize) {
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= TICK {
            self.measured = rate(self.sent, elapsed);
            self.since = now;
            self.sent = 0;
        }
        // Measured while not slowed down, too: the peak has to be known when the first loss comes.
        self.sent += bytes as u64;
        if let Some(slowed) = &mut self.slowed {
            slowed.credit = slowed.credit.saturating_sub(bytes as u64);
        }
    }

    /// Halves the rate, once for all packets that were lost together.
    pub(crate) fn slow_down(&mut self, now: Duration) {
        // A loss is reported by many packets, and by each connection of the flow.
        if self.cut.is_some_and(|cut| now < cut + CUT_EVERY) {
            return;
        }
        self.cut = Some(now);
        if let Some(slowed) = &mut self.slowed {
            let floor = FLOOR.max(slowed.peak / FLOOR_PART);
            slowed.rate = (slowed.rate / 2).max(floor);
            // Credit of the higher rate would be a burst into the queue that has just overflowed.
            slowed.credit = 0;
            slowed.credited = now;
            return;
        }
        // A burst in the flow's first tick is not measured yet; it counts as if it had taken the whole
        // tick.
        let peak = self.measured.max(rate(self.sent, TICK));
        // A flow whose half rate is below the minimum is not paced.
        if peak / 2 > FLOOR {
            self.slowed = Some(Slowed {
                rate: peak / 2,
                peak,
                credit: 0,
                credited: now,
                grown: now,
            });
        }
    }

    /// Returns whether to send the peer a CNP now; `false` if the last one was sent just before.
    pub(crate) fn tells(&mut self, now: Duration) -> bool {
        let due = self.told.is_none_or(|told| now >= told + TELL_EVERY);
        if due {
            self.told = Some(now);
        }
        due
    }
}

impl Slowed {
    fn grow(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.grown);
        let ticks = u64::try_from(elapsed.as_nanos() / TICK.as_nanos()).unwrap_or(u64::MAX);
        // Calls within a tick change nothing: their growth would be rounded to zero.
        if ticks > 0 {
            self.grown = now;
            // One more, so that a small peak grows at all.
            let step = self.peak / GROWTH_TICKS + 1;
            self.rate = self.rate.saturating_add(step.saturating_mul(ticks));
        }
    }

    fn refill(&mut self, now: Duration) {
        // At most a tick's worth: idle time earns no burst.
        let elapsed = now.saturating_sub(self.credited).min(TICK);
        let gained = bytes(self.rate, elapsed);
        // Intervals too short to earn one byte accumulate instead of being lost.
        if gained > 0 {
            self.credited = now;
            let most = bytes(self.rate, TICK).max(BURST_MIN);
            self.credit = (self.credit + gained).min(most);
        }
    }
}

const SECOND: u128 = 1_000_000_000;

fn rate(bytes: u64, elapsed: Duration) -> u64 {
    let rate = u128::from(bytes) * SECOND / elapsed.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn bytes(rate: u64, elapsed: Duration) -> u64 {
    let bytes = u128::from(rate) * elapsed.as_nanos() / SECOND;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn time(bytes: u64, rate: u64) -> Duration {
    // Rounded up: at the time returned the credit is there.
    let nanos = u128::from(bytes) * SECOND / u128::from(rate.max(1)) + 1;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::Pace;

    const PACKET: usize = 1000;

    /// Sends as fast as admitted for `spell`; returns the bytes sent.
    fn send(pace: &mut Pace, now: &mut Duration, spell: Duration, gap: Duration) -> u64 {
        let (end, mut sent) = (*now + spell, 0);
        while *now < end {
            match pace.admit(*now, PACKET) {
                Ok(()) => {
                    pace.spend(*now, PACKET);
                    sent += PACKET as u64;
                    *now += gap;
                }
                Err(when) => {
                    assert!(when > *now, "the time increases");
                    *now = when;
                }
            }
        }
        sent
    }

    #[test]
    fn cnps_are_sent_at_most_every_50_microseconds() {
        let mut pace = Pace::new();
        let told = (0..200).filter(|at| pace.tells(Duration::from_micros(*at)));
        assert!(told.eq([0, 50, 100, 150]));
    }

    #[test]
    fn halved_rate_recovers_in_an_eighth_of_a_second() {
        let (mut pace, mut now) = (Pace::new(), Duration::from_secs(1));
        let (spell, gap) = (Duration::from_millis(20), Duration::from_micros(10));
        let whole = send(&mut pace, &mut now, spell, gap);
        pace.slow_down(now);
        send(&mut pace, &mut now, Duration::from_millis(100), gap);
        assert!(send(&mut pace, &mut now, spell, gap) < whole);
        send(&mut pace, &mut now, Duration::from_millis(10), gap);
        assert_eq!(send(&mut pace, &mut now, spell, gap), whole);
    }

    #[test]
    fn losses_halve_the_rate_and_a_quarter_second_restores_it() {
        let (mut pace, mut now) = (Pace::new(), Duration::from_secs(1));
        // 100 MB/s: a packet every 10 us.
        let (spell, gap) = (Duration::from_millis(20), Duration::from_micros(10));
        assert_eq!(send(&mut pace, &mut now, spell, gap), 2_000_000);
        pace.slow_down(now);
        pace.slow_down(now);
        let halved = send(&mut pace, &mut now, Duration::from_millis(5), gap);
        assert!((240_000..280_000).contains(&halved), "{halved}");
        now += Duration::from_millis(10);
        pace.slow_down(now);
        let quarter = send(&mut pace, &mut now, Duration::from_millis(5), gap);
        assert!((120_000..170_000).contains(&quarter), "{quarter}");
        send(&mut pace, &mut now, Duration::from_millis(250), gap);
        assert_eq!(send(&mut pace, &mut now, spell, gap), 2_000_000);
    }

    #[test]
    fn rate_is_at_least_a_sixteenth_and_idle_time_earns_no_burst() {
        let (mut pace, mut now) = (Pace::new(), Duration::from_secs(1));
        let (spell, gap) = (Duration::from_millis(5), Duration::from_micros(1));
        send(&mut pace, &mut now, spell, gap);
        for _ in 0..100 {
            now += Duration::from_millis(10);
            pace.slow_down(now);
            pace.admit(now, 1).ok();
        }
        // 1 GB/s before; a sixteenth of it is 62 kB a millisecond.
        let rush = send(&mut pace, &mut now, Duration::from_micros(100), gap);
        assert!(rush <= 150_000, "{rush}");
        let slow = send(&mut pace, &mut now, spell, gap);
        assert!((300_000..900_000).contains(&slow), "{slow}");
    }
}
