//! How long a connection's requests take: from the beginning of the pass that decoded them to the end of the turn
//! that sent the last of their replies.

use std::time::Duration;

use herdwick_request::Request;

use crate::{
    runtime::front::Pass,
    telemetry::latency::{CommandCounts, LatencyHistograms},
};

/// The requests of a connection whose replies are not complete.
#[derive(Default)]
pub(super) struct RequestTimer {
    /// When the pass began that decoded the first of them; `None`: there are none.
    since: Option<Duration>,
    requests: CommandCounts,
}

impl RequestTimer {
    /// Starts to measure requests that were decoded in the pass that began at `now`. If others are not over
    /// yet, they are recorded together, and as those are.
    pub(super) fn start(&mut self, requests: &[Request<'_>], now: Duration) {
        self.since.get_or_insert(now);
        self.requests.add(requests);
    }

    /// Records the requests, whose replies are complete.
    #[inline]
    pub(super) fn stop(&mut self, histograms: &mut LatencyHistograms, pass: &Pass<'_>) {
        if let Some(since) = self.since.take() {
            let time = pass.timer.now().saturating_sub(since);
            histograms.record(&self.requests, time);
            self.requests = CommandCounts::default();
        }
    }
}
