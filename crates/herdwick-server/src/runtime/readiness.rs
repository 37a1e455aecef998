//! Waits for events (epoll_wait): a signal ends the wait early, any other error ends the thread. The
//! token of a waker, and the number of events of one wait.

use std::{io::ErrorKind, time::Duration};

use mio::{Events, Poll, Token};

/// Maximum number of events per `epoll_wait` of the threads that accept; those left over come first in the
/// next.
pub(crate) const EVENTS: usize = 64;
/// The token of a waker. Sockets count from 0, so none has it.
pub(crate) const WAKE: Token = Token(usize::MAX);

/// Waits for events, at most for `limit`. A signal ends the wait early and without events, so
/// callers check everything they wait for.
///
/// # Panics
/// On any other error of epoll_wait(2). It fails only for an invalid poll (`EBADF`, `EFAULT`,
/// `EINVAL`), and would fail at every retry: a thread that continued would spin and serve no
/// client.
pub(crate) fn wait(poll: &mut Poll, events: &mut Events, limit: Option<Duration>) {
    match poll.poll(events, limit) {
        Err(error) if error.kind() != ErrorKind::Interrupted => {
            panic!("waiting for sockets (epoll_wait): {error}; restart the server")
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use mio::Waker;

    use super::*;

    #[test]
    fn wait_returns_events_and_times_out() {
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(4));
        let waker = Waker::new(poll.registry(), Token(7)).unwrap();
        wait(&mut poll, &mut events, Some(Duration::ZERO));
        assert!(events.is_empty());
        waker.wake().unwrap();
        wait(&mut poll, &mut events, None);
        assert!(events.iter().map(|event| event.token()).eq([Token(7)]));
    }

    #[test]
    #[should_panic(expected = "epoll_wait")]
    fn failed_poll_ends_its_thread() {
        // An empty event buffer is refused (EINVAL), like a descriptor that is not an epoll
        // instance.
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(0));
        wait(&mut poll, &mut events, Some(Duration::ZERO));
    }
}
