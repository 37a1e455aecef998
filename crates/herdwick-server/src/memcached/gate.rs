//! memcached's text authentication, where users have passwords. The first command has to be a `set`
//! of any key with the value `user password`; before that nothing else is accepted, the hello and
//! the binary protocol included. A claim is accepted without: its token proves that its client was
//! admitted before.

use herdwick_memcache::{Keys, text};

use super::{connection::Connection, run::Progress, service::Service};
use crate::{net::auth::Auth, telemetry::snapshot::WorkerCounters};

/// Maximum length of `user password` in bytes (memcached's `MAX_AUTH_REQ_LEN`).
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Maximum length of the command line in bytes.
const LINE_BYTES_MAX: usize = 2048;
/// Minimum length of the command line in bytes (memcached's `MIN_AUTH_REQ_LEN`).
const LINE_BYTES_MIN: usize = 6;

/// The result of one step of authentication.
#[derive(Debug, PartialEq, Eq)]
enum AuthStep {
    /// A failed attempt, or another command, of `used` bytes, and the error to send.
    Turned { used: usize, answer: &'static [u8] },
    /// A valid user and password, in `used` bytes.
    Admitted { used: usize },
    /// Incomplete: try again with at least this many bytes of input.
    NeedMore(usize),
    /// Not a memcached client: close the connection.
    Close,
}

impl Service {
    /// Authenticates `connection`; returns whether it is admitted.
    pub(crate) fn admit(
        &mut self,
        connection: &mut Connection,
        counters: &mut WorkerCounters,
    ) -> bool {
        match &self.context.auth {
            Some(auth) if auth.is_sasl() => self.admit_by_sasl(connection, counters),
            _ => self.admit_by_text(connection, counters),
        }
    }

    /// Authenticates `connection` with as many attempts as its input holds; returns whether it is
    /// admitted.
    fn admit_by_text(
        &mut self,
        connection: &mut Connection,
        counters: &mut WorkerCounters,
    ) -> bool {
        // Bounded by the input: a turn reads once.
        while let Some(auth) = &self.context.auth
            && connection.has_work()
        {
            let step = authenticate(auth, connection.input.data(), counters);
            let (used, answer) = match step {
                AuthStep::NeedMore(need) => {
                    connection.await_bytes(need);
                    return false;
                }
                AuthStep::Close => {
                    counters.closed_not_memcached += 1;
                    connection.faulty = true;
                    connection.hang_up();
                    return false;
                }
                AuthStep::Turned { used, answer } => (used, answer),
                AuthStep::Admitted { used } => {
                    connection.admitted = true;
                    (used, ADMITTED)
                }
            };
            connection.advance(Progress::past(used));
            let out = connection.output.buffer(&mut self.pool);
            out.extend_from_slice(answer);
            if connection.admitted {
                return true;
            }
        }
        false
    }
}

/// Authenticates by the command at the front of `input`.
fn authenticate(auth: &Auth, input: &[u8], counters: &mut WorkerCounters) -> AuthStep {
    // memcached closes after 2 KiB without a line end, before the authentication as after it.
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(LINE_BYTES_MAX + 1)]) else {
        return if input.len() > LINE_BYTES_MAX {
            AuthStep::Close
        } else {
            AuthStep::NeedMore(input.len() + 1)
        };
    };
    // memcached closes on such a line, too: it is shorter than any `set`.
    if end < LINE_BYTES_MIN {
        return AuthStep::Close;
    }
    let turned = |used, answer| AuthStep::Turned { used, answer };
    let used = end + 1;
    let Some(bytes) = announced(&input[..end]) else {
        return turned(used, b"CLIENT_ERROR unauthenticated\r\n");
    };
    if bytes > TOKEN_BYTES_MAX {
        return turned(used, b"CLIENT_ERROR auth token too long\r\n");
    }
    // The line end behind the block.
    let used = used + bytes + 2;
    let Some(block) = input.get(end + 1..used) else {
        return AuthStep::NeedMore(used);
    };
    let Some(token) = block.strip_suffix(b"\r\n") else {
        return turned(used, b"CLIENT_ERROR bad command line termination\r\n");
    };
    let Some(space) = memchr::memchr(b' ', token) else {
        let answer = b"CLIENT_ERROR bad authentication token format\r\n";
        return turned(used, answer);
    };
    // Only a block that has the form of a token counts as an attempt.
    counters.auth_cmds += 1;
    if auth.admits(&token[..space], &token[space + 1..]) {
        return AuthStep::Admitted { used };
    }
    counters.auth_errors += 1;
    turned(used, b"CLIENT_ERROR authentication failure\r\n")
}

/// The reply to a successful authentication.
const ADMITTED: &[u8] = text::STORED;

/// Returns the value length in `set KEY FLAGS EXPTIME BYTES`; `None` for any other line.
fn announced(line: &[u8]) -> Option<usize> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = Keys::new(line);
    if words.next() != Some(b"set") {
        return None;
    }
    // memcached, too, ignores words behind it.
    let bytes: u32 = str::from_utf8(words.nth(3)?).ok()?.parse().ok()?;
    usize::try_from(bytes).ok()
}
