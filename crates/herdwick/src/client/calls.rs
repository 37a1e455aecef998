//! The calls of a [`Client`], one method each, and the results that they return.
//!
//! Circular import with `client` and `caller`: the calls are methods of the client, which holds the engine,
//! which returns the results that are declared here.

use std::time::Duration;

use super::Client;
use crate::{
    Answer, Cause, Error, Hit, Key, Mode, Op, Put, Refusal, Session, Ticket, Ttl, Usage,
    text::Command,
};

/// An item that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The value.
    pub value: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    /// Changes with every change of the item; pass it to [`Client::cas`].
    pub version: u64,
}

/// The result of a [`Client::cas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cas {
    /// Stored.
    Stored,
    /// The item has changed since its version was read.
    Changed,
    /// The item does not exist.
    Missing,
}

/// Every call may fail with [`Error::Usage`], [`Error::Server`], [`Error::Unreachable`],
/// [`Error::Timeout`] and [`Error::Disconnected`]; mutations also with [`Error::UnknownOutcome`].
impl Client {
    /// Reads a value; `None` if there is no item.
    ///
    /// # Errors
    /// As every call.
    pub fn get(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.gets(key)?.map(|item| item.value))
    }

    /// Reads an item: value, flags and version.
    ///
    /// # Errors
    /// As every call.
    pub fn gets(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Item>, Error> {
        self.caller.call(request(key.as_ref(), Op::Get)?, |answer| {
            Some(hit(answer).map(|hit| hit.map(Item::from)))
        })
    }

    /// Reads the items of `keys`, in their order. As many are requested at once as the session
    /// accepts ([`Options::window`](crate::Options::window) at each worker, or 4,096 as text): that
    /// many take one round trip.
    ///
    /// # Errors
    /// As every call; an error or the deadline applies to all keys together.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Item>>, Error> {
        let mut items = vec![None; keys.len()];
        self.get_many_with(keys, |place, hit| items[place] = hit.map(Item::from))?;
        Ok(items)
    }

    /// As [`Client::get_many`], for callers that keep no [`Item`]s: gives `each` the place of every key in
    /// `keys`, and what was found for it, where it lies; in any order. After a session is lost all keys are
    /// read again, so that `each` may see a place a second time: the last is right. After an error it has not
    /// seen all.
    ///
    /// ```
    /// # let server = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
    /// # let mut client = herdwick::Client::connect(&server.address().to_string())?;
    /// client.set("a", "12")?;
    /// client.set("b", "345")?;
    /// let mut lengths = [0; 3];
    /// client.get_many_with(&["b", "none", "a"], |place, hit| {
    ///     lengths[place] = hit.map_or(0, |hit| hit.value.len());
    /// })?;
    /// assert_eq!(lengths, [3, 0, 2]);
    /// # Ok::<(), herdwick::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::get_many`].
    pub fn get_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        each: impl FnMut(usize, Option<Hit<'_>>),
    ) -> Result<(), Error> {
        let keys = keys
            .iter()
            .map(|key| Key::new(key.as_ref()))
            .collect::<Result<Vec<_>, _>>()?;
        self.caller.get_many(&keys, each)
    }

    /// Stores a value, whether or not there is an item.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn set<'a>(&mut self, key: impl AsRef<[u8]>, put: impl Into<Put<'a>>) -> Result<(), Error> {
        self.store(key.as_ref(), Op::Store(Mode::Set, put.into()))
            .map(drop)
    }

    /// Stores a value if there is no item. Returns whether it was stored.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn add<'a>(
        &mut self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
    ) -> Result<bool, Error> {
        self.store(key.as_ref(), Op::Store(Mode::Add, put.into()))
    }

    /// Stores a value if there is an item. Returns whether it was stored.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn replace<'a>(
        &mut self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
    ) -> Result<bool, Error> {
        self.store(key.as_ref(), Op::Store(Mode::Replace, put.into()))
    }

    /// Appends `value` to the item's, if there is one. Returns whether there was. Flags and time to
    /// live are kept.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn append(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        self.store(key.as_ref(), Op::Store(Mode::Append, Put::new(&value)))
    }

    /// Prepends `value` to the item's, if there is one. Returns whether there was. Flags and time
    /// to live are kept.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn prepend(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        self.store(key.as_ref(), Op::Store(Mode::Prepend, Put::new(&value)))
    }

    /// Stores a value if the item still has this [`Item::version`].
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn cas<'a>(
        &mut self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
        version: u64,
    ) -> Result<Cas, Error> {
        let op = Op::Cas(version, put.into());
        self.caller.call(request(key.as_ref(), op)?, |answer| {
            Some(match answer {
                Answer::Done => Ok(Cas::Stored),
                Answer::Exists => Ok(Cas::Changed),
                Answer::Miss => Ok(Cas::Missing),
                other => Err(unexpected(other)),
            })
        })
    }

    /// Removes the item. Returns whether there was one.
    ///
    /// # Errors
    /// As every call.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.caller
            .call(request(key.as_ref(), Op::Delete)?, |answer| {
                Some(found(answer))
            })
    }

    /// Sets the item's time to live. Returns whether there is one.
    ///
    /// # Errors
    /// As every call.
    pub fn touch(&mut self, key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Result<bool, Error> {
        let op = Op::Touch(ttl.into());
        self.caller
            .call(request(key.as_ref(), op)?, |answer| Some(found(answer)))
    }

    /// Adds to a decimal value, wrapping at 2^64. Returns the new number, or `None` if there is no
    /// item.
    ///
    /// # Errors
    /// As every call, and [`Error::NotNumeric`].
    pub fn incr(&mut self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        self.caller
            .call(request(key.as_ref(), Op::Incr(delta))?, |answer| {
                Some(number(answer))
            })
    }

    /// Subtracts from a decimal value, down to 0. Returns the new number, or `None` if there is no
    /// item.
    ///
    /// # Errors
    /// As every call, and [`Error::NotNumeric`].
    pub fn decr(&mut self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        self.caller
            .call(request(key.as_ref(), Op::Decr(delta))?, |answer| {
                Some(number(answer))
            })
    }

    /// Reads the server's statistics; `argument` is empty or a group such as `items`.
    ///
    /// # Errors
    /// As every call.
    pub fn stats(&mut self, argument: &str) -> Result<Vec<(String, String)>, Error> {
        let bytes = argument.as_bytes();
        if bytes.len() > 250 || bytes.iter().any(|&byte| byte < b' ') {
            return Err(Usage::StatsArgument.into());
        }
        self.list(Command::Stats(bytes))
    }

    /// Reads the server's version.
    ///
    /// # Errors
    /// As every call.
    pub fn version(&mut self) -> Result<String, Error> {
        let lines = self.list(Command::Version)?;
        Ok(lines.into_iter().map(|(_, version)| version).collect())
    }

    /// Invalidates all items of the server.
    ///
    /// # Errors
    /// As every call.
    pub fn flush_all(&mut self) -> Result<(), Error> {
        self.list(Command::FlushAll).map(drop)
    }

    fn store(&mut self, key: &[u8], op: Op<'_>) -> Result<bool, Error> {
        self.caller.call(request(key, op)?, |answer| {
            Some(match answer {
                Answer::Done => Ok(true),
                Answer::NotStored => Ok(false),
                other => Err(unexpected(other)),
            })
        })
    }

    fn list(&mut self, command: Command<'_>) -> Result<Vec<(String, String)>, Error> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut lines = Vec::new();
        self.caller.call(
            |session, now| session.command(now, command),
            |answer| match answer {
                Answer::Line { name, value } => {
                    lines.push((text(name), text(value)));
                    None
                }
                Answer::Done => Some(Ok(std::mem::take(&mut lines))),
                other => Some(Err(unexpected(other))),
            },
        )
    }
}

