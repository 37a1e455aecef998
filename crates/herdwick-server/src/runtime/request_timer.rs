//! How long requests take: from the beginning of the pass that found them until their replies have been sent.
//! Requests that are served together are measured together ([`RequestTimer`]), and counted in the histograms or
//! the slow log of their front end ([`RequestTimes`]).

use std::{os::fd::RawFd, time::Duration};

use herdwick_request::Request;

use crate::{
    runtime::front::Pass,
    settings::latency::Latency,
    telemetry::{
        latency::{CommandCounts, LatencyHistograms, TimedCommand},
        watch::What,
    },
};

/// Requests whose replies are not complete.
#[derive(Default)]
pub(crate) struct RequestTimer {
    /// When the pass began that found the first of them; `None`: there are none.
    since: Option<Duration>,
    requests: CommandCounts,
    /// The first request's key, if there is a slow log.
    key: Vec<u8>,
    first: Option<TimedCommand>,
}

/// What one front end measures of its requests.
pub(crate) struct RequestTimes {
    transport: &'static str,
    histograms: Option<Box<LatencyHistograms>>,
    /// What takes at least this long is in the slow log.
    slow: Option<Duration>,
}

impl RequestTimer {
    /// Returns whether there are requests whose replies are not complete.
    #[inline]
    pub(crate) fn runs(&self) -> bool {
        self.since.is_some()
    }
}

impl RequestTimes {
    /// Returns what is measured of the requests over `transport`; `None`: nothing.
    pub(crate) fn new(transport: &'static str, latency: &Latency) -> Option<Self> {
        let &Latency { histograms, slow } = latency;
        (histograms || slow.is_some()).then(|| Self {
            transport,
            histograms: histograms.then(Box::default),
            slow,
        })
    }

    /// Returns the histograms, if they are kept.
    pub(crate) fn histograms(&mut self) -> Option<&mut LatencyHistograms> {
        self.histograms.as_deref_mut()
    }

    /// Starts to measure requests that the pass that began at `now` has found. If others are not over yet, they
    /// are recorded together, and as those are.
    #[inline]
    pub(crate) fn start(&self, timer: &mut RequestTimer, requests: &[Request<'_>], now: Duration) {
        // HERD executes batches of none.
        let Some(first) = requests.first() else {
            return;
        };
        if timer.since.is_none() {
            timer.since = Some(now);
            if self.slow.is_some() {
                // Copied into a buffer that stays: a slow request is known only when its input is
                // gone.
                timer.key.clear();
                timer.key.extend_from_slice(first.key);
                timer.first = Some(TimedCommand::of(&first.op));
            }
        }
        timer.requests.add(requests);
    }

    /// Records the requests of `timer`, whose replies are complete; `caller` is their connection's descriptor.
    #[inline]
    pub(crate) fn stop(&mut self, timer: &mut RequestTimer, caller: RawFd, pass: &mut Pass<'_>) {
        let Some(since) = timer.since.take() else {
            return;
        };
        // Read anew: the time of the pass is that of its beginning. The clock is read for each
        // batch of replies only where requests are measured.
        let time = pass.timer.now().saturating_sub(since);
        if self.slow.is_some_and(|slow| time >= slow) {
            self.log(timer, (time, caller), pass);
        }
        match &mut self.histograms {
            Some(histograms) => histograms.record(&mut timer.requests, nanos(time)),
            None => timer.requests = CommandCounts::default(),
        }
    }

    /// Writes the requests to the slow log: one line for all of them.
    #[cold]
    fn log(&self, timer: &RequestTimer, (time, caller): (Duration, RawFd), pass: &mut Pass<'_>) {
        let count = timer.requests.sum();
        pass.counters.slow_requests += count;
        let what = What::Slow {
            command: timer.first.map_or("", TimedCommand::name),
            requests: count,
            time,
            transport: self.transport,
            caller,
        };
        pass.own().event_queue.note(what, &timer.key);
    }
}

/// Returns the nanoseconds of a time, [`u64::MAX`] if they are more.
#[inline]
fn nanos(time: Duration) -> u64 {
    // Not by `as_nanos`, whose 128 bits cost twice the instructions.
    let seconds = time.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(time.subsec_nanos().into())
}
