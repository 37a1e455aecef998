use std::time::Duration;

use herdwick_fabric::Port;
use herdwick_herd::{ClientSide, Outcome, Refused};
use herdwick_mem::OwnProcess;
use herdwick_mica::{HashKey, Request};

use super::lease::Lease;

/// The fabric under a session, without the conveniences: requests in the store's own language,
/// hashed by the caller, tens of nanoseconds each.
///
/// Nothing else may be in flight on the session while it is used like this. It knows no deadlines:
/// requests of a lease that has ended ([`Direct::is_live`]) are not answered.
#[derive(Debug)]
pub struct Direct<'a, P> {
    pub(super) side: &'a mut ClientSide,
    pub(super) port: &'a mut OwnProcess<P>,
    pub(super) hash_key: HashKey,
    pub(super) lease: &'a Lease,
    pub(super) elapsed: Duration,
}

impl<P: Port> Direct<'_, P> {
    /// The key of the locator hash.
    #[must_use]
    pub fn hash_key(&self) -> HashKey {
        self.hash_key
    }

    /// Puts `request` into a slot; [`Direct::flush`] sends it, and `token` comes back. Requests for
    /// one key take effect in the order of their submission.
    ///
    /// # Errors
    /// [`Refused`]: nothing was done.
    #[inline]
    pub fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        self.side.submit(request, token)
    }

    /// Writes the lines of everything submitted; nothing in a child that was forked.
    #[inline]
    pub fn flush(&mut self, now: Duration) {
        if self.port.is_here() {
            let now = now.saturating_add(self.elapsed);
            self.side.flush(&mut **self.port, now);
            self.port.flush(now);
        }
    }

    /// Takes outcomes; returns how many. None in a child that was forked.
    #[inline]
    pub fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Outcome<'_>)) -> usize {
        if !self.port.is_here() {
            return 0;
        }
        let now = now.saturating_add(self.elapsed);
        self.port.progress(now);
        self.side.poll(&mut **self.port, now, sink)
    }

    /// Slots at each worker: what was asked for, or as many as the server had memory for.
    #[must_use]
    pub fn window(&self) -> usize {
        self.side.window().slots()
    }

    /// Slots taken.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.side.in_flight()
    }

    /// Whether the lease still stands, and is this process's.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.port.is_here() && !self.lease.is_over() && !self.side.is_broken()
    }
}
