//! SASL (RFC 4422) at a connection of the binary protocol: one exchange, by PLAIN (RFC 4616) or
//! SCRAM-SHA-256. The messages are as memcached with Cyrus SASL sends them.

use stringprep::saslprep;

use super::{
    Auth, Challenge,
    scram::{Challenged, ClientFirst},
};
use crate::settings::auth_error::LINE_BYTES_MAX;

/// The mechanisms, as they are listed to clients, the strongest first.
pub(crate) const MECHANISMS: &str = "SCRAM-SHA-256 PLAIN";
const SCRAM: &[u8] = b"SCRAM-SHA-256";
const PLAIN: &[u8] = b"PLAIN";

/// What an exchange waits for.
pub(crate) enum SaslExchange {
    /// The first message, which did not come with the start.
    Opened(Mechanism),
    /// The proof of SCRAM.
    Challenged(Box<Challenged>),
    /// The client's consent to the server's own proof: an empty message, since memcached's last
    /// response has no room for a message of the mechanism.
    Proven,
}

/// How a client authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    Plain,
    Scram,
}

/// The answer to a client's message.
pub(crate) enum SaslStep {
    /// The user is authenticated.
    Admitted,
    /// Send this message, and wait for another.
    Continue(SaslExchange, String),
    /// The exchange has failed.
    Refused,
}

impl Mechanism {
    /// Returns the mechanism of this name.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        if name.eq_ignore_ascii_case(PLAIN) {
            Some(Self::Plain)
        } else if name.eq_ignore_ascii_case(SCRAM) {
            Some(Self::Scram)
        } else {
            None
        }
    }
}

impl SaslExchange {
    /// Begins an exchange with the message that came with its start, which may be empty: then the
    /// first message comes with the first step.
    pub(crate) fn start(auth: &Auth, mechanism: &[u8], message: &[u8]) -> SaslStep {
        let Some(mechanism) = Mechanism::named(mechanism) else {
            return SaslStep::Refused;
        };
        let opened = Self::Opened(mechanism);
        if message.is_empty() {
            return SaslStep::Continue(opened, String::new());
        }
        opened.step(auth, message)
    }

    /// Returns the bytes of memory that it takes beside itself.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Challenged(challenged) => challenged.memory(),
            Self::Opened(_) | Self::Proven => 0,
        }
    }

    /// Continues with the client's next message.
    pub(crate) fn step(self, auth: &Auth, message: &[u8]) -> SaslStep {
        let admitted = match self {
            Self::Opened(Mechanism::Plain) => plain(auth, message),
            Self::Opened(Mechanism::Scram) => {
                return challenge(auth, message).unwrap_or(SaslStep::Refused);
            }
            Self::Challenged(challenged) => match challenged.prove(message) {
                Some(verifier) => return SaslStep::Continue(Self::Proven, verifier),
                None => false,
            },
            Self::Proven => message.is_empty(),
        };
        match admitted {
            true => SaslStep::Admitted,
            false => SaslStep::Refused,
        }
    }
}

/// Checks `[authzid] NUL user NUL password`.
fn plain(auth: &Auth, message: &[u8]) -> bool {
    let mut parts = message.split(|&byte| byte == 0);
    let (Some(authzid), Some(name), Some(password), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    // A user acts as itself only.
    let itself = authzid.is_empty() || authzid == name;
    // No line of the file is as long, and to prepare text takes time by its length.
    let short = name.len().max(password.len()) <= LINE_BYTES_MAX;
    short && itself && auth.admits_plain(name, password)
}

/// Answers the first message of SCRAM; `None` if it is malformed, or its user acts as another one.
fn challenge(auth: &Auth, message: &[u8]) -> Option<SaslStep> {
    let first = ClientFirst::parse(message)?;
    // As in PLAIN.
    if first.name.len() > LINE_BYTES_MAX {
        return None;
    }
    let itself = first.authzid.as_ref().is_none_or(|id| *id == first.name);
    let name = saslprep(&first.name).ok();
    let name = name.filter(|name| itself && !name.is_empty())?;
    // An unknown user is challenged like a known one, and fails at the proof.
    let Challenge { keys, salt, nonce } = auth.challenge(&name)?;
    let (challenged, said) = Challenged::new(&first, keys, &salt, &nonce);
    let exchange = SaslExchange::Challenged(Box::new(challenged));
    Some(SaslStep::Continue(exchange, said))
}
