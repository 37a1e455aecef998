//! How calls end: the codes, and the text of the thread's last error.

use std::{cell::RefCell, ffi::CString};

use herdwick::{DialError, Error, Refusal, Usage};

/// The result of a call, `herdwick_status`. From 0 on they are answers, below 0 errors.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Done.
    Ok = 0,
    /// There is no item.
    NotFound = 1,
    /// The condition of `add`, `replace`, `append` or `prepend` does not hold.
    NotStored = 2,
    /// The item has changed since its version was read.
    Changed = 3,
    /// A session has as many requests in flight as it accepts.
    Full = 4,
    /// A mistake of the caller.
    Usage = -1,
    /// The item is larger than the server stores.
    TooLarge = -2,
    /// The value is not a decimal number.
    NotNumeric = -3,
    /// The server refuses for another reason.
    Server = -4,
    /// There is no connection.
    Unreachable = -5,
    /// No answer in time; nothing was changed.
    Timeout = -6,
    /// The connection was lost; nothing was changed.
    Disconnected = -7,
    /// The connection was lost, or the time is over; a change was sent, and may have been made.
    UnknownOutcome = -8,
    /// The process or the system lacks memory or descriptors.
    System = -9,
    /// A defect of the library.
    Internal = -10,
}

/// Why a call fails: its code, and the text.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Status::Usage, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(status(&error), error.to_string())
    }
}

impl From<Usage> for Failure {
    fn from(usage: Usage) -> Self {
        Error::from(usage).into()
    }
}

/// The code of an error.
pub(crate) fn status(error: &Error) -> Status {
    match error {
        Error::Usage(_) => Status::Usage,
        Error::TooLarge => Status::TooLarge,
        Error::NotNumeric => Status::NotNumeric,
        Error::Server(_) => Status::Server,
        Error::Unreachable { reason, .. } => not_dialled(reason),
        Error::Timeout(_) => Status::Timeout,
        Error::Disconnected(_) => Status::Disconnected,
        Error::UnknownOutcome(_) => Status::UnknownOutcome,
    }
}

/// The code of a dial that failed.
pub(crate) fn not_dialled(reason: &DialError) -> Status {
    match reason {
        DialError::Io(error) if error.is_shortage() => Status::System,
        _ => Status::Unreachable,
    }
}

impl From<Refusal<'_>> for Failure {
    fn from(refusal: Refusal<'_>) -> Self {
        let error = match refusal {
            Refusal::TooLarge => Error::TooLarge,
            Refusal::NotNumeric => Error::NotNumeric,
            Refusal::Other(text) => Error::Server(String::from_utf8_lossy(text).into_owned()),
        };
        error.into()
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text of a failed call for `herdwick_error_text`, and returns its code.
pub(crate) fn report(failure: Failure) -> Status {
    let text = c_text(failure.text);
    // Fails while the thread ends, where nothing can ask any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    failure.status
}

/// `text` up to its first NUL byte.
pub(crate) fn c_text(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    let end = bytes.iter().position(|&byte| byte == 0);
    bytes.truncate(end.unwrap_or(bytes.len()));
    CString::new(bytes).unwrap_or_default()
}

/// Returns the text of the last call of this thread that failed: empty if there was none. It is valid until
/// the thread's next call that fails.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn herdwick_error_text() -> *const std::ffi::c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or_else(|_| c"".as_ptr())
}

/// Returns what a status stands for. It is valid for ever.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn herdwick_status_text(status: i32) -> *const std::ffi::c_char {
    // By number, as C may pass any: not every one is a `Status`.
    let text = match status {
        0 => c"done",
        1 => c"not found",
        2 => c"not stored",
        3 => c"changed since it was read",
        4 => c"as many requests in flight as the session accepts",
        -1 => c"mistake of the caller",
        -2 => c"larger than the server stores",
        -3 => c"not a decimal number",
        -4 => c"refused by the server",
        -5 => c"no connection",
        -6 => c"no answer in time, nothing was changed",
        -7 => c"connection lost, nothing was changed",
        -8 => c"connection lost, a change may have been made",
        -9 => c"the process or the system lacks memory or descriptors",
        -10 => c"defect of the library",
        _ => c"unknown status",
    };
    text.as_ptr()
}

/// Returns the version of the library, such as `0.1.0`. It is valid for ever.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn herdwick_version() -> *const std::ffi::c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
