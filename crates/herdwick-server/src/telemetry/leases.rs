//! Counters of the lease manager, read by `stats` and the metrics page.

use std::sync::atomic::{AtomicU64, Ordering};

use herdwick_herd::{RequestPath, hello::Refusal};

use crate::telemetry::stats::counted;

counted! {
    view v: LeaseCounters;
    fields v;
    /// Counters of the lease manager.
    #[derive(Debug, Default)]
    struct LeaseCounters of AtomicU64;
    /// The names of the leases' statistics in `stats`.
    names LeaseNames;
    /// The end of `stats`, if there is a lease manager.
    static LEASES;

    /// Leases that stand now.
    Gauge leases = fields.live => "herdwick_leases";
    /// Bytes of memory that leases hold now.
    Gauge(Bytes) lease_bytes = fields.bytes => "herdwick_lease_bytes";
    /// Leases that ended and whose memory is not freed yet.
    Gauge leases_being_released = fields.releasing => "herdwick_leases_being_released";
    /// Leases granted since the start.
    Counter leases_granted = fields.granted => "herdwick_leases_granted_total";
    /// Leases granted whose requests are written over UC.
    Counter leases_uc_write = fields.uc_write in LEASES_BY_PATH(path = "uc-write");
    /// Leases granted whose requests are written over RC.
    Counter leases_rc_write = fields.rc_write in LEASES_BY_PATH(path = "rc-write");
    /// Leases granted whose requests are sent as datagrams.
    Counter leases_ud_send = fields.ud_send in LEASES_BY_PATH(path = "ud-send");
    /// Claims refused: a wrong, used or expired token.
    Counter lease_refused_token = fields.refused_token in LEASE_FAILURES(reason = "refused_token");
    /// Claims refused: too many leases, or not enough memory.
    Counter lease_refused_full = fields.refused_full in LEASE_FAILURES(reason = "refused_full");
    /// Sockets closed for malformed or untimely bytes.
    Counter lease_malformed = fields.malformed in LEASE_FAILURES(reason = "malformed");
    /// Sockets closed because the handshake took too long.
    Counter lease_handshake_timeouts = fields.handshake_timeouts
        in LEASE_FAILURES(reason = "handshake_timeouts");
    /// Leases ended because no heartbeat arrived in time.
    Counter lease_heartbeat_timeouts = fields.heartbeat_timeouts
        in LEASE_FAILURES(reason = "heartbeat_timeouts");
    /// Leases ended because a queue pair, the port or the device failed.
    Counter lease_fabric_lost = fields.fabric_lost in LEASE_FAILURES(reason = "fabric_lost");
    /// Grants that could not be sent: the client had disconnected, or too many descriptors were in
    /// flight.
    Counter lease_grants_unsent = fields.grants_unsent in LEASE_FAILURES(reason = "grants_unsent");
    /// Sockets closed unread because too many unauthenticated ones waited.
    Counter lease_unclaimed_refused = fields.unclaimed_refused
        in LEASE_FAILURES(reason = "unclaimed_refused");
}

impl LeaseCounters {
    /// Returns the counter of leases with this request path.
    pub(crate) fn by_path(&self, path: RequestPath) -> &AtomicU64 {
        match path {
            RequestPath::UcWrite => &self.uc_write,
            RequestPath::RcWrite => &self.rc_write,
            RequestPath::UdSend => &self.ud_send,
        }
    }

    /// Returns the counter of refusals for the same reason as `refusal`.
    pub(crate) fn refused(&self, refusal: Refusal) -> &AtomicU64 {
        match refusal {
            Refusal::Token => &self.refused_token,
            Refusal::Full | Refusal::Memory => &self.refused_full,
            Refusal::Malformed => &self.malformed,
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    // Relaxed, as for all counters of leases: they order nothing.
    counter.fetch_add(1, Ordering::Relaxed);
}
