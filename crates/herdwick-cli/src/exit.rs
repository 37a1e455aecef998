//! Exit codes, the same for every subcommand.

use std::process::ExitCode;

use herdwick::{DialError, Error};

/// The exit code of a command that did not succeed; success is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command ran, and the answer is no.
    No = 1,
    /// The command line, or a file that it names, is invalid. clap uses the same code.
    Usage = 2,
    /// No server, or no answer from it.
    Unreachable = 3,
    /// Something else failed.
    Failed = 4,
}

/// The table in `--help`; docs/operating.md contains the same lines.
pub(crate) const TABLE: &str = "\
Exit codes:
  0  done
  1  no: a key is not there, a fabric does not work (doctor), a reply was wrong (bench)
  2  the command line is wrong, or a file that it names
  3  no server there, the connection was lost, or no answer came in time
  4  anything else: the server refused, a file cannot be written, the server cannot start";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        match error {
            Error::Usage(_) => Self::Usage,
            // A server that refuses the client is there.
            Error::Unreachable {
                reason: DialError::LoginNeeded | DialError::LoginRefused | DialError::Tls(_),
                ..
            }
            | Error::TooLarge
            | Error::NotNumeric
            | Error::Server(_) => Self::Failed,
            Error::Unreachable { .. }
            | Error::Timeout(_)
            | Error::Disconnected(_)
            | Error::UnknownOutcome(_) => Self::Unreachable,
        }
    }
}
