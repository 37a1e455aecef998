//! The calls of a [`Cluster`], one method each: those of a [`Client`], at the server of the key.

use super::{Calling, Cluster, Next, pause};
use crate::{
    Cas, Client, Error, Item, Key, Put, Ttl, Usage,
    client::fan_out::{self, Part},
};

/// What a multi-get found, and which servers did not answer.
#[derive(Debug)]
pub struct MultiGet {
    /// An item for each key, in their order; `None`: there is none, or its server failed.
    pub items: Vec<Option<Item>>,
    /// The servers that failed.
    pub failed: Vec<FailedServer>,
}

/// A server that did not answer a multi-get.
#[derive(Debug)]
pub struct FailedServer {
    /// Its name.
    pub server: String,
    /// Why.
    pub error: Error,
    /// The places of its keys in the list of keys.
    pub keys: Vec<usize>,
}

impl MultiGet {
    fn fail(&mut self, server: String, error: Error, keys: Vec<usize>) {
        match self.failed.iter_mut().find(|one| one.server == server) {
            Some(one) => one.keys.extend(keys),
            None => self.failed.push(FailedServer {
                server,
                error,
                keys,
            }),
        }
    }

    /// Returns the items, if every server has answered.
    ///
    /// # Errors
    /// That of the first server that has not.
    pub fn complete(self) -> Result<Vec<Option<Item>>, Error> {
        match self.failed.into_iter().next() {
            None => Ok(self.items),
            Some(failed) => Err(failed.error),
        }
    }
}

/// Every call may fail as a [`Client`]'s does.
impl Cluster {
    /// As [`Client::get`].
    ///
    /// # Errors
    /// As every call.
    pub fn get(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let key = key.as_ref();
        self.call(key, |client| client.get(key))
    }

    /// As [`Client::gets`].
    ///
    /// # Errors
    /// As every call.
    pub fn gets(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Item>, Error> {
        let key = key.as_ref();
        self.call(key, |client| client.gets(key))
    }

    /// As [`Client::set`].
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn set<'a>(&mut self, key: impl AsRef<[u8]>, put: impl Into<Put<'a>>) -> Result<(), Error> {
        let (key, put) = (key.as_ref(), put.into());
        self.call(key, |client| client.set(key, put))
    }

