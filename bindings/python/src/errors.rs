//! Errors as exceptions: the classes of `herdwick.exceptions`, which are pymemcache's where it is installed.

use herdwick::{Cause, DialError, Error, Usage};
use pyo3::{
    exceptions::{PyConnectionError, PyOSError, PyValueError},
    prelude::*,
};

/// An exception of a class of `herdwick.exceptions`.
pub(crate) fn raise(py: Python<'_>, class: &str, text: impl Into<String>) -> PyErr {
    let module = py.import("herdwick.exceptions");
    let made = module.and_then(|module| module.getattr(class)?.call1((text.into(),)));
    made.map_or_else(|error| error, PyErr::from_value)
}

pub(crate) fn illegal(py: Python<'_>, text: impl Into<String>) -> PyErr {
    raise(py, "MemcacheIllegalInputError", text)
}

/// `socket.timeout`, which is `TimeoutError` since Python 3.10.
fn timeout(py: Python<'_>, text: String) -> PyErr {
    let class = py
        .import("socket")
        .and_then(|module| module.getattr("timeout"));
    let made = class.and_then(|class| class.call1((text,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The exception for `error`.
pub(crate) fn exception(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Usage(_) => illegal(py, text),
        Error::TooLarge | Error::Server(_) => raise(py, "MemcacheServerError", text),
        Error::NotNumeric => raise(py, "MemcacheClientError", text),
        Error::Unreachable { reason, .. } => unreachable(py, &reason, text),
        Error::Timeout(_) => timeout(py, text),
        Error::Disconnected(Cause::Malformed(_) | Cause::Unexpected) => {
            raise(py, "MemcacheUnknownError", text)
        }
        Error::Disconnected(_) => raise(py, "MemcacheUnexpectedCloseError", text),
        Error::UnknownOutcome(_) => raise(py, "MemcacheUnknownOutcomeError", text),
    }
}

pub(crate) fn unreachable(py: Python<'_>, reason: &DialError, text: String) -> PyErr {
    match reason {
        DialError::Io(error) => match error.raw_os_error() {
            // Python chooses the class by the number: ConnectionRefusedError and so on.
            Some(number) => PyOSError::new_err((number, text)),
            None if error.kind() == std::io::ErrorKind::TimedOut => timeout(py, text),
            None => PyConnectionError::new_err(text),
        },
        DialError::LoginNeeded | DialError::LoginRefused => raise(py, "MemcacheClientError", text),
        DialError::Tls(_) | DialError::Name(_) | DialError::AnotherMember => {
            PyConnectionError::new_err(text)
        }
    }
}

/// The exception for options that make no client.
pub(crate) fn bad_options(usage: &Usage) -> PyErr {
    PyValueError::new_err(usage.to_string())
}
