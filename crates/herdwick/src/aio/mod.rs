//! The client for asynchronous programs, on tokio: tasks share one session, and what they ask for is sent
//! together.
//!
//! [`AsyncClient`] is cheap to clone. Its calls are those of the blocking [`Client`](crate::Client). One task,
//! which the first call spawns, sends what all have submitted and wakes those whose answers have come; it
//! sleeps on the session's descriptors. There is no thread, but while it connects (and what a lease has:
//! see there).
//!
//! - **Cancelling** a call, by dropping its future, leaves the session usable. A call that was not polled, or that
//!   the task has not submitted since, has not been made; later it may be made, as one of unknown outcome.
//! - **Backpressure**: a session accepts as many requests as its window has; calls beyond wait for their turn,
//!   in their order. Until then the client has copies of their keys, and of values of up to 4 KiB; longer ones stay
//!   in their calls' memory.
//! - **Deadlines** are those of each call ([`AsyncClient::with_deadline`]), from when the task first runs after the
//!   call was first polled.
//! - **Speed**: `cargo run --release -p herdwick --features aio --example tasks` compares a thousand tasks with the
//!   batches of the blocking client. Over shared memory, on one thread beside a server of one worker, on two virtual CPUs, six
//!   runs gave the tasks 0.50 to 0.60 of the batches' rate (2.4 of 4.1 million reads a second at best): tokio wakes
//!   and polls a task for each.
//! - **Runtimes**: the task runs on the runtime of the call that spawned it, and calls of all runtimes depend on
//!   it, their deadlines too: where a current-thread runtime is not run, they wait. Use one runtime for a client
//!   and its clones. A call without a runtime, or on one that ends or lacks its I/O or its clock, is
//!   [`Error::Unreachable`]. A child after `fork` makes a client of its own.
//! - **Transports**: a session that did not get the best transport stays as it is, unlike the blocking client's;
//!   a new session tries again. Sending on a session by shared memory or RDMA whose TCP connection was closed
//!   connects that again, for which the runtime's thread waits.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let server = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
//! # let address = server.address().to_string();
//! use herdwick::aio::AsyncClient;
//!
//! let client = AsyncClient::connect(&address).await?;
//! client.set("greeting", "hello").await?;
//! let other = client.clone();
//! let task = tokio::spawn(async move { other.get("greeting").await });
//! assert_eq!(client.get("none").await?, None);
//! assert_eq!(task.await.unwrap()?.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), herdwick::Error>(())
//! # }).unwrap();
//! ```

mod calls;
mod driver;
mod flight;
mod outcome;
mod owned;
mod queue;
mod request;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use self::flight::State;
use crate::{Address, DialError, Error, Options, due::clock};

/// A client of one server for many tasks. Clones share its session.
///
/// A call that finds its session lost dials another, and a read is repeated, as in the blocking client; a
/// mutation that was sent and not answered ends as [`Error::UnknownOutcome`]. A call that gets no answer
/// before its deadline ends the session, as there: other calls in flight on it are lost with it.
#[derive(Debug)]
pub struct AsyncClient {
    core: Arc<Core>,
    deadline: Duration,
}

/// What the clones and the driver share.
#[derive(Debug)]
struct Core {
    state: Mutex<State>,
    /// Wakes the driver.
    notify: Notify,
    /// Clones of the client: at 0 the driver ends.
    clients: AtomicUsize,
    address: Address,
    options: Options,
    origin: Instant,
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is changed by whole steps; after a panic in one, calls end by their deadlines.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn unreachable(&self, reason: DialError) -> Error {
        Error::Unreachable {
            address: self.address.to_string(),
            reason,
        }
    }
}

impl AsyncClient {
    /// Connects to `address`, as [`Client::connect`](crate::Client::connect). Needs a tokio runtime with its
    /// I/O and its clock.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Usage`] for a malformed address.
    pub async fn connect(address: &str) -> Result<Self, Error> {
        Self::connect_with(address, Options::default()).await
    }

    /// As [`AsyncClient::connect`], with options.
    ///
    /// # Errors
    /// As [`AsyncClient::connect`].
    pub async fn connect_with(address: &str, options: Options) -> Result<Self, Error> {
        let client = Self::unconnected(address.parse()?, options);
        client.dial().await?;
        Ok(client)
    }

    /// Returns a client that dials at its first call.
    #[must_use]
    pub fn unconnected(address: Address, options: Options) -> Self {
        let deadline = options.deadline;
        let core = Core {
            state: Mutex::default(),
            notify: Notify::new(),
            clients: AtomicUsize::new(1),
            address,
            options,
            origin: clock(),
        };
        Self {
            core: Arc::new(core),
            deadline,
        }
    }

    /// Returns a client on the same session, whose calls may take this long.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        let mut client = self.clone();
        client.deadline = deadline;
        client
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.core.address
    }

    /// The transport of the session (`tcp`, `shm`, `verbs` or `roce`); `None` without one.
    #[must_use]
    pub fn transport(&self) -> Option<&'static str> {
        let state = self.core.lock();
        state.session.as_ref().map(crate::Session::transport)
    }

    /// Why it does not go by a better transport; `None` if it does, or has no session.
    #[must_use]
    pub fn missed(&self) -> Option<crate::Fallback> {
        let state = self.core.lock();
        state.session.as_ref()?.missed().cloned()
    }
}

impl Clone for AsyncClient {
    fn clone(&self) -> Self {
        // Relaxed, as in `Arc`: the handle that is cloned keeps the count above 0.
        self.core.clients.fetch_add(1, Ordering::Relaxed);
        Self {
            core: Arc::clone(&self.core),
            deadline: self.deadline,
        }
    }
}

impl Drop for AsyncClient {
    fn drop(&mut self) {
        // AcqRel: the driver that reads 0 sees all that the clones have done.
        if self.core.clients.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.core.notify.notify_one();
        }
    }
}
