//! The task that drives a client's session: it sends what calls have submitted, delivers the answers, and
//! dials.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{Interest, unix::AsyncFd};

use super::{Core, flight::State};
use crate::{DialError, Error, Options, PollDescriptor, Session, client::redial::Redial};

/// Sees to it that a driver runs, and looks at what a call has changed.
pub(super) fn wake(core: &Arc<Core>, state: &mut State) {
    if !state.is_driven {
        state.is_driven = true;
        tokio::spawn(drive(Arc::clone(core)));
    } else if std::mem::take(&mut state.is_asleep) {
        core.notify.notify_one();
    }
}

/// Notes the end of a driver, also of one that ends with its runtime.
struct Driven(Arc<Core>);

impl Drop for Driven {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_driven = false;
        // Its descriptors were watched by that runtime.
        let session = state.session.take();
        state.flight.lose(crate::Cause::Closed);
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

async fn drive(core: Arc<Core>) {
    let driven = Driven(core);
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
    if core.clients.load(Ordering::Acquire) == 0 {
        return DriverStep::End;
    }
    let now = core.now();
    state.queue.expire(now);
    let Some(session) = &mut state.session else {
        if !state.queue.is_empty() {
            return DriverStep::Dial;
        }
        state.is_asleep = true;
        return DriverStep::Sleep(Duration::MAX);
    };
    let before = state.flight.count();
    session.flush(now);
    let flight = &mut state.flight;
    session.poll(now, &mut |ticket, answer| flight.answer(ticket, answer));
    if let Some(cause) = session.broken() {
        state.flight.lose(cause);
        state.session = None;
        state.queue.wake_all();
        return DriverStep::Again;
    }
    let answered = before - state.flight.count();
    state.queue.wake(answered);
    state.flight.expire(now);
    let mut longest = state.queue.left(now).min(state.flight.left(now));
    if state.flight.count() == 0 {
        // Whatever has kept the first from being accepted is over.
        state.queue.wake(1);
    } else {
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
        // Calls that have less time than dialling takes end by their own deadlines.
        let left = core.lock().queue.left(core.now());
        match tokio::time::timeout(left, &mut dialled).await {
            Ok(done) => break done,
            Err(_) => core.lock().queue.expire(core.now()),
        }
    };
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
    state.queue.wake_all();
}
