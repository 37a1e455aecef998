//! Many requests in flight on one connection, for `herdwick.asyncio`: nothing here waits but `Session()`.

use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use herdwick::{Answer, Cause, Error, Key, Lost, Mode, Op, PollDescriptor, Put, Refusal};
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyBytes, PyDict},
};

use crate::{
    config::Config,
    errors::{exception, unreachable},
    values::{delta, ttl, version},
};

/// A session, of the thread that runs the event loop.
#[pyclass(frozen, name = "_Session", module = "herdwick._herdwick")]
#[derive(Debug)]
pub(crate) struct Session {
    inner: Mutex<Inner>,
    transport: &'static str,
    missed: Option<String>,
}

#[derive(Debug)]
struct Inner {
    session: herdwick::Session,
    descriptor: PollDescriptor,
    origin: Instant,
    deadline: Duration,
    is_armed: bool,
}

impl Inner {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn end_wait(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.session.end_wait(&mut self.descriptor);
        }
    }
}

/// An answer for Python: the ticket, a number that is 1 for a success, 0 for a condition that does not
/// hold, and -1 for no item; the result; and an exception instead of both.
type Answered = (u64, i8, Option<Py<PyAny>>, Option<PyErr>);

impl Session {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, py: Python<'_>, key: &[u8], op: &Op<'_>) -> PyResult<Option<u64>> {
        let key = Key::new(key).map_err(|usage| exception(py, usage.into()))?;
        let mut inner = self.lock();
        let now = inner.now();
        match inner.session.submit(now, key, op) {
            Some(ticket) => Ok(Some(ticket.number())),
            None => match inner.session.broken() {
                Some(cause) => Err(exception(py, Error::Disconnected(cause))),
                None => Ok(None),
            },
        }
    }
}

#[pymethods]
impl Session {
    /// Connects; waits until that is done.
    #[new]
    fn new(py: Python<'_>, server: String, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let config = Config::new(&[server], options)?;
        let address = config.nodes[0].address().clone();
        let deadline = config.options.client.deadline;
        let mut options = config.options.client;
        options.deadline = config.connect_deadline;
        let dialled = py.detach(|| herdwick::Session::dial(&address, &options));
        let mut session = dialled.map_err(|reason| {
            unreachable(py, &reason, format!("cannot reach {address}: {reason}"))
        })?;
        session.set_deadline(deadline);
        let descriptor = PollDescriptor::new();
        Ok(Self {
            transport: session.transport(),
            missed: session.missed().map(ToString::to_string),
            inner: Mutex::new(Inner {
                session,
                descriptor: descriptor.map_err(|error| PyOSError::new_err(error.to_string()))?,
                origin: clock(),
                deadline,
                is_armed: false,
            }),
        })
    }

    /// The transport, and why it is not a better one.
    #[getter]
    fn transport(&self) -> (&'static str, Option<&str>) {
        (self.transport, self.missed.as_deref())
    }

    /// Submits a read. Returns the ticket; `None`, if as many requests are in flight as are accepted.
    fn get(&self, py: Python<'_>, key: PyBackedBytes) -> PyResult<Option<u64>> {
        self.submit(py, &key, &Op::Get)
    }

