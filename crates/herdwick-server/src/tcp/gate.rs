//! In front of the conversation, where users have passwords: memcached's text authentication. The
//! first command is a `set` of any key whose value is `user password`; nothing else is looked at
//! before that, the hello and the binary protocol included.

use herdwick_memcache::{Keys, text};

use crate::{auth::Auth, counters::WorkerCounters};

/// Most bytes of a `user password` (memcached's `MAX_AUTH_REQ_LEN`).
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Most bytes of the line before it.
const LINE_BYTES_MAX: usize = 2048;
/// A line shorter than this is no client's (memcached's `MIN_AUTH_REQ_LEN`).
const LINE_BYTES_MIN: usize = 6;

/// What stands at the gate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AuthStep {
    /// An attempt, or something else, of so many bytes; the answer.
    Turned { used: usize, answer: &'static [u8] },
    /// The right password, of so many bytes.
    Admitted { used: usize },
    /// The rest has to come first: at least this many bytes.
    NeedMore(usize),
    /// No client: hang up.
    Close,
}

/// Looks at the front of `input`.
pub(super) fn authenticate(auth: &Auth, input: &[u8], counters: &mut WorkerCounters) -> AuthStep {
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(LINE_BYTES_MAX + 1)]) else {
        return if input.len() > LINE_BYTES_MAX {
            AuthStep::Close
        } else {
            AuthStep::NeedMore(input.len() + 1)
        };
    };
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
    counters.auth_cmds += 1;
    if auth.admits(&token[..space], &token[space + 1..]) {
        return AuthStep::Admitted { used };
    }
    counters.auth_errors += 1;
    turned(used, b"CLIENT_ERROR authentication failure\r\n")
}

/// What is said to those who are admitted.
pub(super) const ADMITTED: &[u8] = text::STORED;

/// The length that `set KEY FLAGS EXPTIME BYTES` announces.
fn announced(line: &[u8]) -> Option<usize> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = Keys::new(line);
    if words.next() != Some(b"set") {
        return None;
    }
    let bytes: u32 = str::from_utf8(words.nth(3)?).ok()?.parse().ok()?;
    usize::try_from(bytes).ok()
}
