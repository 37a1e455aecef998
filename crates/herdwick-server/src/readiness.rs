//! Waiting for what the kernel announces.

use std::{io::ErrorKind, time::Duration};

use mio::{Events, Poll};

/// Waits until something is announced, for no longer than `limit`. A signal ends it early, with no
/// events: whoever waits looks again at what it waits for.
///
/// # Panics
/// If the kernel refuses, which epoll_wait(2) does for a poll that is not there (`EBADF`, `EFAULT`,
/// `EINVAL`) and will do again each time: a thread that goes on would spin, and serve nobody.
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
    use mio::{Token, Waker};

    use super::*;

    #[test]
    fn what_is_announced_comes_and_time_goes_by() {
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
    fn a_poll_that_is_refused_ends_its_thread() {
        // Room for none is refused, as a descriptor is that is no poll's.
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(0));
        wait(&mut poll, &mut events, Some(Duration::ZERO));
    }
}