    /// As [`Client::add`].
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn add<'a>(
        &mut self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
    ) -> Result<bool, Error> {
        let (key, put) = (key.as_ref(), put.into());
        self.call(key, |client| client.add(key, put))
    }

    /// As [`Client::replace`].
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn replace<'a>(
        &mut self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
    ) -> Result<bool, Error> {
        let (key, put) = (key.as_ref(), put.into());
        self.call(key, |client| client.replace(key, put))
    }

    /// As [`Client::append`].
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn append(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.call(key, |client| client.append(key, value))
    }

    /// As [`Client::prepend`].
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn prepend(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.call(key, |client| client.prepend(key, value))
    }

    /// As [`Client::cas`]. A version is that of one server: under
    /// [`OnFailure::Failover`](super::OnFailure::Failover) and
    /// [`OnFailure::Eject`](super::OnFailure::Eject) another server may have an item of this version by
    /// chance.
    ///
    /// # Errors
    /// As every call, and [`Error::TooLarge`].
    pub fn cas<'a>(
        &mut self,
        key: impl AsRef<[u8]>,
        put: impl Into<Put<'a>>,
        version: u64,
    ) -> Result<Cas, Error> {
        let (key, put) = (key.as_ref(), put.into());
        self.call(key, |client| client.cas(key, put, version))
    }

    /// As [`Client::delete`].
    ///
    /// # Errors
    /// As every call.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let key = key.as_ref();
        self.call(key, |client| client.delete(key))
    }

    /// As [`Client::touch`].
    ///
    /// # Errors
    /// As every call.
    pub fn touch(&mut self, key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Result<bool, Error> {
        let (key, ttl) = (key.as_ref(), ttl.into());
        self.call(key, |client| client.touch(key, ttl))
    }

    /// As [`Client::incr`].
    ///
    /// # Errors
    /// As every call, and [`Error::NotNumeric`].
    pub fn incr(&mut self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        let key = key.as_ref();
        self.call(key, |client| client.incr(key, delta))
    }

    /// As [`Client::decr`].
    ///
    /// # Errors
    /// As every call, and [`Error::NotNumeric`].
    pub fn decr(&mut self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        let key = key.as_ref();
        self.call(key, |client| client.decr(key, delta))
    }

    /// Invalidates all items of every server, those that are away from the ring included.
    ///
    /// # Errors
    /// The first server's that fails; the others are flushed all the same.
    pub fn flush_all(&mut self) -> Result<(), Error> {
        let (due, mut left) = (self.begin().due, self.members.len() as u32);
        let mut outcome = Ok(());
        for place in 0..self.members.len() {
            // A server that hangs takes no time from those after it.
            let part = due.saturating_sub(self.now()) / left;
            left -= 1;
            let client = &mut self.members[place].client;
            client.set_deadline(part);
            let flushed = client.flush_all();
            outcome = outcome.and(flushed);
        }
        outcome
    }

    /// Reads the items of `keys` from all their servers at once. A server that fails leaves the items
    /// of its own keys out, and is named in [`MultiGet::failed`].
    ///
    /// # Errors
    /// [`Error::Usage`], for a malformed key.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<MultiGet, Error> {
        let keys = keys.iter().map(|key| Key::new(key.as_ref()));
        let keys = keys.collect::<Result<Vec<_>, Usage>>()?;
        let mut calling = self.begin();
        let mut outcome = MultiGet {
            items: vec![None; keys.len()],
            failed: Vec::new(),
        };
        let mut pending: Vec<usize> = (0..keys.len()).collect();
        while !pending.is_empty() {
            pending = self.read(&keys, &pending, &mut calling, &mut outcome);
        }
        Ok(outcome)
    }

    /// Reads the keys in the places `pending`, each from its server. Returns those that have to be
    /// read again, or elsewhere.
    fn read(
        &mut self,
        keys: &[Key<'_>],
        pending: &[usize],
        calling: &mut Calling,
        outcome: &mut MultiGet,
    ) -> Vec<usize> {
        let mut places = vec![Vec::new(); self.members.len()];
        for place in pending {
            if let Some(server) = self.pick(keys[*place], &calling.without) {
                places[server].push(*place);
            }
        }
        let time = self.time_for(calling);
        let servers: Vec<usize> = (0..places.len())
            .filter(|server| !places[*server].is_empty())
            .collect();
        let members = self.members.iter_mut().zip(&places);
        let members = members.filter(|(_, places)| !places.is_empty());
        let mut parts: Vec<_> = members
            .map(|(member, places)| {
                member.client.set_deadline(time);
                Part {
                    client: &mut member.client,
                    keys: places.iter().map(|place| keys[*place]).collect(),
                }
            })
            .collect();
        let found = fan_out::read(&mut parts);
        let (mut again, mut longest) = (Vec::new(), None);
        for (server, found) in servers.into_iter().zip(found) {
            let next = self.after(server, calling, found.as_ref().err());
            let places = std::mem::take(&mut places[server]);
            match (found, next) {
                (Ok(items), _) => {
                    for (place, item) in places.into_iter().zip(items) {
                        outcome.items[place] = item;
                    }
                }
                (Err(error), None) => outcome.fail(self.members[server].node.name(), error, places),
                (Err(_), Some(next)) => {
                    match next {
                        Next::Again(span) => longest = longest.max(Some(span)),
                        Next::Elsewhere => calling.without.push(server),
                    }
                    again.extend(places);
                }
            }
        }
        if let Some(span) = longest {
            pause(span);
        }
        again
    }

    /// Makes one call at the server of `key`, and where it goes on if that fails.
    fn call<T>(
        &mut self,
        key: &[u8],
        mut run: impl FnMut(&mut Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let key = Key::new(key)?;
        let mut calling = self.begin();
        loop {
            let place = self.pick(key, &calling.without).ok_or(Usage::NoServer)?;
            let time = self.time_for(&calling);
            let client = &mut self.members[place].client;
            client.set_deadline(time);
            let outcome = run(client);
            match self.after(place, &calling, outcome.as_ref().err()) {
                None => return outcome,
                Some(Next::Again(span)) => pause(span),
                Some(Next::Elsewhere) => calling.without.push(place),
            }
        }
    }
}
