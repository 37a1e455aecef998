//! The blocking client: one call at a time, with reconnection, deadlines and a safe retry of reads.
//!
//! Circular import with `caller` and `calls`: the client holds the engine of its calls, which returns the
//! results of the calls, and the calls are methods of the client.

mod caller;
mod calls;
pub(crate) mod fan_out;
pub(crate) mod redial;

use std::time::{Duration, Instant};

pub use self::calls::{Cas, Item};
use self::{
    caller::{Caller, Surroundings},
    redial::Redial,
};
use crate::{Address, DialError, Error, Options, Session};

/// A client of one server. It makes one call at a time and waits for the answer.
///
/// A call that finds its connection lost, or loses it, dials again. Reads are then repeated
/// automatically; a mutation that was sent and not answered ends as [`Error::UnknownOutcome`] and
/// is never repeated. While the server is away, calls fail at once with [`Error::Unreachable`], and
/// only one of them dials from time to time.
///
/// # Cost
///
/// - Every call blocks its thread. Over a fabric ([`Options::fabric`]) it polls for the answer for
///   up to 200 µs before it sleeps, unless there is only one CPU. From asynchronous code, call it
///   on a thread that may block; tokio has a client of its own, behind the feature `aio`.
/// - Over a fabric it holds a lease: memory at the server, of which there is a bounded amount; a
///   thread here, `herdwick-lease`, that sends a byte every two seconds; and, beside the connection
///   to the memcached port, some descriptors for each of the server's workers. A host with many
///   clients may do better with some of them on text.
/// - After a fork the client belongs to the parent. In the child, its next call opens a session of
///   its own.
#[derive(Debug)]
pub struct Client {
    caller: Caller<RealSurroundings>,
}

impl Client {
    /// Connects to `address`: `host:port`, `host` for port 11211, or the path of a unix socket.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Usage`] for a malformed address.
    pub fn connect(address: &str) -> Result<Self, Error> {
        Self::connect_with(address, Options::default())
    }

    /// As [`Client::connect`], with options.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(address: &str, options: Options) -> Result<Self, Error> {
        let mut client = Self::unconnected(address.parse()?, options);
        client.dial()?;
        Ok(client)
    }

    /// Returns a client that dials at its first call, so that the server may be away until then.
    #[must_use]
    pub fn unconnected(address: Address, options: Options) -> Self {
        let (origin, seed) = chance_and_time();
        let redial = Redial::new(address, seed);
        Self {
            caller: Caller::new(RealSurroundings { origin }, redial, options),
        }
    }

    /// Opens a session now, unless there is one.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub fn dial(&mut self) -> Result<(), Error> {
        self.caller.connect()
    }

    /// Returns how long calls fail without dialling, from now on.
    pub(crate) fn redial_pause(&self) -> Duration {
        self.caller.redial_pause()
    }

    /// Returns how many of its dials have failed.
    pub(crate) fn failed_dials(&self) -> u64 {
        self.caller.failed_dials()
    }

    /// Sets the longest duration of each later call.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.caller.set_deadline(deadline);
    }

    /// Sets the registration of the server that was seen last ([`Options::member`]): the next dial shows it.
    pub(crate) fn set_member(&mut self, member: Option<u64>) {
        self.caller.set_member(member);
    }

    /// The session that the last call used, or the first dial opened; `None` if that call lost it,
    /// or reached its deadline.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        self.caller.session()
    }
}

/// The real network and clock.
#[derive(Debug)]
struct RealSurroundings {
    origin: Instant,
}

impl Surroundings for RealSurroundings {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn dial(&self, address: &Address, options: &Options) -> Result<Session, DialError> {
        Session::dial(address, options)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the blocking face is a shell: it has the clock"
)]
fn chance_and_time() -> (Instant, u64) {
    let now = Instant::now();
    // Without a random source, clients only lose the random spread of their pauses.
    (now, getrandom::u64().unwrap_or(1))
}

#[cfg(test)]
mod schedules;
