//! Direct access to the fabric under a session, for benchmarks and callers with their own keys'
//! hashes.
//!
//! Circular import with `lease` and the session `herd`, of which this lends the fabric.

use std::time::Duration;

use herdwick_fabric::Port;
use herdwick_herd::{ClientSide, Outcome, Refused};
use herdwick_mem::OwnProcess;
use herdwick_request::{HashKey, KeyHash, Request};

use super::{
    Herd,
    lease::Lease,
    one_sided::{OneSided, REPORT},
};
use crate::Hit;

/// The fabric under a session, without the conveniences: requests in the store's own language,
/// hashed by the caller, at tens of nanoseconds each.
///
/// No other request may be in flight on the session while it is used this way. It has no deadlines:
/// requests of a lease that has ended ([`Direct::is_live`]) are not answered.
#[derive(Debug)]
pub struct Direct<'a, P> {
    pub(super) side: &'a mut ClientSide,
    pub(super) port: &'a mut OwnProcess<P>,
    pub(super) hash_key: HashKey,
    pub(super) lease: &'a Lease,
    pub(super) one_sided: Option<&'a mut OneSided>,
    pub(super) asked: &'a mut Duration,
    pub(super) elapsed: Duration,
}

impl<P: Port> Herd<P> {
    /// Lends the fabric.
    pub(crate) fn direct(&mut self) -> Direct<'_, P> {
        Direct {
            side: &mut self.side,
            port: &mut self.port,
            hash_key: self.hash_key,
            lease: &self.lease,
            one_sided: self.one_sided.as_mut(),
            asked: &mut self.asked,
            elapsed: self.elapsed,
        }
    }
}

impl<P: Port> Direct<'_, P> {
    /// The key of the locator hash.
    #[must_use]
    pub fn hash_key(&self) -> HashKey {
        self.hash_key
    }

    /// Puts `request` into a slot; [`Direct::flush`] sends it, and its outcome carries `token`.
    /// Requests for one key take effect in the order of submission.
    ///
    /// # Errors
    /// [`Refused`]: nothing was done.
    #[inline]
    pub fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        self.side.submit(request, token)
    }

    /// Writes the lines of all submitted requests. Does nothing in a child process after a fork.
    #[inline]
    pub fn flush(&mut self, now: Duration) {
        if self.port.is_here() {
            let now = now.saturating_add(self.elapsed);
            self.side.flush(&mut **self.port, now);
            self.port.flush(now);
        }
    }

    /// Takes outcomes and returns their number: 0 in a child process after a fork. Those of what
    /// [`Direct::read`] submits by itself, with tokens from `u64::MAX - 32` on, are not among them.
    #[inline]
    pub fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Outcome<'_>)) -> usize {
        if !self.port.is_here() {
            return 0;
        }
        let now = now.saturating_add(self.elapsed);
        self.port.progress(now);
        let (mut others, one_sided) = (0, &mut self.one_sided);
        let taken = self
            .side
            .poll(&mut **self.port, now, &mut |token, outcome| {
                let learns = one_sided
                    .as_mut()
                    .is_some_and(|reads| reads.learn(token, &outcome));
                match learns || token == REPORT {
                    true => others += 1,
                    false => sink(token, outcome),
                }
            });
        // Behind the requests that reads in the memory have come to.
        if let (1.., Some(one_sided)) = (taken, &mut self.one_sided) {
            one_sided.ask(self.side);
        }
        taken.saturating_sub(others)
    }

    /// Reads `count` keys in the server's memory; `key_of` returns each with its hash, by its place. Passes each to
    /// `sink` by its place, with `None` for what has to be requested. Returns whether it did: the session may
    /// not read the memory, or its lease is over. [`Direct::flush`] sends the reports of what was read.
    #[inline]
    pub fn read<'k>(
        &mut self,
        now: Duration,
        count: usize,
        key_of: impl Fn(usize) -> (KeyHash, &'k [u8]),
        sink: &mut impl FnMut(usize, Option<Hit<'_>>),
    ) -> bool {
        let Some(one_sided) = &mut self.one_sided else {
            return false;
        };
        if !self.port.is_here() || !self.lease.lives(now, self.asked) {
            return false;
        }
        one_sided.read_all(count, key_of, sink);
        // The burst is over, since these reads wait for nothing.
        one_sided.end_poll(now, true, self.side);
        true
    }

    /// Slots at each worker: as requested, or as many as the server had memory for.
    #[must_use]
    pub fn window(&self) -> usize {
        self.side.window().slots()
    }

    /// Slots in use.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.side.in_flight()
    }

    /// Whether the lease still holds, and belongs to this process.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.port.is_here() && !self.lease.is_over() && !self.side.is_broken()
    }
}
