//! The task that drives a client's session: it sends what calls have submitted, delivers the answers, and
//! dials.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
};

use super::{Core, flight::State};
use crate::{DialError, Error, Options, PollDescriptor, Session, client::redial::Redial};

/// Sees to it that a driver looks at what a call has changed. Returns a new one if none runs: the call spawns
/// it when it does not hold the state, which a runtime that ends drops it with.
#[must_use]
pub(super) fn wake(core: &Arc<Core>, state: &mut State) -> Option<Driven> {
    if !state.is_driven {
        state.is_driven = true;
        return Some(Driven(Arc::clone(core)));
    }
    // One permit is enough until it has looked: a driver that is awake looks anyway.
    if std::mem::take(&mut state.is_asleep) {
        core.notify.notify_one();
    }
    None
}

/// A driver. Its end is noted whatever ends it: a runtime that ends, even before its first poll.
pub(super) struct Driven(Arc<Core>);

impl Driven {
    /// Runs it on the caller's runtime.
    ///
    /// # Errors
    /// There is no runtime, or it ends. Nothing has been sent.
    pub(super) fn spawn(self) -> io::Result<()> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let task = runtime.spawn(drive(self));
        // A runtime that ends drops the task at once.
        if task.is_finished() {
            return Err(io::Error::other("the tokio runtime ends"));
        }
        Ok(())
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_driven = false;
        if std::thread::panicking() {
            // The next driver would panic as well, and so on until the calls are due.
            let text = "the client's task panicked: has the tokio runtime its I/O and its clock?";
            state.dials.failed += 1;
            state.dials.failure = Some((io::Error::other(text).into(), Duration::ZERO));
        }
        // Its descriptors were watched by that runtime.
        let session = state.session.take();
        state.flight.lose(crate::Cause::Closed);
        state.flight.return_line();
        state.queue.wake_all();
        drop(state);
        drop(session);
    }
}

/// What the driver does next.
enum DriverStep {
    End,
    Dial,
    /// Polls again, after the tasks that are ready.
    Again,
    Sleep(Duration),
}

/// A descriptor that the runtime watches.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for types that change their descriptor: this one keeps its own"
)]
fn watched() -> io::Result<AsyncFd<PollDescriptor>> {
    AsyncFd::with_interest(PollDescriptor::new()?, Interest::READABLE)
}

async fn drive(driven: Driven) {
    let core = &driven.0;
    let mut redial = Redial::new(core.address.clone(), getrandom::u64().unwrap_or(1));
    let mut watched = match watched() {
        Ok(watched) => watched,
        Err(error) => return fail(core, error.into(), Duration::ZERO),
    };
    loop {
        match step(core, watched.get_mut()) {
            DriverStep::End => return,
            DriverStep::Dial => redial = dial(core, redial).await,
            DriverStep::Again => tokio::task::yield_now().await,
            DriverStep::Sleep(longest) => {
                sleep(core, &watched, longest).await;
                let mut state = core.lock();
                state.is_asleep = false;
                if let Some(session) = &mut state.session {
                    session.end_wait(watched.get_mut());
                }
            }
        }
    }
}

fn step(core: &Core, descriptor: &mut PollDescriptor) -> DriverStep {
    let mut held = core.lock();
    let state = &mut *held;
    // Acquire: pairs with the release of the last handle, behind whose calls the driver ends.
    if core.clients.load(Ordering::Acquire) == 0 {
        return DriverStep::End;
    }
    let now = core.now();
    state.queue.expire(now);
    state.flight.see(now);
    if state.flight.count() == 0 && state.flight.has_line() {
        state.check(now);
    }
    let Some(session) = &mut state.session else {
        state.flight.expire(now);
        if state.flight.has_line() || !state.queue.is_empty() {
            return DriverStep::Dial;
        }
        state.is_asleep = true;
        return DriverStep::Sleep(Duration::MAX);
    };
    let before = state.flight.count();
    let flight = &mut state.flight;
    session.poll(now, &mut |ticket, answer| flight.answer(ticket, answer));
    if let Some(cause) = session.broken() {
        state.flight.lose(cause);
        state.session = None;
        state.queue.wake_all();
        return DriverStep::Again;
    }
    let answered = before - state.flight.count();
    let waits = state.queue.first_turn();
    let submitted = state.flight.submit(now, session, waits);
    if state
        .flight
        .first_turn()
        .is_none_or(|turn| Some(turn) > waits)
    {
        // Whatever has kept the first from being accepted is over, if nothing is in flight.
        let is_idle = state.flight.count() == 0;
        let room = answered.saturating_sub(submitted);
        state
            .queue
            .wake(room.max(usize::from(is_idle || submitted > 0)));
    }
    state.flight.expire(now);
    let mut longest = state.queue.left(now).min(state.flight.left(now));
    if state.flight.count() == 0 && state.flight.has_line() {
        // It may have ended as it was to accept the first.
        return DriverStep::Again;
    }
    if state.flight.count() > 0 {
        longest = longest.min(session.arm(now, descriptor));
        if longest.is_zero() {
            session.end_wait(descriptor);
            return DriverStep::Again;
        }
    }
    state.is_asleep = true;
    DriverStep::Sleep(longest)
}

