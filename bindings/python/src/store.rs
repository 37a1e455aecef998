//! The ways to store a value, and the call of each.

use herdwick::{Cas, Error, Put, Ttl};
use pyo3::pybacked::PyBackedBytes;

use crate::{
    config::{Servers, ask},
    keys::SentKey,
};

/// How a value is stored.
#[derive(Clone, Copy)]
pub(crate) enum Store {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas(u64),
}

/// Makes the call. `None`: there is no item for a CAS.
pub(crate) fn run(
    servers: &mut Servers,
    how: Store,
    key: &SentKey,
    data: &PyBackedBytes,
    flags: u32,
    ttl: Ttl,
) -> Result<Option<bool>, Error> {
    let put = Put::new(data).flags(flags).ttl(ttl);
    ask!(servers, client => match how {
        Store::Set => client.set(key, put).map(|()| Some(true)),
        Store::Add => client.add(key, put).map(Some),
        Store::Replace => client.replace(key, put).map(Some),
        Store::Append => client.append(key, data).map(Some),
        Store::Prepend => client.prepend(key, data).map(Some),
        Store::Cas(version) => Ok(match client.cas(key, put, version)? {
            Cas::Stored => Some(true),
            Cas::Changed => Some(false),
            Cas::Missing => None,
        }),
    })
}