    /// Submits a store: set, add, replace, append, prepend or cas.
    #[expect(clippy::too_many_arguments, reason = "the caller is this package")]
    fn store(
        &self,
        py: Python<'_>,
        how: &str,
        key: PyBackedBytes,
        value: PyBackedBytes,
        flags: u32,
        expire: &Bound<'_, PyAny>,
        cas: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<u64>> {
        let put = Put::new(&value).flags(flags).ttl(ttl(expire)?);
        let op = match (how, cas) {
            ("set", None) => Op::Store(Mode::Set, put),
            ("add", None) => Op::Store(Mode::Add, put),
            ("replace", None) => Op::Store(Mode::Replace, put),
            ("append", None) => Op::Store(Mode::Append, Put::new(&value)),
            ("prepend", None) => Op::Store(Mode::Prepend, Put::new(&value)),
            ("cas", Some(cas)) => Op::Cas(version(cas)?, put),
            _ => return Err(PyValueError::new_err("there is no such way to store")),
        };
        self.submit(py, &key, &op)
    }

    /// Submits a delete.
    fn delete(&self, py: Python<'_>, key: PyBackedBytes) -> PyResult<Option<u64>> {
        self.submit(py, &key, &Op::Delete)
    }

    /// Submits a touch.
    fn touch(
        &self,
        py: Python<'_>,
        key: PyBackedBytes,
        expire: &Bound<'_, PyAny>,
    ) -> PyResult<Option<u64>> {
        self.submit(py, &key, &Op::Touch(ttl(expire)?))
    }

    /// Submits an increment, or a decrement.
    fn count(
        &self,
        py: Python<'_>,
        key: PyBackedBytes,
        value: &Bound<'_, PyAny>,
        is_up: bool,
    ) -> PyResult<Option<u64>> {
        let delta = delta(value)?;
        let op = if is_up {
            Op::Incr(delta)
        } else {
            Op::Decr(delta)
        };
        self.submit(py, &key, &op)
    }

    /// Sends what was submitted, and returns the answers that have arrived.
    fn poll(&self, py: Python<'_>) -> Vec<Answered> {
        let mut answers = Vec::new();
        let mut inner = self.lock();
        inner.end_wait();
        let (now, deadline) = (inner.now(), inner.deadline);
        inner.session.flush(now);
        inner.session.poll(now, &mut |ticket, answer| {
            answers.push(answered(py, ticket.number(), answer, deadline));
        });
        answers
    }

    /// Prepares a wait for the descriptor: returns the longest time in seconds, `None` if nothing is in
    /// flight.
    fn arm(&self) -> Option<f64> {
        let mut held = self.lock();
        held.end_wait();
        held.is_armed = true;
        let now = held.now();
        let Inner {
            session,
            descriptor,
            ..
        } = &mut *held;
        let longest = session.arm(now, descriptor);
        (longest != Duration::MAX).then_some(longest.as_secs_f64())
    }

    /// The descriptor to wait for.
    fn fileno(&self) -> RawFd {
        self.lock().descriptor.as_fd().as_raw_fd()
    }

    /// Whether the session has ended, or its server has. Nothing may be in flight.
    fn check(&self) -> bool {
        let mut inner = self.lock();
        let now = inner.now();
        inner.session.check(now);
        inner.session.broken().is_some()
    }

    /// Why the session has ended.
    fn broken(&self) -> Option<String> {
        let cause = self.lock().session.broken();
        cause.map(|cause| cause.to_string())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the shell of Python's callers has the clock"
)]
fn clock() -> Instant {
    Instant::now()
}

fn answered(py: Python<'_>, ticket: u64, answer: Answer<'_>, deadline: Duration) -> Answered {
    let error = match answer {
        Answer::Hit(hit) => {
            let item = (PyBytes::new(py, hit.value), hit.flags, hit.version);
            let item = item.into_pyobject(py).map(|item| item.into_any().unbind());
            return match item {
                Ok(item) => (ticket, 1, Some(item), None),
                Err(error) => (ticket, 0, None, Some(error)),
            };
        }
        Answer::Miss => return (ticket, -1, None, None),
        Answer::Done => return (ticket, 1, None, None),
        Answer::NotStored | Answer::Exists => return (ticket, 0, None, None),
        Answer::Number(number) => {
            let number = number
                .into_pyobject(py)
                .map(|number| number.into_any().unbind());
            return (ticket, 1, number.ok(), None);
        }
        Answer::Refused(Refusal::TooLarge) => Error::TooLarge,
        Answer::Refused(Refusal::NotNumeric) => Error::NotNumeric,
        Answer::Refused(Refusal::Other(text)) => {
            Error::Server(String::from_utf8_lossy(text).into_owned())
        }
        Answer::Lost(lost) => lost_error(lost, deadline),
        // Of a command that lists, which none of these is.
        Answer::Line { .. } => Error::Disconnected(Cause::Unexpected),
    };
    (ticket, 0, None, Some(exception(py, error)))
}

fn lost_error(lost: Lost, deadline: Duration) -> Error {
    match (lost.perhaps_done, lost.cause) {
        (true, cause) => Error::UnknownOutcome(cause),
        (false, Cause::Timeout) => Error::Timeout(deadline),
        (false, cause) => Error::Disconnected(cause),
    }
}
