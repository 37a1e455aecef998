use std::sync::atomic::{AtomicU64, Ordering};

use herdwick_herd::{RequestPath, hello::Refusal};

/// What the lease manager counts.
#[derive(Debug, Default)]
pub(crate) struct LeaseCounters {
    /// Leases that stand now.
    pub(crate) live: AtomicU64,
    /// Bytes of memory that leases hold now.
    pub(crate) bytes: AtomicU64,
    /// Leases that ended and whose memory is not the system's again.
    pub(crate) releasing: AtomicU64,
    /// Leases that ever stood.
    pub(crate) granted: AtomicU64,
    /// Those of them whose requests are written, reliably or not, or sent.
    uc_write: AtomicU64,
    rc_write: AtomicU64,
    ud_send: AtomicU64,
    /// Claims refused: a wrong, used or expired token.
    pub(crate) refused_token: AtomicU64,
    /// Claims refused: too many leases, or no memory for one more.
    pub(crate) refused_full: AtomicU64,
    /// Sockets ended for malformed or untimely bytes.
    pub(crate) malformed: AtomicU64,
    /// Sockets ended because the handshake took too long.
    pub(crate) handshake_timeouts: AtomicU64,
    /// Leases ended because no heartbeat came.
    pub(crate) heartbeat_timeouts: AtomicU64,
    /// Leases ended because what carried them failed: a queue pair, the port, the device.
    pub(crate) fabric_lost: AtomicU64,
    /// Grants that could not be sent: the client was gone, or too many descriptors lie unread.
    pub(crate) grants_unsent: AtomicU64,
    /// Sockets closed unheard because too many strangers waited.
    pub(crate) strangers_refused: AtomicU64,
}

impl LeaseCounters {
    /// Leases whose requests took `path`.
    pub(super) fn by_path(&self, path: RequestPath) -> &AtomicU64 {
        match path {
            RequestPath::UcWrite => &self.uc_write,
            RequestPath::RcWrite => &self.rc_write,
            RequestPath::UdSend => &self.ud_send,
        }
    }

    /// Clients refused for the same reason as by `refusal`.
    pub(super) fn refused(&self, refusal: Refusal) -> &AtomicU64 {
        match refusal {
            Refusal::Token => &self.refused_token,
            Refusal::Full | Refusal::Memory => &self.refused_full,
            Refusal::Malformed => &self.malformed,
        }
    }

    /// All of them, by name.
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
