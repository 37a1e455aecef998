//! Grants that their clients have not read.
//!
//! Descriptors in an unread message count against the user that sent it, up to a limit for each
//! user (RLIMIT_NOFILE). A client that never reads its grants would, lease after lease, exhaust
//! that limit for the grants of all others. So sockets are kept, and counted, while a grant is
//! unread in them.

use std::time::Duration;

use herdwick_herd::hello::HEARTBEAT;
use rustix::net::{Shutdown, shutdown};

use super::super::quota::Holder;
use crate::net::stream::Stream;

/// Ended leases of one holder with unread grants, beyond which its claims are refused.
pub(super) const UNREAD_MAX: usize = 4;

/// Leases of one holder that have not ended and may have unread grants. Where many clients start at
/// once, some grants are unread for a moment.
pub(super) const UNREAD_HELD_MAX: usize = 64;

/// Sockets of leases that ended with their grants unread.
#[derive(Default)]
pub(super) struct Unread {
    sockets: Vec<(Holder, Stream)>,
}

impl Unread {
    /// Keeps the socket of a lease that ended after its grant was sent, if anything is unread in
    /// it.
    pub(super) fn keep(&mut self, holder: Holder, stream: Stream) {
        if let Stream::Unix(socket) = &stream
            && is_unread(&stream)
        {
            // Fails only if the peer has disconnected, and its unread bytes are gone.
            let _ = shutdown(socket, Shutdown::Both);
            self.sockets.push((holder, stream));
        }
    }

    /// Removes the sockets that were read or closed.
    pub(super) fn sweep(&mut self) {
        self.sockets.retain(|(_, stream)| is_unread(stream));
    }

    /// Returns whether `holder` has too many unread grants for another one.
    pub(super) fn is_full(&mut self, holder: Holder) -> bool {
        self.sweep();
        let sockets = self.sockets.iter();
        sockets.filter(|(of, _)| *of == holder).count() >= UNREAD_MAX
    }

    /// Returns how long the lease manager may sleep: no event announces that a peer reads, so it
    /// polls.
    pub(super) fn timeout(&self) -> Option<Duration> {
        (!self.sockets.is_empty()).then_some(HEARTBEAT)
    }
}

/// Returns whether the peer has not read everything sent; `false` where the kernel does not report
/// it.
pub(super) fn is_unread(stream: &Stream) -> bool {
    match stream {
        Stream::Unix(socket) => herdwick_mem::unread_bytes(socket).is_ok_and(|bytes| bytes > 0),
        _ => false,
    }
}
