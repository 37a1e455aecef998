//! A server's memcached port: dialled at the start of a session, and again when its connection was
//! closed while it was idle.

use std::io::ErrorKind;

use herdwick_herd::hello::Offer;
use herdwick_request::HashKey;

use crate::{
    Address, Cause, DialError, Options, Tls,
    due::Due,
    hello::{self, Said},
    memcached::Memcached,
    stream::Stream,
};

/// A server's memcached port, and the options of its connections.
#[derive(Clone, Debug)]
pub(crate) struct MemcachedPort {
    address: Address,
    options: Options,
    /// TLS, for the server's name.
    tls: Option<Result<Tls, DialError>>,
}

impl MemcachedPort {
    pub(crate) fn new(address: &Address, options: &Options) -> Self {
        Self {
            address: address.clone(),
            options: options.clone(),
            // An address that TLS has no name for is reported when a connection is opened.
            tls: options.tls.as_ref().map(|tls| tls.for_server(address)),
        }
    }

    /// Returns the port that `stream` is connected to: of a name with several addresses, that one.
    pub(crate) fn at(self, stream: &Stream) -> Self {
        match stream.ends() {
            Some((_, peer)) => Self {
                address: Address::Tcp(peer.to_string()),
                ..self
            },
            None => self,
        }
    }

    /// Opens a connection on which the peer accepts commands; logs in if it requires that.
    pub(crate) fn open(&self, due: Due) -> Result<Stream, DialError> {
        let mut stream = Stream::dial(&self.address, due)?;
        if let Some(tls) = &self.tls {
            stream = stream.encrypted(tls.as_ref().map_err(Clone::clone)?, due)?;
        }
        if let Some(login) = &self.options.login {
            hello::log_in(&mut stream, login, due)?;
        }
        Ok(stream)
    }

    /// Opens a connection to the very server that hashes keys by `hash_key`: there may be several
    /// behind one address, and the lease is at one of them.
    pub(crate) fn open_again(&self, hash_key: HashKey, due: Due) -> Result<Memcached, Cause> {
        let (stream, _) = self.ask_again(hash_key, due)?;
        Ok(Memcached::new(stream, self.options.value_bytes_max))
    }

    /// The same; returns the connection, and what the server offers besides leases.
    pub(crate) fn ask_again(&self, hash_key: HashKey, due: Due) -> Result<(Stream, Offer), Cause> {
        let mut stream = self.open(due).map_err(|error| match error {
            DialError::Io(error) if error.kind() == ErrorKind::TimedOut => Cause::Timeout,
            DialError::Io(error) => Cause::Io(error),
            DialError::LoginNeeded
            | DialError::LoginRefused
            | DialError::AnotherMember
            | DialError::Tls(_)
            | DialError::Name(_) => Cause::Closed,
        })?;
        // Do not request a token: there is a lease already.
        let greeting = Options {
            fabric: false,
            ..self.options.clone()
        };
        match hello::exchange(&mut stream, &greeting, due) {
            Said::Offer(offer) if offer.hash_key == hash_key => Ok((stream, offer)),
            _ => Err(Cause::Closed),
        }
    }
}
