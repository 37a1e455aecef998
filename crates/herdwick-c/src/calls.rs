//! The calls that wait for their answer, one function each.

use std::ffi::c_void;

use herdwick::{Cas, Error};

use crate::{
    bytes::{CItem, CKey, bytes, key_list, new_put, new_ttl, put},
    client::{ClientHandle, Held, Servers},
    handle::on,
    status::{Failure, Status},
};

/// Makes the same call of a client of one server or of several.
macro_rules! ask {
    ($held:expr, $servers:ident => $call:expr) => {
        match &mut $held.servers {
            Servers::One($servers, _) => $call,
            Servers::Several($servers) => $call,
        }
    };
}

/// Makes a call that names a key.
///
/// # Safety
/// As [`on`] and [`bytes`].
unsafe fn with_key(
    client: *mut ClientHandle,
    (key, length): (*const c_void, usize),
    call: impl FnOnce(&mut Held, &[u8]) -> Result<Status, Failure>,
) -> Status {
    let call = |held: &mut Held| {
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, length) }?;
        call(held, key)
    };
    // SAFETY: the caller's promise.
    unsafe { on(client, call) }
}

/// Makes a call that names a key and has a value.
///
/// # Safety
/// As [`on`] and [`bytes`].
unsafe fn with_value(
    client: *mut ClientHandle,
    key: (*const c_void, usize),
    (value, length): (*const c_void, usize),
    call: impl FnOnce(&mut Held, &[u8], &[u8]) -> Result<Status, Failure>,
) -> Status {
    let call = |held: &mut Held, key: &[u8]| {
        // SAFETY: the caller's promise.
        let value = unsafe { bytes(value, length) }?;
        call(held, key, value)
    };
    // SAFETY: the caller's promise.
    unsafe { with_key(client, key, call) }
}

/// Reads an item.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_get(
    client: *mut ClientHandle,
    key: *const c_void,
    key_length: usize,
    item: *mut CItem,
) -> Status {
    let call = |held: &mut Held, key: &[u8]| {
        // Kept in the handle: C's pointers lead there until the next call.
        held.item = ask!(held, servers => servers.gets(key))?;
        let found = CItem::from(&held.item);
        // SAFETY: the caller's promise.
        unsafe { put(item, found) };
        Ok(found.status())
    };
    // SAFETY: the caller's promise.
    unsafe { with_key(client, (key, key_length), call) }
}

/// Reads the items of many keys at once.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_get_many(
    client: *mut ClientHandle,
    keys: *const CKey,
    count: usize,
    items: *mut CItem,
) -> Status {
    let call = |held: &mut Held| {
        if items.is_null() && count > 0 {
            return Err(Failure::usage("there is no place for the items"));
        }
        // SAFETY: the caller's promise.
        let keys = unsafe { key_list(keys, count) }?;
        let found = read_many(&mut held.servers, &keys);
        // SAFETY: there are `count` places by the caller's promise.
        let fill = |place, item| unsafe { items.add(place).write(item) };
        let (found, failed) = match found {
            Ok(found) => found,
            Err(usage @ Error::Usage(_)) => return Err(usage.into()),
            Err(error) => {
                let failure = Failure::from(error);
                (0..count).for_each(|place| fill(place, CItem::none(failure.status)));
                return Err(failure);
            }
        };
        // Kept in the handle before C gets pointers into it.
        held.items = found;
        for (place, item) in held.items.iter().enumerate() {
            fill(place, item.into());
        }
        let mut first = None;
        for (error, places) in failed {
            let failure = Failure::from(error);
            for place in places {
                fill(place, CItem::none(failure.status));
            }
            first.get_or_insert(failure);
        }
        first.map_or(Ok(Status::Ok), Err)
    };
    // SAFETY: the caller's promise.
    unsafe { on(client, call) }
}

/// The items of keys, and which keys' servers have failed, and why.
type Found = (Vec<Option<herdwick::Item>>, Vec<(Error, Vec<usize>)>);

fn read_many(servers: &mut Servers, keys: &[&[u8]]) -> Result<Found, Error> {
    Ok(match servers {
        Servers::One(client, _) => (client.get_many(keys)?, Vec::new()),
        Servers::Several(cluster) => {
            let found = cluster.get_many(keys)?;
            let failed = found.failed.into_iter();
            (
                found.items,
                failed.map(|server| (server.error, server.keys)).collect(),
            )
        }
    })
}

