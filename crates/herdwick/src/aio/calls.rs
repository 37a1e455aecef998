//! The calls of the asynchronous client, one method each: those of the blocking one.

use std::{future::poll_fn, pin::Pin, task::Poll};

use super::{
    AsyncClient,
    outcome::Outcome,
    request::{AskedFor, PendingRequest},
};
use crate::{Cas, Cause, Error, Item, Key, Mode, Op, Put, Ttl, Usage, text::Command};

/// Most requests of one call that are polled each time it is woken, for whichever of them that was.
const POLLED_MAX: usize = 256;

/// Every call may fail as a blocking [`Client`](crate::Client)'s does.
impl AsyncClient {
    /// Opens a session now, unless there is one.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn dial(&self) -> Result<(), Error> {
        PendingRequest::new(self, AskedFor::Session).await.map(drop)
    }

    /// Reads a value; `None` if there is no item.
    ///
    /// # Errors
    /// As every call.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.gets(key).await?.map(|item| item.value))
    }

    /// Reads an item: value, flags and version.
    ///
    /// # Errors
    /// As every call.
    pub async fn gets(&self, key: impl AsRef<[u8]>) -> Result<Option<Item>, Error> {
        item(self.ask(key.as_ref(), Op::Get).await?)
    }

    /// Reads the items of `keys`, in their order, all at once.
    ///
    /// # Errors
    /// As every call; an error applies to all keys together.
    pub async fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Item>>, Error> {
        // One deadline and one count of dials for all requests of this call.
        let failed_dials = self.core.lock().dials.failed;
        let due = self.core.now().saturating_add(self.deadline);
        let requests = keys.iter().map(|key| {
            let asked = AskedFor::Op(Key::new(key.as_ref())?, Op::Get);
            let request = PendingRequest::begun(self, asked, (due, failed_dials));
            Ok((request, None))
        });
        // Every key is checked before the first is asked for.
        let mut requests = requests.collect::<Result<Vec<_>, Usage>>()?;
        let mut answered = 0;
        let mut failed = None;
        poll_fn(|cx| {
            let waiting = requests[answered..].iter_mut();
            let mut polled = 0;
            for (request, answer) in waiting.filter(|(_, answer)| answer.is_none()) {
                if polled == POLLED_MAX {
                    break;
                }
                polled += 1;
                if let Poll::Ready(outcome) = Pin::new(request).poll(cx) {
                    // One that has ended does not count, so that all that are ready end in one
                    // turn.
                    polled -= 1;
                    match outcome.and_then(item) {
                        Ok(item) => *answer = Some(item),
                        Err(error) => {
                            failed = Some(error);
                            return Poll::Ready(());
                        }
                    }
                }
            }
            let left = requests[answered..].iter();
            answered += left.take_while(|(_, answer)| answer.is_some()).count();
            if answered == requests.len() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        match failed {
            Some(error) => Err(error),
            None => Ok(requests.into_iter().filter_map(|(_, item)| item).collect()),
        }
    }

    /// Stores a value, whether or not there is an item.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub async fn set<'a>(
        &self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
    ) -> Result<(), Error> {
        let op = Op::Store(Mode::Set, put.into());
        stored(self.ask(key.as_ref(), op).await?).map(drop)
    }

    /// Stores a value if there is no item. Returns whether it was stored.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub async fn add<'a>(
        &self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
    ) -> Result<bool, Error> {
        stored(
            self.ask(key.as_ref(), Op::Store(Mode::Add, put.into()))
                .await?,
        )
    }

    /// Stores a value if there is an item. Returns whether it was stored.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub async fn replace<'a>(
        &self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
    ) -> Result<bool, Error> {
        let op = Op::Store(Mode::Replace, put.into());
        stored(self.ask(key.as_ref(), op).await?)
    }

    /// Appends `value` to the item's, if there is one. Returns whether there was.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub async fn append(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        let op = Op::Store(Mode::Append, Put::new(&value));
        stored(self.ask(key.as_ref(), op).await?)
    }

    /// Prepends `value` to the item's, if there is one. Returns whether there was.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub async fn prepend(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        let op = Op::Store(Mode::Prepend, Put::new(&value));
        stored(self.ask(key.as_ref(), op).await?)
    }

    /// Stores a value if the item still has this [`Item::version`].
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub async fn cas<'a>(
        &self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
        version: u64,
    ) -> Result<Cas, Error> {
        match self.ask(key.as_ref(), Op::Cas(version, put.into())).await? {
            Outcome::Done => Ok(Cas::Stored),
            Outcome::Exists => Ok(Cas::Changed),
            Outcome::Missing => Ok(Cas::Missing),
            other => Err(unexpected(other)),
        }
    }

    /// Removes the item. Returns whether there was one.
    ///
    /// # Errors
    /// As every call.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        found(self.ask(key.as_ref(), Op::Delete).await?)
    }

    /// Sets the item's time to live. Returns whether there is one.
    ///
    /// # Errors
    /// As every call.
    pub async fn touch(&self, key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Result<bool, Error> {
        found(self.ask(key.as_ref(), Op::Touch(ttl.into())).await?)
    }

    /// Adds to a decimal value, wrapping at 2^64. Returns the new number, or `None` if there is no item.
    ///
    /// # Errors
    /// As every call, and [`Error::NotNumeric`].
    pub async fn incr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        number(self.ask(key.as_ref(), Op::Incr(delta)).await?)
    }

    /// Subtracts from a decimal value, down to 0. Returns the new number, or `None` if there is no item.
    ///
    /// # Errors
    /// As every call, and [`Error::NotNumeric`].
    pub async fn decr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        number(self.ask(key.as_ref(), Op::Decr(delta)).await?)
    }

    /// Reads the server's statistics; `argument` is empty or a group such as `items`.
    ///
    /// # Errors
    /// As every call.
    pub async fn stats(&self, argument: &str) -> Result<Vec<(String, String)>, Error> {
        let bytes = argument.as_bytes();
        if bytes.len() > 250 || bytes.iter().any(|&byte| byte < b' ') {
            return Err(Usage::StatsArgument.into());
        }
        self.list(Command::Stats(bytes)).await
    }

    /// Reads the server's version.
    ///
    /// # Errors
    /// As every call.
    pub async fn version(&self) -> Result<String, Error> {
        let lines = self.list(Command::Version).await?;
        Ok(lines.into_iter().map(|(_, version)| version).collect())
    }

    /// Invalidates all items of the server.
    ///
    /// # Errors
    /// As every call.
    pub async fn flush_all(&self) -> Result<(), Error> {
        self.list(Command::FlushAll).await.map(drop)
    }

    async fn ask(&self, key: &[u8], op: Op<'_>) -> Result<Outcome, Error> {
        let key = Key::new(key)?;
        PendingRequest::new(self, AskedFor::Op(key, op)).await
    }

    async fn list(&self, command: Command<'_>) -> Result<Vec<(String, String)>, Error> {
        match PendingRequest::new(self, AskedFor::Command(command)).await? {
            Outcome::Lines(lines) => Ok(lines),
            Outcome::Done => Ok(Vec::new()),
            other => Err(unexpected(other)),
        }
    }
}

fn item(outcome: Outcome) -> Result<Option<Item>, Error> {
    match outcome {
        Outcome::Item(item) => Ok(item),
        Outcome::Missing => Ok(None),
        other => Err(unexpected(other)),
    }
}

fn stored(outcome: Outcome) -> Result<bool, Error> {
    match outcome {
        Outcome::Done => Ok(true),
        Outcome::NotStored => Ok(false),
        other => Err(unexpected(other)),
    }
}

fn found(outcome: Outcome) -> Result<bool, Error> {
    match outcome {
        Outcome::Done => Ok(true),
        Outcome::Missing => Ok(false),
        other => Err(unexpected(other)),
    }
}

fn number(outcome: Outcome) -> Result<Option<u64>, Error> {
    match outcome {
        Outcome::Number(number) => Ok(Some(number)),
        Outcome::Missing => Ok(None),
        other => Err(unexpected(other)),
    }
}

fn unexpected(outcome: Outcome) -> Error {
    match outcome {
        Outcome::Failed(error) => error,
        _ => Error::Disconnected(Cause::Unexpected),
    }
}
