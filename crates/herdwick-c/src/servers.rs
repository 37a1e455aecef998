//! The servers of a client: their names, transports, versions and statistics.

use std::ffi::{CString, c_char, c_void};

use herdwick::Client;

use crate::{
    bytes::{put, some_text},
    client::{ClientHandle, Held, Servers},
    handle::on,
    status::{Failure, Status, c_text},
};

/// Gets a statistic.
type OnStat =
    Option<unsafe extern "C" fn(context: *mut c_void, name: *const c_char, value: *const c_char)>;

/// Returns the client of the server at `index`, and the server's name.
fn server(servers: &mut Servers, index: usize) -> Result<(String, &mut Client), Failure> {
    let found = match servers {
        Servers::One(client, address) => {
            let is_first = index == 0;
            is_first.then(|| (address.to_string(), &mut **client))
        }
        Servers::Several(cluster) => {
            let mut all = cluster.servers().skip(index);
            all.next().map(|(node, client)| (node.name(), client))
        }
    };
    found.ok_or_else(|| Failure::usage("there is no server of this index"))
}

/// Counts the servers.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_server_count(
    client: *mut ClientHandle,
    count: *mut usize,
) -> Status {
    let call = |held: &mut Held| {
        let servers = match &mut held.servers {
            Servers::One(..) => 1,
            Servers::Several(cluster) => cluster.servers().count(),
        };
        // SAFETY: the caller's promise.
        unsafe { put(count, servers) };
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(client, call) }
}

/// Answers with a text that the client keeps until its next one.
unsafe fn answer(
    client: *mut ClientHandle,
    text: *mut *const c_char,
    call: impl FnOnce(&mut Servers) -> Result<String, Failure>,
) -> Status {
    let call = |held: &mut Held| {
        held.text = c_text(call(&mut held.servers)?);
        // SAFETY: the caller's promise.
        unsafe { put(text, held.text.as_ptr()) };
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(client, call) }
}

/// Names a server.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_server_name(
    client: *mut ClientHandle,
    index: usize,
    name: *mut *const c_char,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { answer(client, name, |servers| Ok(server(servers, index)?.0)) }
}

/// Names the server of a key.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_server_of(
    client: *mut ClientHandle,
    key: *const c_void,
    key_length: usize,
    name: *mut *const c_char,
) -> Status {
    let call = |servers: &mut Servers| {
        // SAFETY: the caller's promise.
        let key = unsafe { crate::bytes::bytes(key, key_length) }?;
        Ok(match servers {
            Servers::One(_, address) => address.to_string(),
            Servers::Several(cluster) => cluster.server_of(key)?.name(),
        })
    };
    // SAFETY: the caller's promise.
    unsafe { answer(client, name, call) }
}

/// Asks a server for its version.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_server_version(
    client: *mut ClientHandle,
    index: usize,
    version: *mut *const c_char,
) -> Status {
    let call = |servers: &mut Servers| Ok(server(servers, index)?.1.version()?);
    // SAFETY: the caller's promise.
    unsafe { answer(client, version, call) }
}

/// Names the transport to a server.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_server_transport(
    client: *mut ClientHandle,
    index: usize,
    transport: *mut *const c_char,
) -> Status {
    let call = |servers: &mut Servers| {
        let session = server(servers, index)?.1.session();
        Ok(session.map_or("none", |session| session.transport()).into())
    };
    // SAFETY: the caller's promise.
    unsafe { answer(client, transport, call) }
}

/// Explains why the transport to a server is not a better one.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_server_fallback(
    client: *mut ClientHandle,
    index: usize,
    reason: *mut *const c_char,
) -> Status {
    let call = |servers: &mut Servers| {
        let session = server(servers, index)?.1.session();
        let missed = session.and_then(|session| session.missed());
        Ok(missed.map(ToString::to_string).unwrap_or_default())
    };
    // SAFETY: the caller's promise.
    unsafe { answer(client, reason, call) }
}

/// Reads the statistics of a server.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_server_stats(
    client: *mut ClientHandle,
    index: usize,
    group: *const c_char,
    on_stat: OnStat,
    context: *mut c_void,
) -> Status {
    let call = |held: &mut Held| {
        let on_stat = on_stat.ok_or_else(|| Failure::usage("there is no callback"))?;
        // SAFETY: the caller's promise.
        let group = unsafe { some_text(group) }?;
        let stats = server(&mut held.servers, index)?.1.stats(group)?;
        // The handle is locked meanwhile: a call on it from the callback is refused, and does not
        // wait for itself.
        for (name, value) in stats {
            let (name, value): (CString, CString) = (c_text(name), c_text(value));
            // SAFETY: the caller's function; both texts live until it returns.
            unsafe { on_stat(context, name.as_ptr(), value.as_ptr()) };
        }
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(client, call) }
}