/// Declares a function that stores a value under a condition.
macro_rules! store {
    ($name:ident, $about:literal, $servers:ident, $key:ident, $put:ident => $call:expr) => {
        #[doc = $about]
        ///
        /// # Safety
        /// As the header declares.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            client: *mut ClientHandle,
            key: *const c_void,
            key_length: usize,
            value: *const c_void,
            value_length: usize,
            flags: u32,
            ttl: u32,
        ) -> Status {
            let call = |held: &mut Held, $key: &[u8], value: &[u8]| {
                let $put = new_put(value, flags, ttl);
                Ok(ask!(held, $servers => $call)?)
            };
            // SAFETY: the caller's promise.
            unsafe { with_value(client, (key, key_length), (value, value_length), call) }
        }
    };
}

store!(herdwick_set, "Stores a value.", servers, key, put =>
    servers.set(key, put).map(|()| Status::Ok));
store!(herdwick_add, "Stores a value if there is no item.", servers, key, put =>
    servers.add(key, put).map(stored));
store!(herdwick_replace, "Stores a value if there is an item.", servers, key, put =>
    servers.replace(key, put).map(stored));

fn stored(was: bool) -> Status {
    if was { Status::Ok } else { Status::NotStored }
}

fn found(was: bool) -> Status {
    if was { Status::Ok } else { Status::NotFound }
}

/// Stores a value if the item has still this version.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_cas(
    client: *mut ClientHandle,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    flags: u32,
    ttl: u32,
    version: u64,
) -> Status {
    let call = |held: &mut Held, key: &[u8], value: &[u8]| {
        let put = new_put(value, flags, ttl);
        let outcome = ask!(held, servers => servers.cas(key, put, version))?;
        Ok(match outcome {
            Cas::Stored => Status::Ok,
            Cas::Changed => Status::Changed,
            Cas::Missing => Status::NotFound,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { with_value(client, (key, key_length), (value, value_length), call) }
}

/// Declares a function that adds bytes to an item's value.
macro_rules! extend {
    ($name:ident, $about:literal, $servers:ident, $key:ident, $value:ident => $call:expr) => {
        #[doc = $about]
        ///
        /// # Safety
        /// As the header declares.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            client: *mut ClientHandle,
            key: *const c_void,
            key_length: usize,
            value: *const c_void,
            value_length: usize,
        ) -> Status {
            let call = |held: &mut Held, $key: &[u8], $value: &[u8]| {
                Ok(stored(ask!(held, $servers => $call)?))
            };
            // SAFETY: the caller's promise.
            unsafe { with_value(client, (key, key_length), (value, value_length), call) }
        }
    };
}

extend!(herdwick_append, "Adds bytes after the item's value.", servers, key, value =>
    servers.append(key, value));
extend!(herdwick_prepend, "Adds bytes before the item's value.", servers, key, value =>
    servers.prepend(key, value));

/// Removes an item.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_delete(
    client: *mut ClientHandle,
    key: *const c_void,
    key_length: usize,
) -> Status {
    let call = |held: &mut Held, key: &[u8]| Ok(found(ask!(held, servers => servers.delete(key))?));
    // SAFETY: the caller's promise.
    unsafe { with_key(client, (key, key_length), call) }
}

/// Sets an item's time to live.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_touch(
    client: *mut ClientHandle,
    key: *const c_void,
    key_length: usize,
    ttl: u32,
) -> Status {
    let call = |held: &mut Held, key: &[u8]| {
        Ok(found(
            ask!(held, servers => servers.touch(key, new_ttl(ttl)))?,
        ))
    };
    // SAFETY: the caller's promise.
    unsafe { with_key(client, (key, key_length), call) }
}

/// Declares a function that changes a number.
macro_rules! count {
    ($name:ident, $about:literal, $servers:ident, $key:ident, $delta:ident => $call:expr) => {
        #[doc = $about]
        ///
        /// # Safety
        /// As the header declares.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            client: *mut ClientHandle,
            key: *const c_void,
            key_length: usize,
            $delta: u64,
            number: *mut u64,
        ) -> Status {
            let call = |held: &mut Held, $key: &[u8]| {
                let Some(new) = ask!(held, $servers => $call)? else {
                    return Ok(Status::NotFound);
                };
                // SAFETY: the caller's promise.
                unsafe { put(number, new) };
                Ok(Status::Ok)
            };
            // SAFETY: the caller's promise.
            unsafe { with_key(client, (key, key_length), call) }
        }
    };
}

count!(herdwick_incr, "Adds to a number.", servers, key, delta => servers.incr(key, delta));
count!(herdwick_decr, "Subtracts from a number.", servers, key, delta => servers.decr(key, delta));

/// Removes all items of every server.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_flush_all(client: *mut ClientHandle) -> Status {
    let call = |held: &mut Held| {
        ask!(held, servers => servers.flush_all())?;
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(client, call) }
}
