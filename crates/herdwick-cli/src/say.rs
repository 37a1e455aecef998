//! Output of the command on standard output and standard error. What cannot be written is lost: the
//! macros of the standard library end the process instead, and with it a server whose log is on a full
//! disk.

use std::{
    fmt::Display,
    io::{self, Write},
};

/// Writes a line to standard error, after the name of the program.
pub(crate) fn complain(words: impl Display) {
    let _ = writeln!(io::stderr().lock(), "herdwick: {words}");
}

/// Writes a report to standard output. A pipe may be closed by its reader.
///
/// # Errors
/// Those of standard output, but for a pipe that has been closed.
pub(crate) fn report(words: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{words}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
