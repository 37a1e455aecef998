//! Grants that their clients left unread.
//!
//! Descriptors in a message that nobody has read count against the user that sent it, and the
//! system lets each user have so many. A client that never reads its grant would, lease after
//! lease, leave none for the grants of others; so its sockets are remembered for as long as a grant
//! lies in them.

use std::time::Duration;

use herdwick_herd::hello::HEARTBEAT;
use rustix::net::{Shutdown, shutdown};

use super::super::shares::Owner;
use crate::tcp::Stream;

/// Ended leases of one owner that may have their grants unread before it is granted no more.
pub(super) const UNREAD_MAX: usize = 4;

/// Leases of one owner, not ended yet, that may have their grants unread: some are for a moment,
/// where many clients start at once.
pub(super) const UNREAD_HELD_MAX: usize = 64;

/// Sockets of leases that ended with their grants unread.
#[derive(Default)]
pub(super) struct Unread {
    sockets: Vec<(Owner, Stream)>,
}

impl Unread {
    /// Takes the socket of a lease that ended after its grant was sent, if anything lies in it yet.
    pub(super) fn keep(&mut self, owner: Owner, stream: Stream) {
        if let Stream::Unix(socket) = &stream
            && is_unread(&stream)
        {
            // Refused only if the peer is gone, and its bytes with it.
            let _ = shutdown(socket, Shutdown::Both);
            self.sockets.push((owner, stream));
        }
    }

    /// Lets go of those that were read, or closed.
    pub(super) fn sweep(&mut self) {
        self.sockets.retain(|(_, stream)| is_unread(stream));
    }

    /// Whether `owner` is to read what it has first.
    pub(super) fn is_full(&mut self, owner: Owner) -> bool {
        self.sweep();
        let sockets = self.sockets.iter();
        sockets.filter(|(of, _)| *of == owner).count() >= UNREAD_MAX
    }

    /// How long the lease manager may sleep: that a peer reads, nothing announces.
    pub(super) fn timeout(&self) -> Option<Duration> {
        (!self.sockets.is_empty()).then_some(HEARTBEAT)
    }
}

/// Whether the peer has yet to read what was sent. Of what cannot be asked, nothing is known.
pub(super) fn is_unread(stream: &Stream) -> bool {
    match stream {
        Stream::Unix(socket) => herdwick_mem::unread_bytes(socket).is_ok_and(|bytes| bytes > 0),
        _ => false,
    }
}
