mod caller;
mod calls;
mod redial;

use std::time::{Duration, Instant};

pub use self::calls::{Cas, Item};
use self::{
    caller::{Caller, Surroundings},
    redial::Redial,
};
use crate::{Address, DialError, Error, Options, Session};

/// A client of one server. One call at a time, each waiting for its answer.
///
/// A call that finds its connection lost, or loses it, dials again. Reads are then repeated by
/// themselves; a mutation that was sent and not answered ends as [`Error::UnknownOutcome`] and is
/// never repeated. While the server is away, calls fail at once with [`Error::Unreachable`], and only
/// now and then does one of them dial.
///
/// # What it costs the program
///
/// - Every call blocks its thread. Over a fabric ([`Options::fabric`]) it looks for the answer for up
///   to 200 µs before it sleeps, unless there is one CPU alone. From asynchronous code, call it on a
///   thread that may block.
/// - Over a fabric it holds a lease: memory at the server, of which there is a bounded amount; a
///   thread here, `herdwick-lease`, that sends a byte every two seconds; and, beside the connection
///   to the memcached port, some descriptors for each of the server's workers. Whoever needs many
///   clients on one host may be better off with some by text.
/// - A process that forks leaves the client to the parent. In the child its next call opens a
///   session of its own.
#[derive(Debug)]
pub struct Client {
    caller: Caller<Network>,
}

impl Client {
    /// Connects to `address`: `host:port`, `host` for port 11211, or the path of a unix socket.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Usage`] for an address that is none.
    pub fn connect(address: &str) -> Result<Self, Error> {
        Self::connect_with(address, Options::default())
    }

    /// As [`Client::connect`], with options.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(address: &str, options: Options) -> Result<Self, Error> {
        let (origin, seed) = chance_and_time();
        let redial = Redial::new(address.parse()?, seed);
        let caller = Caller::connect(Network { origin }, redial, options)?;
        Ok(Self { caller })
    }

    /// How long each call from now on may take.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.caller.set_deadline(deadline);
    }

    /// The session that the last call used, or the first dial opened; `None` when that call lost it,
    /// or gave it up at its deadline.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        self.caller.session()
    }
}

/// The real ones.
#[derive(Debug)]
struct Network {
    origin: Instant,
}

impl Surroundings for Network {
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
    // Without a random source clients only lose the spread of their pauses.
    (now, getrandom::u64().unwrap_or(1))
}

#[cfg(test)]
mod schedules;