impl From<Hit<'_>> for Item {
    fn from(hit: Hit<'_>) -> Self {
        let Hit {
            value,
            flags,
            version,
        } = hit;
        Self {
            value: value.to_vec(),
            flags,
            version,
        }
    }
}

pub(super) fn hit(answer: Answer<'_>) -> Result<Option<Hit<'_>>, Error> {
    match answer {
        Answer::Hit(hit) => Ok(Some(hit)),
        Answer::Miss => Ok(None),
        other => Err(unexpected(other)),
    }
}

fn found(answer: Answer<'_>) -> Result<bool, Error> {
    match answer {
        Answer::Done => Ok(true),
        Answer::Miss => Ok(false),
        other => Err(unexpected(other)),
    }
}

fn number(answer: Answer<'_>) -> Result<Option<u64>, Error> {
    match answer {
        Answer::Number(number) => Ok(Some(number)),
        Answer::Miss => Ok(None),
        other => Err(unexpected(other)),
    }
}

/// Converts the answers that every call may get, and those that no correct server gives to it.
fn unexpected(answer: Answer<'_>) -> Error {
    match answer {
        Answer::Refused(Refusal::TooLarge) => Error::TooLarge,
        Answer::Refused(Refusal::NotNumeric) => Error::NotNumeric,
        Answer::Refused(Refusal::Other(text)) => {
            Error::Server(String::from_utf8_lossy(text).into_owned())
        }
        _ => Error::Disconnected(Cause::Unexpected),
    }
}

/// Returns a function that submits a key and an operation.
pub(super) fn request<'a>(
    key: &'a [u8],
    op: Op<'a>,
) -> Result<impl Fn(&mut Session, Duration) -> Option<Ticket> + use<'a>, Error> {
    let key = Key::new(key)?;
    Ok(move |session: &mut Session, now| session.submit(now, key, &op))
}