/// Sleeps until a call has changed something, the session has something to do, or the time is over.
async fn sleep(core: &Core, watched: &AsyncFd<PollDescriptor>, longest: Duration) {
    let mut notified = pin!(core.notify.notified());
    let mut readable = pin!(readable(watched));
    let either = poll_fn(|cx| {
        let is_notified = notified.as_mut().poll(cx).is_ready();
        if is_notified || readable.as_mut().poll(cx).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    // What remains after the time is over is found by the next step.
    let _ = tokio::time::timeout(longest, either).await;
}

/// Ends when the descriptor is readable. The runtime reports that it has become so, and is not asked before
/// the descriptor itself was.
async fn readable(watched: &AsyncFd<PollDescriptor>) {
    loop {
        let mut fds = [PollFd::new(watched.get_ref(), PollFlags::IN)];
        // After an error the session is polled, which finds it.
        if !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0)) {
            return;
        }
        match watched.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime ends.
            Err(_) => return,
        }
    }
}

/// Dials on a thread that may block.
async fn dial(core: &Arc<Core>, mut redial: Redial) -> Redial {
    let (now, options) = (core.now(), core.options.clone());
    let address = core.address.clone();
    let mut dialled = tokio::task::spawn_blocking(move || {
        let outcome = attempt(&mut redial, now, &options);
        (redial, outcome)
    });
    let done = loop {
        // Calls that have less time than dialling takes end by their own deadlines, also those that come
        // meanwhile.
        let left = {
            let mut state = core.lock();
            let now = core.now();
            state.queue.expire(now);
            state.flight.see(now);
            state.flight.expire(now);
            state.is_asleep = true;
            state.queue.left(now).min(state.flight.left(now))
        };
        let mut notified = pin!(core.notify.notified());
        let either = poll_fn(|cx| match Pin::new(&mut dialled).poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => notified.as_mut().poll(cx).map(|()| None),
        });
        if let Ok(Some(done)) = tokio::time::timeout(left, either).await {
            break done;
        }
    };
    core.lock().is_asleep = false;
    let (redial, outcome) = match done {
        Ok(done) => done,
        Err(error) => {
            let error = io::Error::other(error);
            fail(core, error.into(), core.now());
            return Redial::new(address, 1);
        }
    };
    match outcome {
        Ok(session) => {
            let mut state = core.lock();
            state.session = Some(session);
            state.dials.failure = None;
            state.queue.wake_all();
        }
        Err(reason) => {
            let now = core.now();
            fail(core, reason, now + redial.pause(now));
        }
    }
    redial
}

fn attempt(redial: &mut Redial, now: Duration, options: &Options) -> Result<Session, DialError> {
    match redial.attempt(now, |address| Session::dial(address, options)) {
        Ok(session) => Ok(session),
        Err(Error::Unreachable { reason, .. }) => Err(reason),
        // It returns no other error.
        Err(other) => Err(io::Error::other(other.to_string()).into()),
    }
}

/// Ends the calls that wait for a session.
fn fail(core: &Core, reason: DialError, until: Duration) {
    let mut state = core.lock();
    state.dials.failed += 1;
    state.dials.failure = Some((reason, until));
    state.flight.return_line();
    state.queue.wake_all();
}
