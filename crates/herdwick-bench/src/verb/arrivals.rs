//! Messages counted at both ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdwick_mem::sync::CachePadded;

/// The messages of one flow, counted at both ends: the issuer reads what its target has received, which
/// stands for the flow control of an application.
#[derive(Default)]
pub(super) struct Arrivals {
    /// Written by the target's thread alone.
    pub(super) received: CachePadded<AtomicU64>,
    /// Written by the issuer's thread alone, when it pauses.
    pub(super) sent: CachePadded<AtomicU64>,
}

/// The messages of all flows, where they may be lost.
pub(super) struct ArrivalCounts(pub(super) Vec<Arc<Arrivals>>);

/// Most waits of a millisecond for messages that are on their way when the issuers have ended.
const WAITS_MAX: u32 = 500;

impl ArrivalCounts {
    /// Returns the share of messages that did not arrive; `None` where none can be lost, or arrivals
    /// are not counted.
    #[expect(
        clippy::disallowed_methods,
        reason = "waits for a condition, of which no event tells"
    )]
    pub(super) fn lost(&self) -> Option<f64> {
        let sum = |of: fn(&Arrivals) -> &AtomicU64| -> u64 {
            self.0
                .iter()
                // Pairs with the releases of both threads, which may still run.
                .map(|flow| of(flow).load(Ordering::Acquire))
                .sum()
        };
        let sent = sum(|flow| &flow.sent.0);
        let received = || sum(|flow| &flow.received.0);
        for _ in 0..WAITS_MAX {
            if received() >= sent {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        (sent > 0).then(|| sent.saturating_sub(received()) as f64 / sent as f64)
    }
}
