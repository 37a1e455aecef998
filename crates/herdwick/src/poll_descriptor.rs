//! One descriptor for all that a session waits for, for programs with an event loop of their own.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::{
    event::{
        EventfdFlags, PollFlags, Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
        eventfd,
    },
    io::Errno,
};

use crate::sleep::{Sleep, Wanted};

/// A wait ends after this time where the system cannot watch a descriptor: the session is polled then.
const UNWATCHED: Duration = Duration::from_millis(1);

/// A descriptor that is readable when a [`Session`](crate::Session) has something to do. It stays the same
/// while sessions, and the descriptors below them, come and go.
///
/// ```
/// # let server = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
/// # let address = server.address().to_string();
/// use herdwick::{Answer, Key, Op, Options, PollDescriptor, Session};
/// use std::time::Instant;
///
/// let mut session = Session::dial(&address.parse()?, &Options::default())?;
/// let mut descriptor = PollDescriptor::new()?;
/// let start = Instant::now();
/// session.submit(start.elapsed(), Key::new(b"ant")?, &Op::Get);
/// session.flush(start.elapsed());
/// let mut is_miss = false;
/// while !is_miss {
///     let longest = session.arm(start.elapsed(), &mut descriptor);
///     // Here the event loop waits until `descriptor` is readable, for `longest` at most.
/// #   let _ = longest;
///     session.end_wait(&mut descriptor);
///     session.poll(start.elapsed(), &mut |_, answer| is_miss = answer == Answer::Miss);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PollDescriptor {
    epoll: OwnedFd,
    /// An eventfd that is always readable, and watched to wake a wait.
    ready: OwnedFd,
}

impl PollDescriptor {
    /// Makes a descriptor that is not readable.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let ready = eventfd(1, EventfdFlags::CLOEXEC)?;
        // Added here, and not at the first wakeup, since that takes memory.
        epoll::add(&epoll, &ready, EventData::new_u64(0), EventFlags::ONESHOT)?;
        Ok(Self { epoll, ready })
    }

    /// Makes it readable until [`Session::end_wait`](crate::Session::end_wait): for a request that was submitted
    /// during the wait, which [`Session::arm`](crate::Session::arm) did not know of.
    pub fn wake(&mut self) {
        let events = EventFlags::IN | EventFlags::ONESHOT;
        // It cannot fail: to change what is watched for takes no memory.
        let _ = epoll::modify(&self.epoll, &self.ready, EventData::new_u64(0), events);
    }

    /// Watches what `sleep` waits for. Returns how long to wait.
    pub(crate) fn watch(&mut self, sleep: &Sleep<'_>) -> Duration {
        let watched = sleep.fds().iter().try_for_each(|wanted| self.add(*wanted));
        match watched {
            Ok(()) => sleep.limit(),
            // Out of memory, or of `fs.epoll.max_user_watches`.
            Err(_) => sleep.limit().min(UNWATCHED),
        }
    }

    /// Each is watched for one event, so that one which is not waited for any longer wakes once at most.
    fn add(&self, (fd, flags): Wanted<'_>) -> Result<(), Errno> {
        let data = EventData::new_u64(0);
        match epoll::modify(&self.epoll, fd, data, events(flags)) {
            Err(Errno::NOENT) => epoll::add(&self.epoll, fd, data, events(flags)),
            done => done,
        }
    }

    /// Makes it unreadable until [`PollDescriptor::watch`].
    pub(crate) fn clear(&mut self) {
        let mut room = [const {
            epoll::Event {
                flags: EventFlags::empty(),
                data: EventData::new_u64(0),
            }
        }; 4];
        // What is left by an error is found by the next wait.
        let _ = epoll::wait(&self.epoll, &mut room, Some(&Timespec::default()));
    }
}

fn events(flags: PollFlags) -> EventFlags {
    let mut events = EventFlags::ONESHOT;
    events.set(EventFlags::IN, flags.contains(PollFlags::IN));
    events.set(EventFlags::OUT, flags.contains(PollFlags::OUT));
    events.set(EventFlags::RDHUP, flags.contains(PollFlags::RDHUP));
    events
}

impl AsRawFd for PollDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

impl AsFd for PollDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
