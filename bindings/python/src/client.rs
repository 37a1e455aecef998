//! A client whose calls wait for their answer, and let other threads of Python run meanwhile.

use std::sync::{MutexGuard, OnceLock};

use herdwick::{Error, Hit, Ttl, Usage};
use pyo3::{
    exceptions::{PyException, PyRuntimeError, PyTypeError},
    prelude::*,
    types::{PyBytes, PyDict, PyIterator, PyList, PyTuple},
};

use crate::{
    config::{Config, Servers, ask},
    errors::exception,
    found::Found,
    held::Held,
    keys::{KeyRules, SentKey, SentKeys},
    store::{Store, run},
    values::{ValueRules, delta, ttl, version},
};

/// What `herdwick.Client` and its kin inherit. Threads may share it: their calls take turns.
#[pyclass(subclass, frozen, name = "_Client", module = "herdwick._herdwick")]
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// What `__init__` sets, so that subclasses may have another.
    setup: OnceLock<Setup>,
    held: Held,
}

#[derive(Debug)]
struct Setup {
    config: Config,
    keys: KeyRules,
    values: ValueRules,
    is_lenient: bool,
    default_noreply: bool,
}

impl Client {
    fn setup(&self) -> PyResult<&Setup> {
        let missing = || PyRuntimeError::new_err("__init__ of the client was not called");
        self.setup.get().ok_or_else(missing)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Servers>> {
        self.held.lock()
    }

    /// Makes a call without the GIL.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Servers) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let setup = self.setup()?;
        let done = py.detach(|| {
            let mut held = self.lock();
            let servers = match &mut *held {
                Some(servers) => servers,
                none => none.insert(setup.config.client()?),
            };
            servers.dial(&setup.config)?;
            call(servers)
        });
        done.map_err(|error| exception(py, error))
    }

