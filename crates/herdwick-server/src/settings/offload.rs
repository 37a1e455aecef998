//! The secondary store that popular keys are replicated to: where it is, what decides which keys, and the memory
//! that this takes.

use herdwick_clover::Secret;
use herdwick_hkvs::{Limits, Policy, Popularity, Syncer, Tracker, channel_bytes};

use super::error::StartError;

/// A secondary store that popular keys are replicated to (docs/hkvs.md).
#[derive(Clone, Debug)]
pub struct Offload {
    /// Its memcached port, `HOST:PORT`, as this server and its clients reach it.
    pub address: String,
    /// What this server proves to it, so that it may write.
    pub secret: Secret,
    /// What decides which keys are popular.
    pub policy: PolicyChoice,
    /// The sizes of the policy, for all workers together.
    pub limits: Limits,
}

/// A policy of popularity.
#[derive(Clone, Copy, Debug)]
pub enum PolicyChoice {
    /// One of those that there are.
    Of(Policy),
    /// The caller's own.
    Own {
        /// Makes one for a worker.
        make: fn(Limits) -> Box<dyn Popularity>,
        /// Returns the bytes of memory that it has.
        bytes: fn(Limits) -> usize,
    },
}

impl PolicyChoice {
    pub(crate) fn build(self, limits: Limits) -> Box<dyn Popularity> {
        match self {
            Self::Of(policy) => policy.build(limits),
            Self::Own { make, .. } => make(limits),
        }
    }

    fn bytes(self, limits: Limits) -> usize {
        match self {
            Self::Of(policy) => policy.bytes(limits),
            Self::Own { bytes, .. } => bytes(limits),
        }
    }
}

impl Offload {
    /// Most popular keys, and most requests of a window.
    const SIZES_MAX: [usize; 2] = [10_000_000, 100_000_000];

    /// Replicates to `address` by the paper's policy.
    #[must_use]
    pub fn to(address: String, secret: Secret) -> Self {
        Self {
            address,
            secret,
            policy: PolicyChoice::Of(Policy::default()),
            limits: Limits::default(),
        }
    }

    /// Returns the bytes of memory that this takes of a worker.
    pub(crate) fn worker_bytes(&self, workers: usize) -> usize {
        let limits = self.limits.share(workers);
        let keys = Tracker::bytes(limits.keys) + Syncer::bytes(limits.keys);
        self.policy.bytes(limits) + keys + channel_bytes()
    }

    /// Checks what needs no operating system.
    pub(crate) fn settle(&self) -> Result<(), StartError> {
        let wrong = |what| Err(StartError::Offload { what });
        // The last colon: an IPv6 address has others.
        let (host, port) = self.address.rsplit_once(':').unwrap_or_default();
        let is_word = self.address.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || !is_word || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return wrong("the address is HOST:PORT");
        }
        let Limits {
            keys,
            reads,
            window,
        } = self.limits;
        let [keys_max, window_max] = Self::SIZES_MAX;
        if !(1..=keys_max).contains(&keys) {
            return wrong("there are 1 to 10,000,000 popular keys");
        }
        if reads == 0 || !(1..=window_max).contains(&window) {
            return wrong(
                "a key is admitted by 1 to 255 reads in the last 1 to 100,000,000 requests",
            );
        }
        Ok(())
    }
}
