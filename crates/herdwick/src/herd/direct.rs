use std::time::Duration;

use herdwick_fabric::Port;
use herdwick_herd::{ClientSide, Outcome, Refused};
use herdwick_mica::{HashKey, Request};

use super::lease::Lease;

/// The fabric under a session, without the conveniences: requests in the store's own language,
/// hashed by the caller, tens of nanoseconds each.
///
/// Nothing else may be in flight on the session while it is used like this.
#[derive(Debug)]
pub struct Direct<'a, P> {
    side: &'a mut ClientSide,
    port: &'a mut P,
    hash_key: HashKey,
    lease: &'a Lease,
}

impl<'a, P: Port> Direct<'a, P> {
    pub(super) fn new(
        side: &'a mut ClientSide,
        port: &'a mut P,
        hash_key: HashKey,
        lease: &'a Lease,
    ) -> Self {
        Self {
            side,
            port,
            hash_key,
            lease,
        }
    }

    /// The key of the locator hash.
    #[must_use]
    pub fn hash_key(&self) -> HashKey {
        self.hash_key
    }

    /// Puts `request` into a slot; [`Direct::flush`] sends it, and `token` comes back.
    ///
    /// # Errors
    /// [`Refused`]: nothing was done.
    #[inline]
    pub fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        self.side.submit(request, token)
    }

    /// Writes the lines of everything submitted.
    #[inline]
    pub fn flush(&mut self, now: Duration) {
        self.side.flush(self.port, now);
        self.port.flush(now);
    }

    /// Takes outcomes; returns how many.
    #[inline]
    pub fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Outcome<'_>)) -> usize {
        self.port.progress(now);
        self.side.poll(self.port, now, sink)
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

    /// Whether the lease still stands.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.lease.is_over() && !self.side.is_broken()
    }
}