    /// As `call`, where an error may count as a miss.
    fn read<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Servers) -> Result<T, Error> + Send,
    ) -> PyResult<Option<T>> {
        self.tolerate(py, self.call(py, call))
    }

    /// Makes a miss of an error, if the client is to ignore errors.
    fn tolerate<T>(&self, py: Python<'_>, done: PyResult<T>) -> PyResult<Option<T>> {
        match done {
            Ok(found) => Ok(Some(found)),
            Err(error) if self.setup()?.is_lenient && error.is_instance_of::<PyException>(py) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn waits(&self, noreply: Option<bool>) -> PyResult<bool> {
        Ok(!noreply.unwrap_or(self.setup()?.default_noreply))
    }

    fn key(&self, key: &Bound<'_, PyAny>) -> PyResult<SentKey> {
        self.setup()?.keys.check(key)
    }

    fn value<'py>(&self, key: &Bound<'py, PyAny>, hit: Hit<'_>) -> PyResult<Bound<'py, PyAny>> {
        let values = &self.setup()?.values;
        values.deserialize(key, hit.value, hit.flags)
    }

    fn read_many(&self, py: Python<'_>, sent: &SentKeys) -> PyResult<Found> {
        let sent = sent.slices();
        let is_lenient = self.setup()?.is_lenient;
        let found = self.read(py, |servers| match servers {
            Servers::One(client) => {
                let mut found = Found::nothing(sent.len());
                client.get_many_with(&sent, |place, hit| found.note(place, hit))?;
                Ok(found)
            }
            // What the other servers have is found.
            Servers::Several(cluster) if is_lenient => Ok(cluster.get_many(&sent)?.items.into()),
            Servers::Several(cluster) => Ok(cluster.get_many(&sent)?.complete()?.into()),
        })?;
        Ok(found.unwrap_or_else(|| Found::nothing(0)))
    }

    /// Reads an item, and returns what `show` makes of it. `None`: there is none, or an error counts as a miss.
    fn read_one<T>(
        &self,
        key: &Bound<'_, PyAny>,
        show: impl FnOnce(Hit<'_>) -> PyResult<T>,
    ) -> PyResult<Option<T>> {
        let (py, sent) = (key.py(), self.key(key)?);
        let found = self.read(py, |servers| ask!(servers, client => client.gets(&sent)))?;
        match found.flatten() {
            Some(item) => {
                let hit = Hit {
                    value: &item.value,
                    flags: item.flags,
                    version: item.version,
                };
                self.tolerate(py, show(hit))
            }
            None => Ok(None),
        }
    }

    /// Reads many items, and returns a dict of what `show` makes of those that there are.
    fn read_into_dict<'py, T>(
        &self,
        keys: &Bound<'py, PyAny>,
        show: impl Fn(&Bound<'py, PyAny>, Hit<'_>) -> PyResult<Bound<'py, T>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (py, rules) = (keys.py(), &self.setup()?.keys);
        let (mut own, mut sent) = (Vec::new(), SentKeys::default());
        for key in iterate(keys)? {
            let key = key?;
            rules.check_into(&key, &mut sent)?;
            own.push(key);
        }
        let found = PyDict::new(py);
        let Found { items, shared } = self.read_many(py, &sent)?;
        for (key, item) in own.into_iter().zip(items) {
            if let Some(item) = item
                && let Some(shown) = self.tolerate(py, show(&key, item.hit(&shared)))?
            {
                found.set_item(key, shown)?;
            }
        }
        Ok(found)
    }

    /// Stores one value. Returns pymemcache's answer: `None` if the key does not exist for a CAS.
    fn store(
        &self,
        how: Store,
        (key, value): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
        (expire, flags): (Option<&Bound<'_, PyAny>>, Option<u32>),
        waits: bool,
    ) -> PyResult<Option<bool>> {
        let ttl = expire.map_or(Ok(Ttl::Never), ttl)?;
        let sent = self.key(key)?;
        let (data, flags) = self.setup()?.values.serialize(key, value, flags)?;
        let stored = self.call(key.py(), |servers| {
            run(servers, how, &sent, &data, flags, ttl)
        })?;
        Ok(if waits { stored } else { Some(true) })
    }

    /// Adds to a number, or subtracts from it.
    fn count(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        noreply: Option<bool>,
        is_up: bool,
    ) -> PyResult<Option<u64>> {
        let (sent, delta) = (self.key(key)?, delta(value)?);
        let number = self.call(key.py(), |servers| match is_up {
            true => ask!(servers, client => client.incr(&sent, delta)),
            false => ask!(servers, client => client.decr(&sent, delta)),
        })?;
        Ok(number.filter(|_| !noreply.unwrap_or(false)))
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (*_arguments, **_named))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
        Self::default()
    }

    /// Sets what the client is made of, once.
    #[pyo3(signature = (servers, *, serde, key_prefix, allow_unicode_keys, encoding, ignore_exc, default_noreply, options))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn _setup(
        &self,
        servers: Vec<String>,
        serde: Option<Py<PyAny>>,
        key_prefix: Vec<u8>,
        allow_unicode_keys: bool,
        encoding: String,
        ignore_exc: bool,
        default_noreply: bool,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let setup = Setup {
            config: Config::new(&servers, options)?,
            keys: KeyRules {
                prefix: key_prefix,
                is_unicode: allow_unicode_keys,
            },
            values: ValueRules { serde, encoding },
            is_lenient: ignore_exc,
            default_noreply,
        };
        let twice = |_| PyRuntimeError::new_err("__init__ of the client was called twice");
        self.setup.set(setup).map_err(twice)
    }

    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.read_one(key, |hit| self.value(key, hit))?;
        Ok(value.or(default))
    }

    #[pyo3(signature = (key, default = None, cas_default = None))]
    fn gets<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
        cas_default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        match self.read_one(key, |hit| self.with_version(key, hit))? {
            Some(pair) => Ok(pair),
            None => (default, cas_default).into_pyobject(key.py()),
        }
    }

    fn get_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        self.read_into_dict(keys, |key, hit| self.value(key, hit))
    }

    fn gets_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        self.read_into_dict(keys, |key, hit| self.with_version(key, hit))
    }

    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None))]
    fn set(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        let waits = self.waits(noreply)?;
        self.store(Store::Set, (key, value), (expire, flags), waits)
    }

    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None))]
    fn add(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        let waits = self.waits(noreply)?;
        self.store(Store::Add, (key, value), (expire, flags), waits)
    }

    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None))]
    fn replace(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        let waits = self.waits(noreply)?;
        self.store(Store::Replace, (key, value), (expire, flags), waits)
    }

    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None))]
    fn append(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        let waits = self.waits(noreply)?;
        self.store(Store::Append, (key, value), (expire, flags), waits)
    }

    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None))]
    fn prepend(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        let waits = self.waits(noreply)?;
        self.store(Store::Prepend, (key, value), (expire, flags), waits)
    }

    #[pyo3(signature = (key, value, cas, expire = None, noreply = false, flags = None))]
    fn cas(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        cas: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: bool,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        let how = Store::Cas(version(cas)?);
        self.store(how, (key, value), (expire, flags), !noreply)
    }

    #[pyo3(signature = (values, expire = None, noreply = None, flags = None))]
    fn set_many<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        expire: Option<&Bound<'py, PyAny>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Bound<'py, PyList>> {
        let _ = noreply;
        let ttl = expire.map_or(Ok(Ttl::Never), ttl)?;
        // A copy: a serde may run anything, and other threads.
        let values = list(&values.call_method0("items")?)?;
        let mut puts = Vec::with_capacity(values.len());
        for pair in values.iter() {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
            let (data, flags) = self.setup()?.values.serialize(&key, &value, flags)?;
            puts.push((self.key(&key)?, data, flags));
        }
        // Not moved there: objects are dropped with the GIL.
        self.call(values.py(), |servers| {
            let mut all = puts.iter();
            all.try_for_each(|(key, data, flags)| {
                run(servers, Store::Set, key, data, *flags, ttl).map(drop)
            })
        })?;
        // A value that is not stored is an exception.
        Ok(PyList::empty(values.py()))
    }

    #[pyo3(signature = (key, noreply = None))]
    fn delete(&self, key: &Bound<'_, PyAny>, noreply: Option<bool>) -> PyResult<bool> {
        let sent = self.key(key)?;
        let found = self.call(
            key.py(),
            |servers| ask!(servers, client => client.delete(&sent)),
        )?;
        Ok(found || !self.waits(noreply)?)
    }

    #[pyo3(signature = (keys, noreply = None))]
    fn delete_many(&self, keys: &Bound<'_, PyAny>, noreply: Option<bool>) -> PyResult<bool> {
        let _ = noreply;
        let keys = list(keys)?;
        let sent = keys.iter().map(|key| self.key(&key));
        let sent = sent.collect::<PyResult<Vec<_>>>()?;
        self.call(keys.py(), |servers| {
            let mut all = sent.iter();
            all.try_for_each(|key| ask!(servers, client => client.delete(key)).map(drop))
        })?;
        Ok(true)
    }

    #[pyo3(signature = (key, value, noreply = None))]
    fn incr(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        noreply: Option<bool>,
    ) -> PyResult<Option<u64>> {
        self.count(key, value, noreply, true)
    }

    #[pyo3(signature = (key, value, noreply = None))]
    fn decr(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        noreply: Option<bool>,
    ) -> PyResult<Option<u64>> {
        self.count(key, value, noreply, false)
    }

    #[pyo3(signature = (key, expire = None, noreply = None))]
    fn touch(
        &self,
        key: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
    ) -> PyResult<bool> {
        let ttl = expire.map_or(Ok(Ttl::Never), ttl)?;
        let sent = self.key(key)?;
        let found = self.call(
            key.py(),
            |servers| ask!(servers, client => client.touch(&sent, ttl)),
        )?;
        Ok(found || !self.waits(noreply)?)
    }

    /// Removes all items of every server.
    fn _flush_all(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |servers| ask!(servers, client => client.flush_all()))
    }

    /// The statistics of a group, of the server at `index`.
    fn _stats(
        &self,
        py: Python<'_>,
        index: usize,
        group: String,
    ) -> PyResult<Vec<(String, String)>> {
        self.call(py, move |servers| server(servers, index)?.stats(&group))
    }

    /// The version of the server at `index`.
    fn _version(&self, py: Python<'_>, index: usize) -> PyResult<String> {
        self.call(py, move |servers| server(servers, index)?.version())
    }

    /// The transport to the server at `index`, and why it is not a better one.
    fn _transport(
        &self,
        py: Python<'_>,
        index: usize,
    ) -> PyResult<(Option<String>, Option<String>)> {
        let found = py.detach(|| {
            let mut held = self.lock();
            let Some(servers) = &mut *held else {
                return Ok((None, None));
            };
            let session = server(servers, index)?.session();
            let missed = session.and_then(|session| session.missed());
            let transport = session.map(|session| session.transport().to_owned());
            Ok((transport, missed.map(ToString::to_string)))
        });
        found.map_err(|error| exception(py, error))
    }

    /// The name of the server that has a key.
    fn server_of(&self, key: &Bound<'_, PyAny>) -> PyResult<String> {
        let (sent, config) = (self.key(key)?, &self.setup()?.config);
        let only = config.nodes[0].name();
        // Another thread's call may hold the lock for long.
        let found = key.py().detach(|| -> Result<String, Usage> {
            let mut held = self.lock();
            let servers = match &mut *held {
                Some(servers) => servers,
                none => none.insert(config.client()?),
            };
            match servers {
                Servers::One(_) => Ok(only),
                Servers::Several(cluster) => Ok(cluster.server_of(&sent)?.name()),
            }
        });
        found.map_err(|usage| exception(key.py(), usage.into()))
    }

    /// Closes the connections. The next call opens others.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.lock().take()));
    }
}

impl Client {
    fn with_version<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        hit: Hit<'_>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let py = key.py();
        let value = self.value(key, hit)?;
        // pymemcache's is the server's text.
        let version = PyBytes::new(py, hit.version.to_string().as_bytes());
        (value, version).into_pyobject(py)
    }
}

fn server(servers: &mut Servers, index: usize) -> Result<&mut herdwick::Client, Error> {
    let found = match servers {
        Servers::One(client) => (index == 0).then_some(&mut **client),
        Servers::Several(cluster) => cluster.servers().nth(index).map(|(_, client)| client),
    };
    found.ok_or_else(|| Usage::NoServer.into())
}

fn iterate<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyIterator>> {
    if keys.is_none() {
        return Err(PyTypeError::new_err("keys are an iterable"));
    }
    keys.try_iter()
}

/// The elements of any iterable, in a list that nothing else changes.
fn list<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let all = iterate(keys)?.collect::<PyResult<Vec<_>>>()?;
    PyList::new(keys.py(), all)
}
