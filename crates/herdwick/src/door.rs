//! A server's memcached port: opened at the start of a session, and again when its connection was
//! closed while it was idle.

use std::io::ErrorKind;

use herdwick_mica::HashKey;

use crate::{
    Address, Cause, DialError, Options,
    due::Due,
    hello::{self, Said},
    memcached::Memcached,
    stream::Stream,
};

/// Where the port is, and what is said at it.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    address: Address,
    options: Options,
}

impl Door {
    pub(crate) fn new(address: &Address, options: &Options) -> Self {
        Self {
            address: address.clone(),
            options: options.clone(),
        }
    }

    /// The door that `stream` came through: of a name with several addresses, that one.
    pub(crate) fn at(self, stream: &Stream) -> Self {
        match stream.ends() {
            Some((_, peer)) => Self {
                address: Address::Tcp(peer.to_string()),
                ..self
            },
            None => self,
        }
    }

    /// A connection on which the peer takes commands.
    pub(crate) fn open(&self, due: Due) -> Result<Stream, DialError> {
        let mut stream = Stream::dial(&self.address, due)?;
        if let Some(login) = &self.options.login {
            hello::log_in(&mut stream, login, due)?;
        }
        Ok(stream)
    }

    /// A connection to the very server whose keys are hashed by `hash_key`: behind one address there
    /// may be several, and a lease is at one of them.
    pub(crate) fn open_again(&self, hash_key: HashKey, due: Due) -> Result<Memcached, Cause> {
        let mut stream = self.open(due).map_err(|error| match error {
            DialError::Io(error) if error.kind() == ErrorKind::TimedOut => Cause::Timeout,
            DialError::Io(error) => Cause::Io(error),
            DialError::LoginNeeded | DialError::LoginRefused | DialError::Name(_) => Cause::Closed,
        })?;
        // No token is asked for: there is a lease already.
        let greeting = Options {
            fabric: false,
            ..self.options.clone()
        };
        match hello::exchange(&mut stream, &greeting, due) {
            Said::Offer(offer) if offer.hash_key == hash_key => {
                Ok(Memcached::new(stream, self.options.value_bytes_max))
            }
            _ => Err(Cause::Closed),
        }
    }
}
