//! Counters of the lease manager, read by `stats` and the metrics page.

use std::sync::atomic::{AtomicU64, Ordering};

use herdwick_herd::{RequestPath, hello::Refusal};

/// Counters of the lease manager.
#[derive(Debug, Default)]
pub(crate) struct LeaseCounters {
    /// Live leases.
    pub(crate) live: AtomicU64,
    /// Bytes of memory that leases hold now.
    pub(crate) bytes: AtomicU64,
    /// Leases that have ended, but whose memory the operating system does not have back yet.
    pub(crate) releasing: AtomicU64,
    /// Leases granted since the start.
    pub(crate) granted: AtomicU64,
    /// Of those, by request path: UC WRITE, RC WRITE, UD SEND.
    uc_write: AtomicU64,
    rc_write: AtomicU64,
    ud_send: AtomicU64,
    /// Claims refused: a wrong, used or expired token.
    pub(crate) refused_token: AtomicU64,
    /// Claims refused: too many leases, or not enough memory.
    pub(crate) refused_full: AtomicU64,
    /// Sockets closed for malformed or untimely bytes.
    pub(crate) malformed: AtomicU64,
    /// Sockets closed because the handshake took too long.
    pub(crate) handshake_timeouts: AtomicU64,
    /// Leases ended because no heartbeat arrived in time.
    pub(crate) heartbeat_timeouts: AtomicU64,
    /// Leases ended because a queue pair, the port or the device failed.
    pub(crate) fabric_lost: AtomicU64,
    /// Grants that could not be sent: the client had disconnected, or too many descriptors were in
    /// flight.
    pub(crate) grants_unsent: AtomicU64,
    /// Sockets closed unread because too many unauthenticated ones waited.
    pub(crate) strangers_refused: AtomicU64,
}

impl LeaseCounters {
    /// Returns the counter of leases with this request path.
    pub(super) fn by_path(&self, path: RequestPath) -> &AtomicU64 {
        match path {
            RequestPath::UcWrite => &self.uc_write,
            RequestPath::RcWrite => &self.rc_write,
            RequestPath::UdSend => &self.ud_send,
        }
    }

    /// Returns the counter of refusals for the same reason as `refusal`.
    pub(super) fn refused(&self, refusal: Refusal) -> &AtomicU64 {
        match refusal {
            Refusal::Token => &self.refused_token,
            Refusal::Full | Refusal::Memory => &self.refused_full,
            Refusal::Malformed => &self.malformed,
        }
    }

    /// Returns all counters, by name.
    pub(crate) fn all(&self) -> [(&'static str, u64); 15] {
        [
            ("leases", &self.live),
            ("lease_bytes", &self.bytes),
            ("leases_being_released", &self.releasing),
            ("leases_granted", &self.granted),
            ("leases_uc_write", &self.uc_write),
            ("leases_rc_write", &self.rc_write),
            ("leases_ud_send", &self.ud_send),
            ("lease_refused_token", &self.refused_token),
            ("lease_refused_full", &self.refused_full),
            ("lease_malformed", &self.malformed),
            ("lease_handshake_timeouts", &self.handshake_timeouts),
            ("lease_heartbeat_timeouts", &self.heartbeat_timeouts),
            ("lease_fabric_lost", &self.fabric_lost),
            ("lease_grants_unsent", &self.grants_unsent),
            ("lease_strangers_refused", &self.strangers_refused),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
