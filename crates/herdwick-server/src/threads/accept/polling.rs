//! Constants of the polls of both threads: the one that accepts, and the one for TLS handshakes.

use std::time::Duration;

use mio::Token;

/// Pause before a connection that found a queue full is queued again.
pub(super) const RETRY: Duration = Duration::from_millis(1);
/// Maximum number of events per `epoll_wait`.
pub(super) const EVENTS: usize = 64;
/// The token of the waker. Listeners count from 0; UDP sockets follow.
pub(crate) const WAKE: Token = Token(usize::MAX);
